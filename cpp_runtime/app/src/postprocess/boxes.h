#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <edgepack/postprocessor.h>

namespace edgepack {

/// Elements of an output: `channels` numbers of each of `cells` boxes, in any order in memory.
struct Grid {
  const float* data = nullptr;
  std::size_t channels = 0;
  std::size_t cells = 0;
  std::size_t channel_stride = 0;
  std::size_t cell_stride = 0;

  [[nodiscard]] double At(std::size_t channel, std::size_t cell) const {
    return static_cast<double>(data[channel * channel_stride + cell * cell_stride]);
  }
  /// That of a tensor (channels, cells).
  static Grid Planes(const float* data, std::size_t channels, std::size_t cells) {
    return {data, channels, cells, cells, 1};
  }
  /// The same elements, of which each channel is a cell.
  [[nodiscard]] Grid Turned() const { return {data, cells, channels, cell_stride, channel_stride}; }
  /// That of a tensor (cells, channels).
  static Grid Rows(const float* data, std::size_t channels, std::size_t cells) {
    return {data, channels, cells, 1, channels};
  }
};

/// A tensor of float32, whatever it was before.
struct Floats {
  const float* data = nullptr;
  Shape shape;

  [[nodiscard]] std::size_t dim(std::size_t axis) const {
    return static_cast<std::size_t>(shape.at(axis));
  }
  [[nodiscard]] bool empty() const {
    return std::find(shape.begin(), shape.end(), 0) != shape.end();
  }
};

/// The maps of one image, in one tensor.
struct Maps {
  Grid grid;
  std::size_t height = 0;
  std::size_t width = 0;
};

/// As the spec's layout has them: (1, C, H, W), or (1, H, W, C).
Maps MapsOf(const PostprocessSpec& spec, const std::vector<Floats>& tensors);

/// The highest channel of each cell, the first of equals; NaN is below all others.
struct Best {
  std::vector<float> score;
  std::vector<std::uint32_t> index;
};

/// Of the channels from `begin` to `end` of `grid`.
Best BestOf(const Grid& grid, std::size_t begin, std::size_t end);

double Sigmoid(double value);

/// Corners of a box, in pixels of the model's input.
struct Corners {
  double left = 0;
  double top = 0;
  double right = 0;
  double bottom = 0;
};

/// By its centre and its size.
Corners FromCentre(double x, double y, double width, double height);

/// What a head finds, of which the best are taken that do not overlap.
class Candidates {
 public:
  explicit Candidates(const PostprocessSpec& spec) : spec_(spec) {}

  /// Whether a candidate of that score counts at all: else its box need not be made.
  [[nodiscard]] bool Counts(double score) const { return score >= spec_.score; }
  /// Adds one; one that is not finite is left out.
  void Add(double score, std::size_t index, const Corners& corners, std::vector<Point> points = {});

  /// The boxes, best first, equal ones in the order in which they came, in the photo. Those that
  /// overlap a better one are left out if `suppress`.
  [[nodiscard]] std::vector<Box> Select(const Geometry& geometry, bool suppress) const;

 private:
  struct Candidate {
    Score found;
    Corners corners;
    std::vector<Point> points;
  };

  [[nodiscard]] bool Overlap(const Candidate& a, const Candidate& b) const;

  const PostprocessSpec& spec_;
  std::vector<Candidate> candidates_;
};

/// Throws ModelInputError: the spec does not take these tensors, since `problem`.
[[noreturn]] void FailTensors(const std::string& problem);

// What the heads find in `tensors`. They throw ModelInputError.
void FindYolo(const PostprocessSpec& spec, const std::vector<Floats>& tensors, Candidates* found);
void FindCenters(const PostprocessSpec& spec, const std::vector<Floats>& tensors,
                 Candidates* found);
void FindSsd(const PostprocessSpec& spec, const std::vector<Floats>& tensors, Candidates* found);

// What the others make of theirs. They throw ModelInputError.
Mask FindMask(const PostprocessSpec& spec, const std::vector<Floats>& tensors,
              const Geometry& geometry);
std::vector<Box> FindLines(const PostprocessSpec& spec, const std::vector<Floats>& tensors,
                           const Geometry& geometry);
std::vector<Mark> FindKeypoints(const PostprocessSpec& spec, const std::vector<Floats>& tensors,
                                const Geometry& geometry);
TextLine ReadText(const PostprocessSpec& spec, const std::vector<Floats>& tensors);

}  // namespace edgepack
