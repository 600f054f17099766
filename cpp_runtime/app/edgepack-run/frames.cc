// JPEG's markers: ITU T.81, annex B.
#include "frames.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace edgepack {
namespace {

constexpr std::string_view kStart = "\xff\xd8\xff";  // SOI, and the next marker
constexpr unsigned kMarker = 0xFF;
constexpr unsigned kSoi = 0xD8;
constexpr unsigned kEoi = 0xD9;
constexpr unsigned kSos = 0xDA;

constexpr std::size_t kMostBetween = 512;

/// Segments of applications (a preview in Exif, say) and comments.
bool MayHoldPicture(unsigned marker) {
  return (marker >= 0xE1 && marker <= 0xEF) || marker == 0xFE;
}

/// Markers without a length: TEM, and RST0 to RST7.
bool StandsAlone(unsigned marker) { return marker == 0x01 || (marker >= 0xD0 && marker <= 0xD7); }

// OpenCV's modules/imgproc/src/color_yuv.simd.hpp: 20 bits of fraction.
constexpr int kShift = 20;
constexpr int kY = 1220542;
constexpr int kBlueU = 2116026;
constexpr int kGreenU = -409993;
constexpr int kGreenV = -852492;
constexpr int kRedV = 1673527;

std::uint8_t ToByte(int sum) {
  return static_cast<std::uint8_t>(std::clamp(sum >> kShift, 0, 255));
}

}  // namespace

bool PackRows(std::string_view bytes, ImageSize size, std::size_t stride, std::string* packed) {
  const std::size_t row = std::size_t{2} * static_cast<std::size_t>(size.width);
  const auto rows = static_cast<std::size_t>(size.height);
  if (stride < row || rows == 0 || bytes.size() < row || (bytes.size() - row) / stride < rows - 1) {
    return false;
  }
  packed->clear();
  packed->reserve(row * rows);
  for (std::size_t y = 0; y < rows; ++y) *packed += bytes.substr(y * stride, row);
  return true;
}

void YuyvToBgr(std::string_view yuyv, ImageSize size, std::uint8_t* bgr) {
  const auto width = static_cast<std::size_t>(size.width);
  const auto part = [&](std::size_t at) {
    return static_cast<int>(static_cast<unsigned char>(yuyv[at]));
  };
  for (std::size_t y = 0; y < static_cast<std::size_t>(size.height); ++y) {
    const std::size_t row = 2 * width * y;
    for (std::size_t x = 0; x < width; ++x) {
      const std::size_t pair = row + 4 * (x / 2);
      const bool whole = (x | 1U) < width;
      const int u = whole ? part(pair + 1) - 128 : 0;
      const int v = whole ? part(pair + 3) - 128 : 0;
      const int light = std::max(0, part(row + 2 * x) - 16) * kY + (1 << (kShift - 1));
      *bgr++ = ToByte(light + kBlueU * u);
      *bgr++ = ToByte(light + kGreenU * u + kGreenV * v);
      *bgr++ = ToByte(light + kRedV * v);
    }
  }
}

void FrameSplitter::Feed(std::string_view bytes) { bytes_ += bytes; }

bool FrameSplitter::Next(std::string* frame) {
  if (frame_bytes_ != 0 ? NextRaw(frame) : NextJpeg(frame)) return true;
  if (!ended_) return false;
  if (frame_bytes_ != 0 && !bytes_.empty()) ++broken_;
  // What lies within the one that has no end may be whole.
  while (frame_bytes_ == 0 && place_ != Place::kBefore) {
    Break(2);
    if (NextJpeg(frame)) return true;
  }
  bytes_.clear();
  at_ = 0;
  between_ = 0;
  counted_ = false;
  ended_ = false;
  return false;
}

bool FrameSplitter::NextRaw(std::string* frame) {
  if (bytes_.size() - at_ < frame_bytes_) {
    bytes_.erase(0, at_);
    at_ = 0;
    return false;
  }
  frame->assign(bytes_, at_, frame_bytes_);
  at_ += frame_bytes_;
  return true;
}

bool FrameSplitter::NextJpeg(std::string* frame) {
  for (bool more = true; more;) {
    switch (place_) {
      case Place::kBefore:
        more = FindStart();
        break;
      case Place::kSegments:
        more = ReadSegment();
        break;
      case Place::kPixels:
        more = SkipPixels();
        break;
    }
    if (whole_ != 0) {
      frame->assign(bytes_, 0, whole_);
      bytes_.erase(0, whole_);
      whole_ = 0;
      place_ = Place::kBefore;
      between_ = 0;
      counted_ = false;
      return true;
    }
    if (place_ != Place::kBefore && std::max(at_, bytes_.size()) > kMostBytes) Break(2);
  }
  return false;
}

/// Leaves out bytes between frames. More than a header of MIME's has is a frame without its start.
void FrameSplitter::Drop(std::size_t bytes) {
  bytes_.erase(0, bytes);
  between_ += bytes;
  if (between_ > kMostBetween && !counted_) {
    ++broken_;
    counted_ = true;
  }
}

bool FrameSplitter::FindStart() {
  const std::size_t start = bytes_.find(kStart);
  if (start == std::string::npos) {
    // The first two bytes of it may have come.
    if (bytes_.size() > 2) Drop(bytes_.size() - 2);
    return false;
  }
  Drop(start);
  at_ = 2;
  place_ = Place::kSegments;
  return true;
}

bool FrameSplitter::ReadSegment() {
  if (bytes_.size() < 4 || at_ > bytes_.size() - 4) {
    // An EOI may be the last of all.
    if (bytes_.size() < 2 || at_ > bytes_.size() - 2 || Byte(at_) != kMarker ||
        Byte(at_ + 1) != kEoi) {
      return false;
    }
  }
  const unsigned marker = Byte(at_ + 1);
  if (Byte(at_) != kMarker || marker == 0) {
    Break(2);
  } else if (marker == kMarker) {
    ++at_;
  } else if (marker == kSoi) {
    Break(at_);
  } else if (marker == kEoi) {
    whole_ = at_ + 2;
  } else if (StandsAlone(marker)) {
    at_ += 2;
  } else {
    const std::size_t length = std::max(Byte(at_ + 2) << 8U | Byte(at_ + 3), 2U);
    const std::size_t end = at_ + 2 + length;
    if (!MayHoldPicture(marker)) {
      // In the length, too: that is where a cut leads to wherever.
      const std::string_view bytes = bytes_;
      const std::size_t start = bytes.substr(0, end + 2).find(kStart, at_ + 2);
      if (start != std::string_view::npos) {
        Break(start);
        return true;
      }
      if (bytes_.size() < end + 2) return false;
    }
    at_ = end;
    if (marker == kSos) place_ = Place::kPixels;
  }
  return true;
}

bool FrameSplitter::SkipPixels() {
  if (at_ >= bytes_.size()) return false;
  at_ = bytes_.find('\xff', at_);
  if (at_ == std::string::npos || at_ + 1 == bytes_.size()) {
    at_ = std::min(at_, bytes_.size());
    return false;
  }
  const unsigned marker = Byte(at_ + 1);
  if (marker == kMarker) {
    ++at_;
  } else if (marker == 0 || StandsAlone(marker)) {
    at_ += 2;
  } else if (marker == kSoi) {
    Break(at_);
  } else if (marker == kEoi) {
    whole_ = at_ + 2;
  } else {
    place_ = Place::kSegments;
  }
  return true;
}

/// What began is no frame; another one may begin at `resume`.
void FrameSplitter::Break(std::size_t resume) {
  ++broken_;
  counted_ = true;  // what is left of it is no other
  bytes_.erase(0, resume);
  place_ = Place::kBefore;
}

}  // namespace edgepack
