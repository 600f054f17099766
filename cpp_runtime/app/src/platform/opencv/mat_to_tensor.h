#pragma once

#include <array>

#include <opencv2/core/mat.hpp>

namespace edgepack {

/// Per channel, a value is pixel * scale + bias.
struct Normalisation {
  std::array<float, 3> scale;
  std::array<float, 3> bias;
};

/// Writes an image (CV_8UC1 or CV_8UC3) as float planes, (C, H, W), in one pass.
void MatToChw(const cv::Mat& image, const Normalisation& normalisation, float* out);
/// The same as interleaved values, (H, W, C).
void MatToHwc(const cv::Mat& image, const Normalisation& normalisation, float* out);
/// Pixels as they are, as planes (C, H, W) or interleaved (H, W, C).
void MatToChw(const cv::Mat& image, std::uint8_t* out);
void MatToHwc(const cv::Mat& image, std::uint8_t* out);

}  // namespace edgepack
