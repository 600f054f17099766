#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "http_parser.h"

namespace edgepack {

/// Who may ask a server.
struct HttpAccess {
  std::vector<std::string> hosts;  ///< names by which it is asked, besides this machine's own
  std::string token;               ///< that each request has to show; "": none
};

/// The token in a file: its only line. Throws UsageError about `option` for a file that others can
/// read or write, and for what is none.
std::string ReadToken(const std::string& option, const std::filesystem::path& path);

/// A name for `HttpAccess::hosts`, in lower case. Throws UsageError about `option`.
std::string ToHostName(const std::string& option, const std::string& text);

/// Keeps out web pages from elsewhere, which a browser on this machine, or in its network, has
/// loaded, and whoever does not have the token.
class HttpGuard {
 public:
  struct Denial {
    int status;
    std::string message;
  };

  explicit HttpGuard(HttpAccess access);

  /// Why a request is not answered, by its head; nothing if it is.
  [[nodiscard]] std::optional<Denial> Judge(const HttpRequest& head) const;

 private:
  [[nodiscard]] bool IsOwn(const HttpAuthority& host) const;
  [[nodiscard]] bool HasToken(std::string_view authorization) const;

  std::vector<std::string> hosts_;
  std::string token_;
};

}  // namespace edgepack
