#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include <edgepack/errors.h>
#include <edgepack/geometry.h>
#include <edgepack/preprocessor.h>
#include <edgepack/tensor.h>
#include <opencv2/core/mat.hpp>

#include "found.h"
#include "options.h"
#include "sight.h"
#include "trial.h"

namespace edgepack {

class ResultSinks;

/// A picture of a live source on its way to the model: its tensor, or why there is none.
struct LiveFrame {
  std::optional<std::string> path;  ///< of a photo; frames have a number
  std::int64_t number = 0;
  std::int64_t opening = 0;                    ///< of the source, as in Encoded
  std::chrono::steady_clock::time_point seen;  ///< when all of it was there
  std::vector<char> tensor;
  Geometry geometry;
  double decode_ms = 0;
  double preprocess_ms = 0;
  Light light;
  cv::Mat image;  ///< if somebody looks at all pixels, or draws on them
  std::optional<Error> error;
  std::optional<SharedPicture> shared;  ///< for a trial
};

/// How long frames took, in a fixed amount of memory: counts of times that differ by a twelfth.
class LatencyHistogram {
 public:
  void Add(double ms);
  [[nodiscard]] std::int64_t count() const { return count_; }
  /// The time that a share of all did not exceed, 0 if there are none; at most 6 % too large.
  [[nodiscard]] double Percentile(double share) const;
  [[nodiscard]] double max() const { return max_ms_; }

 private:
  std::vector<std::int64_t> counts_;
  std::int64_t count_ = 0;
  double max_ms_ = 0;
};

/// Writes the line (with its end) of a frame that has a tensor, in the memory of an old one, and
/// returns what it says, until the next.
using LineOfFrame = std::function<const Found&(const LiveFrame& frame, std::string* line)>;

/// --images, --frames and --camera: writes a line for each picture to `out` (or where --out says),
/// and one at the end, until the source ends or a SIGTERM comes; whatever was read by then gets its
/// line. Reading, decoding with preprocessing, `line_of` (on this thread) and writing run beside
/// each other, with a queue of one between any two. A photo that cannot be read gets a line with
/// the error, a frame none; both are counted as broken. Where a preview is, is said on `err`.
/// `sight` counts what the frames are, and is told in /metrics and --metrics. With `whole` frames
/// keep all their pixels. `trial` picks a share of the frames, while there is one; `line_of` hands
/// them over.
/// Throws UsageError if the source cannot be read at all.
void RunLive(const Options& options, const Preprocessor& preprocessor, const TensorInfo& input,
             bool whole, const LineOfFrame& line_of, Sight* sight, ResultSinks* sinks,
             TrialTap* trial, std::ostream& out, std::ostream& err);

}  // namespace edgepack
