#include "sight.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include <opencv2/core.hpp>

#include "bundle_json.h"
#include "report.h"
#include "split.h"

namespace edgepack {
namespace {

constexpr int kGrid = 32;
/// Set by `edgepack-device run --supervise`.
constexpr const char* kRestartsVariable = "EDGEPACK_RESTARTS";
/// Kinds of errors that have series of their own; "other" is the last.
constexpr std::array<const char*, 5> kErrorKinds = {"image", "model-input", "request", "position",
                                                    "other"};

double SecondsSince1970() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

/// The middle of one of kGrid equal parts of a side.
int MiddleOf(int part, int size) {
  constexpr std::int64_t kHalves = std::int64_t{2} * kGrid;
  return static_cast<int>((std::int64_t{2} * part + 1) * size / kHalves);
}

template <std::size_t kSize>
void CountBelow(const std::array<double, kSize>& bounds, double value,
                std::array<std::int64_t, kSize + 1>* counts) {
  std::size_t bucket = 0;
  while (bucket < kSize && value > bounds[bucket]) ++bucket;
  ++(*counts)[bucket];
}

/// Whether all elements are numbers. The exponent of no finite float has all bits set; without a
/// branch in it the loop takes several elements at a time.
bool AllFinite(const TensorView& tensor) {
  const std::size_t count = tensor.info->size();
  if (tensor.info->dtype == DType::kFloat32) {
    constexpr std::uint32_t kExponent = 0x7F800000U;
    const char* const data = static_cast<const char*>(tensor.data);
    std::uint32_t bad = 0;
    for (std::size_t i = 0; i < count; ++i) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, data + i * sizeof(bits), sizeof(bits));
      bad |= static_cast<std::uint32_t>((bits & kExponent) == kExponent);
    }
    return bad == 0;
  }
  if (tensor.info->dtype != DType::kFloat16 && tensor.info->dtype != DType::kFloat64) return true;
  for (std::size_t i = 0; i < count; ++i) {
    if (!std::isfinite(ElementAt(tensor.info->dtype, tensor.data, i))) return false;
  }
  return true;
}

/// What is surest of all that was found, if anything was.
struct Best {
  std::optional<double> score;
  std::optional<std::size_t> index;
};

Best BestOf(const Found& found) {
  Best best;
  const auto take = [&](const Score& score) {
    if (best.score && !(score.score > *best.score)) return;
    best.score = score.score;
    best.index = score.index;
  };
  if (!found.top.empty()) take(found.top.front().score);
  if (found.boxes) {
    for (const Found::LabelledBox& box : *found.boxes) take(box.box.found);
  }
  if (found.keypoints) {
    for (const Found::LabelledMark& mark : *found.keypoints) take(mark.mark.found);
  }
  if (found.mask) {
    std::int64_t most = 0;
    for (const auto& [index, area] : found.mask->areas) {
      if (area.pixels <= most) continue;
      most = area.pixels;
      best.index = index;
    }
  }
  if (found.text && !found.text->text.empty()) best.score = found.text->score;
  return best;
}

/// Whether what was found could be nothing.
bool Looks(const Found& found) { return found.tensors.empty(); }

std::int64_t RestartsFromEnvironment() {
  const char* const text = std::getenv(kRestartsVariable);  // NOLINT(concurrency-mt-unsafe)
  if (text == nullptr) return 0;
  return std::max(0LL, std::strtoll(text, nullptr, 10));
}

}  // namespace

Light LightOf(const Decoded& picture) {
  const cv::Mat& bgr = picture.bgr;
  Light light;
  light.pixels = std::int64_t{picture.size.width} * picture.size.height;
  if (bgr.empty() || bgr.type() != CV_8UC3) return light;
  std::int64_t sum = 0;
  for (int i = 0; i < kGrid; ++i) {
    const auto* const row = bgr.ptr<cv::Vec3b>(MiddleOf(i, bgr.rows));
    for (int j = 0; j < kGrid; ++j) {
      const cv::Vec3b& pixel = row[MiddleOf(j, bgr.cols)];
      sum += 114 * pixel[0] + 587 * pixel[1] + 299 * pixel[2];
    }
  }
  light.brightness = static_cast<double>(sum) / (1000.0 * 255 * kGrid * kGrid);
  return light;
}

Sight::Sight(const BundleFolder& bundle)
    : restarts_(RestartsFromEnvironment()), started_(SecondsSince1970()) {
  const JsonDocument document = ReadBundleJson(bundle.path / "manifest.json");
  JsonObject manifest = document.Root();
  const auto text = [&](const char* key) {
    return manifest.HasValue(key) ? manifest.String(key) : std::string();
  };
  model_ = Label("model", text("name"));
  release_ = Label("release", text("release"));
  labels_ = model_ + "," + release_;
  const std::int64_t version = manifest.HasValue("version") ? manifest.Int("version") : 0;
  std::string sha256;
  if (manifest.HasValue("model")) {
    JsonObject model = manifest.Object("model");
    if (model.HasValue("sha256")) sha256 = model.String("sha256");
  }
  info_ = labels_ + "," + Label("version", std::to_string(version)) + "," +
          Label("model_sha256", sha256);
  const std::filesystem::path monitor = bundle.path / "monitor.json";
  if (std::filesystem::exists(monitor)) drift_ = Drift::Load(monitor);
}

void Sight::AddRun(double seconds) {
  const std::lock_guard<std::mutex> lock(mutex_);
  CountBelow(kSeconds, seconds, &runs_);
  run_seconds_ += seconds;
}

void Sight::AddTensors(const std::vector<TensorView>& inputs) {
  if (std::all_of(inputs.begin(), inputs.end(), AllFinite)) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  ++not_finite_;
}

void Sight::AddError(const Error& error) {
  std::size_t kind = 0;
  while (kind + 1 < kErrorKinds.size() && error.kind != kErrorKinds.at(kind)) ++kind;
  const std::lock_guard<std::mutex> lock(mutex_);
  ++errors_.at(kind);
}

void Sight::Answers::CountClass(std::size_t index, const std::optional<std::string_view>& label) {
  for (ClassCount& known : classes) {
    if (known.index != index) continue;
    ++known.count;
    return;
  }
  if (classes.size() == kMostClasses) {
    ++other_classes;
    return;
  }
  classes.push_back({index, label ? std::string(*label) : std::string(), 1});
}

void Sight::Answers::Add(const Light& light, const Found& found) {
  const Best best = BestOf(found);
  ++pictures;
  const double size = static_cast<double>(light.pixels) / 1e6;
  CountBelow(kMegapixels, size, &sizes);
  megapixels += size;
  brightness.Add(light.brightness);
  if (Looks(found) && !best.score && !best.index) ++empty;
  if (best.score) scores.Add(*best.score);
  if (!found.top.empty()) CountClass(found.top.front().score.index, found.top.front().label);
  if (found.boxes) {
    for (const Found::LabelledBox& box : *found.boxes) CountClass(box.box.found.index, box.label);
  }
  if (found.mask) {
    for (const auto& [index, area] : found.mask->areas) {
      const bool named = index < found.labels.size();
      CountClass(index,
                 named ? std::optional<std::string_view>(found.labels[index]) : std::nullopt);
    }
  }
}

void Sight::AddPicture(const Light& light, const Found& found) {
  const std::lock_guard<std::mutex> lock(mutex_);
  own_.Add(light, found);
  AddOwn(light, found);
}

void Sight::AddPicture(const Light& light, const Found& own, const Report& answer) {
  if (answer.release.empty()) {
    AddPicture(light, own);
    return;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (answer.release != candidate_) {
    candidate_ = answer.release;
    theirs_ = {};
  }
  theirs_.Add(light, answer);
  AddOwn(light, own);
}

void Sight::AddOwn(const Light& light, const Found& own) {
  if (stages_.size() < own.stages.size()) stages_.resize(own.stages.size());
  for (std::size_t i = 0; i < own.stages.size(); ++i) {
    const Found::Stage& stage = own.stages[i];
    if (stages_[i].name.empty()) stages_[i].name = stage.name;
    stages_[i].boxes += static_cast<std::int64_t>(stage.count);
    stages_[i].dropped += static_cast<std::int64_t>(stage.dropped);
    stages_[i].failed += static_cast<std::int64_t>(stage.failed);
  }
  if (!drift_) return;
  const Best best = BestOf(own);
  drift_->Add({light.brightness, best.score, best.index}, SecondsSince1970());
}

std::string Sight::AnswersText() const {
  struct Release {
    std::string labels;
    const Answers& answers;
  };
  const Answers none;
  std::vector<Release> releases = {{labels_, own_}};
  const std::string candidate = split_ != nullptr ? split_->candidate() : "";
  if (!candidate.empty()) {
    const bool answered = candidate == candidate_;
    releases.push_back({model_ + "," + Label("release", candidate), answered ? theirs_ : none});
  }
  std::string text;
  const auto count = [&](const std::string& name, const std::string& help,
                         std::int64_t Answers::*value) {
    text += MetricHeader(name, "counter", help);
    for (const auto& [labels, answers] : releases) {
      text += name;
      text += "{" + labels + "} " + std::to_string(answers.*value) + "\n";
    }
  };
  count("edgepack_pictures_total", "Pictures that a release answered.", &Answers::pictures);
  count("edgepack_pictures_empty_total", "Pictures in which nothing was found.", &Answers::empty);
  text += MetricHeader("edgepack_classes_total", "counter",
                       "What was found: the best class, or each box or area, by class.");
  for (const auto& [labels, answers] : releases) {
    const std::string series = "edgepack_classes_total{" + labels + ",";
    for (const ClassCount& known : answers.classes) {
      const std::string index = std::to_string(known.index);
      text += series + Label("class", known.label.empty() ? index : known.label) + "," +
              Label("index", index) + "} " + std::to_string(known.count) + "\n";
    }
    text += series + Label("class", "other") + "," + Label("index", "") + "} " +
            std::to_string(answers.other_classes) + "\n";
  }
  const auto histogram = [&](const std::string& name, const std::string& help,
                             const auto& series_of) {
    text += MetricHeader(name, "histogram", help);
    for (const auto& [labels, answers] : releases) text += series_of(name, labels, answers);
  };
  using std::string;
  histogram("edgepack_score", "The best score of a picture.",
            [](const string& name, const string& labels, const Answers& answers) {
              return answers.scores.Text(name, labels);
            });
  histogram("edgepack_brightness", "Mean luma of a picture, 0 to 1.",
            [](const string& name, const string& labels, const Answers& answers) {
              return answers.brightness.Text(name, labels);
            });
  histogram("edgepack_megapixels", "Size of a picture.",
            [](const string& name, const string& labels, const Answers& answers) {
              return HistogramText(name, labels, kMegapixels.data(), answers.sizes.data(),
                                   kMegapixels.size(), answers.megapixels);
            });
  return text;
}

std::string Sight::Text() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::string text = MetricHeader("edgepack_app_info", "gauge", "The release that runs.");
  text += "edgepack_app_info{" + info_ + "} 1\n";
  text += Gauge("edgepack_app_start_timestamp_seconds", "When the app was started.",
                std::floor(started_));
  text += Counter("edgepack_app_restarts_total", "How often the service had to start it again.",
                  restarts_);
  text += MetricHeader("edgepack_run_seconds", "histogram", "Runs of the model.");
  text += HistogramText("edgepack_run_seconds", labels_, kSeconds.data(), runs_.data(),
                        kSeconds.size(), run_seconds_);
  text += MetricHeader("edgepack_errors_total", "counter", "What could not be done, by its kind.");
  for (std::size_t i = 0; i < kErrorKinds.size(); ++i) {
    text += "edgepack_errors_total{" + labels_ + "," + Label("kind", kErrorKinds.at(i)) + "} " +
            std::to_string(errors_.at(i)) + "\n";
  }
  text += MetricHeader("edgepack_inputs_not_finite_total", "counter",
                       "Requests with a NaN or an infinity in a tensor.");
  text += "edgepack_inputs_not_finite_total{" + labels_ + "} " + std::to_string(not_finite_) + "\n";
  text += AnswersText();
  const auto of_stages = [&](const std::string& name, const std::string& help,
                             std::int64_t StageCount::*value) {
    if (stages_.empty()) return;
    text += MetricHeader(name, "counter", help);
    for (const StageCount& stage : stages_) {
      text += name + "{" + labels_ + "," + Label("stage", stage.name) + "} " +
              std::to_string(stage.*value) + "\n";
    }
  };
  of_stages("edgepack_stage_boxes_total", "Boxes that a stage looked at.", &StageCount::boxes);
  of_stages("edgepack_stage_boxes_dropped_total",
            "Boxes that a stage did not look at, because others were likelier.",
            &StageCount::dropped);
  of_stages("edgepack_stage_errors_total", "Boxes that a stage could not look at.",
            &StageCount::failed);
  if (drift_) text += drift_->Text(labels_);
  if (split_ != nullptr) text += split_->Text(model_, release_);
  return text;
}

}  // namespace edgepack
