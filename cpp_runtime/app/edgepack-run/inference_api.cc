#include "inference_api.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include <edgepack/errors.h>

#include "common/json.h"
#include "json_lists.h"

namespace edgepack {
namespace {

/// Around the tensors: names, shapes, parameters.
constexpr std::size_t kJsonBytes = std::size_t{64} << 10U;
/// A number of 24 characters at most ("-1.7976931348623157e+308"), and what separates it.
constexpr std::size_t kNumberBytes = 32;

// In DType's order.
constexpr std::array<const char*, 12> kDatatypes = {"BOOL",   "INT8",  "UINT8",  "INT16",
                                                    "UINT16", "INT32", "UINT32", "INT64",
                                                    "UINT64", "FP16",  "FP32",   "FP64"};

std::string DatatypeOf(DType dtype) { return kDatatypes.at(static_cast<std::size_t>(dtype)); }

void WriteInfo(const TensorInfo& info, JsonWriter* json) {
  json->BeginObject().Key("name").String(info.name).Key("datatype").String(DatatypeOf(info.dtype));
  WriteList("shape", info.shape, json, [&](std::int64_t size) { json->Int(size); });
}

template <typename T>
void Put(T value, std::size_t index, void* data) {
  std::memcpy(static_cast<char*>(data) + index * sizeof(T), &value, sizeof(T));
}

/// Writes integers of type T, and says whether `number` is one.
template <typename T>
bool PutInt(const JsonNumber& number, std::size_t index, void* data) {
  if (number.kind == JsonNumber::Kind::kUnsigned) {
    if (number.whole > static_cast<std::uint64_t>(std::numeric_limits<T>::max())) return false;
    Put(static_cast<T>(number.whole), index, data);
    return true;
  }
  if (number.kind != JsonNumber::Kind::kNegative) return false;
  if (number.negative < static_cast<std::int64_t>(std::numeric_limits<T>::min())) return false;
  Put(static_cast<T>(number.negative), index, data);
  return true;
}

bool PutNumber(DType dtype, const JsonNumber& number, std::size_t index, void* data) {
  const bool boolean = number.kind == JsonNumber::Kind::kBool;
  switch (dtype) {
    case DType::kBool:
      if (!boolean) return false;
      Put(static_cast<std::uint8_t>(number.whole), index, data);
      return true;
    case DType::kInt8:
      return PutInt<std::int8_t>(number, index, data);
    case DType::kUInt8:
      return PutInt<std::uint8_t>(number, index, data);
    case DType::kInt16:
      return PutInt<std::int16_t>(number, index, data);
    case DType::kUInt16:
      return PutInt<std::uint16_t>(number, index, data);
    case DType::kInt32:
      return PutInt<std::int32_t>(number, index, data);
    case DType::kUInt32:
      return PutInt<std::uint32_t>(number, index, data);
    case DType::kInt64:
      return PutInt<std::int64_t>(number, index, data);
    case DType::kUInt64:
      return PutInt<std::uint64_t>(number, index, data);
    case DType::kFloat32: {
      // Beyond its range is no value of it.
      if (boolean || std::fabs(number.real) > std::numeric_limits<float>::max()) return false;
      Put(static_cast<float>(number.real), index, data);
      return true;
    }
    case DType::kFloat64:
      if (boolean) return false;
      Put(number.real, index, data);
      return true;
    case DType::kFloat16:
      break;
  }
  return false;
}

void ReadData(const TensorInfo& info, void* data, JsonObject* tensor) {
  if (info.dtype == DType::kFloat16) {
    tensor->Fail("data", "FP16 has no form in JSON: send it as binary data");
  }
  const std::size_t count = info.size();
  std::size_t index = 0;
  tensor->ForEachNumber("data", info.shape.size() + 1, [&](const JsonNumber& number) {
    if (index == count) tensor->Fail("data", "more than " + std::to_string(count) + " values");
    if (!PutNumber(info.dtype, number, index, data)) {
      tensor->Fail("data",
                   "value " + std::to_string(index) + " is none of " + DatatypeOf(info.dtype));
    }
    ++index;
  });
  if (index != count) {
    tensor->Fail("data", std::to_string(index) + " values, its shape has " + std::to_string(count));
  }
}

// Where the protocol has something that may be left out, clients whose language has a word for
// nothing (pydantic's None) write null: both say the same.

/// Whether "parameters" has a `key` that is true; `otherwise` if it has none.
bool Flag(const char* key, bool otherwise, JsonObject* of) {
  if (!of->HasValue("parameters")) return otherwise;
  JsonObject parameters = of->Object("parameters");
  return parameters.HasValue(key) ? parameters.Bool(key) : otherwise;
}

void CheckInfo(const TensorInfo& info, JsonObject* tensor) {
  const std::string datatype = tensor->String("datatype");
  if (datatype != DatatypeOf(info.dtype)) {
    tensor->Fail("datatype", datatype + ", the model's is " + DatatypeOf(info.dtype));
  }
  const Shape shape = tensor->Ints("shape");
  if (shape != info.shape) {
    tensor->Fail("shape", ToString(shape) + ", the model's is " + ToString(info.shape));
  }
}

/// The tensors of a request; `binary` is what follows the JSON.
void ReadInputs(JsonObject* top, std::string_view binary, const std::vector<TensorView>& inputs,
                const std::vector<std::size_t>& needed) {
  std::vector<bool> given(inputs.size());
  for (JsonObject& tensor : top->Objects("inputs", inputs.size())) {
    const std::string name = tensor.String("name");
    std::size_t index = 0;
    while (index < inputs.size() && inputs[index].info->name != name) ++index;
    if (index == inputs.size()) tensor.Fail("name", "the model has no input '" + name + "'");
    if (given[index]) tensor.Fail("name", "'" + name + "' is given twice");
    given[index] = true;
    const TensorView& input = inputs[index];
    CheckInfo(*input.info, &tensor);
    if (tensor.HasValue("data")) {
      ReadData(*input.info, input.data, &tensor);
      continue;
    }
    if (!tensor.HasValue("parameters")) tensor.Fail("data", "missing");
    JsonObject parameters = tensor.Object("parameters");
    const std::uint64_t size = parameters.Size("binary_data_size");
    if (size != input.info->bytes || size > binary.size()) {
      parameters.Fail("binary_data_size", std::to_string(size) + "; the tensor has " +
                                              std::to_string(input.info->bytes) + " bytes, " +
                                              std::to_string(binary.size()) + " are left");
    }
    std::memcpy(input.data, binary.data(), input.info->bytes);
    binary.remove_prefix(input.info->bytes);
  }
  for (const std::size_t i : needed) {
    if (!given[i]) top->Fail("inputs", "'" + inputs[i].info->name + "' is missing");
  }
  if (!binary.empty()) {
    top->Fail("inputs", std::to_string(binary.size()) + " bytes follow that belong to none");
  }
}

std::vector<InferenceRequest::Output> ReadOutputs(JsonObject* top,
                                                  const std::vector<TensorInfo>& outputs) {
  const bool binary = Flag("binary_data_output", false, top);
  std::vector<InferenceRequest::Output> wanted;
  const auto want_all = [&] {
    for (std::size_t i = 0; i < outputs.size(); ++i) wanted.push_back({i, binary});
    return wanted;
  };
  if (!top->HasValue("outputs")) return want_all();
  for (JsonObject& tensor : top->Objects("outputs", outputs.size())) {
    const std::string name = tensor.String("name");
    std::size_t index = 0;
    while (index < outputs.size() && outputs[index].name != name) ++index;
    if (index == outputs.size()) tensor.Fail("name", "the model has no output '" + name + "'");
    wanted.push_back({index, Flag("binary_data", binary, &tensor)});
  }
  // A list of none, as clients write it that begin with an empty one, asks for all as well.
  return wanted.empty() ? want_all() : wanted;
}

/// As many digits as bring a float back.
void WriteFloat(double value, JsonWriter* json) {
  if (!std::isfinite(value)) {
    json->Null();
    return;
  }
  char digits[32];
  const int size = std::snprintf(digits, sizeof(digits), "%.9g", value);
  json->Raw({digits, static_cast<std::size_t>(size)});
}

template <typename T>
void WriteInt(const void* data, std::size_t index, JsonWriter* json) {
  T value = 0;
  std::memcpy(&value, static_cast<const char*>(data) + index * sizeof(T), sizeof(T));
  json->Raw(std::to_string(value));
}

void WriteValue(DType dtype, const void* data, std::size_t index, JsonWriter* json) {
  switch (dtype) {
    case DType::kBool:
      json->Bool(ElementAt(dtype, data, index) != 0);
      return;
    case DType::kInt64:
      return WriteInt<std::int64_t>(data, index, json);
    case DType::kUInt64:
      return WriteInt<std::uint64_t>(data, index, json);
    case DType::kFloat16:
    case DType::kFloat32:
      return WriteFloat(ElementAt(dtype, data, index), json);
    default:
      json->Number(ElementAt(dtype, data, index));
  }
}

}  // namespace

std::string ModelMetadata(const std::string& name, const std::vector<TensorInfo>& inputs,
                          const std::vector<TensorInfo>& outputs) {
  JsonWriter json;
  json.BeginObject().Key("name").String(name).Key("versions").BeginArray().String("1").EndArray();
  json.Key("platform").String("edgepack");
  const auto write = [&](const TensorInfo& info) {
    WriteInfo(info, &json);
    json.EndObject();
  };
  WriteList("inputs", inputs, &json, write);
  WriteList("outputs", outputs, &json, write);
  return json.EndObject().text() + "\n";
}

std::size_t MostInferenceBytes(const std::vector<TensorInfo>& inputs) {
  std::size_t bytes = kJsonBytes;
  for (const TensorInfo& info : inputs) bytes += kNumberBytes * info.size();
  return bytes;
}

InferenceRequest ReadInference(const HttpRequest& request, const std::vector<TensorView>& inputs,
                               const std::vector<TensorInfo>& outputs,
                               const std::vector<ModelState>& states) {
  const std::string_view body = request.body;
  const std::size_t json_bytes = request.json_bytes.value_or(body.size());
  if (json_bytes > body.size()) {
    throw UsageError("Inference-Header-Content-Length: " + std::to_string(json_bytes) +
                     ", the body has " + std::to_string(body.size()) + " bytes");
  }
  const std::vector<std::size_t> needed = InputsBesides(states, inputs.size());
  InferenceRequest wanted;
  if (request.json_bytes && json_bytes == 0) {
    // Nothing but the bytes of the only input.
    if (needed.size() != 1 || body.size() != inputs[needed.front()].info->bytes) {
      throw UsageError("a tensor without JSON has to be all of the model's one input",
                       "Inference-Header-Content-Length says how long the JSON is");
    }
    std::memcpy(inputs[needed.front()].data, body.data(), body.size());
    for (std::size_t i = 0; i < outputs.size(); ++i) wanted.outputs.push_back({i, true});
    return wanted;
  }
  const JsonDocument document(body.substr(0, json_bytes), "request", "request");
  JsonObject top = document.Root();
  if (top.HasValue("id")) wanted.id = top.String("id");
  wanted.outputs = ReadOutputs(&top, outputs);
  ReadInputs(&top, body.substr(json_bytes), inputs, needed);
  return wanted;
}

HttpAnswer WriteInference(const InferenceRequest& request, const std::string& model,
                          const std::vector<TensorView>& outputs) {
  JsonWriter json;
  std::string binary;
  bool any_binary = false;
  json.BeginObject().Key("model_name").String(model).Key("model_version").String("1");
  if (!request.id.empty()) json.Key("id").String(request.id);
  WriteList("outputs", request.outputs, &json, [&](const InferenceRequest::Output& output) {
    const TensorView& tensor = outputs.at(output.index);
    const TensorInfo& info = *tensor.info;
    WriteInfo(info, &json);
    if (output.binary) {
      any_binary = true;
      WriteCount("binary_data_size", info.bytes, &json.Key("parameters").BeginObject());
      json.EndObject();
      binary.append(static_cast<const char*>(tensor.data), info.bytes);
    } else {
      json.Key("data").BeginArray();
      for (std::size_t i = 0; i < info.size(); ++i) {
        WriteValue(info.dtype, tensor.data, i, &json);
      }
      json.EndArray();
    }
    json.EndObject();
  });
  json.EndObject();
  if (!any_binary) return {200, "application/json", json.text()};
  return {200, "application/octet-stream", json.text() + binary,
          "Inference-Header-Content-Length: " + std::to_string(json.text().size()) + "\r\n"};
}

}  // namespace edgepack
