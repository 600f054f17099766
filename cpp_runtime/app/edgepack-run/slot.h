#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>

namespace edgepack {

/// A queue of one, from one thread to another. Values are swapped: whoever puts or takes one gets
/// an old one for it, whose memory it uses again.
template <typename T>
class Slot {
 public:
  /// With `newest` whoever puts never waits: what nobody took is dropped for it.
  explicit Slot(bool newest = false) : newest_(newest) {}

  /// Waits until there is room. False if nobody will take it.
  bool Put(T* value) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (newest_ && full_ && !closed_) {
      full_ = false;
      ++dropped_;
    }
    changed_.wait(lock, [&] { return !full_ || closed_; });
    if (closed_) return false;
    std::swap(value_, *value);
    full_ = true;
    changed_.notify_all();
    return true;
  }

  /// Waits for one, for `limit` if there is one. False after that, or if no more will come.
  bool Take(T* value, std::optional<std::chrono::milliseconds> limit = std::nullopt) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto ready = [&] { return full_ || closed_; };
    if (limit) {
      changed_.wait_for(lock, *limit, ready);
    } else {
      changed_.wait(lock, ready);
    }
    if (!full_) return false;
    std::swap(value_, *value);
    full_ = false;
    changed_.notify_all();
    return true;
  }

  /// No more is put. What is in can still be taken.
  void Close() {
    const std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

  /// Whether it is closed, and empty.
  [[nodiscard]] bool ended() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return closed_ && !full_;
  }
  [[nodiscard]] std::int64_t dropped() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return dropped_;
  }

 private:
  const bool newest_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  T value_{};
  bool full_ = false;
  bool closed_ = false;
  std::int64_t dropped_ = 0;
};

}  // namespace edgepack
