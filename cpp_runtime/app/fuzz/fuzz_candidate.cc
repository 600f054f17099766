// Input: a letter for the kind of answer that the current release gives, and the candidate's line.
#include <algorithm>
#include <cmath>

#include <edgepack/errors.h>

#include "common/fuzz/fuzz.h"
#include "split.h"

namespace edgepack {
namespace {

/// Of the kind that a letter stands for.
Report Ours(char kind) {
  Report ours;
  ours.frame = 7;
  if (kind == 'b') ours.boxes.emplace();
  if (kind == 'k') ours.keypoints.emplace();
  if (kind == 't') ours.text.emplace();
  if (!ours.boxes && !ours.keypoints && !ours.text) ours.top.emplace_back();
  return ours;
}

void Require(const Score& score, const std::optional<std::string_view>& label) {
  EDGEPACK_REQUIRE(std::isfinite(score.score) && score.index <= 1'000'000);
  EDGEPACK_REQUIRE(!label || label->size() <= 256);
}

void Require(const Point& point) {
  EDGEPACK_REQUIRE(std::abs(point.x) <= 1e6 && std::abs(point.y) <= 1e6);
}

}  // namespace
}  // namespace edgepack

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace edgepack;
  const std::string_view input = Text(data, size);
  const Report ours = Ours(input.empty() ? '\0' : input.front());
  EDGEPACK_REQUIRE(CanSplit(ours));
  CandidateAnswer answer;
  try {
    answer.Read(input.substr(std::min<std::size_t>(1, input.size())), ours);
  } catch (const Error& error) {
    RequireRefusal(error);
    return 0;
  }
  const Report& report = answer.report;
  EDGEPACK_REQUIRE(report.frame == ours.frame && CanSplit(report));
  EDGEPACK_REQUIRE(TookMs(report) >= 0 && TookMs(report) <= 3e6);
  for (const auto& one : report.top) Require(one.score, one.label);
  if (report.boxes) {
    EDGEPACK_REQUIRE(ours.boxes && report.boxes->size() <= 2000);
    for (const auto& one : *report.boxes) {
      Require(one.box.found, one.label);
      Require(one.box.low);
      Require(one.box.high);
      for (const Point& point : one.box.points) Require(point);
    }
  }
  if (report.keypoints) {
    for (const auto& one : *report.keypoints) {
      Require(one.mark.found, one.label);
      Require(one.mark.point);
    }
  }
  return 0;
}
