#include "detections.h"

#include <array>

#include "common/error.h"
#include "common/json.h"

namespace edgepack::sinks {
namespace {

constexpr std::array<std::string_view, 3> kLists = {"boxes", "keypoints", "top"};
constexpr std::size_t kMost = 10000;

/// What the lists of an object name, and, with `answers`, what later models say of boxes, which
/// is of the box's `track`.
// Once: answers have no answers.
// NOLINTNEXTLINE(misc-no-recursion)
void ReadLists(bool answers, std::int64_t track, JsonObject* from, std::vector<Detection>* found) {
  for (const std::string_view list : kLists) {
    if (!from->HasValue(list)) continue;
    for (JsonObject& object : from->Objects(list, kMost)) {
      if (answers) track = object.HasValue("track") ? object.Int("track", 0) : 0;
      if (answers && object.HasValue("answers")) {
        object.ForEachObject("answers", [&](const std::string&, JsonObject answer) {
          ReadLists(false, track, &answer, found);
        });
      }
      if (!object.HasValue("score")) continue;
      Detection detection;
      detection.track = track;
      detection.score = object.Number("score");
      if (object.HasValue("label")) {
        detection.label = object.String("label");
      } else if (object.HasValue("index")) {
        detection.label = std::to_string(object.Int("index"));
      }
      found->push_back(std::move(detection));
    }
  }
}

}  // namespace

std::vector<Detection> ReadDetections(std::string_view line) {
  const JsonDocument document(line, "line", "line");
  JsonObject root = document.Root();
  std::vector<Detection> found;
  ReadLists(true, 0, &root, &found);
  return found;
}

}  // namespace edgepack::sinks
