// The highest cell of each map: edgepack/postprocess/keypoints.py.
#include <cmath>
#include <cstddef>

#include "postprocess/boxes.h"

namespace edgepack {
namespace {

/// 1 if the next cell of a line is above the one before, -1 if below; 0 at the ends. `stride`
/// elements lie between two.
double Towards(const float* cell, std::size_t at, std::size_t length, std::size_t stride) {
  if (at == 0 || at + 1 >= length) return 0;
  const float next = cell[stride];
  const float before = *(cell - stride);
  if (next > before) return 1;
  return next < before ? -1 : 0;
}

}  // namespace

std::vector<Mark> FindKeypoints(const PostprocessSpec& spec, const std::vector<Floats>& tensors,
                                const Geometry& geometry) {
  if (tensors.size() != 1 || tensors.front().shape.size() != 4 ||
      tensors.front().shape.front() != 1 || tensors.front().empty()) {
    FailTensors("they are not maps of one image");
  }
  const Floats& tensor = tensors.front();
  const std::size_t height = tensor.dim(2);
  const std::size_t width = tensor.dim(3);
  const Grid maps = Grid::Rows(tensor.data, height * width, tensor.dim(1));
  const Best best = BestOf(maps, 0, maps.channels);
  std::vector<Mark> marks;
  for (std::size_t index = 0; index < maps.cells; ++index) {
    const auto value = static_cast<double>(best.score[index]);
    const bool sigmoid = spec.scores == PostprocessSpec::Scores::kSigmoid;
    const double score = sigmoid ? Sigmoid(value) : value;
    if (!std::isfinite(score) || score < spec.score) continue;
    const std::size_t x = best.index[index] % width;
    const std::size_t y = best.index[index] / width;
    const float* const cell = tensor.data + index * maps.channels + best.index[index];
    const double column =
        static_cast<double>(x) + spec.centre + spec.shift * Towards(cell, x, width, 1);
    const double row =
        static_cast<double>(y) + spec.centre + spec.shift * Towards(cell, y, height, width);
    marks.push_back({{index, score},
                     geometry.Source({column * spec.width / static_cast<double>(width),
                                      row * spec.height / static_cast<double>(height)})});
  }
  return marks;
}

}  // namespace edgepack
