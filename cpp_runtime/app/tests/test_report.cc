#include <limits>
#include <sstream>

#include <doctest/doctest.h>

#include "common/json.h"
#include "report.h"
#include "support.h"

namespace edgepack::testing {
namespace {

JsonDocument Json(const Report& report) {
  std::ostringstream out;
  PrintJson(report, out);
  CHECK(out.str().back() == '\n');
  return {out.str(), "report", "kind"};
}

std::string Text(const Report& report) {
  std::ostringstream out;
  PrintText(report, out);
  return out.str();
}

Report FullReport() {
  Report report;
  report.model = "tiny \"model\"\n";
  report.threads = 2;
  report.cpus = {4, 5};
  report.load_ms = 1.5;
  report.decode_ms = 2;
  report.preprocess_ms = 3;
  report.run_ms = 4;
  report.rss_peak_bytes = 8000000;
  report.arena_bytes = 256;
  report.outputs = {Info(DType::kFloat32, {1, 4})};
  report.top = {{{2, 0.75}, "Egyptian cat"}, {{1, 0.25}, {}}};
  report.bench = Report::Bench{3, {4, 5, 6}};
  report.whole_bench = Report::Bench{1, {7, 9}};
  report.profile = Profile{3,
                           0.125,
                           {{{"conv1x1", "first", "Conv+Relu", 500000}, 3, 0.75, 2.5},
                            {{"pack", "", "layout", 0}, 1, 0.25, {}}}};
  report.expected = Comparison{0.5, 10, 0.1};
  return report;
}

}  // namespace

TEST_CASE("of a model for a GPU it is said which processor runs it") {
  Report report;
  report.model = "m";
  CHECK(!Contains(Text(report), "on the"));
  report.processor = Processor{true, "Mali-G610", 0, "", 0, false};
  CHECK(Contains(Text(report), "on the GPU, Mali-G610\n"));
  report.processor->gpu_bytes = 12300000;
  CHECK(Contains(Text(report), "on the GPU, Mali-G610, 12.30 MB of its memory\n"));
  report.processor->unified = true;
  CHECK(Contains(Text(report), "on the GPU, Mali-G610, 12.30 MB of unified memory\n"));
  std::ostringstream on_gpu;
  PrintJson(report, on_gpu);
  CHECK(
      Contains(on_gpu.str(),
               R"("gpu":"Mali-G610","gpu_bytes":12300000,"unified_memory":true,"gpu_failures":0)"));
  report.processor = Processor{false, "", 3, "it is gone", 0, false};
  CHECK(Contains(Text(report), "on the CPU; 3 runs failed on the GPU: it is gone\n"));
  std::ostringstream json;
  PrintJson(report, json);
  CHECK(Contains(json.str(), R"("processor":{"on":"cpu","gpu_failures":3,"why":"it is gone"})"));
}

TEST_CASE("boxes are written") {
  Report report;
  report.boxes.emplace();
  std::ostringstream empty;
  PrintJson(report, empty);
  CHECK(Contains(empty.str(), "\"boxes\":[]"));
  report.boxes->push_back({{{2, 0.5}, {1, 2}, {3, 4.25}, {{1.5, 2.5}}, {}}, "cat"});
  std::ostringstream json;
  PrintJson(report, json);
  CHECK(Contains(json.str(), R"("boxes":[{"index":2,"label":"cat","score":0.5,"box":[1,2,3,4.25],)"
                             R"("points":[[1.5,2.5]]}])"));
  std::ostringstream text;
  PrintText(report, text);
  CHECK(Contains(text.str(), "   0.5000      2  cat  at 1.0,2.0 to 3.0,4.2\n"));
}

TEST_CASE("what stages say of boxes is written with them") {
  Report report;
  report.boxes.emplace();
  report.boxes->push_back({{{2, 0.5}, {1, 2}, {3, 4}, {}, {}}, "cat"});
  report.boxes->push_back({{{2, 0.25}, {5, 6}, {7, 8}, {}, {}}, "cat"});
  Found::Stage stage;
  stage.name = "breed";
  stage.count = 2;
  stage.dropped = 3;
  stage.failed = 1;
  stage.run_ms = 1.5;
  stage.answers.resize(3);  // the third is of an earlier picture
  stage.answers[0].found.top = {{{7, 0.75}, "tabby"}};
  stage.answers[1].box = 1;
  stage.answers[1].error = "too thin";
  report.stages.push_back(stage);
  std::ostringstream json;
  PrintJson(report, json);
  CHECK(Contains(json.str(), R"("box":[1,2,3,4],"answers":{"breed":{"top":[{"index":7,)"
                             R"("label":"tabby","score":0.75}]}}})"));
  CHECK(Contains(json.str(), R"("box":[5,6,7,8],"answers":{"breed":{"error":"too thin"}}})"));
  CHECK(Contains(json.str(), R"("stages":[{"stage":"breed","boxes":2,"dropped":3,"failed":1,)"
                             R"("run_ms":1.5}])"));
  CHECK(Contains(Text(report), "  breed:\n   0.7500      7  tabby\n"));
  CHECK(Contains(Text(report), "  breed: too thin\n"));
  CHECK(Contains(Text(report), "breed: left out the least likely 3 of 5 boxes\n"));
}

TEST_CASE("a full report") {
  const JsonDocument document = Json(FullReport());
  JsonObject json = document.Root();
  CHECK(json.String("model") == "tiny \"model\"\n");
  CHECK(json.Ints("cpus").at(1) == 5);
  CHECK(json.Number("load_ms") == 1.5);
  CHECK(json.Int("rss_peak_bytes") == 8000000);
  CHECK(json.Objects("outputs").at(0).String("dtype") == "float32");
  CHECK(json.Objects("outputs").at(0).Ints("shape").at(1) == 4);
  CHECK(json.Objects("top").at(0).String("label") == "Egyptian cat");
  CHECK_FALSE(json.Objects("top").at(1).Has("label"));
  JsonObject bench = json.Object("bench");
  CHECK(bench.Int("runs") == 3);
  CHECK(bench.Number("mean_ms") == 5);
  CHECK(bench.Numbers("times_ms") == std::vector<double>{4, 5, 6});
  JsonObject whole = json.Object("whole_bench");
  CHECK(whole.Int("warmup") == 1);
  CHECK(whole.Numbers("times_ms") == std::vector<double>{7, 9});
  JsonObject profile = json.Object("profile");
  CHECK(profile.Int("runs") == 3);
  CHECK(profile.Number("overhead_ms") == 0.125);
  std::vector<JsonObject> layers = profile.Objects("layers");
  REQUIRE(layers.size() == 2);
  CHECK(layers[0].String("layer") == "first");
  CHECK(layers[0].String("operator") == "Conv+Relu");
  CHECK(layers[0].String("kernel") == "conv1x1");
  CHECK(layers[0].Int("macs") == 500000);
  CHECK(layers[0].Number("ms") == 3);
  CHECK(layers[0].Number("share") == 0.75);
  CHECK(layers[0].Number("gflops") == 2.5);
  CHECK_FALSE(layers[1].Has("gflops"));
  CHECK(json.Object("expected").Number("max_abs_error") == 0.5);
  const std::string text = Text(FullReport());
  CHECK(Contains(text, "0.7500      2  Egyptian cat\n"));
  CHECK(Contains(text, "load 1.50 ms, decode 2.00 ms, preprocess 3.00 ms, run 4.00 ms\n"));
  CHECK(Contains(text, "2 threads, parameters"));
  CHECK(Contains(text, "3 runs after 3 to warm up: mean 5.00 ms"));
  CHECK(Contains(text, "through all stages: 2 runs after 1 to warm up: mean 8.00 ms"));
  CHECK(Contains(text, "     3.000  75.0%      2.5  first Conv+Relu\n"));
  CHECK(Contains(text, "     1.000  25.0%        -  pack layout\n"));
  CHECK(Contains(text, "outputs agree: largest error 5.00e-01"));
}

TEST_CASE("what was not asked for is not there") {
  const JsonDocument document = Json({});
  const JsonObject json = document.Root();
  for (const char* key :
       {"model", "threads", "load_ms", "run_ms", "top", "bench", "profile", "expected"}) {
    CAPTURE(key);
    CHECK_FALSE(json.Has(key));
  }
  CHECK(Text({}).empty());
}

TEST_CASE("numbers that JSON does not know are null") {
  Report report = FullReport();
  report.expected = Comparison{std::numeric_limits<double>::quiet_NaN(), 1, 0.1};
  report.top = {{{0, std::numeric_limits<double>::infinity()}, {}}};
  const JsonDocument document = Json(report);
  JsonObject json = document.Root();
  CHECK_FALSE(json.Object("expected").OptionalNumber("max_abs_error"));
  CHECK_FALSE(json.Objects("top").at(0).OptionalNumber("score"));
}

}  // namespace edgepack::testing
