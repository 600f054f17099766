#include "detections.h"

#include <algorithm>
#include <array>

#include "common/error.h"
#include "common/json.h"

namespace edgepack::sinks {
namespace {

constexpr std::array<std::string_view, 3> kLists = {"boxes", "keypoints", "top"};
constexpr std::size_t kMost = 10000;

/// The box that lists are of, if any.
struct Whose {
  std::int64_t track = 0;
  std::optional<std::array<double, 4>> box;
};

Whose ReadWhose(JsonObject* object) {
  Whose whose;
  if (object->HasValue("track")) whose.track = object->Int("track", 0);
  if (whose.track == 0 || !object->HasValue("box")) return whose;
  const std::vector<double> sides = object->Numbers("box");
  whose.box.emplace();
  if (sides.size() != whose.box->size()) object->Fail("box", "is not four numbers");
  std::copy(sides.begin(), sides.end(), whose.box->begin());
  return whose;
}

/// What the lists of an object name, and, with `answers`, what later models say of boxes, which
/// is of the box, too.
// Once: answers have no answers.
// NOLINTNEXTLINE(misc-no-recursion)
void ReadLists(bool answers, Whose whose, JsonObject* from, std::vector<Detection>* found) {
  for (const std::string_view list : kLists) {
    if (!from->HasValue(list)) continue;
    for (JsonObject& object : from->Objects(list, kMost)) {
      if (answers) whose = ReadWhose(&object);
      if (answers && object.HasValue("answers")) {
        object.ForEachObject("answers", [&](const std::string&, JsonObject answer) {
          ReadLists(false, whose, &answer, found);
        });
      }
      if (!object.HasValue("score")) continue;
      Detection detection;
      detection.track = whose.track;
      detection.box = whose.box;
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
  ReadLists(true, {}, &root, &found);
  return found;
}

}  // namespace edgepack::sinks
