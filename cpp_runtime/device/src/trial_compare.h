#pragma once

#include <optional>
#include <string>

namespace edgepack::device {

/// How far two answers of edgepack-run to one picture agree.
struct Compared {
  /// 1: the same. Of boxes and key points the share (F1) that both have: boxes of one class with an
  /// IoU of at least 0.5, each as far as its key points, mask and the last model's answer agree;
  /// key points of one class, no farther apart than a tenth of the diagonal of all. Of areas the
  /// share of pixels; of tensors that of those within the tolerance.
  double agreement = 0;
  /// Between the scores of what both have, or the values of tensors: the largest.
  std::optional<double> difference;
};

/// Nothing if the current release's answer is of a kind that is not compared, or none at all.
/// `tolerance` is that of tensors, as a part of their largest value.
std::optional<Compared> CompareAnswers(const std::string& current, const std::string& candidate,
                                       double tolerance);

}  // namespace edgepack::device
