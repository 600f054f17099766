#include "ssh_wire.h"

#include <cstring>

namespace edgepack::device {
namespace {

constexpr std::string_view kAlphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

std::optional<std::string_view> WireReader::Bytes(size_t count) {
  if (failed_ || data_.size() < count) {
    failed_ = true;
    return std::nullopt;
  }
  const std::string_view bytes = data_.substr(0, count);
  data_.remove_prefix(count);
  return bytes;
}

std::optional<uint8_t> WireReader::Byte() {
  const auto bytes = Bytes(1);
  if (!bytes) return std::nullopt;
  return static_cast<uint8_t>(bytes->front());
}

std::optional<uint32_t> WireReader::Uint32() {
  const auto bytes = Bytes(4);
  if (!bytes) return std::nullopt;
  uint32_t value = 0;
  for (const char c : *bytes) value = value << 8 | static_cast<uint8_t>(c);
  return value;
}

std::optional<std::string_view> WireReader::String() {
  const auto size = Uint32();
  if (!size) return std::nullopt;
  return Bytes(*size);
}

std::string WireString(std::string_view text) {
  std::string wire;
  for (int shift = 24; shift >= 0; shift -= 8) {
    wire += static_cast<char>(text.size() >> shift & 0xff);
  }
  return wire.append(text);
}

std::optional<std::string> DecodeBase64(std::string_view text) {
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  const size_t padding = text.back() != '=' ? 0 : text[text.size() - 2] != '=' ? 1 : 2;
  std::string data;
  data.reserve(text.size() / 4 * 3);
  uint32_t bits = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    uint32_t value = 0;
    if (i < text.size() - padding) {
      const size_t at = kAlphabet.find(text[i]);
      if (at == std::string_view::npos) return std::nullopt;
      value = static_cast<uint32_t>(at);
    }
    bits = bits << 6 | value;
    if (i % 4 == 3) {
      for (int shift = 16; shift >= 0; shift -= 8) data += static_cast<char>(bits >> shift & 0xff);
      bits = 0;
    }
  }
  // Bits that no byte takes must be zero, so that there is one spelling of everything.
  for (size_t i = data.size() - padding; i < data.size(); ++i) {
    if (data[i] != '\0') return std::nullopt;
  }
  data.resize(data.size() - padding);
  return data;
}

std::string EncodeBase64(std::string_view data) {
  std::string text;
  for (size_t i = 0; i < data.size(); i += 3) {
    const size_t count = data.size() - i < 3 ? data.size() - i : 3;
    uint32_t bits = 0;
    for (size_t k = 0; k < 3; ++k) {
      bits = bits << 8 | (k < count ? static_cast<uint8_t>(data[i + k]) : 0);
    }
    for (size_t k = 0; k < 4; ++k) {
      text += k <= count ? kAlphabet[bits >> (18 - 6 * k) & 63] : '=';
    }
  }
  return text;
}

}  // namespace edgepack::device
