#include "scores.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace edgepack {

bool IsVector(const Shape& shape) {
  return !shape.empty() &&
         std::all_of(shape.begin(), shape.end() - 1, [](std::int64_t dim) { return dim == 1; });
}

std::vector<Score> TopScores(const TensorView& output, std::size_t count, bool softmax) {
  std::vector<Score> scores(output.info->size());
  double largest = -std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < scores.size(); ++i) {
    scores[i] = {i, ElementAt(output.info->dtype, output.data, i)};
    if (!std::isnan(scores[i].score)) largest = std::max(largest, scores[i].score);
  }
  if (softmax) {
    double sum = 0;
    for (Score& score : scores) {
      score.score = std::exp(score.score - largest);
      sum += score.score;
    }
    for (Score& score : scores) score.score /= sum;
  }
  const auto better = [](const Score& a, const Score& b) {
    const bool a_nan = std::isnan(a.score);
    const bool b_nan = std::isnan(b.score);
    if (a_nan != b_nan) return b_nan;
    if (!a_nan && a.score != b.score) return a.score > b.score;
    return a.index < b.index;
  };
  count = std::min(count, scores.size());
  std::partial_sort(scores.begin(), scores.begin() + static_cast<std::ptrdiff_t>(count),
                    scores.end(), better);
  scores.resize(count);
  return scores;
}

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
