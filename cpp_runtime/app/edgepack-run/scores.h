#pragma once

#include <cstddef>
#include <vector>

#include <edgepack/tensor.h>

namespace edgepack {

/// One of the best classes of an output.
struct Score {
  std::size_t index = 0;
  double score = 0;
};

/// Whether a tensor is one vector of scores: all dimensions but the last are 1.
bool IsVector(const Shape& shape);

/// The `count` largest elements, best first, equal ones by index; with `softmax` as probabilities
/// over all elements. NaN sorts last.
std::vector<Score> TopScores(const TensorView& output, std::size_t count, bool softmax);

/// How far `actual` is from `expected`, both of the same dtype and shape.
struct Comparison {
  double max_abs_error = 0;  ///< NaN if any pair differs in being NaN, or an infinity
  double max_abs_reference = 0;
  double tolerance = 0;

  [[nodiscard]] bool ok() const { return max_abs_error <= tolerance * max_abs_reference; }
};

Comparison Compare(const TensorView& actual, const void* expected, double tolerance);

}  // namespace edgepack
