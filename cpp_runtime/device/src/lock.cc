#include "lock.h"

#include <cerrno>
#include <csignal>
#include <ctime>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "clock.h"
#include "common/json.h"
#include "error.h"
#include "faults.h"
#include "layout.h"

namespace edgepack::device {
namespace {

constexpr double kLockPollS = 0.05;

std::optional<Holder> ParseHolder(const std::string& text) {
  try {
    const JsonDocument document(text, kLock, "io");
    JsonObject root = document.Root();
    return Holder{root.Int("pid"), root.String("by"), root.String("since"), root.String("what"),
                  root.String("session")};
  } catch (const Error&) {
    return std::nullopt;  // being written
  }
}

/// Earlier versions locked with a link whose target is "<host> <pid> <token> <boot id>". One from
/// before the last boot is removed, any other respected.
File OpenLock(const Folder& root) {
  // Who may read it could lock it, and then nobody changes anything here.
  constexpr mode_t kOwnersAlone = 0600;
  root.SetFolderAside(kLock);
  const std::optional<std::string> owner = root.ReadLink(kLock);
  if (!owner) {
    File file = root.Create(kLock, kOwnersAlone);
    if ((file.Status().st_mode & 0777U) != kOwnersAlone) file.SetMode(kOwnersAlone);
    return file;
  }
  constexpr char kBootId[] = "/proc/sys/kernel/random/boot_id";
  const File boot_file(OpenPath(kBootId, O_RDONLY), kBootId);
  const std::string boot = boot_file.ReadAll(64).substr(0, 36);
  if (owner->size() < boot.size() ||
      owner->compare(owner->size() - boot.size(), boot.size(), boot) == 0) {
    throw Error(kExitDevice, "locked",
                "an earlier edgepack holds the lock of " + root.path() + ": " + *owner,
                "wait; or, if that is over for sure: rm " + root.PathOf(kLock));
  }
  root.Remove(kLock);
  return root.Create(kLock, kOwnersAlone);
}

}  // namespace

bool TryLock(const File& file) {
  if (Retry([&] { return flock(file.fd(), LOCK_EX | LOCK_NB); }) == 0) return true;
  if (errno != EWOULDBLOCK) ThrowErrno("lock", file.path());
  return false;
}

Lock::Lock(const Folder& root, Holder me, double wait_s)
    : file_(OpenLock(root)), me_(std::move(me)) {
  const double deadline = Monotonic() + wait_s;
  bool ended = false;
  while (!TryLock(file_)) {
    const std::optional<Holder> holder = ParseHolder(file_.ReadAll(1U << 16U));
    if (holder && !ended && !me_.session.empty() && holder->session == me_.session) {
      kill(static_cast<pid_t>(holder->pid), SIGTERM);
      ended = true;
    }
    if (Monotonic() >= deadline) {
      const std::string who = holder ? holder->by + " (process " + std::to_string(holder->pid) +
                                           ", " + holder->what + " since " + holder->since + ")"
                                     : "somebody";
      throw Error(kExitDevice, "locked", who + " holds the lock of " + root.path(),
                  "wait for it, or give --wait SECONDS");
    }
    Sleep(kLockPollS);
  }
  me_.pid = getpid();
  me_.since = Timestamp(std::time(nullptr));
  Write();
  Step("lock.taken");
}

void Lock::Keep() {
  me_.session.clear();
  Write();
}

void Lock::Write() const {
  JsonWriter json;
  json.BeginObject().Key("pid").Int(me_.pid).Key("by").String(me_.by);
  json.Key("since").String(me_.since).Key("what").String(me_.what);
  json.Key("session").String(me_.session).EndObject();
  file_.Truncate(0);
  file_.WriteAt(0, json.text().data(), json.text().size());
}

std::optional<Holder> Lock::Look(const Folder& root) {
  if (root.ReadLink(kLock)) return std::nullopt;
  const std::optional<struct stat> there = root.Status(kLock);
  if (!there || !S_ISREG(there->st_mode)) return std::nullopt;
  const std::optional<File> file = root.Find(kLock);
  if (!file || TryLock(*file)) return std::nullopt;
  return ParseHolder(file->ReadAll(1U << 16U));
}

}  // namespace edgepack::device
