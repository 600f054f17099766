// Boxes as differences from anchors: edgepack/postprocess/ssd.py says what the outputs hold.
#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

#include "postprocess/boxes.h"

namespace edgepack {
namespace {

/// A map of anchors: its cells, how far they lie from each other, and its part of spec.anchors.
struct AnchorMap {
  std::size_t height;
  std::size_t width;
  Point step;
  std::size_t begin;
  std::size_t count;
};

/// Calls `take` with each map.
template <typename Take>
void ForEachMap(const PostprocessSpec& spec, const Take& take) {
  std::size_t begin = 0;
  for (std::size_t i = 0; i < spec.counts.size(); ++i) {
    const auto count = static_cast<std::size_t>(spec.counts[i]);
    if (spec.maps.empty()) {
      const int stride = spec.strides[i];
      const auto cells = [&](int side) {
        return static_cast<std::size_t>((std::int64_t{side} + stride - 1) / stride);
      };
      const auto step = static_cast<double>(stride);
      take(AnchorMap{cells(spec.height), cells(spec.width), {step, step}, begin, count});
    } else {
      const int height = spec.maps[2 * i];
      const int width = spec.maps[2 * i + 1];
      take(AnchorMap{
          static_cast<std::size_t>(height),
          static_cast<std::size_t>(width),
          {static_cast<double>(spec.width) / width, static_cast<double>(spec.height) / height},
          begin,
          count});
    }
    begin += count;
  }
}

/// An anchor by its centre and its size, in pixels of the model's input.
struct Anchor {
  Point centre;
  Point size;
};

/// The three outputs, as rows.
struct SsdRows {
  Grid boxes;
  Grid scores;
  Grid points;  ///< two channels for each
  std::size_t first_point = 0;
};

SsdRows RowsOf(const PostprocessSpec& spec, const std::vector<Floats>& tensors) {
  if (tensors.size() < 2 || tensors.size() > 3) FailTensors("they are not boxes and scores");
  std::array<Grid, 3> grids;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Floats& tensor = tensors[i];
    if (tensor.shape.size() != 3 || tensor.shape.front() != 1 ||
        tensor.dim(1) != tensors.front().dim(1)) {
      FailTensors("they are not rows of as many boxes each");
    }
    grids.at(i) = Grid::Rows(tensor.data, tensor.dim(2), tensor.dim(1));
  }
  const bool own = tensors.size() == 3;
  SsdRows rows = {grids[0], grids[1], own ? grids[2] : grids[0], own ? 0U : 4U};
  const std::size_t background = spec.background_class == PostprocessSpec::End::kNone ? 0 : 1;
  if (rows.boxes.channels < 4 || (own && rows.boxes.channels != 4) ||
      (rows.points.channels - rows.first_point) % 2 != 0 || rows.scores.channels < 1 + background) {
    FailTensors("they are not four numbers for each box, and scores of classes");
  }
  return rows;
}

/// Finds boxes of rows one after the other, each with its anchor, if there are any.
class SsdFinder {
 public:
  SsdFinder(const PostprocessSpec& spec, const SsdRows& rows, Candidates* found)
      : spec_(spec), rows_(rows), found_(found), best_(*found->best()) {
    begin_ = spec.background_class == PostprocessSpec::End::kFirst ? 1 : 0;
    const std::size_t last = spec.background_class == PostprocessSpec::End::kLast ? 1 : 0;
    FindBest(rows.scores, begin_, rows.scores.channels - last, &best_);
  }

  void Look(std::size_t row, const Anchor* anchor) {
    const double score = ScoreOf(row);
    if (!found_->Counts(score)) return;
    for (std::size_t i = rows_.first_point; i < rows_.points.channels; i += 2) {
      found_->AddPoint(PointOf(Pair(rows_.points, i, row), anchor));
    }
    found_->Add(score, best_.index[row] + begin_, BoxOf(row, anchor));
  }

 private:
  /// Numbers of two channels, as x and y.
  [[nodiscard]] Point Pair(const Grid& grid, std::size_t channel, std::size_t row) const {
    const double a = grid.At(channel, row);
    const double b = grid.At(channel + 1, row);
    return spec_.y_first ? Point{b, a} : Point{a, b};
  }

  [[nodiscard]] double ScoreOf(std::size_t row) const {
    const auto best = static_cast<double>(best_.score[row]);
    if (spec_.scores == PostprocessSpec::Scores::kSigmoid) return Sigmoid(best);
    if (spec_.scores == PostprocessSpec::Scores::kRaw) return best;
    double sum = 0;
    for (std::size_t i = 0; i < rows_.scores.channels; ++i) {
      sum += std::exp(rows_.scores.At(i, row) - best);
    }
    return 1 / sum;
  }

  [[nodiscard]] Point PointOf(Point given, const Anchor* anchor) const {
    if (anchor == nullptr) return {given.x * Unit().x, given.y * Unit().y};
    return {anchor->centre.x + given.x * spec_.variances[0] * anchor->size.x,
            anchor->centre.y + given.y * spec_.variances[0] * anchor->size.y};
  }

  [[nodiscard]] Corners BoxOf(std::size_t row, const Anchor* anchor) const {
    const Point first = PointOf(Pair(rows_.boxes, 0, row), anchor);
    const Point second = Pair(rows_.boxes, 2, row);
    if (anchor == nullptr) {
      const Point high = PointOf(second, anchor);
      return {first.x, first.y, high.x, high.y};
    }
    const auto side = [&](double value, double of) {
      value *= spec_.variances[1];
      return (spec_.exp_sizes ? std::exp(value) : value) * of;
    };
    return FromCentre(first.x, first.y, side(second.x, anchor->size.x),
                      side(second.y, anchor->size.y));
  }

  [[nodiscard]] Point Unit() const {
    if (!spec_.relative) return {1, 1};
    return {static_cast<double>(spec_.width), static_cast<double>(spec_.height)};
  }

  const PostprocessSpec& spec_;
  const SsdRows& rows_;
  Candidates* found_;
  std::size_t begin_ = 0;
  Best& best_;
};

}  // namespace

void FindSsd(const PostprocessSpec& spec, const std::vector<Floats>& tensors, Candidates* found) {
  const SsdRows rows = RowsOf(spec, tensors);
  std::size_t anchors = 0;
  ForEachMap(spec, [&](const AnchorMap& map) { anchors += map.height * map.width * map.count; });
  if (!spec.counts.empty() && anchors != rows.boxes.cells)
    FailTensors("not as many boxes as anchors");
  SsdFinder finder(spec, rows, found);
  std::size_t row = 0;
  ForEachMap(spec, [&](const AnchorMap& map) {
    for (std::size_t cell = 0; cell < map.height * map.width; ++cell) {
      const std::size_t line = cell / map.width;
      const Point centre = {(static_cast<double>(cell % map.width) + 0.5) * map.step.x,
                            (static_cast<double>(line) + 0.5) * map.step.y};
      for (std::size_t i = map.begin; i < map.begin + map.count; ++i) {
        const Point unit =
            spec.relative ? Point{static_cast<double>(spec.width), static_cast<double>(spec.height)}
                          : Point{1, 1};
        const Anchor anchor = {centre,
                               {spec.anchors[2 * i] * unit.x, spec.anchors[2 * i + 1] * unit.y}};
        finder.Look(row++, &anchor);
      }
    }
  });
  if (spec.counts.empty()) {
    for (; row < rows.boxes.cells; ++row) finder.Look(row, nullptr);
  }
}

}  // namespace edgepack
