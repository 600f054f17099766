#include "sha256.h"

#include <algorithm>

namespace edgepack::device {

Sha256::Sha256() { crypto_hash_sha256_init(&state_); }

void Sha256::Update(const void* data, size_t size) {
  crypto_hash_sha256_update(&state_, static_cast<const unsigned char*>(data), size);
}

std::array<uint8_t, 32> Sha256::Digest() {
  std::array<uint8_t, 32> digest;
  crypto_hash_sha256_final(&state_, digest.data());
  return digest;
}

std::string Sha256::HexDigest() {
  const auto digest = Digest();
  return Hex(digest.data(), digest.size());
}

std::string Hex(const uint8_t* data, size_t size) {
  static const char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * size);
  for (size_t i = 0; i < size; ++i) {
    text += kDigits[data[i] >> 4];
    text += kDigits[data[i] & 15];
  }
  return text;
}

std::string Sha256Hex(std::string_view data) {
  Sha256 hash;
  hash.Update(data.data(), data.size());
  return hash.HexDigest();
}

bool IsSha256(std::string_view text) {
  return text.size() == 64 && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

}  // namespace edgepack::device
