#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace edgepack {

/// Tells whoever started this program how it is, by sd_notify(3)'s protocol: a datagram to the
/// socket in NOTIFY_SOCKET. Without that variable nothing is sent. systemd listens there, and so
/// does `edgepack-device run --supervise`.
class Notifier {
 public:
  /// From NOTIFY_SOCKET and WATCHDOG_USEC.
  static Notifier FromEnvironment();
  /// `socket` is a path, or a name of the abstract namespace after '@'.
  Notifier(std::string socket, std::optional<std::chrono::microseconds> watchdog);

  /// "READY=1", "WATCHDOG=1", "STOPPING=1". A listener that is gone or busy is no error: it will
  /// miss the next sign and act.
  void Send(std::string_view message) const;

  /// How often to send WATCHDOG=1: twice in the time after which silence is taken for a hang.
  [[nodiscard]] std::optional<std::chrono::milliseconds> interval() const;

 private:
  std::string socket_;
  std::optional<std::chrono::microseconds> watchdog_;
};

}  // namespace edgepack
