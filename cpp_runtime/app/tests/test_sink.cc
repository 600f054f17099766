#include <csignal>
#include <sstream>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <doctest/doctest.h>

#include "options.h"
#include "sink.h"
#include "support.h"

namespace edgepack::testing {
namespace {

SinkOptions To(const std::string& text) {
  SinkOptions options;
  options.Parse(text);
  return options;
}

/// Somebody who listens on a Unix socket.
class Listener {
 public:
  explicit Listener(const std::filesystem::path& path)
      : fd_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path.native().copy(address.sun_path, sizeof(address.sun_path) - 1);
    REQUIRE(bind(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
    REQUIRE(listen(fd_.get(), 1) == 0);
  }
  /// What the next client sends, up to so many bytes; it is let go then.
  [[nodiscard]] std::string Read(std::size_t bytes) const {
    const Fd client(accept(fd_.get(), nullptr, nullptr));
    std::string got(bytes, '\0');
    REQUIRE(recv(client.get(), got.data(), bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes));
    return got;
  }

 private:
  Fd fd_;
};

}  // namespace

TEST_CASE("a file of lines is rotated") {
  const TempFolder folder;
  std::ostringstream out;
  WriteFile(folder / "lines", "old\n");
  SinkOptions options = To(folder / "lines");
  options.rotate_bytes = 10;
  options.keep = 2;
  LineSink sink(options, out);
  for (const char* line : {"1234\n", "5678\n", "abcd\n", "a line of more than all\n", "last\n"}) {
    sink.Write(line);
  }
  CHECK(sink.lost() == 0);
  CHECK(ReadFile(folder / "lines") == "last\n");
  CHECK(ReadFile(folder / "lines.1") == "a line of more than all\n");
  CHECK(ReadFile(folder / "lines.2") == "5678\nabcd\n");
  CHECK_FALSE(std::filesystem::exists(folder / "lines.3"));
  CHECK(out.str().empty());

  options.keep = 0;
  LineSink(options, out).Write("only this\n");
  CHECK(ReadFile(folder / "lines") == "only this\n");
  CHECK(ReadFile(folder / "lines.1") == "a line of more than all\n");
  CHECK(
      Contains(MessageOf([&] { LineSink(To(folder / "none" / "lines"), out); }), "--out: cannot"));
}

TEST_CASE("a full disk costs lines, whole ones") {
  const TempFolder folder;
  std::ostringstream out;
  LineSink sink(To(folder / "lines"), out);
  // As a full disk does it: the first bytes of what is too much are written.
  rlimit before = {};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  rlimit limit = before;
  limit.rlim_cur = 8;
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  sink.Write("1234\n");
  sink.Write("5678\n");
  sink.Write("5678\n");
  REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
  std::signal(SIGXFSZ, handler);
  CHECK(sink.lost() == 2);
  sink.Write("abcd\n");
  CHECK(sink.lost() == 2);
  CHECK(ReadFile(folder / "lines") == "1234\nabcd\n");
}

TEST_CASE("lines through a socket, whether somebody listens or not") {
  const TempFolder folder;
  std::ostringstream out;
  {
    LineSink none(To("unix:" + (folder / "socket").string()), out);
    none.Write("1\n");
    none.Write("2\n");
    CHECK(none.lost() == 2);
  }
  const Listener listener(folder / "socket");
  LineSink sink(To("unix:" + (folder / "socket").string()), out);
  sink.Write("1\n");
  sink.Write("2\n");
  CHECK(listener.Read(4) == "1\n2\n");
  CHECK(sink.lost() == 0);
  sink.Write("3\n");  // the listener has let go
  CHECK(sink.lost() == 1);
  CHECK(out.str().empty());
}

TEST_CASE("where lines go") {
  const auto parse = [](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"--images", "-"};
    words.insert(words.end(), more.begin(), more.end());
    return ParseOptions(words);
  };
  CHECK_FALSE(parse({}).out);
  CHECK(parse({"--out", "a"}).out->rotate_bytes == std::int64_t{16} << 20);
  const Options options = parse({"--rotate", "3K", "--keep", "0", "--out", "a"});
  CHECK(options.out->file == "a");
  CHECK(options.out->rotate_bytes == 3072);
  CHECK(options.out->keep == 0);
  CHECK(parse({"--out", "unix:b"}).out->socket == "b");
  CHECK(parse({"--preview", "80"}).preview->port == 80);
  for (const std::vector<std::string>& bad :
       std::vector<std::vector<std::string>>{{"--out", ""},
                                             {"--out", "unix:"},
                                             {"--keep", "3"},
                                             {"--out", "unix:a", "--rotate", "1M"},
                                             {"--out", "a", "--rotate", "M"},
                                             {"--out", "a", "--rotate", "0"},
                                             {"--out", "a", "--rotate", "1T"},
                                             {"--out", "a", "--keep", "-1"},
                                             {"--serve", "80"},
                                             {"--queue", "3"}}) {
    CHECK_THROWS_AS(parse(bad), UsageError);
  }
  CHECK_THROWS_AS(ParseOptions({"--golden", "--out", "a"}), UsageError);
  CHECK_THROWS_AS(ParseOptions({"--golden", "--preview", "80"}), UsageError);
  CHECK(ParseOptions({"--serve", "80", "--queue", "3"}).queue == 3);
}

}  // namespace edgepack::testing
