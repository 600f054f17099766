// Programs that end, fail, crash, hang and leave children behind.
#include <csignal>
#include <unistd.h>

#include <doctest/doctest.h>

#include "clock.h"
#include "options.h"
#include "process.h"
#include "support.h"

namespace edgepack::device {
namespace {

using testing::Contains;
using testing::ErrorOf;
using testing::ReadFile;
using testing::TempFolder;

Ended Shell(const std::string& script, double timeout_s = 60) {
  return RunProgram({"/bin/sh", "-c", script}, timeout_s);
}

TEST_CASE("what a program says, and how it ends") {
  const Ended ended = Shell("echo out; echo err >&2; exit 3");
  CHECK(ended.out == "out\n");
  CHECK(ended.err == "err\n");
  CHECK(ended.exit_code == 3);
  CHECK_FALSE(ended.timed_out);
  CHECK(ended.max_rss_bytes > 0);
  CHECK(Shell("read line || echo nothing").out == "nothing\n");
}

TEST_CASE("a crash has its signal") { CHECK(Shell("kill -ABRT $$").signal == SIGABRT); }

TEST_CASE("a program that is not there") {
  const Ended ended = RunProgram({"/nowhere/at/all"}, 60);
  CHECK(ended.exit_code == 127);
  CHECK(Contains(ended.err, "No such file"));
}

TEST_CASE("one that hangs is killed with all its children") {
  const TempFolder temp;
  const Ended ended = Shell("sleep 1000 & echo $! >" + (temp / "pid").string() + "; wait", 0.3);
  CHECK(ended.timed_out);
  const pid_t child = std::stoi(ReadFile(temp / "pid"));
  // Killed; whoever inherits it collects it.
  for (int i = 0; i < 500 && kill(child, 0) == 0; ++i) {
    if (Contains(ReadFile("/proc/" + std::to_string(child) + "/stat"), ") Z ")) break;
    Sleep(0.01);
  }
  CHECK_FALSE(Contains(ReadFile("/proc/" + std::to_string(child) + "/cmdline"), "sleep"));
}

TEST_CASE("one that ends while a child holds its output") {
  CHECK(Shell("sleep 1000 & echo done").out == "done\n");
}

TEST_CASE("more output than anybody wants") {
  CHECK(Shell("yes | head -c 3000000").out.size() == 3000000);
  CHECK(Shell("yes | head -c 9000000").out.size() == 6U << 20U);
  CHECK(Shell("yes | head -c 300000 >&2").err.size() <= 4096);
}

TEST_CASE("the command line") {
  const Options options =
      ParseOptions({"--json", "rollback", "--root=/a b", "--to", "id", "--wait", "7", "--", "-x"});
  CHECK(options.command == "rollback");
  CHECK(options.json);
  CHECK(options.root == "/a b");
  CHECK(options.to == "id");
  CHECK(options.wait_s == 7);
  CHECK(options.app_words == std::vector<std::string>{"-x"});
  CHECK(ParseOptions({"prune", "--dry-run"}).dry_run);
  CHECK(ParseOptions({"install", "bundle"}).words == std::vector<std::string>{"bundle"});
  CHECK(ErrorOf([] { ParseOptions({}); }) == "usage: no command");
  CHECK(ErrorOf([] { ParseOptions({"status", "--jsn"}); }) == "usage: unknown option: --jsn");
  CHECK(ErrorOf([] { ParseOptions({"status", "--json=1"}); }) == "usage: --json takes no value");
  CHECK(ErrorOf([] { ParseOptions({"prune", "--keep"}); }) == "usage: --keep needs a value");
  CHECK(ErrorOf([] {
          ParseOptions({"prune", "--keep", "0"});
        }) == "usage: --keep: '0' is not a whole number of 1 or more");
}

}  // namespace
}  // namespace edgepack::device
