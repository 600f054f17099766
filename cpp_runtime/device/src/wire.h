#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace edgepack::device {

/// Input that a link may end or leave silent.
class WireInput {
 public:
  WireInput(int fd, double silence_s) : fd_(fd), silence_s_(silence_s), buffer_(kBuffer) {}

  /// Up to a newline, which is dropped; "" at the end of the input.
  /// Throws Error "io", as the others do, when nothing comes, and for a line without an end.
  std::string ReadLine();
  /// Throws at the end of the input, too.
  void Read(void* data, std::size_t size);
  std::string ReadText(std::size_t size);

 private:
  static constexpr std::size_t kBuffer = std::size_t{64} << 10U;

  /// Returns false at the end of the input.
  bool Refill();

  int fd_;
  double silence_s_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

/// Output that nobody may be reading any more: then it is dropped, without an error.
class WireOutput {
 public:
  explicit WireOutput(int fd) : fd_(fd) {}
  void WriteLine(const std::string& text);

 private:
  int fd_;
  bool lost_ = false;
};

}  // namespace edgepack::device
