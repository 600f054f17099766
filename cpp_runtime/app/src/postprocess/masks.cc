// Maps of the whole photo: edgepack/postprocess/masks.py says what is made of them.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "postprocess/boxes.h"

namespace edgepack {
namespace {

constexpr int kNone = -1;

/// The class of each cell.
void FindClasses(const PostprocessSpec& spec, const Grid& map, Best* best,
                 std::vector<int>* classes) {
  classes->assign(map.cells, kNone);
  if (map.channels == 1) {
    for (std::size_t cell = 0; cell < map.cells; ++cell) {
      const double value = map.At(0, cell);
      const bool sigmoid = spec.scores == PostprocessSpec::Scores::kSigmoid;
      if ((sigmoid ? Sigmoid(value) : value) >= spec.score) (*classes)[cell] = 0;
    }
    return;
  }
  FindBest(map, 0, map.channels, best);
  for (std::size_t cell = 0; cell < map.cells; ++cell) {
    const int index = static_cast<int>(best->index[cell]);
    if (index != spec.background) (*classes)[cell] = index;
  }
}

/// Which of `cells` in a row each of `side` pixels of the photo lies in.
void FindCells(int side, int scaled, int start, int size, std::size_t cells,
               std::vector<int>* found) {
  found->assign(static_cast<std::size_t>(side), kNone);
  const auto count = static_cast<double>(cells);
  for (std::size_t i = 0; i < found->size(); ++i) {
    const double pixel = (static_cast<double>(i) + 0.5) * scaled / side;
    const double cell = std::floor((pixel - start) * count / size);
    if (cell >= 0 && cell < count) (*found)[i] = static_cast<int>(cell);
  }
}

/// Takes all areas out of a mask, and keeps their memory.
void ClearAreas(Mask* mask, MaskBuffers* buffers) {
  while (!mask->areas.empty()) {
    buffers->areas.push_back(mask->areas.extract(mask->areas.begin()));
  }
}

/// The area of a class: a new one in the memory of an earlier one, best of the same class, for that
/// is as large.
Area& AreaOfClass(std::size_t index, MaskBuffers* buffers, Mask* mask) {
  const auto there = mask->areas.find(index);
  if (there != mask->areas.end()) return there->second;
  auto& spare = buffers->areas;
  if (spare.empty()) return mask->areas[index];
  const auto same = std::find_if(spare.begin(), spare.end(),
                                 [&](const auto& node) { return node.key() == index; });
  if (same != spare.end()) std::swap(*same, spare.back());
  auto node = std::move(spare.back());
  spare.pop_back();
  node.key() = index;
  node.mapped().pixels = 0;
  node.mapped().runs.clear();
  return mask->areas.insert(std::move(node)).position->second;
}

/// Pixels of a map: below the threshold or of a line that is done, above it, and of this line.
constexpr char kShut = 0;
constexpr char kOpen = 1;
constexpr char kTaken = 2;
/// A box of so many times its line's pixels is looked through faster than they are sorted.
constexpr std::size_t kMostAround = 16;

/// Andrew's monotone chain, of points in order; the last one is left out.
void AddChain(const std::vector<Pixel>& ordered, std::vector<Pixel>* hull) {
  const std::size_t begin = hull->size();
  for (const auto& [x, y] : ordered) {
    while (hull->size() > begin + 1) {
      const auto& [ax, ay] = (*hull)[hull->size() - 2];
      const auto& [bx, by] = hull->back();
      if ((bx - ax) * (y - ay) - (by - ay) * (x - ax) > 0) break;
      hull->pop_back();
    }
    hull->emplace_back(x, y);
  }
  hull->pop_back();
}

/// The hull of points, which it sorts.
void FindHull(std::vector<Pixel>* points, std::vector<Pixel>* hull) {
  hull->clear();
  std::sort(points->begin(), points->end());
  if (points->size() < 2) {
    *hull = *points;
    return;
  }
  AddChain(*points, hull);
  std::reverse(points->begin(), points->end());
  AddChain(*points, hull);
}

/// A rectangle: its corner, the direction of its sides, and how far it goes along and across them.
struct Rectangle {
  double area = std::numeric_limits<double>::infinity();
  Point origin;
  Point along;
  double u0 = 0;
  double u1 = 0;
  double v0 = 0;
  double v1 = 0;
};

/// The smallest around a hull; one of its sides lies along the hull's.
Rectangle RectangleOf(const std::vector<Pixel>& hull) {
  Rectangle best;
  for (std::size_t i = 0; i < hull.size(); ++i) {
    const Pixel& to = hull[(i + 1) % hull.size()];
    const auto x = static_cast<double>(hull[i].first);
    const auto y = static_cast<double>(hull[i].second);
    const double dx = static_cast<double>(to.first) - x;
    const double dy = static_cast<double>(to.second) - y;
    const double length = std::sqrt(dx * dx + dy * dy);
    Rectangle made;
    made.origin = {x, y};
    made.along = hull.size() > 1 ? Point{dx / length, dy / length} : Point{1, 0};
    made.u0 = made.v0 = std::numeric_limits<double>::infinity();
    made.u1 = made.v1 = -made.u0;
    for (const auto& [px, py] : hull) {
      const double right = static_cast<double>(px) - x;
      const double down = static_cast<double>(py) - y;
      const double u = made.along.x * right + made.along.y * down;
      const double v = made.along.x * down - made.along.y * right;
      made.u0 = std::min(made.u0, u);
      made.u1 = std::max(made.u1, u);
      made.v0 = std::min(made.v0, v);
      made.v1 = std::max(made.v1, v);
    }
    made.area = (made.u1 - made.u0) * (made.v1 - made.v0);
    if (made.area < best.area) best = made;
  }
  return best;
}

/// The line that the buffers' pixels (places in a map of `width`) are, without its score; nothing
/// if it is too small, or lies beside the photo.
std::optional<Box> LineFrom(const PostprocessSpec& spec, std::size_t width, Point stride,
                            const Geometry& geometry, PostprocessBuffers* buffers) {
  LineBuffers& line = buffers->line;
  line.points.clear();
  // Of each row only the ends can be of the hull.
  const std::vector<std::size_t>& pixels = line.pixels;
  for (std::size_t i = 0; i < pixels.size(); ++i) {
    const std::size_t row = pixels[i] / width;
    const bool first = i == 0 || pixels[i - 1] / width != row;
    const bool last = i + 1 == pixels.size() || pixels[i + 1] / width != row;
    if (first || last) line.points.emplace_back(pixels[i] % width, row);
  }
  FindHull(&line.points, &line.hull);
  Rectangle rect = RectangleOf(line.hull);
  const double wide = rect.u1 - rect.u0;
  const double high = rect.v1 - rect.v0;
  if (std::min(wide, high) < spec.least_side) return std::nullopt;
  // A rectangle without an area is not enlarged: it has no circumference to divide by, perhaps.
  const double more = rect.area > 0 ? rect.area * spec.unclip / (2 * (wide + high)) : 0;
  rect.u0 -= more;
  rect.u1 += more;
  rect.v0 -= more;
  rect.v1 += more;
  const auto corner = [&](double u, double v) {
    const double x = rect.origin.x + 0.5 + u * rect.along.x - v * rect.along.y;
    const double y = rect.origin.y + 0.5 + u * rect.along.y + v * rect.along.x;
    return geometry.Source({x * stride.x, y * stride.y});
  };
  std::array<Point, 4> corners = {corner(rect.u0, rect.v0), corner(rect.u1, rect.v0),
                                  corner(rect.u1, rect.v1), corner(rect.u0, rect.v1)};
  auto* const first = std::min_element(corners.begin(), corners.end(),
                                       [](Point a, Point b) { return a.x + a.y < b.x + b.y; });
  std::rotate(corners.begin(), first, corners.end());
  Box box;
  box.low = box.high = corners.front();
  for (const Point point : corners) {
    box.low = {std::min(box.low.x, point.x), std::min(box.low.y, point.y)};
    box.high = {std::max(box.high.x, point.x), std::max(box.high.y, point.y)};
  }
  if (!(box.low.x < box.high.x && box.low.y < box.high.y)) return std::nullopt;
  box.points = TakePoints(&buffers->spare);
  box.points.assign(corners.begin(), corners.end());
  return box;
}

/// Puts the pixels in order. They lie within these rows and columns, and no others are `kTaken`.
void PutInOrder(std::size_t top, std::size_t bottom, std::size_t left, std::size_t right,
                std::size_t width, LineBuffers* buffers) {
  std::vector<std::size_t>& pixels = buffers->pixels;
  const std::size_t area = (bottom + 1 - top) * (right + 1 - left);
  if (area / kMostAround > pixels.size()) {
    for (const std::size_t at : pixels) buffers->open[at] = kShut;
    std::sort(pixels.begin(), pixels.end());
    return;
  }
  pixels.clear();
  for (std::size_t row = top; row <= bottom; ++row) {
    for (std::size_t at = row * width + left; at <= row * width + right; ++at) {
      if (buffers->open[at] != kTaken) continue;
      buffers->open[at] = kShut;
      pixels.push_back(at);
    }
  }
}

/// Moves the pixels above the threshold that touch the one at `start` from open to pixels.
void TakeTouching(std::size_t start, std::size_t width, std::size_t height, LineBuffers* buffers) {
  std::vector<char>& open = buffers->open;
  std::vector<std::size_t>& pixels = buffers->pixels;
  pixels.assign(1, start);
  open[start] = kTaken;
  const std::size_t top = start / width;  // the first that is found has none above it
  std::size_t bottom = top;
  std::size_t left = width;
  std::size_t right = 0;
  for (std::size_t i = 0; i < pixels.size(); ++i) {
    const std::size_t x = pixels[i] % width;
    const std::size_t y = pixels[i] / width;
    bottom = std::max(bottom, y);
    left = std::min(left, x);
    right = std::max(right, x);
    const std::size_t first = x - std::min<std::size_t>(x, 1);
    const std::size_t count = std::min(x + 2, width) - first;
    for (std::size_t v = y - std::min<std::size_t>(y, 1); v < std::min(y + 2, height); ++v) {
      const std::size_t begin = v * width + first;
      for (std::size_t at = begin; at < begin + count; ++at) {
        if (open[at] != kOpen) continue;
        open[at] = kTaken;
        pixels.push_back(at);
      }
    }
  }
  PutInOrder(top, bottom, left, right, width, buffers);
}

}  // namespace

void FindMask(const PostprocessSpec& spec, const std::vector<Floats>& tensors,
              const Geometry& geometry, PostprocessBuffers* buffers, Mask* found) {
  const Maps maps = MapsOf(spec, tensors);
  MaskBuffers& own = buffers->mask;
  FindClasses(spec, maps.grid, &buffers->best, &own.classes);
  FindCells(geometry.height, geometry.scaled_height, geometry.top, spec.height, maps.height,
            &own.rows);
  FindCells(geometry.width, geometry.scaled_width, geometry.left, spec.width, maps.width,
            &own.columns);
  Mask& mask = *found;
  ClearAreas(&mask, &own);
  mask.height = geometry.height;
  mask.width = geometry.width;
  int open = kNone;      // the class of the run that is not at its end
  Area* area = nullptr;  // the one it belongs to
  std::int64_t at = 0;
  for (const int row : own.rows) {
    for (const int column : own.columns) {
      const bool inside = row != kNone && column != kNone;
      const std::size_t cell =
          inside ? static_cast<std::size_t>(row) * maps.width + static_cast<std::size_t>(column)
                 : 0;
      const int index = inside ? own.classes[cell] : kNone;
      if (index != kNone) {
        if (index != open) {
          area = &AreaOfClass(static_cast<std::size_t>(index), &own, &mask);
          area->runs.insert(area->runs.end(), {at, 0});
        }
        ++area->runs.back();
        ++area->pixels;
      }
      open = index;
      ++at;
    }
  }
}

void FindLines(const PostprocessSpec& spec, const std::vector<Floats>& tensors,
               const Geometry& geometry, PostprocessBuffers* buffers, std::vector<Box>* lines) {
  const Maps maps = MapsOf(spec, tensors);
  const Grid& map = maps.grid;
  if (map.channels != 1) FailTensors("a map of text has one channel");
  const std::size_t height = maps.height;
  const std::size_t width = maps.width;
  const Point stride = {static_cast<double>(spec.width) / static_cast<double>(width),
                        static_cast<double>(spec.height) / static_cast<double>(height)};
  std::vector<char>& open = buffers->line.open;
  open.resize(height * width);
  for (std::size_t at = 0; at < open.size(); ++at) {
    open[at] = static_cast<double>(map.data[at]) > spec.threshold ? kOpen : kShut;
  }
  Clear(lines, &buffers->spare);
  for (std::size_t at = 0; at < open.size(); ++at) {
    if (open[at] != kOpen) continue;
    TakeTouching(at, width, height, &buffers->line);
    const std::vector<std::size_t>& pixels = buffers->line.pixels;
    double sum = 0;
    for (const std::size_t pixel : pixels) sum += static_cast<double>(map.data[pixel]);
    const double score = sum / static_cast<double>(pixels.size());
    if (!(score >= spec.score) || !std::isfinite(score) ||
        lines->size() == static_cast<std::size_t>(spec.max_boxes)) {
      continue;
    }
    if (std::optional<Box> line = LineFrom(spec, width, stride, geometry, buffers)) {
      line->found = {0, score};
      lines->push_back(std::move(*line));
    }
  }
}

}  // namespace edgepack
