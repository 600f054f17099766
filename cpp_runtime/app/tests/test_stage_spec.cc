#include <doctest/doctest.h>
#include <edgepack/errors.h>

#include "stage_spec.h"
#include "support.h"

namespace edgepack::testing {
namespace {

const char* const kStages = R"({
  "format": "edgepack-stages", "version": 1, "stages": [
    {"name": "breed", "classes": [15, 16], "padding": 0.25, "most": 4, "align": "box"},
    {"name": "colour", "classes": [], "padding": 0, "most": 1, "align": "face", "side": 112},
    {"name": "text", "classes": [], "padding": 0, "most": 1, "align": "corners", "tall": 1.5,
     "turn": {"stage": 1, "class": 7, "score": 0.9}},
    {"name": "plate", "classes": [], "padding": 0, "most": 1, "align": "corners", "tall": 0,
     "turn": null}]})";

std::vector<StageSpec> LoadStages(const std::string& text) {
  const TempFolder folder;
  WriteFile(folder / "stages.json", text);
  return LoadStageSpecs(folder / "stages.json");
}

std::string StagesError(std::string_view from, std::string_view to) {
  return MessageOf([&] { LoadStages(Replace(kStages, from, to)); });
}

bool Is(const PixelBox& box, int left, int top, int width, int height) {
  return box.left == left && box.top == top && box.width == width && box.height == height;
}

}  // namespace

TEST_CASE("stages.json is read") {
  const std::vector<StageSpec> specs = LoadStages(kStages);
  REQUIRE(specs.size() == 4);
  CHECK(specs[0].name == "breed");
  CHECK(specs[0].classes == std::vector<std::size_t>{15, 16});
  CHECK(specs[0].padding == 0.25);
  CHECK(specs[0].most == 4);
  CHECK(specs[0].align == StageSpec::Align::kBox);
  CHECK(specs[1].classes.empty());
  CHECK(specs[1].align == StageSpec::Align::kFace);
  CHECK(specs[1].side == 112);
  CHECK(specs[2].align == StageSpec::Align::kCorners);
  CHECK(specs[2].tall == 1.5);
  REQUIRE(specs[2].turn.has_value());
  CHECK(specs[2].turn->stage == 1);
  CHECK(specs[2].turn->index == 7);
  CHECK(specs[2].turn->score == 0.9);
  CHECK(!specs[3].turn.has_value());
}

TEST_CASE("stages that cannot be are refused") {
  CHECK(Contains(StagesError("\"version\": 1", "\"version\": 2"), "version"));
  CHECK(Contains(StagesError("\"breed\"", "\"../breed\""), "stages[0].name"));
  CHECK(Contains(StagesError("\"breed\"", "\"\""), "stages[0].name"));
  CHECK(Contains(StagesError("\"breed\"", "\"colour\""), "stages[1].name: is that of another"));
  CHECK(Contains(StagesError("[15, 16]", "[-1]"), "stages[0].classes"));
  CHECK(Contains(StagesError("0.25", "-0.25"), "stages[0].padding"));
  CHECK(Contains(StagesError("0.25", "11"), "stages[0].padding"));
  CHECK(Contains(StagesError("\"most\": 4", "\"most\": 0"), "stages[0].most"));
  CHECK(Contains(StagesError("\"most\": 4", "\"most\": 4, \"least\": 1"), "stages[0].least"));
  CHECK(Contains(StagesError("\"box\"", "\"circle\""), "stages[0].align"));
  CHECK(Contains(StagesError("\"box\"", "\"face\""), "stages[0].side"));
  CHECK(Contains(StagesError("112", "0"), "stages[1].side"));
  CHECK(Contains(StagesError("112", "2049"), "stages[1].side"));
  CHECK(Contains(StagesError("\"tall\": 1.5", "\"tall\": -1"), "stages[2].tall"));
  // No stage that comes later, nor itself.
  CHECK(Contains(StagesError("\"stage\": 1", "\"stage\": 2"), "stages[2].turn.stage"));
  CHECK(Contains(StagesError("\"stage\": 1", "\"stage\": -1"), "stages[2].turn.stage"));
  CHECK(Contains(StagesError("\"class\": 7", "\"class\": -7"), "stages[2].turn.class"));
  CHECK(Contains(StagesError("\"score\": 0.9", "\"score\": 0.9, \"x\": 1"), "turn.x"));
  const char* const none = R"({"format": "edgepack-stages", "version": 1, "stages": []})";
  CHECK(Contains(MessageOf([&] { LoadStages(none); }), "stages: is empty"));
}

TEST_CASE("a crop has all pixels that the box touches, and no others") {
  CHECK(Is(CropOf({1, 2}, {3, 5}, 0, 10, 10), 1, 2, 2, 3));
  CHECK(Is(CropOf({1.5, 2.5}, {2.5, 3.5}, 0, 10, 10), 1, 2, 2, 2));
  // A quarter of the sides more on each side.
  CHECK(Is(CropOf({4, 4}, {8, 6}, 0.25, 10, 20), 3, 3, 6, 4));
  // Within the photo.
  CHECK(Is(CropOf({0, 0}, {20, 10}, 10, 10, 20), 0, 0, 20, 10));
  CHECK(Is(CropOf({-5, 1}, {25, 2}, 0, 10, 20), 0, 1, 20, 1));
  // Never empty: a box on the edge, one without a side, one beside the photo.
  CHECK(Is(CropOf({20, 10}, {20, 10}, 0, 10, 20), 19, 9, 1, 1));
  CHECK(Is(CropOf({3, 3}, {3, 3}, 0, 10, 20), 3, 3, 1, 1));
  CHECK(Is(CropOf({1e300, -1e300}, {1e301, -1e299}, 0, 10, 20), 19, 0, 1, 1));
}

}  // namespace edgepack::testing
