#pragma once

#include <optional>
#include <vector>

#include "config.h"
#include "detections.h"

namespace edgepack::sinks {

/// Says when something has been seen for long enough, and not too often.
class Rule {
 public:
  Rule(const RuleConfig& config) : config_(config) {}

  /// Whether it is time now, in seconds; a line has these.
  bool See(double now, const std::vector<Detection>& detections);

 private:
  const RuleConfig& config_;
  std::optional<double> since_;
  std::optional<double> before_;  // the last line
  std::optional<double> done_;
};

}  // namespace edgepack::sinks
