// What libFuzzer targets share. Each is a program of one function: whatever a file or a link
// brings, a reader answers, or throws an Error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "common/error.h"

// Ends the run if what a reader let through breaks a promise of its header.
#define EDGEPACK_REQUIRE(condition)                                                \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                \
    }                                                                              \
  } while (false)

namespace edgepack {

// A refusal as a user would see it: it has to say what and to be a refusal.
inline void RequireRefusal(const Error& error) {
  EDGEPACK_REQUIRE(!error.kind.empty());
  EDGEPACK_REQUIRE(!error.message.empty());
  EDGEPACK_REQUIRE(error.exit_code != kExitOk && error.exit_code != kExitBug);
}

inline std::string_view Text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace edgepack

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
