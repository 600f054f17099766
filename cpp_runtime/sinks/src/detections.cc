#include "detections.h"

#include <array>

#include "common/error.h"
#include "common/json.h"

namespace edgepack::sinks {
namespace {

constexpr std::array<std::string_view, 3> kLists = {"boxes", "keypoints", "top"};
constexpr std::size_t kMost = 10000;

}  // namespace

std::vector<Detection> ReadDetections(std::string_view line) {
  const JsonDocument document(line, "line", "line");
  JsonObject root = document.Root();
  std::vector<Detection> found;
  for (const std::string_view list : kLists) {
    if (!root.HasValue(list)) continue;
    for (JsonObject& object : root.Objects(list, kMost)) {
      if (!object.HasValue("score")) continue;
      Detection detection;
      detection.score = object.Number("score");
      if (object.HasValue("label")) {
        detection.label = object.String("label");
      } else if (object.HasValue("index")) {
        detection.label = std::to_string(object.Int("index"));
      }
      found.push_back(std::move(detection));
    }
  }
  return found;
}

}  // namespace edgepack::sinks
