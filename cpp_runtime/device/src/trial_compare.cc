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
// How far a key point may be from the other release's, as a part of the diagonal of what it is of.
constexpr double kNear = 0.1;
constexpr double kNearPixels = 2;
// More than any postprocessing gives.
constexpr std::size_t kMostBoxes = 2000;
constexpr std::int64_t kMostPixels = std::int64_t{1} << 40U;

struct FoundAll;
using Point = std::array<double, 2>;
/// Where each run of pixels begins and ends, in order.
using Runs = std::vector<std::pair<std::int64_t, std::int64_t>>;

/// A class with its score, and where it is: what of that there is.
struct FoundClass {
  std::string label;  // empty: it has none
  std::int64_t index = 0;
  double score = 0;
  std::array<double, 4> box = {};
  std::vector<Point> points;
  Runs pixels;
  /// What the last of the models in a row says of a box, if any does.
  std::string stage;
  std::vector<FoundAll> answer;
};

using FoundClasses = std::vector<FoundClass>;

enum class Kind { kNone, kBoxes, kKeypoints, kAreas, kText, kTop, kTensors };

/// What an answer is compared by: the first of these kinds that it has.
struct FoundAll {
  Kind kind = Kind::kNone;
  FoundClasses classes;
  std::string text;
  std::vector<std::pair<std::string, std::vector<double>>> tensors;
};

FoundAll ReadFound(JsonObject* root, bool nested);

template <std::size_t N>
std::array<double, N> ReadNumbers(JsonObject* object, const char* key) {
  const std::vector<double> numbers = object->Numbers(key);
  if (numbers.size() != N) object->Fail(key, "is not " + std::to_string(N) + " numbers");
  std::array<double, N> values = {};
  std::copy(numbers.begin(), numbers.end(), values.begin());
  return values;
}

/// Adds a run; false if it cannot be one.
bool AddRun(std::int64_t begin, std::int64_t length, Runs* runs) {
  const std::int64_t end = runs->empty() ? 0 : runs->back().second;
  if (begin < end || begin > kMostPixels || length < 0 || length > kMostPixels) return false;
  runs->emplace_back(begin, begin + length);
  return true;
}

/// Of a mask in COCO's compressed form: lengths of runs off and on, each as its difference from the
/// one before the last, in groups of 5 bits (maskApi.c, rleFrString).
std::optional<Runs> ReadCounts(const std::string& text) {
  constexpr unsigned kMostBits = 55;
  Runs runs;
  std::array<std::int64_t, 3> last = {};  // the newest, and two before
  std::int64_t at = 0;
  std::size_t number = 0;
  for (std::size_t i = 0; i < text.size(); ++number) {
    std::int64_t value = 0;
    unsigned bits = 0;
    unsigned group = 0;
    do {
      if (i == text.size() || bits > kMostBits) return std::nullopt;
      group = static_cast<unsigned char>(text[i++]) - 48U;
      if (group > 0x3fU) return std::nullopt;
      value |= static_cast<std::int64_t>(group & 0x1fU) << bits;
      bits += 5;
    } while ((group & 0x20U) != 0);
    if ((group & 0x10U) != 0) value -= std::int64_t{1} << bits;
    if (number > 2) value += last[1];
    if (value < 0 || value > kMostPixels) return std::nullopt;
    if (number % 2 == 1 && !AddRun(at, value, &runs)) return std::nullopt;
    at += value;
    last = {value, last[0], last[1]};
  }
  return runs;
}

FoundClass ReadClass(JsonObject* object, bool nested) {
  FoundClass found;
  found.index = object->Int("index");
  if (object->HasValue("label")) found.label = object->String("label");
  // A NaN is written as null: an answer with one is none.
  if (object->Has("score")) found.score = object->Number("score");
  if (object->Has("box")) found.box = ReadNumbers<4>(object, "box");
  if (object->Has("point")) found.points.push_back(ReadNumbers<2>(object, "point"));
  if (object->Has("points")) {
    Point point = {};
    std::size_t count = 0;
    object->ForEachNumber("points", 2, [&](const JsonNumber& number) {
      point.at(count++ % 2) = number.real;
      if (count % 2 == 0) found.points.push_back(point);
    });
  }
  if (object->Has("runs")) {
    const std::vector<std::int64_t> runs = object->Ints("runs");
    for (std::size_t i = 0; i + 1 < runs.size(); i += 2) {
      if (!AddRun(runs[i], runs[i + 1], &found.pixels)) object->Fail("runs", "are no runs");
    }
  }
  if (object->Has("mask")) {
    std::optional<Runs> pixels = ReadCounts(object->Object("mask").String("counts"));
    if (!pixels) object->Fail("mask", "is no mask");
    found.pixels = std::move(*pixels);
  }
  // One model's answers have no such answers of others: a candidate cannot nest without end.
  if (object->Has("answers") && !nested) {
    object->ForEachObject("answers", [&](const std::string& key, JsonObject answer) {
      found.stage = key;
      found.answer.clear();
      if (!answer.Has("error")) found.answer.push_back(ReadFound(&answer, true));
    });
  }
  return found;
}

FoundAll ReadFound(JsonObject* root, bool nested) {
  FoundAll found;
  const auto is_next = [&](Kind kind, const char* key) {
    if (found.kind != Kind::kNone || !root->HasValue(key)) return false;
    found.kind = kind;
    return true;
  };
  const auto read = [&](Kind kind, const char* key) {
    if (!is_next(kind, key)) return;
    for (JsonObject& object : root->Objects(key, kMostBoxes)) {
      found.classes.push_back(ReadClass(&object, nested));
    }
  };
  read(Kind::kBoxes, "boxes");
  read(Kind::kKeypoints, "keypoints");
  read(Kind::kAreas, "areas");
  if (is_next(Kind::kText, "text")) {
    for (JsonObject& object : root->Objects("text")) found.text += object.String("text");
  }
  read(Kind::kTop, "top");
  if (found.kind == Kind::kTop && found.classes.empty()) found.kind = Kind::kNone;
  if (is_next(Kind::kTensors, "tensors")) {
    for (JsonObject& object : root->Objects("tensors", kMostBoxes)) {
      found.tensors.emplace_back(object.String("name"), object.Numbers("values"));
    }
  }
  return found;
}

/// Throws Error for what is no answer.
FoundAll ReadAnswer(const std::string& line) {
  const JsonDocument document(line, "edgepack-run's answer", "no-answer");
  JsonObject root = document.Root();
  if (root.Has("error")) root.Fail("error", "says that there is no answer");
  return ReadFound(&root, false);
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

double Count(const Runs& runs) {
  double pixels = 0;
  for (const auto& [begin, end] : runs) pixels += static_cast<double>(end - begin);
  return pixels;
}

/// How many pixels both have.
double Overlap(const Runs& a, const Runs& b) {
  double pixels = 0;
  for (auto i = a.begin(), j = b.begin(); i != a.end() && j != b.end();) {
    const std::int64_t begin = std::max(i->first, j->first);
    const std::int64_t end = std::min(i->second, j->second);
    if (begin < end) pixels += static_cast<double>(end - begin);
    i->second < j->second ? ++i : ++j;
  }
  return pixels;
}

double Distance(double x, double y) { return std::sqrt(x * x + y * y); }

bool IsNear(const Point& a, const Point& b, double diagonal) {
  return Distance(a[0] - b[0], a[1] - b[1]) <= std::max(kNear * diagonal, kNearPixels);
}

/// The share of a thing that two lists have: F1, or of pixels Dice's coefficient.
double Share(double both, double ours, double theirs) {
  return ours + theirs > 0 ? 2 * both / (ours + theirs) : 1;
}

void AddDifference(double a, double b, Compared* compared) {
  compared->difference = std::max(compared->difference.value_or(0), std::abs(a - b));
}

std::optional<Compared> CompareFound(const FoundAll& ours, const FoundAll& theirs,
                                     double tolerance);

/// How far what else is said of two boxes at one place agrees: key points, masks, the last model's
/// answers.
double AgreementWithin(const FoundClass& ours, const FoundClass& theirs, double tolerance) {
  double agreement = 1;
  if (!ours.points.empty()) {
    const double diagonal = Distance(ours.box[2] - ours.box[0], ours.box[3] - ours.box[1]);
    std::size_t near = 0;
    for (std::size_t i = 0; i < std::min(ours.points.size(), theirs.points.size()); ++i) {
      if (IsNear(ours.points[i], theirs.points[i], diagonal)) ++near;
    }
    const std::size_t most = std::max(ours.points.size(), theirs.points.size());
    agreement *= static_cast<double>(near) / static_cast<double>(most);
  }
  if (!ours.pixels.empty()) {
    const double both = Overlap(ours.pixels, theirs.pixels);
    const double any = Count(ours.pixels) + Count(theirs.pixels) - both;
    if (both < kMinIou * any) agreement = 0;
  }
  if (!ours.answer.empty()) {
    if (theirs.stage != ours.stage || theirs.answer.empty()) return 0;
    const std::optional<Compared> answers =
        CompareFound(ours.answer.front(), theirs.answer.front(), tolerance);
    if (answers) agreement *= answers->agreement;
  }
  return agreement;
}

Compared CompareBoxes(const FoundClasses& current, const FoundClasses& candidate,
                      double tolerance) {
  std::vector<bool> used(candidate.size());
  double matched = 0;
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
    matched += AgreementWithin(one, candidate[*best], tolerance);
    AddDifference(one.score, candidate[*best].score, &compared);
  }
  compared.agreement =
      Share(matched, static_cast<double>(current.size()), static_cast<double>(candidate.size()));
  return compared;
}

/// The first of that class that is not used yet; it is then.
const FoundClass* TakeSame(const FoundClass& one, const FoundClasses& others,
                           std::vector<bool>* used) {
  for (std::size_t i = 0; i < others.size(); ++i) {
    if ((*used)[i] || !SameClass(one, others[i])) continue;
    (*used)[i] = true;
    return &others[i];
  }
  return nullptr;
}

Compared CompareKeypoints(const FoundClasses& current, const FoundClasses& candidate) {
  const auto points = [](const FoundClasses& all) {
    double count = 0;
    for (const FoundClass& one : all) count += static_cast<double>(one.points.size());
    return count;
  };
  std::array<double, 4> around = {HUGE_VAL, HUGE_VAL, -HUGE_VAL, -HUGE_VAL};
  for (const FoundClass& one : current) {
    for (const auto& [x, y] : one.points) {
      around = {std::min(around[0], x), std::min(around[1], y), std::max(around[2], x),
                std::max(around[3], y)};
    }
  }
  const double diagonal = Distance(around[2] - around[0], around[3] - around[1]);
  std::vector<bool> used(candidate.size());
  double matched = 0;
  Compared compared;
  for (const FoundClass& one : current) {
    const FoundClass* const other = TakeSame(one, candidate, &used);
    if (other == nullptr || one.points.empty() || other->points.empty()) continue;
    if (IsNear(one.points.front(), other->points.front(), diagonal)) ++matched;
    AddDifference(one.score, other->score, &compared);
  }
  compared.agreement = Share(matched, points(current), points(candidate));
  return compared;
}

Compared CompareAreas(const FoundClasses& current, const FoundClasses& candidate) {
  std::vector<bool> used(candidate.size());
  double both = 0;
  double ours = 0;
  double theirs = 0;
  for (const FoundClass& one : current) {
    ours += Count(one.pixels);
    if (const FoundClass* const other = TakeSame(one, candidate, &used)) {
      both += Overlap(one.pixels, other->pixels);
    }
  }
  for (const FoundClass& one : candidate) theirs += Count(one.pixels);
  return {Share(both, ours, theirs), std::nullopt};
}

Compared CompareTensors(const FoundAll& current, const FoundAll& candidate, double tolerance) {
  Compared compared;
  double matched = 0;
  for (const auto& ours : current.tensors) {
    const std::vector<double>& values = ours.second;
    const auto same = std::find_if(candidate.tensors.begin(), candidate.tensors.end(),
                                   [&](const auto& one) { return one.first == ours.first; });
    if (same == candidate.tensors.end() || same->second.size() != values.size()) continue;
    double largest = 0;
    double error = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::abs(values[i]));
      error = std::max(error, std::abs(values[i] - same->second[i]));
    }
    if (error <= tolerance * largest) ++matched;
    compared.difference = std::max(compared.difference.value_or(0), error);
  }
  compared.agreement = matched / static_cast<double>(current.tensors.size());
  return compared;
}

Compared CompareClasses(const FoundClasses& current, const FoundClasses& candidate) {
  Compared compared;
  compared.agreement = SameClass(current.front(), candidate.front()) ? 1 : 0;
  for (const FoundClass& one : candidate) {
    if (!SameClass(current.front(), one)) continue;
    AddDifference(current.front().score, one.score, &compared);
    break;
  }
  return compared;
}

/// Nothing if `ours` is of no kind that is compared.
std::optional<Compared> CompareFound(const FoundAll& ours, const FoundAll& theirs,
                                     double tolerance) {
  if (ours.kind == Kind::kNone) return std::nullopt;
  if (theirs.kind != ours.kind) return Compared();
  switch (ours.kind) {
    case Kind::kBoxes:
      return CompareBoxes(ours.classes, theirs.classes, tolerance);
    case Kind::kKeypoints:
      return CompareKeypoints(ours.classes, theirs.classes);
    case Kind::kAreas:
      return CompareAreas(ours.classes, theirs.classes);
    case Kind::kText:
      return Compared{theirs.text == ours.text ? 1.0 : 0.0, std::nullopt};
    case Kind::kTop:
      return CompareClasses(ours.classes, theirs.classes);
    default:
      return CompareTensors(ours, theirs, tolerance);
  }
}

}  // namespace

std::optional<Compared> CompareAnswers(const std::string& current, const std::string& candidate,
                                       double tolerance) {
  FoundAll ours;
  try {
    ours = ReadAnswer(current);
  } catch (const Error&) {
    return std::nullopt;
  }
  FoundAll theirs;  // no answer is another answer
  try {
    theirs = ReadAnswer(candidate);
  } catch (const Error&) {
    theirs = {};
  }
  return CompareFound(ours, theirs, tolerance);
}

}  // namespace edgepack::device
