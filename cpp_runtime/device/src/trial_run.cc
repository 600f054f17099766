#include "trial_run.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "clock.h"
#include "confine.h"
#include "error.h"
#include "faults.h"
#include "layout.h"
#include "lock.h"
#include "process.h"
#include "switch.h"
#include "trial.h"
#include "trial_compare.h"
#include "trial_pictures.h"

namespace edgepack::device {
namespace {

constexpr double kTickS = 0.25;
// A candidate that gives no answer for so long hangs. It may be starved of the CPU.
constexpr double kAnswerS = 120;
constexpr std::int64_t kMostCrashes = 3;
constexpr double kLockS = 600;
constexpr double kLockPollS = 0.05;
// How it goes is written so often in all, but at most every second, and at least every 30 s.
constexpr double kSaves = 1440;
constexpr double kMostSaveS = 30;
constexpr std::size_t kMaxPicture = std::size_t{64} << 20U;
constexpr std::size_t kMaxAnswer = std::size_t{6} << 20U;
// Each of both releases so often, in turns. Of all runs the fastest counts: one that nobody
// interrupted, which a median need not be where the CPU is busy.
constexpr int kLatencyRounds = 5;
constexpr const char* kLatencyRuns = "5";
constexpr double kLatencyS = 120;
// The exit code of a candidate that could not be confined.
constexpr int kNotConfined = 126;

// --- The other side ---

/// A picture of the current release, with its answer.
struct Handed {
  std::string format;
  std::int64_t width = 0;
  std::int64_t height = 0;
  std::string picture;
  std::string answer;
  std::string thumbnail;  // empty: there is none
  bool reply = false;     // the candidate's line is wanted
  bool used = false;      // the last one was the answer
};

std::string ReadPart(const Fd& memory, std::size_t at, std::size_t size) {
  std::string part(size, '\0');
  for (std::size_t done = 0; done < size;) {
    const ssize_t count = Retry([&] {
      return pread(memory.get(), part.data() + done, size - done, static_cast<off_t>(at + done));
    });
    if (count <= 0) throw Error(kExitDevice, "io", "a picture is shorter than it says");
    done += static_cast<std::size_t>(count);
  }
  return part;
}

/// Where the current release's app connects, one at a time.
class Door {
 public:
  explicit Door(const Folder& folder) : folder_(folder.Clone()) {
    folder_.Remove(kTrialSocket);
    fd_ = Fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    // A path of any length fits so.
    const Fd open = OpenPath(folder_.path(), O_PATH | O_DIRECTORY);
    const std::string path = "/proc/self/fd/" + std::to_string(open.get()) + "/" + kTrialSocket;
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    // The app has an account of its own.
    const mode_t mask = umask(0);
    const bool bound =
        fd_ && open &&
        bind(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
        listen(fd_.get(), 1) == 0;
    umask(mask);
    if (!bound) ThrowErrno("listen in", folder_.path());
  }
  ~Door() {
    try {
      folder_.Remove(kTrialSocket);
    } catch (const Error&) {
      return;  // the next one removes it
    }
  }
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;
  Door(Door&&) = delete;
  Door& operator=(Door&&) = delete;

  /// What comes within `seconds`; nothing if nothing does.
  std::optional<Handed> Wait(double seconds, const Trial& trial) {
    if (peer_ && !asked_) {
      const TrialRules& rules = trial.rules;
      std::string text = std::to_string(rules.share);
      const int side = rules.keep_disagreements > 0 ? kThumbnailSide : 0;
      if (side > 0 || rules.split > 0) text += " " + std::to_string(side);
      if (rules.split > 0) text += " " + std::to_string(rules.split) + " " + trial.release;
      asked_ = send(peer_.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT) > 0;
      if (!asked_) peer_.Close();
    }
    pollfd wanted = {peer_ ? peer_.get() : fd_.get(), POLLIN, 0};
    if (poll(&wanted, 1, static_cast<int>(seconds * 1e3)) <= 0) return std::nullopt;
    if (!peer_) {
      peer_ = Fd(accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      asked_ = false;
      return std::nullopt;
    }
    asked_ = false;
    try {
      std::optional<Handed> handed = Receive();
      if (!handed) peer_.Close();
      return handed;
    } catch (const Error&) {
      peer_.Close();
      return std::nullopt;
    }
  }

  /// The candidate's line, "-" if it has none. One that does not fit is lost: nobody waits long.
  void Reply(const std::string& line) const {
    (void)send(peer_.get(), line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

 private:
  [[nodiscard]] std::optional<Handed> Receive() const {
    std::array<char, 1024> text = {};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control = {};
    iovec part = {text.data(), text.size()};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t size =
        Retry([&] { return recvmsg(peer_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT); });
    if (size <= 0) return std::nullopt;
    const cmsghdr* const header = CMSG_FIRSTHDR(&message);
    if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return std::nullopt;
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
    const Fd memory(fd);
    struct stat status = {};
    // Not a pipe or a device, whose reading may wait.
    if (fstat(memory.get(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
    const JsonDocument document(std::string_view(text.data(), static_cast<std::size_t>(size)),
                                "a picture of a trial", "io");
    JsonObject root = document.Root();
    Handed handed;
    handed.format = root.String("format");
    handed.width = root.Int("width", 0, 1 << 16);
    handed.height = root.Int("height", 0, 1 << 16);
    const std::uint64_t picture = root.Size("picture_bytes");
    const std::uint64_t answer = root.Size("answer_bytes");
    if (picture > kMaxPicture || answer > kMaxAnswer) return std::nullopt;
    handed.picture = ReadPart(memory, 0, static_cast<std::size_t>(picture));
    handed.answer =
        ReadPart(memory, static_cast<std::size_t>(picture), static_cast<std::size_t>(answer));
    const std::uint64_t thumbnail = root.Has("thumbnail_bytes") ? root.Size("thumbnail_bytes") : 0;
    if (thumbnail <= kMaxThumbnail) {
      handed.thumbnail = ReadPart(memory, static_cast<std::size_t>(picture + answer),
                                  static_cast<std::size_t>(thumbnail));
    }
    handed.reply = root.Has("reply");
    handed.used = root.Has("used");
    return handed;
  }

  Folder folder_;
  Fd fd_;
  Fd peer_;
  bool asked_ = false;
};

// --- The candidate ---

/// The candidate's app, which reads frames of one format on its stdin and writes a line for each.
class Candidate {
 public:
  Candidate(std::string program, const Handed& first)
      : program_(std::move(program)),
        format_(first.format),
        width_(first.width),
        height_(first.height) {
    std::array<int, 2> in = {-1, -1};
    std::array<int, 2> out = {-1, -1};
    if (pipe2(in.data(), O_CLOEXEC) != 0) ThrowErrno("make", "a pipe");
    const Fd from(in[0]);
    input_ = Fd(in[1]);
    if (pipe2(out.data(), O_CLOEXEC) != 0) ThrowErrno("make", "a pipe");
    output_ = Fd(out[0]);
    const Fd to(out[1]);
    for (const Fd* const fd : {&input_, &output_}) {
      if (fcntl(fd->get(), F_SETFL, O_NONBLOCK) != 0) ThrowErrno("set up", "a pipe");
    }
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ < 0) ThrowErrno("start", program_);
    if (pid_ == 0) Become(from, to, parent);
    setpgid(pid_, pid_);  // in both, whoever comes first
  }
  ~Candidate() { (void)End(); }
  Candidate(const Candidate&) = delete;
  Candidate& operator=(const Candidate&) = delete;
  Candidate(Candidate&&) = delete;
  Candidate& operator=(Candidate&&) = delete;

  [[nodiscard]] bool Fits(const Handed& handed) const {
    return handed.format == format_ &&
           (format_ == "mjpeg" || (handed.width == width_ && handed.height == height_));
  }

  /// Its line for the picture; nothing if it died, hung, or `stop` says so.
  template <typename Stop>
  std::optional<std::string> Ask(std::string_view picture, const Stop& stop) {
    std::string line;
    const double deadline = Monotonic() + kAnswerS;
    while (Monotonic() < deadline && !stop()) {
      std::array<pollfd, 2> fds = {
          {{output_.get(), POLLIN, 0}, {picture.empty() ? -1 : input_.get(), POLLOUT, 0}}};
      if (poll(fds.data(), fds.size(), static_cast<int>(kTickS * 1e3)) <= 0) continue;
      if (fds[1].revents != 0) {
        const ssize_t count = write(input_.get(), picture.data(), picture.size());
        if (count < 0 && errno != EAGAIN && errno != EINTR) return std::nullopt;
        if (count > 0) picture.remove_prefix(static_cast<std::size_t>(count));
      }
      if (fds[0].revents == 0) continue;
      std::array<char, 4096> block;  // NOLINT(*-member-init): filled by the read
      const ssize_t count = read(output_.get(), block.data(), block.size());
      if (count < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (count <= 0 || line.size() > kMaxAnswer) return std::nullopt;
      line.append(block.data(), static_cast<std::size_t>(count));
      if (line.back() == '\n') return line;
    }
    return std::nullopt;
  }

  /// Whether it ended because it could not be confined. It does not live on.
  [[nodiscard]] bool IsNotConfined() {
    const int status = End();
    return WIFEXITED(status) && WEXITSTATUS(status) == kNotConfined;
  }

  /// The most memory it had; 0 if nobody can tell. In `status` kernels leave out what threads have
  /// not handed in yet, some megabytes each up to Linux 6.1 (proc(5)); in `smaps_rollup`, since
  /// Linux 4.14, all of this moment is counted.
  [[nodiscard]] std::uint64_t PeakBytes() const {
    return std::max(Kilobytes("status", "VmHWM:"), Kilobytes("smaps_rollup", "\nRss:")) * 1024;
  }

 private:
  /// What follows `key` in one of its files below /proc; 0 if that cannot be read.
  [[nodiscard]] std::uint64_t Kilobytes(const char* file, const std::string& key) const {
    const Fd fd = OpenPath("/proc/" + std::to_string(pid_) + "/" + file, O_RDONLY);
    std::array<char, 4096> text = {};
    if (!fd || read(fd.get(), text.data(), text.size() - 1) <= 0) return 0;
    const char* const line = std::strstr(text.data(), key.c_str());
    return line == nullptr ? 0 : std::strtoull(line + key.size(), nullptr, 10);
  }

  /// Its wait status; what has ended by itself keeps that.
  int End() {
    if (pid_ < 0) return status_;
    // Its output ends a moment before it does.
    for (int i = 0; i < 50 && waitpid(pid_, &status_, WNOHANG) == 0; ++i) {
      if (i > 0) Sleep(0.002);
      if (i == 49) {
        kill(-pid_, SIGKILL);
        Retry([&] { return waitpid(pid_, &status_, 0); });
      }
    }
    kill(-pid_, SIGKILL);  // what it left behind
    pid_ = -1;
    return status_;
  }

  [[noreturn]] void Become(const Fd& from, const Fd& to, pid_t parent) const {
    setpgid(0, 0);
    LowerPriority();
    if (!GiveUpRoot(program_)) _exit(kNotConfined);
    prctl(PR_SET_PDEATHSIG, SIGKILL);     // another user is not told
    if (getppid() != parent) _exit(127);  // it died before
    const Fd null = OpenPath("/dev/null", O_WRONLY);
    if (dup2(from.get(), 0) < 0 || dup2(to.get(), 1) < 0 || dup2(null.get(), 2) < 0) _exit(127);
    for (const int number : {SIGPIPE, SIGHUP, SIGTERM, SIGINT}) (void)signal(number, SIG_DFL);
    std::vector<std::string> words = {program_, "--frames", format_};
    if (format_ != "mjpeg") {
      words.insert(words.end(), {"--size", std::to_string(width_) + "x" + std::to_string(height_)});
    }
    std::vector<char*> argv;
    argv.reserve(words.size() + 1);
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    // It reads pictures of strangers.
    if (!Confine()) _exit(kNotConfined);
    execv(argv[0], argv.data());
    _exit(127);
  }

  std::string program_;
  std::string format_;
  std::int64_t width_;
  std::int64_t height_;
  Fd input_;
  Fd output_;
  pid_t pid_ = -1;
  int status_ = 0;
};

/// The fastest run of a benchmark, or what a run took; 0 if there is neither.
double RunMs(const std::string& answer) {
  try {
    const JsonDocument document(answer.substr(std::min(answer.find('{'), answer.size())),
                                "edgepack-run's answer", "no-answer");
    JsonObject root = document.Root();
    if (root.Has("bench")) return root.Object("bench").Number("min_ms");
    return root.Has("run_ms") ? root.Number("run_ms") : 0;
  } catch (const Error&) {
    return 0;
  }
}

class TrialRunner {
 public:
  TrialRunner(const Site& site, Trial trial)
      : site_(site),
        trial_(std::move(trial)),
        folder_(site.root.MakeSub(kTrial)),
        begun_(Monotonic()),
        begun_at_s_(trial_.elapsed_s),
        manifest_(site.releases.Load(trial_.release).manifest),
        pictures_(folder_, trial_.kept, trial_.rules.keep_disagreements,
                  static_cast<std::uint32_t>(Monotonic() * 1e6)) {
    if (manifest_.service) memory_mb_ = manifest_.service->memory_mb;
  }

  void Run() {
    if (trial_.phase == "activating") {
      Settle();
      if (trial_.IsOver()) return;
    }
    Door door(folder_);
    if (!trial_.latency_ratio) MeasureLatency();
    begun_ = Monotonic();  // its time is that on live pictures
    while (!trial_.IsOver()) {
      if (Check()) continue;
      const std::optional<Handed> handed = door.Wait(kTickS, trial_);
      if (handed) Compare(*handed, door);
      if (Monotonic() - saved_ >= std::clamp(trial_.rules.seconds / kSaves, 1.0, kMostSaveS))
        TrySave();
    }
  }

 private:
  [[nodiscard]] std::string ProgramOf(const std::string& release) const {
    return site_.releases.PathOf(release) + "/" + kApp;
  }

  [[nodiscard]] bool IsStopped() const { return folder_.Has(kTrialStop); }

  /// Ends the trial, if something says that it is over. At most once a second it looks.
  bool Check() {
    const double now = Monotonic();
    if (now - checked_ < kTickS) return false;
    checked_ = now;
    trial_.elapsed_s = begun_at_s_ + now - begun_;
    if (IsStopped()) {
      End("stopped", "stopped by the operator");
    } else if (const auto current = site_.releases.Named(kCurrent); current != trial_.before) {
      End("dropped", "release " + current.value_or("none") + " became current meanwhile");
    } else if (trial_.elapsed_s >= trial_.rules.seconds) {
      Decide();
    }
    return trial_.IsOver();
  }

  /// Both releases answer their golden inputs in turns, at the same priority.
  void MeasureLatency() {
    std::array<double, 2> best = {0, 0};
    for (int round = 0; round < kLatencyRounds; ++round) {
      for (const std::size_t which : {std::size_t{0}, std::size_t{1}}) {
        if (IsStopped()) return;
        const std::string& release = which == 0 ? trial_.before : trial_.release;
        const Ended ended = RunProgram(
            {ProgramOf(release), "--golden", "--warmup", "1", "--bench", kLatencyRuns, "--json"},
            kLatencyS, Priority::kLowest);
        const double ms = RunMs(ended.out);
        if (ms <= 0) {
          // The candidate passed its test; of the current release nothing is known then.
          if (which == 1) End("dropped", "the candidate did not answer its golden input");
          return;
        }
        best.at(which) = best.at(which) == 0 ? ms : std::min(best.at(which), ms);
      }
    }
    trial_.latency_ratio = best[1] / best[0];
    if (*trial_.latency_ratio > trial_.rules.max_latency) {
      End("dropped", "it takes " + Text(*trial_.latency_ratio) + " times as long as release " +
                         trial_.before + "; allowed are " + Text(trial_.rules.max_latency));
      return;
    }
    TrySave();
  }

  void Compare(const Handed& handed, const Door& door) {
    if (handed.used) ++trial_.answered;
    if (candidate_ && !candidate_->Fits(handed)) candidate_.reset();
    if (!candidate_) candidate_ = std::make_unique<Candidate>(ProgramOf(trial_.release), handed);
    const std::optional<std::string> answer =
        candidate_->Ask(handed.picture, [&] { return IsStopped(); });
    if (handed.reply) door.Reply(answer.value_or("-"));
    if (IsStopped()) return;
    if (!answer && candidate_->IsNotConfined()) {
      End("dropped", "this kernel cannot confine the candidate: it lacks seccomp filters");
      return;
    }
    trial_.peak_bytes = std::max(trial_.peak_bytes, candidate_->PeakBytes());
    if (!answer) {
      Crash("it died or gave no answer");
      return;
    }
    if (memory_mb_ && trial_.peak_bytes > *memory_mb_ * 1000000) {
      End("dropped", "it took " + std::to_string(trial_.peak_bytes / 1000000) + " MB of memory, " +
                         std::to_string(*memory_mb_) + " are allowed");
      return;
    }
    const std::optional<Compared> compared =
        CompareAnswers(handed.answer, *answer, manifest_.tolerance);
    if (!compared) {
      ++trial_.incomparable;
      return;
    }
    ++trial_.pictures;
    trial_.agreed += compared->agreement;
    if (compared->agreement < 1) {
      ++trial_.differing;
      pictures_.Keep({handed.thumbnail, handed.answer, *answer, compared->agreement});
      trial_.kept = pictures_.count();
    }
    if (compared->difference) {
      ++trial_.scored;
      trial_.difference += *compared->difference;
      trial_.largest_difference = std::max(trial_.largest_difference, *compared->difference);
    }
    trial_.current_ms += RunMs(handed.answer);
    trial_.candidate_ms += RunMs(*answer);
  }

  void Crash(const std::string& how) {
    candidate_.reset();
    if (++trial_.crashes >= kMostCrashes) {
      End("dropped", "the candidate crashed " + std::to_string(trial_.crashes) + " times: " + how);
    }
  }

  void Decide() {
    const std::int64_t needed = trial_.rules.min_pictures;
    if (trial_.pictures < needed) {
      End("dropped",
          "only " + std::to_string(trial_.pictures) + " pictures were compared, " +
              std::to_string(needed) + " are needed" +
              (trial_.incomparable > 0 ? "; answers of this kind are not compared" : ""));
    } else if (*trial_.Agreement() < trial_.rules.min_agreement) {
      End("dropped", "the answers agree by " + Text(*trial_.Agreement()) + ", needed is " +
                         Text(trial_.rules.min_agreement));
    } else if (!trial_.latency_ratio) {
      End("dropped", "its latency could not be compared");
    } else {
      Activate();
    }
  }

  void Activate() {
    candidate_.reset();
    const Lock lock(site_.root, {0, trial_.by, "", "activating after a trial", ""}, kLockS);
    const Switch to(site_, [](const std::string& /*what*/) {});
    to.Recover();
    if (IsStopped() || site_.releases.Named(kCurrent) != trial_.before) return;  // `Check` says so
    trial_.phase = "activating";
    Step("trial.activate");
    SaveTrial(site_.root, trial_);
    try {
      to.Activate(trial_.release, trial_.by);
      End("activated", "the answers agree by " + Text(*trial_.Agreement()));
    } catch (const Error& error) {
      if (error.exit_code == kExitDevice) throw;  // says nothing about the release
      End("dropped", error.message);
    }
  }

  /// An activation was interrupted: what it came to is where `current` points, once it is
  /// recovered.
  void Settle() {
    const Lock lock(site_.root, {0, trial_.by, "", "ending a trial", ""}, kLockS);
    Switch(site_, [](const std::string& /*what*/) {}).Recover();
    if (site_.releases.Named(kCurrent) == trial_.release) {
      End("activated", "the activation was interrupted, and ended by recovery");
    } else {
      trial_.phase = "running";  // its time is over: decided again
      trial_.elapsed_s = std::max(trial_.elapsed_s, trial_.rules.seconds);
      SaveTrial(site_.root, trial_);
    }
  }

  void End(const std::string& phase, const std::string& reason) {
    candidate_.reset();
    trial_.phase = phase;
    trial_.reason = reason;
    trial_.ended_at = Timestamp(site_.trust.Now());
    Step("trial.end");
    // A full disk becomes empty again.
    while (!TrySave() && !IsStopped()) Sleep(1);
  }

  bool TrySave() {
    saved_ = Monotonic();
    try {
      SaveTrial(site_.root, trial_);
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  static std::string Text(double value) {
    std::array<char, 32> text = {};
    (void)std::snprintf(text.data(), text.size(), "%.4g", value);
    return text.data();
  }

  const Site& site_;
  Trial trial_;
  Folder folder_;
  double begun_;
  double begun_at_s_;
  double checked_ = 0;
  double saved_ = 0;
  Manifest manifest_;
  std::optional<std::uint64_t> memory_mb_;
  KeptPictures pictures_;
  std::unique_ptr<Candidate> candidate_;
};

}  // namespace

void RunTrial(const Site& site) {
  std::optional<TrialLock> lock;
  // Who asks how it goes has the lock for a moment.
  for (int i = 0; i < 20 && !(lock = TrialLock::Take(site.root)); ++i) Sleep(kLockPollS);
  if (!lock) return;
  const std::optional<Trial> trial = FindTrial(site.root);
  if (!trial || trial->IsOver()) return;
  (void)signal(SIGPIPE, SIG_IGN);
  (void)signal(SIGHUP, SIG_IGN);
  TrialRunner(site, *trial).Run();
}

}  // namespace edgepack::device
