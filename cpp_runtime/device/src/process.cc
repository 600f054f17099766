#include "process.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "file.h"

namespace edgepack::device {
namespace {

// Masks of a crowd are some megabytes; whoever asked for it takes 8 MiB of this program.
constexpr std::size_t kMaxOut = std::size_t{6} << 20U;
constexpr std::size_t kMaxErr = std::size_t{4} << 10U;
constexpr double kChildPollS = 0.02;

struct Pipe {
  Pipe() {
    std::array<int, 2> ends = {};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) ThrowErrno("make", "a pipe");
    read = Fd(ends[0]);
    write = Fd(ends[1]);
  }
  Fd read;
  Fd write;
};

[[noreturn]] void Become(const std::vector<std::string>& words, const Pipe& out, const Pipe& err,
                         pid_t parent, Priority priority) {
  setpgid(0, 0);
  if (priority == Priority::kLowest) LowerPriority();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // it died before
  // Ours are none of its business: this program's input may be the link of a deploy. It gets an
  // input that has ended, not /dev/null, which a root with nothing in it does not have.
  std::array<int, 2> nothing = {};
  if (pipe2(nothing.data(), O_CLOEXEC) != 0 || dup2(nothing[0], 0) < 0 ||
      dup2(out.write.get(), 1) < 0 || dup2(err.write.get(), 2) < 0) {
    _exit(127);
  }
  // An ignored signal stays ignored in the program.
  for (const int number : {SIGPIPE, SIGHUP, SIGTERM, SIGINT}) (void)signal(number, SIG_DFL);
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  const std::string text = std::string("cannot be started: ") + std::strerror(errno);
  if (write(2, text.data(), text.size()) < 0) _exit(127);
  _exit(127);
}

/// Appends what there is to read now; false at the end.
bool Drain(const Fd& pipe, std::string* text) {
  std::array<char, 4096> block;  // NOLINT(*-member-init): filled by the read
  const ssize_t count = read(pipe.get(), block.data(), block.size());
  if (count < 0) return errno == EINTR || errno == EAGAIN;
  text->append(block.data(), static_cast<std::size_t>(count));
  return count > 0;
}

void KeepEnd(std::string* text, std::size_t limit) {
  if (text->size() > limit) text->erase(0, text->size() - limit);
}

/// Collects what comes out of both pipes.
class Reader {
 public:
  Reader(const Fd& out, const Fd& err) : fds_{&out, &err} {}

  /// One wait of at most `seconds`; false if nothing came.
  bool Read(double seconds, Ended* ended) {
    std::array<struct pollfd, 2> polled = {};
    for (std::size_t i = 0; i < polled.size(); ++i) {
      polled.at(i) = {open_.at(i) ? fds_.at(i)->get() : -1, POLLIN, 0};
    }
    const int ready = poll(polled.data(), polled.size(), static_cast<int>(seconds * 1e3));
    if (ready <= 0) return false;
    for (std::size_t i = 0; i < polled.size(); ++i) {
      if (polled.at(i).revents != 0) {
        open_.at(i) = Drain(*fds_.at(i), i == 0 ? &ended->out : &ended->err);
      }
    }
    // Whatever it wants to say, it is not more than this.
    if (ended->out.size() > kMaxOut) ended->out.resize(kMaxOut);
    KeepEnd(&ended->err, kMaxErr);
    return true;
  }
  [[nodiscard]] bool is_open() const { return open_[0] || open_[1]; }

 private:
  std::array<const Fd*, 2> fds_;
  std::array<bool, 2> open_ = {true, true};
};

}  // namespace

void LowerPriority() {
  const auto write_word = [](const char* path, const char* word) {
    const Fd fd = OpenPath(path, O_WRONLY);
    if (fd && write(fd.get(), word, std::strlen(word)) < 0) errno = 0;
  };
  setpriority(PRIO_PROCESS, 0, 19);
  // By number: musl's function of that name only fails.
  constexpr int kIdle = 5;
  const int parameter = 0;
  syscall(SYS_sched_setscheduler, 0, kIdle, &parameter);
  // Where a session shares the CPU as a whole, it has a priority of its own.
  write_word("/proc/self/autogroup", "19");
  constexpr int kIdleClass = 3 << 13;
  syscall(SYS_ioprio_set, 1, 0, kIdleClass);
  write_word("/proc/self/oom_score_adj", "1000");
}

Ended RunProgram(const std::vector<std::string>& words, double timeout_s, Priority priority) {
  Pipe out;
  Pipe err;
  const pid_t parent = getpid();
  const double deadline = Monotonic() + timeout_s;
  const pid_t child = fork();
  if (child < 0) ThrowErrno("start", words[0]);
  if (child == 0) Become(words, out, err, parent, priority);
  setpgid(child, child);  // in both, whoever comes first
  out.write.Close();
  err.write.Close();

  Ended ended;
  Reader reader(out.read, err.read);
  int status = 0;
  struct rusage usage = {};
  const auto wait = [&](int how) {
    const pid_t ended_one = Retry([&] { return wait4(child, &status, how, &usage); });
    if (ended_one < 0) {
      kill(-child, SIGKILL);
      ThrowErrno("wait for", words[0]);
    }
    return ended_one == child;
  };
  while (!wait(WNOHANG)) {
    if (Monotonic() >= deadline) {
      ended.timed_out = true;
      kill(-child, SIGKILL);
      wait(0);
      break;
    }
    if (reader.is_open()) {
      reader.Read(kChildPollS, &ended);
    } else {
      Sleep(kChildPollS);
    }
  }
  // What it started and left behind has the pipes, too.
  kill(-child, SIGKILL);
  while (reader.is_open() && reader.Read(kChildPollS, &ended)) {
  }
  ended.max_rss_bytes = static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
  if (ended.timed_out) return ended;
  if (WIFSIGNALED(status)) {
    ended.signal = WTERMSIG(status);
  } else {
    ended.exit_code = WEXITSTATUS(status);
  }
  return ended;
}

}  // namespace edgepack::device
