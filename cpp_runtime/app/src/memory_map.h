#pragma once

#include <cstddef>
#include <filesystem>

namespace edgepack {

/// Pages from the kernel: a file mapped read-only, or zeroed memory. Page aligned, never copied.
class MemoryMap {
 public:
  MemoryMap() = default;
  ~MemoryMap();
  MemoryMap(MemoryMap&& other) noexcept;
  MemoryMap& operator=(MemoryMap&& other) noexcept;
  MemoryMap(const MemoryMap&) = delete;
  MemoryMap& operator=(const MemoryMap&) = delete;

  /// Maps a whole file read-only. Throws std::system_error.
  static MemoryMap File(const std::filesystem::path& path);
  /// `size` zeroed bytes; pages that are never touched cost nothing. Throws std::bad_alloc.
  static MemoryMap Zeroed(std::size_t size);

  [[nodiscard]] char* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }

  /// Tells the kernel to begin reading the file now.
  void Prefetch() const;

  /// Gives the kernel back the pages that lie wholly in a range. A file's are mapped again when
  /// they are next read, from the kernel's cache unless that was needed for other things; zeroed
  /// memory is zero again.
  void Drop(std::size_t offset, std::size_t bytes) const;

 private:
  MemoryMap(char* data, std::size_t size) : data_(data), size_(size) {}

  char* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace edgepack
