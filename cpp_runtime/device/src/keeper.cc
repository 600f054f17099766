#include "keeper.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <string_view>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "error.h"
#include "layout.h"
#include "lock.h"
#include "supervise.h"

namespace edgepack::device {
namespace {

// The supervisor gives its app 10 s.
constexpr double kGraceS = 15;
constexpr double kPollS = 0.05;
// How long its holder takes to write into a lock.
constexpr double kWriteS = 5;
constexpr const char* kNotOwn = "wrong-user";

/// Whoever has a flock on `path`, as the kernel tells everybody: also who may not open it, and if
/// the holder could not write its number. 0 if nobody has.
pid_t HolderInProc(const std::string& path) {
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0) return 0;
  std::array<char, 64> wanted;  // NOLINT(*-member-init): filled by the call
  (void)std::snprintf(wanted.data(), wanted.size(), "%02x:%02x:%" PRIu64, major(status.st_dev),
                      minor(status.st_dev), static_cast<std::uint64_t>(status.st_ino));
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> locks(std::fopen("/proc/locks", "re"),
                                                              std::fclose);
  std::array<char, 256> line;  // NOLINT(*-member-init): filled by the read
  std::array<char, 64> pid;    // NOLINT(*-member-init): filled by the scan
  std::array<char, 64> file;   // NOLINT(*-member-init): filled by the scan
  while (locks && std::fgets(line.data(), line.size(), locks.get()) != nullptr) {
    // "1: FLOCK  ADVISORY  WRITE 4711 00:1a:2345 0 EOF"
    if (std::sscanf(line.data(), "%*s FLOCK %*s %*s %63s %63s", pid.data(), file.data()) == 2 &&
        std::string_view(file.data()) == wanted.data()) {
      return static_cast<pid_t>(std::strtol(pid.data(), nullptr, 10));
    }
  }
  return 0;
}

[[noreturn]] void ThrowNotOwn(const std::string& path) {
  throw Error(kExitDevice, kNotOwn, path + " is no lock of this account's own",
              "remove it, if no service uses it");
}

std::optional<File> OpenLock(const std::string& path, int flags) {
  Fd fd = OpenPath(path, flags | O_RDWR | O_NOFOLLOW | O_NONBLOCK, 0600);
  if (!fd) {
    if (errno == ENOENT) return std::nullopt;
    if (errno == ELOOP || errno == EISDIR) ThrowNotOwn(path);
    ThrowErrno("open", path);
  }
  File file(std::move(fd), path);
  const struct stat status = file.Status();
  // Not what somebody else can read, and so lock.
  if (!S_ISREG(status.st_mode) || status.st_uid != geteuid() || (status.st_mode & 077) != 0) {
    ThrowNotOwn(path);
  }
  return file;
}

sigset_t Signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGTERM, SIGINT, SIGCHLD}) sigaddset(&set, number);
  return set;
}

/// Waits for a signal; 0 after `seconds`.
int WaitForSignal(double seconds) {
  const sigset_t set = Signals();
  struct timespec time = {};
  time.tv_sec = static_cast<std::time_t>(seconds);
  time.tv_nsec =
      static_cast<decltype(time.tv_nsec)>((seconds - static_cast<double>(time.tv_sec)) * 1e9);
  return std::max(0, sigtimedwait(&set, nullptr, &time));
}

/// Waits; false as soon as somebody wants it to end.
bool Pause(double seconds) {
  const double until = Monotonic() + seconds;
  while (Monotonic() < until) {
    const int number = WaitForSignal(until - Monotonic());
    if (number == SIGTERM || number == SIGINT) return false;
  }
  return true;
}

[[noreturn]] void Work(const std::function<Outcome(const std::string&)>& work,
                       const std::string& why, pid_t parent, const Fd& done) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  const Outcome outcome = work(why);
  if (!outcome.again && write(done.get(), "x", 1) != 1) _exit(1);
  _exit(outcome.code);
}

}  // namespace

std::optional<ServiceLock> ServiceLock::Take(const std::string& path) {
  std::optional<File> file = OpenLock(path, O_CREAT);
  if (!file) ThrowErrno("open", path);
  if (!TryLock(*file)) return std::nullopt;
  const std::string text = std::to_string(getpid()) + "\n";
  try {
    file->Truncate(0);
    file->WriteAt(0, text.data(), text.size());
  } catch (const Error&) {  // a full /run is no reason not to run
    [[maybe_unused]] const int ignored = ftruncate(file->fd(), 0);
  }
  return ServiceLock(std::move(*file));
}

std::optional<ServiceLock> ServiceLock::TakePatiently(const std::string& path) {
  Backoff pauses;
  for (bool said = false;; said = true) {
    try {
      return Take(path);
    } catch (const Error& error) {
      if (error.kind == kNotOwn) throw;
      if (!said) (void)std::fprintf(stderr, "%s; trying again\n", error.message.c_str());
    }
    Sleep(pauses.Next(0));
  }
}

pid_t ServiceLock::Holder(const std::string& path) {
  if (access(path.c_str(), R_OK | W_OK) != 0 && errno == EACCES) return HolderInProc(path);
  const std::optional<File> file = OpenLock(path, 0);
  const double deadline = Monotonic() + kWriteS;
  while (file && !TryLock(*file)) {
    const std::string text = file->ReadAll(64);
    int pid = 0;
    std::from_chars(text.data(), text.data() + text.size(), pid);
    if (pid > 1) return pid;
    if (Monotonic() > deadline) {
      if (const pid_t holder = HolderInProc(path)) return holder;
      throw Error(kExitDevice, "io", path + " is held, and does not say by which process",
                  "is its disk full? `ps` shows it: " + std::string(kTool));
    }
    Sleep(kPollS);  // it is being written
  }
  return 0;
}

void ServiceLock::Stop(const std::string& path) {
  const double start = Monotonic();
  bool asked = false;
  while (const pid_t pid = Holder(path)) {
    const double waited = Monotonic() - start;
    if (!asked || waited > kGraceS + 5) kill(pid, asked ? SIGKILL : SIGTERM);
    asked = true;
    if (waited > kGraceS + 10) {
      throw Error(kExitDevice, "io", "process " + std::to_string(pid) + " does not end");
    }
    Sleep(kPollS);
  }
}

int Keep(const std::function<Outcome(const std::string&)>& work) {
  const sigset_t set = Signals();
  sigprocmask(SIG_BLOCK, &set, nullptr);
  Backoff pauses;
  std::string why;
  for (;;) {
    std::array<int, 2> ends = {-1, -1};
    const bool made = pipe2(ends.data(), O_CLOEXEC) == 0;
    const Fd reader(ends[0]);
    Fd writer(ends[1]);
    const double started = Monotonic();
    const pid_t parent = getpid();
    const pid_t child = made ? fork() : -1;
    if (child < 0) {  // for want of memory, processes or descriptors, which ends
      why = std::string("was not started: ") + std::strerror(errno);
      if (!Pause(pauses.Next(0))) return 0;
      continue;
    }
    if (child == 0) Work(work, why, parent, writer);
    writer.Close();
    int status = 0;
    bool stop = false;
    double deadline = 0;
    while (waitpid(child, &status, WNOHANG) != child) {
      const int number = WaitForSignal(1);
      if (number == SIGTERM || number == SIGINT) {
        if (!stop) deadline = Monotonic() + kGraceS;
        stop = true;
        kill(child, SIGTERM);
      }
      if (stop && Monotonic() > deadline) kill(child, SIGKILL);
    }
    char mark = 0;
    const bool over = Retry([&] { return read(reader.get(), &mark, 1); }) == 1;
    if (over || stop) return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    why = WIFSIGNALED(status) ? "was killed by signal " + std::to_string(WTERMSIG(status))
                              : "ended with exit code " + std::to_string(WEXITSTATUS(status));
    if (!Pause(pauses.Next(Monotonic() - started))) return 0;
  }
}

}  // namespace edgepack::device
