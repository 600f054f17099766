#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include <edgepack/tensor.h>

namespace edgepack {

/// preprocess.json: how a photo becomes the model's input. edgepack/preprocess/spec.py is its
/// mirror.
struct PreprocessSpec {
  enum class Color { kRgb, kBgr, kGray };
  enum class Interpolation {
    kLinear,
    kNearest,
    kArea,
    kCubic,
    kPilBilinear,
    kPilBicubic,
    kTfBilinear
  };
  enum class Layout { kNchw, kNhwc };
  /// kScaled: a JPEG no larger than the resize needs, see Preprocessor::Reduction.
  enum class Decode { kFull, kScaled };
  /// Where a crop from the centre begins if an odd number of pixels is over: see CropStart.
  enum class Centre { kFloor, kTorchvision };

  struct Size {
    int height = 0;
    int width = 0;
  };

  struct Resize {
    /// The shorter side becomes size.height; to size; or as large as fits into size.
    enum class Mode { kShortest, kExact, kLetterbox };
    Mode mode = Mode::kExact;
    Size size;
    int fill = 0;  ///< of a letterbox's border
  };

  /// Kinds of image that are converted, not refused.
  struct Accept {
    bool gray = false;
    bool alpha = false;
    bool sixteen_bit = false;
  };

  std::string input;
  Decode decode = Decode::kFull;
  Color color = Color::kRgb;
  std::optional<Resize> resize;
  Interpolation interpolation = Interpolation::kLinear;
  std::optional<Size> crop;
  Centre crop_centre = Centre::kFloor;
  DType dtype = DType::kFloat32;  ///< or 8-bit integers
  double scale = 1;
  std::array<double, 3> mean = {0, 0, 0};
  std::array<double, 3> std = {1, 1, 1};
  /// Integers are values over `scale`, rounded half to even, plus `zero_point`.
  struct Quantization {
    float scale = 1;
    int zero_point = 0;
  };
  std::optional<Quantization> quantization;
  Layout layout = Layout::kNchw;
  Accept accept;
  /// Photos with more pixels are refused before they take any memory.
  std::int64_t max_pixels = kMostPixels;

  /// What OpenCV's decoders take at most.
  static constexpr std::int64_t kMostPixels = std::int64_t{1} << 30;

  /// Whether values are (pixel * scale - mean) / std, per channel in the order of `color`;
  /// otherwise they are the pixels, without fractions.
  [[nodiscard]] bool normalise() const {
    return dtype == DType::kFloat32 || quantization.has_value();
  }
  [[nodiscard]] int channels() const { return color == Color::kGray ? 1 : 3; }
};

/// Where a crop of `crop` <= `size` pixels begins. kTorchvision rounds half of what is over to
/// even, as torchvision and timm do, kFloor down.
[[nodiscard]] int CropStart(int size, int crop, PreprocessSpec::Centre centre);

/// Reads and checks preprocess.json. Throws BundleError.
PreprocessSpec LoadPreprocessSpec(const std::filesystem::path& path);

}  // namespace edgepack
