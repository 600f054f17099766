#include <doctest/doctest.h>

#include "profile.h"

namespace edgepack::testing {

TEST_CASE("medians, shares and rates") {
  const std::vector<Layer> layers = {{"conv", "c", "Conv", 3000000}, {"pool", "p", "MaxPool", 0}};
  const Profile profile = MakeProfile(layers, {{3, 1}, {30, 1}, {2, 2}}, {4.5, 31, 4}, {3.5, 4, 3});
  CHECK(profile.runs == 3);
  CHECK(profile.overhead_ms == 1);
  REQUIRE(profile.entries.size() == 2);
  CHECK(profile.entries[0].layer.name == "c");
  CHECK(profile.entries[0].ms == 3);
  CHECK(profile.entries[0].share == 0.75);
  CHECK(profile.entries[0].gflops == doctest::Approx(2));
  CHECK(profile.entries[1].ms == 1);
  CHECK(profile.entries[1].share == 0.25);
  CHECK_FALSE(profile.entries[1].gflops);
}

TEST_CASE("a clock too coarse for the calls") {
  const Profile profile = MakeProfile({{"add", "a", "Add", 10}}, {{0}}, {0}, {0});
  CHECK(profile.entries[0].share == 0);
  CHECK_FALSE(profile.entries[0].gflops);
}

}  // namespace edgepack::testing
