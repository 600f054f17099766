// The device's side of a deploy, with pipes for a link.
#include <array>
#include <csignal>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include "lock.h"
#include "receive.h"
#include "sha256.h"
#include "support.h"

namespace edgepack::device {
namespace {

using testing::Contains;
using testing::LinkAt;
using testing::ReadFile;
using testing::TempFolder;
using testing::TestBundle;

std::string Frame(int kind, std::uint32_t a, std::uint32_t b, const std::string& data = "") {
  std::string frame(1, static_cast<char>(kind));
  for (const std::uint32_t number : {a, b}) {
    for (unsigned shift = 0; shift < 32; shift += 8) {
      frame.push_back(static_cast<char>(number >> shift));
    }
  }
  return frame + data;
}

std::string Blob(const std::string& content) {
  return Frame(1, static_cast<std::uint32_t>(content.size()), 0, content) + Frame(4, 0, 0);
}

/// All blobs of a bundle, in the order in which a new device asks for them.
std::string Blobs(const TestBundle& bundle) {
  std::string frames;
  for (const auto& [path, content] : bundle.files) frames += Blob(content);
  return frames + Frame(5, 0, 0);
}

std::string Request(const TestBundle& bundle, const std::string& op = "deploy") {
  const std::string manifest = bundle.Manifest();
  return R"({"protocol":1,"op":")" + op + R"(","by":"ann@desk","keep":3,"wait_s":5,)" +
         R"("allow_downgrade":false,"retest":false,"manifest_bytes":)" +
         std::to_string(manifest.size()) + R"(,"signature_bytes":0,"signers_bytes":0})" + "\n" +
         manifest;
}

struct Answer {
  int exit_code;
  std::string events;
};

/// Runs `Receive` in a process of its own, since it changes what signals do, on that input.
Answer Send(const std::string& root, const std::string& input) {
  const TempFolder temp;
  testing::WriteFile(temp / "in", input);
  testing::WriteFile(temp / "out", "");
  const pid_t child = fork();
  if (child == 0) {
    const int in = open((temp / "in").c_str(), O_RDONLY);
    const int out = open((temp / "out").c_str(), O_WRONLY);
    _exit(Receive(root, in, out));
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  return {WEXITSTATUS(status), ReadFile(temp / "out")};
}

TEST_CASE("a deploy, the same again, and one file that changed") {
  const TempFolder temp;
  TestBundle bundle;
  Answer answer = Send(temp.path(), Request(bundle) + Blobs(bundle));
  CHECK(answer.exit_code == 0);
  CHECK(Contains(answer.events, R"({"event":"state","current":null,"previous":null,)"));
  CHECK(Contains(answer.events, R"({"event":"done","report":{"outcome":"deployed")"));
  CHECK(LinkAt(temp / "current") == "releases/000000000001");

  answer = Send(temp.path(), Request(bundle));
  CHECK(answer.exit_code == 0);
  CHECK(Contains(answer.events, R"("unchanged":true,"same_version":null,"remove":[],"needs":[]})"));
  CHECK(Contains(answer.events, R"("outcome":"unchanged")"));

  bundle.release = "000000000002";
  bundle.files["model/params.bin"] = "other weights";
  answer = Send(temp.path(), Request(bundle) + Blob("other weights") + Frame(5, 0, 0));
  CHECK(answer.exit_code == 0);
  CHECK(Contains(answer.events, R"("received_bytes":13)"));
  CHECK(LinkAt(temp / "previous") == "releases/000000000001");
}

TEST_CASE("a plan changes nothing, and needs no blob") {
  const TempFolder temp;
  const Answer answer = Send(temp.path(), Request(TestBundle(), "plan"));
  CHECK(answer.exit_code == 0);
  CHECK(Contains(answer.events, R"("path":"model/params.bin","size":7,"have":0,"base":null)"));
  CHECK(Contains(answer.events, R"({"event":"done","report":{}})"));
  CHECK_FALSE(Folder::Open(temp.path()).Has("current"));
  CHECK_FALSE(Folder::Open(temp.path()).Has(".lock"));
}

TEST_CASE("a link that ends early leaves what has arrived") {
  const TempFolder temp;
  TestBundle bundle;
  bundle.files["model/params.bin"] = std::string(300'000, 'w');
  const std::string first(200'000, 'w');
  std::string frames;
  for (const auto& [path, content] : bundle.files) {
    frames += path == "model/params.bin" ? Frame(1, 200'000, 0, first) : Blob(content);
  }
  Answer answer = Send(temp.path(), Request(bundle) + frames + "\1");
  CHECK(answer.exit_code == kExitDevice);
  CHECK(Contains(answer.events, "the link was lost"));
  CHECK_FALSE(Lock::Look(Folder::Open(temp.path())).has_value());

  answer = Send(temp.path(), Request(bundle) + Blob(std::string(100'000, 'w')) + Frame(5, 0, 0));
  CHECK(answer.exit_code == 0);
  CHECK(Contains(answer.events, R"("size":300000,"have":200000)"));
  CHECK(ReadFile(temp / "current/model/params.bin") == bundle.files["model/params.bin"]);
}

TEST_CASE("what breaks the protocol is refused") {
  const TestBundle bundle;
  const std::string request = Request(bundle);
  const std::string first = bundle.files.begin()->second;
  const auto error = [&](const std::string& input) {
    const TempFolder temp;
    const Answer answer = Send(temp.path(), input);
    CHECK(answer.exit_code != 0);
    CHECK(Contains(answer.events, R"({"event":"error")"));
    CHECK_FALSE(Folder::Open(temp.path()).Has("current"));
    return answer.events;
  };
  CHECK(Contains(error("{}\n"), "request: protocol: missing"));
  CHECK(Contains(error("GET / HTTP/1.1\n"), "request"));
  CHECK(Contains(error(R"({"protocol":2})"
                       "\n"),
                 "another protocol"));
  CHECK(Contains(error(request + Frame(9, 0, 0)), "a frame of kind 9"));
  CHECK(Contains(error(request + Frame(1, 1U << 30U, 0)), "a frame is too long"));
  CHECK(Contains(error(request + Frame(3, 0, 1)), "a copy of nothing"));
  CHECK(Contains(error(request + Frame(2, 4, 100, "????")), "damaged"));
  CHECK(Contains(error(request + Blob(first + "more")), "is longer than the manifest says"));
  CHECK(Contains(error(request + Blob(first.substr(1))), "corrupt-transfer"));
  CHECK(Contains(error(request + Blob(std::string(first.size(), '?'))), "corrupt-transfer"));
  CHECK(Contains(error(request + Blobs(bundle).substr(0, Blobs(bundle).size() - 9) + Blob("")),
                 "more than needed"));
}

TEST_CASE("nothing asked, nothing done") {
  const TempFolder temp;
  const Answer answer = Send(temp.path(), "");
  CHECK(answer.exit_code == 0);
  CHECK(answer.events.empty());
  CHECK(Folder::Open(temp.path()).Names().empty());
}

TEST_CASE("chunks of a blob that is there are copied, not sent") {
  const TempFolder temp;
  TestBundle bundle;
  std::string& weights = bundle.files["model/params.bin"];
  std::uint32_t state = 1;
  weights.clear();
  while (weights.size() < 1'200'000) {
    state = state * 1664525 + 1013904223;  // Numerical Recipes' generator
    weights.push_back(static_cast<char>(state >> 24U));
  }
  std::string frames;
  for (const auto& [path, content] : bundle.files) {
    if (path != "model/params.bin") {
      frames += Blob(content);
      continue;
    }
    for (std::size_t at = 0; at < content.size(); at += 200'000) {
      frames += Frame(1, 200'000, 0, content.substr(at, 200'000));
    }
    frames += Frame(4, 0, 0);
  }
  CHECK(Send(temp.path(), Request(bundle) + frames + Frame(5, 0, 0)).exit_code == 0);

  // The same with something behind it.
  bundle.release = "000000000002";
  weights += "more";
  const Answer plan = Send(temp.path(), Request(bundle, "plan"));
  const std::string mark = R"("chunks":")";
  const std::size_t at = plan.events.find(mark) + mark.size();
  REQUIRE(at > mark.size());
  const std::size_t encoded = plan.events.find('"', at) - at;
  const auto chunks = static_cast<std::uint32_t>(encoded / 4 * 3 / 20);
  const Answer answer =
      Send(temp.path(), Request(bundle) + Frame(3, 0, chunks) + Frame(1, 4, 0, "more") +
                            Frame(4, 0, 0) + Frame(5, 0, 0));
  CHECK(answer.exit_code == 0);
  CHECK(Contains(answer.events, R"("received_bytes":4,"copied_bytes":1200000)"));
  const Answer wrong = Send(temp.path(), Request(bundle) + Frame(3, 0, chunks + 1));
  CHECK(wrong.exit_code == 0);  // it is there: no frame is looked at
}

}  // namespace
}  // namespace edgepack::device
