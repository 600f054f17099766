#include "drift.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <edgepack/errors.h>

#include "bundle_json.h"
#include "common/metrics_text.h"

namespace edgepack {
namespace {

constexpr std::int64_t kMostPhotos = 1000000;
constexpr std::int64_t kMostWindow = 1000000;
/// Of a normal distribution: 999 of 1000 are below.
constexpr double kQuantile = 3.0902323;

/// The same quantile of chi-squared, by Wilson and Hilferty's approximation (1931).
double ChiSquared(double degrees) {
  const double spread = 2 / (9 * degrees);
  return degrees * std::pow(1 - spread + kQuantile * std::sqrt(spread), 3);
}

template <std::size_t kBins>
void ReadCounts(JsonObject* root, const char* key, std::int64_t most,
                std::array<std::int64_t, kBins>* counts) {
  const std::vector<std::int64_t> read = root->Ints(key);
  if (read.size() != kBins) {
    root->Fail(key, std::to_string(read.size()) + " counts, " + std::to_string(kBins) + " bins");
  }
  std::int64_t sum = 0;
  for (const std::int64_t count : read) {
    if (count < 0 || count > most - sum) root->Fail(key, "no counts of the photos");
    sum += count;
  }
  std::copy(read.begin(), read.end(), counts->begin());
}

template <std::size_t kBins>
std::size_t UnitBin(double value) {
  if (!(value > 0)) return 0;  // a NaN, too
  return value < 1 ? static_cast<std::size_t>(value * static_cast<double>(kBins)) : kBins - 1;
}

}  // namespace

Stability StabilityOf(const std::int64_t* photos, const std::int64_t* window, std::size_t bins) {
  double used = 0;
  double photo_count = 0;
  double window_count = 0;
  for (std::size_t i = 0; i < bins; ++i) {
    if (photos[i] == 0 && window[i] == 0) continue;
    ++used;
    photo_count += static_cast<double>(photos[i]);
    window_count += static_cast<double>(window[i]);
  }
  Stability result;
  if (photo_count == 0 || window_count == 0 || used < 2) return result;
  for (std::size_t i = 0; i < bins; ++i) {
    if (photos[i] == 0 && window[i] == 0) continue;
    const double p = (static_cast<double>(photos[i]) + 0.5) / (photo_count + 0.5 * used);
    const double q = (static_cast<double>(window[i]) + 0.5) / (window_count + 0.5 * used);
    result.index += (q - p) * std::log(q / p);
  }
  result.noise = (1 / photo_count + 1 / window_count) * ChiSquared(used - 1);
  return result;
}

Drift Drift::Load(const std::filesystem::path& path) {
  const JsonDocument document = ReadBundleJson(path);
  JsonObject root = document.Root();
  CheckFormat("edgepack-monitor", &root);
  Drift drift;
  const std::int64_t photos = root.Int("photos", 1, kMostPhotos);
  drift.window_ = root.Int("window", 1, kMostWindow);
  drift.interval_s_ = root.Number("interval_s");
  drift.notice_ = root.Number("notice");
  drift.alarm_ = root.Number("alarm");
  if (drift.interval_s_ < 0) root.Fail("interval_s", "is negative");
  if (drift.notice_ <= 0) root.Fail("notice", "is not above 0");
  if (drift.alarm_ < drift.notice_) root.Fail("alarm", "is below notice");
  ReadCounts(&root, "brightness", photos, &drift.brightness_.photos);
  if (root.HasValue("scores")) {
    ReadCounts(&root, "scores", photos, &drift.scores_.emplace().photos);
  } else {
    root.Skip("scores");
  }
  drift.class_indices_.fill(-1);
  if (root.HasValue("classes")) {
    JsonObject classes = root.Object("classes");
    const std::vector<std::int64_t> indices = classes.Ints("index");
    if (indices.size() > kMostClasses) classes.Fail("index", "too many classes");
    std::copy(indices.begin(), indices.end(), drift.class_indices_.begin());
    ReadCounts(&classes, "count", photos, &drift.classes_.emplace().photos);
    classes.Finish();
  } else {
    root.Skip("classes");
  }
  root.Finish();
  return drift;
}

template <std::size_t kBins>
void Drift::Judge(DriftCounts<kBins>* counts, double now) const {
  const Stability stability = StabilityOf(counts->photos.data(), counts->window.data(), kBins);
  DriftVerdict verdict;
  verdict.index = stability.index;
  verdict.noise = stability.noise;
  const double above = stability.index - stability.noise;
  if (above > notice_)
    verdict.level = above > alarm_ ? DriftVerdict::Level::kAlarm : DriftVerdict::Level::kNotice;
  const bool before = counts->verdict && counts->verdict->level != DriftVerdict::Level::kNone;
  if (verdict.level != DriftVerdict::Level::kNone)
    verdict.since = before ? counts->verdict->since : now;
  counts->verdict = verdict;
  counts->window.fill(0);
}

void Drift::Add(const Seen& seen, double now) {
  // A clock that was set back must not stop it.
  if (interval_s_ > 0 && now >= last_ && now - last_ < interval_s_) return;
  last_ = now;
  ++brightness_.window[UnitBin<kBrightnessBins>(seen.brightness)];
  if (scores_ && seen.score) ++scores_->window[UnitBin<kScoreBins>(*seen.score)];
  if (classes_) {
    std::size_t bin = kMostClasses + 1;
    if (seen.index) {
      const auto* const found = std::find(class_indices_.begin(), class_indices_.end(),
                                          static_cast<std::int64_t>(*seen.index));
      bin = static_cast<std::size_t>(found - class_indices_.begin());
    }
    ++classes_->window[bin];
  }
  if (++pictures_ < window_) return;
  pictures_ = 0;
  Judge(&brightness_, now);
  if (scores_) Judge(&*scores_, now);
  if (classes_) Judge(&*classes_, now);
}

std::vector<Drift::Signal> Drift::Signals() const {
  std::vector<Signal> signals = {{"brightness", brightness_.verdict}};
  if (scores_) signals.push_back({"scores", scores_->verdict});
  if (classes_) signals.push_back({"classes", classes_->verdict});
  return signals;
}

std::string Drift::Text(const std::string& labels) const {
  std::string text = MetricHeader("edgepack_drift_window_pictures", "gauge",
                                  "Pictures in the window that is not full yet.");
  text += "edgepack_drift_window_pictures{" + labels + "} " + std::to_string(pictures_) + "\n";
  const std::vector<Signal> signals = Signals();
  const auto series = [&](const std::string& name, const std::string& help, const auto& value) {
    std::string lines;
    for (const Signal& signal : signals) {
      if (!signal.verdict) continue;
      lines.append(name).append("{").append(labels).append(",");
      lines.append(Label("signal", signal.name)).append("} ");
      lines.append(NumberText(value(*signal.verdict))).append("\n");
    }
    if (!lines.empty()) text += MetricHeader(name, "gauge", help) + lines;
  };
  series("edgepack_drift_index",
         "Population stability index of the last full window against the release's photos.",
         [](const DriftVerdict& verdict) { return verdict.index; });
  series("edgepack_drift_noise", "What 999 of 1000 windows of the same kind stay below.",
         [](const DriftVerdict& verdict) { return verdict.noise; });
  series("edgepack_drift_level", "0: as the release's photos, 1: they differ, 2: they differ much.",
         [](const DriftVerdict& verdict) { return static_cast<double>(verdict.level); });
  series("edgepack_drift_since_timestamp_seconds", "Since when they differ; 0: they do not.",
         [](const DriftVerdict& verdict) { return std::floor(verdict.since); });
  return text;
}

}  // namespace edgepack
