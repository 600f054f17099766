// JSON: reading (yyjson underneath) and writing.
#ifndef EDGEPACK_DEVICE_JSON_H_
#define EDGEPACK_DEVICE_JSON_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

struct yyjson_doc;
struct yyjson_val;

namespace edgepack::device {

// One JSON object of a document, read like a table whose every key must be known: what a getter
// took is marked, and Finish() refuses the rest. Every error names the document and the key.
// Lives no longer than its JsonDocument.
class JsonObject {
 public:
  // `kind` is the slug of the errors, `path` where the object lies ("" or "files.a/b").
  JsonObject(yyjson_val* value, std::string document, std::string kind, const std::string& path);

  bool Has(const char* key) const;
  // Present and not null.
  bool HasValue(const char* key) const;

  std::string String(const char* key);
  int64_t Int(const char* key);
  // Not negative.
  uint64_t Size(const char* key);
  // Any finite number.
  double Number(const char* key);
  bool Bool(const char* key);
  // Null gives nothing; a missing key is an error as for the others.
  std::optional<double> OptionalNumber(const char* key);
  std::vector<std::string> Strings(const char* key);
  JsonObject Object(const char* key);
  std::vector<JsonObject> Objects(const char* key);
  std::vector<int64_t> Ints(const char* key);
  // Calls `visit` with every member of the object `key`, each of which must be an object.
  void ForEachObject(const char* key,
                     const std::function<void(const std::string& key, JsonObject object)>& visit);
  // For keys whose value does not matter.
  void Skip(const char* key);

  // Throws for a key that no getter asked for.
  void Finish() const;

  // An error about `key` of this object.
  [[noreturn]] void Fail(std::string_view key, const std::string& problem) const;

 private:
  yyjson_val* Take(const char* key);
  yyjson_val* Find(const char* key) const;
  std::string Name(std::string_view key) const;

  struct Member {
    std::string_view key;
    yyjson_val* value;
    bool taken;
  };

  std::string document_;
  std::string kind_;
  std::string path_;
  std::vector<Member> members_;
};

class JsonDocument {
 public:
  // Parses `text` (UTF-8, one JSON object, nothing after it). `document` is its name in errors,
  // whose slug is `kind` and exit code that of a refused bundle.
  // Throws DeviceError if it is no JSON or its top is no object.
  JsonDocument(std::string_view text, std::string document, std::string kind);

  JsonObject Root() const;

 private:
  struct Free {
    void operator()(yyjson_doc* document) const;
  };

  std::unique_ptr<yyjson_doc, Free> value_;
  std::string document_;
  std::string kind_;
};

// Writes JSON on one line, in the order of the calls.
//
//   JsonWriter json;
//   json.BeginObject().Key("event").String("step").Key("n").Int(3).EndObject();
class JsonWriter {
 public:
  JsonWriter& BeginObject();
  JsonWriter& EndObject();
  JsonWriter& BeginArray();
  JsonWriter& EndArray();
  JsonWriter& Key(std::string_view key);
  // Bytes that are no UTF-8 become U+FFFD.
  JsonWriter& String(std::string_view value);
  JsonWriter& StringOrNull(const std::optional<std::string>& value);
  JsonWriter& Int(int64_t value);
  // Null when not finite; as many digits as tell it apart, at most 17.
  JsonWriter& Number(double value);
  JsonWriter& Bool(bool value);
  JsonWriter& Null();
  // A value that is JSON already.
  JsonWriter& Raw(std::string_view json);

  const std::string& text() const { return text_; }

 private:
  void Separate();
  void Quote(std::string_view value);

  std::string text_;
};

}  // namespace edgepack::device

#endif  // EDGEPACK_DEVICE_JSON_H_
