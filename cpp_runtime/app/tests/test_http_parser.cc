#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "http_parser.h"
#include "support.h"

namespace edgepack::testing {
namespace {

std::size_t Most(const HttpRequest& head) { return head.path == "/big" ? 1000 : 10; }

/// All requests of a stream whose bytes come `step` at a time, and the status at its end.
struct Parsed {
  std::vector<HttpRequest> requests;
  std::vector<bool> keep_alive;
  int failed = 0;
};

Parsed Parse(std::string_view bytes, std::size_t step) {
  Parsed parsed;
  HttpParser parser(Most);
  while (!bytes.empty() && parser.failed() == 0) {
    bytes.remove_prefix(parser.Feed(bytes.substr(0, step)));
    if (!parser.complete()) continue;
    parsed.keep_alive.push_back(parser.keep_alive());
    parsed.requests.push_back(parser.Take());
  }
  parsed.failed = parser.failed();
  return parsed;
}

}  // namespace

TEST_CASE("requests behind each other, however they are cut") {
  const std::string bytes =
      "\r\nPOST /v2/models/a%20b/infer?x=1 HTTP/1.1\r\nHost: here:80\r\nContent-Length: 5\r\n"
      "Content-Type: Application/JSON; charset=utf-8\r\nInference-Header-Content-Length: 3\r\n\r\n"
      "hello"
      "GET / HTTP/1.1\r\nHost:\r\n\r\n"
      "POST /big HTTP/1.1\r\nHost: [::1]:8080\r\nTransfer-Encoding: "
      "chunked\r\n\r\n4\r\nwiki\r\n6;x=y\r\npedia!\r\n"
      "0\r\nHost: a trailer\r\n\r\n"
      "GET /old HTTP/1.0\r\n\r\n";
  for (const std::size_t step : {std::size_t{1}, std::size_t{2}, std::size_t{7}, bytes.size()}) {
    CAPTURE(step);
    const Parsed parsed = Parse(bytes, step);
    CHECK(parsed.failed == 0);
    REQUIRE(parsed.requests.size() == 4);
    const HttpRequest& first = parsed.requests[0];
    CHECK(first.method == "POST");
    CHECK(first.path == "/v2/models/a b/infer");
    CHECK(first.host == "here:80");
    CHECK(first.content_type == "application/json");
    CHECK(first.json_bytes == 3);
    CHECK(first.body == "hello");
    CHECK(parsed.requests[1].path == "/");
    CHECK(parsed.requests[1].host.empty());
    CHECK_FALSE(parsed.requests[1].json_bytes);
    CHECK(parsed.requests[2].body == "wikipedia!");
    CHECK(parsed.requests[2].host == "[::1]:8080");
    CHECK(parsed.requests[3].host.empty());
    CHECK(parsed.keep_alive == std::vector<bool>{true, true, true, false});
  }
}

TEST_CASE("requests that are none") {
  const std::string get = "GET / HTTP/1.1\r\nHost: x\r\n";
  const std::string post = "POST / HTTP/1.1\r\nHost: x\r\n";
  const std::string chunked = post + "Transfer-Encoding: chunked\r\n\r\n";
  const std::string long_text(2 * HttpParser::kMostHeadBytes, 'a');
  const std::vector<std::pair<std::string, int>> cases = {
      {"hello\r\n\r\n", 400},
      {"GET / HTTP/3.0\r\n\r\n", 505},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
      {"GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"GET /%00 HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"GET /%4", 0},
      {"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400},
      {"GET / HTTP/1.1\nHost: x\n\n", 505},
      {"GET / HTTP/1.1\r\nHost: x\nA: b\n\n", 400},
      {post + "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", 400},
      {post + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {post + "Content-Length: -5\r\n\r\n", 400},
      {post + "Content-Length: 11\r\n\r\n", 413},
      {post + "Content-Length: 99999999999999999999\r\n\r\n", 400},
      {post + "Transfer-Encoding: chunked\r\n\r\nB\r\nhello world\r\n0\r\n\r\n", 413},
      {post + "Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n", 400},
      {post + "Content-Encoding: gzip\r\n\r\n", 415},
      {post + "Inference-Header-Content-Length: 3x\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n\r\n", 400},  // RFC 9112, 3.2
      {get + "Host: x\r\n\r\n", 400},
      {get + "hOST: y\r\n\r\n", 400},
      {"GET / HTTP/1.0\r\nHost: x\r\nHost: x\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: [evil].example\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: [::1].example\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: ::1\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: me@x\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: x:80a\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: x:-1\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: x:65536\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: x, y\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n Host: x\r\n\r\n", 400},  // 2.2
      {get + "A: b\r\n c\r\n\r\n", 400},            // 5.2: folded
      {get + "A: b\rc\r\n\r\n", 400},
      {get + std::string("A: b\0c\r\n\r\n", 10), 400},
      {"GET x HTTP/1.1\r\nHost: x\r\n\r\n", 400},  // 3.2: none of the four forms
      {"GET * HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"GET http://[x]/ HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"CONNECT x:80 HTTP/1.1\r\nHost: x:80\r\n\r\n", 501},
      {"POST / HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},  // 6.1
      {post + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501},
      {post + "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 501},
      {post + "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 400},
      {post + "Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n", 400},
      {post + "Transfer-Encoding: gzip\r\n\r\n", 400},
      {post + "Transfer-Encoding: xchunked\r\n\r\n", 400},
      {post + "Transfer-Encoding:\r\n\r\n", 400},
      {post + "Expect: the unexpected\r\n\r\n", 417},
      {post + "Content-Type: image/png\r\nContent-Type: text/plain\r\n\r\n", 400},
      {get + "Origin: http://x\r\nOrigin: http://y\r\n\r\n", 400},
      {get + "Sec-Fetch-Site: none\r\nSec-Fetch-Site: cross-site\r\n\r\n", 400},
      {get + "Authorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n", 400},
      {chunked + "1;" + long_text, 431},
      {chunked + "1;a=\"" + long_text, 431},
      {chunked + "0\r\nA: " + long_text, 431},
      {chunked + "0\r\n" + long_text, 431},
      {chunked + std::string(2 * HttpParser::kMostHeadBytes, '0'), 431},
      {"GET /" + std::string(HttpParser::kMostHeadBytes, 'a') + " HTTP/1.1\r\n\r\n", 431},
      {get + "A: " + std::string(HttpParser::kMostHeadBytes, ' ') + "\r\n\r\n", 431},
  };
  for (const auto& one : cases) {
    CAPTURE(one.first.substr(0, 100));
    for (const std::size_t step : {std::size_t{1}, one.first.size()}) {
      const Parsed parsed = Parse(one.first, step);
      CHECK(parsed.failed == one.second);
      CHECK(parsed.requests.empty());
    }
  }
}

TEST_CASE("targets, and codings in other letters") {
  const std::string bytes =
      "GET http://here:81/a?b HTTP/1.1\r\nHost: x\r\n\r\n"
      "GET HTTPS://Here HTTP/1.1\r\nHost: x\r\n\r\n"
      "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n"
      "POST /big HTTP/1.1\r\nHost: \t x \r\nTransfer-Encoding: Chunked\r\n\r\n1\r\na\r\n0\r\n\r\n";
  for (const std::size_t step : {std::size_t{1}, bytes.size()}) {
    const Parsed parsed = Parse(bytes, step);
    CHECK(parsed.failed == 0);
    REQUIRE(parsed.requests.size() == 4);
    CHECK(parsed.requests[0].host == "here:81");
    CHECK(parsed.requests[0].path == "/a");
    CHECK(parsed.requests[1].host == "Here");
    CHECK(parsed.requests[1].path == "/");
    CHECK(parsed.requests[2].path == "*");
    CHECK(parsed.requests[3].host == "x");
    CHECK(parsed.requests[3].body == "a");
  }
}

TEST_CASE("many small chunks are a body like others") {
  std::string bytes = "POST /big HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 1000; ++i) bytes += "1;a=b\r\nx\r\n";
  const Parsed parsed = Parse(bytes + "0\r\n\r\n", 4096);
  CHECK(parsed.failed == 0);
  REQUIRE(parsed.requests.size() == 1);
  CHECK(parsed.requests[0].body.size() == 1000);
}

TEST_CASE("a client that waits for a word before its body") {
  HttpParser parser(Most);
  CHECK_FALSE(parser.begun());
  parser.Feed(
      "POST /big HTTP/1.1\r\nHost: x\r\nExpect: 100-Continue\r\nContent-Length: 20\r\n\r\n");
  CHECK(parser.begun());
  CHECK(parser.head_complete());
  CHECK(parser.expects_continue());
  CHECK_FALSE(parser.complete());
  parser.Feed("0123456789");
  CHECK(parser.body_bytes() == 10);
  parser.Feed("0123456789");
  CHECK(parser.complete());
  CHECK(parser.Take().body == "01234567890123456789");
  CHECK_FALSE(parser.begun());
  CHECK_FALSE(parser.expects_continue());
}

}  // namespace edgepack::testing
