#pragma once

#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <linux/videodev2.h>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "camera.h"

namespace edgepack::testing {

/// A scripted stand-in for a V4L2 device: it answers as the kernel's documentation says that a
/// webcam's driver (uvcvideo) does. It is not a recording of one.
class RecordedDevice : public VideoDevice {
 public:
  /// What comes of one wait: frames, or an error of VIDIOC_DQBUF.
  struct Event {
    std::vector<std::string> frames;
    int error = 0;
    std::uint32_t flags = 0;
  };

  std::map<std::uint32_t, ImageSize> formats = {{V4L2_PIX_FMT_MJPEG, {4, 2}},
                                                {V4L2_PIX_FMT_YUYV, {4, 2}}};
  std::uint32_t capabilities = V4L2_CAP_VIDEO_CAPTURE | V4L2_CAP_STREAMING;
  std::uint32_t stride = 0;
  std::uint32_t buffer_bytes = 4096;
  std::deque<Event> events;
  int interrupted = 0;                    ///< calls that a signal interrupts
  std::map<std::uint32_t, int> errors;    ///< of requests
  std::vector<std::uint32_t> calls;       ///< those that were made
  std::vector<std::vector<char>> memory;  ///< of the buffers
  std::deque<std::uint32_t> queued;       ///< buffers that can be filled
  std::deque<std::pair<std::uint32_t, std::size_t>> filled;
  bool streaming = false;
  int mapped = 0;
  std::uint32_t fps = 0;

  int Control(std::uint32_t request, void* argument) override {
    if (interrupted > 0) {
      --interrupted;
      errno = EINTR;
      return -1;
    }
    calls.push_back(request);
    if (const auto error = errors.find(request); error != errors.end()) return Error(error->second);
    switch (request) {
      case VIDIOC_QUERYCAP: {
        auto* able = static_cast<v4l2_capability*>(argument);
        able->capabilities = capabilities | V4L2_CAP_DEVICE_CAPS;
        able->device_caps = capabilities;
        return 0;
      }
      case VIDIOC_G_FMT:
        return 0;
      case VIDIOC_S_FMT:
        return SetFormat(static_cast<v4l2_format*>(argument));
      case VIDIOC_S_PARM:
        fps = static_cast<v4l2_streamparm*>(argument)->parm.capture.timeperframe.denominator;
        return 0;
      case VIDIOC_REQBUFS:
        memory.assign(static_cast<v4l2_requestbuffers*>(argument)->count,
                      std::vector<char>(buffer_bytes));
        return 0;
      case VIDIOC_QUERYBUF: {
        auto* buffer = static_cast<v4l2_buffer*>(argument);
        buffer->length = buffer_bytes;
        buffer->m.offset = buffer->index * buffer_bytes;
        return 0;
      }
      case VIDIOC_QBUF:
        queued.push_back(static_cast<v4l2_buffer*>(argument)->index);
        return 0;
      case VIDIOC_STREAMON:
        streaming = true;
        return 0;
      case VIDIOC_STREAMOFF:
        streaming = false;
        return 0;
      case VIDIOC_DQBUF:
        return Take(static_cast<v4l2_buffer*>(argument));
      default:
        return Error(ENOTTY);
    }
  }

  void* Map(std::size_t bytes, std::int64_t offset) override {
    ++mapped;
    auto& buffer = memory.at(static_cast<std::size_t>(offset) / buffer_bytes);
    return bytes <= buffer.size() ? buffer.data() : nullptr;
  }
  void Unmap(void* /*memory*/, std::size_t /*bytes*/) override { --mapped; }

  bool Wait(std::chrono::milliseconds /*limit*/) override {
    if (events.empty()) return false;  // as if a stop signal came
    now_ = std::move(events.front());
    events.pop_front();
    for (const std::string& frame : now_.frames) {
      const std::uint32_t index = queued.front();
      queued.pop_front();
      std::memcpy(memory[index].data(), frame.data(), frame.size());
      filled.emplace_back(index, frame.size());
    }
    return true;
  }

 private:
  static int Error(int error) {
    errno = error;
    return -1;
  }

  int SetFormat(v4l2_format* format) {
    v4l2_pix_format& pixels = format->fmt.pix;
    const auto found = formats.find(pixels.pixelformat);
    const auto& [fourcc, size] = found == formats.end() ? *formats.begin() : *found;
    pixels.pixelformat = fourcc;
    pixels.width = static_cast<std::uint32_t>(size.width);
    pixels.height = static_cast<std::uint32_t>(size.height);
    pixels.bytesperline = fourcc == V4L2_PIX_FMT_YUYV ? stride : 0;
    return 0;
  }

  int Take(v4l2_buffer* buffer) {
    if (now_.error != 0) return Error(std::exchange(now_.error, 0));
    if (filled.empty()) return Error(EAGAIN);
    buffer->index = filled.front().first;
    buffer->bytesused = static_cast<std::uint32_t>(filled.front().second);
    buffer->flags = now_.flags;
    filled.pop_front();
    return 0;
  }

  Event now_;
};

}  // namespace edgepack::testing
