#include "stage_spec.h"

#include <algorithm>
#include <cmath>

#include "bundle_json.h"
#include "words.h"

namespace edgepack {
namespace {

constexpr std::size_t kMostStages = 8;
constexpr std::int64_t kMostStageBoxes = 1000;
constexpr std::int64_t kMostClass = 1000000;
constexpr double kMostPadding = 10;
constexpr std::size_t kMostLetters = 64;
constexpr double kMostTall = 1000;
constexpr std::int64_t kMostSide = 2048;

/// It becomes part of the names of files.
std::string ReadName(JsonObject* object) {
  std::string name = object->String("name");
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  };
  if (name.empty() || name.size() > kMostLetters || !std::all_of(name.begin(), name.end(), fits)) {
    object->Fail("name", "is not letters, digits, - and _");
  }
  return name;
}

/// Of the stage whose number is `before`.
StageSpec::Turn ReadTurn(std::size_t before, JsonObject* stage) {
  if (before == 0) stage->Fail("turn", "no stage comes before this one");
  JsonObject object = stage->Object("turn");
  StageSpec::Turn turn;
  turn.stage =
      static_cast<std::size_t>(object.Int("stage", 0, static_cast<std::int64_t>(before) - 1));
  turn.index = static_cast<std::size_t>(object.Int("class", 0, kMostClass));
  turn.score = object.Number("score");
  object.Finish();
  return turn;
}

StageSpec ReadStage(std::size_t number, JsonObject* object) {
  StageSpec spec;
  spec.name = ReadName(object);
  for (const std::int64_t index : object->Ints("classes")) {
    if (index < 0 || index > kMostClass) object->Fail("classes", "holds what is no class");
    spec.classes.push_back(static_cast<std::size_t>(index));
  }
  spec.padding = object->Number("padding");
  if (!(spec.padding >= 0 && spec.padding <= kMostPadding)) {
    object->Fail("padding", "is not from 0 to 10");
  }
  spec.most = static_cast<std::size_t>(object->Int("most", 1, kMostStageBoxes));
  using Align = StageSpec::Align;
  spec.align = ReadChoice<Align>(
      "align", {{"box", Align::kBox}, {"corners", Align::kCorners}, {"face", Align::kFace}},
      object);
  if (spec.align == Align::kCorners) {
    spec.tall = object->Number("tall");
    if (!(spec.tall >= 0 && spec.tall <= kMostTall)) object->Fail("tall", "is not from 0 to 1000");
    if (object->HasValue("turn")) {
      spec.turn = ReadTurn(number, object);
    } else {
      object->Skip("turn");
    }
  } else if (spec.align == Align::kFace) {
    spec.side = static_cast<int>(object->Int("side", 1, kMostSide));
  }
  object->Finish();
  return spec;
}

/// From `low` to `high`, within 0 to `size`; what is no number is 0.
void Clip(double low, double high, int size, int* start, int* extent) {
  const double most = size;
  const double first = std::min(std::max(0.0, std::floor(low)), most - 1);
  const double end = std::min(std::max(first + 1, std::ceil(high)), most);
  *start = static_cast<int>(first);
  *extent = static_cast<int>(end - first);
}

}  // namespace

std::vector<StageSpec> LoadStageSpecs(const std::filesystem::path& path) {
  const JsonDocument document = ReadBundleJson(path);
  JsonObject root = document.Root();
  CheckFormat("edgepack-stages", &root);
  std::vector<StageSpec> specs;
  for (JsonObject& object : root.Objects("stages", kMostStages)) {
    specs.push_back(ReadStage(specs.size(), &object));
    const auto same = [&](const StageSpec& spec) { return spec.name == specs.back().name; };
    if (std::count_if(specs.begin(), specs.end(), same) > 1) {
      object.Fail("name", "is that of another stage");
    }
  }
  if (specs.empty()) root.Fail("stages", "is empty");
  root.Finish();
  return specs;
}

PixelBox CropOf(Point low, Point high, double padding, int height, int width) {
  const double across = padding * (high.x - low.x);
  const double down = padding * (high.y - low.y);
  PixelBox crop;
  Clip(low.x - across, high.x + across, width, &crop.left, &crop.width);
  Clip(low.y - down, high.y + down, height, &crop.top, &crop.height);
  return crop;
}

}  // namespace edgepack
