#include "rule.h"

#include <algorithm>

namespace edgepack::sinks {
namespace {

/// A source that says nothing for so long has not gone on seeing.
constexpr double kGapS = 2;

}  // namespace

bool Rule::IsWanted(const Detection& detection) const {
  return detection.label == config_.seen && detection.score > config_.score;
}

/// Whether tracks that are in view have been for long enough, of which one is seen now.
bool Rule::SeeTracks(double now, const std::vector<Detection>& detections) {
  const auto is_gone = [&](const Seen& seen) { return now - seen.last > kGapS; };
  tracks_.erase(std::remove_if(tracks_.begin(), tracks_.end(), is_gone), tracks_.end());
  bool long_enough = false;
  for (const Detection& one : detections) {
    if (one.track == 0 || !IsWanted(one)) continue;
    auto seen = std::find_if(tracks_.begin(), tracks_.end(),
                             [&](const Seen& known) { return known.track == one.track; });
    if (seen == tracks_.end()) {
      if (tracks_.size() == kMostTracks) continue;
      seen = tracks_.insert(seen, {one.track, now, now});
    }
    seen->last = now;
    long_enough = long_enough || now - seen->since >= config_.for_s;
  }
  return long_enough && std::count_if(tracks_.begin(), tracks_.end(), [&](const Seen& seen) {
                          return now - seen.since >= config_.for_s;
                        }) >= config_.least;
}

bool Rule::SeeClass(double now, const std::vector<Detection>& detections) {
  const bool tracked = SeeTracks(now, detections);
  const bool seen = std::count_if(detections.begin(), detections.end(), [&](const Detection& one) {
                      return one.track == 0 && IsWanted(one);
                    }) >= config_.least;
  if (!seen || (before_ && now - *before_ > std::max(kGapS, config_.for_s))) since_.reset();
  before_ = now;
  if (seen && !since_) since_ = now;
  return tracked || (seen && now - *since_ >= config_.for_s);
}

bool Rule::See(double now, const std::vector<Detection>& detections) {
  const bool due = counter_ != nullptr ? counter_->crossed(config_.crossing->direction) > 0
                                       : SeeClass(now, detections);
  if (!due || (done_ && now - *done_ < config_.every_s)) return false;
  done_ = now;
  return true;
}

}  // namespace edgepack::sinks
