#include "scores.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace edgepack {

Comparison Compare(const TensorView& actual, const void* expected, double tolerance) {
  Comparison result;
  result.tolerance = tolerance;
  for (std::size_t i = 0; i < actual.info->size(); ++i) {
    const double a = ElementAt(actual.info->dtype, actual.data, i);
    const double b = ElementAt(actual.info->dtype, expected, i);
    const bool same = a == b || (std::isnan(a) && std::isnan(b));
    const double error = same ? 0 : std::fabs(a - b);
    // A NaN stays: once the error is unknown, no other element makes it known.
    if (!(error <= result.max_abs_error)) {
      result.max_abs_error = std::isnan(result.max_abs_error) ? result.max_abs_error : error;
    }
    if (std::isfinite(b))
      result.max_abs_reference = std::max(result.max_abs_reference, std::fabs(b));
  }
  return result;
}

}  // namespace edgepack
