// Cuts between chunks, against the published definition computed in the plainest way.
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include "chunks.h"
#include "sha256.h"
#include "support.h"

namespace edgepack::device {
namespace {

using testing::TempFolder;
using testing::WriteFile;

std::uint32_t Xorshift(std::uint32_t* state) {
  *state ^= *state << 13U;
  *state ^= *state >> 17U;
  *state ^= *state << 5U;
  return *state;
}

std::string Noise(std::size_t size, std::uint32_t seed) {
  std::string text;
  text.reserve(size);
  while (text.size() < size) text.push_back(static_cast<char>(Xorshift(&seed) >> 24U));
  return text;
}

/// Ends of chunks: for each byte the sum over the 32 before it, anew.
std::vector<std::size_t> PlainCuts(const std::string& text) {
  std::vector<std::uint32_t> gear;
  std::uint32_t state = 2463534242;
  for (int i = 0; i < 256; ++i) gear.push_back(Xorshift(&state));
  std::vector<std::size_t> ends;
  std::size_t start = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::uint32_t hash = 0;
    for (std::size_t back = 0; back < 32 && back <= i; ++back) {
      hash += gear[static_cast<unsigned char>(text[i - back])] << back;
    }
    const std::size_t size = i + 1 - start;
    if ((size >= 4096 && hash >> 18U == 0) || size == 65536 || i + 1 == text.size()) {
      ends.push_back(i + 1);
      start = i + 1;
    }
  }
  return ends;
}

std::vector<Chunk> ChunksOf(const std::string& text) {
  const TempFolder temp;
  WriteFile(temp / "file", text);
  return CutIntoChunks(Folder::Open(temp.path()).OpenFile("file"));
}

TEST_CASE("chunks") {
  for (const std::string& text : {std::string(), std::string("short"), Noise(600'000, 1),
                                  std::string(200'000, 'x'), Noise(131'072, 7)}) {
    CAPTURE(text.size());
    std::vector<std::size_t> ends;
    for (const Chunk& chunk : ChunksOf(text)) {
      CHECK(chunk.offset == (ends.empty() ? 0 : ends.back()));
      ends.push_back(static_cast<std::size_t>(chunk.offset) + chunk.size);
      CHECK(
          Hex(chunk.hash.data(), chunk.hash.size()) ==
          Sha256Hex(text.substr(static_cast<std::size_t>(chunk.offset), chunk.size)).substr(0, 32));
    }
    CHECK(ends == PlainCuts(text));
  }
}

TEST_CASE("a byte that is put in changes the chunks near it only") {
  const std::string before = Noise(1'000'000, 3);
  std::string after = before;
  after.insert(500'000, "!");
  std::size_t same = 0;
  const std::vector<Chunk> known = ChunksOf(before);
  const std::vector<Chunk> chunks = ChunksOf(after);
  for (const Chunk& chunk : chunks) {
    for (const Chunk& other : known) same += static_cast<std::size_t>(chunk.hash == other.hash);
  }
  CHECK(chunks.size() > 30);
  CHECK(chunks.size() - same <= 2);
}

TEST_CASE("what travels of a chunk") {
  Chunk chunk = {0, 0x01020304, {}};
  chunk.hash.fill(0xff);
  // python3 -c 'import base64; print(base64.b64encode(b"\4\3\2\1" + b"\xff" * 16))'
  CHECK(EncodeChunks({chunk}) == "BAMCAf////////////////////8=");
}

}  // namespace
}  // namespace edgepack::device
