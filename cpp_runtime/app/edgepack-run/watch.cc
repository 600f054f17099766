#include "watch.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <fcntl.h>
#include <fstream>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <system_error>
#include <unistd.h>

#include <edgepack/errors.h>

#include "common/json.h"
#include "notify.h"

namespace edgepack {
namespace {

volatile std::sig_atomic_t g_stop = 0;

extern "C" void OnStop(int /*signal*/) { g_stop = 1; }

sigset_t StopSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

std::string LastError() { return std::error_code(errno, std::generic_category()).message(); }

/// Whether others than this machine may change a file system: inotify does not tell of that.
bool ChangesElsewhere(const std::filesystem::path& folder) {
  // linux/magic.h, and of file systems that are not the kernel's own their sources.
  constexpr std::array<std::uint32_t, 14> kShared = {
      0x6969,      // NFS
      0x517B,      // SMB
      0xFF534D42,  // CIFS
      0xFE534D42,  // SMB2
      0x01021997,  // 9P
      0x65735546,  // FUSE: sshfs, say
      0x00C36400,  // Ceph
      0x5346414F,  // AFS
      0x6B414653,  // kAFS
      0x73757245,  // Coda
      0x786F4256,  // VirtualBox
      0xBACBACBC,  // VMware
      0x0BD00BD0,  // Lustre
      0x47504653,  // GPFS
  };
  struct statfs status = {};
  if (statfs(folder.c_str(), &status) != 0) return false;
  const auto kind = static_cast<std::uint32_t>(status.f_type);
  return std::find(kShared.begin(), kShared.end(), kind) != kShared.end();
}

/// Whether a name is a link to a file that is elsewhere, too.
bool IsLinked(const std::filesystem::path& path) {
  struct stat status = {};
  if (lstat(path.c_str(), &status) != 0) return false;
  return S_ISLNK(status.st_mode) || (S_ISREG(status.st_mode) && status.st_nlink > 1);
}

void SortByAge(std::vector<PhotoKey>* keys) {
  std::sort(keys->begin(), keys->end(), [](const PhotoKey& a, const PhotoKey& b) {
    return std::pair(a.second, a.first) < std::pair(b.second, b.first);
  });
}

/// Calls `visit` with the photo that each line of `file` is about, and the line; one that a crash
/// cut short counts as none.
void ForEachLine(const std::filesystem::path& file,
                 const std::function<void(const PhotoFolder::Key&, JsonObject* line)>& visit) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    try {
      const JsonDocument document(line, file.string(), "damaged");
      JsonObject object = document.Root();
      std::string image = object.String("image");
      if (object.Has("image_hex")) image = FromHex(object.String("image_hex"));
      visit({std::move(image), object.Int("mtime_ns")}, &object);
    } catch (const Error&) {
      continue;
    }
  }
}

/// The photos that `file` has lines for, and whether one of them could be used.
void ReadDone(const std::filesystem::path& file, std::set<PhotoFolder::Key>* done, bool* used) {
  ForEachLine(file, [&](const PhotoFolder::Key& photo, JsonObject* line) {
    done->insert(photo);
    *used = *used || !line->Has("error");
  });
}

}  // namespace

void HoldStopSignals() {
  g_stop = 0;
  const sigset_t set = StopSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  struct sigaction action = {};
  action.sa_handler = OnStop;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
}

bool StopRequested() { return g_stop != 0; }

bool StopPending() {
  sigset_t pending;
  sigpending(&pending);
  return StopRequested() || sigismember(&pending, SIGTERM) == 1 ||
         sigismember(&pending, SIGINT) == 1;
}

sigset_t StopMask() {
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  sigdelset(&mask, SIGTERM);
  sigdelset(&mask, SIGINT);
  return mask;
}

bool WaitFor(int fd, std::optional<std::chrono::milliseconds> limit) {
  pollfd wanted = {fd, POLLIN, 0};
  timespec wait = {};
  if (limit) {
    wait.tv_sec = static_cast<time_t>(limit->count() / 1000);
    wait.tv_nsec = static_cast<decltype(wait.tv_nsec)>(limit->count() % 1000) * 1000000;
  }
  const sigset_t mask = StopMask();
  return ppoll(&wanted, fd < 0 ? 0 : 1, limit ? &wait : nullptr, &mask) > 0;
}

PhotoFolder::PhotoFolder(std::filesystem::path folder) : path_(std::move(folder)) {
  if (!Look()) {
    throw UsageError("--watch: " + path_.string() + " " + lost_, "name a folder of photos");
  }
  missed_ = false;
  for (const Key& key : Present()) known_.insert(key);
}

std::optional<PhotoFolder::Place> PhotoFolder::PlaceNow() const {
  struct stat status = {};
  if (stat(path_.c_str(), &status) != 0) return std::nullopt;
  if (!S_ISDIR(status.st_mode)) {
    errno = ENOTDIR;
    return std::nullopt;
  }
  if (access(path_.c_str(), R_OK | X_OK) != 0) return std::nullopt;
  struct stat above = {};
  const bool mounted = stat((path_ / "..").c_str(), &above) == 0 && above.st_dev != status.st_dev;
  return Place{status.st_dev, status.st_ino, mounted};
}

/// Watches the folder that is there. Why it cannot; empty if it does.
std::string PhotoFolder::Reach() {
  const std::optional<Place> now = PlaceNow();
  if (!now) return "cannot be read: " + LastError();
  if (!there_ || !(*now == place_)) {
    missed_ = true;
    if (!Watch()) return "cannot be watched: " + LastError();
    // In between it may have become another one.
    const std::optional<Place> then = PlaceNow();
    if (!then || !(*then == *now)) return "is being changed";
    if (place_.inode != 0 && !(*now == place_)) ++changes_;
    place_ = *now;
  }
  was_mounted_ = was_mounted_ || now->mounted;
  there_ = true;
  if (was_mounted_ && !now->mounted) {
    lost_ = "has nothing mounted on it any more";
  } else {
    lost_.clear();
  }
  return "";
}

bool PhotoFolder::Look() {
  looked_ = std::chrono::steady_clock::now();
  moved_ = false;
  const std::string problem = Reach();
  if (problem.empty()) return true;
  lost_ = problem;
  there_ = false;
  fd_.Close();
  return false;
}

bool PhotoFolder::Watch() {
  polled_.clear();
  fd_ = Fd(inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  const auto events =
      IN_CLOSE_WRITE | IN_MOVED_TO | IN_CREATE | IN_MOVE_SELF | IN_DELETE_SELF | IN_ONLYDIR;
  if (!fd_ || inotify_add_watch(fd_.get(), path_.c_str(), events) < 0) {
    const bool none_left =
        errno == EMFILE || errno == ENFILE || errno == ENOSPC || errno == ENOSYS || errno == ENOMEM;
    if (!none_left) return false;
    fd_.Close();
    polled_ = "the system gives no more watches (fs.inotify)";
  } else if (ChangesElsewhere(path_)) {
    polled_ = "its file system tells nothing of what other machines do";
  }
  growing_.clear();
  return true;
}

std::vector<PhotoFolder::Key> PhotoFolder::Present() const {
  const auto photos = FindPhotos(path_);
  if (!photos) throw UsageError("--watch: " + path_.string() + " cannot be read: " + LastError());
  std::vector<Key> keys;
  keys.reserve(photos->size());
  for (const FoundPhoto& photo : *photos) keys.push_back(photo.key);
  SortByAge(&keys);
  return keys;
}

std::vector<PhotoFolder::Key> PhotoFolder::Arrived(std::optional<std::chrono::milliseconds> limit) {
  // Only here may a stop signal come in: one that came before is seen now, none is missed.
  const bool ready = WaitFor(fd_.get(), std::min(limit.value_or(kLook), kLook));
  if (StopRequested()) return {};

  std::vector<Key> keys;
  if (ready) ReadEvents(&keys);
  const bool due = std::chrono::steady_clock::now() - looked_ >= kLook;
  if (due || moved_) Look();
  if (there_ && (missed_ || (due && !polled_.empty()))) AddNew(&keys);
  known_.insert(keys.begin(), keys.end());
  if (known_.size() > most_known_) Forget();
  return keys;
}

void PhotoFolder::ReadEvents(std::vector<Key>* keys) {
  alignas(inotify_event) char buffer[16384];
  for (ssize_t size = 0; (size = read(fd_.get(), buffer, sizeof(buffer))) > 0;) {
    for (const char* at = buffer; at < buffer + size;) {
      const auto* const event = reinterpret_cast<const inotify_event*>(at);
      at += sizeof(inotify_event) + event->len;
      if ((event->mask & IN_Q_OVERFLOW) != 0) missed_ = true;
      if ((event->mask & (IN_IGNORED | IN_UNMOUNT | IN_MOVE_SELF | IN_DELETE_SELF)) != 0) {
        moved_ = true;
        there_ = false;  // even if one like it is there again
      }
      if (event->len == 0) continue;
      // A file that is made here is written first; one that is linked here is whole.
      if ((event->mask & IN_CREATE) != 0 && !IsLinked(path_ / event->name)) continue;
      const auto photo = FindPhoto(path_, event->name);
      if (photo && (keys->empty() || keys->back() != photo->key)) keys->push_back(photo->key);
    }
  }
}

/// Photos that nothing told of, oldest first.
void PhotoFolder::AddNew(std::vector<Key>* keys) {
  const auto photos = FindPhotos(path_);
  if (!photos) return;  // the next look says why
  missed_ = false;
  std::map<Key, std::int64_t> growing;
  std::vector<Key> added;
  for (const FoundPhoto& photo : *photos) {
    if (known_.count(photo.key) != 0) continue;
    if (std::find(keys->begin(), keys->end(), photo.key) != keys->end()) continue;
    const auto before = growing_.find(photo.key);
    if (polled_.empty() || (before != growing_.end() && before->second == photo.bytes)) {
      added.push_back(photo.key);
    } else {
      growing.emplace(photo.key, photo.bytes);
    }
  }
  growing_ = std::move(growing);
  SortByAge(&added);
  keys->insert(keys->end(), added.begin(), added.end());
}

/// Photos that are gone: they need not be known any longer.
void PhotoFolder::Forget() {
  constexpr std::size_t kFew = 1000;
  std::set<Key> still;
  if (const auto photos = FindPhotos(path_)) {
    for (const FoundPhoto& photo : *photos) {
      if (known_.count(photo.key) != 0) still.insert(photo.key);
    }
    known_ = std::move(still);
  }
  most_known_ = 2 * known_.size() + kFew;
}

ResultLines::ResultLines(std::optional<std::filesystem::path> file, std::ostream& out)
    : file_(std::move(file)), out_(out) {
  if (!file_) return;
  ReadDone(file_->string() + ".1", &done_, &used_);
  ReadDone(*file_, &done_, &used_);
  std::ofstream append(*file_, std::ios::app);
  if (!append) throw UsageError("--results: cannot write " + file_->string() + ": " + LastError());
  // A crash may have left half a line: what follows must not be glued to it.
  std::ifstream existing(*file_, std::ios::binary | std::ios::ate);
  if (existing.tellg() > 0) {
    existing.seekg(-1, std::ios::end);
    if (existing.get() != '\n') append << '\n';
  }
}

bool ResultLines::Done(const PhotoFolder::Key& key) const { return done_.count(key) != 0; }

void ResultLines::Write(const PhotoFolder::Key& key, const std::string& line) {
  if (!file_) {
    out_ << line << std::flush;
    return;
  }
  std::error_code none;
  if (std::filesystem::file_size(*file_, none) > kMaxBytes && !none) {
    std::filesystem::rename(*file_, file_->string() + ".1");
  }
  std::ofstream append(*file_, std::ios::app);
  append << line << std::flush;
  if (!append) {
    throw UsageError("--results: cannot write " + file_->string() + ": " + LastError(),
                     "free some space");
  }
  done_.insert(key);
}

BegunPhotos::BegunPhotos(std::filesystem::path file, const std::vector<PhotoFolder::Key>& queue)
    : file_(std::move(file)) {
  std::map<PhotoFolder::Key, int> times;
  ForEachLine(file_, [&](const PhotoFolder::Key& named, JsonObject* line) {
    times[named] = static_cast<int>(line->Int("times", 1, kMost));
  });
  for (const PhotoFolder::Key& key : queue) {
    const auto found = times.find(key);
    if (found != times.end()) times_[key] = found->second;
  }
}

bool BegunPhotos::Begin(const PhotoFolder::Key& key) {
  if (times_[key] == kMost) return false;
  ++times_[key];
  std::string text;
  for (const auto& [photo, times] : times_) {
    JsonWriter line;
    WriteImageName(photo.first, &line.BeginObject());
    line.Key("mtime_ns").Int(photo.second);
    text += line.Key("times").Int(times).EndObject().text() + '\n';
  }
  // In place: ext4 flushes a file that is made anew, and a card wears out. What a full disk loses
  // here is a guard, no result.
  const Fd file(open(file_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  const ssize_t written = pwrite(file.get(), text.data(), text.size(), 0);
  if (written < 0 || ftruncate(file.get(), written) != 0) errno = 0;
  return true;
}

namespace {

/// What is done with the photos of a folder, one after the other.
class Watching {
 public:
  Watching(PhotoFolder* photos, ResultLines* lines, const LineOf& line_of, SourceState* state)
      : photos_(photos), lines_(lines), line_of_(line_of), state_(state) {}

  /// Counts how often a photo is begun, in `file`.
  void Guard(std::filesystem::path file) { begun_.emplace(std::move(file), queue_); }
  void Add(const std::vector<PhotoFolder::Key>& keys) {
    for (const PhotoFolder::Key& key : keys) {
      if (!lines_->Done(key)) queue_.push_back(key);
    }
  }

  /// A line for each, until all have one, a stop signal comes, or the folder goes away: what is
  /// left then is done when it is back.
  void Work(const Notifier& notifier) {
    std::size_t done = 0;
    while (done < queue_.size() && Do(queue_[done])) {
      ++done;
      notifier.Send("WATCHDOG=1");
      // A look at the signals alone: a long queue must not hold up a stop.
      if (StopPending()) break;
    }
    queue_.erase(queue_.begin(), queue_.begin() + static_cast<std::ptrdiff_t>(done));
  }

  [[nodiscard]] bool used() const { return used_; }

 private:
  /// False if it could not be done because the folder has gone.
  bool Do(const PhotoFolder::Key& key) {
    if (lines_->Done(key)) return true;
    const PhotoLine line = line_of_(key, begun_ && !begun_->Begin(key));
    if (!line.problem.empty() && !photos_->Look()) return false;
    try {
      lines_->Write(key, line.text);
    } catch (const UsageError&) {
      if (photos_->Look()) throw;
      return false;
    }
    if (begun_) begun_->Finish(key);
    if (line.problem.empty()) {
      used_ = true;
      state_->Use();
    } else {
      state_->Reject(line.problem);
    }
    return true;
  }

  PhotoFolder* photos_;
  ResultLines* lines_;
  const LineOf& line_of_;
  SourceState* state_;
  std::vector<PhotoFolder::Key> queue_;
  std::optional<BegunPhotos> begun_;
  bool used_ = false;
};

}  // namespace

void Watch(const std::filesystem::path& folder, const std::optional<std::filesystem::path>& results,
           const LineOf& line_of, SourceState* state, std::ostream& out) {
  const Notifier notifier = Notifier::FromEnvironment();
  // Watched before it is listed: what comes in between is seen twice, and done once.
  PhotoFolder photos(folder);
  ResultLines lines(results, out);
  Watching watching(&photos, &lines, line_of, state);
  if (results) {
    watching.Add(photos.Present());
    watching.Guard(results->string() + ".begun");
  }
  std::string polled;
  int changes = 0;
  notifier.Send("READY=1");
  while (!StopRequested()) {
    if (photos.polled() != polled) {
      polled = photos.polled();
      if (!polled.empty()) state->Note("is looked at every second: " + polled);
    }
    if (std::exchange(changes, photos.changes()) != photos.changes()) {
      state->Note("is another folder than before");
    }
    photos.lost().empty() ? state->Find() : state->Lose(photos.lost());
    watching.Work(notifier);
    watching.Add(photos.Arrived(notifier.interval()));
    notifier.Send("WATCHDOG=1");
  }
  notifier.Send("STOPPING=1");
  if (!watching.used() && !lines.used() && state->rejected() > 0) {
    throw UsageError("--watch: no photo that came into " + folder.string() +
                     " could be used: " + state->last_reason());
  }
}

}  // namespace edgepack
