#include "memory_map.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <new>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "common/fd.h"

namespace edgepack {
namespace {

[[noreturn]] void ThrowErrno(int number) {
  throw std::system_error(number, std::generic_category());
}

}  // namespace

MemoryMap::~MemoryMap() {
  if (data_ != nullptr) munmap(data_, size_);
}

MemoryMap::MemoryMap(MemoryMap&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MemoryMap& MemoryMap::operator=(MemoryMap&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MemoryMap MemoryMap::File(const std::filesystem::path& path) {
  // Without waiting for the writer that a FIFO may never have.
  const Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat status = {};
  if (!file || fstat(file.get(), &status) != 0) ThrowErrno(errno);
  if (!S_ISREG(status.st_mode)) ThrowErrno(S_ISDIR(status.st_mode) ? EISDIR : EINVAL);
  const auto size = static_cast<std::size_t>(status.st_size);
  if (status.st_size < 0 || static_cast<off_t>(size) != status.st_size) ThrowErrno(EFBIG);
  if (size == 0) return {};
  void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (data == MAP_FAILED) ThrowErrno(errno);
  return {static_cast<char*>(data), size};
}

MemoryMap MemoryMap::Zeroed(std::size_t size) {
  if (size == 0) return {};
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  return {static_cast<char*>(data), size};
}

void MemoryMap::Prefetch() const {
  if (data_ != nullptr) madvise(data_, size_, MADV_WILLNEED);
}

void MemoryMap::Drop(std::size_t offset, std::size_t bytes) const {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t from = std::min(offset, size_);
  const std::size_t to = from + std::min(bytes, size_ - from);
  const std::size_t first = (from + page - 1) / page * page;
  // The last page is mapped whole, wherever the file ends in it.
  const std::size_t end = (to == size_ ? to + page - 1 : to) / page * page;
  if (first < end) madvise(data_ + first, end - first, MADV_DONTNEED);
}

}  // namespace edgepack
