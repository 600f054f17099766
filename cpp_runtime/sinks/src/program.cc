#include "program.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <mutex>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/fd.h"
#include "sender.h"

extern char** environ;  // NOLINT(*-redundant-declaration,*-non-const-global-variables): POSIX

namespace edgepack::sinks {
namespace {

constexpr useconds_t kTickUs = 20000;
constexpr int kRounds = 50;

/// The environment without what is this service's alone.
std::vector<char*> Environment() {
  std::vector<char*> kept;
  for (char** one = environ; *one != nullptr; ++one) {
    const std::string_view text(*one);
    if (text.rfind("CREDENTIALS_DIRECTORY=", 0) == 0 || text.rfind("NOTIFY_SOCKET=", 0) == 0 ||
        text.rfind("WATCHDOG_", 0) == 0) {
      continue;
    }
    kept.push_back(*one);
  }
  kept.push_back(nullptr);
  return kept;
}

/// Kills what the program has left, in its group or out of it: orphans come to this process, which
/// has no other children.
void KillRest(pid_t group) {
  const Fd self(open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (int round = 0; round < kRounds; ++round) {
    kill(-group, SIGKILL);
    bool any = false;
    for (int ended = 0; (ended = waitpid(-1, nullptr, WNOHANG)) >= 0;) {
      any = true;
      if (ended > 0) continue;
      // Some live: those of the group die now, others are named by the kernel.
      std::FILE* const list = std::fopen("/proc/thread-self/children", "re");
      for (int child = 0; list != nullptr && std::fscanf(list, "%d", &child) == 1;) {
        kill(child, SIGKILL);
      }
      if (list != nullptr) (void)std::fclose(list);
      // Orphans are the first thread's.
      const std::string first = "/proc/self/task/" + std::to_string(getpid()) + "/children";
      std::FILE* const orphans = std::fopen(first.c_str(), "re");
      for (int child = 0; orphans != nullptr && std::fscanf(orphans, "%d", &child) == 1;) {
        kill(child, SIGKILL);
      }
      if (orphans != nullptr) (void)std::fclose(orphans);
      break;
    }
    if (!any) return;
    usleep(kTickUs);
  }
}

}  // namespace

std::string RunProgram(const std::vector<std::string>& words, std::string_view input,
                       double limit_s) {
  static std::mutex one_at_a_time;
  const std::lock_guard<std::mutex> guard(one_at_a_time);
  std::array<int, 2> ends = {-1, -1};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return std::strerror(errno);
  Fd from(ends[0]);
  Fd into(ends[1]);
  // What it does not read must not hold this up.
  fcntl(into.get(), F_SETFL, O_NONBLOCK);
  const std::string text = std::string(input) + "\n";
  // A pipe takes 64 KB; of a longer line nothing, rather than half of it.
  fcntl(into.get(), F_SETPIPE_SZ, 1 << 20);
  if (write(into.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    from.Close();
  }
  into.Close();

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (from) {
    posix_spawn_file_actions_adddup2(&actions, from.get(), 0);
  } else {
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  }
  posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  posix_spawnattr_setpgroup(&attributes, 0);
  sigset_t signals;
  sigemptyset(&signals);
  posix_spawnattr_setsigmask(&attributes, &signals);
  for (const int number : {SIGPIPE, SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, number);
  posix_spawnattr_setsigdefault(&attributes, &signals);
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  pid_t child = -1;
  const int failed =
      posix_spawn(&child, argv[0], &actions, &attributes, argv.data(), Environment().data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (failed != 0) return words[0] + " does not start: " + std::strerror(failed);

  const double until = Monotonic() + limit_s;
  int status = 0;
  pid_t ended = 0;
  while ((ended = waitpid(child, &status, WNOHANG)) == 0 && Monotonic() < until) usleep(kTickUs);
  const bool late = ended == 0;
  if (late) {
    kill(-child, SIGKILL);
    kill(child, SIGKILL);
    Retry([&] { return waitpid(child, &status, 0); });
  }
  KillRest(child);
  if (late) return words[0] + " was killed after its time limit";
  if (WIFSIGNALED(status)) return words[0] + ": signal " + std::to_string(WTERMSIG(status));
  if (WEXITSTATUS(status) != 0) {
    return words[0] + ": exit code " + std::to_string(WEXITSTATUS(status));
  }
  return "";
}

}  // namespace edgepack::sinks
