#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <edgepack/geometry.h>
#include <edgepack/preprocess_spec.h>
#include <edgepack/tensor.h>

namespace cv {
class Mat;
}  // namespace cv

namespace edgepack {

struct Decoded;  // platform/opencv/decode.h
struct PreprocessBuffers;

/// From a photo to the model's input, by a PreprocessSpec: decode, colour, resize, crop, tensor.
///
/// A frame of a camera can enter at Resized. Throws ImageError for images the spec refuses.
class Preprocessor {
 public:
  explicit Preprocessor(PreprocessSpec spec) : spec_(std::move(spec)) {}

  [[nodiscard]] const PreprocessSpec& spec() const { return spec_; }

  /// The image of a JPEG or PNG file as 8-bit BGR (CV_8UC3), EXIF orientation applied.
  [[nodiscard]] Decoded Decode(const std::filesystem::path& path) const;

  /// The same of a file's bytes; `name` is for messages.
  /// It is written to `memory`, if that is given and has the size.
  [[nodiscard]] Decoded Decode(std::string_view bytes, const std::string& name,
                               cv::Mat* memory = nullptr) const;

  /// By what a JPEG of `height` x `width` pixels is divided as it is decoded: 1, 2, 4 or 8. The
  /// most with which, turned or not, it is no smaller than what it will be resized to; and with
  /// which its sides stay different if they are, for they tell then how EXIF data turned it.
  [[nodiscard]] int Reduction(int height, int width) const;

  /// This one with all pixels of photos, to be looked at.
  [[nodiscard]] Preprocessor InFull() const;

  /// A picture resized and cropped: CV_8UC3 with channels in the order of the spec's colour, or
  /// CV_8UC1 for gray.
  [[nodiscard]] cv::Mat Resized(const Decoded& picture) const;
  /// The same in memory that is kept (src/platform/opencv/preprocess_buffers.h), until the next: of
  /// images of one size, only the first takes memory.
  [[nodiscard]] cv::Mat Resized(const Decoded& picture, PreprocessBuffers* buffers) const;

  /// How a photo of `height` x `width` pixels, turned by its EXIF data, lies in its tensor.
  [[nodiscard]] Geometry GeometryOf(int height, int width) const;

  /// Shape and dtype of the tensor that ToTensor makes of `resized`: (1, C, H, W) or (1, H, W, C).
  [[nodiscard]] TensorInfo InfoOf(const cv::Mat& resized) const;

  /// Whether that is dtype and shape of `input`.
  [[nodiscard]] bool Fits(const cv::Mat& resized, const TensorInfo& input) const;

  /// Writes the tensor of an image that Resized made; `out` has InfoOf(resized).bytes bytes.
  void ToTensor(const cv::Mat& resized, void* out) const;

 private:
  PreprocessSpec spec_;
};

}  // namespace edgepack
