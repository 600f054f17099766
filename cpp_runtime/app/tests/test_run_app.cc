#include <sstream>

#include <doctest/doctest.h>
#include <opencv2/imgcodecs.hpp>

#include "common/json.h"
#include "run_app.h"
#include "support.h"

namespace edgepack::testing {
namespace {

struct Result {
  int code;
  std::string out;
  std::string err;

  [[nodiscard]] JsonDocument json() const { return {out, "output", "kind"}; }
};

Result Run(const TempFolder& bundle, std::vector<std::string> words) {
  words.insert(words.end(), {"--bundle", bundle.path().string()});
  std::ostringstream out;
  std::ostringstream err;
  const int code = RunApp(words, out, err);
  return {code, out.str(), err.str()};
}

/// The tiny model behind a preprocessing that makes its (1, 4) out of a 1 x 4 gray photo... which
/// is a tensor of four dimensions, so the graph's x is one too.
void WriteImageBundle(const TempFolder& folder) {
  WriteBundle(folder.path());
  std::string graph = Replace(GraphText(), "[1, 4]", "[1, 1, 1, 4]");
  WriteFile(folder / "model" / "graph.json", graph);
  WriteFile(folder / "preprocess.json", R"({
    "format": "edgepack-preprocess", "version": 1, "input": "x", "color": "gray", "resize": null,
    "interpolation": "linear", "crop": null, "scale": 1, "mean": [1], "std": [0.5],
    "layout": "NCHW", "dtype": "float32", "accept": []})");
  cv::Mat photo(1, 4, CV_8UC1);
  for (int x = 0; x < 4; ++x) photo.data[x] = static_cast<unsigned char>(x + 1);
  REQUIRE(cv::imwrite((folder / "photo.png").string(), photo));
}

}  // namespace

TEST_CASE("the golden test") {
  const TempFolder folder;
  WriteBundle(folder.path());
  const Result result = Run(folder, {"--golden", "--json", "--threads", "2", "--bench", "4"});
  CHECK(result.code == 0);
  CHECK(result.err.empty());
  const JsonDocument document = result.json();
  JsonObject json = document.Root();
  CHECK(json.String("model") == "tiny");
  CHECK(json.Int("threads") == 2);
  CHECK(json.Object("expected").Number("max_abs_error") == 0);
  CHECK(json.Object("bench").Int("warmup") == 3);
  CHECK(json.Object("bench").Numbers("times_ms").size() == 4);
  CHECK(json.Int("rss_peak_bytes") > 100000);
  std::vector<JsonObject> top = json.Objects("top");
  REQUIRE(top.size() == 4);
  CHECK(top[0].Int("index") == 3);
  CHECK_FALSE(top[0].Has("label"));
  CHECK(top[1].String("label") == "cat");
}

TEST_CASE("all is loaded, and nothing run") {
  const TempFolder folder;
  WriteBundle(folder.path());
  WriteFloats(folder / "golden" / "output.npy", {1, 4}, {0, 0, 0, 0});
  const Result result = Run(folder, {"--load-only", "--json"});
  CHECK(result.code == 0);
  JsonDocument document = result.json();
  JsonObject root = document.Root();
  CHECK(root.String("model") == "tiny");
  CHECK(!root.Has("run_ms"));
  WriteFile(folder / "golden" / "input.npy", "no tensor");
  CHECK(Run(folder, {"--load-only"}).code == 5);
  std::filesystem::remove(folder / "golden" / "input.npy");
  CHECK(Run(folder, {"--load-only"}).code == 0);
  WriteFile(folder / "postprocess.json", "{}");
  CHECK(Run(folder, {"--load-only"}).code == 5);
}

TEST_CASE("a profile has every call") {
  const TempFolder folder;
  WriteBundle(folder.path());
  const JsonDocument document =
      Run(folder, {"--golden", "--json", "--bench", "5", "--profile"}).json();
  JsonObject profile = document.Root().Object("profile");
  CHECK(profile.Int("runs") == 5);
  std::vector<JsonObject> layers = profile.Objects("layers");
  REQUIRE(layers.size() == 2);
  CHECK(layers[0].String("operator") == "Add");
  CHECK(layers[0].Int("macs") == 6000);
  double shares = 0;
  for (JsonObject& layer : layers) shares += layer.Number("share");
  CHECK(shares == doctest::Approx(1));
}

TEST_CASE("results of layers are written while they are there") {
  const TempFolder folder;
  WriteBundle(folder.path());
  const std::string sum = (folder / "sum.npy").string();
  const std::string again = (folder / "again.npy").string();
  // The first call's result, and the same memory after the second call, which left it alone.
  CHECK(Run(folder, {"--golden", "--dump", "0:2:" + sum, "--dump", "1:2:" + again}).code == 0);
  CHECK(ReadFloats(sum) == std::vector<float>{11, 22, 33, 44});
  CHECK(ReadFloats(again) == ReadFloats(sum));

  const Result call = Run(folder, {"--golden", "--dump", "2:2:" + sum});
  CHECK(call.code == 3);
  CHECK(Contains(call.err, "the plan has 2 calls, there is no number 2"));
  const Result tensor = Run(folder, {"--golden", "--dump", "1:4:" + sum});
  CHECK(tensor.code == 3);
  CHECK(Contains(tensor.err, "the plan has 4 tensors, there is no number 4"));
}

TEST_CASE("each run gets its inputs anew") {
  const TempFolder folder;
  WriteBundle(folder.path());
  // The output where the input was, which an arena may well do.
  WriteFile(folder / "model" / "graph.json",
            Replace(GraphText(), "\"offset\": 128", "\"offset\": 0"));
  CHECK(Run(folder, {"--golden"}).code == 0);
  CHECK(Run(folder, {"--golden", "--bench", "3", "--profile", "--warmup", "2"}).code == 0);
}

TEST_CASE("outputs that differ") {
  const TempFolder folder;
  WriteBundle(folder.path());
  WriteFloats(folder / "golden" / "output.npy", {1, 4}, {22, 44, 66, 88.1F});
  CHECK(Run(folder, {"--golden"}).code == 8);
  CHECK(Contains(Run(folder, {"--golden"}).out, "outputs differ"));
  CHECK(Run(folder, {"--golden", "--tolerance", "0.01"}).code == 0);
}

TEST_CASE("an output whose size depends on the data") {
  const TempFolder folder;
  WriteBundle(folder.path());
  WriteFile(folder / "model" / "graph.json", CountedGraphText());
  WriteFloats(folder / "golden" / "output.npy", {2, 1}, {22, 66});
  const std::string out = folder / "out.npy";
  const Result result = Run(folder, {"--golden", "--json", "--output", out});
  CHECK(result.code == 0);
  CHECK(NpyFile::Open(out).info().shape == Shape{2, 1});
  const JsonDocument document = result.json();
  std::vector<JsonObject> outputs = document.Root().Objects("outputs");
  CHECK(outputs.at(0).Ints("shape") == std::vector<std::int64_t>{2, 1});
  CHECK(outputs.at(0).Ints("bound") == std::vector<std::int64_t>{2, 2});
  // Another number of results is another result; what cannot be one is another model's.
  WriteFloats(folder / "golden" / "output.npy", {2, 2}, {22, 44, 66, 88});
  CHECK(Run(folder, {"--golden"}).code == 8);
  WriteFloats(folder / "golden" / "output.npy", {1, 4}, {22, 44, 66, 88});
  CHECK(Run(folder, {"--golden"}).code == 5);
}

TEST_CASE("tensors in and out") {
  const TempFolder folder;
  WriteBundle(folder.path());
  const std::string in = folder / "golden" / "input.npy";
  const std::string out = folder / "out.npy";
  const std::string expected = folder / "golden" / "output.npy";
  CHECK(Run(folder, {"--input", in, "--output", out, "--expected", expected}).code == 0);
  CHECK(ReadFile(out) == ReadFile(expected));
  const float raw[] = {0, 0, 0, 1};
  WriteFile(folder / "in.raw", {reinterpret_cast<const char*>(raw), sizeof(raw)});
  const Result result = Run(folder, {"--input", folder / "in.raw", "--top", "1"});
  CHECK(result.code == 0);
  CHECK(Contains(result.out, "82.0000"));
}

TEST_CASE("tensors that do not fit") {
  const TempFolder folder;
  WriteBundle(folder.path());
  const std::string in = folder / "in.npy";
  WriteFloats(in, {4}, {1, 2, 3, 4});
  Result result = Run(folder, {"--input", in, "--json"});
  CHECK(result.code == 3);
  CHECK(Contains(result.err, "error: " + in + ": input 'x' is float32 (1, 4), not float32 (4,)"));
  CHECK(result.json().Root().Object("error").Int("code") == 3);
  result = Run(folder, {"--input", in, "--input", in});
  CHECK(result.code == 3);
  CHECK(Contains(result.err, "the model has 1 inputs (x), 2 given\n\nhint: give one --input"));
  WriteFile(folder / "in.raw", "12345");
  result = Run(folder, {"--input", folder / "in.raw"});
  CHECK(result.code == 3);
  CHECK(Contains(result.err, "16 bytes; the file has 5"));
  const std::string golden = folder / "golden" / "input.npy";
  result = Run(folder, {"--input", golden, "--expected", in});
  CHECK(result.code == 3);
  CHECK(Contains(result.err, "output 'y' is float32 (1, 4)"));
}

TEST_CASE("mistakes of the user") {
  const TempFolder folder;
  WriteBundle(folder.path());
  CHECK(Run(folder, {"--bogus"}).code == 2);
  CHECK(Run(folder, {"--input", folder / "none.npy"}).code == 2);
  CHECK(Run(folder, {"--input", folder / "none.raw"}).code == 2);
  WriteFile(folder / "bad.npy", "no numpy");
  CHECK(Contains(Run(folder, {"--input", folder / "bad.npy"}).err, "bad.npy is not a .npy file"));
  CHECK(Run(folder, {"--golden", "--output", folder / "no" / "out.npy"}).code == 2);
  CHECK(Run(folder, {"--golden", "--output", "a", "--output", "b"}).code == 2);
  CHECK(Run(folder, {"--golden", "--affinity", "9999"}).code == 2);
  CHECK(Run(folder, {"--version"}).code == 0);
  CHECK(Contains(Run(folder, {"--help"}).out, "--preprocess-only"));
}

TEST_CASE("damaged bundles") {
  const TempFolder folder;
  CHECK(Contains(Run(folder, {"--golden"}).err, "manifest.json: No such file"));
  WriteBundle(folder.path());
  SUBCASE("no bundle at all") {
    std::filesystem::rename(folder / "manifest.json", folder / "moved");
    std::ostringstream out;
    std::ostringstream err;
    CHECK(RunApp({"--golden", "--bundle", folder / "none"}, out, err) == 5);
    CHECK(Contains(err.str(), "there is no bundle in"));
  }
  SUBCASE("graph") { WriteFile(folder / "model" / "graph.json", "{"); }
  SUBCASE("library") { WriteFile(folder / "model" / "model.so", "ELF"); }
  SUBCASE("parameters") { WriteFile(folder / "model" / "params.bin", ""); }
  SUBCASE("golden input gone") { std::filesystem::remove(folder / "golden" / "input.npy"); }
  SUBCASE("golden input damaged") { WriteFile(folder / "golden" / "input.npy", "\x93NUMPY"); }
  SUBCASE("golden input of another model") {
    WriteFloats(folder / "golden" / "input.npy", {1, 3}, {1, 2, 3});
  }
  SUBCASE("golden output of another model") {
    WriteFloats(folder / "golden" / "output.npy", {1, 3}, {1, 2, 3});
  }
  SUBCASE("manifest") { WriteFile(folder / "manifest.json", R"({"scores": "points"})"); }
  const Result result = Run(folder, {"--golden", "--json"});
  CHECK(result.code == 5);
  CHECK(result.json().Root().Object("error").Int("code") == 5);
}

TEST_CASE("a kernel that fails is a bug") {
  const TempFolder folder;
  WriteBundle(folder.path());
  WriteFile(folder / "model" / "graph.json", Replace(GraphText(), "\"add\"", "\"fail\""));
  const Result result = Run(folder, {"--golden"});
  CHECK(result.code == 1);
  CHECK(Contains(result.err, "error: kernel fail: expected 3 rows"));
}

TEST_CASE("classes by the bundle's postprocessing") {
  const TempFolder folder;
  WriteBundle(folder.path());
  WriteFile(folder / "postprocess.json", R"({
    "format": "edgepack-postprocess", "version": 1, "kind": "classes", "outputs": ["y"],
    "scores": "raw", "top": 3, "score": 50})");
  Result result = Run(folder, {"--golden", "--json"});
  CHECK(result.code == 0);
  const JsonDocument document = result.json();
  CHECK(document.Root().Objects("top").size() == 2);  // of 22, 44, 66, 88
  const std::string output = folder / "golden" / "output.npy";
  result = Run(folder, {"--postprocess", output, "--top", "1"});
  CHECK(result.code == 0);
  CHECK(Contains(result.out, "88.0000      3"));
  CHECK(Run(folder, {"--postprocess", output, "--postprocess", output}).code == 2);
  WriteFile(folder / "postprocess.json",
            Replace(ReadFile(folder / "postprocess.json"), "\"y\"", "\"z\""));
  CHECK(Contains(Run(folder, {"--golden"}).err, "postprocess.json: the model has no output 'z'"));
  std::filesystem::remove(folder / "postprocess.json");
  CHECK(Run(folder, {"--postprocess", output}).code == 5);
}

TEST_CASE("a photo's tensors as they are, and the photo drawn") {
  const TempFolder folder;
  WriteImageBundle(folder);
  WriteFile(folder / "postprocess.json", R"({
    "format": "edgepack-postprocess", "version": 1, "kind": "tensors", "outputs": ["y"],
    "count": 2})");
  const std::string photo = folder / "photo.png";
  Result result = Run(folder, {"--image", photo, "--json"});
  CHECK(result.code == 0);
  const JsonDocument document = result.json();
  CHECK(document.Root().Objects("tensors").at(0).Numbers("values") == std::vector<double>{20, 44});
  CHECK(Contains(Run(folder, {"--image", photo}).out, "y: 20 44"));
  const std::string drawn = folder / "drawn.png";
  CHECK(Run(folder, {"--image", photo, "--draw", drawn}).code == 0);
  CHECK(cv::imread(drawn).size() == cv::Size(4, 1));
  CHECK(Run(folder, {"--image", photo, "--draw", folder / "drawn.gif"}).code == 2);
  CHECK(Run(folder, {"--golden", "--draw", drawn}).code == 2);
}

TEST_CASE("a photo") {
  const TempFolder folder;
  WriteImageBundle(folder);
  const std::string photo = folder / "photo.png";
  // (1..4 - 1) / 0.5 = 0 2 4 6; twice the sum with 10 20 30 40
  WriteFloats(folder / "expected.npy", {1, 1, 1, 4}, {20, 44, 68, 92});
  const std::string expected = folder / "expected.npy";
  const std::string tensor = folder / "tensor.npy";
  const std::string resized = folder / "resized.npy";
  Result result =
      Run(folder, {"--image", photo, "--json", "--save-tensor", tensor, "--save-resized", resized});
  CHECK(result.code == 0);
  CHECK(result.json().Root().Has("decode_ms"));
  CHECK(result.json().Root().Has("preprocess_ms"));
  CHECK(NpyFile::Open(tensor).info().shape == Shape{1, 1, 1, 4});
  CHECK(ElementAt(DType::kFloat32, NpyFile::Open(tensor).data(), 3) == 6);
  CHECK(NpyFile::Open(resized).info().shape == Shape{1, 4, 1});
  CHECK(ElementAt(DType::kUInt8, NpyFile::Open(resized).data(), 3) == 4);
  CHECK(NpyFile::Open(resized).info().dtype == DType::kUInt8);

  SUBCASE("without the model") {
    std::filesystem::rename(folder / "model", folder / "moved");
    result =
        Run(folder, {"--image", photo, "--preprocess-only", "--json", "--save-tensor", tensor});
    CHECK(result.code == 0);
    CHECK_FALSE(result.json().Root().Has("run_ms"));
    CHECK(ElementAt(DType::kFloat32, NpyFile::Open(tensor).data(), 3) == 6);
  }
  SUBCASE("that is none") {
    WriteFile(folder / "photo.png", "no photo");
    result = Run(folder, {"--image", photo, "--json"});
    CHECK(result.code == 2);
    const JsonDocument document = result.json();
    JsonObject error = document.Root().Object("error");
    CHECK(Contains(error.String("message"), "not a JPEG or PNG image"));
    CHECK(error.Has("hint"));
  }
  SUBCASE("of another size than the model's") {
    REQUIRE(cv::imwrite(photo, cv::Mat(2, 4, CV_8UC1, cv::Scalar::all(1))));
    CHECK(Run(folder, {"--image", photo}).code == 3);
  }
  SUBCASE("for an input that is not there") {
    const std::string spec = folder / "preprocess.json";
    WriteFile(spec, Replace(ReadFile(spec), "\"input\": \"x\"", "\"input\": \"z\""));
    CHECK(Run(folder, {"--image", photo}).code == 5);
  }
  SUBCASE("for a bundle without preprocessing") {
    std::filesystem::remove(folder / "preprocess.json");
    CHECK(Run(folder, {"--image", photo}).code == 5);
  }
}

}  // namespace edgepack::testing
