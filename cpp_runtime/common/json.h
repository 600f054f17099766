// JSON: reading (yyjson underneath) and writing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

struct yyjson_doc;
struct yyjson_val;

namespace edgepack {

class JsonDocument;

/// A number or a truth value, without loss.
struct JsonNumber {
  enum class Kind { kBool, kUnsigned, kNegative, kReal };

  Kind kind = Kind::kReal;
  std::uint64_t whole = 0;    ///< of kUnsigned, and 0 or 1 of kBool
  std::int64_t negative = 0;  ///< of kNegative
  double real = 0;            ///< of all but kBool, rounded
};

/// One JSON object of a document, read like a table whose every key must be known: what a getter
/// took is marked, and Finish() refuses the rest. Every error names the document and the key
/// ("graph.json: calls[3].args: missing"). Lives no longer than its JsonDocument.
class JsonObject {
 public:
  [[nodiscard]] bool Has(std::string_view key) const;
  /// Present and not null.
  [[nodiscard]] bool HasValue(std::string_view key) const;

  std::string String(std::string_view key);
  std::int64_t Int(std::string_view key,
                   std::int64_t min = std::numeric_limits<std::int64_t>::min(),
                   std::int64_t max = std::numeric_limits<std::int64_t>::max());
  /// Not negative.
  std::uint64_t Size(std::string_view key);
  /// Any finite number.
  double Number(std::string_view key);
  bool Bool(std::string_view key);
  /// Null gives nothing; a missing key is an error as for the others.
  std::optional<double> OptionalNumber(std::string_view key);
  std::vector<std::string> Strings(std::string_view key);
  std::vector<std::int64_t> Ints(std::string_view key);
  std::vector<double> Numbers(std::string_view key);
  JsonObject Object(std::string_view key);
  std::vector<JsonObject> Objects(std::string_view key,
                                  std::size_t most = std::numeric_limits<std::size_t>::max());
  /// Calls `visit` with each number of a list, and of the lists within it, `depth` of them at most.
  void ForEachNumber(std::string_view key, std::size_t depth,
                     const std::function<void(const JsonNumber& number)>& visit);
  /// Calls `visit` with every member of the object `key`, each of which must be an object.
  void ForEachObject(std::string_view key,
                     const std::function<void(const std::string& key, JsonObject object)>& visit);
  /// For keys whose value does not matter.
  void Skip(std::string_view key);

  /// Throws for a key that no getter asked for.
  void Finish() const;

  /// An error about `key` of this object.
  [[noreturn]] void Fail(std::string_view key, const std::string& problem) const;

 private:
  friend class JsonDocument;

  struct Member {
    std::string_view key;
    yyjson_val* value;
    bool taken;
  };

  /// `path` is where the object lies: "" or "files.a/b".
  JsonObject(const JsonDocument* document, yyjson_val* value, std::string path);

  /// Throws for a key that is there twice.
  void CheckKeys() const;
  [[nodiscard]] const Member* Find(std::string_view key) const;
  yyjson_val* Take(std::string_view key);
  template <typename Element>
  std::vector<Element> List(std::string_view key, const char* of_what, bool (*fits)(yyjson_val*),
                            Element (*get)(yyjson_val*));
  [[nodiscard]] std::string Name(std::string_view key) const;

  const JsonDocument* document_;
  std::string path_;
  std::vector<Member> members_;
};

class JsonDocument {
 public:
  /// Parses `text` (UTF-8, one JSON object, nothing after it). `name` is the document's in errors,
  /// which have this `kind` and `hint` and the exit code of a refused bundle.
  /// Throws Error if it is no JSON.
  JsonDocument(std::string_view text, std::string name, std::string kind, std::string hint = {});
  ~JsonDocument() = default;
  JsonDocument(const JsonDocument&) = delete;
  JsonDocument& operator=(const JsonDocument&) = delete;
  JsonDocument(JsonDocument&&) = delete;
  JsonDocument& operator=(JsonDocument&&) = delete;

  /// Throws Error if the top is no object.
  [[nodiscard]] JsonObject Root() const;

 private:
  friend class JsonObject;

  struct Free {
    void operator()(yyjson_doc* document) const;
  };

  [[noreturn]] void Fail(const std::string& problem) const;

  std::unique_ptr<yyjson_doc, Free> value_;
  std::string name_;
  std::string kind_;
  std::string hint_;
};

/// A value of a line of JSON. It takes no memory of its own; of what is absent, null or of another
/// kind there is nothing.
class JsonValue {
 public:
  JsonValue() = default;

  /// Whether it is there, and not null.
  explicit operator bool() const;
  [[nodiscard]] bool IsObject() const;
  [[nodiscard]] bool IsList() const;
  /// Of a list or an object.
  [[nodiscard]] std::size_t size() const;
  /// A member of an object: the first, if there are several of one name.
  JsonValue operator[](std::string_view key) const;
  [[nodiscard]] std::optional<double> Number() const;
  [[nodiscard]] std::optional<std::int64_t> Int() const;
  [[nodiscard]] std::optional<std::string_view> String() const;
  /// Calls `visit` with each element of a list, or each member of an object.
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    for (JsonValue at = First(); at.value_ != nullptr; at = at.Next()) visit(JsonValue(at.value_));
  }

 private:
  friend class JsonLineReader;

  explicit JsonValue(yyjson_val* value) : value_(value) {}
  [[nodiscard]] JsonValue First() const;
  [[nodiscard]] JsonValue Next() const;

  yyjson_val* value_ = nullptr;
  std::size_t left_ = 0;  ///< elements behind it
  bool in_object_ = false;
};

/// Reads lines of JSON one after the other, in memory that stays.
class JsonLineReader {
 public:
  /// The value on the line, which is there until the next call; nothing if it is no JSON.
  JsonValue Read(std::string_view line);

 private:
  std::vector<char> memory_;
};

/// `text` with U+FFFD for each byte that is no UTF-8.
std::string ToUtf8(std::string_view text);

/// Writes JSON on one line, in the order of the calls.
///
///     JsonWriter json;
///     json.BeginObject().Key("event").String("step").Key("n").Int(3).EndObject();
class JsonWriter {
 public:
  JsonWriter() = default;
  /// Writes into the memory of a text that is not needed any more.
  explicit JsonWriter(std::string memory) : text_(std::move(memory)) { text_.clear(); }

  JsonWriter& BeginObject();
  JsonWriter& EndObject();
  JsonWriter& BeginArray();
  JsonWriter& EndArray();
  JsonWriter& Key(std::string_view key);
  /// As ToUtf8.
  JsonWriter& String(std::string_view value);
  JsonWriter& StringOrNull(const std::optional<std::string>& value);
  JsonWriter& Int(std::int64_t value);
  /// Null when not finite; as many digits as tell it apart, at most 17.
  JsonWriter& Number(double value);
  JsonWriter& Bool(bool value);
  JsonWriter& Null();
  /// A value that is JSON already.
  JsonWriter& Raw(std::string_view json);

  [[nodiscard]] const std::string& text() const { return text_; }
  /// The text, and its memory.
  [[nodiscard]] std::string Take() { return std::move(text_); }

 private:
  void Separate();
  void Quote(std::string_view value);

  std::string text_;
};

}  // namespace edgepack
