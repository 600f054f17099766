#include <string>

#include <doctest/doctest.h>

#include "error.h"
#include "json.h"
#include "service_table.h"
#include "supervise.h"
#include "support.h"

namespace edgepack::device::testing {

TEST_CASE("pauses double up to a minute, and a minute of work ends that") {
  Backoff backoff;
  for (const double seconds : {1, 2, 4, 8, 16, 32, 60, 60}) CHECK(backoff.Next(0.5) == seconds);
  CHECK(backoff.Next(61) == 1);
  CHECK(backoff.Next(3) == 2);
  backoff.Reset();
  CHECK(backoff.Next(0) == 1);
}

TEST_CASE("a log is never more than two files") {
  const TempFolder folder;
  const std::string path = folder / "log";
  const std::string line(100, 'x');
  {
    BoundedLog log(path, 250);
    for (int i = 0; i < 7; ++i) log.Write(line);
  }
  // Two lines fit into a file: 1 2 | 3 4 | 5 6 | 7.
  CHECK(ReadFile(path).size() == 100);
  CHECK(ReadFile(path + ".1").size() == 200);
  {
    BoundedLog again(path, 250);
    again.Write(line);
    CHECK(ReadFile(path).size() == 200);
    again.Say("full");
  }
  CHECK(ReadFile(path).find("edgepack-device: full\n") != std::string::npos);
  CHECK_THROWS_AS(BoundedLog(folder / "no/log"), DeviceError);
}

std::optional<ServiceTable> Read(const std::string& manifest) {
  const JsonDocument document(manifest, "it", "kind");
  JsonObject top = document.Root();
  return ReadService(&top);
}

// That both readers take the same tables is tested in tests/integration/test_manifest_readers.py.
TEST_CASE("the service table of a manifest") {
  CHECK_FALSE(Read(R"({"service": null})"));
  CHECK_THROWS_WITH_AS(Read("{}"), "it: service: missing", DeviceError);
  const auto service = Read(R"({"service": {
    "args": ["--watch", "/in"], "restart": "on-failure", "watchdog_s": 2.5, "memory_mb": 64,
    "user": null, "writable": ["/in"]}})");
  REQUIRE(service);
  CHECK(service->args == std::vector<std::string>{"--watch", "/in"});
  CHECK(service->restart == "on-failure");
  CHECK(service->watchdog_s == 2.5);
  CHECK(service->memory_mb == 64);
  CHECK_FALSE(service->user);
  CHECK(service->writable == std::vector<std::string>{"/in"});
  CHECK_THROWS_WITH_AS(Read(R"({"service": {"args": "--watch"}})"), "it: service.args: not a list",
                       DeviceError);
}

}  // namespace edgepack::device::testing
