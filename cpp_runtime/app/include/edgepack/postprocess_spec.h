#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace edgepack {

/// postprocess.json: what becomes of a model's outputs. What each kind does, and which outputs it
/// takes, is written down in edgepack/postprocess, its mirror.
struct PostprocessSpec {
  enum class Kind {
    kClasses,
    kTensors,
    kYolo,
    kCenterNet,
    kSsd,
    kKeypoints,
    kSegmentation,
    kTextLines,
    kCtc,
    kEmbedding
  };
  /// What makes scores of elements.
  enum class Scores { kSoftmax, kSigmoid, kRaw };
  enum class Head { kV8, kV5, kEnd2End, kCenterNet, kCenterFace };
  /// Which of the classes is none.
  enum class End { kFirst, kLast, kNone };

  Kind kind = Kind::kClasses;
  /// Names of the outputs it takes, in its order.
  std::vector<std::string> outputs;

  // kClasses; kCenterNet, kSsd, kKeypoints and kSegmentation have `scores` as well.
  Scores scores = Scores::kSoftmax;
  int top = 0;
  std::optional<double> least;  ///< classes below this score are left out

  // kTensors
  int count = 0;  ///< elements of each, at most

  // kSegmentation and kKeypoints
  bool channels_last = false;

  // kSegmentation; `score` is that of one map.
  int background = 0;  ///< this class is left out; -1: none is

  // Boxes.
  int height = 0;  ///< of the image in the model's input, which coordinates are in
  int width = 0;
  double score = 0;
  double iou = 0;
  int max_boxes = 0;
  bool class_aware = true;
  Head head = Head::kV8;

  // kYolo; kSsd has `anchors` and `relative` as well.
  std::vector<double> anchors;
  int bins = 0;
  bool relative = false;  ///< coordinates are from 0 to 1
  // Numbers of a box after its classes: of one of these kinds.
  int points = 0;
  int point_size = 3;    ///< numbers of each
  int masks = 0;         ///< coefficients, of prototypes in a second output
  bool rotated = false;  ///< an angle; its corners are its points

  // kEmbedding, which has `score` as well.
  int people = 0;
  std::vector<int> owners;      ///< the person of each vector
  std::vector<double> vectors;  ///< of length 1, one after the other

  // kCtc
  std::vector<std::string> characters;
  bool blank_last = false;

  // kSsd
  bool y_first = false;
  bool exp_sizes = true;
  End background_class = End::kNone;
  std::vector<int> counts;   ///< of anchors, for each map
  std::vector<int> maps;     ///< height and width of each, or
  std::vector<int> strides;  ///< pixels from cell to cell
  std::vector<double> variances;

  // kKeypoints, which has `score` as well.
  double shift = 0;
  double centre = 0;

  // kTextLines, which has `score` and `max_boxes` as well.
  double threshold = 0;
  double unclip = 0;
  double least_side = 0;

  /// Whether coordinates are in pixels of the model's input.
  [[nodiscard]] bool in_pixels() const {
    return boxes() || kind == Kind::kKeypoints || kind == Kind::kSegmentation ||
           kind == Kind::kTextLines;
  }
  /// Whether boxes have masks.
  [[nodiscard]] bool instances() const {
    return kind == Kind::kYolo && masks > 0 && outputs.size() == 2;
  }
  [[nodiscard]] bool boxes() const {
    return kind == Kind::kYolo || kind == Kind::kCenterNet || kind == Kind::kSsd;
  }
};

/// Reads and checks postprocess.json. Throws BundleError.
PostprocessSpec LoadPostprocessSpec(const std::filesystem::path& path);

}  // namespace edgepack
