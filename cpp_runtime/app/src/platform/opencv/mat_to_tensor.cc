#include "platform/opencv/mat_to_tensor.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

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

/// `make` of each element of an image and its channel, as planes or interleaved.
template <typename From, typename To, typename Make>
void EachElement(const cv::Mat& image, bool planes, To* out, const Make& make) {
  const auto channels = static_cast<std::size_t>(image.channels());
  const auto width = static_cast<std::size_t>(image.cols);
  const std::size_t plane = planes ? image.total() : 1;
  const std::size_t step = planes ? 1 : channels;
  for (int y = 0; y < image.rows; ++y) {
    const From* in = image.ptr<From>(y);
    To* row = out + static_cast<std::size_t>(y) * width * step;
    for (std::size_t x = 0; x < width; ++x, row += step) {
      for (std::size_t c = 0; c < channels; ++c) row[c * plane] = make(*in++, c);
    }
  }
}

std::uint8_t ToInteger(float value, const Quantizer& quantizer) {
  const float rounded =
      std::nearbyint(value / quantizer.scale) + static_cast<float>(quantizer.zero_point);
  if (!(rounded >= static_cast<float>(quantizer.lowest))) {  // NaN, too
    return static_cast<std::uint8_t>(quantizer.lowest);
  }
  return static_cast<std::uint8_t>(
      static_cast<int>(std::min(rounded, static_cast<float>(quantizer.highest))));
}

}  // namespace

void FloatsToTensor(const cv::Mat& image, const Normalisation& normalisation, bool planes,
                    float* out) {
  EachElement<float>(image, planes, out, [&](float value, std::size_t c) {
    return value * normalisation.scale.at(c) + normalisation.bias.at(c);
  });
}

void MatToIntegers(const cv::Mat& image, const Quantizer& quantizer, bool planes,
                   std::uint8_t* out) {
  const Normalisation& n = quantizer.normalisation;
  const auto make = [&](float value, std::size_t c) {
    return ToInteger(value * n.scale.at(c) + n.bias.at(c), quantizer);
  };
  if (image.depth() == CV_32F) return EachElement<float>(image, planes, out, make);
  std::array<std::array<std::uint8_t, 256>, 3> table = {};
  for (std::size_t c = 0; c < table.size(); ++c) {
    for (std::size_t i = 0; i < 256; ++i) table.at(c).at(i) = make(static_cast<float>(i), c);
  }
  EachElement<std::uint8_t>(
      image, planes, out, [&](std::uint8_t value, std::size_t c) { return table.at(c).at(value); });
}

void FloatsToBytes(const cv::Mat& image, bool planes, std::uint8_t* out) {
  EachElement<float>(image, planes, out,
                     [](float value, std::size_t) { return static_cast<std::uint8_t>(value); });
}

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
  std::array<cv::Mat, 3> planes;
  for (int c = 0; c < image.channels(); ++c) {
    planes.at(static_cast<std::size_t>(c)) =
        cv::Mat(image.rows, image.cols, CV_8UC1, out + static_cast<std::size_t>(c) * image.total());
  }
  cv::split(image, planes.data());
}

void MatToHwc(const cv::Mat& image, std::uint8_t* out) {
  const std::size_t length = static_cast<std::size_t>(image.cols) * image.elemSize();
  for (int y = 0; y < image.rows; ++y) {
    std::memcpy(out + static_cast<std::size_t>(y) * length, image.ptr(y), length);
  }
}

}  // namespace edgepack
