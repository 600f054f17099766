#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

namespace edgepack {

/// A queue between threads that holds no more than so many.
template <typename T>
class Queue {
 public:
  explicit Queue(std::size_t most) : most_(most) {}

  /// False if it is full.
  bool TryPut(T value) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (values_.size() >= most_) return false;
    values_.push_back(std::move(value));
    changed_.notify_one();
    return true;
  }

  /// Waits for the oldest, for `limit` if there is one. Nothing after that, or at the end.
  std::optional<T> Take(std::optional<std::chrono::milliseconds> limit) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto ready = [&] { return !values_.empty() || closed_; };
    if (limit) {
      changed_.wait_for(lock, *limit, ready);
    } else {
      changed_.wait(lock, ready);
    }
    if (values_.empty()) return std::nullopt;
    std::optional<T> taken = std::move(values_.front());
    values_.pop_front();
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
    return closed_ && values_.empty();
  }
  [[nodiscard]] std::size_t size() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return values_.size();
  }

 private:
  const std::size_t most_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<T> values_;
  bool closed_ = false;
};

}  // namespace edgepack
