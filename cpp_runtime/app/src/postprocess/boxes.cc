#include "postprocess/boxes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include <edgepack/errors.h>

namespace edgepack {
namespace {

/// As many, the best, are compared with each other: a board would take too long for more.
constexpr std::size_t kMostCandidates = 10000;

double AreaOf(const Corners& box) { return (box.right - box.left) * (box.bottom - box.top); }

/// Intersection over union; 0 if both are empty.
double OverlapOf(const Corners& a, const Corners& b) {
  const double width = std::min(a.right, b.right) - std::max(a.left, b.left);
  const double height = std::min(a.bottom, b.bottom) - std::max(a.top, b.top);
  const double shared = std::max(width, 0.0) * std::max(height, 0.0);
  const double both = AreaOf(a) + AreaOf(b) - shared;
  return both > 0 ? shared / both : 0;
}

/// Where a point that is anywhere in a rotated box lies: its mean, and its covariance.
struct Spread {
  Point centre;
  double xx = 0;
  double yy = 0;
  double xy = 0;
};

/// Of the box with these corners.
Spread SpreadOf(const Point* corners) {
  const Point wide = {corners[1].x - corners[0].x, corners[1].y - corners[0].y};
  const Point high = {corners[3].x - corners[0].x, corners[3].y - corners[0].y};
  return {{(corners[0].x + corners[2].x) / 2, (corners[0].y + corners[2].y) / 2},
          (wide.x * wide.x + high.x * high.x) / 12,
          (wide.y * wide.y + high.y * high.y) / 12,
          (wide.x * wide.y + high.x * high.y) / 12};
}

/// That of rotated boxes, as edgepack/postprocess/yolo.py has it.
double OverlapOf(const Spread& one, const Spread& two) {
  constexpr double kLittle = 1e-7;
  constexpr double kFar = 100;
  const double xx = one.xx + two.xx;
  const double yy = one.yy + two.yy;
  const double xy = one.xy + two.xy;
  const double x = one.centre.x - two.centre.x;
  const double y = one.centre.y - two.centre.y;
  const double whole = xx * yy - xy * xy;
  const double own = std::max(one.xx * one.yy - one.xy * one.xy, 0.0) *
                     std::max(two.xx * two.yy - two.xy * two.xy, 0.0);
  const double far =
      (xx * y * y + yy * x * x) / (whole + kLittle) / 4 - xy * x * y / (whole + kLittle) / 2;
  const double shape = std::log(whole / (4 * std::sqrt(own) + kLittle) + kLittle) / 2;
  const double distance = far + shape;
  const double near = std::isnan(distance) ? kFar : std::min(std::max(distance, kLittle), kFar);
  return 1 - std::sqrt(1 - std::exp(-near) + kLittle);
}

/// Values that a compiler compares at once.
constexpr std::size_t kTogether = 8;

/// Where the first of the largest values is. `largest` becomes that value if it is above what it
/// was, else the answer is 0.
std::size_t FindLargest(const float* values, std::size_t count, float* largest) {
  std::array<float, kTogether> lanes = {};
  lanes.fill(*largest);
  std::size_t i = 0;
  for (; i + kTogether <= count; i += kTogether) {
    for (std::size_t lane = 0; lane < kTogether; ++lane) {
      const float value = values[i + lane];
      lanes[lane] = value > lanes[lane] ? value : lanes[lane];
    }
  }
  float most = *std::max_element(lanes.begin(), lanes.end());
  for (; i < count; ++i) most = values[i] > most ? values[i] : most;
  if (!(most > *largest)) return 0;
  const float* const first = std::find(values, values + count, most);
  *largest = *first;
  return static_cast<std::size_t>(first - values);
}

bool IsFinite(Point point) { return std::isfinite(point.x) && std::isfinite(point.y); }

}  // namespace

Maps MapsOf(const PostprocessSpec& spec, const std::vector<Floats>& tensors) {
  if (tensors.size() != 1 || tensors.front().shape.size() != 4 ||
      tensors.front().shape.front() != 1 || tensors.front().empty()) {
    FailTensors("they are not maps of one image");
  }
  const Floats& tensor = tensors.front();
  const std::size_t first = spec.channels_last ? 1 : 2;
  const std::size_t height = tensor.dim(first);
  const std::size_t width = tensor.dim(first + 1);
  const std::size_t channels = tensor.dim(spec.channels_last ? 3 : 1);
  const auto make = spec.channels_last ? Grid::Rows : Grid::Planes;
  return {make(tensor.data, channels, height * width), height, width};
}

void FindBest(const Grid& grid, std::size_t begin, std::size_t end, Best* best) {
  best->score.assign(grid.cells, -std::numeric_limits<float>::infinity());
  best->index.assign(grid.cells, 0);
  float* const score = best->score.data();
  std::uint32_t* const index = best->index.data();
  const auto look = [&](std::size_t channel, std::size_t cell) {
    const float value = grid.data[channel * grid.channel_stride + cell * grid.cell_stride];
    if (value > score[cell]) {
      score[cell] = value;
      index[cell] = static_cast<std::uint32_t>(channel - begin);
    }
  };
  // In the order of the memory.
  if (grid.cell_stride == 1) {
    for (std::size_t channel = begin; channel < end; ++channel) {
      for (std::size_t cell = 0; cell < grid.cells; ++cell) look(channel, cell);
    }
  } else if (grid.channel_stride == 1 && end - begin >= kTogether) {
    for (std::size_t cell = 0; cell < grid.cells; ++cell) {
      const float* const values = grid.data + begin + cell * grid.cell_stride;
      index[cell] = static_cast<std::uint32_t>(FindLargest(values, end - begin, &score[cell]));
    }
  } else {
    for (std::size_t cell = 0; cell < grid.cells; ++cell) {
      for (std::size_t channel = begin; channel < end; ++channel) look(channel, cell);
    }
  }
}

double Sigmoid(double value) { return 1 / (1 + std::exp(-value)); }

Corners FromCentre(double x, double y, double width, double height) {
  return {x - width / 2, y - height / 2, x + width / 2, y + height / 2};
}

void Clear(std::vector<Box>* boxes, Spare* spare) {
  for (Box& box : *boxes) {
    if (box.points.capacity() != 0) spare->points.push_back(std::move(box.points));
    if (box.mask.height != 0) spare->masks.push_back(std::move(box.mask.counts));
  }
  boxes->clear();
}

std::vector<Point> TakePoints(Spare* spare) {
  if (spare->points.empty()) return {};
  std::vector<Point> points = std::move(spare->points.back());
  spare->points.pop_back();
  points.clear();
  return points;
}

void Candidates::Add(double score, std::size_t index, const Corners& corners, std::size_t cell) {
  std::vector<Point>& points = buffers_.points;
  const auto own = points.begin() + static_cast<std::ptrdiff_t>(added_points_);
  if (!Counts(score) || !std::isfinite(score) || !IsFinite({corners.left, corners.top}) ||
      !IsFinite({corners.right, corners.bottom}) || !std::all_of(own, points.end(), IsFinite)) {
    points.erase(own, points.end());
    return;
  }
  buffers_.candidates.push_back({{index, score}, corners, added_points_, cell});
  added_points_ = points.size();
}

bool Candidates::Overlap(const Candidate& a, const Candidate& b) const {
  if (spec_.class_aware && a.found.index != b.found.index) return false;
  if (spec_.rotated) {
    const Point* const points = buffers_.points.data();
    return OverlapOf(SpreadOf(points + a.first_point), SpreadOf(points + b.first_point)) >
           spec_.iou;
  }
  return OverlapOf(a.corners, b.corners) > spec_.iou;
}

void Candidates::Select(const Geometry& geometry, bool suppress, std::vector<Box>* boxes) const {
  const std::vector<Candidate>& candidates = buffers_.candidates;
  std::vector<std::size_t>& order = buffers_.order;
  order.resize(candidates.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const std::size_t count = std::min(order.size(), kMostCandidates);
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
                    [&](std::size_t a, std::size_t b) {
                      const double first = candidates[a].found.score;
                      const double second = candidates[b].found.score;
                      return first != second ? first > second : a < b;
                    });
  order.resize(count);
  std::vector<std::size_t>& kept = buffers_.kept;
  kept.clear();
  for (const std::size_t at : order) {
    if (kept.size() == static_cast<std::size_t>(spec_.max_boxes)) break;
    const bool hidden = suppress && std::any_of(kept.begin(), kept.end(), [&](std::size_t better) {
                          return Overlap(candidates[better], candidates[at]);
                        });
    if (!hidden) kept.push_back(at);
  }
  Clear(boxes, &buffers_.spare);
  buffers_.instances.cells.clear();
  // As many of each: those of all, over all.
  const std::size_t points = candidates.empty() ? 0 : added_points_ / candidates.size();
  for (const std::size_t at : kept) {
    const Candidate& candidate = candidates[at];
    Box box;
    box.found = candidate.found;
    box.low = geometry.Source({candidate.corners.left, candidate.corners.top});
    box.high = geometry.Source({candidate.corners.right, candidate.corners.bottom});
    if (!(box.low.x < box.high.x && box.low.y < box.high.y)) continue;  // it lies beside the photo
    if (points > 0) box.points = TakePoints(&buffers_.spare);
    for (std::size_t i = 0; i < points; ++i) {
      const Point point = buffers_.points[candidate.first_point + i];
      // At the photo's edge the corners would no longer be those of a turned box.
      box.points.push_back(spec_.rotated ? geometry.Place(point) : geometry.Source(point));
    }
    boxes->push_back(std::move(box));
    buffers_.instances.cells.push_back(candidate.cell);
  }
}

void FailTensors(const std::string& problem) {
  throw ModelInputError("postprocess.json does not take these outputs: " + problem,
                        "deploy the bundle again: `edgepack deploy`");
}

}  // namespace edgepack
