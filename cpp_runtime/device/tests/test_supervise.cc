#include <string>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include "common/json.h"
#include "error.h"
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
}

TEST_CASE("a log that cannot be written is lost, and nothing else") {
  const TempFolder folder;
  BoundedLog(folder / "no/log").Say("to stderr");
  // Another name of somebody's file, and a link to it.
  WriteFile(folder / "theirs", "theirs");
  REQUIRE(link((folder / "theirs").c_str(), (folder / "hard").c_str()) == 0);
  REQUIRE(symlink("theirs", (folder / "soft").c_str()) == 0);
  REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
  for (const char* name : {"hard", "soft", "pipe"}) BoundedLog(folder / name).Say("to stderr");
  CHECK(ReadFile(folder / "theirs") == "theirs");
}

TEST_CASE("a log goes on under an account that may not write to its folder") {
  const TempFolder folder;
  const std::string path = folder / "log";
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    BoundedLog log(path, 250);
    const bool root = geteuid() == 0;
    if (root ? setuid(65534) != 0 : chmod(folder.path().c_str(), 0555) != 0) _exit(2);
    for (char letter = 'a'; letter <= 'g'; ++letter) log.Write(std::string(100, letter));
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  chmod(folder.path().c_str(), 0755);
  CHECK(status == 0);
  CHECK(ReadFile(path) == std::string(100, 'g'));
  CHECK(ReadFile(path + ".1") == std::string(100, 'e') + std::string(100, 'f'));
}

std::optional<ServiceTable> Read(const std::string& manifest) {
  const JsonDocument document(manifest, "it", "kind");
  JsonObject top = document.Root();
  return ReadService(&top);
}

// That both readers take the same tables is tested in tests/integration/test_manifest_readers.py.
TEST_CASE("the service table of a manifest") {
  CHECK_FALSE(Read(R"({"service": null})"));
  CHECK_THROWS_WITH_AS(Read("{}"), "it: service: missing", Error);
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
                       Error);
}

}  // namespace edgepack::device::testing
