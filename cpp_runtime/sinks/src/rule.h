#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "config.h"
#include "detections.h"

namespace edgepack::sinks {

/// Says when something has been seen for long enough, and not too often. Of things that are tracked
/// one and the same has to be seen for so long; a track may be missed for a moment.
class Rule {
 public:
  Rule(const RuleConfig& config) : config_(config) {}

  /// Whether it is time now, in seconds; a line has these.
  bool See(double now, const std::vector<Detection>& detections);

  static constexpr std::size_t kMostTracks = 1000;

 private:
  struct Seen {
    std::int64_t track = 0;
    double since = 0;
    double last = 0;
  };

  [[nodiscard]] bool IsWanted(const Detection& detection) const;
  bool SeeTracks(double now, const std::vector<Detection>& detections);

  const RuleConfig& config_;
  std::optional<double> since_;
  std::optional<double> before_;  // the last line
  std::optional<double> done_;
  std::vector<Seen> tracks_;
};

}  // namespace edgepack::sinks
