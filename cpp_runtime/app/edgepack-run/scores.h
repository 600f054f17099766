#pragma once

#include <edgepack/tensor.h>

namespace edgepack {

/// How far `actual` is from `expected`, both of the same dtype and shape.
struct Comparison {
  double max_abs_error = 0;  ///< NaN if any pair differs in being NaN, or an infinity
  double max_abs_reference = 0;
  double tolerance = 0;

  [[nodiscard]] bool ok() const { return max_abs_error <= tolerance * max_abs_reference; }
};

Comparison Compare(const TensorView& actual, const void* expected, double tolerance);

}  // namespace edgepack
