#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace edgepack {

/// `text` with ASCII letters in lower case.
std::string LowerCase(std::string_view text);

/// What names a server: the Host header, or part of an origin.
struct HttpAuthority {
  std::string host;         ///< in lower case, without a dot at its end
  std::optional<int> port;  ///< if it is said
  bool address = false;     ///< of digits, IPv6 in brackets
};

/// Nothing unless it is a host, with or without a port (RFC 3986). A name is not looked up.
std::optional<HttpAuthority> ParseAuthority(std::string_view text);

/// What an HTTP client asks for.
struct HttpRequest {
  std::string method;  ///< "GET"
  std::string path;    ///< without the query, percent-decoded
  std::string host;    ///< as the header has it, or the target; "": HTTP/1.0 needs none
  std::string authorization;
  std::optional<std::string> origin;      ///< of the web page that asks, as browsers tell
  std::optional<std::string> fetch_site;  ///< Sec-Fetch-Site, in lower case
  std::string content_type;               ///< in lower case, without parameters
  /// Inference-Header-Content-Length: how many bytes of the body are JSON.
  std::optional<std::size_t> json_bytes;
  std::string body;
};

/// Cuts what a client sends into requests of HTTP/1.0 and 1.1, each within its bounds (llhttp
/// underneath, in its strict form, and what RFC 9112 asks for beyond).
class HttpParser {
 public:
  /// Of the request line and all headers; of what else than data a chunked body has, but for the
  /// usual few bytes around each of its chunks.
  static constexpr std::size_t kMostHeadBytes = std::size_t{16} << 10U;

  /// `most_body` says, by the head of a request, how many bytes its body may have.
  explicit HttpParser(std::function<std::size_t(const HttpRequest& head)> most_body);
  ~HttpParser();
  HttpParser(const HttpParser&) = delete;
  HttpParser& operator=(const HttpParser&) = delete;
  HttpParser(HttpParser&&) = delete;
  HttpParser& operator=(HttpParser&&) = delete;

  /// Takes bytes up to the end of the request at most, and says how many.
  std::size_t Feed(std::string_view bytes);

  /// Some of a request has come, all of its headers, all of it.
  [[nodiscard]] bool begun() const;
  [[nodiscard]] bool head_complete() const;
  [[nodiscard]] bool complete() const;
  /// The status of what cannot be understood or is too large (400, 413, 415, 417, 431, 501, 505),
  /// else 0.
  /// Nothing more is taken then.
  [[nodiscard]] int failed() const;
  /// What is asked for, once all headers have come, without its body.
  [[nodiscard]] const HttpRequest& head() const;
  /// The client waits for "100 Continue" before it sends the body.
  [[nodiscard]] bool expects_continue() const;
  /// Bytes of the body that have come.
  [[nodiscard]] std::size_t body_bytes() const;
  /// Of a complete request: the client may send another one after it.
  [[nodiscard]] bool keep_alive() const;

  /// The request that is complete. The next one may follow.
  HttpRequest Take();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace edgepack
