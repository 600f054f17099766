#include "live.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <sstream>
#include <string_view>
#include <thread>
#include <unistd.h>
#include <utility>

#include <opencv2/core.hpp>
#include <opencv2/imgproc.hpp>

#include "common/json.h"
#include "frames.h"
#include "metrics.h"
#include "metrics_file.h"
#include "notify.h"
#include "platform/opencv/decode.h"
#include "platform/opencv/preprocess_buffers.h"
#include "platform/opencv/to_input.h"
#include "preview.h"
#include "report.h"
#include "result_sinks.h"
#include "sink.h"
#include "slot.h"
#include "source.h"
#include "source_state.h"
#include "watch.h"
#include "worker.h"

namespace edgepack {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr double kFirstMs = 0.001;
constexpr double kBucketsPerOctave = 12;
constexpr Milliseconds kListen(100);

double MsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

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
  Preparer(const Preprocessor& preprocessor, const TensorInfo& input, TrialTap* trial)
      : preprocessor_(preprocessor), input_(input), trial_(trial) {}

  /// With `shown` the picture stays, to be drawn on.
  void Prepare(Encoded* picture, bool shown, LiveFrame* frame) {
    frame->path = picture->path;
    frame->number = picture->number;
    frame->opening = picture->opening;
    frame->seen = picture->seen;
    frame->error.reset();
    frame->shared.reset();
    try {
      const Clock::time_point decode = Clock::now();
      const Decoded pixels = Decode(preprocessor_, picture);
      frame->decode_ms = MsSince(decode);
      frame->light = LightOf(pixels);
      const Clock::time_point preprocess = Clock::now();
      frame->tensor.resize(input_.bytes);
      ToInput(pixels, preprocessor_, {&input_, frame->tensor.data()}, &buffers_);
      frame->preprocess_ms = MsSince(preprocess);
      frame->geometry = preprocessor_.GeometryOf(pixels.size.height, pixels.size.width);
      if (shown) {
        const bool whole = pixels.bgr.size() == pixels.size;
        const Decoded all = whole ? pixels : Decode(preprocessor_.InFull(), picture);
        all.bgr.copyTo(frame->image);
      } else {
        frame->image.release();
      }
      if (trial_->Picks()) {
        frame->shared = picture->path
                            ? trial_->SharePhotoAt(*picture->path)
                            : trial_->Share(picture->bytes, picture->format, picture->size);
        if (frame->shared) trial_->AddThumbnail(pixels.bgr, &*frame->shared);
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
  TrialTap* trial_;
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

/// Throws UsageError if the source has ended, and nothing of what it gave was of use.
void NeedPictures(const Options& options, const Source& source, const SourceState& state,
                  std::int64_t used) {
  if (used > 0) return;
  const std::string name = NameOfSource(options);
  if (state.rejected() > 0) {
    throw UsageError(name + ": none of the pictures that came (" +
                     std::to_string(state.rejected()) + ") could be used: " + state.last_reason());
  }
  if (!source.barren()) return;
  const bool jpeg = options.frames == FrameFormat::kMjpeg;
  throw UsageError(name + ": " + source.Came(),
                   jpeg ? "--frames mjpeg takes JPEG pictures, one after the other"
                        : "see whether what writes it has failed");
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

void RunLive(const Options& options, const Preprocessor& preprocessor, const TensorInfo& input,
             bool whole, const LineOfFrame& line_of, Sight* sight, ResultSinks* sinks,
             TrialTap* trial, std::ostream& out, std::ostream& err) {
  const Notifier notifier = Notifier::FromEnvironment();
  // A camera's frames are worth nothing later.
  Slot<Encoded> encoded(options.newest || options.camera);
  Slot<LiveFrame> prepared;
  Slot<Line> lines;
  LatencyHistogram latency;
  std::int64_t broken = 0;
  std::atomic<bool> read{false};
  LineSink sink(options.out.value_or(SinkOptions()), out);
  FrameMetrics metrics(sight);
  Clips* const clips = sinks != nullptr ? sinks->clips() : nullptr;
  if (sinks != nullptr) metrics.Append([=] { return sinks->Metrics(); });
  std::optional<MetricsFile> metrics_file;
  if (options.metrics) metrics_file.emplace(*options.metrics, [&] { return metrics.Text(); });
  std::optional<Preview> preview;
  if (options.preview) preview.emplace(*options.preview, AccessOf(options), &metrics, err);
  SourceState state(NameOfSource(options), &metrics, err);
  Source source(options, &encoded, &state);

  Worker writing([&] {
    const Closing<Line> closing(&lines);
    // What asks for pictures does so after its line, when there may be no other for a while.
    std::optional<Milliseconds> limit;
    if (clips != nullptr) limit = kListen;
    for (Line line; !lines.ended();) {
      if (!lines.Take(&line, limit)) {
        if (clips != nullptr) sinks->Listen();
        continue;
      }
      sink.Write(line.text);
      if (sinks != nullptr) sinks->Write(line.text);
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
    Preparer preparer(preprocessor, input, trial);
    LiveFrame frame;
    for (Encoded picture; encoded.Take(&picture);) {
      const bool kept = clips != nullptr && clips->due();
      preparer.Prepare(&picture, whole || kept || (preview && preview->wanted()), &frame);
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
        state.Use();
        line.seen = frame.seen;
        trial->Look();
        if (clips != nullptr) clips->Show(frame.image);
        const Found& found = line_of(frame, &line.text);
        if (preview) preview->Show(frame.image, found, line.text);
      } else {
        ++broken;
        state.Reject(frame.error->message);
        sight->AddError(*frame.error);
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
  NeedPictures(options, source, state, latency.count());
}

}  // namespace edgepack
