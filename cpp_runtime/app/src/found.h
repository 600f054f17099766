#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <edgepack/geometry.h>
#include <edgepack/postprocessor.h>
#include <edgepack/tensor.h>

#include "bundle.h"
#include "common/json.h"

namespace edgepack {

/// Results with the names of their classes, which lie in the bundle's list. What there is none of
/// is empty.
struct Found {
  struct Labelled {
    Score score;
    std::optional<std::string_view> label;
  };
  struct LabelledBox {
    Box box;
    std::optional<std::string_view> label;
    std::int64_t track = 0;  ///< what it is in the frames before and after; 0: not known
  };
  struct LabelledMark {
    Mark mark;
    std::optional<std::string_view> label;
  };

  std::vector<Labelled> top;
  std::optional<std::vector<LabelledBox>> boxes;
  std::optional<std::vector<LabelledMark>> keypoints;
  std::vector<Values> tensors;
  std::optional<Mask> mask;
  std::vector<std::string> labels;  ///< of the mask's classes
  std::optional<TextLine> text;

  struct Answer;
  /// What a later model says of boxes: the first `count` of `answers`, which are in their order.
  /// Its name, as labels do, lies in what was loaded of the bundle.
  struct Stage {
    std::string_view name;
    std::size_t count = 0;
    std::size_t dropped = 0;  ///< boxes that were too many
    std::size_t failed = 0;   ///< of the answers: errors
    double run_ms = 0;
    std::vector<Answer> answers;
  };
  std::vector<Stage> stages;
};

/// Of box number `box`; an error that is not empty stands for what could not be found.
struct Found::Answer {
  std::size_t box = 0;
  std::string error;
  Found found;
};

/// Takes the memory of `results` and gives what was in `found` for it.
void Name(const std::vector<std::string>& labels, Results* results, Found* found);

/// Tells what a model's outputs say: by the bundle's postprocessing, if it has any, else the first
/// output as classes. It keeps its memory for the next ones.
class Finder {
 public:
  /// All of them outlive it. `top` is how many classes, if it is not for the bundle to say.
  Finder(const std::optional<Postprocessor>& postprocessor, const BundleFolder& bundle,
         std::optional<int> top);
  ~Finder();
  Finder(const Finder&) = delete;
  Finder& operator=(const Finder&) = delete;
  Finder(Finder&&) = delete;
  Finder& operator=(Finder&&) = delete;

  /// Into the memory of what it found before.
  void Find(const std::vector<TensorView>& outputs, const std::optional<Geometry>& geometry,
            Found* found);

 private:
  const std::optional<Postprocessor>& postprocessor_;
  const BundleFolder& bundle_;
  std::optional<int> top_;
  std::unique_ptr<PostprocessBuffers> buffers_;
  std::vector<TensorView> chosen_;
  Results results_;
};

/// The members "top", "boxes", "keypoints", "tensors", "areas", "text" and "stages" of an object,
/// those that there are.
void WriteFound(const Found& found, JsonWriter* json);

}  // namespace edgepack
