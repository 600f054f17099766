#pragma once

#include <opencv2/core/mat.hpp>

namespace edgepack {

/// `image` (CV_8UC1 or CV_8UC3) as CV_32FC1 or CV_32FC3, resized as tf.image.resize does without
/// antialias, bit for bit: bilinear, centres of pixels on centres, in float32, not rounded.
cv::Mat TfBilinearResize(const cv::Mat& image, cv::Size size);

}  // namespace edgepack
