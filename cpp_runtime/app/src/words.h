#pragma once

#include <initializer_list>
#include <string>

#include "common/json.h"

namespace edgepack {

/// A word of a JSON file, and what it stands for. The word lies in it: a table of addresses would
/// be written to whenever the program starts, whatever it is started for.
template <typename T>
struct Word {
  char text[16];
  T value;
};

template <typename T>
using Words = std::initializer_list<Word<T>>;

/// The value that belongs to `text`, which stands at `key`.
template <typename T>
T Choice(const std::string& text, Words<T> words, const std::string& key,
         const JsonObject& object) {
  std::string known;
  for (const Word<T>& word : words) {
    if (text == word.text) return word.value;
    known += (known.empty() ? "" : ", ") + std::string(word.text);
  }
  object.Fail(key, "'" + text + "' is none of " + known);
}

template <typename T>
T ReadChoice(const std::string& key, Words<T> words, JsonObject* object) {
  return Choice<T>(object->String(key), words, key, *object);
}

}  // namespace edgepack
