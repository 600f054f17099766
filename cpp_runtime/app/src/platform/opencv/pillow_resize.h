#pragma once

#include <cstdint>
#include <vector>

#include <opencv2/core/mat.hpp>

namespace edgepack {

enum class PillowFilter { kBilinear, kBicubic };

/// The source pixels of each position along an axis: weights of pixels first, first + 1, ...
struct PillowAxis {
  struct Taps {
    int first = 0;
    std::vector<std::int32_t> weights;
  };

  int from = 0;
  int to = 0;
  PillowFilter filter = PillowFilter::kBilinear;
  std::vector<Taps> taps;
};

/// What is kept for the next image, of the same size most likely.
struct PillowBuffers {
  PillowAxis columns;
  PillowAxis rows;
  cv::Mat across;
  cv::Mat out;
  std::vector<std::int32_t> sums;
};

/// `image` (CV_8UC1 or CV_8UC3) resized as Pillow's Image.resize does, byte for byte: filters that
/// widen with the scale (antialiasing), in fixed point, across first and then down.
/// It lies in `buffers`, or is the image itself.
cv::Mat PillowResize(const cv::Mat& image, cv::Size size, PillowFilter filter,
                     PillowBuffers* buffers);

}  // namespace edgepack
