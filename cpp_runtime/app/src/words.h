#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/json.h"

namespace edgepack {

/// Words of a JSON file, and what they stand for.
template <typename T>
using Words = std::vector<std::pair<std::string_view, T>>;

/// The value that belongs to `text`, which stands at `key`.
template <typename T>
T Choice(const std::string& text, const Words<T>& words, const std::string& key,
         const JsonObject& object) {
  std::string known;
  for (const auto& [word, value] : words) {
    if (word == text) return value;
    known += (known.empty() ? "" : ", ") + std::string(word);
  }
  object.Fail(key, "'" + text + "' is none of " + known);
}

template <typename T>
T ReadChoice(const std::string& key, const Words<T>& words, JsonObject* object) {
  return Choice<T>(object->String(key), words, key, *object);
}

}  // namespace edgepack
