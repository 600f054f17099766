#pragma once

#include <string>
#include <vector>

#include "site.h"

namespace edgepack::device {

struct RepairReport {
  /// What was brought back, and from what.
  std::vector<std::string> mended;
  /// What was not, and the command that brings it back.
  std::vector<std::string> lost;
};

/// Rebuilds what a rotten card has damaged from what is left. Whoever calls holds the lock.
RepairReport Repair(const Site& site, const Progress& progress, const std::string& by);

}  // namespace edgepack::device
