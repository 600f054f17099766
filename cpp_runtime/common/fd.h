#pragma once

#include <cerrno>
#include <unistd.h>
#include <utility>

namespace edgepack {

/// What `call` returns, made again as long as a signal interrupts it. A file system over a network,
/// or a debugger, may do that to any call that waits.
template <typename Call>
auto Retry(Call call) {
  decltype(call()) result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

/// A file descriptor that is closed with its owner.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() { Close(); }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

  [[nodiscard]] int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  /// Somebody else closes it.
  void Release() { fd_ = -1; }
  void Close() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

}  // namespace edgepack
