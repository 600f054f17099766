#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <sys/stat.h>
#include <utility>

#include "common/fd.h"

namespace edgepack::device {

/// Throws Error for the last system call, which failed: "cannot <what> <path>: <reason>".
/// A full disk and a file system boundary have kinds of their own.
[[noreturn]] void ThrowErrno(const std::string& what, const std::string& path);

/// open(2), again if a signal interrupts it; the descriptor is not for children.
Fd OpenPath(const std::string& path, int flags, mode_t mode = 0);

/// An open plain file. Every call is checked; a message names the file.
class File {
 public:
  File(Fd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] struct stat Status() const;
  [[nodiscard]] std::uint64_t Size() const;

  /// `size` bytes from `offset`, or fewer if it ends there.
  std::size_t ReadAt(std::uint64_t offset, void* data, std::size_t size) const;
  /// All of it from the beginning; throws if it is longer than `limit`.
  [[nodiscard]] std::string ReadAll(std::size_t limit) const;
  /// The SHA-256 of what the disk, or its cache, holds.
  [[nodiscard]] std::string Sha256() const;

  void WriteAt(std::uint64_t offset, const void* data, std::size_t size) const;
  void Truncate(std::uint64_t size) const;
  void SetMode(mode_t mode) const;
  /// fsync.
  void Sync() const;
  /// Has the kernel begin to write that part out, without waiting: `Sync` has less to do then.
  void StartWriting(std::uint64_t offset, std::uint64_t size) const;

 private:
  Fd fd_;
  std::string path_;
};

}  // namespace edgepack::device
