#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace edgepack {

/// preprocess.json: how a photo becomes the model's input. edgepack/preprocess/spec.py is its
/// mirror.
struct PreprocessSpec {
  enum class Color { kRgb, kBgr, kGray };
  enum class Interpolation { kLinear, kNearest, kArea, kCubic, kPilBilinear, kPilBicubic };
  enum class Layout { kNchw, kNhwc };
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
  Color color = Color::kRgb;
  std::optional<Resize> resize;
  Interpolation interpolation = Interpolation::kLinear;
  std::optional<Size> crop;
  Centre crop_centre = Centre::kFloor;
  /// float32 tensors hold (pixel * scale - mean) / std, per channel in the order of `color`.
  /// Otherwise they are uint8 and hold the pixels as they are.
  bool normalise = true;
  double scale = 1;
  std::array<double, 3> mean = {0, 0, 0};
  std::array<double, 3> std = {1, 1, 1};
  Layout layout = Layout::kNchw;
  Accept accept;
  /// Photos with more pixels are refused before they take any memory.
  std::int64_t max_pixels = kMostPixels;

  /// What OpenCV's decoders take at most.
  static constexpr std::int64_t kMostPixels = std::int64_t{1} << 30;

  [[nodiscard]] int channels() const { return color == Color::kGray ? 1 : 3; }
};

/// Where a crop of `crop` <= `size` pixels begins. kTorchvision rounds half of what is over to
/// even, as torchvision and timm do, kFloor down.
[[nodiscard]] int CropStart(int size, int crop, PreprocessSpec::Centre centre);

/// Reads and checks preprocess.json. Throws BundleError.
PreprocessSpec LoadPreprocessSpec(const std::filesystem::path& path);

}  // namespace edgepack
