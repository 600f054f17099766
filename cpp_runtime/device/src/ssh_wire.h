// The encodings that OpenSSH's keys and signatures are made of.
#ifndef EDGEPACK_DEVICE_SSH_WIRE_H_
#define EDGEPACK_DEVICE_SSH_WIRE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace edgepack::device {

// Reads the data types of RFC 4251, section 5. What is not there is no value, and so is all that
// comes after it.
class WireReader {
 public:
  explicit WireReader(std::string_view data) : data_(data) {}

  std::optional<uint8_t> Byte();
  std::optional<uint32_t> Uint32();
  std::optional<std::string_view> String();
  std::optional<std::string_view> Bytes(size_t count);
  [[nodiscard]] bool AtEnd() const { return !failed_ && data_.empty(); }

 private:
  std::string_view data_;
  bool failed_ = false;
};

// `text` as RFC 4251's string: its length as four bytes, then itself.
std::string WireString(std::string_view text);

// RFC 4648 with padding and nothing else in between; nothing if it is not that.
std::optional<std::string> DecodeBase64(std::string_view text);
std::string EncodeBase64(std::string_view data);

}  // namespace edgepack::device

#endif  // EDGEPACK_DEVICE_SSH_WIRE_H_
