#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "frames.h"
#include "options.h"

namespace edgepack {

/// An open video device, as the kernel has it: each function is one system call, and sets errno if
/// it fails. Tests have a recorded one.
class VideoDevice {
 public:
  VideoDevice() = default;
  virtual ~VideoDevice() = default;
  VideoDevice(const VideoDevice&) = delete;
  VideoDevice& operator=(const VideoDevice&) = delete;
  VideoDevice(VideoDevice&&) = delete;
  VideoDevice& operator=(VideoDevice&&) = delete;

  /// ioctl: 0, or -1.
  virtual int Control(std::uint32_t request, void* argument) = 0;
  /// mmap of a buffer: nothing if it fails.
  virtual void* Map(std::size_t bytes, std::int64_t offset) = 0;
  virtual void Unmap(void* memory, std::size_t bytes) = 0;
  /// Waits for a frame or a stop signal, at most `limit`: whether there is something to take, an
  /// error perhaps.
  virtual bool Wait(std::chrono::milliseconds limit) = 0;
};

/// /dev/video0. Nothing, and errno, if it cannot be opened.
std::unique_ptr<VideoDevice> OpenVideoDevice(const std::filesystem::path& path);

/// What a camera is asked for; it gives what it can.
struct CameraWish {
  std::optional<FrameFormat> format;  ///< kMjpeg or kYuyv; else the first of these that it has
  std::optional<ImageSize> size;
  std::optional<int> fps;
};

/// The frames of a V4L2 device, by its own buffers. Throws UsageError if it is no camera, or cannot
/// do what is asked for.
class Camera {
 public:
  /// `name` is the device's in messages.
  Camera(VideoDevice* device, std::string name, const CameraWish& wish);
  ~Camera();
  Camera(const Camera&) = delete;
  Camera& operator=(const Camera&) = delete;
  Camera(Camera&&) = delete;
  Camera& operator=(Camera&&) = delete;

  [[nodiscard]] FrameFormat format() const { return format_; }
  [[nodiscard]] ImageSize size() const { return size_; }
  /// Frames that were there before the newest, which alone is given.
  [[nodiscard]] std::int64_t dropped() const { return dropped_; }
  /// Frames that the driver gave without their data, or not all of it.
  [[nodiscard]] std::int64_t broken() const { return broken_; }
  /// The device has gone, or works no longer.
  [[nodiscard]] bool gone() const { return gone_; }

  /// The newest frame: a JPEG, or rows of YUYV without gaps. Waits for one, at most `limit`. False
  /// if none or a stop signal came, the frames were broken, or the device has gone.
  bool Next(std::string* frame, std::chrono::milliseconds limit);

 private:
  struct Buffer {
    void* memory;
    std::size_t bytes;
  };

  void Fail(const std::string& what) const;
  void ChooseFormat(const CameraWish& wish);
  void ChooseRate(int fps);
  void MapBuffers();
  void Release();
  [[nodiscard]] int Control(std::uint32_t request, void* argument) const;
  [[nodiscard]] bool Queue(std::uint32_t index) const;
  /// Reads a buffer that the driver has filled. False if it is no frame, or there is none.
  bool Take(bool* more, std::string* frame);
  bool Read(const Buffer& buffer, std::size_t used, std::string* frame);

  VideoDevice* device_;
  std::string name_;
  FrameFormat format_ = FrameFormat::kMjpeg;
  ImageSize size_;
  std::size_t stride_ = 0;
  std::vector<Buffer> buffers_;
  FrameSplitter splitter_;
  std::string taken_;  // memory for a frame
  std::int64_t dropped_ = 0;
  std::int64_t broken_ = 0;
  int errors_ = 0;  ///< in a row
  bool gone_ = false;
};

}  // namespace edgepack
