#include "sink.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include <edgepack/errors.h>

namespace edgepack {
namespace {

/// For a listener that takes nothing.
constexpr timeval kSendLimit = {1, 0};
constexpr std::chrono::milliseconds kReconnect(1000);

/// All of `bytes`; false if that fails, perhaps after some of them.
bool SendAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t size = Retry([&] { return send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL); });
    if (size < 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(size));
  }
  return true;
}

}  // namespace

void SinkOptions::Parse(const std::string& text) {
  const bool unix_socket = text.substr(0, 5) == "unix:";
  (unix_socket ? socket : file) = unix_socket ? text.substr(5) : text;
  if (text.empty() || (unix_socket && (socket.empty() ||
                                       socket.native().size() >= sizeof(sockaddr_un::sun_path)))) {
    throw UsageError("--out: '" + text + "': the path is empty, or too long for a socket");
  }
}

LineSink::LineSink(SinkOptions options, std::ostream& out)
    : options_(std::move(options)), out_(out) {
  if (options_.file.empty()) return;
  names_.push_back(options_.file);
  for (int number = 1; number <= options_.keep; ++number) {
    names_.emplace_back(options_.file.string() + "." + std::to_string(number));
  }
  Open();
  if (fd_) return;
  const std::string problem = std::error_code(errno, std::generic_category()).message();
  throw UsageError("--out: cannot write " + options_.file.string() + ": " + problem);
}

void LineSink::Open() {
  fd_ = Fd(open(options_.file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  struct stat status = {};
  size_ = fd_ && fstat(fd_.get(), &status) == 0 ? static_cast<std::int64_t>(status.st_size) : 0;
}

void LineSink::Write(std::string_view line) {
  if (!options_.socket.empty()) return WriteSocket(line);
  if (!options_.file.empty()) return WriteFile(line);
  out_ << line << std::flush;
  if (!out_) throw UsageError("cannot write the results");
}

/// FILE becomes FILE.1, that FILE.2, and so on; the oldest is replaced.
void LineSink::Rotate() {
  std::error_code failed;  // then the file grows on
  for (std::size_t number = names_.size() - 1; number > 0; --number) {
    std::filesystem::rename(names_[number - 1], names_[number], failed);
  }
  if (names_.size() == 1) std::filesystem::remove(names_.front(), failed);
  Open();
}

void LineSink::WriteFile(std::string_view line) {
  const auto bytes = static_cast<std::int64_t>(line.size());
  if (size_ > 0 && size_ + bytes > options_.rotate_bytes) Rotate();
  if (!fd_) Open();
  const ssize_t written = Retry([&] { return write(fd_.get(), line.data(), line.size()); });
  if (written == bytes) {
    size_ += bytes;
    return;
  }
  ++lost_;
  // Half a line would spoil the next one.
  if (written > 0 && ftruncate(fd_.get(), size_) != 0) size_ += written;
}

bool LineSink::Connect() {
  const auto now = std::chrono::steady_clock::now();
  if (tried_ && now - *tried_ < kReconnect) return false;
  tried_ = now;
  Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string& path = options_.socket.native();
  std::copy(path.begin(), path.end(), address.sun_path);
  setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &kSendLimit, sizeof(kSendLimit));
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return false;
  }
  fd_ = std::move(fd);
  return true;
}

void LineSink::WriteSocket(std::string_view line) {
  // A listener that has gone may be there again.
  if ((fd_ || Connect()) && SendAll(fd_.get(), line)) return;
  fd_.Close();
  ++lost_;
}

}  // namespace edgepack
