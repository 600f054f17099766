#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace edgepack {

/// Scratch memory of kernels: blocks are kept for the next call. Thread safe.
class Workspace {
 public:
  /// The one kernels use.
  static Workspace& Global();

  Workspace() = default;
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  Workspace(Workspace&&) = delete;
  Workspace& operator=(Workspace&&) = delete;

  /// At least `bytes`, aligned to 64; nullptr if there is no memory.
  void* Allocate(std::uint64_t bytes);
  /// Gives a block back to the pool.
  void Free(void* pointer);

  /// The most bytes the pool ever held.
  [[nodiscard]] std::size_t peak_bytes() const;

 private:
  struct Block {
    void* data;
    std::size_t bytes;
    bool used;
  };

  mutable std::mutex mutex_;
  std::vector<Block> blocks_;
  std::size_t held_bytes_ = 0;
  std::size_t peak_bytes_ = 0;
};

}  // namespace edgepack
