#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <edgepack/geometry.h>
#include <edgepack/postprocess_spec.h>
#include <edgepack/tensor.h>

namespace edgepack {

/// A class and its score.
struct Score {
  std::size_t index = 0;
  double score = 0;
};

/// Whether a tensor is one vector of scores: all dimensions but one are 1.
bool IsVector(const Shape& shape);

/// The `count` largest elements, best first, equal ones by index. NaN sorts last.
std::vector<Score> TopScores(const TensorView& output, std::size_t count,
                             PostprocessSpec::Scores how);
/// The same, in the memory of an earlier one.
void FindTopScores(const TensorView& output, std::size_t count, PostprocessSpec::Scores how,
                   std::vector<Score>* top);

/// Pixels of a photo as COCO's compressed run lengths, column by column: what pycocotools takes. It
/// is none if `height` is 0.
struct BoxMask {
  int height = 0;
  int width = 0;
  std::string counts;
};

/// A thing and where it is: two corners, points and a mask, in pixels of the photo.
struct Box {
  Score found;
  Point low;
  Point high;
  std::vector<Point> points;
  BoxMask mask;
};

/// A key point, in pixels of the photo.
struct Mark {
  Score found;
  Point point;
};

/// The elements of an output.
struct Values {
  std::string name;
  std::vector<double> values;
};

/// The pixels of one class: first pixel and length, first pixel and length ..., row by row.
struct Area {
  std::int64_t pixels = 0;
  std::vector<std::int64_t> runs;
};

/// Which pixels of a photo are of which class.
struct Mask {
  int height = 0;
  int width = 0;
  std::map<std::size_t, Area> areas;
};

/// A line of text, and how sure that is.
struct TextLine {
  std::string text;
  double score = 0;
};

/// What one kind of postprocessing gives; the others are empty.
struct Results {
  std::vector<Score> top;
  std::optional<std::vector<Box>> boxes;
  std::optional<std::vector<Mark>> keypoints;
  std::vector<Values> tensors;
  std::optional<Mask> mask;
  std::optional<TextLine> text;
};

struct PostprocessBuffers;

/// From a model's outputs to classes and boxes, by a PostprocessSpec.
class Postprocessor {
 public:
  explicit Postprocessor(PostprocessSpec spec) : spec_(std::move(spec)) {}

  [[nodiscard]] const PostprocessSpec& spec() const { return spec_; }

  /// The outputs that the spec takes of a model's. Throws BundleError if it has no such.
  void Choose(const std::vector<TensorView>& outputs, std::vector<TensorView>* chosen) const;

  /// The results of `tensors`, those of spec().outputs. Coordinates are those of the photo that
  /// `geometry` tells of, without one those of the model's input. Throws ModelInputError for
  /// tensors that the spec does not take.
  [[nodiscard]] Results Run(const std::vector<TensorView>& tensors,
                            const std::optional<Geometry>& geometry) const;
  /// The same in memory that is kept: in that of the results before, which this one made, and in
  /// `buffers` (src/postprocess/boxes.h).
  void Run(const std::vector<TensorView>& tensors, const std::optional<Geometry>& geometry,
           PostprocessBuffers* buffers, Results* results) const;

 private:
  PostprocessSpec spec_;
};

}  // namespace edgepack
