#ifndef EDGEPACK_DEVICE_SHA256_H_
#define EDGEPACK_DEVICE_SHA256_H_

#include <array>
#include <crypto_hash_sha256.h>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace edgepack::device {

class Sha256 {
 public:
  Sha256();

  void Update(const void* data, size_t size);

  // The hash of all that was given. Ends the computation: nothing can follow.
  std::array<uint8_t, 32> Digest();
  std::string HexDigest();

 private:
  crypto_hash_sha256_state state_;
};

// Lower case.
std::string Hex(const uint8_t* data, size_t size);

std::string Sha256Hex(std::string_view data);

// 64 lower-case hex digits.
bool IsSha256(std::string_view text);

}  // namespace edgepack::device

#endif  // EDGEPACK_DEVICE_SHA256_H_
