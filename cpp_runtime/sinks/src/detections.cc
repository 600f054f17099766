#include "detections.h"

#include <charconv>
#include <utility>

namespace edgepack::sinks {
namespace {

constexpr std::array<std::string_view, 3> kLists = {"boxes", "keypoints", "top"};
constexpr std::size_t kMost = 10000;
/// Of a line that names more than this, the memory goes.
constexpr std::size_t kMostSpare = 1000;

/// The name, or the number. False if it is something else.
bool ReadLabel(const JsonValue& object, std::string* label) {
  if (const JsonValue word = object["label"]) {
    const std::optional<std::string_view> text = word.String();
    if (text) label->assign(*text);
    return text.has_value();
  }
  label->clear();
  const JsonValue number = object["index"];
  if (!number) return true;
  const std::optional<std::int64_t> index = number.Int();
  if (!index) return false;
  std::array<char, 24> digits = {};
  label->assign(digits.data(),
                std::to_chars(digits.data(), digits.data() + digits.size(), *index).ptr);
  return true;
}

}  // namespace

std::optional<DetectionReader::Whose> DetectionReader::ReadWhose(const JsonValue& object) {
  Whose whose;
  if (const JsonValue track = object["track"]) {
    const std::optional<std::int64_t> number = track.Int();
    if (!number || *number < 0) return std::nullopt;
    whose.track = *number;
  }
  const JsonValue box = object["box"];
  if (whose.track == 0 || !box) return whose;
  std::array<double, 4> sides = {};
  if (!box.IsList() || box.size() != sides.size()) return std::nullopt;
  bool numbers = true;
  std::size_t next = 0;
  box.ForEach([&](const JsonValue& side) {
    const std::optional<double> number = side.Number();
    numbers = numbers && number;
    sides[next++] = number.value_or(0);
  });
  if (!numbers) return std::nullopt;
  whose.box = sides;
  return whose;
}

Detection* DetectionReader::Add() {
  if (spare_.empty()) return &found_.emplace_back();
  found_.push_back(std::move(spare_.back()));
  spare_.pop_back();
  return &found_.back();
}

/// Something of a list, which is of the box `whole`. False if it is none of edgepack-run's.
// Once: answers have no answers.
// NOLINTNEXTLINE(misc-no-recursion)
bool DetectionReader::ReadObject(bool answers, const Whose& whole, const JsonValue& object) {
  if (!object.IsObject()) return false;
  const std::optional<Whose> whose = answers ? ReadWhose(object) : whole;
  if (!whose) return false;
  if (const JsonValue said = object["answers"]; answers && said) {
    bool fine = said.IsObject();
    said.ForEach([&](const JsonValue& answer) {
      fine = fine && answer.IsObject() && ReadLists(false, *whose, answer);
    });
    if (!fine) return false;
  }
  const JsonValue score = object["score"];
  if (!score) return true;
  if (!score.Number()) return false;
  Detection& detection = *Add();
  detection.score = *score.Number();
  detection.track = whose->track;
  detection.box = whose->box;
  return ReadLabel(object, &detection.label);
}

/// What the lists of an object name, and, with `answers`, what later models say of boxes, which is
/// of the box, too.
// NOLINTNEXTLINE(misc-no-recursion)
bool DetectionReader::ReadLists(bool answers, const Whose& whole, const JsonValue& from) {
  for (const std::string_view name : kLists) {
    const JsonValue list = from[name];
    if (!list) continue;
    if (!list.IsList() || list.size() > kMost) return false;
    bool fine = true;
    list.ForEach(
        [&](const JsonValue& object) { fine = fine && ReadObject(answers, whole, object); });
    if (!fine) return false;
  }
  return true;
}

const std::vector<Detection>* DetectionReader::Read(std::string_view line) {
  while (!found_.empty()) {
    if (spare_.size() < kMostSpare) spare_.push_back(std::move(found_.back()));
    found_.pop_back();
  }
  if (found_.capacity() > kMostSpare) std::vector<Detection>().swap(found_);
  const JsonValue root = reader_.Read(line);
  return root.IsObject() && ReadLists(true, {}, root) ? &found_ : nullptr;
}

}  // namespace edgepack::sinks
