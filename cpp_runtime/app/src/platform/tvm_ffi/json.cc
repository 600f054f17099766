#include "platform/tvm_ffi/json.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <system_error>
#include <utility>

#include <edgepack/error.h>

#include "memory_map.h"

namespace edgepack {
namespace {

namespace ffi = tvm::ffi;

/// tvm_ffi's parser recurses per nesting level and has no limit of its own.
constexpr int kMaxDepth = 32;

bool NestedTooDeep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxDepth) return true;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return false;
}

}  // namespace

JsonNode JsonNode::File(const std::filesystem::path& path) {
  try {
    const MemoryMap file = MemoryMap::File(path);
    return Parse(std::string_view(file.data(), file.size()), path.filename().string());
  } catch (const std::system_error& error) {
    throw BundleError("cannot read " + path.string() + ": " + error.code().message());
  }
}

JsonNode JsonNode::Parse(std::string_view text, std::string where) {
  if (NestedTooDeep(text)) throw BundleError(where + ": nested too deep");
  ffi::String error;
  ffi::json::Value value = ffi::json::Parse(ffi::String(text.data(), text.size()), &error);
  if (!error.empty())
    throw BundleError(where + " is not JSON: " + std::string(error.data(), error.size()));
  return {std::move(value), std::move(where)};
}

void JsonNode::Fail(const std::string& message) const {
  throw BundleError(where_ + ": " + message);
}

bool JsonNode::Has(const char* key) const {
  const auto object = value_.as<ffi::json::Object>();
  if (!object) Fail("is not an object");
  return object->count(ffi::String(key)) != 0;
}

JsonNode JsonNode::operator[](const char* key) const {
  const auto object = value_.as<ffi::json::Object>();
  if (!object) Fail("is not an object");
  const auto found = object->find(ffi::String(key));
  if (found == object->end()) Fail(std::string("has no '") + key + "'");
  // "graph.json: calls[3]" + "args" -> "graph.json: calls[3].args"
  const char* separator = where_.find(": ") == std::string::npos ? ": " : ".";
  return {(*found).second, where_ + separator + key};
}

std::vector<JsonNode> JsonNode::Elements() const {
  const auto array = value_.as<ffi::json::Array>();
  if (!array) Fail("is not a list");
  std::vector<JsonNode> nodes;
  nodes.reserve(array->size());
  for (const ffi::Any& value : *array) {
    nodes.push_back({value, where_ + "[" + std::to_string(nodes.size()) + "]"});
  }
  return nodes;
}

void JsonNode::CheckKeys(const std::vector<std::string_view>& known) const {
  const auto object = value_.as<ffi::json::Object>();
  if (!object) Fail("is not an object");
  for (const auto& [key, value] : *object) {
    const auto name = key.cast<ffi::String>();
    const std::string_view text(name.data(), name.size());
    if (std::find(known.begin(), known.end(), text) == known.end()) {
      Fail("unknown key '" + std::string(text) + "'");
    }
  }
}

bool JsonNode::IsNull() const { return value_.type_index() == ffi::TypeIndex::kTVMFFINone; }

std::int64_t JsonNode::Int(std::int64_t min, std::int64_t max) const {
  if (value_.type_index() != ffi::TypeIndex::kTVMFFIInt) Fail("is not a whole number");
  const auto value = value_.cast<std::int64_t>();
  if (value < min || value > max) {
    Fail(std::to_string(value) + " is not between " + std::to_string(min) + " and " +
         std::to_string(max));
  }
  return value;
}

std::size_t JsonNode::Size() const {
  constexpr auto kLimit = std::numeric_limits<std::size_t>::max() / 2;
  return static_cast<std::size_t>(Int(0, static_cast<std::int64_t>(kLimit)));
}

double JsonNode::Number() const {
  double value = 0;
  if (value_.type_index() == ffi::TypeIndex::kTVMFFIInt) {
    value = static_cast<double>(value_.cast<std::int64_t>());
  } else if (value_.type_index() == ffi::TypeIndex::kTVMFFIFloat) {
    value = value_.cast<double>();
  } else {
    Fail("is not a number");
  }
  if (!std::isfinite(value)) Fail("is not a finite number");
  return value;
}

std::string JsonNode::String() const {
  const auto text = value_.as<ffi::String>();
  if (!text) Fail("is not a string");
  return {text->data(), text->size()};
}

}  // namespace edgepack
