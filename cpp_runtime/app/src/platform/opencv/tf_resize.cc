// TensorFlow's core/kernels/image/resize_bilinear_op.cc with half_pixel_centers.
#include "platform/opencv/tf_resize.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace edgepack {
namespace {

void ComputeAxis(int from, int to, TfAxis* axis) {
  if (axis->from == from && axis->to == to) return;
  *axis = {from, to};
  const float scale = static_cast<float>(from) / static_cast<float>(to);
  for (int i = 0; i < to; ++i) {
    const float at = (static_cast<float>(i) + 0.5F) * scale - 0.5F;
    const float floor = std::floor(at);
    axis->low.push_back(std::clamp(static_cast<int>(floor), 0, from - 1));
    axis->high.push_back(std::clamp(static_cast<int>(std::ceil(at)), 0, from - 1));
    axis->share.push_back(at - floor);
  }
}

}  // namespace

cv::Mat TfBilinearResize(const cv::Mat& image, cv::Size size, TfBuffers* buffers) {
  const int channels = image.channels();
  ComputeAxis(image.rows, size.height, &buffers->down);
  ComputeAxis(image.cols, size.width, &buffers->across);
  const TfAxis& down = buffers->down;
  const TfAxis& across = buffers->across;
  cv::Mat& out = buffers->out;
  out.create(size, CV_32FC(channels));
  for (int y = 0; y < size.height; ++y) {
    const auto row = static_cast<std::size_t>(y);
    const std::uint8_t* const top = image.ptr(down.low[row]);
    const std::uint8_t* const bottom = image.ptr(down.high[row]);
    auto* to = out.ptr<float>(y);
    for (std::size_t x = 0; x < across.low.size(); ++x) {
      const int left = across.low[x] * channels;
      const int right = across.high[x] * channels;
      const auto between = [&](const std::uint8_t* line, int c) {
        const auto first = static_cast<float>(line[left + c]);
        return first + (static_cast<float>(line[right + c]) - first) * across.share[x];
      };
      for (int c = 0; c < channels; ++c) {
        const float upper = between(top, c);
        *to++ = upper + (between(bottom, c) - upper) * down.share[row];
      }
    }
  }
  return out;
}

}  // namespace edgepack
