#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
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
  const float* data;
  const Shape& shape;

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
void FindBest(const Grid& grid, std::size_t begin, std::size_t end, Best* best);

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

/// A box that a head has found, where its points begin in a list of all, and the cell it came from.
struct Candidate {
  Score found;
  Corners corners;
  std::size_t first_point = 0;
  std::size_t cell = 0;
};

using Pixel = std::pair<std::int64_t, std::int64_t>;  // x, y

/// Memory of masks that is kept for the next one.
struct MaskBuffers {
  std::vector<int> classes;
  std::vector<int> rows;
  std::vector<int> columns;
  std::vector<std::map<std::size_t, Area>::node_type> areas;  ///< that are in no mask
};

/// The same of lines of text.
struct LineBuffers {
  std::vector<char> open;
  std::vector<std::size_t> pixels;
  std::vector<Pixel> points;
  std::vector<Pixel> hull;
};

/// A pixel of the photo between two cells of a map, along one side.
struct Between {
  std::size_t before = 0;
  std::size_t after = 0;
  double weight = 0;   ///< how far it is from the one before to the one after
  bool there = false;  ///< whether it is in the model's input at all
};

/// The same of masks of boxes.
struct InstanceBuffers {
  std::vector<std::size_t> cells;  ///< that the boxes come from
  std::vector<Between> columns;    ///< of the photo
  std::vector<Between> rows;
  std::vector<double> sums;
  std::vector<double> column;
};

/// Memory of points and masks that are no box's.
struct Spare {
  std::vector<std::vector<Point>> points;
  std::vector<std::string> masks;
};

/// Takes all boxes out of a list, and keeps the memory of their points and masks.
void Clear(std::vector<Box>* boxes, Spare* spare);

/// An empty list, in such memory if there is any.
std::vector<Point> TakePoints(Spare* spare);

/// Memory that is kept for the next outputs.
struct PostprocessBuffers {
  std::vector<std::vector<float>> own;  ///< of tensors that were none of float32
  std::vector<Floats> tensors;
  Best best;
  std::vector<Candidate> candidates;
  std::vector<Point> points;  ///< as many of each candidate
  std::vector<std::size_t> order;
  std::vector<std::size_t> kept;
  Spare spare;
  MaskBuffers mask;
  InstanceBuffers instances;
  LineBuffers line;
};

/// What a head finds, of which the best are taken that do not overlap.
class Candidates {
 public:
  Candidates(const PostprocessSpec& spec, PostprocessBuffers* buffers)
      : spec_(spec), buffers_(*buffers) {
    buffers_.candidates.clear();
    buffers_.points.clear();
  }

  /// For whoever looks for them.
  [[nodiscard]] Best* best() const { return &buffers_.best; }
  /// Whether a candidate of that score counts at all: else its box need not be made.
  [[nodiscard]] bool Counts(double score) const { return score >= spec_.score; }
  /// A point of the candidate that is added next.
  void AddPoint(Point point) { buffers_.points.push_back(point); }
  /// Adds one; one that is not finite is left out.
  void Add(double score, std::size_t index, const Corners& corners, std::size_t cell = 0);

  /// The boxes, best first, equal ones in the order in which they came, in the photo. Those that
  /// overlap a better one are left out if `suppress`.
  void Select(const Geometry& geometry, bool suppress, std::vector<Box>* boxes) const;

 private:
  [[nodiscard]] bool Overlap(const Candidate& a, const Candidate& b) const;

  const PostprocessSpec& spec_;
  PostprocessBuffers& buffers_;
  std::size_t added_points_ = 0;  // of candidates that were added
};

/// Throws ModelInputError: the spec does not take these tensors, since `problem`.
[[noreturn]] void FailTensors(const std::string& problem);

// What the heads find in `tensors`. They throw ModelInputError.
void FindYolo(const PostprocessSpec& spec, const std::vector<Floats>& tensors, Candidates* found);
void FindCenters(const PostprocessSpec& spec, const std::vector<Floats>& tensors,
                 Candidates* found);
void FindSsd(const PostprocessSpec& spec, const std::vector<Floats>& tensors, Candidates* found);

/// Gives boxes that FindYolo has found the masks that the spec's coefficients and the prototypes
/// among `tensors` say.
void FindInstances(const PostprocessSpec& spec, const std::vector<Floats>& tensors,
                   const Geometry& geometry, PostprocessBuffers* buffers, std::vector<Box>* boxes);

// What the others make of theirs. They throw ModelInputError.
void FindMask(const PostprocessSpec& spec, const std::vector<Floats>& tensors,
              const Geometry& geometry, PostprocessBuffers* buffers, Mask* found);
void FindLines(const PostprocessSpec& spec, const std::vector<Floats>& tensors,
               const Geometry& geometry, PostprocessBuffers* buffers, std::vector<Box>* lines);
void FindKeypoints(const PostprocessSpec& spec, const std::vector<Floats>& tensors,
                   const Geometry& geometry, Best* found, std::vector<Mark>* marks);
/// Who the vector is of, or nobody: one of as many classes as there are people and one.
void FindPerson(const PostprocessSpec& spec, const TensorView& embedding, std::vector<Score>* top);
void ReadText(const PostprocessSpec& spec, const std::vector<Floats>& tensors, Best* found,
              TextLine* text);

}  // namespace edgepack
