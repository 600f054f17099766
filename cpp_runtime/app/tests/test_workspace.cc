#include <cstdint>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <edgepack/workspace.h>

namespace edgepack {

TEST_CASE("blocks are aligned, kept and counted") {
  Workspace workspace;
  void* a = workspace.Allocate(100);
  void* b = workspace.Allocate(0);
  REQUIRE(a != nullptr);
  REQUIRE(b != nullptr);
  CHECK(a != b);
  CHECK(reinterpret_cast<std::uintptr_t>(a) % 64 == 0);
  CHECK(reinterpret_cast<std::uintptr_t>(b) % 64 == 0);
  std::memset(a, 1, 100);
  CHECK(workspace.peak_bytes() == 128 + 64);
  workspace.Free(a);
  workspace.Free(b);
  CHECK(workspace.Allocate(60) == b);  // the smallest that is big enough
  CHECK(workspace.Allocate(60) == a);
  CHECK(workspace.peak_bytes() == 128 + 64);
}

TEST_CASE("a free block grows rather than lies idle") {
  Workspace workspace;
  workspace.Free(workspace.Allocate(64));
  workspace.Free(workspace.Allocate(1024));
  workspace.Free(workspace.Allocate(64));
  CHECK(workspace.peak_bytes() == 1024);
}

TEST_CASE("more than there is") {
  Workspace workspace;
  CHECK(workspace.Allocate(std::numeric_limits<std::uint64_t>::max()) == nullptr);
  CHECK(workspace.peak_bytes() == 0);
}

TEST_CASE("threads do not get each other's blocks") {
  Workspace workspace;
  std::vector<std::thread> threads;
  for (int id = 0; id < 4; ++id) {
    threads.emplace_back([&workspace, id] {
      for (std::size_t i = 0; i < 300; ++i) {
        auto* block = static_cast<unsigned char*>(workspace.Allocate(i + 1));
        std::memset(block, id, i + 1);
        for (std::size_t k = 0; k <= i; ++k) REQUIRE(block[k] == id);
        workspace.Free(block);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(workspace.peak_bytes() <= 4 * 320);
}

}  // namespace edgepack
