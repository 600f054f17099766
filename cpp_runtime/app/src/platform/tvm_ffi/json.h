#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/extra/json.h>

namespace edgepack {

/// A value of a bundle's JSON file that knows where it stands, so that every wrong type or missing
/// key is a BundleError naming file and place ("graph.json: calls[3].args").
class JsonNode {
 public:
  /// Parses a whole file.
  static JsonNode File(const std::filesystem::path& path);
  /// Parses `text`; `where` stands for the file in messages.
  static JsonNode Parse(std::string_view text, std::string where);

  /// Members and elements.
  [[nodiscard]] bool Has(const char* key) const;
  [[nodiscard]] JsonNode operator[](const char* key) const;
  [[nodiscard]] std::vector<JsonNode> Elements() const;
  /// Fails if the object has a key that is not in `known`.
  void CheckKeys(const std::vector<std::string_view>& known) const;

  [[nodiscard]] bool IsNull() const;
  [[nodiscard]] std::int64_t Int(std::int64_t min = 0,
                                 std::int64_t max = std::numeric_limits<std::int64_t>::max()) const;
  /// A size in bytes or a count that fits this machine's memory.
  [[nodiscard]] std::size_t Size() const;
  /// A finite number.
  [[nodiscard]] double Number() const;
  [[nodiscard]] std::string String() const;

  [[noreturn]] void Fail(const std::string& message) const;

 private:
  JsonNode(tvm::ffi::json::Value value, std::string where)
      : value_(std::move(value)), where_(std::move(where)) {}

  tvm::ffi::json::Value value_;
  std::string where_;
};

}  // namespace edgepack
