#pragma once

#include <filesystem>
#include <string>

namespace edgepack {

/// Where a server listens.
struct HttpAddress {
  std::string host;            ///< of digits: "127.0.0.1", "::1"
  int port = 0;                ///< 0: one that is free
  std::filesystem::path path;  ///< of a Unix socket; then there is neither host nor port

  /// PORT (of 127.0.0.1), HOST:PORT, [HOST]:PORT or unix:PATH. Throws UsageError about `option`.
  static HttpAddress Parse(const std::string& option, const std::string& text);
};

}  // namespace edgepack
