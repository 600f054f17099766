#include <string>
#include <sys/stat.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include "common/error.h"
#include "http_access.h"
#include "support.h"

namespace edgepack::testing {
namespace {

HttpRequest Asked(const std::string& host) {
  HttpRequest head;
  head.host = host;
  return head;
}

int StatusOf(const HttpGuard& guard, const HttpRequest& head) {
  const auto denial = guard.Judge(head);
  return denial ? denial->status : 200;
}

}  // namespace

TEST_CASE("names by which a server may be asked") {
  HttpAccess access;
  access.hosts = {ToHostName("--host", "Board.Example.")};
  const HttpGuard guard(access);
  char own[256] = {};
  REQUIRE(gethostname(own, sizeof(own) - 1) == 0);
  const std::string name(own);
  const std::string label = name.substr(0, name.find('.'));
  for (const std::string& good :
       {std::string(), std::string("localhost"), std::string("LOCALHOST:1"),
        std::string("localhost.:8080"), std::string("127.0.0.1"), std::string("192.168.1.5:8080"),
        std::string("[::1]:8080"), std::string("[fe80::1]"), std::string("board.example"),
        std::string("BOARD.example.:80"), name, name + ":8080", label + ".local",
        label + ".LOCAL."}) {
    CAPTURE(good);
    CHECK(StatusOf(guard, Asked(good)) == 200);
  }
  for (const char* bad : {"evil.example", "evil.example:8080", "localhost.evil.example",
                          "127.0.0.1.evil.example", "evil.board.example", "xlocalhost", "127.1",
                          "2130706433", "0x7f.0.0.1", "board.example..", "local%68ost"}) {
    CAPTURE(bad);
    CHECK(StatusOf(guard, Asked(bad)) == 403);
  }
  for (const char* bad : {"", "a b", "a:80", "127.0.0.1", "[::1]", "http://a", "a/b"}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(ToHostName("--host", bad), UsageError);
  }
}

TEST_CASE("pages of others") {
  const HttpGuard guard({});
  const auto from = [&](const std::string& host, const std::string& origin) {
    HttpRequest head = Asked(host);
    head.origin = origin;
    return StatusOf(guard, head);
  };
  CHECK(from("localhost:8080", "http://localhost:8080") == 200);
  CHECK(from("localhost", "https://LOCALHOST:443") == 200);
  CHECK(from("127.0.0.1:80", "http://127.0.0.1") == 200);
  CHECK(from("[::1]:81", "http://[::1]:81") == 200);
  for (const char* origin :
       {"", "null", "http://evil.example", "http://localhost", "http://localhost:8081",
        "https://localhost", "http://127.0.0.1:8080", "file://",
        "chrome-extension://localhost:8080", "localhost:8080", "http://localhost:8080.evil.example",
        "http://localhost:8080/", "http://localhost:8080 http://localhost:8080"}) {
    CAPTURE(origin);
    CHECK(from("localhost:8080", origin) == 403);
  }
  CHECK(from("", "http://localhost") == 403);
  for (const char* site : {"cross-site", "same-site", "", "other"}) {
    CAPTURE(site);
    HttpRequest head = Asked("localhost");
    head.fetch_site = site;
    CHECK(StatusOf(guard, head) == 403);
  }
  for (const char* site : {"same-origin", "none"}) {
    HttpRequest head = Asked("localhost");
    head.fetch_site = site;
    CHECK(StatusOf(guard, head) == 200);
  }
}

TEST_CASE("a token") {
  const TempFolder folder;
  const std::filesystem::path file = folder / "token";
  const auto read = [&](const std::string& text, mode_t mode) {
    unlink(file.c_str());
    WriteFile(file, text);
    REQUIRE(chmod(file.c_str(), mode) == 0);
    return ReadToken("--token-file", file);
  };
  HttpAccess access;
  access.token = read("0123456789abcdef\n", 0600);
  CHECK(access.token == "0123456789abcdef");
  CHECK(read(std::string(1024, 'a') + "\r\n", 0640).size() == 1024);
  for (const std::string& bad :
       {std::string(), std::string("short\n"), std::string("0123456789abcde f\n"),
        std::string("0123456789abcdef\n0123456789abcdef\n"), std::string(1025, 'a'),
        std::string(5000, 'a'), std::string("0123456789abcdef\0", 17)}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(read(bad, 0600), UsageError);
  }
  CHECK_THROWS_AS(read("0123456789abcdef", 0604), UsageError);
  CHECK_THROWS_AS(read("0123456789abcdef", 0620), UsageError);
  CHECK_THROWS_AS(ReadToken("--token-file", folder / "none"), UsageError);

  const HttpGuard guard(access);
  const auto with = [&](const std::string& authorization) {
    HttpRequest head = Asked("localhost");
    head.authorization = authorization;
    return StatusOf(guard, head);
  };
  CHECK(with("Bearer 0123456789abcdef") == 200);
  CHECK(with("bearer  0123456789abcdef") == 200);
  // base64 of "me:0123456789abcdef" and of ":0123456789abcdef" (coreutils' base64).
  CHECK(with("Basic bWU6MDEyMzQ1Njc4OWFiY2RlZg==") == 200);
  CHECK(with("basic OjAxMjM0NTY3ODlhYmNkZWY=") == 200);
  for (const char* bad :
       {"", "Bearer", "Bearer ", "Bearer 0123456789abcdeg", "Bearer 0123456789abcde",
        "Bearer 0123456789abcdef0", "0123456789abcdef", "Digest 0123456789abcdef",
        "Basic 0123456789abcdef", "Basic MDEyMzQ1Njc4OWFiY2RlZg==", "Basic !",
        "Bearer0123456789abcdef", "Basic"}) {
    CAPTURE(bad);
    CHECK(with(bad) == 401);
  }
}

}  // namespace edgepack::testing
