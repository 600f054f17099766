// Input: what a video driver answers, byte by byte: how calls end, sizes, strides, buffers, frames.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <linux/videodev2.h>
#include <vector>

#include "camera.h"
#include "common/fuzz/fuzz.h"
#include "frames.h"

namespace edgepack {
namespace {

constexpr std::size_t kMemory = 4096;

class FuzzedDevice : public VideoDevice {
 public:
  explicit FuzzedDevice(std::string_view rest) : rest_(rest) {}

  int Control(std::uint32_t request, void* argument) override {
    constexpr std::array<int, 6> kErrors = {EINTR, EAGAIN, EIO, ENODEV, EINVAL, EBUSY};
    const unsigned answer = Next();
    if (answer % 16 < kErrors.size() && !rest_.empty()) {
      errno = kErrors.at(answer % 16);
      return -1;
    }
    if (request == VIDIOC_QUERYCAP) {
      static_cast<v4l2_capability*>(argument)->capabilities =
          V4L2_CAP_VIDEO_CAPTURE | V4L2_CAP_STREAMING;
    } else if (request == VIDIOC_S_FMT) {
      v4l2_pix_format& pixels = static_cast<v4l2_format*>(argument)->fmt.pix;
      pixels.width = Next() << (answer >> 5U);
      pixels.height = Next();
      pixels.bytesperline = Next() << (answer >> 4U);
    } else if (request == VIDIOC_REQBUFS) {
      auto* asked = static_cast<v4l2_requestbuffers*>(argument);
      asked->count = std::min<std::uint32_t>(asked->count, Next());
    } else if (request == VIDIOC_QUERYBUF) {
      static_cast<v4l2_buffer*>(argument)->length = Next();
    } else if (request == VIDIOC_DQBUF) {
      if (rest_.empty()) {
        errno = ENODEV;
        return -1;
      }
      auto* taken = static_cast<v4l2_buffer*>(argument);
      taken->index = Next() % 8;
      taken->bytesused = Next() << (answer >> 4U);
      taken->flags = Next() % 2 == 0 ? 0 : V4L2_BUF_FLAG_ERROR;
      if (taken->index < memory_.size()) {
        std::vector<char>& memory = *memory_[taken->index];
        const std::size_t count = std::min(memory.size(), rest_.size());
        std::memcpy(memory.data(), rest_.data(), count);
        rest_.remove_prefix(count);
      }
    }
    return 0;
  }
  void* Map(std::size_t bytes, std::int64_t /*offset*/) override {
    // Memory of exactly that size: what is read beyond it is found.
    memory_.push_back(std::make_unique<std::vector<char>>(std::min(bytes, kMemory)));
    if (bytes > 0) return memory_.back()->data();
    memory_.pop_back();
    return nullptr;
  }
  void Unmap(void* /*memory*/, std::size_t /*bytes*/) override {}
  bool Wait(std::chrono::milliseconds /*limit*/) override { return !rest_.empty(); }

  [[nodiscard]] bool empty() const { return rest_.empty(); }

 private:
  unsigned Next() {
    if (rest_.empty()) return 0;
    const auto byte = static_cast<unsigned char>(rest_.front());
    rest_.remove_prefix(1);
    return byte;
  }

  std::string_view rest_;
  std::vector<std::unique_ptr<std::vector<char>>> memory_;
};

}  // namespace
}  // namespace edgepack

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace edgepack;
  FuzzedDevice device(Text(data, size));
  try {
    const bool pixels = size % 2 == 0;
    CameraWish wish;
    if (pixels) wish.format = FrameFormat::kYuyv;
    Camera camera(&device, "camera", wish);
    for (std::string frame; !camera.gone() && !device.empty();) {
      if (!camera.Next(&frame, std::chrono::milliseconds(0)) || !pixels) continue;
      const ImageSize size_of = camera.size();
      const auto count =
          static_cast<std::size_t>(size_of.width) * static_cast<std::size_t>(size_of.height);
      EDGEPACK_REQUIRE(frame.size() == 2 * count);
      std::vector<std::uint8_t> bgr(3 * count);
      YuyvToBgr(frame, size_of, bgr.data());
    }
  } catch (const Error& error) {
    EDGEPACK_REQUIRE(error.exit_code == kExitUsage);
  }
  return 0;
}
