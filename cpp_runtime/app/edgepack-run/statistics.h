#pragma once

#include <vector>

namespace edgepack {

/// Of a series of times: `std` is that of the whole population, percentiles are interpolated
/// linearly between the two nearest ranks (numpy's default for both).
struct Statistics {
  double mean = 0;
  double std = 0;
  double min = 0;
  double max = 0;
  double p50 = 0;
  double p90 = 0;
  double p99 = 0;
};

/// `values` must not be empty.
Statistics Summarise(std::vector<double> values);

}  // namespace edgepack
