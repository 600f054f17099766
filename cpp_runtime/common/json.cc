#include "common/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <utility>
#include <yyjson/yyjson.h>

#include "common/error.h"

namespace edgepack {
namespace {

/// Of an object whose keys are compared with each other: to sort them would take longer, and
/// memory.
constexpr std::size_t kFewMembers = 12;

/// Memory of a reader of lines that is more than so many times what a line needs is given back.
constexpr std::size_t kMuchMore = 64;

std::string_view Text(yyjson_val* value) { return {yyjson_get_str(value), yyjson_get_len(value)}; }

bool IsInt(yyjson_val* value) {
  return yyjson_is_sint(value) || (yyjson_is_uint(value) && yyjson_get_uint(value) <= INT64_MAX);
}

JsonNumber NumberOf(yyjson_val* value) {
  JsonNumber number;
  if (yyjson_is_bool(value)) {
    number.kind = JsonNumber::Kind::kBool;
    number.whole = yyjson_get_bool(value) ? 1 : 0;
    return number;
  }
  number.real = yyjson_get_num(value);
  if (yyjson_is_uint(value)) {
    number.kind = JsonNumber::Kind::kUnsigned;
    number.whole = yyjson_get_uint(value);
  } else if (yyjson_is_sint(value)) {
    number.kind = JsonNumber::Kind::kNegative;
    number.negative = yyjson_get_sint(value);
  }
  return number;
}

/// False for what is neither a number nor a list, and for lists that lie too deep.
bool VisitNumbers(yyjson_val* list, std::size_t depth,
                  const std::function<void(const JsonNumber&)>& visit) {
  if (!yyjson_is_arr(list) || depth == 0) return false;
  std::size_t index = 0;
  std::size_t count = 0;
  yyjson_val* item = nullptr;
  yyjson_arr_foreach(list, index, count, item) {
    if (yyjson_is_num(item) || yyjson_is_bool(item)) {
      visit(NumberOf(item));
    } else if (!VisitNumbers(item, depth - 1, visit)) {
      return false;
    }
  }
  return true;
}

}  // namespace

JsonObject::JsonObject(const JsonDocument* document, yyjson_val* value, std::string path)
    : document_(document), path_(std::move(path)) {
  if (!yyjson_is_obj(value)) {
    document_->Fail((path_.empty() ? "the top" : path_) + " is no JSON object");
  }
  std::size_t index = 0;
  std::size_t count = 0;
  yyjson_val* key = nullptr;
  yyjson_val* item = nullptr;
  members_.reserve(yyjson_obj_size(value));
  yyjson_obj_foreach(value, index, count, key, item) {
    members_.push_back({Text(key), item, false});
  }
  CheckKeys();
}

void JsonObject::CheckKeys() const {
  if (members_.size() <= kFewMembers) {
    for (auto one = members_.begin(); one != members_.end(); ++one) {
      const bool again = std::any_of(one + 1, members_.end(),
                                     [&](const Member& other) { return other.key == one->key; });
      if (again) Fail(one->key, "given twice");
    }
    return;
  }
  std::vector<std::string_view> keys;
  keys.reserve(members_.size());
  for (const Member& member : members_) keys.push_back(member.key);
  std::sort(keys.begin(), keys.end());
  const auto twice = std::adjacent_find(keys.begin(), keys.end());
  if (twice != keys.end()) Fail(*twice, "given twice");
}

const JsonObject::Member* JsonObject::Find(std::string_view key) const {
  const auto found = std::find_if(members_.begin(), members_.end(),
                                  [&](const Member& member) { return member.key == key; });
  return found == members_.end() ? nullptr : &*found;
}

bool JsonObject::Has(std::string_view key) const { return Find(key) != nullptr; }

bool JsonObject::HasValue(std::string_view key) const {
  const Member* const member = Find(key);
  return member != nullptr && !yyjson_is_null(member->value);
}

yyjson_val* JsonObject::Take(std::string_view key) {
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
  document_->Fail(Name(key) + ": " + problem);
}

std::string JsonObject::String(std::string_view key) {
  yyjson_val* value = Take(key);
  if (!yyjson_is_str(value)) Fail(key, "not a string");
  return std::string(Text(value));
}

std::int64_t JsonObject::Int(std::string_view key, std::int64_t min, std::int64_t max) {
  yyjson_val* value = Take(key);
  if (!IsInt(value)) Fail(key, "not an integer of 64 bits");
  const std::int64_t number = yyjson_get_sint(value);
  if (number < min || number > max) {
    Fail(key, std::to_string(number) + " is not between " + std::to_string(min) + " and " +
                  std::to_string(max));
  }
  return number;
}

std::uint64_t JsonObject::Size(std::string_view key) {
  return static_cast<std::uint64_t>(Int(key, 0));
}

double JsonObject::Number(std::string_view key) {
  yyjson_val* value = Take(key);
  if (!yyjson_is_num(value)) Fail(key, "not a number");
  return yyjson_get_num(value);
}

bool JsonObject::Bool(std::string_view key) {
  yyjson_val* value = Take(key);
  if (!yyjson_is_bool(value)) Fail(key, "neither true nor false");
  return yyjson_get_bool(value);
}

std::optional<double> JsonObject::OptionalNumber(std::string_view key) {
  if (yyjson_is_null(Take(key))) return std::nullopt;
  return Number(key);
}

template <typename Element>
std::vector<Element> JsonObject::List(std::string_view key, const char* of_what,
                                      bool (*fits)(yyjson_val*), Element (*get)(yyjson_val*)) {
  yyjson_val* value = Take(key);
  if (!yyjson_is_arr(value)) Fail(key, "not a list");
  std::vector<Element> elements;
  elements.reserve(yyjson_arr_size(value));
  std::size_t index = 0;
  std::size_t count = 0;
  yyjson_val* item = nullptr;
  yyjson_arr_foreach(value, index, count, item) {
    if (!fits(item)) Fail(key, std::string("not a list of ") + of_what);
    elements.push_back(get(item));
  }
  return elements;
}

std::vector<std::string> JsonObject::Strings(std::string_view key) {
  return List<std::string>(
      key, "strings", [](yyjson_val* item) { return yyjson_is_str(item); },
      [](yyjson_val* item) { return std::string(Text(item)); });
}

std::vector<std::int64_t> JsonObject::Ints(std::string_view key) {
  return List<std::int64_t>(key, "integers", IsInt,
                            [](yyjson_val* item) { return yyjson_get_sint(item); });
}

std::vector<double> JsonObject::Numbers(std::string_view key) {
  return List<double>(
      key, "numbers", [](yyjson_val* item) { return yyjson_is_num(item); },
      [](yyjson_val* item) { return yyjson_get_num(item); });
}

JsonObject JsonObject::Object(std::string_view key) { return {document_, Take(key), Name(key)}; }

void JsonObject::ForEachNumber(std::string_view key, std::size_t depth,
                               const std::function<void(const JsonNumber&)>& visit) {
  if (!VisitNumbers(Take(key), depth, visit)) Fail(key, "not a list of numbers");
}

std::vector<JsonObject> JsonObject::Objects(std::string_view key, std::size_t most) {
  yyjson_val* value = Take(key);
  if (!yyjson_is_arr(value)) Fail(key, "not a list");
  if (yyjson_arr_size(value) > most) Fail(key, "more than " + std::to_string(most));
  std::vector<JsonObject> objects;
  objects.reserve(yyjson_arr_size(value));
  std::size_t index = 0;
  std::size_t count = 0;
  yyjson_val* item = nullptr;
  yyjson_arr_foreach(value, index, count, item) {
    objects.push_back({document_, item, Name(key) + "[" + std::to_string(index) + "]"});
  }
  return objects;
}

void JsonObject::ForEachObject(
    std::string_view key,
    const std::function<void(const std::string& key, JsonObject object)>& visit) {
  const JsonObject table = Object(key);
  for (const Member& member : table.members_) {
    visit(std::string(member.key), JsonObject(document_, member.value, table.Name(member.key)));
  }
}

void JsonObject::Skip(std::string_view key) { Take(key); }

void JsonObject::Finish() const {
  for (const Member& member : members_) {
    if (!member.taken) Fail(member.key, "unknown key");
  }
}

JsonDocument::JsonDocument(std::string_view text, std::string name, std::string kind,
                           std::string hint)
    : name_(std::move(name)), kind_(std::move(kind)), hint_(std::move(hint)) {
  yyjson_read_err error;
  // Without the flag for it, the text is not written to.
  value_.reset(yyjson_read_opts(const_cast<char*>(text.data()), text.size(), YYJSON_READ_NOFLAG,
                                nullptr, &error));
  if (value_ == nullptr) {
    Fail(std::string("not JSON: ") + error.msg + " at byte " + std::to_string(error.pos));
  }
}

void JsonDocument::Free::operator()(yyjson_doc* document) const { yyjson_doc_free(document); }

void JsonDocument::Fail(const std::string& problem) const {
  throw Error(kExitBundle, kind_, name_ + ": " + problem, hint_);
}

JsonObject JsonDocument::Root() const { return {this, yyjson_doc_get_root(value_.get()), ""}; }

JsonValue::operator bool() const { return value_ != nullptr && !yyjson_is_null(value_); }

bool JsonValue::IsObject() const { return yyjson_is_obj(value_); }

bool JsonValue::IsList() const { return yyjson_is_arr(value_); }

std::size_t JsonValue::size() const {
  return IsObject() ? yyjson_obj_size(value_) : yyjson_arr_size(value_);
}

JsonValue JsonValue::operator[](std::string_view key) const {
  return JsonValue(yyjson_obj_getn(value_, key.data(), key.size()));
}

std::optional<double> JsonValue::Number() const {
  if (!yyjson_is_num(value_)) return std::nullopt;
  return yyjson_get_num(value_);
}

std::optional<std::int64_t> JsonValue::Int() const {
  if (!IsInt(value_)) return std::nullopt;
  return yyjson_get_sint(value_);
}

std::optional<std::string_view> JsonValue::String() const {
  if (!yyjson_is_str(value_)) return std::nullopt;
  return Text(value_);
}

JsonValue JsonValue::First() const {
  JsonValue first;
  if (size() == 0) return first;
  first.left_ = size() - 1;
  first.in_object_ = IsObject();
  first.value_ =
      first.in_object_ ? unsafe_yyjson_get_first(value_) + 1 : unsafe_yyjson_get_first(value_);
  return first;
}

JsonValue JsonValue::Next() const {
  JsonValue next;
  if (left_ == 0) return next;
  next.left_ = left_ - 1;
  next.in_object_ = in_object_;
  next.value_ = unsafe_yyjson_get_next(value_) + (in_object_ ? 1 : 0);
  return next;
}

JsonValue JsonLineReader::Read(std::string_view line) {
  const std::size_t most = yyjson_read_max_memory_usage(line.size(), YYJSON_READ_NOFLAG);
  // One very long line does not keep its memory.
  if (memory_.size() < most || memory_.size() / kMuchMore > most) {
    memory_.resize(most + most / 2);
    memory_.shrink_to_fit();
  }
  yyjson_alc memory;
  if (!yyjson_alc_pool_init(&memory, memory_.data(), memory_.size())) return {};
  // Without the flag for it, the text is not written to. What is read lies in the memory alone.
  yyjson_doc* const document = yyjson_read_opts(const_cast<char*>(line.data()), line.size(),
                                                YYJSON_READ_NOFLAG, &memory, nullptr);
  return JsonValue(yyjson_doc_get_root(document));
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

JsonWriter& JsonWriter::Int(std::int64_t value) {
  Separate();
  char digits[24];
  text_.append(digits, std::to_chars(std::begin(digits), std::end(digits), value).ptr);
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
std::size_t Utf8Length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const unsigned char second = byte(1);
  if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
      (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f)) {
    return 0;
  }
  return length;
}

/// Calls `take` with each sequence of `text`, and U+FFFD for each byte that is of none.
template <typename Take>
void ForEachSequence(std::string_view text, const Take& take) {
  while (!text.empty()) {
    const std::size_t length = Utf8Length(text);
    take(length == 0 ? "\xef\xbf\xbd" : text.substr(0, length));
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
}

}  // namespace

std::string ToUtf8(std::string_view text) {
  std::string valid;
  ForEachSequence(text, [&](std::string_view sequence) { valid += sequence; });
  return valid;
}

void JsonWriter::Quote(std::string_view value) {
  text_ += '"';
  ForEachSequence(value, [&](std::string_view sequence) {
    const char c = sequence.front();
    if (c == '"' || c == '\\') text_ += '\\';
    if (c >= 0 && c < 0x20) {
      char escape[8];
      static_cast<void>(std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c)));
      text_ += escape;
    } else {
      text_ += sequence;
    }
  });
  text_ += '"';
}

}  // namespace edgepack
