#include <doctest/doctest.h>
#include <edgepack/cpu_topology.h>
#include <edgepack/errors.h>

#include "support.h"

namespace edgepack::testing {
namespace {

/// RK3399: four small cores, then two big ones.
const std::vector<Cpu> kBigLittle = {{4, 1024}, {5, 1024}, {0, 485}, {1, 485}, {2, 485}, {3, 485}};
/// A PC: its cores differ a little in their highest frequency.
const std::vector<Cpu> kEqual = {{1, 5100000}, {0, 5000000}, {2, 5000000}};

using Cpus = std::vector<int>;

std::string ListError(const std::string& list) {
  return MessageOf<UsageError>([&] { Place(kEqual, {}, list); });
}

}  // namespace

TEST_CASE("big cores first") {
  CHECK(Place(kBigLittle, {}, {}).threads == 2);
  CHECK(Place(kBigLittle, {}, {}).cpus == Cpus{4, 5});
  CHECK(Place(kBigLittle, 1, {}).cpus == Cpus{4, 5});
  CHECK(Place(kBigLittle, 3, {}).threads == 3);
  CHECK(Place(kBigLittle, 3, {}).cpus.empty());  // needs both kinds: all there are
}

TEST_CASE("affinity by name") {
  CHECK(Place(kBigLittle, {}, "big").cpus == Cpus{4, 5});
  CHECK(Place(kBigLittle, 4, "big").threads == 4);
  CHECK(Place(kBigLittle, {}, "little").cpus == Cpus{0, 1, 2, 3});
  CHECK(Place(kBigLittle, {}, "little").threads == 4);
  CHECK(Place(kBigLittle, {}, "all").threads == 6);
  CHECK(Place(kBigLittle, {}, "all").cpus.empty());
  CHECK(Place(kBigLittle, 2, "none").threads == 2);
  CHECK(Place(kBigLittle, 2, "none").cpus.empty());
}

TEST_CASE("equal cores are not told apart") {
  CHECK(Place(kEqual, {}, {}).threads == 3);
  CHECK(Place(kEqual, {}, {}).cpus.empty());
  CHECK(Place(kEqual, 1, {}).cpus.empty());
  CHECK(Place({{0, 0}, {1, 0}}, {}, "big").threads == 2);
}

TEST_CASE("affinity by number") {
  CHECK(Place(kBigLittle, {}, "0,2-3").cpus == Cpus{0, 2, 3});
  CHECK(Place(kBigLittle, {}, "0,0,0-1").threads == 2);
  CHECK(Place(kBigLittle, 1, "5").cpus == Cpus{5});
  for (const char* bad : {"", "x", "1,", ",1", "1-", "2-1", "-1", "1x", "99999", "1 2", "Big"}) {
    CAPTURE(bad);
    CHECK(Contains(ListError(bad), "is no list of CPUs"));
  }
  CHECK(ListError("1,7") == "--affinity: there is no CPU 7 to run on");
}

TEST_CASE("the kernel's figures are read") {
  const TempFolder sys;
  const std::vector<Cpu> here = AllowedCpus(sys.path());
  REQUIRE_FALSE(here.empty());
  CHECK(here.front().capacity == 0);
  const std::string cpu = "cpu" + std::to_string(here.back().id);
  WriteFile(sys / cpu / "cpufreq" / "cpuinfo_max_freq", "1800000\n");
  CHECK(AllowedCpus(sys.path()).front().id == here.back().id);
  CHECK(AllowedCpus(sys.path()).front().capacity == 1800000);
  WriteFile(sys / cpu / "cpu_capacity", "1024\n");
  CHECK(AllowedCpus(sys.path()).front().capacity == 1024);
}

}  // namespace edgepack::testing
