#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "config.h"
#include "counter.h"
#include "detections.h"

namespace edgepack::sinks {

/// Says when enough has been seen for long enough, or a line was crossed, and not too often. Of
/// things that are tracked each has to be seen for so long; a track may be missed for a moment.
class Rule {
 public:
  /// `counter` is what a rule about a crossing names.
  Rule(const RuleConfig& config, const Counter* counter) : config_(config), counter_(counter) {}

  /// Whether it is time now, in seconds; a line has these, which the counter has seen.
  bool See(double now, const std::vector<Detection>& detections);

  static constexpr std::size_t kMostTracks = 1000;

 private:
  struct Seen {
    std::int64_t track = 0;
    double since = 0;
    double last = 0;
  };

  [[nodiscard]] bool IsWanted(const Detection& detection) const;
  bool SeeClass(double now, const std::vector<Detection>& detections);
  bool SeeTracks(double now, const std::vector<Detection>& detections);

  const RuleConfig& config_;
  const Counter* counter_;
  std::optional<double> since_;
  std::optional<double> before_;  // the last line
  std::optional<double> done_;
  std::vector<Seen> tracks_;
};

}  // namespace edgepack::sinks
