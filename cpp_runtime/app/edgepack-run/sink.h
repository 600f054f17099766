#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "common/fd.h"

namespace edgepack {

/// Where --out has lines of results go.
struct SinkOptions {
  std::filesystem::path file;    ///< or
  std::filesystem::path socket;  ///< a Unix socket on which somebody listens; or neither: a stream
  std::int64_t rotate_bytes = std::int64_t{16} << 20;
  int keep = 1;

  /// FILE or unix:PATH.
  void Parse(const std::string& text);
};

/// Writes lines to a stream, a file that is rotated, or a Unix socket. A full disk, or nobody who
/// listens, costs lines, which are counted, and nothing else: the source goes on.
class LineSink {
 public:
  /// Throws UsageError if the file cannot be opened. A socket is connected to when there is a line.
  LineSink(SinkOptions options, std::ostream& out);

  /// One line with its end. Throws UsageError if the stream is broken.
  void Write(std::string_view line);
  /// Lines that could not be written.
  [[nodiscard]] std::int64_t lost() const { return lost_; }

 private:
  void WriteFile(std::string_view line);
  void WriteSocket(std::string_view line);
  void Open();
  void Rotate();
  bool Connect();

  SinkOptions options_;
  std::vector<std::filesystem::path> names_;  // of the file, the one before, and so on
  std::ostream& out_;
  Fd fd_;
  std::int64_t size_ = 0;
  std::int64_t lost_ = 0;
  std::optional<std::chrono::steady_clock::time_point> tried_;  // to connect
};

}  // namespace edgepack
