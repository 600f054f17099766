// Input: a byte, then a .tar.gz if it is even, else a tar archive that is packed here: a fuzzer
// does not find checksums by itself.
#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <zlib.h>

#include "archive.h"
#include "common/fuzz/fuzz.h"
#include "manifest_reader.h"

namespace {

void AppendLittle(std::string& out, uint32_t value, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
}

// Repairs the checksum of each header: the first block, and every one after a file's.
std::string WithChecksums(std::string tar) {
  size_t place = 0;
  while (place + 512 <= tar.size()) {
    char* const header = &tar[place];
    if (std::all_of(header, header + 512, [](char c) { return c == '\0'; })) break;
    std::memset(header + 148, ' ', 8);
    unsigned sum = 0;
    for (size_t i = 0; i < 512; ++i) sum += static_cast<unsigned char>(header[i]);
    std::snprintf(header + 148, 8, "%06o", sum);
    const std::string digits(header + 124, 11);
    const uint64_t size = std::strtoull(digits.c_str(), nullptr, 8);
    if (size > tar.size()) break;
    place += 512 + (size + 511) / 512 * 512;
  }
  return tar;
}

// A gzip stream of stored blocks (RFC 1952, RFC 1951 3.2.4).
std::string Packed(const std::string& data) {
  std::string out("\x1f\x8b\x08\0\0\0\0\0\0\xff", 10);
  size_t place = 0;
  do {
    const size_t count = std::min<size_t>(data.size() - place, 65535);
    out += place + count == data.size() ? '\1' : '\0';
    AppendLittle(out, static_cast<uint32_t>(count), 2);
    AppendLittle(out, static_cast<uint32_t>(count) ^ 0xffffu, 2);
    out.append(data, place, count);
    place += count;
  } while (place < data.size());
  const auto* bytes = reinterpret_cast<const Bytef*>(data.data());
  AppendLittle(out, static_cast<uint32_t>(crc32(0, bytes, static_cast<uInt>(data.size()))), 4);
  AppendLittle(out, static_cast<uint32_t>(data.size()), 4);
  return out;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace edgepack;
  using namespace edgepack::device;
  if (size == 0) return 0;
  const std::string rest(Text(data + 1, size - 1));
  const std::string file = data[0] % 2 == 0 ? rest : Packed(WithChecksums(rest));
  size_t place = 0;
  // Few bytes at a time, so that every state meets the end of a buffer.
  const auto read = [&](void* out, size_t room) {
    const size_t count = std::min({room, size_t{97}, file.size() - place});
    std::memcpy(out, file.data() + place, count);
    place += count;
    return count;
  };
  BundleArchive::Limits limits;
  limits.members = 20;
  limits.bytes = uint64_t{1} << 20;
  try {
    BundleArchive archive(read, "x.tar.gz", limits);
    std::set<std::string> paths;
    uint64_t total = 0;
    while (const auto member = archive.Next()) {
      EDGEPACK_REQUIRE(IsSafePath(member->path, 255));
      EDGEPACK_REQUIRE(paths.insert(member->path).second);
      EDGEPACK_REQUIRE(IsSafePath(archive.top(), 255));
      uint64_t got = 0;
      char buffer[1000];
      // Every other file is left half read.
      const uint64_t wanted = paths.size() % 2 == 0 ? member->size / 2 : member->size;
      while (got < wanted) {
        const size_t room = static_cast<size_t>(std::min<uint64_t>(sizeof buffer, wanted - got));
        const size_t count = archive.Read(buffer, room);
        EDGEPACK_REQUIRE(count > 0 && count <= room);
        got += count;
      }
      total += got;
    }
    EDGEPACK_REQUIRE(total <= limits.bytes && paths.size() <= limits.members);
    EDGEPACK_REQUIRE(place == file.size());
  } catch (const Error& error) {
    RequireRefusal(error);
  }
  return 0;
}
