#include "result_sinks.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include <edgepack/errors.h>

extern char** environ;  // NOLINT(*-redundant-declaration,*-non-const-global-variables): POSIX

namespace edgepack {
namespace {

constexpr timeval kTakeLimit = {1, 0};
constexpr std::chrono::milliseconds kRestart(1000);
constexpr std::size_t kSharedBytes = 32U << 10U;
/// Longer than the program takes at most, less than a supervisor gives the app.
constexpr int kEndTries = 700;
constexpr useconds_t kEndPause = 10000;
/// What the program finds its part of the metrics by; above what it opens itself.
constexpr int kLeastFd = 10;
constexpr int kMetricsFd = 3;
/// What the program asks for, before the name of the rule.
constexpr std::string_view kClip = "clip ";
constexpr std::size_t kMostAsked = 4096;

}  // namespace

ResultSinks::ResultSinks(const std::filesystem::path& bundle, std::ostream& err)
    : program_((bundle / "bin" / "edgepack-sinks").string()),
      config_((bundle / "sinks.json").string()) {
  if (access(config_.c_str(), R_OK) != 0 || access(program_.c_str(), X_OK) != 0) {
    throw BundleError("--sinks: the bundle has no sinks",
                      "add [[sink]] or [[when]] tables to edgepack.toml, and deploy again");
  }
  // Without it there are no metrics of theirs, and nothing else is lacking. glibc has no such
  // function on older boards.
  const Fd made(static_cast<int>(syscall(SYS_memfd_create, "edgepack-sinks", 1U)));
  if (made && ftruncate(made.get(), kSharedBytes) == 0) {
    shared_ = Fd(fcntl(made.get(), F_DUPFD_CLOEXEC, kLeastFd));
    void* const memory = mmap(nullptr, kSharedBytes, PROT_READ, MAP_SHARED, shared_.get(), 0);
    if (memory != MAP_FAILED) memory_ = static_cast<const char*>(memory);
  }
  std::vector<ClipRule> rules = ReadClipRules(bundle);
  if (!rules.empty()) clips_.emplace(std::move(rules), err);
  Start();
}

ResultSinks::~ResultSinks() {
  // It hears that there is no more, and may still ask for pictures of what it has read.
  if (socket_) shutdown(socket_.get(), SHUT_WR);
  for (int i = 0; i < kEndTries && child_ > 0; ++i) {
    Listen();
    Reap();
    if (child_ > 0) usleep(kEndPause);
  }
  Listen();
  if (child_ > 0) kill(child_, SIGKILL);
  if (memory_ != nullptr) munmap(const_cast<char*>(memory_), kSharedBytes);
}

void ResultSinks::Reap() {
  if (child_ > 0 && waitpid(child_, nullptr, WNOHANG) != 0) child_ = -1;
}

bool ResultSinks::Start() {
  const auto now = std::chrono::steady_clock::now();
  if (started_ && now - *started_ < kRestart) return false;
  started_ = now;
  if (child_ > 0) kill(child_, SIGKILL);  // it takes nothing, or has closed its end
  while (child_ > 0) Reap();
  std::array<int, 2> ends = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) return false;
  socket_ = Fd(ends[0]);
  asked_.clear();
  const Fd theirs(fcntl(ends[1], F_DUPFD_CLOEXEC, kLeastFd));
  close(ends[1]);
  setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &kTakeLimit, sizeof(kTakeLimit));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, theirs.get(), STDIN_FILENO);
  // Results are the app's: it says nothing on standard output.
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  if (shared_) posix_spawn_file_actions_adddup2(&actions, shared_.get(), kMetricsFd);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  std::string number = std::to_string(kMetricsFd);
  std::array<char*, 4> argv = {program_.data(), config_.data(), shared_ ? number.data() : nullptr,
                               nullptr};
  const int failed =
      posix_spawn(&child_, program_.c_str(), &actions, &attributes, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (failed != 0) {
    child_ = -1;
    socket_.Close();
    return false;
  }
  const std::lock_guard<std::mutex> guard(mutex_);
  ++restarts_;
  return true;
}

void ResultSinks::Write(std::string_view line) {
  std::string_view rest = line;
  if (socket_ || Start()) {
    while (!rest.empty()) {
      const ssize_t size =
          Retry([&] { return send(socket_.get(), rest.data(), rest.size(), MSG_NOSIGNAL); });
      if (size < 0) break;
      rest.remove_prefix(static_cast<std::size_t>(size));
    }
    if (rest.empty()) {
      Listen();
      return;
    }
    // After half a line only another connection makes sense.
    socket_.Close();
  }
  const std::lock_guard<std::mutex> guard(mutex_);
  ++lost_;
}

void ResultSinks::Listen() {
  if (!clips_) return;
  std::array<char, 256> block = {};
  ssize_t size = 0;
  while (socket_ && (size = recv(socket_.get(), block.data(), block.size(), MSG_DONTWAIT)) > 0) {
    asked_.append(block.data(), static_cast<std::size_t>(size));
    std::size_t end = 0;
    for (; (end = asked_.find('\n')) != std::string::npos; asked_.erase(0, end + 1)) {
      const std::string_view line = std::string_view{asked_}.substr(0, end);
      if (line.substr(0, kClip.size()) == kClip) clips_->Save(line.substr(kClip.size()));
    }
    if (asked_.size() > kMostAsked) asked_.clear();
  }
}

std::string ResultSinks::Metrics() const {
  std::string text;
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    text = "edgepack_sinks_lost_total " + std::to_string(lost_) +
           "\nedgepack_sinks_restarts_total " +
           std::to_string(std::max<std::int64_t>(restarts_, 0)) + "\n";
  }
  if (clips_) text += clips_->Metrics();
  if (memory_ == nullptr) return text;
  const auto* const length = reinterpret_cast<const std::atomic<std::uint32_t>*>(memory_);
  const std::uint32_t size = length->load();
  if (size > kSharedBytes - sizeof(size)) return text;
  std::string theirs(memory_ + sizeof(size), size);
  // Nought, or another, while it is written.
  return length->load() == size ? text + theirs : text;
}

}  // namespace edgepack
