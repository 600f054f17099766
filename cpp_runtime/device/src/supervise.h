#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "file.h"
#include "keeper.h"

namespace edgepack::device {

/// How long to wait before the next start: doubled with each quick death, from one second to a
/// minute, and one second again after a minute of work.
class Backoff {
 public:
  /// What comes after a run of `ran_s` seconds.
  double Next(double ran_s);
  void Reset() { next_s_ = kFirstS; }

 private:
  static constexpr double kFirstS = 1;
  static constexpr double kMostS = 60;
  double next_s_ = kFirstS;
};

/// A log of at most two files of `max_bytes` each: `path`, and what was in it before, `path`.1.
///
/// Both are opened at once and from then on reached by their descriptors alone: who gives up root
/// goes on writing, and the account that it becomes needs no right to the folder. Never throws:
/// what cannot be written is lost, and the service is not.
class BoundedLog {
 public:
  /// Without a path, or where it cannot be opened: stderr, whose reader sees to its size.
  explicit BoundedLog(std::optional<std::string> path, std::uint64_t max_bytes = 1U << 20U);

  void Write(std::string_view text);
  /// A line of the supervisor's own.
  void Say(const std::string& text);

 private:
  void Rotate();

  std::uint64_t max_bytes_;
  std::uint64_t size_ = 0;
  Fd now_;
  Fd before_;
};

struct SuperviseOptions {
  std::string root;
  /// Instead of the table's arguments.
  std::vector<std::string> args;
  /// If root starts it: the account to become, whose the folder is, and what the account may write
  /// to. What a login can write decides none of them.
  std::optional<std::string> user;
  std::optional<std::string> owner;
  std::vector<std::string> writable;
  /// If root starts it: groups whose devices the account opens, and whether it may listen on ports
  /// below 1024.
  std::vector<std::string> groups;
  bool low_ports = false;
  /// What `CheckService` tries to read.
  std::vector<std::string> reads;
  std::optional<std::string> log;
  /// That of the process above that starts it again, and with which it ends.
  pid_t keeper = 0;
  /// Why the one before it ended.
  std::string why;
};

/// Keeps the current release's app running until SIGTERM or SIGINT; `run --supervise`.
///
/// - Started again when it ends, as the table says, after a pause (`Backoff`).
/// - Killed when it sends no WATCHDOG=1 for `watchdog_s`, or has more than `memory_mb` in RAM.
/// - When `current` names another release, and that one's test is over, the app goes over to it.
///   Until then the old one runs on.
/// - Started by root it becomes the service's user, and sees the file system read-only but for
///   `writable`. Before that it ends an interrupted activation, as the folder's owner, and as
///   often as it takes. Root itself reads and runs nothing of what the owner can write.
/// - systemd is told READY=1 once this loop turns, and WATCHDOG=1 as long as it does.
///
/// Needs to read the root folder, not to write it. Returns how it ended; kExitAgain if an
/// interrupted activation is in the way, and it has not the rights to end that.
/// Throws Error if the folder cannot be read, or nothing there be run.
Outcome Supervise(const SuperviseOptions& options);

/// Whether the service could run: as its account, or one without any rights of its own, the current
/// release is read, each folder that it writes to is found writable, and what it reads readable, if
/// it is there. Throws Error.
void CheckService(const SuperviseOptions& options);

}  // namespace edgepack::device
