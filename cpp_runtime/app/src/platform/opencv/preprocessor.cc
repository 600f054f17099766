#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include <edgepack/errors.h>
#include <edgepack/preprocessor.h>
#include <opencv2/core.hpp>
#include <opencv2/imgproc.hpp>

#include "platform/opencv/decode.h"
#include "platform/opencv/mat_to_tensor.h"
#include "platform/opencv/preprocess_buffers.h"

namespace edgepack {
namespace {

using ResizeMode = PreprocessSpec::Resize::Mode;

/// A long thin photo would otherwise take any amount of memory; edgepack/preprocess/spec.py has the
/// same limit.
constexpr std::int64_t kMaxResizedPixels = std::int64_t{1} << 26;

/// A size in pixels that may be too large for any image.
using Size = cv::Size2l;

std::string Text(Size size) {
  return std::to_string(size.width) + " x " + std::to_string(size.height);
}

/// The shorter side becomes `side`, the longer follows, rounded down as torchvision does.
Size ShortestSize(Size image, std::int64_t side) {
  return image.height <= image.width ? Size(side * image.width / image.height, side)
                                     : Size(side, side * image.height / image.width);
}

/// The largest size of the image's shape within the other; rounds half up.
Size LetterboxSize(Size image, Size into) {
  const auto [width, height] = std::pair(image.width, image.height);
  if (width * into.height <= height * into.width) {
    return {std::max<std::int64_t>(1, (2 * width * into.height + height) / (2 * height)),
            into.height};
  }
  return {into.width, std::max<std::int64_t>(1, (2 * height * into.width + width) / (2 * width))};
}

bool IsPillows(PreprocessSpec::Interpolation interpolation) {
  return interpolation == PreprocessSpec::Interpolation::kPilBilinear ||
         interpolation == PreprocessSpec::Interpolation::kPilBicubic;
}

cv::Mat Scaled(const cv::Mat& image, cv::Size size, PreprocessSpec::Interpolation interpolation,
               PreprocessBuffers* buffers) {
  if (interpolation == PreprocessSpec::Interpolation::kTfBilinear) {
    return TfBilinearResize(image, size, &buffers->tf);
  }
  if (image.size() == size) return image;
  int filter = cv::INTER_LINEAR;
  switch (interpolation) {
    case PreprocessSpec::Interpolation::kPilBilinear:
      return PillowResize(image, size, PillowFilter::kBilinear, &buffers->pillow);
    case PreprocessSpec::Interpolation::kPilBicubic:
      return PillowResize(image, size, PillowFilter::kBicubic, &buffers->pillow);
    case PreprocessSpec::Interpolation::kTfBilinear:
    case PreprocessSpec::Interpolation::kLinear:
      break;
    case PreprocessSpec::Interpolation::kNearest:
      filter = cv::INTER_NEAREST;
      break;
    case PreprocessSpec::Interpolation::kArea:
      filter = cv::INTER_AREA;
      break;
    case PreprocessSpec::Interpolation::kCubic:
      filter = cv::INTER_CUBIC;
      break;
  }
  cv::resize(image, buffers->scaled, size, 0, 0, filter);
  return buffers->scaled;
}

/// What a photo is resized to; and with its border, if it gets one.
struct Sizes {
  Size inner;
  Size outer;
};

Sizes SizesOf(Size from, const PreprocessSpec::Resize& resize) {
  const Size asked(resize.size.width, resize.size.height);
  const Size outer =
      resize.mode == ResizeMode::kShortest ? ShortestSize(from, asked.height) : asked;
  return {resize.mode == ResizeMode::kLetterbox ? LetterboxSize(from, outer) : outer, outer};
}

/// `image` has the pixels of a photo of size `from`, or fewer.
cv::Mat ResizeBy(const cv::Mat& image, Size from, const PreprocessSpec& spec,
                 PreprocessBuffers* buffers) {
  const PreprocessSpec::Resize& resize = *spec.resize;
  const auto [inner, size] = SizesOf(from, resize);
  const Size asked(resize.size.width, resize.size.height);
  // As many as a photo may have, or as the spec itself asks for.
  const std::int64_t most = std::min(kMaxResizedPixels, std::max(asked.area(), spec.max_pixels));
  // Pillow's filters take the width first: an image of the old height.
  const Size wide(inner.width, IsPillows(spec.interpolation) ? image.rows : 0);
  if (size.area() > most || wide.area() > most) {
    throw ImageError("image of " + Text(from) + " pixels would be resized to " + Text(size),
                     "cut it to a less extreme shape");
  }
  if (resize.mode != ResizeMode::kLetterbox)
    return Scaled(image, inner, spec.interpolation, buffers);
  const cv::Mat small = Scaled(image, inner, spec.interpolation, buffers);
  const cv::Size outer = size;
  cv::Mat& canvas = buffers->canvas;
  canvas.create(outer, small.type());
  canvas = cv::Scalar::all(resize.fill);
  const cv::Point corner((canvas.cols - small.cols) / 2, (canvas.rows - small.rows) / 2);
  small.copyTo(canvas(cv::Rect(corner, small.size())));
  return canvas;
}

cv::Mat CentreCrop(const cv::Mat& image, PreprocessSpec::Size crop, PreprocessSpec::Centre centre) {
  const cv::Size size(crop.width, crop.height);
  if (size.width > image.cols || size.height > image.rows) {
    throw ImageError(
        "image of " + Text(image.size()) + " pixels is smaller than the crop of " + Text(size),
        "resize before the crop: set resize in the [preprocess] table");
  }
  const cv::Point corner(CropStart(image.cols, size.width, centre),
                         CropStart(image.rows, size.height, centre));
  return image(cv::Rect(corner, size));
}

/// The channels of a CV_32FC3 the other way round: the slim OpenCV converts colours of bytes only.
void SwapFloats(const cv::Mat& image, cv::Mat* swapped) {
  swapped->create(image.size(), image.type());
  for (int y = 0; y < image.rows; ++y) {
    const auto* from = image.ptr<cv::Vec3f>(y);
    std::transform(from, from + image.cols, swapped->ptr<cv::Vec3f>(y),
                   [](const cv::Vec3f& pixel) { return cv::Vec3f(pixel[2], pixel[1], pixel[0]); });
  }
}

Normalisation ToNormalisation(const PreprocessSpec& spec) {
  Normalisation normalisation = {};
  for (std::size_t c = 0; c < static_cast<std::size_t>(spec.channels()); ++c) {
    normalisation.scale.at(c) = static_cast<float>(spec.scale / spec.std.at(c));
    normalisation.bias.at(c) = static_cast<float>(-spec.mean.at(c) / spec.std.at(c));
  }
  return normalisation;
}

std::array<std::int64_t, 4> ShapeOf(const cv::Mat& resized, PreprocessSpec::Layout layout) {
  if (layout == PreprocessSpec::Layout::kNchw) {
    return {1, resized.channels(), resized.rows, resized.cols};
  }
  return {1, resized.rows, resized.cols, resized.channels()};
}

}  // namespace

Decoded Preprocessor::Decode(const std::filesystem::path& path) const {
  return DecodeImage(path, spec_.accept, spec_.max_pixels,
                     [this](int height, int width) { return Reduction(height, width); });
}

Decoded Preprocessor::Decode(std::string_view bytes, const std::string& name,
                             cv::Mat* memory) const {
  return DecodeImage(
      bytes, name, spec_.accept, spec_.max_pixels,
      [this](int height, int width) { return Reduction(height, width); }, memory);
}

int Preprocessor::Reduction(int height, int width) const {
  // A damaged file may say that there are no pixels.
  if (spec_.decode == PreprocessSpec::Decode::kFull || std::min(height, width) < 1) return 1;
  const Size flat = SizesOf({width, height}, *spec_.resize).inner;
  const Size turned = SizesOf({height, width}, *spec_.resize).inner;
  for (const int divisor : {8, 4, 2}) {
    const Size reduced((width + divisor - 1) / divisor, (height + divisor - 1) / divisor);
    if (reduced.height == reduced.width && height != width) continue;
    if (reduced.height >= std::max(flat.height, turned.width) &&
        reduced.width >= std::max(flat.width, turned.height)) {
      return divisor;
    }
  }
  return 1;
}

Preprocessor Preprocessor::InFull() const {
  PreprocessSpec spec = spec_;
  spec.decode = PreprocessSpec::Decode::kFull;
  return Preprocessor(spec);
}

cv::Mat Preprocessor::Resized(const Decoded& picture) const {
  PreprocessBuffers buffers;
  return Resized(picture, &buffers);
}

cv::Mat Preprocessor::Resized(const Decoded& picture, PreprocessBuffers* buffers) const {
  cv::Mat image = picture.bgr;
  if (spec_.color == PreprocessSpec::Color::kGray) {
    cv::cvtColor(picture.bgr, buffers->gray, cv::COLOR_BGR2GRAY);
    image = buffers->gray;
  }
  if (spec_.resize) image = ResizeBy(image, picture.size, spec_, buffers);
  if (spec_.crop) image = CentreCrop(image, *spec_.crop, spec_.crop_centre);
  // Filters work on each channel alone, so the channels are swapped when there are few pixels left.
  if (spec_.color == PreprocessSpec::Color::kRgb) {
    if (image.depth() == CV_32F) {
      SwapFloats(image, &buffers->swapped);
    } else {
      cv::cvtColor(image, buffers->swapped, cv::COLOR_BGR2RGB);
    }
    return buffers->swapped;
  }
  return image;
}

Geometry Preprocessor::GeometryOf(int height, int width) const {
  const Size from(width, height);
  const auto [inner, outer] = spec_.resize ? SizesOf(from, *spec_.resize) : Sizes{from, from};
  Geometry geometry;
  geometry.height = height;
  geometry.width = width;
  geometry.scaled_height = static_cast<int>(inner.height);
  geometry.scaled_width = static_cast<int>(inner.width);
  geometry.top = -static_cast<int>((outer.height - inner.height) / 2);
  geometry.left = -static_cast<int>((outer.width - inner.width) / 2);
  if (spec_.crop) {
    geometry.top +=
        CropStart(static_cast<int>(outer.height), spec_.crop->height, spec_.crop_centre);
    geometry.left += CropStart(static_cast<int>(outer.width), spec_.crop->width, spec_.crop_centre);
  }
  return geometry;
}

TensorInfo Preprocessor::InfoOf(const cv::Mat& resized) const {
  TensorInfo info;
  info.name = spec_.input;
  info.dtype = spec_.dtype;
  const auto shape = ShapeOf(resized, spec_.layout);
  info.shape.assign(shape.begin(), shape.end());
  info.bytes = ByteSize(info.dtype, info.shape).value_or(0);
  return info;
}

bool Preprocessor::Fits(const cv::Mat& resized, const TensorInfo& input) const {
  const auto shape = ShapeOf(resized, spec_.layout);
  return input.dtype == spec_.dtype &&
         std::equal(shape.begin(), shape.end(), input.shape.begin(), input.shape.end());
}

void Preprocessor::ToTensor(const cv::Mat& resized, void* out) const {
  const bool planes = spec_.layout == PreprocessSpec::Layout::kNchw;
  const bool floats = resized.depth() == CV_32F;
  if (spec_.quantization) {
    const bool is_signed = spec_.dtype == DType::kInt8;
    const Quantizer quantizer = {ToNormalisation(spec_), spec_.quantization->scale,
                                 spec_.quantization->zero_point, is_signed ? -128 : 0,
                                 is_signed ? 127 : 255};
    return MatToIntegers(resized, quantizer, planes, static_cast<std::uint8_t*>(out));
  }
  if (!spec_.normalise()) {
    auto* const pixels = static_cast<std::uint8_t*>(out);
    if (floats) return FloatsToBytes(resized, planes, pixels);
    planes ? MatToChw(resized, pixels) : MatToHwc(resized, pixels);
    return;
  }
  const Normalisation normalisation = ToNormalisation(spec_);
  auto* const values = static_cast<float*>(out);
  if (floats) return FloatsToTensor(resized, normalisation, planes, values);
  planes ? MatToChw(resized, normalisation, values) : MatToHwc(resized, normalisation, values);
}

}  // namespace edgepack
