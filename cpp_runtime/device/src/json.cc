#include "json.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <yyjson/yyjson.h>

#include "error.h"

namespace edgepack::device {
namespace {

std::string_view Text(yyjson_val* value) { return {yyjson_get_str(value), yyjson_get_len(value)}; }

[[noreturn]] void FailDocument(const std::string& document, const std::string& kind,
                               const std::string& problem) {
  throw Refused(kind, document + ": " + problem);
}

}  // namespace

JsonObject::JsonObject(yyjson_val* value, std::string document, std::string kind,
                       const std::string& path)
    : document_(std::move(document)), kind_(std::move(kind)), path_(path) {
  if (!yyjson_is_obj(value)) {
    FailDocument(document_, kind_, (path.empty() ? "the top" : path) + " is no JSON object");
  }
  size_t index;
  size_t count;
  yyjson_val* key;
  yyjson_val* item;
  members_.reserve(yyjson_obj_size(value));
  yyjson_obj_foreach(value, index, count, key, item) {
    members_.push_back({Text(key), item, false});
  }
  std::vector<std::string_view> keys;
  keys.reserve(members_.size());
  for (const Member& member : members_) keys.push_back(member.key);
  std::sort(keys.begin(), keys.end());
  const auto twice = std::adjacent_find(keys.begin(), keys.end());
  if (twice != keys.end()) Fail(*twice, "given twice");
}

yyjson_val* JsonObject::Find(const char* key) const {
  for (const Member& member : members_) {
    if (member.key == key) return member.value;
  }
  return nullptr;
}

bool JsonObject::Has(const char* key) const { return Find(key) != nullptr; }

bool JsonObject::HasValue(const char* key) const {
  yyjson_val* value = Find(key);
  return value != nullptr && !yyjson_is_null(value);
}

yyjson_val* JsonObject::Take(const char* key) {
  for (Member& member : members_) {
    if (member.key == key) {
      member.taken = true;
      return member.value;
    }
  }
  Fail(key, "missing");
}

std::string JsonObject::Name(std::string_view key) const {
  return path_.empty() ? std::string(key) : path_ + "." + std::string(key);
}

void JsonObject::Fail(std::string_view key, const std::string& problem) const {
  FailDocument(document_, kind_, Name(key) + ": " + problem);
}

std::string JsonObject::String(const char* key) {
  yyjson_val* value = Take(key);
  if (!yyjson_is_str(value)) Fail(key, "not a string");
  return std::string(Text(value));
}

int64_t JsonObject::Int(const char* key) {
  yyjson_val* value = Take(key);
  if (yyjson_is_sint(value)) return yyjson_get_sint(value);
  if (!yyjson_is_uint(value) || yyjson_get_uint(value) > INT64_MAX) {
    Fail(key, "not an integer of 64 bits");
  }
  return static_cast<int64_t>(yyjson_get_uint(value));
}

uint64_t JsonObject::Size(const char* key) {
  const int64_t value = Int(key);
  if (value < 0) Fail(key, "negative");
  return static_cast<uint64_t>(value);
}

double JsonObject::Number(const char* key) {
  yyjson_val* value = Take(key);
  if (!yyjson_is_num(value)) Fail(key, "not a number");
  return yyjson_get_num(value);
}

bool JsonObject::Bool(const char* key) {
  yyjson_val* value = Take(key);
  if (!yyjson_is_bool(value)) Fail(key, "neither true nor false");
  return yyjson_get_bool(value);
}

std::optional<double> JsonObject::OptionalNumber(const char* key) {
  if (yyjson_is_null(Take(key))) return std::nullopt;
  return Number(key);
}

std::vector<std::string> JsonObject::Strings(const char* key) {
  yyjson_val* value = Take(key);
  if (!yyjson_is_arr(value)) Fail(key, "not a list");
  std::vector<std::string> strings;
  size_t index;
  size_t count;
  yyjson_val* item;
  yyjson_arr_foreach(value, index, count, item) {
    if (!yyjson_is_str(item)) Fail(key, "not a list of strings");
    strings.emplace_back(Text(item));
  }
  return strings;
}

std::vector<int64_t> JsonObject::Ints(const char* key) {
  yyjson_val* value = Take(key);
  if (!yyjson_is_arr(value)) Fail(key, "not a list");
  std::vector<int64_t> numbers;
  size_t index;
  size_t count;
  yyjson_val* item;
  yyjson_arr_foreach(value, index, count, item) {
    const bool fits =
        yyjson_is_sint(item) || (yyjson_is_uint(item) && yyjson_get_uint(item) <= INT64_MAX);
    if (!fits) Fail(key, "not a list of integers");
    numbers.push_back(yyjson_get_sint(item));
  }
  return numbers;
}

JsonObject JsonObject::Object(const char* key) { return {Take(key), document_, kind_, Name(key)}; }

std::vector<JsonObject> JsonObject::Objects(const char* key) {
  yyjson_val* value = Take(key);
  if (!yyjson_is_arr(value)) Fail(key, "not a list");
  std::vector<JsonObject> objects;
  size_t index;
  size_t count;
  yyjson_val* item;
  yyjson_arr_foreach(value, index, count, item) {
    objects.emplace_back(item, document_, kind_, Name(key) + "[" + std::to_string(index) + "]");
  }
  return objects;
}

void JsonObject::ForEachObject(
    const char* key, const std::function<void(const std::string& key, JsonObject object)>& visit) {
  const JsonObject table = Object(key);
  for (const Member& member : table.members_) {
    const std::string name(member.key);
    visit(name, JsonObject(member.value, document_, kind_, table.Name(name)));
  }
}

void JsonObject::Skip(const char* key) { Take(key); }

void JsonObject::Finish() const {
  for (const Member& member : members_) {
    if (!member.taken) Fail(member.key, "unknown key");
  }
}

JsonDocument::JsonDocument(std::string_view text, std::string document, std::string kind)
    : document_(std::move(document)), kind_(std::move(kind)) {
  yyjson_read_err error;
  // Without the flag for it, the text is not written to.
  value_.reset(yyjson_read_opts(const_cast<char*>(text.data()), text.size(), YYJSON_READ_NOFLAG,
                                nullptr, &error));
  if (value_ == nullptr) {
    FailDocument(document_, kind_,
                 std::string("not JSON: ") + error.msg + " at byte " + std::to_string(error.pos));
  }
}

void JsonDocument::Free::operator()(yyjson_doc* document) const { yyjson_doc_free(document); }

JsonObject JsonDocument::Root() const {
  return {yyjson_doc_get_root(value_.get()), document_, kind_, ""};
}

void JsonWriter::Separate() {
  if (!text_.empty() && text_.back() != '{' && text_.back() != '[' && text_.back() != ':') {
    text_ += ',';
  }
}

JsonWriter& JsonWriter::BeginObject() {
  Separate();
  text_ += '{';
  return *this;
}

JsonWriter& JsonWriter::EndObject() {
  text_ += '}';
  return *this;
}

JsonWriter& JsonWriter::BeginArray() {
  Separate();
  text_ += '[';
  return *this;
}

JsonWriter& JsonWriter::EndArray() {
  text_ += ']';
  return *this;
}

JsonWriter& JsonWriter::Key(std::string_view key) {
  Separate();
  Quote(key);
  text_ += ':';
  return *this;
}

JsonWriter& JsonWriter::String(std::string_view value) {
  Separate();
  Quote(value);
  return *this;
}

JsonWriter& JsonWriter::Int(int64_t value) {
  Separate();
  text_ += std::to_string(value);
  return *this;
}

JsonWriter& JsonWriter::Number(double value) {
  if (!std::isfinite(value)) return Null();
  Separate();
  char digits[32];
  for (int precision = 6; precision <= 17; ++precision) {
    static_cast<void>(std::snprintf(digits, sizeof digits, "%.*g", precision, value));
    if (std::strtod(digits, nullptr) == value) break;
  }
  text_ += digits;
  return *this;
}

JsonWriter& JsonWriter::Bool(bool value) {
  Separate();
  text_ += value ? "true" : "false";
  return *this;
}

JsonWriter& JsonWriter::StringOrNull(const std::optional<std::string>& value) {
  return value ? String(*value) : Null();
}

JsonWriter& JsonWriter::Null() {
  Separate();
  text_ += "null";
  return *this;
}

JsonWriter& JsonWriter::Raw(std::string_view json) {
  Separate();
  text_ += json;
  return *this;
}

namespace {

// Length of the UTF-8 sequence at the start of `text`; 0 if there is none (RFC 3629: shortest form,
// no surrogates, nothing above U+10FFFF).
size_t Utf8Length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const unsigned char second = byte(1);
  if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
      (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f)) {
    return 0;
  }
  return length;
}

}  // namespace

void JsonWriter::Quote(std::string_view value) {
  text_ += '"';
  while (!value.empty()) {
    const char c = value.front();
    size_t length = Utf8Length(value);
    if (length == 0) {
      text_ += "\xef\xbf\xbd";
      length = 1;
    } else if (c == '"' || c == '\\') {
      text_ += '\\';
      text_ += c;
    } else if (c >= 0 && c < 0x20) {
      char escape[8];
      static_cast<void>(std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c)));
      text_ += escape;
    } else {
      text_ += value.substr(0, length);
    }
    value.remove_prefix(length);
  }
  text_ += '"';
}

}  // namespace edgepack::device
