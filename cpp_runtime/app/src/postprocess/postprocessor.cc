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

void FindBoxes(const PostprocessSpec& spec, const std::vector<Floats>& tensors,
               const Geometry& geometry, PostprocessBuffers* buffers, std::vector<Box>* boxes) {
  Candidates found(spec, buffers);
  if (spec.kind == PostprocessSpec::Kind::kYolo) FindYolo(spec, tensors, &found);
  if (spec.kind == PostprocessSpec::Kind::kCenterNet) FindCenters(spec, tensors, &found);
  if (spec.kind == PostprocessSpec::Kind::kSsd) FindSsd(spec, tensors, &found);
  found.Select(geometry, spec.head != PostprocessSpec::Head::kEnd2End, boxes);
  if (spec.instances()) FindInstances(spec, tensors, geometry, buffers, boxes);
}

void CopyValues(const TensorView& view, int count, Values* values) {
  values->name = view.info->name;
  values->values.resize(std::min(view.info->size(), static_cast<std::size_t>(count)));
  for (std::size_t i = 0; i < values->values.size(); ++i) {
    values->values[i] = ElementAt(view.info->dtype, view.data, i);
  }
}

/// What there is, or a new one.
template <typename Value>
Value* Kept(std::optional<Value>* value) {
  if (!*value) value->emplace();
  return &**value;
}

void FindInPixels(const PostprocessSpec& spec, const std::vector<Floats>& tensors,
                  const Geometry& geometry, PostprocessBuffers* buffers, Results* results) {
  using Kind = PostprocessSpec::Kind;
  Best* const best = &buffers->best;
  if (spec.boxes()) FindBoxes(spec, tensors, geometry, buffers, Kept(&results->boxes));
  if (spec.kind == Kind::kKeypoints) {
    FindKeypoints(spec, tensors, geometry, best, Kept(&results->keypoints));
  }
  if (spec.kind == Kind::kTextLines) {
    FindLines(spec, tensors, geometry, buffers, Kept(&results->boxes));
  }
  if (spec.kind == Kind::kSegmentation) {
    FindMask(spec, tensors, geometry, buffers, Kept(&results->mask));
  }
  if (spec.kind == Kind::kCtc) ReadText(spec, tensors, best, Kept(&results->text));
}

}  // namespace

Point Geometry::Source(Point point) const {
  const Point at = Place(point);
  return {std::min(std::max(at.x, 0.0), static_cast<double>(width)),
          std::min(std::max(at.y, 0.0), static_cast<double>(height))};
}

Point Geometry::Place(Point point) const {
  constexpr double kOutermost = 1e6;
  const double x = (point.x + left) * width / scaled_width;
  const double y = (point.y + top) * height / scaled_height;
  return {std::min(std::max(x, -kOutermost), kOutermost),
          std::min(std::max(y, -kOutermost), kOutermost)};
}

bool IsVector(const Shape& shape) {
  return !shape.empty() &&
         std::count_if(shape.begin(), shape.end(), [](std::int64_t dim) { return dim != 1; }) <= 1;
}

std::vector<Score> TopScores(const TensorView& output, std::size_t count,
                             PostprocessSpec::Scores how) {
  std::vector<Score> scores;
  FindTopScores(output, count, how, &scores);
  return scores;
}

void FindTopScores(const TensorView& output, std::size_t count, PostprocessSpec::Scores how,
                   std::vector<Score>* top) {
  std::vector<Score>& scores = *top;
  scores.resize(output.info->size());
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
}

void Postprocessor::Choose(const std::vector<TensorView>& outputs,
                           std::vector<TensorView>* chosen) const {
  chosen->clear();
  for (const std::string& name : spec_.outputs) {
    const auto found = std::find_if(outputs.begin(), outputs.end(), [&](const TensorView& output) {
      return output.info->name == name;
    });
    if (found == outputs.end()) {
      throw BundleError("postprocess.json: the model has no output '" + name + "'");
    }
    chosen->push_back(*found);
  }
}

Results Postprocessor::Run(const std::vector<TensorView>& tensors,
                           const std::optional<Geometry>& geometry) const {
  PostprocessBuffers buffers;
  Results results;
  Run(tensors, geometry, &buffers, &results);
  return results;
}

void Postprocessor::Run(const std::vector<TensorView>& tensors,
                        const std::optional<Geometry>& geometry, PostprocessBuffers* buffers,
                        Results* results) const {
  if (tensors.size() != spec_.outputs.size()) {
    FailTensors(std::to_string(tensors.size()) + " of " + std::to_string(spec_.outputs.size()));
  }
  if (spec_.in_pixels() || spec_.kind == PostprocessSpec::Kind::kCtc) {
    buffers->own.resize(tensors.size());
    buffers->tensors.clear();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      buffers->tensors.push_back(FloatsOf(tensors[i], &buffers->own[i]));
    }
    FindInPixels(spec_, buffers->tensors,
                 geometry.value_or(Geometry::Same(spec_.height, spec_.width)), buffers, results);
  }
  if (spec_.kind == PostprocessSpec::Kind::kTensors) {
    results->tensors.resize(tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      CopyValues(tensors[i], spec_.count, &results->tensors[i]);
    }
  }
  if (spec_.kind == PostprocessSpec::Kind::kEmbedding) {
    FindPerson(spec_, tensors.front(), &results->top);
  }
  if (spec_.kind == PostprocessSpec::Kind::kClasses) {
    FindTopScores(tensors.front(), static_cast<std::size_t>(spec_.top), spec_.scores,
                  &results->top);
    const auto below = [&](const Score& score) {
      return spec_.least.has_value() && score.score < *spec_.least;
    };
    results->top.erase(std::remove_if(results->top.begin(), results->top.end(), below),
                       results->top.end());
  }
}

}  // namespace edgepack
