#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "file.h"

namespace edgepack::device {

/// A piece of a file, cut where the content says so: a changed byte moves the cuts near it only.
struct Chunk {
  std::uint64_t offset;
  std::uint32_t size;
  /// The first half of its SHA-256.
  std::array<std::uint8_t, 16> hash;
};

/// All chunks of a file, in order. The same as edgepack/deploy/chunks.py. Cuts by a gear hash:
/// FastCDC, Xia et al., USENIX ATC 2016.
std::vector<Chunk> CutIntoChunks(const File& file);

/// What travels of them: for each the size, little endian, and the hash; in base64.
std::string EncodeChunks(const std::vector<Chunk>& chunks);

}  // namespace edgepack::device
