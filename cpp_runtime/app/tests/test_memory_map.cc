#include <algorithm>
#include <cstring>
#include <fstream>
#include <unistd.h>
#include <vector>

#include <doctest/doctest.h>

#include "memory_map.h"
#include "support.h"

namespace edgepack::testing {
namespace {

constexpr std::size_t kBytes = (std::size_t{16} << 20U) + 100;

/// Bytes of this process that are in memory.
std::size_t Resident() {
  std::size_t all = 0;
  std::size_t resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

bool IsAll(const char* data, std::size_t bytes, char value) {
  return std::all_of(data, data + bytes, [=](char one) { return one == value; });
}

}  // namespace

TEST_CASE("a file that was given back is read again") {
  const TempFolder folder;
  {
    const std::vector<char> sevens(kBytes, 7);
    std::ofstream(folder.path() / "file", std::ios::binary).write(sevens.data(), kBytes);
  }
  const MemoryMap map = MemoryMap::File(folder.path() / "file");
  REQUIRE(map.size() == kBytes);
  REQUIRE(IsAll(map.data(), kBytes, 7));
  const std::size_t mapped = Resident();
  map.Drop(0, map.size());
  CHECK(Resident() + kBytes / 2 < mapped);
  CHECK(IsAll(map.data(), kBytes, 7));
}

TEST_CASE("only whole pages of a range are given back, and are zero then") {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t bytes = 4 * page;
  const MemoryMap map = MemoryMap::Zeroed(bytes);
  const auto kept = [&](std::size_t offset, std::size_t count) {
    std::memset(map.data(), 7, bytes);
    map.Drop(offset, count);
    std::vector<bool> pages;
    for (std::size_t at = 0; at < bytes; at += page) {
      const char value = map.data()[at];
      CHECK(IsAll(map.data() + at, page, value));
      pages.push_back(value == 7);
    }
    return pages;
  };
  const std::vector<bool> all = {true, true, true, true};
  CHECK(kept(0, page - 1) == all);
  CHECK(kept(1, page) == all);
  CHECK(kept(page, 0) == all);
  CHECK(kept(bytes, page) == all);
  CHECK(kept(2 * bytes, page) == all);
  CHECK(kept(1, 2 * page) == std::vector<bool>{true, false, true, true});
  CHECK(kept(page, page) == std::vector<bool>{true, false, true, true});
  CHECK(kept(page + 1, bytes) == std::vector<bool>{true, true, false, false});
  CHECK(kept(page, static_cast<std::size_t>(-1)) == std::vector<bool>{true, false, false, false});
  MemoryMap().Drop(0, 1);
  MemoryMap::Zeroed(0).Drop(0, 0);
}

}  // namespace edgepack::testing
