#include <limits>
#include <sstream>

#include <doctest/doctest.h>

#include "platform/tvm_ffi/json.h"
#include "report.h"
#include "support.h"

namespace edgepack::testing {
namespace {

JsonNode Json(const Report& report) {
  std::ostringstream out;
  PrintJson(report, out);
  CHECK(out.str().back() == '\n');
  return JsonNode::Parse(out.str(), "report");
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
  report.profile = Profile{3,
                           0.125,
                           {{{"conv1x1", "first", "Conv+Relu", 500000}, 3, 0.75, 2.5},
                            {{"pack", "", "layout", 0}, 1, 0.25, {}}}};
  report.expected = Comparison{0.5, 10, 0.1};
  return report;
}

}  // namespace

TEST_CASE("a full report") {
  const JsonNode json = Json(FullReport());
  CHECK(json["model"].String() == "tiny \"model\"\n");
  CHECK(json["cpus"].Elements().at(1).Int() == 5);
  CHECK(json["load_ms"].Number() == 1.5);
  CHECK(json["rss_peak_bytes"].Int() == 8000000);
  CHECK(json["outputs"].Elements().at(0)["dtype"].String() == "float32");
  CHECK(json["outputs"].Elements().at(0)["shape"].Elements().at(1).Int() == 4);
  CHECK(json["top"].Elements().at(0)["label"].String() == "Egyptian cat");
  CHECK_FALSE(json["top"].Elements().at(1).Has("label"));
  CHECK(json["bench"]["runs"].Int() == 3);
  CHECK(json["bench"]["mean_ms"].Number() == 5);
  CHECK(json["bench"]["times_ms"].Elements().size() == 3);
  CHECK(json["profile"]["runs"].Int() == 3);
  CHECK(json["profile"]["overhead_ms"].Number() == 0.125);
  const std::vector<JsonNode> layers = json["profile"]["layers"].Elements();
  REQUIRE(layers.size() == 2);
  CHECK(layers[0]["layer"].String() == "first");
  CHECK(layers[0]["operator"].String() == "Conv+Relu");
  CHECK(layers[0]["kernel"].String() == "conv1x1");
  CHECK(layers[0]["macs"].Int() == 500000);
  CHECK(layers[0]["ms"].Number() == 3);
  CHECK(layers[0]["share"].Number() == 0.75);
  CHECK(layers[0]["gflops"].Number() == 2.5);
  CHECK_FALSE(layers[1].Has("gflops"));
  CHECK(json["expected"]["max_abs_error"].Number() == 0.5);
  const std::string text = Text(FullReport());
  CHECK(Contains(text, "0.7500      2  Egyptian cat\n"));
  CHECK(Contains(text, "load 1.50 ms, decode 2.00 ms, preprocess 3.00 ms, run 4.00 ms\n"));
  CHECK(Contains(text, "2 threads, parameters"));
  CHECK(Contains(text, "3 runs after 3 to warm up: mean 5.00 ms"));
  CHECK(Contains(text, "     3.000  75.0%      2.5  first Conv+Relu\n"));
  CHECK(Contains(text, "     1.000  25.0%        -  pack layout\n"));
  CHECK(Contains(text, "outputs agree: largest error 5.00e-01"));
}

TEST_CASE("what was not asked for is not there") {
  const JsonNode json = Json({});
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
  const JsonNode json = Json(report);
  CHECK(json["expected"]["max_abs_error"].IsNull());
  CHECK(json["top"].Elements().at(0)["score"].IsNull());
}

}  // namespace edgepack::testing
