#include "rule.h"

#include <algorithm>

namespace edgepack::sinks {
namespace {

/// A source that says nothing for so long has not gone on seeing.
constexpr double kGapS = 2;

}  // namespace

bool Rule::See(double now, const std::vector<Detection>& detections) {
  const bool seen = std::any_of(detections.begin(), detections.end(), [&](const Detection& one) {
    return one.label == config_.seen && one.score > config_.score;
  });
  if (!seen || (before_ && now - *before_ > std::max(kGapS, config_.for_s))) since_.reset();
  before_ = now;
  if (!seen) return false;
  if (!since_) since_ = now;
  if (now - *since_ < config_.for_s) return false;
  if (done_ && now - *done_ < config_.every_s) return false;
  done_ = now;
  return true;
}

}  // namespace edgepack::sinks
