#pragma once

#include <opencv2/core/mat.hpp>

namespace edgepack {

enum class PillowFilter { kBilinear, kBicubic };

/// `image` (CV_8UC1 or CV_8UC3) resized as Pillow's Image.resize does, byte for byte: filters that
/// widen with the scale (antialiasing), in fixed point, across first and then down.
cv::Mat PillowResize(const cv::Mat& image, cv::Size size, PillowFilter filter);

}  // namespace edgepack
