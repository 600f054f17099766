// The kernel's documentation: userspace-api/media/v4l, "capture example" and "Streaming I/O".
#include "camera.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <linux/videodev2.h>
#include <string_view>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include <edgepack/errors.h>

#include "common/fd.h"
#include "frames.h"
#include "watch.h"

namespace edgepack {
namespace {

/// One that is read, one that is filled, one that waits, and one for a late reader.
constexpr std::uint32_t kBuffers = 4;

/// A driver that has failed this often in a row does not go on.
constexpr int kMostErrors = 100;

constexpr std::uint32_t kCapture = V4L2_BUF_TYPE_VIDEO_CAPTURE;

class KernelDevice : public VideoDevice {
 public:
  explicit KernelDevice(Fd fd) : fd_(std::move(fd)) {}

  int Control(std::uint32_t request, void* argument) override {
    return Call(ioctl, fd_.get(), request, argument);
  }
  void* Map(std::size_t bytes, std::int64_t offset) override {
    void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(),
                              static_cast<off_t>(offset));
    return memory == MAP_FAILED ? nullptr : memory;
  }
  void Unmap(void* memory, std::size_t bytes) override { munmap(memory, bytes); }
  bool Wait(std::chrono::milliseconds limit) override { return WaitFor(fd_.get(), limit); }

 private:
  /// glibc takes an unsigned long, musl an int.
  template <typename Request>
  static int Call(int (*function)(int, Request, ...), int fd, std::uint32_t request,
                  void* argument) {
    return function(fd, static_cast<Request>(request), argument);
  }

  Fd fd_;
};

std::string Reason(int error) { return std::error_code(error, std::generic_category()).message(); }

/// The names of formats that a camera may be asked for.
struct FormatName {
  FrameFormat format;
  std::uint32_t fourcc;
  const char* name;
};
constexpr std::array<FormatName, 3> kFormats = {{{FrameFormat::kMjpeg, V4L2_PIX_FMT_MJPEG, "mjpeg"},
                                                 {FrameFormat::kMjpeg, V4L2_PIX_FMT_JPEG, "mjpeg"},
                                                 {FrameFormat::kYuyv, V4L2_PIX_FMT_YUYV, "yuyv"}}};

}  // namespace

std::unique_ptr<VideoDevice> OpenVideoDevice(const std::filesystem::path& path) {
  Fd fd(Retry([&] { return open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC); }));
  if (!fd) return nullptr;
  return std::make_unique<KernelDevice>(std::move(fd));
}

Camera::Camera(VideoDevice* device, std::string name, const CameraWish& wish)
    : device_(device), name_(std::move(name)) {
  v4l2_capability able = {};
  if (Control(VIDIOC_QUERYCAP, &able) < 0) Fail("is no video device");
  const std::uint32_t can =
      (able.capabilities & V4L2_CAP_DEVICE_CAPS) != 0U ? able.device_caps : able.capabilities;
  if ((can & V4L2_CAP_VIDEO_CAPTURE) == 0U || (can & V4L2_CAP_STREAMING) == 0U) {
    throw UsageError("--camera: " + name_ + " gives no pictures",
                     "a camera has several devices; `v4l2-ctl --list-devices` tells them");
  }
  ChooseFormat(wish);
  if (wish.fps) ChooseRate(*wish.fps);
  try {
    MapBuffers();
    std::uint32_t type = kCapture;
    if (Control(VIDIOC_STREAMON, &type) < 0) Fail("cannot begin");
  } catch (...) {
    Release();
    throw;
  }
}

Camera::~Camera() { Release(); }

void Camera::Release() {
  std::uint32_t type = kCapture;
  (void)Control(VIDIOC_STREAMOFF, &type);
  for (const Buffer& buffer : buffers_) device_->Unmap(buffer.memory, buffer.bytes);
  buffers_.clear();
  v4l2_requestbuffers none = {};
  none.type = kCapture;
  none.memory = V4L2_MEMORY_MMAP;
  (void)Control(VIDIOC_REQBUFS, &none);
}

/// Throws UsageError with what errno says.
void Camera::Fail(const std::string& what) const {
  const int error = errno;
  throw UsageError("--camera: " + name_ + " " + what + ": " + Reason(error),
                   error == EBUSY ? "another program has it" : "");
}

int Camera::Control(std::uint32_t request, void* argument) const {
  return Retry([&] { return device_->Control(request, argument); });
}

void Camera::ChooseFormat(const CameraWish& wish) {
  v4l2_format set = {};
  set.type = kCapture;
  if (Control(VIDIOC_G_FMT, &set) < 0) Fail("has no format");
  for (const FormatName& one : kFormats) {
    if (wish.format && *wish.format != one.format) continue;
    v4l2_format asked = set;
    v4l2_pix_format& pixels = asked.fmt.pix;
    pixels.pixelformat = one.fourcc;
    pixels.field = V4L2_FIELD_NONE;
    pixels.bytesperline = 0;
    if (wish.size) {
      pixels.width = static_cast<std::uint32_t>(wish.size->width);
      pixels.height = static_cast<std::uint32_t>(wish.size->height);
    }
    if (Control(VIDIOC_S_FMT, &asked) < 0) {
      if (errno == EINVAL) continue;
      Fail("takes no format");
    }
    if (pixels.pixelformat != one.fourcc) continue;
    constexpr std::uint32_t kMostSide = 65535;
    if (pixels.width < 1 || pixels.height < 1 || pixels.width > kMostSide ||
        pixels.height > kMostSide) {
      throw UsageError("--camera: " + name_ + " has pictures of " + std::to_string(pixels.width) +
                       " x " + std::to_string(pixels.height) + " pixels");
    }
    format_ = one.format;
    size_ = {static_cast<int>(pixels.width), static_cast<int>(pixels.height)};
    stride_ = std::max<std::size_t>(pixels.bytesperline, std::size_t{2} * pixels.width);
    if (wish.size && (size_.width != wish.size->width || size_.height != wish.size->height)) {
      throw UsageError("--camera: " + name_ + " has no " + one.name + " of " +
                           std::to_string(wish.size->width) + "x" +
                           std::to_string(wish.size->height),
                       "the nearest is --size " + std::to_string(size_.width) + "x" +
                           std::to_string(size_.height));
    }
    return;
  }
  throw UsageError("--camera: " + name_ + " has neither mjpeg nor yuyv, or not the one asked for",
                   "`v4l2-ctl --list-formats` tells what it has; cameras of libcamera are read by "
                   "rpicam-vid and --frames mjpeg");
}

/// Cameras that cannot be asked, and those that take the nearest, go on with what they have.
void Camera::ChooseRate(int fps) {
  v4l2_streamparm set = {};
  set.type = kCapture;
  set.parm.capture.timeperframe = {1, static_cast<std::uint32_t>(fps)};
  if (Control(VIDIOC_S_PARM, &set) < 0 && errno != ENOTTY && errno != EINVAL) {
    Fail("takes no --fps");
  }
}

void Camera::MapBuffers() {
  v4l2_requestbuffers asked = {};
  asked.count = kBuffers;
  asked.type = kCapture;
  asked.memory = V4L2_MEMORY_MMAP;
  if (Control(VIDIOC_REQBUFS, &asked) < 0) Fail("gives no buffers");
  if (asked.count < 2) throw UsageError("--camera: " + name_ + " has not enough memory");
  for (std::uint32_t index = 0; index < asked.count; ++index) {
    v4l2_buffer buffer = {};
    buffer.type = kCapture;
    buffer.memory = V4L2_MEMORY_MMAP;
    buffer.index = index;
    if (Control(VIDIOC_QUERYBUF, &buffer) < 0) Fail("tells nothing of its buffers");
    void* const memory = device_->Map(buffer.length, buffer.m.offset);
    if (memory == nullptr) Fail("shares no memory");
    buffers_.push_back({memory, buffer.length});
    if (!Queue(index)) Fail("takes no buffers");
  }
}

bool Camera::Queue(std::uint32_t index) const {
  v4l2_buffer buffer = {};
  buffer.type = kCapture;
  buffer.memory = V4L2_MEMORY_MMAP;
  buffer.index = index;
  return Control(VIDIOC_QBUF, &buffer) == 0;
}

bool Camera::Next(std::string* frame, std::chrono::milliseconds limit) {
  if (gone_ || !device_->Wait(limit)) return false;
  bool any = false;
  // No more than there are: a driver that fills them as fast as they are read would never end.
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    bool more = true;
    const bool whole = Take(&more, &taken_);
    if (!more) break;
    if (!whole) continue;
    if (any) ++dropped_;
    any = true;
    frame->swap(taken_);
  }
  return any;
}

bool Camera::Take(bool* more, std::string* frame) {
  v4l2_buffer taken = {};
  taken.type = kCapture;
  taken.memory = V4L2_MEMORY_MMAP;
  if (Control(VIDIOC_DQBUF, &taken) < 0) {
    *more = false;
    // EIO is an error of this frame only, after which a driver may go on.
    if (errno == EIO && ++errors_ < kMostErrors) {
      ++broken_;
    } else if (errno != EAGAIN) {
      gone_ = true;
    }
    return false;
  }
  errors_ = 0;
  if (taken.index >= buffers_.size()) {
    gone_ = true;
    *more = false;
    return false;
  }
  const bool whole = (taken.flags & V4L2_BUF_FLAG_ERROR) == 0U &&
                     Read(buffers_[taken.index], taken.bytesused, frame);
  if (!whole) ++broken_;
  if (!Queue(taken.index)) gone_ = true;
  return whole;
}

bool Camera::Read(const Buffer& buffer, std::size_t used, std::string* frame) {
  const std::string_view bytes(static_cast<const char*>(buffer.memory),
                               std::min(used, buffer.bytes));
  if (format_ == FrameFormat::kYuyv) return PackRows(bytes, size_, stride_, frame);
  // Drivers may pad it. What else there is in the buffer is none of this camera's frames.
  splitter_.Feed(bytes);
  splitter_.End();
  const bool whole = splitter_.Next(frame);
  for (std::string other; splitter_.Next(&other);) {
  }
  return whole;
}

}  // namespace edgepack
