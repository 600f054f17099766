#pragma once

#include <filesystem>
#include <string>

#include "common/fd.h"
#include "http_address.h"

namespace edgepack::testing {

/// A client of a server on a Unix socket or a port. All of it waits, for some seconds at most.
class HttpClient {
 public:
  /// Waits until the server is there.
  explicit HttpClient(const HttpAddress& address);
  explicit HttpClient(const std::filesystem::path& path) : HttpClient(HttpAddress{{}, 0, path}) {}

  /// Whether nobody lets it in there.
  static bool Refused(const HttpAddress& address);
  static bool Refused(const std::filesystem::path& path) {
    return Refused(HttpAddress{{}, 0, path});
  }

  void Send(const std::string& bytes) const;
  /// A whole answer: head and body. What there is of one if the server closes the connection.
  std::string Receive();
  /// The answer to GET of a path.
  std::string Get(const std::string& path);
  /// The answer to POST of a body of JSON, or of another kind.
  std::string Post(const std::string& path, const std::string& body,
                   const std::string& content_type = "application/json");
  /// Whether the server has closed the connection.
  bool Closed();

 private:
  bool ReadMore();

  Fd fd_;
  std::string bytes_;  // of the answers that follow
};

/// Behind the head of an answer.
std::string BodyOf(const std::string& answer);

}  // namespace edgepack::testing
