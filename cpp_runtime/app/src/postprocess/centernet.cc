// Objects as points: edgepack/postprocess/centernet.py says what the maps hold.
#include <algorithm>
#include <cmath>

#include "postprocess/boxes.h"

namespace edgepack {
namespace {

/// The maps of a model, all of `height` x `width` cells.
struct Centers {
  const float* centres;
  std::size_t classes;
  std::size_t height;
  std::size_t width;
  Grid sizes;
  Grid offsets;
  Grid points;
  Point stride;
};

Centers CentersOf(const PostprocessSpec& spec, const std::vector<Floats>& tensors) {
  const std::size_t most = spec.head == PostprocessSpec::Head::kCenterFace ? 4 : 3;
  if (tensors.size() < 3 || tensors.size() > most) {
    FailTensors("they are not centres, sizes and offsets");
  }
  for (const Floats& map : tensors) {
    if (map.shape.size() != 4 || map.shape.front() != 1 || map.empty() ||
        map.dim(2) != tensors.front().dim(2) || map.dim(3) != tensors.front().dim(3)) {
      FailTensors("they are not maps of one size");
    }
  }
  if (tensors[1].dim(1) != 2 || tensors[2].dim(1) != 2 || tensors.back().dim(1) % 2 != 0) {
    FailTensors("sizes and offsets are of two numbers each, points of two or more");
  }
  Centers maps = {};
  maps.centres = tensors.front().data;
  maps.classes = tensors.front().dim(1);
  maps.height = tensors.front().dim(2);
  maps.width = tensors.front().dim(3);
  const std::size_t cells = maps.height * maps.width;
  maps.sizes = Grid::Planes(tensors[1].data, 2, cells);
  maps.offsets = Grid::Planes(tensors[2].data, 2, cells);
  if (tensors.size() == 4) maps.points = Grid::Planes(tensors[3].data, tensors[3].dim(1), cells);
  maps.stride = {static_cast<double>(spec.width) / static_cast<double>(maps.width),
                 static_cast<double>(spec.height) / static_cast<double>(maps.height)};
  return maps;
}

/// Whether no neighbour of a cell of `plane`, of eight, is above it.
bool IsPeak(const Centers& maps, const float* plane, std::size_t cell) {
  const std::size_t x = cell % maps.width;
  const std::size_t y = cell / maps.width;
  for (std::size_t v = y - std::min<std::size_t>(y, 1); v < std::min(y + 2, maps.height); ++v) {
    for (std::size_t u = x - std::min<std::size_t>(x, 1); u < std::min(x + 2, maps.width); ++u) {
      if (plane[v * maps.width + u] > plane[cell]) return false;
    }
  }
  return true;
}

void FindPeaks(const PostprocessSpec& spec, const Centers& maps, Candidates* found) {
  const std::size_t cells = maps.height * maps.width;
  const bool sigmoid = spec.scores == PostprocessSpec::Scores::kSigmoid;
  for (std::size_t index = 0; index < maps.classes; ++index) {
    const float* const plane = maps.centres + index * cells;
    for (std::size_t cell = 0; cell < cells; ++cell) {
      const auto value = static_cast<double>(plane[cell]);
      const double score = sigmoid ? Sigmoid(value) : value;
      if (!found->Counts(score) || !IsPeak(maps, plane, cell)) continue;
      const double x = static_cast<double>(cell % maps.width) + maps.offsets.At(0, cell);
      const std::size_t row = cell / maps.width;
      const double y = static_cast<double>(row) + maps.offsets.At(1, cell);
      found->Add(
          score, index,
          FromCentre(x * maps.stride.x, y * maps.stride.y, maps.sizes.At(0, cell) * maps.stride.x,
                     maps.sizes.At(1, cell) * maps.stride.y));
    }
  }
}

void FindFaces(const PostprocessSpec& spec, const Centers& maps, Candidates* found) {
  const bool sigmoid = spec.scores == PostprocessSpec::Scores::kSigmoid;
  const Grid centres = Grid::Planes(maps.centres, maps.classes, maps.height * maps.width);
  FindBest(centres, 0, maps.classes, found->best());
  const Best& best = *found->best();
  for (std::size_t cell = 0; cell < centres.cells; ++cell) {
    const auto value = static_cast<double>(best.score[cell]);
    const double score = sigmoid ? Sigmoid(value) : value;
    if (!found->Counts(score)) continue;
    const double wide = std::exp(maps.sizes.At(1, cell)) * maps.stride.x;
    const double high = std::exp(maps.sizes.At(0, cell)) * maps.stride.y;
    const double x = static_cast<double>(cell % maps.width) + maps.offsets.At(1, cell) + 0.5;
    const std::size_t row = cell / maps.width;
    const double y = static_cast<double>(row) + maps.offsets.At(0, cell) + 0.5;
    const double left = std::clamp<double>(x * maps.stride.x - wide / 2, 0, spec.width);
    const double top = std::clamp<double>(y * maps.stride.y - high / 2, 0, spec.height);
    for (std::size_t i = 0; i + 1 < maps.points.channels; i += 2) {
      found->AddPoint(
          {maps.points.At(i + 1, cell) * wide + left, maps.points.At(i, cell) * high + top});
    }
    found->Add(score, best.index[cell],
               {left, top, std::min<double>(left + wide, spec.width),
                std::min<double>(top + high, spec.height)});
  }
}

}  // namespace

void FindCenters(const PostprocessSpec& spec, const std::vector<Floats>& tensors,
                 Candidates* found) {
  const Centers maps = CentersOf(spec, tensors);
  const bool faces = spec.head == PostprocessSpec::Head::kCenterFace;
  faces ? FindFaces(spec, maps, found) : FindPeaks(spec, maps, found);
}

}  // namespace edgepack
