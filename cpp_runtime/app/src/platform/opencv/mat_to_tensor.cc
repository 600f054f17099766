#include "platform/opencv/mat_to_tensor.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include <opencv2/core.hpp>
#include <opencv2/core/hal/intrin.hpp>

namespace edgepack {
namespace {

#if CV_SIMD128
constexpr int kLanes = 16;

/// 16 pixels of one channel to 16 floats. A multiply and an add, not a fused one: the values are
/// then the same on every CPU.
void Store16(const cv::v_uint8x16& pixels, const cv::v_float32x4& scale,
             const cv::v_float32x4& bias, float* out) {
  cv::v_uint16x8 half[2];
  cv::v_expand(pixels, half[0], half[1]);
  for (const cv::v_uint16x8& pixels8 : half) {
    cv::v_uint32x4 quarter[2];
    cv::v_expand(pixels8, quarter[0], quarter[1]);
    for (const cv::v_uint32x4& pixels4 : quarter) {
      const cv::v_float32x4 value = cv::v_cvt_f32(cv::v_reinterpret_as_s32(pixels4));
      cv::v_store(out, cv::v_add(cv::v_mul(value, scale), bias));
      out += 4;
    }
  }
}
#endif

void PlanesOf3(const std::uint8_t* in, std::size_t count, const Normalisation& n, float* out0,
               float* out1, float* out2) {
  std::size_t x = 0;
#if CV_SIMD128
  const cv::v_float32x4 scale[3] = {cv::v_setall_f32(n.scale[0]), cv::v_setall_f32(n.scale[1]),
                                    cv::v_setall_f32(n.scale[2])};
  const cv::v_float32x4 bias[3] = {cv::v_setall_f32(n.bias[0]), cv::v_setall_f32(n.bias[1]),
                                   cv::v_setall_f32(n.bias[2])};
  for (; x + kLanes <= count; x += kLanes) {
    cv::v_uint8x16 c0;
    cv::v_uint8x16 c1;
    cv::v_uint8x16 c2;
    cv::v_load_deinterleave(in + 3 * x, c0, c1, c2);
    Store16(c0, scale[0], bias[0], out0 + x);
    Store16(c1, scale[1], bias[1], out1 + x);
    Store16(c2, scale[2], bias[2], out2 + x);
  }
#endif
  for (; x < count; ++x) {
    out0[x] = static_cast<float>(in[3 * x]) * n.scale[0] + n.bias[0];
    out1[x] = static_cast<float>(in[3 * x + 1]) * n.scale[1] + n.bias[1];
    out2[x] = static_cast<float>(in[3 * x + 2]) * n.scale[2] + n.bias[2];
  }
}

void PlaneOf1(const std::uint8_t* in, std::size_t count, float scale, float bias, float* out) {
  std::size_t x = 0;
#if CV_SIMD128
  const cv::v_float32x4 scales = cv::v_setall_f32(scale);
  const cv::v_float32x4 biases = cv::v_setall_f32(bias);
  for (; x + kLanes <= count; x += kLanes) Store16(cv::v_load(in + x), scales, biases, out + x);
#endif
  for (; x < count; ++x) out[x] = static_cast<float>(in[x]) * scale + bias;
}

}  // namespace

void MatToChw(const cv::Mat& image, const Normalisation& normalisation, float* out) {
  const auto width = static_cast<std::size_t>(image.cols);
  const std::size_t plane = image.total();
  for (int y = 0; y < image.rows; ++y) {
    float* row = out + static_cast<std::size_t>(y) * width;
    if (image.channels() == 1) {
      PlaneOf1(image.ptr(y), width, normalisation.scale[0], normalisation.bias[0], row);
    } else {
      PlanesOf3(image.ptr(y), width, normalisation, row, row + plane, row + 2 * plane);
    }
  }
}

void MatToHwc(const cv::Mat& image, const Normalisation& normalisation, float* out) {
  const auto channels = static_cast<std::size_t>(image.channels());
  const std::size_t length = static_cast<std::size_t>(image.cols) * channels;
  for (int y = 0; y < image.rows; ++y) {
    const std::uint8_t* in = image.ptr(y);
    for (std::size_t x = 0; x < length; x += channels) {
      for (std::size_t c = 0; c < channels; ++c) {
        *out++ =
            static_cast<float>(in[x + c]) * normalisation.scale.at(c) + normalisation.bias.at(c);
      }
    }
  }
}

void MatToChw(const cv::Mat& image, std::uint8_t* out) {
  std::vector<cv::Mat> planes;
  planes.reserve(3);
  for (int c = 0; c < image.channels(); ++c) {
    planes.emplace_back(image.rows, image.cols, CV_8UC1,
                        out + static_cast<std::size_t>(c) * image.total());
  }
  cv::split(image, planes);
}

void MatToHwc(const cv::Mat& image, std::uint8_t* out) {
  const std::size_t length = static_cast<std::size_t>(image.cols) * image.elemSize();
  for (int y = 0; y < image.rows; ++y) {
    std::memcpy(out + static_cast<std::size_t>(y) * length, image.ptr(y), length);
  }
}

}  // namespace edgepack
