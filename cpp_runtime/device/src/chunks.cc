#include "chunks.h"

#include <algorithm>
#include <string_view>

#include "sha256.h"
#include "ssh_wire.h"

namespace edgepack::device {
namespace {

constexpr std::uint64_t kLarge = std::uint64_t{64} << 20U;
constexpr unsigned kAverageBits = 14;         // 16 KiB
constexpr unsigned kAverageBitsOfLarge = 16;  // 64 KiB
constexpr unsigned kSpread = 4;

using Gear = std::array<std::uint32_t, 256>;

/// xorshift32 (Marsaglia, Journal of Statistical Software 8, 2003) from that paper's seed.
Gear MakeGear() {
  Gear gear = {};
  std::uint32_t state = 2463534242;
  for (std::uint32_t& value : gear) {
    state ^= state << 13U;
    state ^= state >> 17U;
    state ^= state << 5U;
    value = state;
  }
  return gear;
}

/// Sizes of chunks, from the bytes one after the other.
class Cutter {
 public:
  explicit Cutter(std::uint64_t file_size)
      : bits_(file_size <= kLarge ? kAverageBits : kAverageBitsOfLarge) {}

  /// Whether a chunk ends after this byte.
  bool Next(std::uint8_t byte) {
    // Bytes that are more than 32 back are shifted out.
    hash_ = (hash_ << 1U) + gear_.at(byte);
    ++size_;
    const std::uint32_t average = 1U << bits_;
    const bool ends =
        (size_ >= average / kSpread && hash_ >> (32 - bits_) == 0) || size_ == average * kSpread;
    if (ends) size_ = 0;
    return ends;
  }

 private:
  Gear gear_ = MakeGear();
  unsigned bits_;
  std::uint32_t hash_ = 0;
  std::uint32_t size_ = 0;
};

Chunk Finish(std::uint64_t begin, std::uint64_t end, Sha256* hash) {
  Chunk chunk = {begin, static_cast<std::uint32_t>(end - begin), {}};
  const std::array<std::uint8_t, 32> digest = hash->Digest();
  std::copy_n(digest.begin(), chunk.hash.size(), chunk.hash.begin());
  *hash = Sha256();
  return chunk;
}

}  // namespace

std::vector<Chunk> CutIntoChunks(const File& file) {
  std::vector<Chunk> chunks;
  Cutter cutter(file.Size());
  Sha256 hash;
  std::vector<std::uint8_t> block(std::size_t{1} << 16U);
  std::uint64_t begin = 0;
  std::uint64_t offset = 0;
  while (const std::size_t count = file.ReadAt(offset, block.data(), block.size())) {
    std::size_t hashed = 0;
    for (std::size_t i = 0; i < count; ++i) {
      if (!cutter.Next(block[i])) continue;
      hash.Update(block.data() + hashed, i + 1 - hashed);
      hashed = i + 1;
      chunks.push_back(Finish(begin, offset + hashed, &hash));
      begin = offset + hashed;
    }
    hash.Update(block.data() + hashed, count - hashed);
    offset += count;
  }
  if (offset > begin) chunks.push_back(Finish(begin, offset, &hash));
  return chunks;
}

std::string EncodeChunks(const std::vector<Chunk>& chunks) {
  std::string bytes;
  bytes.reserve(chunks.size() * 20);
  for (const Chunk& chunk : chunks) {
    for (unsigned shift = 0; shift < 32; shift += 8) {
      bytes.push_back(static_cast<char>(chunk.size >> shift));
    }
    bytes.append(chunk.hash.begin(), chunk.hash.end());
  }
  return EncodeBase64(bytes);
}

}  // namespace edgepack::device
