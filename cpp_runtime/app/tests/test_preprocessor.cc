#include <cmath>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <edgepack/errors.h>
#include <edgepack/preprocessor.h>
#include <opencv2/core.hpp>

#include "platform/opencv/decode.h"
#include "platform/opencv/mat_to_tensor.h"
#include "platform/opencv/pillow_resize.h"
#include "support.h"

namespace edgepack::testing {
namespace {

using Bytes = std::vector<unsigned char>;
using Resize = PreprocessSpec::Resize;

/// The picture that the expected bytes below were made of.
cv::Mat Picture() {
  cv::Mat image(5, 7, CV_8UC3);
  for (int y = 0; y < image.rows; ++y) {
    for (int x = 0; x < 3 * image.cols; ++x) {
      image.ptr(y)[x] = static_cast<unsigned char>(y * 41 + x * 7);
    }
  }
  return image;
}

cv::Mat GrayPicture() {
  cv::Mat image(5, 7, CV_8UC1);
  for (int i = 0; i < 35; ++i) image.data[i] = static_cast<unsigned char>(i * 37);
  return image;
}

cv::Mat Noise(int rows, int cols, int type) {
  cv::Mat image(rows, cols, type);
  cv::RNG(7).fill(image, cv::RNG::UNIFORM, 0, 256);
  return image;
}

Bytes ToBytes(const cv::Mat& image) {
  const cv::Mat packed = image.clone();
  return {packed.data, packed.data + packed.total() * packed.elemSize()};
}

cv::Mat Pillow(const cv::Mat& image, cv::Size size, PillowFilter filter) {
  PillowBuffers buffers;
  return PillowResize(image, size, filter, &buffers);
}

cv::Mat Resized(const PreprocessSpec& spec, const cv::Mat& image) {
  return Preprocessor(spec).Resized(image);
}

PreprocessSpec BgrSpec() {
  PreprocessSpec spec;
  spec.color = PreprocessSpec::Color::kBgr;
  return spec;
}

}  // namespace

TEST_CASE("how far a photo may be reduced") {
  using Mode = Resize::Mode;
  PreprocessSpec spec = BgrSpec();
  const auto reduction = [&](int height, int width) {
    return Preprocessor(spec).Reduction(height, width);
  };
  spec.resize = Resize{Mode::kShortest, {256, 256}};
  CHECK(reduction(3024, 4032) == 1);
  spec.decode = PreprocessSpec::Decode::kScaled;
  CHECK(reduction(3024, 4032) == 8);
  CHECK(reduction(4032, 3024) == 8);
  CHECK(Preprocessor(spec).InFull().Reduction(3024, 4032) == 1);
  // 2041 / 8 is 255.1: 256 pixels, the last of them of fewer.
  CHECK(reduction(2041, 4081) == 8);
  CHECK(reduction(2040, 4081) == 4);
  CHECK(reduction(512, 512) == 2);
  CHECK(reduction(510, 510) == 1);
  // Both sides would be 126, 251: which of them was the longer one?
  spec.resize = Resize{Mode::kShortest, {100, 100}};
  CHECK(reduction(1001, 1003) == 2);
  CHECK(reduction(1001, 1001) == 8);
  // Of a letterbox the photo counts, not the border: 480 x 640, of 378 x 504 and 756 x 1008.
  spec.resize = Resize{Mode::kLetterbox, {640, 640}};
  CHECK(reduction(3024, 4032) == 4);
  // Enough for it as it lies by 8, but not if it is turned.
  spec.resize = Resize{Mode::kExact, {48, 320}};
  CHECK(reduction(640, 2560) == 2);
}

TEST_CASE("a reduced photo is resized to what all of it would be") {
  PreprocessSpec spec = BgrSpec();
  spec.resize = Resize{Resize::Mode::kShortest, {256, 256}};
  // 256 * 4031 / 2999 = 344.1; of the pixels that are left, 256 * 504 / 378 = 341.3.
  const Decoded reduced(Noise(378, 504, CV_8UC3), cv::Size(4031, 2999));
  CHECK(Preprocessor(spec).Resized(reduced).size() == cv::Size(344, 256));
  CHECK(Preprocessor(spec).GeometryOf(2999, 4031).scaled_width == 344);
}

TEST_CASE("Pillow's filters, byte for byte") {
  // Image.fromarray(picture).resize(size, filter) of Pillow 13.0
  const cv::Mat picture = Picture();
  CHECK(ToBytes(Pillow(picture, {4, 3}, PillowFilter::kBilinear)) ==
        Bytes{29,  36,  43,  62,  69,  76,  100, 107, 114, 133, 140, 147,
              93,  100, 107, 126, 133, 140, 164, 171, 178, 197, 174, 181,
              157, 164, 171, 190, 197, 204, 199, 206, 137, 122, 72,  72});
  CHECK(ToBytes(Pillow(picture, {4, 3}, PillowFilter::kBicubic)) ==
        Bytes{23,  30,  37,  59,  66,  73,  97,  103, 110, 133, 144, 151,
              90,  97,  104, 126, 133, 140, 166, 175, 187, 210, 182, 189,
              157, 164, 171, 197, 204, 213, 206, 218, 142, 116, 60,  63});
  CHECK(ToBytes(Pillow(picture, {9, 6}, PillowFilter::kBicubic).row(5)) ==
        Bytes{165, 172, 179, 179, 186, 193, 196, 203, 210, 213, 220, 232, 229, 236,
              243, 255, 255, 40,  110, 116, 0,   0,   4,   30,  27,  44,  51});
  CHECK(ToBytes(Pillow(GrayPicture(), {3, 2}, PillowFilter::kBicubic)) ==
        Bytes{30, 114, 198, 36, 120, 204});
  CHECK(ToBytes(Pillow(picture, picture.size(), PillowFilter::kBicubic)) == ToBytes(picture));
}

TEST_CASE("sizes after a resize") {
  PreprocessSpec spec = BgrSpec();
  SUBCASE("the shorter side, rounded down") {
    spec.resize = Resize{Resize::Mode::kShortest, {256, 256}, 0};
    CHECK(Resized(spec, Noise(300, 451, CV_8UC3)).size() == cv::Size(384, 256));
    CHECK(Resized(spec, Noise(451, 300, CV_8UC3)).size() == cv::Size(256, 384));
    CHECK(Resized(spec, Noise(9, 9, CV_8UC3)).size() == cv::Size(256, 256));
  }
  SUBCASE("exact") {
    spec.resize = Resize{Resize::Mode::kExact, {20, 30}, 0};
    for (const auto filter :
         {PreprocessSpec::Interpolation::kLinear, PreprocessSpec::Interpolation::kNearest,
          PreprocessSpec::Interpolation::kArea, PreprocessSpec::Interpolation::kCubic,
          PreprocessSpec::Interpolation::kPilBilinear,
          PreprocessSpec::Interpolation::kPilBicubic}) {
      spec.interpolation = filter;
      CHECK(Resized(spec, Noise(300, 451, CV_8UC3)).size() == cv::Size(30, 20));
    }
  }
  SUBCASE("a letterbox") {
    spec.resize = Resize{Resize::Mode::kLetterbox, {40, 40}, 114};
    const cv::Mat wide = Resized(spec, cv::Mat(100, 200, CV_8UC3, cv::Scalar::all(9)));
    CHECK(wide.size() == cv::Size(40, 40));
    CHECK(wide.at<cv::Vec3b>(9, 20) == cv::Vec3b::all(114));
    CHECK(wide.at<cv::Vec3b>(10, 0) == cv::Vec3b::all(9));
    CHECK(wide.at<cv::Vec3b>(29, 39) == cv::Vec3b::all(9));
    CHECK(wide.at<cv::Vec3b>(30, 20) == cv::Vec3b::all(114));
    // However thin, a line stays.
    CHECK(Resized(spec, cv::Mat(900, 1, CV_8UC3, cv::Scalar::all(9))).at<cv::Vec3b>(20, 19) ==
          cv::Vec3b::all(9));
  }
  SUBCASE("too long and thin") {
    spec.resize = Resize{Resize::Mode::kShortest, {16384, 16384}, 0};
    CHECK_THROWS_AS(Resized(spec, Noise(1, 300, CV_8UC3)), ImageError);
    // 2^32 pixels, which no int holds.
    const cv::Mat line(1 << 20, 1, CV_8UC3, cv::Scalar::all(0));
    spec.resize->size = {4096, 4096};
    CHECK(MessageOf<ImageError>([&] { Resized(spec, line); }) ==
          "image of 1 x 1048576 pixels would be resized to 4096 x 4294967296");
  }
  SUBCASE("more pixels than a photo may have") {
    const cv::Mat line(1000, 1, CV_8UC3, cv::Scalar::all(0));
    spec.max_pixels = 50'000;
    spec.resize = Resize{Resize::Mode::kShortest, {8, 8}, 0};
    CHECK_THROWS_AS(Resized(spec, line), ImageError);
    spec.resize = Resize{Resize::Mode::kExact, {100, 100}, 0};
    CHECK(Resized(spec, line).size() == cv::Size(100, 100));
    // Between its two passes Pillow's filter would make 1000 rows of 100.
    spec.interpolation = PreprocessSpec::Interpolation::kPilBilinear;
    CHECK_THROWS_AS(Resized(spec, line), ImageError);
    spec.max_pixels = 100'000;
    CHECK(Resized(spec, line).size() == cv::Size(100, 100));
    // As many as the spec asks for are always allowed.
    spec.max_pixels = 1;
    spec.interpolation = PreprocessSpec::Interpolation::kArea;
    CHECK(Resized(spec, line).size() == cv::Size(100, 100));
  }
}

TEST_CASE("the centre is cut out") {
  PreprocessSpec spec = BgrSpec();
  const cv::Mat image = Noise(10, 13, CV_8UC3);
  spec.crop = PreprocessSpec::Size{4, 6};
  CHECK(ToBytes(Resized(spec, image)) == ToBytes(image(cv::Rect(3, 3, 6, 4))));
  spec.crop_centre = PreprocessSpec::Centre::kTorchvision;
  CHECK(ToBytes(Resized(spec, image)) == ToBytes(image(cv::Rect(4, 3, 6, 4))));
  spec.crop = PreprocessSpec::Size{11, 6};
  const std::string message = MessageOf<ImageError>([&] { Resized(spec, image); });
  CHECK(message == "image of 13 x 10 pixels is smaller than the crop of 6 x 11");
}

TEST_CASE("colours") {
  PreprocessSpec spec;
  const cv::Mat image = Noise(6, 7, CV_8UC3);
  const cv::Mat rgb = Resized(spec, image);
  CHECK(rgb.at<cv::Vec3b>(2, 3)[0] == image.at<cv::Vec3b>(2, 3)[2]);
  spec.color = PreprocessSpec::Color::kGray;
  CHECK(Resized(spec, image).type() == CV_8UC1);
  const cv::Mat white(2, 2, CV_8UC3, cv::Scalar::all(255));
  CHECK(ToBytes(Resized(spec, white)) == Bytes{255, 255, 255, 255});
}

TEST_CASE("tensors") {
  PreprocessSpec spec;
  spec.input = "x";
  spec.scale = 1 / 255.0;
  spec.mean = {0.485, 0.456, 0.406};
  spec.std = {0.229, 0.224, 0.225};
  // Widths around the 16 pixels of a vector, and a view with gaps between its rows.
  for (const int width : {1, 15, 16, 33, 40}) {
    for (const int channels : {1, 3}) {
      spec.color = channels == 1 ? PreprocessSpec::Color::kGray : PreprocessSpec::Color::kRgb;
      const cv::Mat image = Noise(3, 64, CV_8UC(channels))(cv::Rect(5, 0, width, 3));
      for (const bool planes : {true, false}) {
        spec.layout = planes ? PreprocessSpec::Layout::kNchw : PreprocessSpec::Layout::kNhwc;
        for (const bool normalise : {true, false}) {
          spec.dtype = normalise ? DType::kFloat32 : DType::kUInt8;
          const Preprocessor preprocessor(spec);
          const TensorInfo info = preprocessor.InfoOf(image);
          CHECK(info.shape ==
                (planes ? Shape{1, channels, 3, width} : Shape{1, 3, width, channels}));
          std::vector<unsigned char> out(info.bytes);
          preprocessor.ToTensor(image, out.data());
          double largest = 0;
          for (int y = 0; y < 3; ++y) {
            for (int x = 0; x < width; ++x) {
              for (int c = 0; c < channels; ++c) {
                const int at = planes ? (c * 3 + y) * width + x : (y * width + x) * channels + c;
                const auto k = static_cast<std::size_t>(c);
                const double pixel = image.ptr(y)[x * channels + c];
                const double expected =
                    normalise ? (pixel * spec.scale - spec.mean.at(k)) / spec.std.at(k) : pixel;
                const double actual =
                    ElementAt(info.dtype, out.data(), static_cast<std::size_t>(at));
                largest = std::max(largest, std::fabs(actual - expected));
              }
            }
          }
          CHECK(largest <= 1e-6);
        }
      }
    }
  }
}

}  // namespace edgepack::testing
