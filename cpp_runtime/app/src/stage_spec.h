#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include <edgepack/geometry.h>

namespace edgepack {

/// A model that looks at boxes of the first one: at the likeliest `most` of a photo, of `classes`
/// only, if there are any. A box is enlarged on each side by `padding` of its width or height.
struct StageSpec {
  std::string name;
  std::vector<std::size_t> classes;
  double padding = 0;
  std::size_t most = 1;
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
