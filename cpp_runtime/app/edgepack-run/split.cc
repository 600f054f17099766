#include "split.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "common/json.h"
#include "common/metrics_text.h"

namespace edgepack {
namespace {

constexpr std::size_t kMostFound = 2000;
constexpr std::size_t kMostPoints = 1000;
constexpr std::int64_t kMostIndex = 1'000'000;
constexpr std::size_t kMostLabelBytes = 256;
constexpr std::size_t kMostTextBytes = 4096;
// Farther out than any picture's side.
constexpr double kMostPixels = 1e6;
constexpr double kMostMs = 1e6;

/// A number of at most `most` in size.
double Bounded(const char* key, double most, JsonObject* object) {
  const double value = object->Number(key);
  if (std::abs(value) > most) object->Fail(key, "is too large");
  return value;
}

std::string Text(const char* key, std::size_t most, JsonObject* object) {
  std::string text = object->String(key);
  if (text.size() > most) object->Fail(key, "is too long");
  return text;
}

std::optional<double> Ms(const char* key, JsonObject* object) {
  if (!object->HasValue(key)) return std::nullopt;
  const double value = Bounded(key, kMostMs, object);
  if (value < 0) object->Fail(key, "is negative");
  return value;
}

Score ReadScore(JsonObject* object) {
  return {static_cast<std::size_t>(object->Int("index", 0, kMostIndex)), object->Number("score")};
}

std::optional<std::string_view> ReadLabel(JsonObject* object, std::deque<std::string>* labels) {
  if (!object->HasValue("label")) return std::nullopt;
  return labels->emplace_back(Text("label", kMostLabelBytes, object));
}

/// The numbers of a list, and of lists in it, as points.
std::vector<Point> ReadPoints(const char* key, std::size_t most, JsonObject* object) {
  std::vector<double> numbers;
  object->ForEachNumber(key, 2, [&](const JsonNumber& number) {
    const bool fits = number.kind != JsonNumber::Kind::kBool && std::isfinite(number.real) &&
                      std::abs(number.real) <= kMostPixels && numbers.size() < 2 * most;
    if (!fits) object->Fail(key, "are no points");
    numbers.push_back(number.real);
  });
  if (numbers.size() % 2 != 0) object->Fail(key, "are no points");
  std::vector<Point> points;
  for (std::size_t i = 0; i < numbers.size(); i += 2) {
    points.push_back({numbers[i], numbers[i + 1]});
  }
  return points;
}

Found::LabelledBox ReadBox(JsonObject* object, std::deque<std::string>* labels) {
  Found::LabelledBox box;
  box.box.found = ReadScore(object);
  box.label = ReadLabel(object, labels);
  const std::vector<Point> corners = ReadPoints("box", 2, object);
  if (corners.size() != 2) object->Fail("box", "is not two points");
  box.box.low = corners[0];
  box.box.high = corners[1];
  if (object->Has("points")) box.box.points = ReadPoints("points", kMostPoints, object);
  for (const char* const key : {"mask", "answers"}) {
    if (object->Has(key)) object->Fail(key, "cannot be answered with");
  }
  return box;
}

Found::LabelledMark ReadMark(JsonObject* object, std::deque<std::string>* labels) {
  Found::LabelledMark mark;
  mark.mark.found = ReadScore(object);
  mark.label = ReadLabel(object, labels);
  const std::vector<Point> point = ReadPoints("point", 1, object);
  if (point.size() != 1) object->Fail("point", "is none");
  mark.mark.point = point.front();
  return mark;
}

}  // namespace

bool CanSplit(const Report& ours) {
  if (ours.mask || !ours.tensors.empty() || !ours.stages.empty() || !ours.more.empty()) {
    return false;
  }
  if (!ours.boxes) return !ours.top.empty() || ours.keypoints || ours.text;
  return std::all_of(ours.boxes->begin(), ours.boxes->end(),
                     [](const auto& one) { return one.box.mask.height == 0 && one.track == 0; });
}

void CandidateAnswer::Read(std::string_view line, const Report& ours) {
  const JsonDocument document(line, "the candidate's answer", "candidate");
  JsonObject root = document.Root();
  if (root.Has("error")) root.Fail("error", "says that there is no answer");
  labels.clear();
  report = Report();
  report.image = ours.image;
  report.image_mtime_ns = ours.image_mtime_ns;
  report.frame = ours.frame;
  report.decode_ms = Ms("decode_ms", &root);
  report.preprocess_ms = Ms("preprocess_ms", &root);
  report.run_ms = Ms("run_ms", &root);
  if (ours.boxes) {
    report.boxes.emplace();
    for (JsonObject& object : root.Objects("boxes", kMostFound)) {
      report.boxes->push_back(ReadBox(&object, &labels));
    }
  } else if (ours.keypoints) {
    report.keypoints.emplace();
    for (JsonObject& object : root.Objects("keypoints", kMostFound)) {
      report.keypoints->push_back(ReadMark(&object, &labels));
    }
  } else if (ours.text) {
    std::vector<JsonObject> lines = root.Objects("text", 1);
    if (lines.empty()) root.Fail("text", "is empty");
    report.text =
        TextLine{Text("text", kMostTextBytes, &lines.front()), lines.front().Number("score")};
  } else {
    for (JsonObject& object : root.Objects("top", kMostFound)) {
      const Score score = ReadScore(&object);
      report.top.push_back({score, ReadLabel(&object, &labels)});
    }
    if (report.top.empty()) root.Fail("top", "is empty");
  }
}

double TookMs(const Report& report) {
  return report.decode_ms.value_or(0) + report.preprocess_ms.value_or(0) +
         report.run_ms.value_or(0);
}

void SplitCounts::Begin(const std::string& candidate) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (candidate == candidate_) return;
  candidate_ = candidate;
  own_ = {};
  theirs_ = {};
  missed_ = {};
}

void SplitCounts::AddOwn(double seconds) {
  const std::lock_guard<std::mutex> lock(mutex_);
  own_.Add(seconds);
}

void SplitCounts::AddCandidate(double seconds) {
  const std::lock_guard<std::mutex> lock(mutex_);
  theirs_.Add(seconds);
}

void SplitCounts::Add(Missed why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++missed_.at(static_cast<std::size_t>(why));
}

std::string SplitCounts::candidate() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return candidate_;
}

std::string SplitCounts::Text(const std::string& model, const std::string& own) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (candidate_.empty()) return {};
  const std::string theirs = model + "," + Label("release", candidate_);
  const std::string name = "edgepack_split_seconds";
  std::string text = MetricHeader(name, "histogram",
                                  "Answers in an A/B test, by the release that gave them: "
                                  "decoding, preprocessing and the model.");
  text += own_.Series(name, model + "," + own) + theirs_.Series(name, theirs);
  const std::string missed = "edgepack_split_missed_total";
  const std::string of = "{" + theirs + ",";
  text += MetricHeader(missed, "counter",
                       "Pictures of the candidate's that the current release answered, by reason.");
  for (std::size_t i = 0; i < kKinds.size(); ++i) {
    text += missed + of + Label("kind", kKinds.at(i));
    text += "} " + std::to_string(missed_.at(i)) + "\n";
  }
  return text;
}

}  // namespace edgepack
