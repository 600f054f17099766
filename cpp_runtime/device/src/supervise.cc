#include "supervise.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "account.h"
#include "clock.h"
#include "error.h"
#include "file.h"
#include "layout.h"
#include "manifest_reader.h"
#include "process.h"
#include "read_only.h"
#include "sha256.h"

namespace edgepack::device {
namespace {

[[noreturn]] void ThrowNoAccess(const std::string& folder, const std::string& reason) {
  throw Error(kExitDevice, "no-access",
              "user " + std::to_string(getuid()) + " cannot write to " + folder + ": " + reason,
              "make it and give it to the service's account there: chown");
}

/// What is not there yet may come: a camera, a pipe, a stick.
void NeedReadable(const std::string& path) {
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0) {
    if (errno != EACCES) return;
    NeedWayTo(path.substr(0, path.rfind('/')));
  }
  int wanted = R_OK;
  if (S_ISDIR(status.st_mode)) wanted |= X_OK;
  // Of a camera its settings are written; to a socket lines are.
  if (S_ISCHR(status.st_mode)) wanted |= W_OK;
  if (S_ISSOCK(status.st_mode)) wanted = W_OK;
  if (access(path.c_str(), wanted) == 0) return;
  throw Error(
      kExitDevice, "no-access",
      "user " + std::to_string(getuid()) + " cannot use " + path + ": " + std::strerror(errno),
      "give it to the service's account there, or name a `user` whose group may");
}

constexpr double kTurnS = 0.25;
// What a process gets between SIGTERM and SIGKILL.
constexpr double kAppGraceS = 10;
// Loading a model from a slow card takes longer than the app's usual silence.
constexpr double kStartS = 60;
// A GPU that hangs more seldom is tried again for ever.
constexpr double kLostS = 3600;
constexpr double kRecoverS = 3600;
// How long an activation that was interrupted may keep the app from starting before somebody with
// more rights is asked.
constexpr double kPendingS = 30;
constexpr std::size_t kMaxLogLine = 4096;
// Copied at once: more than a pipe holds.
constexpr int kMostBlocks = 64;

std::string ReadFile(const std::string& path, std::size_t limit) {
  Fd fd = OpenPath(path, O_RDONLY | O_NOCTTY);
  if (!fd) ThrowErrno("open", path);
  return File(std::move(fd), path).ReadAll(limit);
}

// --- The socket that stands in for systemd's ---

sockaddr_un Address(const std::string& name, socklen_t* length) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::size_t size = std::min(name.size(), sizeof(address.sun_path));
  std::memcpy(address.sun_path, name.data(), size);
  if (name[0] == '@') address.sun_path[0] = '\0';
  *length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + size);
  return address;
}

/// Hears what the app sends by sd_notify's protocol.
class NotifySocket {
 public:
  NotifySocket() : name_("@edgepack-") {
    std::array<std::uint8_t, 8> number = {};
    const auto fill = [&] { return getrandom(number.data(), number.size(), 0); };
    if (Retry(fill) < 0) ThrowErrno("read", "random numbers");
    name_ += Hex(number.data(), number.size());
    socklen_t length = 0;
    const sockaddr_un address = Address(name_, &length);
    fd_ = Fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int on = 1;
    if (!fd_ || bind(fd_.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
        setsockopt(fd_.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) != 0) {
      ThrowErrno("listen on", name_);
    }
  }

  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] const std::string& name() const { return name_; }

  /// The next message of the process group `group`; anybody else's are dropped. Empty: no more.
  [[nodiscard]] std::string Next(pid_t group) const {
    for (;;) {
      std::array<char, 1024> text = {};
      alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(ucred))> control = {};
      iovec part = {text.data(), text.size()};
      msghdr message = {};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      const ssize_t size = recvmsg(fd_.get(), &message, 0);
      if (size < 0) return "";
      const cmsghdr* const header = CMSG_FIRSTHDR(&message);
      if (header == nullptr || header->cmsg_type != SCM_CREDENTIALS) continue;
      ucred sender = {};
      std::memcpy(&sender, CMSG_DATA(header), sizeof(sender));
      if (group > 0 && getpgid(sender.pid) == group) {
        return {text.data(), static_cast<std::size_t>(size)};
      }
    }
  }

 private:
  std::string name_;
  Fd fd_;
};

/// Tells systemd, if it has started us.
void TellManager(const std::string& text) {
  const char* const name = std::getenv("NOTIFY_SOCKET");  // NOLINT(concurrency-mt-unsafe)
  if (name == nullptr || *name == '\0') return;
  socklen_t length = 0;
  const sockaddr_un address = Address(name, &length);
  const Fd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return;
  sendto(fd.get(), text.data(), text.size(), MSG_NOSIGNAL,
         reinterpret_cast<const sockaddr*>(&address), length);
}

// --- Releases, as somebody sees them who may only read ---

/// The id that `current` names; empty if there is no such link yet. Throws Error "io" if
/// nobody can tell.
std::string CurrentRelease(const std::string& root) {
  std::array<char, PATH_MAX> target;  // NOLINT(*-member-init): filled by the call
  const std::string link = root + "/" + kCurrent;
  const ssize_t size = readlink(link.c_str(), target.data(), target.size());
  if (size < 0 && errno == ENOENT) return "";
  if (size < 0) ThrowErrno("read link", link);
  const std::string path(target.data(), static_cast<std::size_t>(size));
  const std::string id = path.substr(path.rfind('/') + 1);
  return IsReleaseId(id) ? id : "";
}

bool TestIsOver(const std::string& root) {
  const std::string path = root + "/" + kState + "/pending.json";
  struct stat status = {};
  if (lstat(path.c_str(), &status) == 0) return false;
  if (errno != ENOENT) ThrowErrno("look at", path);
  return true;
}

/// A release whose every byte was just read.
struct Verified {
  std::string id;
  std::string folder;
  std::optional<ServiceTable> service;
};

std::string FolderOf(const std::string& root, const std::string& id) {
  return root + "/" + kReleases + "/" + id;
}

Manifest ReadManifest(const std::string& root, const std::string& id) {
  return ParseManifest(ReadFile(FolderOf(root, id) + "/" + kManifestName, kMaxManifestBytes));
}

Verified VerifyRelease(const std::string& root, const std::string& id) {
  Verified release;
  release.id = id;
  release.folder = FolderOf(root, id);
  const Manifest manifest = ReadManifest(root, id);
  for (const FileEntry& entry : manifest.files) {
    const std::string path = release.folder + "/" + entry.path;
    Fd fd = OpenPath(path, O_RDONLY | O_NOFOLLOW);
    if (!fd) ThrowErrno("open", path);
    if (File(std::move(fd), path).Sha256() != entry.sha256) {
      throw Error(kExitBundle, "damaged", path + " is not what was installed",
                  "deploy the release again");
    }
  }
  release.service = manifest.service;
  return release;
}

// --- The app ---

class App {
 public:
  /// Starts `release`'s app. With `log` its output comes to `output()`.
  App(const Verified& release, const std::vector<std::string>& args, const NotifySocket& notify,
      bool log)
      : watchdog_s_(release.service ? release.service->watchdog_s : std::nullopt),
        memory_mb_(release.service ? release.service->memory_mb : std::nullopt),
        started_(Monotonic()),
        sign_(started_) {
    std::array<int, 2> ends = {-1, -1};
    if (log && pipe2(ends.data(), O_CLOEXEC) != 0) ThrowErrno("make", "a pipe");
    output_ = Fd(ends[0]);
    const Fd into(ends[1]);
    // This end alone: the app's would fail in the middle of a burst.
    if (log && fcntl(output_.get(), F_SETFL, O_NONBLOCK) != 0) ThrowErrno("set up", "a pipe");
    const std::string program = release.folder + "/" + kApp;
    const Fd null = OpenPath("/dev/null", O_RDONLY);
    if (!null) ThrowErrno("open", "/dev/null");
    // Says why it was not started, or is closed by its start: an app that never ran has not ended.
    if (pipe2(ends.data(), O_CLOEXEC) != 0) ThrowErrno("make", "a pipe");
    const Fd refusal(ends[0]);
    Fd refuse(ends[1]);
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ < 0) ThrowErrno("start", program);
    if (pid_ == 0) Become(program, args, notify, {null, into, refuse}, parent);
    setpgid(pid_, pid_);  // in both, whoever comes first
    refuse.Close();
    int reason = 0;
    if (Retry([&] { return read(refusal.get(), &reason, sizeof(reason)); }) == sizeof(reason)) {
      Retry([&] { return waitpid(pid_, nullptr, 0); });
      errno = reason;
      ThrowErrno("start", program);
    }
  }
  ~App() {
    if (pid_ > 0) {
      kill(-pid_, SIGKILL);
      Retry([&] { return waitpid(pid_, nullptr, 0); });
    }
  }
  App(const App&) = delete;
  App& operator=(const App&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] const Fd& output() const { return output_; }
  [[nodiscard]] double ran_s() const { return Monotonic() - started_; }

  void Sign(const std::string& message) {
    sign_ = Monotonic();
    ready_ = ready_ || message.find("READY=1") != std::string::npos;
  }

  /// Why it has to be killed; empty if it need not be.
  [[nodiscard]] std::string Complaint() const {
    if (watchdog_s_) {
      const double limit_s = ready_ ? *watchdog_s_ : std::max(*watchdog_s_, kStartS);
      if (Monotonic() - sign_ > limit_s) {
        return "gave no sign for " + std::to_string(static_cast<int>(limit_s)) + " s";
      }
    }
    if (memory_mb_) {
      const std::uint64_t bytes = ResidentBytes();
      if (bytes > *memory_mb_ * 1000000) {
        return "takes " + std::to_string(bytes / 1000000) + " MB of memory, " +
               std::to_string(*memory_mb_) + " are allowed";
      }
    }
    return "";
  }

  void Signal(int number) const { kill(-pid_, number); }

  /// Its wait status, once it has ended.
  std::optional<int> Ended() {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
    kill(-pid_, SIGKILL);  // what it left behind
    pid_ = -1;
    return status;
  }

 private:
  /// What the app's process takes over: its input, its output if that is logged, and where to say
  /// why it could not be started.
  struct Ends {
    const Fd& null;
    const Fd& into;
    const Fd& refuse;
  };

  [[noreturn]] void Become(const std::string& program, const std::vector<std::string>& args,
                           const NotifySocket& notify, const Ends& ends, pid_t parent) const {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);  // it died before
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    // When the board runs out of memory, this goes and not the login.
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);  // else the file is root's, until the exec
    const Fd score = OpenPath("/proc/self/oom_score_adj", O_WRONLY);
    if (score && write(score.get(), "500", 3) < 0) errno = 0;
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    (void)signal(SIGPIPE, SIG_DFL);
    if (dup2(ends.null.get(), 0) < 0) Refuse(ends);
    if (ends.into && (dup2(ends.into.get(), 1) < 0 || dup2(ends.into.get(), 2) < 0)) Refuse(ends);
    setenv("NOTIFY_SOCKET", notify.name().c_str(), 1);  // NOLINT(concurrency-mt-unsafe)
    unsetenv("WATCHDOG_PID");                           // NOLINT(concurrency-mt-unsafe)
    unsetenv("WATCHDOG_USEC");                          // NOLINT(concurrency-mt-unsafe)
    if (watchdog_s_) {
      const auto period_us = static_cast<std::int64_t>(*watchdog_s_ * 1e6);
      // NOLINTNEXTLINE(concurrency-mt-unsafe)
      setenv("WATCHDOG_USEC", std::to_string(period_us).c_str(), 1);
    }
    std::vector<char*> argv = {const_cast<char*>(program.c_str())};
    for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    Refuse(ends);
  }

  [[noreturn]] static void Refuse(const Ends& ends) {
    const int reason = errno;
    if (write(ends.refuse.get(), &reason, sizeof(reason)) < 0) _exit(127);
    _exit(127);
  }

  [[nodiscard]] std::uint64_t ResidentBytes() const {
    const Fd fd = OpenPath("/proc/" + std::to_string(pid_) + "/statm", O_RDONLY);
    std::array<char, 128> text = {};
    if (!fd || read(fd.get(), text.data(), text.size() - 1) <= 0) return 0;
    // Pages: in all, and in RAM.
    const char* const second = std::strchr(text.data(), ' ');
    if (second == nullptr) return 0;
    return std::strtoull(second, nullptr, 10) * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  }

  std::optional<double> watchdog_s_;
  std::optional<std::uint64_t> memory_mb_;
  double started_;
  double sign_;
  bool ready_ = false;
  Fd output_;
  pid_t pid_ = -1;
};

// --- The user ---

struct stat StatusOf(const std::string& folder) {
  struct stat status = {};
  if (stat(folder.c_str(), &status) != 0) ThrowErrno("look at", folder);
  return status;
}

Account Numbered(uid_t uid, gid_t gid) { return {uid, gid, "user " + std::to_string(uid)}; }

/// The account named; an init script of an earlier version names none: then the folder's owner.
Account ServiceAccount(const SuperviseOptions& options) {
  constexpr uid_t kNobody = 65534;
  const struct stat folder = StatusOf(options.root);
  if (!options.user) {
    return folder.st_uid == 0 ? Numbered(kNobody, kNobody) : Numbered(folder.st_uid, folder.st_gid);
  }
  Account account = InGroups(AccountOf(*options.user), options.groups);
  account.low_ports = options.low_ports;
  if (account.uid == 0 || account.uid == folder.st_uid) {
    throw Error(kExitUsage, "usage",
                "a service must not run as " + account.name +
                    (account.uid == 0 ? "" : ", who can change its releases"),
                "give it an account of its own");
  }
  return account;
}

/// Whose `recover` it is: a test that a power cut ended is done again.
Account OwnerOf(const SuperviseOptions& options) {
  if (options.owner) return AccountOf(*options.owner);
  const struct stat folder = StatusOf(options.root);
  return Numbered(folder.st_uid, folder.st_gid);
}

/// `recover` as `owner`. Returns the exit code.
int RecoverAs(const Account& owner, const std::string& root) {
  std::array<char, PATH_MAX> self = {};
  if (readlink("/proc/self/exe", self.data(), self.size() - 1) < 0) ThrowErrno("find", kTool);
  if (owner.uid == geteuid() && owner.uid == 0) NeedRootsOwn(root);
  const pid_t child = fork();
  if (child < 0) ThrowErrno("start", "recover");
  if (child == 0) {
    try {
      if (owner.uid != geteuid()) Become(owner);
      const Ended ended = RunProgram({self.data(), "recover", "--root", root}, kRecoverS);
      if (ended.exit_code != 0) (void)std::fprintf(stderr, "%s", ended.err.c_str());
      _exit(ended.timed_out || ended.signal != 0 ? 1 : ended.exit_code);
    } catch (const Error&) {
      _exit(1);
    }
  }
  int status = 0;
  if (Retry([&] { return waitpid(child, &status, 0); }) < 0) ThrowErrno("wait for", "recover");
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

// --- The loop ---

std::string Describe(int status) {
  if (WIFSIGNALED(status)) return "was killed by signal " + std::to_string(WTERMSIG(status));
  return "ended with exit code " + std::to_string(WEXITSTATUS(status));
}

class Supervisor {
 public:
  explicit Supervisor(const SuperviseOptions& options)
      : options_(options), log_(options.log), logs_(options.log.has_value()) {
    sigset_t set;
    sigemptyset(&set);
    for (const int number : {SIGTERM, SIGINT, SIGCHLD}) sigaddset(&set, number);
    sigprocmask(SIG_BLOCK, &set, nullptr);
    signals_ = Fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!signals_) ThrowErrno("make", "a signalfd");
    (void)signal(SIGPIPE, SIG_IGN);
  }

  Outcome Run() {
    try {
      if (!options_.why.empty()) log_.Say("starts again: the one before " + options_.why);
      Recover();
      DropPrivileges();
      // What it waits for is this loop; the app may need many starts, and says so in the log.
      TellManager("READY=1");
      return Loop();
    } catch (const Error& error) {
      log_.Say(error.message);
      throw;
    }
  }

 private:
  Outcome Loop() {
    double waits_since = Monotonic();
    while (!stop_) {
      const std::string id = Wanted();
      if (!id.empty() || TestIsOver(options_.root)) waits_since = Monotonic();
      if (Monotonic() - waits_since > kPendingS) {
        log_.Say("a test was interrupted, and nothing can run before `recover` has ended it");
        return {kExitAgain, true};
      }
      if (id.empty() || Monotonic() < start_at_) {
        Wait();
        continue;
      }
      try {
        RunOnce(VerifyRelease(options_.root, id));
      } catch (const Error& error) {
        if (error.exit_code == kExitUsage) throw;
        // A release may be repaired, a disk come back.
        log_.Say(id + ": " + error.message);
        start_at_ = Monotonic() + backoff_.Next(0);
      }
      if (exit_code_) return {*exit_code_, false};
    }
    TellManager("STOPPING=1");
    return {0, false};
  }

  /// Ends an interrupted activation, if this account may, however often it fails: a full disk
  /// becomes empty again.
  void Recover() {
    Backoff pauses;
    while (!stop_ && !TestIsOver(options_.root)) {
      const Account owner = OwnerOf(options_);
      if (geteuid() != 0 && geteuid() != owner.uid) return;
      log_.Say("ending the test that was interrupted");
      if (RecoverAs(owner, options_.root) == 0) continue;
      log_.Say("that failed: nothing is started before `recover` succeeds");
      for (const double until = Monotonic() + pauses.Next(0); !stop_ && Monotonic() < until;) {
        Wait();
      }
    }
  }

  void DropPrivileges() {
    if (geteuid() != 0) return;
    const Account account = ServiceAccount(options_);
    if (!options_.user) log_.Say("an old init script: run `edgepack service install` again");
    if (!MakeReadOnly(options_.writable)) {
      log_.Say("this kernel does not let the file system be read-only for one program");
    }
    Become(account);
    // Forgotten with the change of the account.
    if (options_.keeper != 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != options_.keeper) throw Error(kExitAgain, "io", "nobody keeps it");
    }
    log_.Say("runs as " + account.name);
  }

  /// The release that should run; empty while none should start.
  [[nodiscard]] std::string Wanted() const {
    std::string id = CurrentRelease(options_.root);
    if (!TestIsOver(options_.root)) return running_;
    return id;
  }

  /// The same for as long as `id` runs: a disk that cannot be read is no reason to end it.
  [[nodiscard]] bool IsStillWanted(const std::string& id) const {
    try {
      return Wanted() == id;
    } catch (const Error&) {
      return true;
    }
  }

  void RunOnce(const Verified& release) {
    if (!release.service && options_.args.empty()) {
      throw Error(kExitUsage, "usage", "release " + release.id + " has no [service] table",
                  "give arguments after --, or add the table to edgepack.toml");
    }
    if (release.id != running_) {
      backoff_.Reset();
      lost_ = 0;
    }
    running_ = release.id;
    const std::vector<std::string>& args =
        options_.args.empty() ? release.service->args : options_.args;
    log_.Say("starting release " + release.id);
    // For its metrics. This process has one thread.
    setenv("EDGEPACK_RESTARTS", std::to_string(restarts_).c_str(),
           1);                                                      // NOLINT(concurrency-mt-unsafe)
    setenv("EDGEPACK_GPU_LOST", std::to_string(lost_).c_str(), 1);  // NOLINT(concurrency-mt-unsafe)
    App app(release, args, notify_, logs_);
    output_open_ = true;
    std::optional<int> status;
    while (!(status = app.Ended())) {
      Wait(&app);
      if (stop_ || !IsStillWanted(release.id)) {
        if (!stop_) log_.Say("release " + release.id + " is no longer current");
        status = Stop(&app);
        start_at_ = 0;
        running_.clear();
        return;
      }
      if (const std::string complaint = app.Complaint(); !complaint.empty()) {
        log_.Say("killing the app: it " + complaint);
        app.Signal(SIGKILL);
      }
    }
    Copy(app.output());
    const double ran_s = app.ran_s();
    log_.Say("the app " + Describe(*status));
    const bool lost = WIFEXITED(*status) && WEXITSTATUS(*status) == kExitGpuLost;
    lost_ = lost ? (ran_s < kLostS ? lost_ + 1 : 1) : 0;
    const bool failed = !WIFEXITED(*status) || WEXITSTATUS(*status) != 0;
    const std::string restart = release.service ? release.service->restart : "always";
    if (restart == "never" || (restart == "on-failure" && !failed)) {
      exit_code_ = WIFEXITED(*status) ? WEXITSTATUS(*status) : 128 + WTERMSIG(*status);
      return;
    }
    ++restarts_;
    start_at_ = Monotonic() + backoff_.Next(ran_s);
  }

  /// SIGTERM, and SIGKILL for what does not care.
  std::optional<int> Stop(App* app) {
    app->Signal(SIGTERM);
    const double deadline = Monotonic() + kAppGraceS;
    std::optional<int> status;
    while (!(status = app->Ended())) {
      if (Monotonic() > deadline) app->Signal(SIGKILL);
      Wait(app);
    }
    Copy(app->output());
    return status;
  }

  /// A quarter of a second, or until something happens.
  void Wait(App* app = nullptr) {
    const int output = app != nullptr && output_open_ ? app->output().get() : -1;
    std::array<pollfd, 3> fds = {
        {{signals_.get(), POLLIN, 0}, {notify_.fd(), POLLIN, 0}, {output, POLLIN, 0}}};
    poll(fds.data(), fds.size(), static_cast<int>(kTurnS * 1e3));
    signalfd_siginfo info = {};
    while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
      stop_ = stop_ || info.ssi_signo != SIGCHLD;
    }
    const pid_t group = app != nullptr ? app->pid() : -1;
    for (std::string text; !(text = notify_.Next(group)).empty();) {
      if (app != nullptr) app->Sign(text);
    }
    if (app != nullptr && output >= 0) Copy(app->output());
    if (Monotonic() - told_ >= 1) {
      told_ = Monotonic();
      TellManager("WATCHDOG=1");
    }
  }

  void Copy(const Fd& output) {
    if (!output) return;
    std::array<char, kMaxLogLine> block;  // NOLINT(*-member-init): filled by the read
    // Not for ever, if it never stops talking.
    for (int i = 0; i < kMostBlocks; ++i) {
      const ssize_t size = read(output.get(), block.data(), block.size());
      if (size == 0) output_open_ = false;  // it has closed what it writes to, and lives on
      if (size <= 0) return;
      log_.Write({block.data(), static_cast<std::size_t>(size)});
    }
  }

  const SuperviseOptions& options_;
  BoundedLog log_;
  bool logs_;
  NotifySocket notify_;
  Fd signals_;
  Backoff backoff_;
  std::string running_;
  std::int64_t restarts_ = 0;
  int lost_ = 0;  ///< starts in a row that a GPU has ended
  double start_at_ = 0;
  double told_ = 0;
  bool output_open_ = true;
  bool stop_ = false;
  std::optional<int> exit_code_;
};

}  // namespace

double Backoff::Next(double ran_s) {
  if (ran_s >= kMostS) next_s_ = kFirstS;
  const double wait_s = next_s_;
  next_s_ = std::min(next_s_ * 2, kMostS);
  return wait_s;
}

BoundedLog::BoundedLog(std::optional<std::string> path, std::uint64_t max_bytes)
    : max_bytes_(max_bytes) {
  if (!path) return;
  const auto open_log = [&](const std::string& name) {
    Fd fd = OpenPath(name, O_RDWR | O_CREAT | O_APPEND | O_NONBLOCK | O_NOFOLLOW, 0644);
    struct stat status = {};
    // Not somebody's pipe or device, nor another name of a file that is not ours.
    const bool plain = fd && fstat(fd.get(), &status) == 0 && S_ISREG(status.st_mode) &&
                       status.st_nlink == 1 && status.st_uid == geteuid();
    if (!plain) fd.Close();
    return fd;
  };
  now_ = open_log(*path);
  before_ = open_log(*path + ".1");
  struct stat status = {};
  if (now_ && fstat(now_.get(), &status) == 0) size_ = static_cast<std::uint64_t>(status.st_size);
  if (!now_) Say("no log can be written to " + *path);
}

void BoundedLog::Rotate() {
  if (before_ && ftruncate(before_.get(), 0) == 0) {
    std::array<char, 1U << 14U> block;  // NOLINT(*-member-init): filled by the read
    off_t at = 0;
    ssize_t count = 0;
    while ((count = pread(now_.get(), block.data(), block.size(), at)) > 0) {
      if (write(before_.get(), block.data(), static_cast<std::size_t>(count)) != count) break;
      at += count;
    }
  }
  if (ftruncate(now_.get(), 0) == 0) size_ = 0;
}

void BoundedLog::Write(std::string_view text) {
  if (now_ && size_ + text.size() > max_bytes_) Rotate();
  const int fd = now_ ? now_.get() : STDERR_FILENO;
  // On a full disk the line is lost.
  const ssize_t written = write(fd, text.data(), text.size());
  if (written > 0) size_ += static_cast<std::uint64_t>(written);
}

void BoundedLog::Say(const std::string& text) {
  Write(Timestamp(time(nullptr)) + " " + kTool + ": " + text + "\n");
}

Outcome Supervise(const SuperviseOptions& options) { return Supervisor(options).Run(); }

void CheckService(const SuperviseOptions& options) {
  if (geteuid() == 0) {
    if (OwnerOf(options).uid == 0) NeedRootsOwn(options.root);
    Become(ServiceAccount(options));
  }
  NeedWayTo(options.root);
  const std::string id = CurrentRelease(options.root);
  if (id.empty()) {
    throw Error(kExitDevice, "no-release", "no release is current in " + options.root,
                "edgepack deploy makes one so");
  }
  NeedWayTo(FolderOf(options.root, id));
  const Verified release = VerifyRelease(options.root, id);
  if (!release.service && options.args.empty()) {
    throw Error(kExitUsage, "usage", "release " + id + " has no [service] table");
  }
  const std::string app = release.folder + "/" + kApp;
  if (access(app.c_str(), X_OK) != 0) ThrowErrno("execute", app);
  for (const std::string& folder : options.writable) {
    if (access(folder.c_str(), W_OK | X_OK) == 0) continue;
    ThrowNoAccess(folder, std::strerror(errno));
  }
  for (const std::string& path : options.reads) NeedReadable(path);
}

}  // namespace edgepack::device
