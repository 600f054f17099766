#include "trial_compare.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "common/json.h"
#include "error.h"

namespace edgepack::device {
namespace {

constexpr double kMinIou = 0.5;
// More than any postprocessing gives.
constexpr std::size_t kMostBoxes = 2000;

/// A class with its score, and where it is.
struct FoundClass {
  std::string label;  // empty: it has none
  std::int64_t index = 0;
  double score = 0;
  std::array<double, 4> box = {};
};

struct FoundAll {
  std::optional<std::vector<FoundClass>> top;
  std::optional<std::vector<FoundClass>> boxes;
  std::optional<std::string> text;
};

FoundClass ReadClass(JsonObject* object) {
  FoundClass found;
  found.index = object->Int("index");
  if (object->HasValue("label")) found.label = object->String("label");
  found.score = object->OptionalNumber("score").value_or(0);
  if (object->Has("box")) {
    const std::vector<double> corners = object->Numbers("box");
    if (corners.size() != found.box.size()) object->Fail("box", "is not four numbers");
    std::copy(corners.begin(), corners.end(), found.box.begin());
  }
  return found;
}

std::optional<std::vector<FoundClass>> ReadClasses(JsonObject* root, const char* key) {
  if (!root->HasValue(key)) return std::nullopt;
  std::vector<FoundClass> all;
  for (JsonObject& object : root->Objects(key, kMostBoxes)) all.push_back(ReadClass(&object));
  return all;
}

/// Throws Error for what is no answer.
FoundAll ReadAnswer(const std::string& line) {
  const JsonDocument document(line, "edgepack-run's answer", "no-answer");
  JsonObject root = document.Root();
  if (root.Has("error")) root.Fail("error", "says that there is no answer");
  FoundAll found;
  found.top = ReadClasses(&root, "top");
  found.boxes = ReadClasses(&root, "boxes");
  if (root.HasValue("text")) {
    found.text.emplace();
    for (JsonObject& object : root.Objects("text")) *found.text += object.String("text");
  }
  return found;
}

/// By name, for releases may number their classes otherwise.
bool SameClass(const FoundClass& a, const FoundClass& b) {
  return a.label.empty() || b.label.empty() ? a.index == b.index : a.label == b.label;
}

double Area(const std::array<double, 4>& box) {
  return std::max(0.0, box[2] - box[0]) * std::max(0.0, box[3] - box[1]);
}

double Iou(const std::array<double, 4>& a, const std::array<double, 4>& b) {
  const double both = Area(
      {std::max(a[0], b[0]), std::max(a[1], b[1]), std::min(a[2], b[2]), std::min(a[3], b[3])});
  const double any = Area(a) + Area(b) - both;
  return any > 0 ? both / any : 0;
}

Compared CompareBoxes(const std::vector<FoundClass>& current,
                      const std::vector<FoundClass>& candidate) {
  if (current.empty() && candidate.empty()) return {1, std::nullopt};
  std::vector<bool> used(candidate.size());
  std::size_t matched = 0;
  Compared compared;
  for (const FoundClass& one : current) {  // best scores first
    std::optional<std::size_t> best;
    double best_iou = kMinIou;
    for (std::size_t i = 0; i < candidate.size(); ++i) {
      if (used[i] || !SameClass(one, candidate[i])) continue;
      const double iou = Iou(one.box, candidate[i].box);
      if (iou < best_iou) continue;
      best_iou = iou;
      best = i;
    }
    if (!best) continue;
    used[*best] = true;
    ++matched;
    const double difference = std::abs(one.score - candidate[*best].score);
    compared.difference = std::max(compared.difference.value_or(0), difference);
  }
  compared.agreement =
      2 * static_cast<double>(matched) / static_cast<double>(current.size() + candidate.size());
  return compared;
}

Compared CompareClasses(const std::vector<FoundClass>& current,
                        const std::vector<FoundClass>& candidate) {
  if (candidate.empty()) return {};
  Compared compared;
  compared.agreement = SameClass(current.front(), candidate.front()) ? 1 : 0;
  for (const FoundClass& one : candidate) {
    if (!SameClass(current.front(), one)) continue;
    compared.difference = std::abs(current.front().score - one.score);
    break;
  }
  return compared;
}

}  // namespace

std::optional<Compared> CompareAnswers(const std::string& current, const std::string& candidate) {
  FoundAll ours;
  try {
    ours = ReadAnswer(current);
  } catch (const Error&) {
    return std::nullopt;
  }
  if (!ours.boxes && (!ours.top || ours.top->empty()) && !ours.text) return std::nullopt;
  try {
    const FoundAll theirs = ReadAnswer(candidate);
    if (ours.boxes) return theirs.boxes ? CompareBoxes(*ours.boxes, *theirs.boxes) : Compared();
    if (ours.text) return Compared{theirs.text == ours.text ? 1.0 : 0.0, std::nullopt};
    return theirs.top ? CompareClasses(*ours.top, *theirs.top) : Compared();
  } catch (const Error&) {
    return Compared();  // no answer is another answer
  }
}

}  // namespace edgepack::device
