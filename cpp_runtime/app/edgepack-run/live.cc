#include "live.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>
#include <exception>
#include <fcntl.h>
#include <glob.h>
#include <memory>
#include <poll.h>
#include <sstream>
#include <string_view>
#include <sys/stat.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>

#include <opencv2/core.hpp>
#include <opencv2/imgproc.hpp>

#include "camera.h"
#include "common/fd.h"
#include "common/json.h"
#include "frames.h"
#include "metrics.h"
#include "notify.h"
#include "platform/opencv/decode.h"
#include "platform/opencv/preprocess_buffers.h"
#include "preview.h"
#include "report.h"
#include "sink.h"
#include "slot.h"
#include "watch.h"
#include "worker.h"

namespace edgepack {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kFirstRetry(100);
constexpr Milliseconds kLastRetry(30000);
constexpr std::size_t kReadBytes = std::size_t{1} << 16U;
constexpr double kFirstMs = 0.001;
constexpr double kBucketsPerOctave = 12;

double MsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// A picture as it came: a photo's path, or a frame's bytes. Of a source all are of one kind.
struct Encoded {
  std::optional<std::string> path;
  std::int64_t number = 0;
  Clock::time_point seen;
  FrameFormat format = FrameFormat::kMjpeg;
  std::optional<ImageSize> size;  ///< of pixels; what a JPEG must have, if anything
  std::string bytes;
};

/// Waits for bytes or a stop signal, at most `limit`. Whether there are bytes, or an end of them.
bool WaitFor(int fd, std::optional<Milliseconds> limit) {
  pollfd wanted = {fd, POLLIN, 0};
  timespec wait = {};
  if (limit) {
    wait.tv_sec = static_cast<time_t>(limit->count() / 1000);
    wait.tv_nsec = static_cast<decltype(wait.tv_nsec)>(limit->count() % 1000) * 1000000;
  }
  const sigset_t mask = StopMask();
  return ppoll(&wanted, fd < 0 ? 0 : 1, limit ? &wait : nullptr, &mask) > 0;
}

[[noreturn]] void FailToRead(const char* flag, const std::string& path) {
  const std::string problem = std::error_code(errno, std::generic_category()).message();
  throw UsageError(std::string(flag) + ": " + path + ": " + problem);
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

/// Where pictures come from. Runs on a thread of its own.
class Source {
 public:
  Source(const Options& options, Slot<Encoded>* to) : options_(options), to_(to) {}

  void Run() {
    if (options_.images) return ReadPaths();
    options_.camera ? ReadCameras() : ReadFrames();
  }
  /// Frames that were none. To be asked when it has run.
  [[nodiscard]] std::int64_t broken() const { return broken_; }
  /// Frames that a camera had before its newest.
  [[nodiscard]] std::int64_t dropped() const { return dropped_; }

 private:
  /// Gives what next_ holds.
  bool Give() {
    next_.number = number_++;
    next_.seen = Clock::now();
    return to_->Put(&next_) && !StopPending();
  }

  bool GivePath(const std::string& path) {
    next_.path = path;
    return Give();
  }

  /// The bytes of a frame are in next_.
  bool GiveFrame(FrameFormat format, const std::optional<ImageSize>& size) {
    next_.format = format;
    next_.size = size;
    return Give();
  }

  void ReadPaths() {
    const std::string& where = *options_.images;
    if (where == "-") return ReadPathLines();
    std::vector<std::filesystem::path> photos;
    std::error_code none;
    if (std::filesystem::is_directory(where, none)) {
      photos = PhotosIn(where);
    } else {
      glob_t found = {};
      const int status = glob(where.c_str(), 0, nullptr, &found);
      for (std::size_t i = 0; status == 0 && i < found.gl_pathc; ++i) {
        photos.emplace_back(found.gl_pathv[i]);
      }
      globfree(&found);
    }
    if (photos.empty()) throw UsageError("--images: no photo is there: " + where);
    for (const std::filesystem::path& photo : photos) {
      if (!GivePath(photo.string())) return;
    }
  }

  void ReadPathLines() {
    std::string lines;
    char buffer[4096];
    while (!StopRequested()) {
      if (!WaitFor(STDIN_FILENO, std::nullopt)) continue;
      const ssize_t size = Retry([&] { return read(STDIN_FILENO, buffer, sizeof(buffer)); });
      if (size < 0) FailToRead("--images", "stdin");
      lines.append(buffer, static_cast<std::size_t>(size));
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

  void ReadFrames() {
    Milliseconds pause = kFirstRetry;
    for (bool more = true; more;) {
      const std::int64_t before = number_;
      Fd own;
      if (options_.from) {
        own = Fd(open(options_.from->c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
        if (!own && options_.at_end != AtEnd::kRetry) {
          FailToRead("--from", options_.from->string());
        }
        CheckPipe(own.get());
      }
      if (!options_.from || own) more = ReadFrom(options_.from ? own.get() : STDIN_FILENO);
      if (StopRequested() || options_.at_end == AtEnd::kExit) return;
      if (options_.at_end == AtEnd::kRetry) {
        pause = number_ != before ? kFirstRetry : std::min(2 * pause, kLastRetry);
        WaitFor(-1, pause);
        more = !StopRequested();
      }
    }
  }

  /// To wait for the next writer there has to be something that can have one.
  void CheckPipe(int fd) const {
    struct stat status = {};
    if (options_.at_end == AtEnd::kWait && fstat(fd, &status) == 0 && !S_ISFIFO(status.st_mode)) {
      throw UsageError("--at-end wait: " + options_.from->string() + " is no named pipe",
                       "make one with mkfifo, or use --at-end retry");
    }
  }

  /// Until it ends. False if nobody wants more.
  bool ReadFrom(int fd) {
    FrameSplitter splitter = SplitterOf(options_);
    splitter.Reserve(buffer_.size());
    bool more = true;
    const auto give_frames = [&] {
      while (more && splitter.Next(&next_.bytes)) {
        more = GiveFrame(*options_.frames, options_.size);
      }
    };
    while (more && !StopRequested()) {
      // A pipe that nobody has opened for writing yet is at its end without having begun.
      if (!WaitFor(fd, std::nullopt)) continue;
      const ssize_t size = read(fd, buffer_.data(), buffer_.size());
      if (size < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (size <= 0) break;  // a device that is gone, too
      splitter.Feed({buffer_.data(), static_cast<std::size_t>(size)});
      give_frames();
    }
    splitter.End();
    give_frames();
    while (splitter.Next(&next_.bytes)) {  // nobody wants more: what is broken is counted
    }
    broken_ += splitter.broken();
    return more;
  }

  void ReadCameras() {
    Milliseconds pause = kFirstRetry;
    for (bool more = true; more && !StopRequested();) {
      const std::int64_t before = number_;
      const std::unique_ptr<VideoDevice> device = OpenVideoDevice(*options_.camera);
      const bool retry = options_.at_end == AtEnd::kRetry;
      if (!device && !retry) FailToRead("--camera", options_.camera->string());
      try {
        if (device) more = ReadCamera(device.get());
      } catch (const UsageError&) {
        if (!retry || number_ == 0) throw;  // plugged in again, it may not be ready at once
      }
      if (!retry) return;
      pause = number_ != before ? kFirstRetry : std::min(2 * pause, kLastRetry);
      if (more) WaitFor(-1, pause);
    }
  }

  /// Until it goes away. False if nobody wants more.
  bool ReadCamera(VideoDevice* device) {
    Camera camera(device, options_.camera->string(),
                  {options_.frames, options_.size, options_.fps});
    bool more = true;
    while (more && !camera.gone() && !StopRequested()) {
      if (camera.Next(&next_.bytes)) more = GiveFrame(camera.format(), camera.size());
    }
    broken_ += camera.broken();
    dropped_ += camera.dropped();
    return more;
  }

  const Options& options_;
  Slot<Encoded>* to_;
  std::vector<char> buffer_ = std::vector<char>(kReadBytes);
  Encoded next_;
  std::int64_t number_ = 0;
  std::int64_t broken_ = 0;
  std::int64_t dropped_ = 0;
};

/// A frame of pixels as CV_8UC3 in BGR: in `memory`, or in the frame's own bytes.
cv::Mat PixelsOf(FrameFormat format, ImageSize size, std::string* bytes, cv::Mat* memory) {
  const int kind = format == FrameFormat::kGray ? CV_8UC1 : CV_8UC3;
  if (format == FrameFormat::kBgr24) return {size.height, size.width, kind, bytes->data()};
  memory->create(size.height, size.width, CV_8UC3);
  if (format == FrameFormat::kYuyv) {
    YuyvToBgr(*bytes, size, memory->data);
  } else if (format == FrameFormat::kRgb24) {
    const cv::Mat rgb(size.height, size.width, kind, bytes->data());
    cv::cvtColor(rgb, *memory, cv::COLOR_RGB2BGR);
  } else {
    auto* to = memory->ptr<std::uint8_t>();
    for (const char gray : *bytes) to = std::fill_n(to, 3, static_cast<std::uint8_t>(gray));
  }
  return *memory;
}

/// Makes tensors of pictures. Its memory stays, so that a frame like the one before takes none.
class Preparer {
 public:
  Preparer(const Preprocessor& preprocessor, const TensorInfo& input)
      : preprocessor_(preprocessor), input_(input) {}

  /// With `shown` the picture stays, to be drawn on.
  void Prepare(Encoded* picture, bool shown, LiveFrame* frame) {
    frame->path = picture->path;
    frame->number = picture->number;
    frame->seen = picture->seen;
    frame->error.reset();
    frame->image.release();
    try {
      const Clock::time_point decode = Clock::now();
      const Decoded pixels = Decode(preprocessor_, picture);
      frame->decode_ms = MsSince(decode);
      const Clock::time_point preprocess = Clock::now();
      frame->tensor.resize(input_.bytes);
      ToInput(pixels, preprocessor_, {&input_, frame->tensor.data()}, &buffers_);
      frame->preprocess_ms = MsSince(preprocess);
      frame->geometry = preprocessor_.GeometryOf(pixels.size.height, pixels.size.width);
      if (shown) {
        const bool whole = pixels.bgr.size() == pixels.size;
        const Decoded all = whole ? pixels : Decode(preprocessor_.InFull(), picture);
        frame->image = all.bgr.clone();
      }
    } catch (const Error& error) {
      frame->error = error;
    }
  }

 private:
  Decoded Decode(const Preprocessor& preprocessor, Encoded* picture) {
    if (picture->path) return preprocessor.Decode(*picture->path);
    const std::optional<ImageSize>& size = picture->size;
    if (picture->format != FrameFormat::kMjpeg) {
      const std::int64_t pixels = std::int64_t{size->width} * size->height;
      if (pixels > preprocessor.spec().max_pixels) {
        throw ImageError("frame of " + std::to_string(pixels) + " pixels");
      }
      return PixelsOf(picture->format, *size, &picture->bytes, &decoded_);
    }
    Decoded frame = preprocessor.Decode(picture->bytes, "the frame", &decoded_);
    if (size && frame.size != cv::Size(size->width, size->height)) {
      throw ImageError("frame of " + std::to_string(frame.size.width) + " x " +
                       std::to_string(frame.size.height) + " pixels");
    }
    return frame;
  }

  const Preprocessor& preprocessor_;
  const TensorInfo& input_;
  PreprocessBuffers buffers_;
  cv::Mat decoded_;
};

/// Closes a slot at the end of a scope, however that ends.
template <typename T>
class Closing {
 public:
  explicit Closing(Slot<T>* slot) : slot_(slot) {}
  ~Closing() { slot_->Close(); }
  Closing(const Closing&) = delete;
  Closing& operator=(const Closing&) = delete;
  Closing(Closing&&) = delete;
  Closing& operator=(Closing&&) = delete;

 private:
  Slot<T>* slot_;
};

/// Wakes the reader at the end of a scope, which may wait for bytes that never come.
class WakingReader {
 public:
  explicit WakingReader(const std::atomic<bool>* ended) : ended_(ended) {}
  ~WakingReader() {
    if (!*ended_) kill(getpid(), SIGTERM);
  }
  WakingReader(const WakingReader&) = delete;
  WakingReader& operator=(const WakingReader&) = delete;
  WakingReader(WakingReader&&) = delete;
  WakingReader& operator=(WakingReader&&) = delete;

 private:
  const std::atomic<bool>* ended_;
};

/// Sets a flag at the end of a scope.
class Setting {
 public:
  explicit Setting(std::atomic<bool>* flag) : flag_(flag) {}
  ~Setting() { *flag_ = true; }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;
  Setting(Setting&&) = delete;
  Setting& operator=(Setting&&) = delete;

 private:
  std::atomic<bool>* flag_;
};

struct Line {
  std::string text;
  std::int64_t broken = 0;                ///< pictures by then
  std::optional<Clock::time_point> seen;  ///< of a picture that was none, nothing
};

std::string EndLine(std::int64_t broken, std::int64_t dropped, std::int64_t lost,
                    const LatencyHistogram& latency) {
  JsonWriter json;
  json.BeginObject().Key("end").BeginObject().Key("frames").Int(latency.count());
  json.Key("broken").Int(broken).Key("dropped").Int(dropped).Key("lost").Int(lost);
  json.Key("latency_ms").BeginObject().Key("p50").Number(latency.Percentile(0.5));
  json.Key("p90").Number(latency.Percentile(0.9)).Key("p99").Number(latency.Percentile(0.99));
  json.Key("max").Number(latency.max()).EndObject();
  return json.EndObject().EndObject().text() + "\n";
}

}  // namespace

void LatencyHistogram::Add(double ms) {
  const double step = std::max(0.0, std::floor(kBucketsPerOctave * std::log2(ms / kFirstMs)) + 1);
  const auto bucket = static_cast<std::size_t>(std::min(step, 40 * kBucketsPerOctave));
  if (counts_.empty()) counts_.resize(static_cast<std::size_t>(40 * kBucketsPerOctave) + 1);
  ++counts_[bucket];
  ++count_;
  max_ms_ = std::max(max_ms_, ms);
}

double LatencyHistogram::Percentile(double share) const {
  const double wanted = share * static_cast<double>(count_);
  std::int64_t seen = 0;
  for (std::size_t bucket = 0; bucket < counts_.size(); ++bucket) {
    seen += counts_[bucket];
    if (seen > 0 && static_cast<double>(seen) >= wanted) {
      return std::min(max_ms_,
                      kFirstMs * std::exp2(static_cast<double>(bucket) / kBucketsPerOctave));
    }
  }
  return max_ms_;
}

void ToInput(const Decoded& picture, const Preprocessor& preprocessor, const TensorView& input,
             PreprocessBuffers* buffers) {
  const cv::Mat resized = preprocessor.Resized(picture, buffers);
  if (!preprocessor.Fits(resized, *input.info)) {
    const TensorInfo info = preprocessor.InfoOf(resized);
    throw ModelInputError(
        "the preprocessing makes " + std::string(Name(info.dtype)) + " " + ToString(info.shape) +
            ", input '" + input.info->name + "' is " + std::string(Name(input.info->dtype)) + " " +
            ToString(input.info->shape),
        "set resize and crop in the [preprocess] table so that they fit every photo");
  }
  preprocessor.ToTensor(resized, input.data);
}

void RunLive(const Options& options, const Preprocessor& preprocessor, const TensorInfo& input,
             const LineOfFrame& line_of, std::ostream& out, std::ostream& err) {
  const Notifier notifier = Notifier::FromEnvironment();
  // A camera's frames are worth nothing later.
  Slot<Encoded> encoded(options.newest || options.camera);
  Slot<LiveFrame> prepared;
  Slot<Line> lines;
  Source source(options, &encoded);
  LatencyHistogram latency;
  std::int64_t broken = 0;
  std::atomic<bool> read{false};
  LineSink sink(options.out.value_or(SinkOptions()), out);
  FrameMetrics metrics;
  std::optional<Preview> preview;
  if (options.preview) preview.emplace(*options.preview, AccessOf(options), &metrics, err);

  Worker writing([&] {
    const Closing<Line> closing(&lines);
    for (Line line; lines.Take(&line);) {
      sink.Write(line.text);
      metrics.Count(line.broken, encoded.dropped(), sink.lost());
      if (!line.seen) continue;
      const double ms = MsSince(*line.seen);
      latency.Add(ms);
      metrics.Add(ms / 1000);
    }
  });
  Worker reading([&] {
    const Closing<Encoded> closing(&encoded);
    const Setting done(&read);  // before the others see the end
    source.Run();
  });
  Worker preparing([&] {
    const Closing<Encoded> no_more(&encoded);
    const Closing<LiveFrame> closing(&prepared);
    Preparer preparer(preprocessor, input);
    LiveFrame frame;
    for (Encoded picture; encoded.Take(&picture);) {
      preparer.Prepare(&picture, preview && preview->wanted(), &frame);
      if (!prepared.Put(&frame)) return;
    }
  });
  notifier.Send("READY=1");
  {
    const WakingReader waking(&read);
    const Closing<Encoded> no_frames(&encoded);
    const Closing<LiveFrame> no_more(&prepared);
    const Closing<Line> closing(&lines);
    LiveFrame frame;
    Line line;
    while (!prepared.ended()) {
      const bool any = prepared.Take(&frame, notifier.interval());
      notifier.Send("WATCHDOG=1");
      if (!any) continue;
      line.seen.reset();
      if (!frame.error) {
        line.seen = frame.seen;
        const Found& found = line_of(frame, &line.text);
        if (preview) preview->Show(frame.image, found, line.text);
      } else {
        ++broken;
        if (!frame.path) continue;
        Report about;
        about.image = frame.path;
        std::ostringstream text;
        PrintJsonError(*frame.error, text, about);
        line.text = text.str();
      }
      line.broken = broken;
      if (!lines.Put(&line)) break;
    }
  }
  notifier.Send("STOPPING=1");
  reading.Join();
  preparing.Join();
  writing.Join();
  // A signal that was only looked at is followed by now: it must not come once more.
  if (StopPending()) WaitFor(-1, Milliseconds(0));
  sink.Write(EndLine(broken + source.broken(), encoded.dropped() + source.dropped(), sink.lost(),
                     latency));
}

}  // namespace edgepack
