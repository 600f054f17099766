// Input: stages.json, a zero byte, and four numbers of eight bytes: a box. What is read is tried on
// it, upright and straightened by its corners.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include <edgepack/errors.h>

#include "files.h"
#include "stage_spec.h"
#include "warp.h"

namespace edgepack {
namespace {

/// Cuts the box out of a photo of one colour by its corners, or by points of which five are made.
void Straighten(const StageSpec& spec, const std::array<double, 4>& box) {
  std::vector<Point> points = {
      {box[0], box[1]}, {box[2], box[1]}, {box[2], box[3]}, {box[0], box[3]}};
  const bool is_face = spec.align == StageSpec::Align::kFace;
  if (is_face) points.push_back({box[1], box[2]});
  const std::vector<std::uint8_t> photo(static_cast<std::size_t>(48 * 64 * 3), 7);
  std::vector<std::uint8_t> pixels;
  try {
    const Warp warp = is_face
                          ? WarpByFace(points, spec.side, spec.padding)
                          : WarpByCorners(points, spec.padding, spec.tall, spec.turn.has_value());
    warp.Write(photo.data(), 48, 64, static_cast<std::size_t>(64 * 3), &pixels);
  } catch (const ImageError&) {  // by such points nothing is cut
  }
  EDGEPACK_REQUIRE(std::all_of(pixels.begin(), pixels.end(), [](int one) { return one == 7; }));
}

}  // namespace
}  // namespace edgepack

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace edgepack;
  static const MemoryFile file;
  const std::string_view input = Text(data, size);
  const std::size_t end = std::min(input.find('\0'), input.size());
  const std::string_view rest = input.substr(std::min(end + 1, input.size()));
  std::array<double, 4> box = {1, 2, 30, 40};
  std::memcpy(box.data(), rest.data(), std::min(rest.size(), sizeof(box)));
  file.Write(input.substr(0, end));
  try {
    for (const StageSpec& spec : LoadStageSpecs(file.path())) {
      EDGEPACK_REQUIRE(!spec.name.empty() && spec.name.find('/') == std::string::npos);
      EDGEPACK_REQUIRE(spec.most >= 1 && spec.padding >= 0);
      if (!std::all_of(box.begin(), box.end(), [](double side) { return std::isfinite(side); })) {
        continue;
      }
      Straighten(spec, box);
      const PixelBox crop = CropOf({box[0], box[1]}, {box[2], box[3]}, spec.padding, 48, 64);
      EDGEPACK_REQUIRE(crop.left >= 0 && crop.width >= 1 && crop.left + crop.width <= 64);
      EDGEPACK_REQUIRE(crop.top >= 0 && crop.height >= 1 && crop.top + crop.height <= 48);
    }
  } catch (const Error& error) {
    RequireRefusal(error);
  }
  return 0;
}
