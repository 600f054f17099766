#include "source.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <glob.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include <edgepack/errors.h>

#include "common/fd.h"
#include "photos.h"
#include "watch.h"

namespace edgepack {
namespace {

using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kFirstRetry(100);
constexpr Milliseconds kLastRetry(30000);
constexpr std::size_t kReadBytes = std::size_t{1} << 16U;

std::string ErrnoText(int error) {
  return std::error_code(error, std::generic_category()).message();
}

[[noreturn]] void FailToRead(const char* flag, const std::string& path) {
  throw UsageError(std::string(flag) + ": " + path + ": " + ErrnoText(errno));
}

std::size_t BytesOf(FrameFormat format, ImageSize size) {
  const std::size_t pixels =
      static_cast<std::size_t>(size.width) * static_cast<std::size_t>(size.height);
  if (format == FrameFormat::kYuyv) return 2 * pixels;
  return format == FrameFormat::kGray ? pixels : 3 * pixels;
}

FrameSplitter SplitterOf(const Options& options) {
  if (*options.frames == FrameFormat::kMjpeg) return {};
  return FrameSplitter(BytesOf(*options.frames, *options.size));
}

bool IsPipe(int fd) {
  struct stat status = {};
  return fstat(fd, &status) == 0 && S_ISFIFO(status.st_mode);
}

std::string SecondsOf(Milliseconds time) { return std::to_string(time.count() / 1000) + " s"; }

}  // namespace

std::string NameOfSource(const Options& options) {
  if (options.camera) return "--camera: " + options.camera->string();
  if (options.images) return "--images: " + *options.images;
  return options.from ? "--from: " + options.from->string() : "--frames: the standard input";
}

Source::Source(const Options& options, Slot<Encoded>* to, SourceState* state)
    : options_(options), to_(to), state_(state), buffer_(kReadBytes), pause_(kFirstRetry) {}

void Source::Run() {
  if (options_.images) return ReadPaths();
  options_.camera ? ReadCameras() : ReadFrames();
}

bool Source::barren() const { return number_ == 0 && (wrong_ > 0 || !StopRequested()); }

std::string Source::Came() const {
  if (options_.camera) return "no picture came";
  if (options_.images) return "no path came";
  if (bytes_ == 0) return "nothing came";
  return "nothing of the " + std::to_string(bytes_) + " bytes that came is a picture";
}

/// Gives what next_ holds.
bool Source::Give() {
  next_.number = number_++;
  next_.opening = openings_;
  next_.seen = std::chrono::steady_clock::now();
  return to_->Put(&next_);
}

bool Source::GivePath(std::string path) {
  next_.path = std::move(path);
  return Give();
}

/// The bytes of a frame are in next_.
bool Source::GiveFrame(FrameFormat format, const std::optional<ImageSize>& size) {
  pause_ = kFirstRetry;
  frames_silence_.Reset();
  state_->Find();
  next_.format = format;
  next_.size = size;
  return Give();
}

void Source::ReadPaths() {
  const std::string& where = *options_.images;
  if (where == "-") return ReadPathLines();
  std::vector<std::filesystem::path> photos;
  std::error_code none;
  if (std::filesystem::is_directory(where, none)) {
    photos = PhotosIn("--images", where);
  } else {
    glob_t found = {};
    const int status = glob(where.c_str(), 0, nullptr, &found);
    for (std::size_t i = 0; status == 0 && i < found.gl_pathc; ++i) {
      // Whatever it is called: the pattern says so.
      if (IsPlainFile(found.gl_pathv[i])) photos.emplace_back(found.gl_pathv[i]);
    }
    globfree(&found);
  }
  if (photos.empty()) {
    throw UsageError("--images: no photo is there: " + where,
                     "files that end in .jpg, .jpeg or .png; no pipes, no links that lead nowhere");
  }
  for (const std::filesystem::path& photo : photos) {
    if (!GivePath(photo.string())) return;
  }
}

void Source::ReadPathLines() {
  std::string lines;
  while (!StopRequested()) {
    if (!WaitFor(STDIN_FILENO, std::nullopt)) continue;
    const ssize_t size = Retry([&] { return read(STDIN_FILENO, buffer_.data(), buffer_.size()); });
    if (size < 0) FailToRead("--images", "stdin");
    lines.append(buffer_.data(), static_cast<std::size_t>(size));
    if (size == 0 && !lines.empty()) lines += '\n';
    for (std::size_t end = 0; (end = lines.find('\n')) != std::string::npos;) {
      std::string path = lines.substr(0, end);
      lines.erase(0, end + 1);
      if (!path.empty() && path.back() == '\r') path.pop_back();
      if (!path.empty() && !GivePath(path)) return;
    }
    if (size == 0) return;
  }
}

/// Until it is opened again: longer each time that nothing came.
void Source::Pause() {
  WaitFor(-1, options_.at_end == AtEnd::kWait ? kLook : pause_);
  pause_ = std::min(2 * pause_, kLastRetry);
}

void Source::ReadFrames() {
  if (!options_.from) {
    ReadFrom(STDIN_FILENO);
    return;
  }
  bool opened = false;
  for (bool more = true; more && !StopRequested();) {
    const Fd own(open(options_.from->c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
    if (own) {
      CheckPipe(own.get());
      opened = true;
      const std::int64_t before = number_;
      more = ReadFrom(own.get());
      if (options_.at_end == AtEnd::kExit || StopRequested()) return;
      if (options_.at_end == AtEnd::kWait) continue;
      if (number_ == before) state_->Lose("gave no frame before its end; it is opened again");
    } else {
      // Where a pipe was there can be one again; a name that never was one is a mistake.
      if (options_.at_end != AtEnd::kRetry && !opened) {
        FailToRead("--from", options_.from->string());
      }
      state_->Lose("cannot be opened: " + ErrnoText(errno) + "; it is tried again");
    }
    if (more) Pause();
  }
}

/// To wait for the next writer there has to be something that can have one.
void Source::CheckPipe(int fd) const {
  if (options_.at_end == AtEnd::kWait && !IsPipe(fd)) {
    throw UsageError("--at-end wait: " + options_.from->string() + " is no named pipe",
                     "make one with mkfifo, or use --at-end retry");
  }
}

/// Whether the name leads no longer to what is open.
bool Source::IsReplaced(int fd) const {
  struct stat now = {};
  struct stat then = {};
  if (!options_.from || fstat(fd, &then) != 0) return false;
  if (stat(options_.from->c_str(), &now) != 0) return true;
  return now.st_dev != then.st_dev || now.st_ino != then.st_ino;
}

/// Until it ends. False if nobody wants more.
bool Source::ReadFrom(int fd) {
  ++openings_;
  FrameSplitter splitter = SplitterOf(options_);
  splitter.Reserve(buffer_.size());
  bool more = ReadBytes(fd, &splitter);
  wrong_ += splitter.broken();
  splitter.End();
  while (more && splitter.Next(&next_.bytes)) more = GiveFrame(*options_.frames, options_.size);
  while (splitter.Next(&next_.bytes)) {  // nobody wants more: what is broken is counted
  }
  broken_ += splitter.broken();
  return more;
}

bool Source::ReadBytes(int fd, FrameSplitter* splitter) {
  // One that can be asked at any time, and whose name may come to mean another.
  const bool named_pipe = options_.from && IsPipe(fd);
  bytes_silence_.Reset();
  frames_silence_.Reset();
  while (!StopRequested()) {
    const bool ready = WaitFor(fd, kLook);
    if (StopRequested()) break;
    const bool silent = bytes_silence_.Ends();
    if (silent) state_->Lose("gives nothing, for " + SecondsOf(bytes_silence_.length()));
    if (!ready && !named_pipe) continue;
    const ssize_t size = read(fd, buffer_.data(), buffer_.size());
    if (size > 0) {
      if (!TakeBytes({buffer_.data(), static_cast<std::size_t>(size)}, splitter)) return false;
    } else if (size < 0 && (errno == EAGAIN || errno == EINTR)) {
      // It has a writer that says nothing; the next may write to what has its name now.
      if (silent && IsReplaced(fd)) return true;
    } else if (ready || size < 0) {
      return true;  // a device that is gone, too
    } else {
      state_->Lose("has no writer");
      // Nobody can find it any more.
      if (IsReplaced(fd)) return true;
    }
  }
  return true;
}

bool Source::TakeBytes(std::string_view bytes, FrameSplitter* splitter) {
  bytes_ += static_cast<std::int64_t>(bytes.size());
  bytes_silence_.Reset();
  splitter->Feed(bytes);
  while (splitter->Next(&next_.bytes)) {
    if (!GiveFrame(*options_.frames, options_.size)) return false;
  }
  if (frames_silence_.Ends()) {
    state_->Lose("gives nothing that is a frame, for " + SecondsOf(frames_silence_.length()));
  }
  return true;
}

void Source::ReadCameras() {
  const bool retry = options_.at_end == AtEnd::kRetry;
  for (bool more = true; more && !StopRequested();) {
    const std::unique_ptr<VideoDevice> device = OpenVideoDevice(*options_.camera);
    if (!device) {
      if (!retry) FailToRead("--camera", options_.camera->string());
      state_->Lose("cannot be opened: " + ErrnoText(errno) + "; it is tried again");
    } else {
      try {
        more = ReadCamera(device.get());
      } catch (const UsageError& error) {
        if (!retry || number_ == 0) throw;  // plugged in again, it may not be ready at once
        state_->Lose("does not work: " + error.message);
      }
      if (!retry) return;
    }
    if (more && !StopRequested()) Pause();
  }
}

/// Until it goes away. False if nobody wants more.
bool Source::ReadCamera(VideoDevice* device) {
  ++openings_;
  Camera camera(device, options_.camera->string(), {options_.frames, options_.size, options_.fps});
  bool more = true;
  frames_silence_.Reset();
  while (more && !camera.gone() && !StopRequested()) {
    if (camera.Next(&next_.bytes, kLook)) {
      more = GiveFrame(camera.format(), camera.size());
    } else if (frames_silence_.Ends()) {
      state_->Lose("gives no frame, for " + SecondsOf(frames_silence_.length()));
      if (options_.at_end == AtEnd::kRetry) break;  // begun again, a driver that hangs may go on
    }
  }
  if (camera.gone()) state_->Lose("is gone");
  broken_ += camera.broken();
  wrong_ += camera.broken();
  dropped_ += camera.dropped();
  return more;
}

}  // namespace edgepack
