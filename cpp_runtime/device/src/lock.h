#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "file.h"
#include "folder.h"

namespace edgepack::device {

/// Who holds a lock.
struct Holder {
  std::int64_t pid = 0;
  std::string by;
  std::string since;  // UTC, ISO 8601
  std::string what;
  /// Of a client that may come back after its link was lost; empty: none.
  std::string session;
};

/// Takes the exclusive lock of an open file. False: somebody else has it.
bool TryLock(const File& file);

/// The right to change something below a root folder; it ends with the object and with the process.
class Lock {
 public:
  /// Waits up to `wait_s` seconds. `me.pid` and `me.since` are filled in. Somebody with the same
  /// `session` who holds it is one of our own, left behind by a dead link: he is ended.
  /// Throws Error "locked", naming the holder.
  Lock(const Folder& root, Holder me, double wait_s);

  /// From now on nobody takes the lock away: the session is forgotten.
  void Keep();

  /// Whoever holds the lock now, or nobody.
  static std::optional<Holder> Look(const Folder& root);

 private:
  void Write() const;

  File file_;
  Holder me_;
};

}  // namespace edgepack::device
