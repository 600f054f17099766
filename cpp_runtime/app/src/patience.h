#pragma once

#include <chrono>

namespace edgepack {

/// How to wait for another thread: awake at first, for kernels follow each other within
/// microseconds and waking a thread takes tens of them; but never at the cost of a process that
/// wants this core.
class Patience {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Step { kLook, kYield, kSleep };

  /// What a piece of a kernel takes: who waits no longer waits for a thread that is running.
  static constexpr std::chrono::microseconds kLooking{20};
  /// How long to stay awake. From kLooking on another process may have the core at each look.
  static constexpr std::chrono::microseconds kAwake{100};
  /// Between two looks that are a microsecond apart: another process had the core. It will want it
  /// again, and whoever is waited for may be in the same position.
  static constexpr std::chrono::microseconds kTaken{20};

  /// What to do next, when a look at `now` has found nothing.
  [[nodiscard]] Step Next(Clock::time_point now) {
    const bool first = began_ == Clock::time_point{};
    if (first) began_ = now;
    const bool taken = !first && now - last_ > kTaken;
    last_ = now;
    if (taken || now - began_ >= kAwake) return Step::kSleep;
    return now - began_ < kLooking ? Step::kLook : Step::kYield;
  }

 private:
  Clock::time_point began_{};
  Clock::time_point last_{};
};

}  // namespace edgepack
