#pragma once

#include <functional>
#include <optional>
#include <string>
#include <sys/types.h>

#include "file.h"

namespace edgepack::device {

/// That a service runs, as a lock on a file of its own: it ends with the last process that has it,
/// however that ends, and no number in a file can be taken for another process.
class ServiceLock {
 public:
  /// Nothing if somebody has it. Throws Error.
  static std::optional<ServiceLock> Take(const std::string& path);
  /// The same, tried until the system lets it: whoever started it may not do so again. Throws Error
  /// "wrong-user" if the file is not this account's own, which stays so.
  static std::optional<ServiceLock> TakePatiently(const std::string& path);

  /// The process that has it; 0 if nobody has. Throws Error "io".
  static pid_t Holder(const std::string& path);
  /// SIGTERM to whoever has it, later SIGKILL; returns when nobody has it any more.
  /// Throws Error "io" if that cannot be brought about.
  static void Stop(const std::string& path);

 private:
  explicit ServiceLock(File file) : file_(std::move(file)) {}

  File file_;
};

/// How a piece of work ended; `again` if that was not its own wish.
struct Outcome {
  int code;
  bool again;
};

/// Runs `work` in a child, and once more whenever that is killed or asks for it, after a pause that
/// grows to a minute; until SIGTERM or SIGINT, which it hands down. `work` is told why the one
/// before it ended; empty for the first. Returns the last exit code.
int Keep(const std::function<Outcome(const std::string& why)>& work);

}  // namespace edgepack::device
