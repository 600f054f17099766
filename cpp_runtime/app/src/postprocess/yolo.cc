// The heads of YOLO: edgepack/postprocess/yolo.py says what they hold.
#include <algorithm>
#include <array>
#include <cmath>

#include "postprocess/boxes.h"

namespace edgepack {
namespace {

using Head = PostprocessSpec::Head;

/// Numbers before the classes of head v5: a box, and whether anything is there.
constexpr std::size_t kV5Channels = 5;

/// What x and y are multiplied by where outputs are no maps.
Point UnitOf(const PostprocessSpec& spec) {
  if (!spec.relative) return {1, 1};
  return {static_cast<double>(spec.width), static_cast<double>(spec.height)};
}

/// Numbers of a box after its classes.
std::size_t MoreOf(const PostprocessSpec& spec) {
  return static_cast<std::size_t>(spec.points) * static_cast<std::size_t>(spec.point_size) +
         static_cast<std::size_t>(spec.masks) + (spec.rotated ? 1 : 0);
}

void AddPoints(const PostprocessSpec& spec, const Grid& grid, std::size_t begin, std::size_t cell,
               Candidates* found) {
  const Point unit = UnitOf(spec);
  const auto size = static_cast<std::size_t>(spec.point_size);
  for (std::size_t i = 0; i < static_cast<std::size_t>(spec.points); ++i) {
    found->AddPoint(
        {grid.At(begin + size * i, cell) * unit.x, grid.At(begin + size * i + 1, cell) * unit.y});
  }
}

/// A box by centre and size that is turned by `angle` around its centre: its corners are points.
Corners AddTurned(Point centre, double width, double height, double angle, Candidates* found) {
  const double cos = std::cos(angle) / 2;
  const double sin = std::sin(angle) / 2;
  const Point wide = {width * cos, width * sin};
  const Point high = {-height * sin, height * cos};
  const std::array<Point, 4> points = {{{centre.x - wide.x - high.x, centre.y - wide.y - high.y},
                                        {centre.x + wide.x - high.x, centre.y + wide.y - high.y},
                                        {centre.x + wide.x + high.x, centre.y + wide.y + high.y},
                                        {centre.x - wide.x + high.x, centre.y - wide.y + high.y}}};
  Corners box = {points[0].x, points[0].y, points[0].x, points[0].y};
  for (const Point point : points) {
    found->AddPoint(point);
    box = {std::min(box.left, point.x), std::min(box.top, point.y), std::max(box.right, point.x),
           std::max(box.bottom, point.y)};
  }
  return box;
}

/// The box by centre and size in the first four channels; adds its points, which begin at `more`.
Corners AddBox(const PostprocessSpec& spec, const Grid& grid, std::size_t more, std::size_t cell,
               Candidates* found) {
  const Point unit = UnitOf(spec);
  const Point centre = {grid.At(0, cell) * unit.x, grid.At(1, cell) * unit.y};
  const double width = grid.At(2, cell) * unit.x;
  const double height = grid.At(3, cell) * unit.y;
  if (spec.rotated) return AddTurned(centre, width, height, grid.At(more, cell), found);
  AddPoints(spec, grid, more, cell, found);
  return FromCentre(centre.x, centre.y, width, height);
}

void FindRows(const PostprocessSpec& spec, const Grid& grid, Candidates* found) {
  const Point unit = UnitOf(spec);
  constexpr std::size_t kMore = 6;
  for (std::size_t cell = 0; cell < grid.cells; ++cell) {
    const double score = grid.At(4, cell);
    const double index = grid.At(5, cell);
    if (!found->Counts(score) || !(index >= 0 && index < 2147483648.0)) continue;
    Corners box = {grid.At(0, cell) * unit.x, grid.At(1, cell) * unit.y, grid.At(2, cell) * unit.x,
                   grid.At(3, cell) * unit.y};
    if (spec.rotated) {
      box = AddBox(spec, grid, kMore, cell, found);
    } else {
      AddPoints(spec, grid, kMore, cell, found);
    }
    found->Add(score, static_cast<std::size_t>(index), box, cell);
  }
}

void FindV8(const PostprocessSpec& spec, const Grid& grid, Candidates* found) {
  const std::size_t end = grid.channels - MoreOf(spec);
  FindBest(grid, 4, end, found->best());
  const Best& best = *found->best();
  for (std::size_t cell = 0; cell < grid.cells; ++cell) {
    const auto score = static_cast<double>(best.score[cell]);
    if (!found->Counts(score)) continue;
    const Corners box = AddBox(spec, grid, end, cell, found);
    found->Add(score, best.index[cell], box, cell);
  }
}

void FindV5(const PostprocessSpec& spec, const Grid& grid, Candidates* found) {
  FindBest(grid, kV5Channels, grid.channels, found->best());
  const Best& best = *found->best();
  for (std::size_t cell = 0; cell < grid.cells; ++cell) {
    const double score = grid.At(4, cell) * static_cast<double>(best.score[cell]);
    if (!found->Counts(score)) continue;
    const Corners box = AddBox(spec, grid, grid.channels, cell, found);
    found->Add(score, best.index[cell], box);
  }
}

/// The mean of the distribution whose logits are `bins` channels from `begin`.
double Distance(const Grid& grid, std::size_t begin, std::size_t bins, std::size_t cell) {
  if (bins == 1) return grid.At(begin, cell);
  double largest = grid.At(begin, cell);
  for (std::size_t i = 1; i < bins; ++i) largest = std::max(largest, grid.At(begin + i, cell));
  double total = 0;
  double mean = 0;
  for (std::size_t i = 0; i < bins; ++i) {
    const double weight = std::exp(grid.At(begin + i, cell) - largest);
    total += weight;
    mean += static_cast<double>(i) * weight;
  }
  return mean / total;
}

void FindV8Map(const PostprocessSpec& spec, const Floats& map, Candidates* found) {
  const std::size_t width = map.dim(3);
  const Grid grid = Grid::Planes(map.data, map.dim(1), map.dim(2) * width);
  const double stride_x = static_cast<double>(spec.width) / static_cast<double>(width);
  const double stride_y = static_cast<double>(spec.height) / static_cast<double>(map.dim(2));
  const auto bins = static_cast<std::size_t>(spec.bins);
  FindBest(grid, 4 * bins, grid.channels, found->best());
  const Best& best = *found->best();
  for (std::size_t cell = 0; cell < grid.cells; ++cell) {
    const double score = Sigmoid(static_cast<double>(best.score[cell]));
    if (!found->Counts(score)) continue;
    const double x = static_cast<double>(cell % width) + 0.5;
    const std::size_t row = cell / width;
    const double y = static_cast<double>(row) + 0.5;
    const auto distance = [&](std::size_t side) { return Distance(grid, side * bins, bins, cell); };
    found->Add(score, best.index[cell],
               {(x - distance(0)) * stride_x, (y - distance(1)) * stride_y,
                (x + distance(2)) * stride_x, (y + distance(3)) * stride_y});
  }
}

void FindV5Map(const PostprocessSpec& spec, const Floats& map, const double* anchors,
               std::size_t count, Candidates* found) {
  const bool rows = map.shape.size() == 5;
  const std::size_t height = map.dim(2);
  const std::size_t width = map.dim(3);
  const std::size_t cells = height * width;
  const std::size_t channels = rows ? map.dim(4) : map.dim(1) / count;
  const double stride_x = static_cast<double>(spec.width) / static_cast<double>(width);
  const double stride_y = static_cast<double>(spec.height) / static_cast<double>(height);
  for (std::size_t anchor = 0; anchor < count; ++anchor) {
    const float* const data = map.data + anchor * cells * channels;
    const Grid grid =
        rows ? Grid::Rows(data, channels, cells) : Grid::Planes(data, channels, cells);
    FindBest(grid, kV5Channels, channels, found->best());
    const Best& best = *found->best();
    for (std::size_t cell = 0; cell < cells; ++cell) {
      const double score =
          Sigmoid(grid.At(4, cell)) * Sigmoid(static_cast<double>(best.score[cell]));
      if (!found->Counts(score)) continue;
      const double x = Sigmoid(grid.At(0, cell)) * 2 - 0.5 + static_cast<double>(cell % width);
      const std::size_t row = cell / width;
      const double y = Sigmoid(grid.At(1, cell)) * 2 - 0.5 + static_cast<double>(row);
      const double wide = Sigmoid(grid.At(2, cell)) * 2;
      const double high = Sigmoid(grid.At(3, cell)) * 2;
      found->Add(score, best.index[cell],
                 FromCentre(x * stride_x, y * stride_y, wide * wide * anchors[2 * anchor],
                            high * high * anchors[2 * anchor + 1]));
    }
  }
}

/// The first tensor (1, A, B), the only one but for `prototypes`; `least` numbers of a box are the
/// fewest that there can be.
Grid BoxesOf(const std::vector<Floats>& tensors, bool rows, std::size_t least, bool prototypes) {
  if (tensors.size() != (prototypes ? 2 : 1)) FailTensors("boxes come in one output");
  const Floats& tensor = tensors.front();
  const std::size_t channels = tensor.dim(rows ? 2 : 1);
  const std::size_t cells = tensor.dim(rows ? 1 : 2);
  if (channels < least) {
    FailTensors(std::to_string(channels) + " numbers for each box, of " + std::to_string(least));
  }
  return rows ? Grid::Rows(tensor.data, channels, cells)
              : Grid::Planes(tensor.data, channels, cells);
}

}  // namespace

void FindYolo(const PostprocessSpec& spec, const std::vector<Floats>& tensors, Candidates* found) {
  const std::size_t more = MoreOf(spec);
  for (const Floats& tensor : tensors) {
    if (tensor.shape.size() < 3 || tensor.shape.front() != 1) FailTensors("not of one image");
  }
  if (tensors.empty()) FailTensors("there are none");
  const std::size_t rank = tensors.front().shape.size();
  if (spec.head == Head::kEnd2End) {
    if (rank != 3) FailTensors("rows of boxes have three dimensions");
    const Grid grid = BoxesOf(tensors, true, 6 + more, spec.instances());
    return FindRows(spec, grid, found);
  }
  if (rank == 3 && spec.anchors.empty()) {
    if (spec.head == Head::kV8)
      return FindV8(spec, BoxesOf(tensors, false, 5 + more, spec.instances()), found);
    return FindV5(spec, BoxesOf(tensors, true, kV5Channels + 1, false), found);
  }
  const std::size_t anchors = spec.anchors.size() / 2 / tensors.size();
  if (spec.head == Head::kV5 && anchors == 0) FailTensors("maps without anchors");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Floats& map = tensors[i];
    const bool planes = map.shape.size() == 4;
    if (map.empty()) FailTensors("an empty map");
    if (spec.head == Head::kV8) {
      if (more != 0) FailTensors("maps of nothing but boxes");
      if (!planes || map.dim(1) <= 4 * static_cast<std::size_t>(spec.bins)) {
        FailTensors("maps without room for one class");
      }
      FindV8Map(spec, map, found);
      continue;
    }
    const bool fits =
        planes ? map.dim(1) % anchors == 0 && map.dim(1) / anchors > kV5Channels
               : map.shape.size() == 5 && map.dim(1) == anchors && map.dim(4) > kV5Channels;
    if (!fits) FailTensors("maps that are not for these anchors");
    FindV5Map(spec, map, &spec.anchors[2 * anchors * i], anchors, found);
  }
}

}  // namespace edgepack
