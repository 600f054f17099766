// The algorithm of Pillow's src/libImaging/Resample.c (8 bits per channel), written anew.
#include "platform/opencv/pillow_resize.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace edgepack {
namespace {

/// Weights are integers of this many fractional bits: a pixel has 8 bits, and 2 are left for sums
/// outside 0..1 of a filter with negative lobes.
constexpr int kPrecisionBits = 32 - 8 - 2;
constexpr std::int32_t kHalf = 1 << (kPrecisionBits - 1);

double Bilinear(double x) {
  x = std::fabs(x);
  return x < 1.0 ? 1.0 - x : 0.0;
}

double Bicubic(double x) {
  constexpr double a = -0.5;
  x = std::fabs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
  return 0.0;
}

/// Towards zero, as Pillow's casts do.
int Truncated(double x) { return static_cast<int>(x); }

void ComputeTaps(int in_size, int out_size, PillowFilter filter, PillowAxis* axis) {
  if (axis->from == in_size && axis->to == out_size && axis->filter == filter) return;
  const bool bilinear = filter == PillowFilter::kBilinear;
  const double scale = static_cast<double>(in_size) / out_size;
  const double filter_scale = std::max(scale, 1.0);
  const double support = (bilinear ? 1.0 : 2.0) * filter_scale;
  const double step = 1.0 / filter_scale;
  *axis = {in_size, out_size, filter, {}};
  axis->taps.resize(static_cast<std::size_t>(out_size));
  std::vector<double> weights;
  for (int out = 0; out < out_size; ++out) {
    const double center = (out + 0.5) * scale;
    const int first = std::max(Truncated(center - support + 0.5), 0);
    const int last = std::min(Truncated(center + support + 0.5), in_size);
    weights.clear();
    double sum = 0;
    for (int in = first; in < last; ++in) {
      const double x = (in - center + 0.5) * step;
      weights.push_back(bilinear ? Bilinear(x) : Bicubic(x));
      sum += weights.back();
    }
    PillowAxis::Taps& taps = axis->taps[static_cast<std::size_t>(out)];
    taps.first = first;
    taps.weights.reserve(weights.size());
    for (double weight : weights) {
      if (sum != 0.0) weight /= sum;
      // Rounded half away from zero.
      taps.weights.push_back(
          static_cast<std::int32_t>((weight < 0 ? -0.5 : 0.5) + weight * (1 << kPrecisionBits)));
    }
  }
}

std::uint8_t Clip(std::int32_t sum) {
  return static_cast<std::uint8_t>(std::clamp(sum >> kPrecisionBits, 0, 255));
}

template <int kChannels>
void ResizeRow(const std::uint8_t* in, std::uint8_t* out, const PillowAxis& columns) {
  for (const PillowAxis::Taps& taps : columns.taps) {
    std::int32_t sums[kChannels];
    std::fill(sums, sums + kChannels, kHalf);
    const std::uint8_t* pixel = in + static_cast<std::ptrdiff_t>(taps.first) * kChannels;
    for (const std::int32_t weight : taps.weights) {
      for (int c = 0; c < kChannels; ++c) sums[c] += pixel[c] * weight;
      pixel += kChannels;
    }
    for (int c = 0; c < kChannels; ++c) *out++ = Clip(sums[c]);
  }
}

void ResizeAcross(const cv::Mat& image, const PillowAxis& columns, cv::Mat* out) {
  out->create(image.rows, columns.to, image.type());
  for (int y = 0; y < image.rows; ++y) {
    if (image.channels() == 1) {
      ResizeRow<1>(image.ptr(y), out->ptr(y), columns);
    } else {
      ResizeRow<3>(image.ptr(y), out->ptr(y), columns);
    }
  }
}

void ResizeDown(const cv::Mat& image, const PillowAxis& rows, std::vector<std::int32_t>* sums,
                cv::Mat* out) {
  out->create(rows.to, image.cols, image.type());
  const auto length = static_cast<std::size_t>(image.cols) * image.elemSize();
  sums->resize(length);
  for (int y = 0; y < rows.to; ++y) {
    const PillowAxis::Taps& taps = rows.taps[static_cast<std::size_t>(y)];
    std::fill(sums->begin(), sums->end(), kHalf);
    for (std::size_t k = 0; k < taps.weights.size(); ++k) {
      const std::uint8_t* in = image.ptr(taps.first + static_cast<int>(k));
      const std::int32_t weight = taps.weights[k];
      for (std::size_t x = 0; x < length; ++x) (*sums)[x] += in[x] * weight;
    }
    std::uint8_t* row = out->ptr(y);
    for (std::size_t x = 0; x < length; ++x) row[x] = Clip((*sums)[x]);
  }
}

}  // namespace

cv::Mat PillowResize(const cv::Mat& image, cv::Size size, PillowFilter filter,
                     PillowBuffers* buffers) {
  cv::Mat result = image;
  if (size.width != image.cols) {
    ComputeTaps(image.cols, size.width, filter, &buffers->columns);
    ResizeAcross(image, buffers->columns, &buffers->across);
    result = buffers->across;
  }
  if (size.height != image.rows) {
    ComputeTaps(image.rows, size.height, filter, &buffers->rows);
    ResizeDown(result, buffers->rows, &buffers->sums, &buffers->out);
    result = buffers->out;
  }
  return result;
}

}  // namespace edgepack
