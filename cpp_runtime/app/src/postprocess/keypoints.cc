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

void FindKeypoints(const PostprocessSpec& spec, const std::vector<Floats>& tensors,
                   const Geometry& geometry, Best* found, std::vector<Mark>* marks) {
  const Maps maps = MapsOf(spec, tensors);
  const std::size_t height = maps.height;
  const std::size_t width = maps.width;
  const Grid points = maps.grid.Turned();
  FindBest(points, 0, points.channels, found);
  const Best& best = *found;
  marks->clear();
  for (std::size_t index = 0; index < points.cells; ++index) {
    const auto value = static_cast<double>(best.score[index]);
    const bool sigmoid = spec.scores == PostprocessSpec::Scores::kSigmoid;
    const double score = sigmoid ? Sigmoid(value) : value;
    if (!std::isfinite(score) || score < spec.score) continue;
    const std::size_t x = best.index[index] % width;
    const std::size_t y = best.index[index] / width;
    const std::size_t stride = points.channel_stride;
    const float* const cell = points.data + index * points.cell_stride + best.index[index] * stride;
    const double column =
        static_cast<double>(x) + spec.centre + spec.shift * Towards(cell, x, width, stride);
    const double row = static_cast<double>(y) + spec.centre +
                       spec.shift * Towards(cell, y, height, width * stride);
    marks->push_back({{index, score},
                      geometry.Source({column * spec.width / static_cast<double>(width),
                                       row * spec.height / static_cast<double>(height)})});
  }
}

}  // namespace edgepack
