#pragma once

#include <array>
#include <cstdint>

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

/// The same of an image of float32 (CV_32FC1 or CV_32FC3), as planes or interleaved.
void FloatsToTensor(const cv::Mat& image, const Normalisation& normalisation, bool planes,
                    float* out);

/// How 8-bit integers are made of values: divided by `scale`, rounded half to even, plus
/// `zero_point`, within the limits.
struct Quantizer {
  Normalisation normalisation = {};
  float scale = 1;
  int zero_point = 0;
  int lowest = 0;
  int highest = 255;
};

/// 8-bit integers of an image of bytes or of float32, as planes or interleaved.
void MatToIntegers(const cv::Mat& image, const Quantizer& quantizer, bool planes,
                   std::uint8_t* out);
/// Pixels of float32 without their fractions.
void FloatsToBytes(const cv::Mat& image, bool planes, std::uint8_t* out);

}  // namespace edgepack
