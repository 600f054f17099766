#include <cmath>
#include <limits>
#include <sstream>

#include <doctest/doctest.h>
#include <opencv2/core.hpp>

#include "drift.h"
#include "report.h"
#include "run_app.h"
#include "sight.h"
#include "split.h"
#include "support.h"

namespace edgepack::testing {
namespace {

/// A bundle's folder with this manifest.
BundleFolder FolderWith(const TempFolder& folder, const std::string& manifest = R"({
    "release": "0123456789ab", "name": "mug", "version": 12, "model": {"sha256": "abcd"}})") {
  WriteFile(folder / "manifest.json", manifest);
  return OpenBundle(folder.path());
}

Found Top(std::size_t index, double score, std::string_view label) {
  Found found;
  found.top.push_back({{index, score}, label});
  return found;
}

std::string Counts(std::initializer_list<std::pair<std::size_t, int>> bins, std::size_t size) {
  std::vector<int> counts(size);
  for (const auto& [bin, count] : bins) counts[bin] = count;
  std::string text;
  for (const int count : counts) text += (text.empty() ? "" : ", ") + std::to_string(count);
  return "[" + text + "]";
}

std::string MonitorText(const std::string& window = "100") {
  return R"({"format": "edgepack-monitor", "version": 1, "photos": 1000, "window": )" + window +
         R"(, "interval_s": 0, "notice": 0.1, "alarm": 0.25, "brightness": )" +
         Counts({{7, 500}, {8, 500}}, 16) + R"(, "scores": )" + Counts({{19, 1000}}, 20) +
         R"(, "classes": {"index": [3], "count": )" + Counts({{0, 900}, {21, 100}}, 22) + "}}";
}

}  // namespace

TEST_CASE("how bright a picture is, and how large") {
  // 255 * (0.299 + 0.587 + 0.114): white.
  CHECK(LightOf(cv::Mat(5, 3, CV_8UC3, cv::Scalar::all(255))).brightness == doctest::Approx(1));
  CHECK(LightOf(cv::Mat(5, 3, CV_8UC3, cv::Scalar::all(0))).brightness == 0);
  // BT.601: blue, green, red.
  const auto of = [](double b, double g, double r) {
    return LightOf(cv::Mat(40, 70, CV_8UC3, cv::Scalar(b, g, r))).brightness;
  };
  CHECK(of(255, 0, 0) == doctest::Approx(0.114));
  CHECK(of(0, 255, 0) == doctest::Approx(0.587));
  CHECK(of(0, 0, 255) == doctest::Approx(0.299));
  // Half of it, of any size; and a photo that was reduced keeps its own size.
  cv::Mat half(480, 640, CV_8UC3, cv::Scalar::all(0));
  half.colRange(320, 640).setTo(cv::Scalar::all(255));
  CHECK(LightOf(half).brightness == doctest::Approx(0.5));
  CHECK(LightOf(Decoded(half, cv::Size(1280, 960))).pixels == 1280 * 960);
  CHECK(LightOf(cv::Mat()).pixels == 0);
}

TEST_CASE("what the model sees is counted, in a bounded number of series") {
  const TempFolder folder;
  Sight sight(FolderWith(folder));
  sight.AddRun(0.03);
  sight.AddRun(3);
  sight.AddPicture({640 * 480, 0.5}, Top(3, 0.72, "a \"mug\"\\\n"));
  sight.AddPicture({640 * 480, 0.5}, Top(3, 0.78, "a \"mug\"\\\n"));
  Found nothing;
  nothing.boxes.emplace();
  sight.AddPicture({12000000, 0.01}, nothing);
  sight.AddPicture({1, 1}, Top(4, std::numeric_limits<double>::quiet_NaN(), "x"));
  sight.AddError(Error(2, "image", "no image"));
  sight.AddError(Error(2, "something new", "no image"));
  std::string text = sight.Text();
  const auto has = [&](const std::string& line) {
    INFO(line);
    CHECK(Contains(text, line + "\n"));
  };
  const std::string release = "{model=\"mug\",release=\"0123456789ab\"";
  has("edgepack_app_info" + release + ",version=\"12\",model_sha256=\"abcd\"} 1");
  has("edgepack_run_seconds_bucket" + release + ",le=\"0.05\"} 1");
  has("edgepack_run_seconds_bucket" + release + ",le=\"5\"} 2");
  has("edgepack_run_seconds_sum" + release + "} 3.03");
  has("edgepack_run_seconds_count" + release + "} 2");
  has("edgepack_classes_total" + release + ",class=\"a \\\"mug\\\"\\\\\\n\",index=\"3\"} 2");
  has("edgepack_classes_total" + release + ",class=\"other\",index=\"\"} 0");
  has("edgepack_pictures_total" + release + "} 4");
  has("edgepack_pictures_empty_total" + release + "} 1");
  has("edgepack_score_bucket" + release + ",le=\"0.7\"} 0");
  has("edgepack_score_bucket" + release + ",le=\"0.75\"} 1");
  has("edgepack_score_bucket" + release + ",le=\"0.8\"} 2");
  has("edgepack_score_bucket" + release + ",le=\"1\"} 2");
  has("edgepack_score_bucket" + release + ",le=\"+Inf\"} 3");  // and the NaN
  has("edgepack_megapixels_bucket" + release + ",le=\"0.3\"} 1");
  has("edgepack_megapixels_bucket" + release + ",le=\"1\"} 3");
  has("edgepack_megapixels_bucket" + release + ",le=\"16\"} 4");
  has("edgepack_errors_total" + release + ",kind=\"image\"} 1");
  has("edgepack_errors_total" + release + ",kind=\"other\"} 1");

  for (std::size_t i = 0; i < 1000; ++i) sight.AddPicture({1, 1}, Top(i, 0.5, ""));
  text = sight.Text();
  // Class 3, 4, and 18 of the others; those two are counted once more.
  has("edgepack_classes_total" + release + ",class=\"other\",index=\"\"} 980");
  CHECK(text.size() < 20000);
}

TEST_CASE("what a candidate answers counts for its release, within the same bounds") {
  const TempFolder folder;
  Sight sight(FolderWith(folder));
  SplitCounts split;
  sight.Follow(&split);
  const auto count = [&](const std::string& name, const std::string& release,
                         const std::string& more = "") {
    const std::string text = sight.Text();
    const std::string series = "\n" + name + "{model=\"mug\",release=\"" + release + "\"" + more;
    const std::size_t at = text.find(series + "} ");
    if (at == std::string::npos) return std::string();
    const std::size_t value = at + series.size() + 2;
    return text.substr(value, text.find('\n', value) - value);
  };
  const std::string own = "0123456789ab";
  const std::string theirs = "ba9876543210";
  const auto answer = [](std::size_t index, double score, const std::string& release) {
    Report report;
    report.top.push_back({{index, score}, "mug"});
    report.release = release;
    return report;
  };
  sight.AddPicture({250000, 0.5}, Top(3, 0.72, "cup"), answer(3, 0.72, ""));
  CHECK(count("edgepack_pictures_total", own) == "1");
  CHECK(count("edgepack_pictures_total", theirs).empty());
  // It is there from the beginning, so that the first answer is an increase.
  split.Begin(theirs);
  CHECK(count("edgepack_pictures_total", theirs) == "0");
  CHECK(count("edgepack_score_count", theirs) == "0");
  CHECK(count("edgepack_classes_total", theirs, R"(,class="other",index="")") == "0");

  sight.AddPicture({1500000, 0.1}, Top(3, 0.72, "cup"), answer(4, 0.22, theirs));
  CHECK(count("edgepack_pictures_total", own) == "1");
  CHECK(count("edgepack_pictures_total", theirs) == "1");
  CHECK(count("edgepack_pictures_empty_total", theirs) == "0");
  CHECK(count("edgepack_classes_total", own, R"(,class="cup",index="3")") == "1");
  CHECK(count("edgepack_classes_total", own, R"(,class="mug",index="4")").empty());
  CHECK(count("edgepack_classes_total", theirs, R"(,class="mug",index="4")") == "1");
  CHECK(count("edgepack_classes_total", theirs, R"(,class="cup",index="3")").empty());
  CHECK(count("edgepack_score_bucket", own, R"(,le="0.25")") == "0");
  CHECK(count("edgepack_score_count", own) == "1");
  CHECK(count("edgepack_score_bucket", theirs, R"(,le="0.25")") == "1");
  CHECK(count("edgepack_brightness_bucket", own, R"(,le="0.125")") == "0");
  CHECK(count("edgepack_brightness_bucket", theirs, R"(,le="0.125")") == "1");
  CHECK(count("edgepack_megapixels_sum", own) == "0.25");
  CHECK(count("edgepack_megapixels_sum", theirs) == "1.5");

  for (std::size_t i = 0; i < 1000; ++i) {
    sight.AddPicture({1, 1}, Top(3, 0.5, "cup"), answer(1000 + i, 0.5, theirs));
  }
  // Class 4, and 19 of these.
  CHECK(count("edgepack_classes_total", theirs, R"(,class="other",index="")") == "981");
  CHECK(count("edgepack_classes_total", own, R"(,class="cup",index="3")") == "1");
  CHECK(sight.Text().size() < 20000);

  // The next candidate begins with nothing, and what was the last one's is gone.
  split.Begin("cccccccccccc");
  CHECK(count("edgepack_pictures_total", "cccccccccccc") == "0");
  CHECK_FALSE(Contains(sight.Text(), theirs));
  sight.AddPicture({1, 1}, Top(3, 0.5, "cup"), answer(4, 0.5, "cccccccccccc"));
  CHECK(count("edgepack_pictures_total", "cccccccccccc") == "1");
  CHECK(count("edgepack_pictures_total", own) == "1");
}

TEST_CASE("drift is about what this release finds, whoever answers") {
  const TempFolder folder;
  WriteFile(folder / "monitor.json", MonitorText());
  Sight sight(FolderWith(folder));
  const auto level = [&](const std::string& signal, int wanted) {
    return Contains(sight.Text(),
                    R"(edgepack_drift_level{model="mug",release="0123456789ab",signal=")" + signal +
                        "\"} " + std::to_string(wanted) + "\n");
  };
  Found nothing;
  nothing.boxes.emplace();
  const auto window = [&](const Found& own, double candidates_score) {
    for (int i = 0; i < 100; ++i) {
      Report answer;
      answer.release = "ba9876543210";
      answer.top.push_back({{5, candidates_score}, "mug"});
      const double brightness = i % 2 == 0 ? 0.49 : 0.51;
      sight.AddPicture({1, brightness}, i % 10 == 0 ? nothing : own, answer);
    }
  };
  window(Top(3, 0.99, "cup"), 0.3);
  CHECK(level("brightness", 0));
  CHECK(level("scores", 0));
  CHECK(level("classes", 0));
  window(Top(5, 0.3, "mug"), 0.99);
  CHECK(level("scores", 2));
  CHECK(level("classes", 2));
}

TEST_CASE("tensors that are no numbers are counted, in each type of floats") {
  const TempFolder folder;
  Sight sight(FolderWith(folder, "{}"));
  const TensorInfo info = Info(DType::kFloat32, {3});
  std::array<float, 3> values = {1, -std::numeric_limits<float>::max(),
                                 std::numeric_limits<float>::denorm_min()};
  sight.AddTensors({{&info, values.data()}});
  CHECK(Contains(sight.Text(), "edgepack_inputs_not_finite_total{model=\"\",release=\"\"} 0\n"));
  values[2] = std::numeric_limits<float>::quiet_NaN();
  sight.AddTensors({{&info, values.data()}});
  values[2] = -std::numeric_limits<float>::infinity();
  sight.AddTensors({{&info, values.data()}});
  const TensorInfo half = Info(DType::kFloat16, {2});
  std::array<std::uint16_t, 2> halves = {0x3C00, 0x7C00};  // 1 and infinity
  sight.AddTensors({{&half, halves.data()}});
  const TensorInfo bytes = Info(DType::kUInt8, {2});
  sight.AddTensors({{&bytes, halves.data()}});
  CHECK(Contains(sight.Text(), "edgepack_inputs_not_finite_total{model=\"\",release=\"\"} 3\n"));
}

TEST_CASE("the population stability index, and what is noise of it") {
  // Half and half against 60 and 40 of 100: 0.1 ln 1.2 - 0.1 ln 0.8.
  const std::array<std::int64_t, 3> even = {500000, 500000, 0};
  const std::array<std::int64_t, 3> other = {600000, 400000, 0};
  const Stability moved = StabilityOf(even.data(), other.data(), 3);
  CHECK(moved.index == doctest::Approx(0.1 * std::log(1.2) - 0.1 * std::log(0.8)).epsilon(1e-4));
  // Chi-squared's quantile of 0.999 for one degree of freedom is 10.828.
  CHECK(moved.noise == doctest::Approx(10.828 * 2 / 1e6).epsilon(0.04));
  std::array<std::int64_t, 20> photos = {};
  photos.fill(50);
  const Stability same = StabilityOf(photos.data(), photos.data(), 20);
  CHECK(same.index == 0);
  CHECK(same.noise == doctest::Approx(43.820 * 2 / 1000).epsilon(0.01));  // 19 degrees
  const std::array<std::int64_t, 20> none = {};
  CHECK(StabilityOf(photos.data(), none.data(), 20).noise == 0);
}

TEST_CASE("pictures unlike the release's photos are said") {
  const TempFolder folder;
  WriteFile(folder / "monitor.json", MonitorText());
  Drift drift = Drift::Load(folder / "monitor.json");
  const auto levels = [&] {
    std::vector<int> found;
    for (const Drift::Signal& signal : drift.Signals()) {
      found.push_back(signal.verdict ? static_cast<int>(signal.verdict->level) : -1);
    }
    return found;
  };
  const auto window = [&](double brightness, std::optional<double> score, std::size_t index,
                          double now) {
    for (int i = 0; i < 100; ++i) {
      const bool is_empty = i % 10 == 0 || !score;
      drift.Add({brightness + (i % 2 == 0 ? 0.01 : -0.01), is_empty ? std::nullopt : score,
                 is_empty ? std::nullopt : std::optional<std::size_t>(index)},
                now);
    }
  };
  CHECK(levels() == std::vector<int>{-1, -1, -1});
  window(0.5, 0.99, 3, 1000);
  CHECK(levels() == std::vector<int>{0, 0, 0});
  window(0.2, 0.99, 3, 2000);
  CHECK(levels() == std::vector<int>{2, 0, 0});
  window(0.2, 0.3, 5, 3000);
  CHECK(levels() == std::vector<int>{2, 2, 2});
  CHECK(drift.Signals()[0].verdict->since == 2000);
  CHECK(Contains(drift.Text("release=\"x\""),
                 "edgepack_drift_since_timestamp_seconds{release=\"x\",signal=\"scores\"} 3000\n"));
  window(0.5, 0.99, 3, 4000);
  CHECK(levels() == std::vector<int>{0, 0, 0});
  CHECK(drift.Signals()[0].verdict->since == 0);
  CHECK(sizeof(Sight) < 8192);  // and 20 labels
}

TEST_CASE("pictures that follow each other closely are one") {
  const TempFolder folder;
  const std::string text = Replace(MonitorText("10"), R"("interval_s": 0)", R"("interval_s": 1)");
  WriteFile(folder / "monitor.json", text);
  Drift drift = Drift::Load(folder / "monitor.json");
  for (int i = 0; i < 270; ++i) drift.Add({0, 0, 0}, 1000 + i / 30.0);
  CHECK_FALSE(drift.Signals()[0].verdict);  // nine were taken
  CHECK(Contains(drift.Text("a=\"b\""), "edgepack_drift_window_pictures{a=\"b\"} 9\n"));
  // A clock that was set back.
  for (int i = 0; i < 10; ++i) drift.Add({0, 0, 0}, 500.0 - i);
  CHECK(drift.Signals()[0].verdict);
}

TEST_CASE("a damaged monitor.json is refused, by key") {
  const TempFolder folder;
  const auto refused = [&](const std::string& from, const std::string& to, const char* key) {
    WriteFile(folder / "monitor.json", Replace(MonitorText(), from, to));
    const std::string message = MessageOf([&] { Drift::Load(folder / "monitor.json"); });
    INFO(message);
    CHECK(Contains(message, std::string("monitor.json: ") + key));
  };
  refused("500, 500", "500, 501", "brightness");
  refused("500, 500", "500", "brightness");
  refused("500, 500", "-1, 500", "brightness");
  refused("\"index\": [3]", "\"index\": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21]",
          "classes.index");
  refused("900", "9000", "classes.count");
  refused("\"window\": 100", "\"window\": 0", "window");
  refused("\"interval_s\": 0", "\"interval_s\": -1", "interval_s");
  refused("\"notice\": 0.1", "\"notice\": 0.5", "alarm");
  refused("\"notice\": 0.1", "\"notice\": 0", "notice");
  refused("\"photos\": 1000", "\"photos\": 0", "photos");
  refused("\"photos\": 1000", "\"photos\": 1000, \"more\": 1", "more");
}

}  // namespace edgepack::testing
