// Input: stages.json, a zero byte, and four numbers of eight bytes: a box. What is read is tried on
// it.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "files.h"
#include "stage_spec.h"

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
      const PixelBox crop = CropOf({box[0], box[1]}, {box[2], box[3]}, spec.padding, 48, 64);
      EDGEPACK_REQUIRE(crop.left >= 0 && crop.width >= 1 && crop.left + crop.width <= 64);
      EDGEPACK_REQUIRE(crop.top >= 0 && crop.height >= 1 && crop.top + crop.height <= 48);
    }
  } catch (const Error& error) {
    RequireRefusal(error);
  }
  return 0;
}
