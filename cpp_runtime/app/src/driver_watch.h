#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include <edgepack/errors.h>

namespace edgepack {

/// How long a GPU may take for what it was given, and its driver for a call. Nothing: any time.
using DriverLimit = std::optional<std::chrono::milliseconds>;

/// What is allowed unless somebody says else: by SetDriverLimit, or EDGEPACK_GPU_LIMIT_S.
constexpr std::chrono::seconds kDriverLimit{60};

/// The limit now. A driver that computes `on_a_cpu` may take longer than any GPU: it has the one
/// that somebody said, or none.
DriverLimit CurrentDriverLimit(bool on_a_cpu);
/// Before any model is loaded.
void SetDriverLimit(std::chrono::milliseconds limit);
/// The same, for GPUs and where nobody has said anything.
void SetDefaultDriverLimit(std::chrono::milliseconds limit);

/// From here on a call into a driver that does not come back in time has `end` called, by another
/// thread. No thread can be made to leave such a call: all that is left is to end the process.
void EndIfDriverBlocks(std::function<void(const GpuLostError&)> end);

/// How many starts of this program, one after the other up to this one, ended with kExitGpuLost: as
/// the supervisor says in EDGEPACK_GPU_LOST.
int StartsLostToGpu();

/// "60 s".
std::string ToString(std::chrono::milliseconds limit);

/// The calls into a driver by one thread at a time, which are looked at for as long as this lives.
class DriverCalls {
 public:
  explicit DriverCalls(DriverLimit limit);

  using Clock = std::chrono::steady_clock;
  struct Mark {
    std::atomic<Clock::rep> began{0};  ///< 0: there is no call
    DriverLimit limit;
  };

  /// A call, from here to the end of the scope.
  class Call {
   public:
    explicit Call(const DriverCalls& calls) : mark_(calls.mark_.get()) {
      mark_->began.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
    }
    ~Call() { mark_->began.store(0, std::memory_order_relaxed); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    Call(Call&&) = delete;
    Call& operator=(Call&&) = delete;

   private:
    Mark* mark_;
  };

 private:
  std::shared_ptr<Mark> mark_;
};

}  // namespace edgepack
