// Counts and lists, as JsonWriter has them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/json.h"

namespace edgepack {

inline void WriteCount(const char* key, std::uint64_t value, JsonWriter* json) {
  json->Key(key).Int(static_cast<std::int64_t>(value));
}

/// `write` writes one element.
template <typename Range, typename Write>
void WriteList(const char* key, const Range& range, JsonWriter* json, Write write) {
  json->Key(key).BeginArray();
  for (const auto& element : range) write(element);
  json->EndArray();
}

}  // namespace edgepack
