#pragma once

#include <optional>
#include <string>

namespace edgepack::device {

/// How far two answers of edgepack-run to one picture agree.
struct Compared {
  /// 1: the same first class, text, or boxes; of boxes the share (F1) that both have, of one class
  /// and with an IoU of at least 0.5.
  double agreement = 0;
  /// Between the scores of what both have: the largest.
  std::optional<double> difference;
};

/// Nothing if the current release's answer is of a kind that is not compared, or none at all.
std::optional<Compared> CompareAnswers(const std::string& current, const std::string& candidate);

}  // namespace edgepack::device
