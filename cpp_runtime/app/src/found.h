#pragma once

#include <optional>
#include <string>
#include <vector>

#include <edgepack/geometry.h>
#include <edgepack/postprocessor.h>
#include <edgepack/tensor.h>

#include "bundle.h"
#include "common/json.h"

namespace edgepack {

/// Results with the names of their classes. What there is none of is empty.
struct Found {
  struct Labelled {
    Score score;
    std::optional<std::string> label;
  };
  struct LabelledBox {
    Box box;
    std::optional<std::string> label;
  };
  struct LabelledMark {
    Mark mark;
    std::optional<std::string> label;
  };

  std::vector<Labelled> top;
  std::optional<std::vector<LabelledBox>> boxes;
  std::optional<std::vector<LabelledMark>> keypoints;
  std::vector<Values> tensors;
  std::optional<Mask> mask;
  std::vector<std::string> labels;  ///< of the mask's classes
  std::optional<TextLine> text;
};

/// What a model's outputs say: by the bundle's postprocessing, if it has any, else the first output
/// as classes. `top` is how many of them, if it is not for the bundle to say.
Results ResultsOf(const std::optional<Postprocessor>& postprocessor, const BundleFolder& bundle,
                  std::optional<int> top, const std::vector<TensorView>& outputs,
                  const std::optional<Geometry>& geometry);

Found Named(Results results, const std::vector<std::string>& labels);

/// The members "top", "boxes", "keypoints", "tensors", "areas" and "text" of an object, those that
/// there are.
void WriteFound(const Found& found, JsonWriter* json);

}  // namespace edgepack
