#include "notify.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <sys/socket.h>
#include <sys/un.h>
#include <utility>

#include "common/fd.h"

namespace edgepack {

Notifier Notifier::FromEnvironment() {
  // No thread of this program changes the environment.
  const char* const socket = std::getenv("NOTIFY_SOCKET");     // NOLINT(concurrency-mt-unsafe)
  const char* const period_us = std::getenv("WATCHDOG_USEC");  // NOLINT(concurrency-mt-unsafe)
  std::optional<std::chrono::microseconds> watchdog;
  if (period_us != nullptr) {
    const std::int64_t value = std::strtoll(period_us, nullptr, 10);
    if (value > 0) watchdog = std::chrono::microseconds(value);
  }
  return {socket == nullptr ? "" : socket, watchdog};
}

Notifier::Notifier(std::string socket, std::optional<std::chrono::microseconds> watchdog)
    : socket_(std::move(socket)), watchdog_(watchdog) {}

void Notifier::Send(std::string_view message) const {
  sockaddr_un address = {};
  if (socket_.empty() || socket_.size() >= sizeof(address.sun_path)) return;
  address.sun_family = AF_UNIX;
  std::copy(socket_.begin(), socket_.end(), address.sun_path);
  // The abstract namespace: a zero byte first, and no zero at the end.
  if (socket_.front() == '@') address.sun_path[0] = '\0';
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket_.size());
  const Fd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return;
  sendto(fd.get(), message.data(), message.size(), MSG_NOSIGNAL,
         reinterpret_cast<const sockaddr*>(&address), length);
}

std::optional<std::chrono::milliseconds> Notifier::interval() const {
  if (!watchdog_) return std::nullopt;
  const auto half = std::chrono::duration_cast<std::chrono::milliseconds>(*watchdog_ / 2);
  return std::max(half, std::chrono::milliseconds(1));
}

}  // namespace edgepack
