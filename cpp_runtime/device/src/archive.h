// A bundle as .tar.gz, read from front to back without trust.
#ifndef EDGEPACK_DEVICE_ARCHIVE_H_
#define EDGEPACK_DEVICE_ARCHIVE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

namespace edgepack::device {

// What edgepack/bundle/tarball.py accepts too: plain files and folders with safe relative names
// under one top folder, each once. Nothing is written anywhere. Errors are Error:
//   "truncated"       the file ends too early
//   "damaged"         no gzip, no tar, a wrong checksum, bytes after the end
//   "unsafe-archive"  a link, a device, an unsafe or repeated name, a second top folder, too much
class BundleArchive {
 public:
  // Gives at most `size` bytes to `out` and returns how many; 0 is the end.
  using ReadFunction = std::function<size_t(void* out, size_t size)>;

  struct Limits {
    size_t members = 2000;
    uint64_t bytes = uint64_t{4} << 30;
  };

  struct Member {
    std::string path;  // below the top folder
    uint64_t size;
    bool executable;
  };

  // Of an open file, from where it stands; `name` is for messages. The file stays open.
  BundleArchive(int fd, const std::string& name);
  BundleArchive(ReadFunction read, std::string name, Limits limits);
  BundleArchive(BundleArchive&&) noexcept;
  ~BundleArchive();

  // The next file, or nothing at the end, up to which everything has then been checked. Skips
  // folders and what was not read of the file before.
  std::optional<Member> Next();

  // Up to `size` bytes of the file that Next() gave; 0 at its end.
  size_t Read(void* out, size_t size);

  // Name of the top folder; empty before the first Next().
  [[nodiscard]] const std::string& top() const { return top_; }

 private:
  class Gzip;

  [[noreturn]] void Unsafe(const std::string& problem) const;
  void ReadExactly(void* out, size_t size);
  void SkipRest();
  void CheckEnd();
  std::string CheckName(const std::string& name, bool folder, uint64_t size);

  std::string name_;
  Limits limits_;
  std::unique_ptr<Gzip> gzip_;
  std::string top_;
  std::set<std::string> files_;
  std::set<std::string> folders_;
  uint64_t total_ = 0;
  uint64_t left_ = 0;     // of the current file
  uint64_t padding_ = 0;  // after it
  bool ended_ = false;
};

}  // namespace edgepack::device

#endif  // EDGEPACK_DEVICE_ARCHIVE_H_
