#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>

namespace edgepack {

/// A queue of one, from one thread to another.
template <typename T>
class Slot {
 public:
  /// With `newest` whoever puts never waits: what nobody took is dropped for it.
  explicit Slot(bool newest = false) : newest_(newest) {}

  /// Waits until there is room. False if nobody will take it.
  bool Put(T value) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (newest_ && value_ && !closed_) {
      value_.reset();
      ++dropped_;
    }
    changed_.wait(lock, [&] { return !value_ || closed_; });
    if (closed_) return false;
    value_ = std::move(value);
    changed_.notify_all();
    return true;
  }

  /// Waits for one, for `limit` if there is one. Nothing after that, or if no more will come.
  std::optional<T> Take(std::optional<std::chrono::milliseconds> limit = std::nullopt) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto ready = [&] { return value_ || closed_; };
    if (limit) {
      changed_.wait_for(lock, *limit, ready);
    } else {
      changed_.wait(lock, ready);
    }
    std::optional<T> taken = std::move(value_);
    value_.reset();
    changed_.notify_all();
    return taken;
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
    return closed_ && !value_;
  }
  [[nodiscard]] std::int64_t dropped() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return dropped_;
  }

 private:
  const bool newest_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<T> value_;
  bool closed_ = false;
  std::int64_t dropped_ = 0;
};

}  // namespace edgepack
