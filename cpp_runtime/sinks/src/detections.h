#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace edgepack::sinks {

/// Something that a line of results names.
struct Detection {
  std::string label;
  double score = 0;
  std::int64_t track = 0;                    ///< of its box, if boxes are tracked
  std::optional<std::array<double, 4>> box;  ///< left, top, right, bottom
};

/// What a line of edgepack-run names: its boxes, points and classes, and what later models say of
/// its boxes. Of what has no label the number is one. Throws Error if the line is no JSON object.
std::vector<Detection> ReadDetections(std::string_view line);

}  // namespace edgepack::sinks
