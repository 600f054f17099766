#include "file.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>
#include <vector>

#include "error.h"
#include "faults.h"
#include "sha256.h"

namespace edgepack::device {

void ThrowErrno(const std::string& what, const std::string& path) {
  const int reason = errno;
  const std::string message = "cannot " + what + " " + path + ": " + std::strerror(reason);
  switch (reason) {
    case ENOSPC:
    case EDQUOT:
      throw Error(kExitDevice, "disk-full", message,
                  "make room there (df -h; edgepack-device prune)");
    case EXDEV:
      throw Error(kExitDevice, "cross-device", message,
                  "store, releases and incoming must lie on one file system");
    default:
      throw Error(kExitDevice, "io", message);
  }
}

Fd OpenPath(const std::string& path, int flags, mode_t mode) {
  return Fd(Retry([&] { return open(path.c_str(), flags | O_CLOEXEC, mode); }));
}

struct stat File::Status() const {
  struct stat status = {};
  if (fstat(fd(), &status) != 0) ThrowErrno("look at", path_);
  return status;
}

std::uint64_t File::Size() const { return static_cast<std::uint64_t>(Status().st_size); }

std::size_t File::ReadAt(std::uint64_t offset, void* data, std::size_t size) const {
  char* const begin = static_cast<char*>(data);
  std::size_t done = 0;
  while (done < size) {
    const auto at = static_cast<off_t>(offset + done);
    const ssize_t count = Retry([&] { return pread(fd(), begin + done, size - done, at); });
    if (count < 0) ThrowErrno("read", path_);
    if (count == 0) break;
    done += static_cast<std::size_t>(count);
  }
  return done;
}

std::string File::ReadAll(std::size_t limit) const {
  std::string text;
  std::array<char, 4096> block;  // NOLINT(*-member-init): filled by the read
  while (const std::size_t count = ReadAt(text.size(), block.data(), block.size())) {
    text.append(block.data(), count);
    if (text.size() > limit) {
      throw Refused("damaged", path_ + " is longer than " + std::to_string(limit) + " bytes");
    }
  }
  return text;
}

std::string File::Sha256() const {
  device::Sha256 hash;
  std::vector<char> block(std::size_t{1} << 16U);
  std::uint64_t offset = 0;
  while (const std::size_t count = ReadAt(offset, block.data(), block.size())) {
    hash.Update(block.data(), count);
    offset += count;
  }
  return hash.HexDigest();
}

void File::WriteAt(std::uint64_t offset, const void* data, std::size_t size) const {
  const char* next = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t count =
        Retry([&] { return pwrite(fd(), next, size, static_cast<off_t>(offset)); });
    if (count < 0) ThrowErrno("write", path_);
    if (count == 0) {  // would be so for ever
      errno = EIO;
      ThrowErrno("write", path_);
    }
    next += count;
    size -= static_cast<std::size_t>(count);
    offset += static_cast<std::uint64_t>(count);
  }
}

void File::Truncate(std::uint64_t size) const {
  const int done = Retry([&] { return ftruncate(fd(), static_cast<off_t>(size)); });
  if (done != 0) ThrowErrno("cut", path_);
}

void File::SetMode(mode_t mode) const {
  if (Retry([&] { return fchmod(fd(), mode); }) != 0) ThrowErrno("set the mode of", path_);
}

void File::Sync() const {
  if (SyncsAreLeftOut()) return;
  if (Retry([&] { return fsync(fd()); }) != 0) ThrowErrno("flush", path_);
}

void File::StartWriting(std::uint64_t offset, std::uint64_t size) const {
  if (SyncsAreLeftOut()) return;
  // Only to save time: a file system that cannot do it makes `Sync` wait longer.
  sync_file_range(fd(), static_cast<off_t>(offset), static_cast<off_t>(size),
                  SYNC_FILE_RANGE_WRITE);
}

}  // namespace edgepack::device
