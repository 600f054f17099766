#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "common/json.h"
#include "inference_api.h"
#include "support.h"

namespace edgepack::testing {
namespace {

/// A tensor with memory of its own.
class Own {
 public:
  Own(const char* name, DType dtype, Shape shape) : info_(Info(dtype, std::move(shape))) {
    info_.name = name;
    data_.resize(info_.bytes);
  }
  TensorView view() { return {&info_, data_.data()}; }
  [[nodiscard]] const TensorInfo& info() const { return info_; }
  template <typename T>
  T At(std::size_t index) const {
    return reinterpret_cast<const T*>(data_.data())[index];
  }

 private:
  TensorInfo info_;
  std::vector<char> data_;
};

HttpRequest JsonRequest(const std::string& text) {
  HttpRequest request;
  request.body = text;
  return request;
}

std::string TensorText(const std::string& datatype, const std::string& data) {
  return R"({"inputs": [{"name": "x", "datatype": ")" + datatype + R"(", "shape": [2], "data": )" +
         data + "}]}";
}

}  // namespace

TEST_CASE("tensors in JSON") {
  Own x("x", DType::kFloat32, {2, 2});
  Own n("n", DType::kInt64, {1});
  Own y("y", DType::kFloat32, {2});
  const InferenceRequest request =
      ReadInference(JsonRequest(R"({"id": "seven", "parameters": {"other": 3},
        "inputs": [{"name": "n", "datatype": "INT64", "shape": [1], "data": [-9007199254740993]},
                   {"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [[1, 2.5], [-3e2, 0]]}],
        "outputs": [{"name": "y"}]})"),
                    {x.view(), n.view()}, {y.info()});
  CHECK(request.id == "seven");
  REQUIRE(request.outputs.size() == 1);
  CHECK_FALSE(request.outputs[0].binary);
  CHECK(n.At<std::int64_t>(0) == -9007199254740993);
  CHECK(x.At<float>(1) == 2.5F);
  CHECK(x.At<float>(2) == -300.0F);
}

TEST_CASE("null is what may be left out") {
  Own x("x", DType::kFloat32, {2});
  Own y("y", DType::kFloat32, {2});
  Own z("z", DType::kFloat32, {2});
  const std::string tensor = R"({"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2],
                                 "parameters": null})";
  const std::string parameters = R"({"binary_data_output": null})";
  for (const char* const outputs : {"null", "[]"}) {
    for (const std::string& of_request : {std::string("null"), parameters}) {
      const InferenceRequest request = ReadInference(
          JsonRequest(R"({"id": null, "parameters": )" + of_request + R"(, "inputs": [)" + tensor +
                      R"(], "outputs": )" + outputs + "}"),
          {x.view()}, {y.info(), z.info()});
      CHECK(request.id.empty());
      CHECK(request.outputs.size() == 2);
      CHECK(x.At<float>(1) == 2);
    }
  }
  const InferenceRequest one = ReadInference(
      JsonRequest(R"({"inputs": [)" + tensor +
                  R"(], "outputs": [{"name": "z", "parameters": {"binary_data": null}},
                                    {"name": "y", "parameters": null}]})"),
      {x.view()}, {y.info(), z.info()});
  REQUIRE(one.outputs.size() == 2);
  CHECK(one.outputs[0].index == 1);
  CHECK_FALSE(one.outputs[0].binary);
  // What has to be there must not be null.
  for (const char* const key : {"name", "datatype", "shape", "data"}) {
    std::string bad = R"({"inputs": [{"name": "x", "datatype": "FP32", "shape": [2],
                                      "data": [1, 2]}]})";
    const std::size_t at = bad.find(key) + std::string(key).size() + 3;
    bad.replace(at,
                bad.find_first_of(bad[at] == '[' ? "]" : ",", at) - at + (bad[at] == '[' ? 1 : 0),
                "null");
    CAPTURE(bad);
    CHECK_THROWS_AS((void)ReadInference(JsonRequest(bad), {x.view()}, {y.info()}), Error);
  }
}

TEST_CASE("values that a datatype has, and others") {
  struct Case {
    DType dtype;
    std::string datatype;
    std::string data;
    bool fits;
  };
  const std::vector<Case> cases = {
      {DType::kBool, "BOOL", "[true, false]", true},
      {DType::kBool, "BOOL", "[1, 0]", false},
      {DType::kUInt8, "UINT8", "[0, 255]", true},
      {DType::kUInt8, "UINT8", "[0, 256]", false},
      {DType::kUInt8, "UINT8", "[0, -1]", false},
      {DType::kUInt8, "UINT8", "[0, 1.0]", false},
      {DType::kInt8, "INT8", "[-128, 127]", true},
      {DType::kInt8, "INT8", "[-129, 0]", false},
      {DType::kInt16, "INT16", "[-32768, 32768]", false},
      {DType::kUInt16, "UINT16", "[0, 65535]", true},
      {DType::kInt32, "INT32", "[-2147483648, 2147483647]", true},
      {DType::kUInt32, "UINT32", "[4294967296, 0]", false},
      {DType::kInt64, "INT64", "[9223372036854775808, 0]", false},
      {DType::kUInt64, "UINT64", "[18446744073709551615, 0]", true},
      {DType::kFloat32, "FP32", "[1e39, 0]", false},
      {DType::kFloat32, "FP32", "[true, 0]", false},
      {DType::kFloat32, "FP32", "[null, 0]", false},
      {DType::kFloat32, "FP32", "[0]", false},
      {DType::kFloat32, "FP32", "[0, 0, 0]", false},
      {DType::kFloat32, "FP32", "[[0], [0]]", true},
      {DType::kFloat32, "FP32", "[[[0]], [0]]", false},
      {DType::kFloat32, "FP32", "0", false},
      {DType::kFloat64, "FP64", "[1e300, 0]", true},
      {DType::kFloat16, "FP16", "[0, 0]", false},
  };
  for (const Case& one : cases) {
    CAPTURE(one.datatype);
    CAPTURE(one.data);
    Own x("x", one.dtype, {2});
    const std::string error = ErrorOf(
        [&] { ReadInference(JsonRequest(TensorText(one.datatype, one.data)), {x.view()}, {}); });
    CHECK(error.empty() == one.fits);
    CHECK((one.fits || Contains(error, "request: request: inputs[0].data: ")));
  }
}

TEST_CASE("requests that do not fit the model") {
  Own x("x", DType::kFloat32, {2});
  Own y("y", DType::kFloat32, {2});
  const std::string good = TensorText("FP32", "[1, 2]");
  const auto error = [&](const std::string& text) {
    return ErrorOf([&] { ReadInference(JsonRequest(text), {x.view()}, {y.info()}); });
  };
  CHECK(error(good).empty());
  CHECK(Contains(error(""), "not JSON"));
  CHECK(Contains(error("[]"), "no JSON object"));
  CHECK(Contains(error("{}"), "inputs: missing"));
  CHECK(Contains(error(R"({"inputs": []})"), "'x' is missing"));
  CHECK(Contains(error(R"({"inputs": [{}, {}]})"), "more than 1"));
  CHECK(Contains(error(Replace(good, "\"x\"", "\"z\"")), "no input 'z'"));
  CHECK(Contains(error(Replace(good, "FP32", "FP64")), "FP64, the model's is FP32"));
  CHECK(Contains(error(Replace(good, "[2]", "[1, 2]")), "(1, 2), the model's is (2,)"));
  CHECK(Contains(error(Replace(good, "\"data\": [1, 2]", "\"a\": 1")), "data: missing"));
  CHECK(Contains(error(Replace(good, "]}]}", "]}], \"outputs\": [{\"name\": \"x\"}]}")),
                 "no output 'x'"));
}

TEST_CASE("binary tensors") {
  Own x("x", DType::kFloat16, {2});
  Own n("n", DType::kInt32, {1});
  Own y("y", DType::kFloat32, {2});
  const std::string json =
      R"({"inputs": [{"name": "x", "datatype": "FP16", "shape": [2], "parameters": {"binary_data_size": 4}},
                     {"name": "n", "datatype": "INT32", "shape": [1], "data": [7]}],
          "parameters": {"binary_data_output": true}})";
  HttpRequest request = JsonRequest(json + "abcd");
  request.json_bytes = json.size();
  const std::vector<TensorView> inputs = {x.view(), n.view()};
  const InferenceRequest read = ReadInference(request, inputs, {y.info()});
  CHECK(x.At<char>(3) == 'd');
  REQUIRE(read.outputs.size() == 1);
  CHECK(read.outputs[0].binary);

  const auto error = [&] { return ErrorOf([&] { ReadInference(request, inputs, {}); }); };
  request.body += "e";
  CHECK(Contains(error(), "1 bytes follow that belong to none"));
  request.body = json + "abc";
  CHECK(Contains(error(), "binary_data_size: 4; the tensor has 4 bytes, 3 are left"));
  request.json_bytes = request.body.size() + 1;
  CHECK(Contains(error(), "Inference-Header-Content-Length"));
  // Nothing but the only input's bytes.
  request.json_bytes = 0;
  CHECK(Contains(error(), "the model's one input"));
  request.body = "wxyz";
  CHECK(ReadInference(request, {x.view()}, {y.info()}).outputs[0].binary);
  CHECK(x.At<char>(0) == 'w');
  // A state may be left out.
  request.body = "abcd";
  CHECK(ReadInference(request, inputs, {y.info()}, {{1, 0}}).outputs[0].binary);
  CHECK(x.At<char>(0) == 'a');
}

TEST_CASE("answers") {
  const float values[] = {0.1F, -INFINITY};
  const std::int64_t big[] = {INT64_MIN};
  const bool flags[] = {true};
  TensorInfo y = Info(DType::kFloat32, {2});
  y.name = "y";
  TensorInfo n = Info(DType::kInt64, {1});
  n.name = "n";
  TensorInfo b = Info(DType::kBool, {1});
  b.name = "b";
  // NOLINTBEGIN(cppcoreguidelines-pro-type-const-cast): they are only read
  const std::vector<TensorView> outputs = {{&y, const_cast<float*>(values)},
                                           {&n, const_cast<std::int64_t*>(big)},
                                           {&b, const_cast<bool*>(flags)}};
  // NOLINTEND(cppcoreguidelines-pro-type-const-cast)
  InferenceRequest request;
  request.id = "7";
  request.outputs = {{0, false}, {1, false}, {2, false}};
  HttpAnswer answer = WriteInference(request, "tiny", outputs);
  CHECK(answer.content_type == "application/json");
  CHECK(answer.body ==
        R"({"model_name":"tiny","model_version":"1","id":"7","outputs":[)"
        R"({"name":"y","datatype":"FP32","shape":[2],"data":[0.100000001,null]},)"
        R"({"name":"n","datatype":"INT64","shape":[1],"data":[-9223372036854775808]},)"
        R"({"name":"b","datatype":"BOOL","shape":[1],"data":[true]}]})");
  request = {"", {{1, false}, {0, true}}};
  answer = WriteInference(request, "tiny", outputs);
  CHECK(answer.content_type == "application/octet-stream");
  const std::string json =
      R"({"model_name":"tiny","model_version":"1","outputs":[)"
      R"({"name":"n","datatype":"INT64","shape":[1],"data":[-9223372036854775808]},)"
      R"({"name":"y","datatype":"FP32","shape":[2],"parameters":{"binary_data_size":8}}]})";
  CHECK(answer.headers ==
        "Inference-Header-Content-Length: " + std::to_string(json.size()) + "\r\n");
  CHECK(answer.body == json + std::string(reinterpret_cast<const char*>(values), sizeof(values)));
}

TEST_CASE("what a model takes") {
  TensorInfo x = Info(DType::kUInt8, {1, 2});
  x.name = "x";
  TensorInfo y = Info(DType::kFloat16, {});
  y.name = "y";
  CHECK(ModelMetadata("tiny", {x}, {y}) ==
        R"({"name":"tiny","versions":["1"],"platform":"edgepack",)"
        R"("inputs":[{"name":"x","datatype":"UINT8","shape":[1,2]}],)"
        R"("outputs":[{"name":"y","datatype":"FP16","shape":[]}]})"
        "\n");
  CHECK(MostInferenceBytes({x}) < MostInferenceBytes({x, y}));
}

}  // namespace edgepack::testing
