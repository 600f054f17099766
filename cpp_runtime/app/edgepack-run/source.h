#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "camera.h"
#include "frames.h"
#include "options.h"
#include "slot.h"
#include "source_state.h"

namespace edgepack {

/// A picture as it came: a photo's path, or a frame's bytes. Of a source all are of one kind.
struct Encoded {
  std::optional<std::string> path;
  std::int64_t number = 0;
  std::int64_t opening = 0;  ///< which opening of the source it is from
  std::chrono::steady_clock::time_point seen;
  FrameFormat format = FrameFormat::kMjpeg;
  std::optional<ImageSize> size;  ///< of pixels; what a JPEG must have, if anything
  std::string bytes;
};

/// "--camera: /dev/video0": what pictures come from, in messages.
std::string NameOfSource(const Options& options);

/// Where the pictures of --images, --frames and --camera come from. Runs on a thread of its own.
class Source {
 public:
  /// A source is looked at this often; it is ill when it gives nothing for kSilent.
  static constexpr std::chrono::milliseconds kLook{1000};
  static constexpr std::chrono::milliseconds kSilent{10000};

  Source(const Options& options, Slot<Encoded>* to, SourceState* state);

  /// Until it ends, or a stop signal comes. Throws UsageError.
  void Run();
  /// Frames that were none. To be asked when it has run, as all that follow.
  [[nodiscard]] std::int64_t broken() const { return broken_; }
  /// Frames that a camera had before its newest.
  [[nodiscard]] std::int64_t dropped() const { return dropped_; }
  /// Pictures that were given.
  [[nodiscard]] std::int64_t given() const { return number_; }
  /// Whether what came was not cut off by a stop signal, and yet held no picture.
  [[nodiscard]] bool barren() const;
  /// What came, in words.
  [[nodiscard]] std::string Came() const;

 private:
  bool Give();
  bool GivePath(std::string path);
  bool GiveFrame(FrameFormat format, const std::optional<ImageSize>& size);
  void ReadPaths();
  void ReadPathLines();
  void ReadFrames();
  bool ReadFrom(int fd);
  bool ReadBytes(int fd, FrameSplitter* splitter);
  bool TakeBytes(std::string_view bytes, FrameSplitter* splitter);
  void ReadCameras();
  bool ReadCamera(VideoDevice* device);
  void CheckPipe(int fd) const;
  [[nodiscard]] bool IsReplaced(int fd) const;
  void Pause();

  const Options& options_;
  Slot<Encoded>* to_;
  SourceState* state_;
  std::vector<char> buffer_;
  Encoded next_;
  std::chrono::milliseconds pause_;  ///< before it is opened again
  Silence bytes_silence_{kSilent};
  Silence frames_silence_{kSilent};
  std::int64_t number_ = 0;
  std::int64_t openings_ = 0;
  std::int64_t broken_ = 0;
  std::int64_t wrong_ = 0;  ///< broken, and not by a stop signal
  std::int64_t dropped_ = 0;
  std::int64_t bytes_ = 0;
};

}  // namespace edgepack
