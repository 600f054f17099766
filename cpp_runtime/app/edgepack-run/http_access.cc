#include "http_access.h"

#include <algorithm>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "common/error.h"
#include "common/fd.h"

namespace edgepack {
namespace {

constexpr std::size_t kLeastTokenBytes = 16;
constexpr std::size_t kMostTokenBytes = 1024;
constexpr int kHttpPort = 80;
constexpr int kHttpsPort = 443;

/// By what this machine calls itself, and what mDNS makes of it.
std::vector<std::string> OwnNames() {
  std::vector<std::string> names = {"localhost"};
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0) return names;
  const std::optional<HttpAuthority> own = ParseAuthority(name);
  if (!own || own->address || own->host.empty()) return names;
  const std::string first = own->host.substr(0, own->host.find('.'));
  for (const std::string& also : {own->host, first, first + ".local"}) names.push_back(also);
  return names;
}

/// Takes as long for any `given` of a length, wherever it differs.
bool Equal(std::string_view given, const std::string& token) {
  volatile unsigned difference = given.size() == token.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const auto a = static_cast<unsigned char>(given[i]);
    const auto b = static_cast<unsigned char>(token[i % token.size()]);
    difference = difference | static_cast<unsigned>(a ^ b);
  }
  return difference == 0;
}

/// Of base64 (RFC 4648); nothing if it is none.
std::optional<std::string> FromBase64(std::string_view text) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  while (!text.empty() && text.back() == '=') text.remove_suffix(1);
  std::string bytes;
  unsigned bits = 0;
  unsigned count = 0;
  for (const char c : text) {
    const std::size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    bits = (bits << 6U | static_cast<unsigned>(digit)) & 0xFFFFU;
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes += static_cast<char>(bits >> count & 0xFFU);
  }
  return bytes;
}

/// What follows the name of a scheme in an Authorization header.
std::optional<std::string_view> Credentials(std::string_view authorization,
                                            std::string_view scheme) {
  if (authorization.size() <= scheme.size() || authorization[scheme.size()] != ' ' ||
      LowerCase(authorization.substr(0, scheme.size())) != scheme) {
    return std::nullopt;
  }
  authorization.remove_prefix(
      std::min(authorization.find_first_not_of(' ', scheme.size()), authorization.size()));
  return authorization;
}

/// Whether a page of `origin` is one of the server that is asked as `host`.
bool IsSameOrigin(const std::string& origin, const std::optional<HttpAuthority>& host) {
  const std::string lower = LowerCase(origin);
  const bool https = lower.substr(0, 8) == "https://";
  if (!host || (!https && lower.substr(0, 7) != "http://")) return false;
  const std::optional<HttpAuthority> from = ParseAuthority(lower.substr(https ? 8 : 7));
  const int port = https ? kHttpsPort : kHttpPort;
  return from && from->host == host->host && from->port.value_or(port) == host->port.value_or(port);
}

}  // namespace

std::string ReadToken(const std::string& option, const std::filesystem::path& path) {
  const std::string name = option + ": " + path.string();
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status = {};
  if (!fd || fstat(fd.get(), &status) != 0) throw UsageError(name + " cannot be read");
  if ((status.st_mode & (S_IROTH | S_IWOTH | S_IWGRP)) != 0) {
    throw UsageError(name + " can be read or written by others", "chmod 600 " + path.string());
  }
  std::string token(kMostTokenBytes + 2, '\0');
  const ssize_t size = Retry([&] { return read(fd.get(), token.data(), token.size()); });
  token.resize(size < 0 ? 0 : static_cast<std::size_t>(size));
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  const auto good = [](unsigned char c) { return c > ' ' && c < 0x7F; };
  if (token.size() < kLeastTokenBytes || token.size() > kMostTokenBytes ||
      !std::all_of(token.begin(), token.end(), good)) {
    throw UsageError(name + " is not one line of 16 to 1024 letters and digits, without blanks",
                     "openssl rand -hex 32 makes one");
  }
  return token;
}

std::string ToHostName(const std::string& option, const std::string& text) {
  const std::optional<HttpAuthority> name = ParseAuthority(text);
  if (!name || name->host.empty() || name->address || name->port) {
    throw UsageError(option + ": '" + text + "' is no name of a host",
                     "for example board.example; addresses need not be named, nor ports");
  }
  return name->host;
}

HttpGuard::HttpGuard(HttpAccess access)
    : hosts_(std::move(access.hosts)), token_(std::move(access.token)) {
  for (std::string& name : OwnNames()) hosts_.push_back(std::move(name));
}

/// A page that a browser loaded from elsewhere can have its own name point to this machine (DNS
/// rebinding). The name it was loaded from is in the Host header: neither an address, then, nor a
/// name of this machine.
bool HttpGuard::IsOwn(const HttpAuthority& host) const {
  return host.address || host.host.empty() ||
         std::find(hosts_.begin(), hosts_.end(), host.host) != hosts_.end();
}

/// As a program sends it (RFC 6750), or as a browser that asked its user: the password (RFC 7617).
bool HttpGuard::HasToken(std::string_view authorization) const {
  if (const auto token = Credentials(authorization, "bearer")) return Equal(*token, token_);
  const auto basic = Credentials(authorization, "basic");
  const std::optional<std::string> pair = basic ? FromBase64(*basic) : std::nullopt;
  const std::size_t colon = pair ? pair->find(':') : std::string::npos;
  return colon != std::string::npos && Equal(pair->substr(colon + 1), token_);
}

std::optional<HttpGuard::Denial> HttpGuard::Judge(const HttpRequest& head) const {
  std::optional<HttpAuthority> host;
  if (!head.host.empty()) host = ParseAuthority(head.host);
  if (host && !IsOwn(*host)) {
    return Denial{403, "the Host header names neither this machine nor an address: " + host->host +
                           "; --host " + host->host + " lets it in"};
  }
  // Whoever is no browser sends neither of the two.
  if (head.origin && !IsSameOrigin(*head.origin, host)) {
    return Denial{403, "the Origin is another one: web pages from elsewhere are not answered"};
  }
  if (head.fetch_site && *head.fetch_site != "same-origin" && *head.fetch_site != "none") {
    return Denial{403, "Sec-Fetch-Site: web pages from elsewhere are not answered"};
  }
  if (!token_.empty() && !HasToken(head.authorization)) {
    return Denial{401, "Authorization: the token is missing, or another one"};
  }
  return std::nullopt;
}

}  // namespace edgepack
