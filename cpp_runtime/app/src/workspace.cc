#include <algorithm>
#include <cstdlib>
#include <limits>

#include <edgepack/workspace.h>

namespace edgepack {
namespace {

constexpr std::size_t kAlignment = 64;

}  // namespace

Workspace& Workspace::Global() {
  static Workspace workspace;
  return workspace;
}

Workspace::~Workspace() {
  for (const Block& block : blocks_) std::free(block.data);
}

void* Workspace::Allocate(std::uint64_t bytes) {
  if (bytes > std::numeric_limits<std::size_t>::max() - kAlignment) return nullptr;
  const auto rounded = static_cast<std::size_t>(
      (std::max<std::uint64_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment);
  const std::lock_guard<std::mutex> lock(mutex_);
  Block* fit = nullptr;      // the smallest free block that is big enough
  Block* largest = nullptr;  // the largest free block
  for (Block& block : blocks_) {
    if (block.used) continue;
    if (block.bytes >= rounded && (fit == nullptr || block.bytes < fit->bytes)) fit = &block;
    if (largest == nullptr || block.bytes > largest->bytes) largest = &block;
  }
  if (fit != nullptr) {
    fit->used = true;
    return fit->data;
  }
  // Grow the block that comes nearest, so that there are never more blocks than were in use at
  // the same time.
  if (largest != nullptr) {
    held_bytes_ -= largest->bytes;
    std::free(largest->data);
    blocks_.erase(blocks_.begin() + (largest - blocks_.data()));
  }
  void* data = std::aligned_alloc(kAlignment, rounded);
  if (data == nullptr) return nullptr;
  blocks_.push_back({data, rounded, true});
  held_bytes_ += rounded;
  peak_bytes_ = std::max(peak_bytes_, held_bytes_);
  return data;
}

void Workspace::Free(void* pointer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Block& block : blocks_) {
    if (block.data == pointer) block.used = false;
  }
}

std::size_t Workspace::peak_bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return peak_bytes_;
}

}  // namespace edgepack
