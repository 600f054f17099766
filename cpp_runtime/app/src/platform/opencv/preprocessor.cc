#include <algorithm>
#include <string>

#include <edgepack/errors.h>
#include <edgepack/preprocessor.h>
#include <opencv2/core.hpp>
#include <opencv2/imgproc.hpp>

#include "platform/opencv/decode.h"
#include "platform/opencv/mat_to_tensor.h"
#include "platform/opencv/pillow_resize.h"

namespace edgepack {
namespace {

using Interpolation = PreprocessSpec::Interpolation;
using Mode = PreprocessSpec::Resize::Mode;

/// A long thin photo would otherwise take any amount of memory; edgepack/preprocess/spec.py has the
/// same limit.
constexpr std::int64_t kMaxResizedPixels = std::int64_t{1} << 26;

std::string Text(cv::Size size) {
  return std::to_string(size.width) + " x " + std::to_string(size.height);
}

cv::Size ToSize(std::int64_t height, std::int64_t width) {
  return {static_cast<int>(width), static_cast<int>(height)};
}

/// The shorter side becomes `side`, the longer follows, rounded down as torchvision does.
cv::Size ShortestSize(cv::Size image, std::int64_t side) {
  const std::int64_t height = image.height;
  const std::int64_t width = image.width;
  return height <= width ? ToSize(side, side * width / height)
                         : ToSize(side * height / width, side);
}

/// The largest size of the image's shape within the other; rounds half up.
cv::Size LetterboxSize(cv::Size image, PreprocessSpec::Size into) {
  const std::int64_t height = image.height;
  const std::int64_t width = image.width;
  if (width * into.height <= height * into.width) {
    return ToSize(into.height,
                  std::max<std::int64_t>(1, (2 * width * into.height + height) / (2 * height)));
  }
  return ToSize(std::max<std::int64_t>(1, (2 * height * into.width + width) / (2 * width)),
                into.width);
}

cv::Mat Scaled(const cv::Mat& image, cv::Size size, Interpolation interpolation) {
  if (image.size() == size) return image;
  int filter = cv::INTER_LINEAR;
  switch (interpolation) {
    case Interpolation::kPilBilinear:
      return PillowResize(image, size, PillowFilter::kBilinear);
    case Interpolation::kPilBicubic:
      return PillowResize(image, size, PillowFilter::kBicubic);
    case Interpolation::kLinear:
      break;
    case Interpolation::kNearest:
      filter = cv::INTER_NEAREST;
      break;
    case Interpolation::kArea:
      filter = cv::INTER_AREA;
      break;
    case Interpolation::kCubic:
      filter = cv::INTER_CUBIC;
      break;
  }
  cv::Mat out;
  cv::resize(image, out, size, 0, 0, filter);
  return out;
}

cv::Mat ResizeBy(const cv::Mat& image, const PreprocessSpec::Resize& resize,
                 Interpolation interpolation) {
  const cv::Size size = resize.mode == Mode::kShortest
                            ? ShortestSize(image.size(), resize.size.height)
                            : ToSize(resize.size.height, resize.size.width);
  if (std::int64_t{size.width} * size.height > kMaxResizedPixels) {
    throw ImageError("image of " + Text(image.size()) + " pixels would be resized to " + Text(size),
                     "cut it to a less extreme shape");
  }
  if (resize.mode != Mode::kLetterbox) return Scaled(image, size, interpolation);
  const cv::Size inner = LetterboxSize(image.size(), resize.size);
  const cv::Mat small = Scaled(image, inner, interpolation);
  cv::Mat canvas(size, image.type(), cv::Scalar::all(resize.fill));
  const cv::Point corner((size.width - inner.width) / 2, (size.height - inner.height) / 2);
  small.copyTo(canvas(cv::Rect(corner, inner)));
  return canvas;
}

cv::Mat CentreCrop(const cv::Mat& image, PreprocessSpec::Size crop, PreprocessSpec::Centre centre) {
  const cv::Size size = ToSize(crop.height, crop.width);
  if (size.width > image.cols || size.height > image.rows) {
    throw ImageError(
        "image of " + Text(image.size()) + " pixels is smaller than the crop of " + Text(size),
        "resize before the crop: set resize in the [preprocess] table");
  }
  const cv::Point corner(CropStart(image.cols, size.width, centre),
                         CropStart(image.rows, size.height, centre));
  return image(cv::Rect(corner, size));
}

Normalisation ToNormalisation(const PreprocessSpec& spec) {
  Normalisation normalisation = {};
  for (std::size_t c = 0; c < static_cast<std::size_t>(spec.channels()); ++c) {
    normalisation.scale.at(c) = static_cast<float>(spec.scale / spec.std.at(c));
    normalisation.bias.at(c) = static_cast<float>(-spec.mean.at(c) / spec.std.at(c));
  }
  return normalisation;
}

}  // namespace

cv::Mat Preprocessor::Decode(const std::filesystem::path& path) const {
  return DecodeImage(path, spec_.accept);
}

cv::Mat Preprocessor::Resized(const cv::Mat& bgr) const {
  cv::Mat image = bgr;
  if (spec_.color == PreprocessSpec::Color::kGray) {
    cv::cvtColor(bgr, image, cv::COLOR_BGR2GRAY);
  }
  if (spec_.resize) image = ResizeBy(image, *spec_.resize, spec_.interpolation);
  if (spec_.crop) image = CentreCrop(image, *spec_.crop, spec_.crop_centre);
  // Filters work on each channel alone, so the channels are swapped when there are few pixels left.
  if (spec_.color == PreprocessSpec::Color::kRgb) {
    cv::Mat rgb;
    cv::cvtColor(image, rgb, cv::COLOR_BGR2RGB);
    return rgb;
  }
  return image;
}

TensorInfo Preprocessor::InfoOf(const cv::Mat& resized) const {
  TensorInfo info;
  info.name = spec_.input;
  info.dtype = spec_.normalise ? DType::kFloat32 : DType::kUInt8;
  if (spec_.layout == PreprocessSpec::Layout::kNchw) {
    info.shape = {1, resized.channels(), resized.rows, resized.cols};
  } else {
    info.shape = {1, resized.rows, resized.cols, resized.channels()};
  }
  info.bytes = ByteSize(info.dtype, info.shape).value_or(0);
  return info;
}

void Preprocessor::ToTensor(const cv::Mat& resized, void* out) const {
  const bool planes = spec_.layout == PreprocessSpec::Layout::kNchw;
  if (!spec_.normalise) {
    auto* const pixels = static_cast<std::uint8_t*>(out);
    planes ? MatToChw(resized, pixels) : MatToHwc(resized, pixels);
    return;
  }
  const Normalisation normalisation = ToNormalisation(spec_);
  auto* const values = static_cast<float*>(out);
  planes ? MatToChw(resized, normalisation, values) : MatToHwc(resized, normalisation, values);
}

}  // namespace edgepack
