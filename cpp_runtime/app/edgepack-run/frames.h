#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "options.h"

namespace edgepack {

/// Rows of YUYV without gaps, of a buffer whose rows begin `stride` bytes from each other. False if
/// it does not hold them all.
bool PackRows(std::string_view bytes, ImageSize size, std::size_t stride, std::string* packed);

/// Pixels of YUYV (size.width * 2 bytes in each row) as blue, green and red, in the limited range
/// of BT.601, by the same sums as OpenCV. Of a row of an odd width the last pixel has no V: it is
/// gray.
void YuyvToBgr(std::string_view yuyv, ImageSize size, std::uint8_t* bgr);

/// Cuts a stream of bytes into frames: Feed, and Next until there is none. Whatever does not become
/// one is left out and counted.
class FrameSplitter {
 public:
  /// No frame has more bytes.
  static constexpr std::size_t kMostBytes = std::size_t{64} << 20U;

  /// For MJPEG: pictures one after the other, each from its SOI to its EOI.
  FrameSplitter() = default;
  /// For frames of so many bytes each.
  explicit FrameSplitter(std::size_t frame_bytes) : frame_bytes_(frame_bytes) {}

  /// Takes the memory for as many bytes at a time.
  void Reserve(std::size_t feed_bytes) { bytes_.reserve(frame_bytes_ + feed_bytes); }

  /// Takes bytes of the stream.
  void Feed(std::string_view bytes);
  /// The stream has ended: a frame that has not is broken. There may be more whole ones after it.
  void End() { ended_ = true; }
  /// The next whole frame, in the memory of an old one. False if there is none.
  bool Next(std::string* frame);

  [[nodiscard]] std::int64_t broken() const { return broken_; }

 private:
  /// Where the parser of a JPEG is: before it, between its segments, or in its pixels.
  enum class Place { kBefore, kSegments, kPixels };

  bool NextRaw(std::string* frame);
  bool NextJpeg(std::string* frame);
  void Drop(std::size_t bytes);
  bool FindStart();
  bool ReadSegment();
  bool SkipPixels();
  void Break(std::size_t resume);
  [[nodiscard]] unsigned Byte(std::size_t at) const {
    return static_cast<unsigned char>(bytes_[at]);
  }

  std::size_t frame_bytes_ = 0;
  std::string bytes_;
  std::size_t at_ = 0;  // of the parser
  Place place_ = Place::kBefore;
  std::size_t between_ = 0;  // bytes that are of no frame, since the last one
  bool counted_ = false;     // as a broken frame
  std::size_t whole_ = 0;    // bytes of the frame that is
  bool ended_ = false;
  std::int64_t broken_ = 0;
};

}  // namespace edgepack
