#include "secret.h"

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>

#include "common/error.h"
#include "common/fd.h"

namespace edgepack::sinks {

std::string ReadSecret(const std::string& path, const std::string& credential) {
  std::string from = path;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nothing changes the environment
  if (const char* const folder = std::getenv("CREDENTIALS_DIRECTORY")) {
    const std::string given = std::string(folder) + "/" + credential;
    if (access(given.c_str(), R_OK) == 0) from = given;
  }
  const Fd fd(Retry([&] { return open(from.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY); }));
  if (!fd) throw UsageError("password_file: cannot read " + from + ": " + std::strerror(errno));
  struct stat status = {};
  if (fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    throw UsageError("password_file: " + from + " is not a plain file");
  }
  // systemd's own are 0440, in a folder of the service's alone.
  if (from == path && (status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    throw UsageError("password_file: others may read " + from, "chmod 600 " + from);
  }
  std::array<char, 1025> text = {};
  const ssize_t size = Retry([&] { return read(fd.get(), text.data(), text.size()); });
  if (size < 0) throw UsageError("password_file: cannot read " + from);
  std::string secret(text.data(), static_cast<std::size_t>(size));
  secret = secret.substr(0, secret.find('\n'));
  if (!secret.empty() && secret.back() == '\r') secret.pop_back();
  if (secret.empty() || secret.size() >= text.size()) {
    throw UsageError("password_file: " + from + ": its first line has no password");
  }
  return secret;
}

}  // namespace edgepack::sinks
