// Masks of boxes: edgepack/postprocess/instances.py says what they are and how they are written.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include "postprocess/boxes.h"
#include "postprocess/counts.h"

namespace edgepack {
namespace {

/// Of all masks of a photo: the boxes after those have none. The Python reference has the same.
constexpr std::size_t kMostBytes = std::size_t{16} << 20;
/// What a sum is at most.
constexpr double kFar = 1e30;

/// Where each of `side` pixels of the photo lies between `cells` of a map.
void FindBetween(int side, int scaled, int start, int size, std::size_t cells,
                 std::vector<Between>* found) {
  found->resize(static_cast<std::size_t>(side));
  const auto count = static_cast<double>(cells);
  for (std::size_t i = 0; i < found->size(); ++i) {
    const double place = (static_cast<double>(i) + 0.5) * scaled / side - start;
    const double at = std::min(std::max(place * count / size - 0.5, 0.0), count - 1);
    const double before = std::floor(at);
    const auto cell = static_cast<std::size_t>(before);
    (*found)[i] = {cell, std::min(cell + 1, cells - 1), at - before, place >= 0 && place < size};
  }
}

/// Those pixels of a side, from the first to the end, whose centres lie in a box.
struct Range {
  std::size_t begin = 0;
  std::size_t end = 0;
};

Range PixelsIn(double low, double high, std::size_t side) {
  const auto most = static_cast<double>(side);
  const auto whole = [&](double edge) {
    return static_cast<std::size_t>(std::min(std::max(std::ceil(edge - 0.5), 0.0), most));
  };
  return {whole(low), whole(high)};
}

double Blend(double low, double high, double weight) { return low + (high - low) * weight; }

/// The prototypes' sum for one box, in the cells that its pixels lie between.
class Sums {
 public:
  Sums(const Grid& boxes, std::size_t begin, std::size_t cell, const Floats& prototypes,
       const InstanceBuffers& of, Range x, Range y, std::vector<double>* sums)
      : left_(of.columns[x.begin].before),
        top_(of.rows[y.begin].before),
        width_(of.columns[x.end - 1].after + 1 - left_),
        height_(of.rows[y.end - 1].after + 1 - top_),
        sums_(*sums) {
    sums_.assign(width_ * height_, 0);
    const std::size_t pitch = prototypes.dim(3);
    const std::size_t plane = prototypes.dim(2) * pitch;
    for (std::size_t number = 0; number < prototypes.dim(1); ++number) {
      // Exact: both are float32, so that it does not matter how the compiler adds it.
      const double factor = boxes.At(begin + number, cell);
      const float* row = prototypes.data + number * plane + top_ * pitch + left_;
      double* sum = sums_.data();
      for (std::size_t v = 0; v < height_; ++v, row += pitch, sum += width_) {
        for (std::size_t u = 0; u < width_; ++u) sum[u] += factor * static_cast<double>(row[u]);
      }
    }
    for (double& sum : sums_) {
      sum = std::isnan(sum) ? -kFar : std::min(std::max(sum, -kFar), kFar);
    }
  }

  /// The sums at a column of the photo, for each row of cells.
  void BlendColumn(const Between& at, std::vector<double>* column) const {
    column->resize(height_);
    const double* row = sums_.data();
    for (std::size_t v = 0; v < height_; ++v, row += width_) {
      (*column)[v] = Blend(row[at.before - left_], row[at.after - left_], at.weight);
    }
  }
  [[nodiscard]] std::size_t top() const { return top_; }

 private:
  std::size_t left_;
  std::size_t top_;
  std::size_t width_;
  std::size_t height_;
  std::vector<double>& sums_;
};

void WriteMask(const Sums& sums, Range x, Range y, InstanceBuffers* of, CountsWriter* counts) {
  const std::size_t height = of->rows.size();
  for (std::size_t column = x.begin; column < x.end; ++column) {
    if (!of->columns[column].there) continue;
    sums.BlendColumn(of->columns[column], &of->column);
    const double* const values = of->column.data();
    for (std::size_t row = y.begin; row < y.end; ++row) {
      const Between& at = of->rows[row];
      const double before = values[at.before - sums.top()];
      const double after = values[at.after - sums.top()];
      if (at.there && Blend(before, after, at.weight) > 0) counts->Add(column * height + row);
    }
  }
}

std::string TakeText(Spare* spare) {
  if (spare->masks.empty()) return {};
  std::string text = std::move(spare->masks.back());
  spare->masks.pop_back();
  text.clear();
  return text;
}

}  // namespace

void FindInstances(const PostprocessSpec& spec, const std::vector<Floats>& tensors,
                   const Geometry& geometry, PostprocessBuffers* buffers, std::vector<Box>* boxes) {
  const Floats& prototypes = tensors.back();
  const auto masks = static_cast<std::size_t>(spec.masks);
  if (prototypes.shape.size() != 4 || prototypes.shape.front() != 1 || prototypes.empty() ||
      prototypes.dim(1) != masks) {
    FailTensors("the second is no prototypes of masks");
  }
  const Floats& first = tensors.front();
  const bool rows = spec.head == PostprocessSpec::Head::kEnd2End;
  const Grid grid = rows ? Grid::Rows(first.data, first.dim(2), first.dim(1))
                         : Grid::Planes(first.data, first.dim(1), first.dim(2));
  InstanceBuffers& own = buffers->instances;
  FindBetween(geometry.width, geometry.scaled_width, geometry.left, spec.width, prototypes.dim(3),
              &own.columns);
  FindBetween(geometry.height, geometry.scaled_height, geometry.top, spec.height, prototypes.dim(2),
              &own.rows);
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < boxes->size(); ++i) {
    if (bytes >= kMostBytes) break;
    Box& box = (*boxes)[i];
    const Range x = PixelsIn(box.low.x, box.high.x, own.columns.size());
    const Range y = PixelsIn(box.low.y, box.high.y, own.rows.size());
    box.mask = {geometry.height, geometry.width, TakeText(&buffers->spare)};
    CountsWriter counts(&box.mask.counts);
    if (x.begin < x.end && y.begin < y.end) {
      const Sums sums(grid, grid.channels - masks, own.cells[i], prototypes, own, x, y, &own.sums);
      WriteMask(sums, x, y, &own, &counts);
    }
    counts.Finish(own.columns.size() * own.rows.size());
    bytes += box.mask.counts.size();
    if (bytes > kMostBytes) {
      buffers->spare.masks.push_back(std::move(box.mask.counts));
      box.mask = {};
    }
  }
}

}  // namespace edgepack
