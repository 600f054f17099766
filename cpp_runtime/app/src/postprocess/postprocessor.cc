#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include <edgepack/errors.h>
#include <edgepack/postprocessor.h>

#include "postprocess/boxes.h"

namespace edgepack {
namespace {

/// A tensor as float32; one that is not is copied to `own`.
Floats FloatsOf(const TensorView& view, std::vector<float>* own) {
  const TensorInfo& info = *view.info;
  if (info.dtype == DType::kFloat32) return {static_cast<const float*>(view.data), info.shape};
  if (info.dtype != DType::kFloat16) {
    FailTensors("'" + info.name + "' is " + std::string(Name(info.dtype)));
  }
  own->resize(info.size());
  for (std::size_t i = 0; i < own->size(); ++i) {
    (*own)[i] = static_cast<float>(ElementAt(info.dtype, view.data, i));
  }
  return {own->data(), info.shape};
}

std::vector<Box> FindBoxes(const PostprocessSpec& spec, const std::vector<Floats>& tensors,
                           const Geometry& geometry) {
  Candidates found(spec);
  if (spec.kind == PostprocessSpec::Kind::kYolo) FindYolo(spec, tensors, &found);
  if (spec.kind == PostprocessSpec::Kind::kCenterNet) FindCenters(spec, tensors, &found);
  if (spec.kind == PostprocessSpec::Kind::kSsd) FindSsd(spec, tensors, &found);
  return found.Select(geometry, spec.head != PostprocessSpec::Head::kEnd2End);
}

Values ValuesOf(const TensorView& view, int count) {
  Values values;
  values.name = view.info->name;
  const std::size_t size = std::min(view.info->size(), static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < size; ++i) {
    values.values.push_back(ElementAt(view.info->dtype, view.data, i));
  }
  return values;
}

}  // namespace

Point Geometry::Source(Point point) const {
  const double x = (point.x + left) * width / scaled_width;
  const double y = (point.y + top) * height / scaled_height;
  return {std::min(std::max(x, 0.0), static_cast<double>(width)),
          std::min(std::max(y, 0.0), static_cast<double>(height))};
}

bool IsVector(const Shape& shape) {
  return !shape.empty() &&
         std::all_of(shape.begin(), shape.end() - 1, [](std::int64_t dim) { return dim == 1; });
}

std::vector<Score> TopScores(const TensorView& output, std::size_t count,
                             PostprocessSpec::Scores how) {
  std::vector<Score> scores(output.info->size());
  double largest = -std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < scores.size(); ++i) {
    scores[i] = {i, ElementAt(output.info->dtype, output.data, i)};
    if (!std::isnan(scores[i].score)) largest = std::max(largest, scores[i].score);
  }
  if (how == PostprocessSpec::Scores::kSoftmax) {
    double sum = 0;
    for (Score& score : scores) {
      score.score = std::exp(score.score - largest);
      sum += score.score;
    }
    for (Score& score : scores) score.score /= sum;
  }
  if (how == PostprocessSpec::Scores::kSigmoid) {
    for (Score& score : scores) score.score = Sigmoid(score.score);
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

std::vector<TensorView> Postprocessor::Choose(const std::vector<TensorView>& outputs) const {
  std::vector<TensorView> chosen;
  for (const std::string& name : spec_.outputs) {
    const auto found = std::find_if(outputs.begin(), outputs.end(), [&](const TensorView& output) {
      return output.info->name == name;
    });
    if (found == outputs.end()) {
      throw BundleError("postprocess.json: the model has no output '" + name + "'");
    }
    chosen.push_back(*found);
  }
  return chosen;
}

Results Postprocessor::Run(const std::vector<TensorView>& tensors,
                           const std::optional<Geometry>& geometry) const {
  if (tensors.size() != spec_.outputs.size()) {
    FailTensors(std::to_string(tensors.size()) + " of " + std::to_string(spec_.outputs.size()));
  }
  Results results;
  if (spec_.in_pixels() || spec_.kind == PostprocessSpec::Kind::kCtc) {
    std::vector<std::vector<float>> own(tensors.size());
    std::vector<Floats> floats;
    for (std::size_t i = 0; i < own.size(); ++i) floats.push_back(FloatsOf(tensors[i], &own[i]));
    const Geometry seen = geometry.value_or(Geometry::Same(spec_.height, spec_.width));
    if (spec_.boxes()) results.boxes = FindBoxes(spec_, floats, seen);
    if (spec_.kind == PostprocessSpec::Kind::kKeypoints) {
      results.keypoints = FindKeypoints(spec_, floats, seen);
    }
    if (spec_.kind == PostprocessSpec::Kind::kTextLines) {
      results.boxes = FindLines(spec_, floats, seen);
    }
    if (spec_.kind == PostprocessSpec::Kind::kSegmentation) {
      results.mask = FindMask(spec_, floats, seen);
    }
    if (spec_.kind == PostprocessSpec::Kind::kCtc) results.text = ReadText(spec_, floats);
  }
  if (spec_.kind == PostprocessSpec::Kind::kTensors) {
    for (const TensorView& view : tensors) results.tensors.push_back(ValuesOf(view, spec_.count));
  }
  if (spec_.kind == PostprocessSpec::Kind::kClasses) {
    results.top = TopScores(tensors.front(), static_cast<std::size_t>(spec_.top), spec_.scores);
    const auto below = [&](const Score& score) {
      return spec_.least.has_value() && score.score < *spec_.least;
    };
    results.top.erase(std::remove_if(results.top.begin(), results.top.end(), below),
                      results.top.end());
  }
  return results;
}

}  // namespace edgepack
