#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <edgepack/geometry.h>

namespace edgepack {

/// A model that looks at boxes of the first one: at the likeliest `most` of a photo, of `classes`
/// only, if there are any. A box is enlarged on each side by `padding` of its width or height.
struct StageSpec {
  /// How a crop is cut: upright, or straightened by the four corners or the five points of a face
  /// that a box has.
  enum class Align { kBox, kCorners, kFace };

  /// A crop is turned upside down if stage number `stage`, before this one, says class `index` of
  /// its box with at least `score`.
  struct Turn {
    std::size_t stage = 0;
    std::size_t index = 0;
    double score = 0;
  };

  std::string name;
  std::vector<std::size_t> classes;
  double padding = 0;
  std::size_t most = 1;
  Align align = Align::kBox;
  double tall = 0;  ///< of `corners`: see WarpByCorners
  int side = 0;     ///< of `face`: in pixels
  std::optional<Turn> turn;
};

/// Whole pixels of a photo.
struct PixelBox {
  int left = 0;
  int top = 0;
  int width = 0;
  int height = 0;
};

/// Reads and checks stages.json. Throws BundleError.
std::vector<StageSpec> LoadStageSpecs(const std::filesystem::path& path);

/// The pixels of a photo of `height` x `width` that a box from `low` to `high` touches once it is
/// enlarged: at least one. The corners are finite. edgepack/flow/stages.py is its mirror.
PixelBox CropOf(Point low, Point high, double padding, int height, int width);

}  // namespace edgepack
