#include "watch.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <csignal>
#include <dirent.h>
#include <fcntl.h>
#include <fstream>
#include <memory>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
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

bool IsPhoto(const std::string& name) {
  std::string suffix = std::filesystem::path(name).extension().string();
  std::transform(suffix.begin(), suffix.end(), suffix.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  // A name with a dot first is what copying programs write before they rename.
  return name.front() != '.' && (suffix == ".jpg" || suffix == ".jpeg" || suffix == ".png");
}

std::string LastError() { return std::error_code(errno, std::generic_category()).message(); }

/// Calls `visit` with the photo that each line of `file` is about, and the line; one that a crash
/// cut short counts as none.
void ForEachLine(const std::filesystem::path& file,
                 const std::function<void(const PhotoFolder::Key&, JsonObject* line)>& visit) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    try {
      const JsonDocument document(line, file.string(), "damaged");
      JsonObject object = document.Root();
      const std::string image = object.String("image");
      visit({image, object.Int("mtime_ns")}, &object);
    } catch (const Error&) {
      continue;
    }
  }
}

void ReadDone(const std::filesystem::path& file, std::set<PhotoFolder::Key>* done) {
  ForEachLine(file, [&](const PhotoFolder::Key& photo, JsonObject*) { done->insert(photo); });
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

std::vector<std::filesystem::path> PhotosIn(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> photos;
  const std::unique_ptr<DIR, int (*)(DIR*)> open(opendir(folder.c_str()), closedir);
  if (open == nullptr) throw UsageError("--images: " + folder.string() + ": " + LastError());
  while (const dirent* const entry = readdir(open.get())) {  // NOLINT(concurrency-mt-unsafe)
    if (IsPhoto(entry->d_name)) photos.push_back(folder / entry->d_name);
  }
  std::sort(photos.begin(), photos.end());
  return photos;
}

PhotoFolder::PhotoFolder(std::filesystem::path folder) : path_(std::move(folder)) {
  fd_ = Fd(inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  const auto events = IN_CLOSE_WRITE | IN_MOVED_TO | IN_ONLYDIR;
  if (!fd_ || inotify_add_watch(fd_.get(), path_.c_str(), events) < 0) {
    throw UsageError("--watch: " + path_.string() + ": " + LastError(), "name a folder of photos");
  }
}

std::optional<PhotoFolder::Key> PhotoFolder::KeyOf(const std::string& name) const {
  struct stat status = {};
  // Whatever is gone again, or is no plain file, is no photo.
  if (!IsPhoto(name) || stat((path_ / name).c_str(), &status) != 0) return std::nullopt;
  if (!S_ISREG(status.st_mode)) return std::nullopt;
  return Key(name, std::int64_t{status.st_mtim.tv_sec} * 1000000000 + status.st_mtim.tv_nsec);
}

std::vector<PhotoFolder::Key> PhotoFolder::Present() const {
  std::vector<Key> keys;
  // Not std::filesystem: in a library built for offsets of 32 bits its listing can end early.
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(path_.c_str()), closedir);
  if (folder == nullptr) throw UsageError("--watch: " + path_.string() + ": " + LastError());
  while (const dirent* const entry = readdir(folder.get())) {  // NOLINT(concurrency-mt-unsafe)
    if (const auto key = KeyOf(entry->d_name)) keys.push_back(*key);
  }
  std::sort(keys.begin(), keys.end(), [](const Key& a, const Key& b) {
    return std::pair(a.second, a.first) < std::pair(b.second, b.first);
  });
  return keys;
}

std::vector<PhotoFolder::Key> PhotoFolder::Arrived(std::optional<std::chrono::milliseconds> limit) {
  pollfd wanted = {fd_.get(), POLLIN, 0};
  timespec wait = {};
  if (limit) {
    wait.tv_sec = static_cast<time_t>(limit->count() / 1000);
    wait.tv_nsec = static_cast<decltype(wait.tv_nsec)>(limit->count() % 1000) * 1000000;
  }
  // Only here may a stop signal come in: one that came before is seen now, none is missed.
  const sigset_t mask = StopMask();
  if (ppoll(&wanted, 1, limit ? &wait : nullptr, &mask) <= 0) return {};

  std::vector<Key> keys;
  alignas(inotify_event) char buffer[16384];
  bool overflow = false;
  for (ssize_t size = 0; (size = read(fd_.get(), buffer, sizeof(buffer))) > 0;) {
    for (const char* at = buffer; at < buffer + size;) {
      const auto* const event = reinterpret_cast<const inotify_event*>(at);
      at += sizeof(inotify_event) + event->len;
      overflow = overflow || (event->mask & IN_Q_OVERFLOW) != 0;
      if ((event->mask & (IN_IGNORED | IN_UNMOUNT)) != 0) {
        throw UsageError("--watch: " + path_.string() + " is gone");
      }
      if (event->len == 0) continue;
      if (const auto key = KeyOf(event->name)) keys.push_back(*key);
    }
  }
  if (overflow) keys = Present();
  return keys;
}

ResultLines::ResultLines(std::optional<std::filesystem::path> file, std::ostream& out)
    : file_(std::move(file)), out_(out) {
  if (!file_) return;
  ReadDone(file_->string() + ".1", &done_);
  ReadDone(*file_, &done_);
  std::ofstream append(*file_, std::ios::app);
  if (!append) throw UsageError("--results: cannot write " + file_->string() + ": " + LastError());
  // A crash may have left half a line: what follows must not be glued to it.
  std::ifstream existing(*file_, std::ios::binary | std::ios::ate);
  if (existing.tellg() > 0) {
    existing.seekg(-1, std::ios::end);
    if (existing.get() != '\n') append << '\n';
  }
}

bool ResultLines::Done(const PhotoFolder::Key& key) const {
  // A name may be any bytes; in the lines it is UTF-8.
  return done_.count({ToUtf8(key.first), key.second}) != 0;
}

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
  done_.emplace(ToUtf8(key.first), key.second);
}

BegunPhotos::BegunPhotos(const std::filesystem::path& file,
                         const std::vector<PhotoFolder::Key>& queue)
    : file_(open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666)) {
  std::map<PhotoFolder::Key, int> times;
  ForEachLine(file, [&](const PhotoFolder::Key& named, JsonObject* line) {
    times[named] = static_cast<int>(line->Int("times", 1, kMost));
  });
  for (const PhotoFolder::Key& key : queue) {
    const auto found = times.find({ToUtf8(key.first), key.second});
    if (found != times.end()) times_[key] = found->second;
  }
}

bool BegunPhotos::Begin(const PhotoFolder::Key& key) {
  if (times_[key] == kMost) return false;
  ++times_[key];
  std::string text;
  for (const auto& [photo, times] : times_) {
    JsonWriter line;
    line.BeginObject().Key("image").String(photo.first).Key("mtime_ns").Int(photo.second);
    text += line.Key("times").Int(times).EndObject().text() + '\n';
  }
  // In place: ext4 flushes a file that is made anew, and a card wears out. What a full disk loses
  // here is a guard, no result.
  const ssize_t written = pwrite(file_.get(), text.data(), text.size(), 0);
  if (written < 0 || ftruncate(file_.get(), written) != 0) errno = 0;
  return true;
}

void Watch(const std::filesystem::path& folder, const std::optional<std::filesystem::path>& results,
           const LineOf& line_of, std::ostream& out) {
  const Notifier notifier = Notifier::FromEnvironment();
  // Watched before it is listed: what comes in between is seen twice, and done once.
  PhotoFolder photos(folder);
  ResultLines lines(results, out);
  std::vector<PhotoFolder::Key> queue;
  std::optional<BegunPhotos> begun;
  if (results) {
    queue = photos.Present();
    queue.erase(std::remove_if(queue.begin(), queue.end(),
                               [&](const PhotoFolder::Key& key) { return lines.Done(key); }),
                queue.end());
    begun.emplace(results->string() + ".begun", queue);
  }
  notifier.Send("READY=1");
  while (!StopRequested()) {
    for (const PhotoFolder::Key& key : queue) {
      if (lines.Done(key)) continue;
      lines.Write(key, line_of(key, begun && !begun->Begin(key)));
      if (begun) begun->Finish(key);
      notifier.Send("WATCHDOG=1");
      // A look at the signals alone: a long queue must not hold up a stop.
      if (StopPending()) break;
    }
    queue = photos.Arrived(notifier.interval());
    notifier.Send("WATCHDOG=1");
  }
  notifier.Send("STOPPING=1");
}

}  // namespace edgepack
