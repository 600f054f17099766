#ifndef EDGEPACK_DEVICE_FUZZ_H_
#define EDGEPACK_DEVICE_FUZZ_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "error.h"

// Ends the run if what a reader let through breaks a promise of its header.
#define EDGEPACK_REQUIRE(condition)                                                \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                \
    }                                                                              \
  } while (false)

namespace edgepack::device {

// A refusal as a user would see it: it has to say what and to be a refusal.
inline void RequireRefusal(const Error& error) {
  EDGEPACK_REQUIRE(!error.kind.empty());
  EDGEPACK_REQUIRE(!error.message.empty());
  EDGEPACK_REQUIRE(error.exit_code != 0);
}

inline std::string_view Text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace edgepack::device

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

#endif  // EDGEPACK_DEVICE_FUZZ_H_
