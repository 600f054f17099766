// Run lengths of masks in COCO's compressed form: edgepack/postprocess/instances.py describes it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace edgepack {

/// Writes pixels that are inside, in their order.
class CountsWriter {
 public:
  explicit CountsWriter(std::string* text) : text_(*text) {}

  /// The next pixel, by its number.
  void Add(std::size_t pixel) {
    if (pixel != end_ || end_ == begin_) {
      if (end_ != begin_) WriteRun();
      begin_ = pixel;
    }
    end_ = pixel + 1;
  }

  /// Of a photo of so many pixels. Nothing is added after it.
  void Finish(std::size_t pixels) {
    if (end_ != begin_) WriteRun();
    if (pixels > written_ || pixels == 0) WriteLength(pixels - written_);
  }

 private:
  void WriteRun() {
    WriteLength(begin_ - written_);
    WriteLength(end_ - begin_);
    written_ = end_;
  }

  void WriteLength(std::size_t length) {
    constexpr std::size_t kPlain = 3;
    const auto whole = static_cast<std::int64_t>(length);
    std::int64_t value = number_ >= kPlain ? whole - last_[number_ % 2] : whole;
    last_[number_ % 2] = whole;
    ++number_;
    for (bool more = true; more;) {
      const std::int64_t group = value & 31;
      value = (value - group) / 32;
      more = value != ((group & 16) != 0 ? -1 : 0);
      text_ += static_cast<char>(48 + group + (more ? 32 : 0));
    }
  }

  std::string& text_;
  std::size_t begin_ = 0;  // of the run that is not written yet
  std::size_t end_ = 0;
  std::size_t written_ = 0;  // pixels
  std::size_t number_ = 0;
  std::array<std::int64_t, 2> last_ = {};
};

/// Calls `take` with begin and end of each run of pixels inside, of a text by CountsWriter.
template <typename Take>
void ReadCounts(std::string_view text, Take take) {
  std::array<std::int64_t, 2> last = {};
  std::int64_t value = 0;
  std::size_t number = 0;
  std::int64_t pixel = 0;
  unsigned shift = 0;
  for (const char letter : text) {
    const std::int64_t code = letter - 48;
    value += (code & 31) * (std::int64_t{1} << shift);
    shift += 5;
    if ((code & 32) != 0) continue;
    if ((code & 16) != 0) value -= std::int64_t{1} << shift;
    if (number >= 3) value += last[number % 2];
    last[number % 2] = value;
    if (number % 2 == 1) take(pixel, pixel + value);
    pixel += value;
    ++number;
    value = 0;
    shift = 0;
  }
}

}  // namespace edgepack
