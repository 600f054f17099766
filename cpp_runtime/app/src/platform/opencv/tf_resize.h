#pragma once

#include <vector>

#include <opencv2/core/mat.hpp>

namespace edgepack {

/// The two source pixels of each pixel along an axis, and how much of their difference counts.
struct TfAxis {
  int from = 0;
  int to = 0;
  std::vector<int> low = {};
  std::vector<int> high = {};
  std::vector<float> share = {};
};

/// What is kept for the next image, of the same size most likely.
struct TfBuffers {
  TfAxis down;
  TfAxis across;
  cv::Mat out;
};

/// `image` (CV_8UC1 or CV_8UC3) as CV_32FC1 or CV_32FC3, resized as tf.image.resize does without
/// antialias, bit for bit: bilinear, centres of pixels on centres, in float32, not rounded. It lies
/// in `buffers`.
cv::Mat TfBilinearResize(const cv::Mat& image, cv::Size size, TfBuffers* buffers);

}  // namespace edgepack
