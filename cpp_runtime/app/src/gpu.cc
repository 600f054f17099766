#include "gpu.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <sys/prctl.h>
#include <thread>

#include <edgepack/errors.h>

namespace edgepack {
namespace {

/// How long to look without a pause, as drivers do.
constexpr std::chrono::microseconds kAwake{1000};
/// Then between two looks that part of what was waited for, which is what a result may be late.
constexpr int kPart = 64;
constexpr std::chrono::microseconds kLongestPause{2000};

std::atomic<bool> some_hangs = false;

/// Sleeps to the microsecond, for as long as this lives: else 50 more are allowed.
class SleepsExactly {
 public:
  SleepsExactly() : before_(prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0)) {
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
  }
  ~SleepsExactly() {
    if (before_ > 0) prctl(PR_SET_TIMERSLACK, before_, 0, 0, 0);
  }
  SleepsExactly(const SleepsExactly&) = delete;
  SleepsExactly& operator=(const SleepsExactly&) = delete;
  SleepsExactly(SleepsExactly&&) = delete;
  SleepsExactly& operator=(SleepsExactly&&) = delete;

 private:
  int before_;
};

/// Looks until `done` says so; false if it does not within the limit. `done` may throw.
template <typename Done>
bool WaitUntil(const DriverLimit& limit, const Done& done) {
  using Clock = DriverCalls::Clock;
  if (done()) return true;
  const Clock::time_point began = Clock::now();
  std::optional<SleepsExactly> exactly;
  for (;;) {
    const Clock::duration elapsed = Clock::now() - began;
    if (limit && elapsed > *limit) return false;
    if (elapsed < kAwake) {
      std::this_thread::yield();
    } else {
      if (!exactly) exactly.emplace();
      std::this_thread::sleep_for(std::min<Clock::duration>(elapsed / kPart, kLongestPause));
    }
    if (done()) return true;
  }
}

}  // namespace

bool GpuHangs() { return some_hangs; }

void GpuSession::Enter(bool times) {
  const DriverCalls::Call call(calls_);
  EnterDriver();
  first_ = end_ = 0;
  timed_ = false;
  if (hangs_ && !Done()) {
    throw GpuLostError("gpu-hang", "the GPU still hangs: it has not ended an earlier run",
                       "a device that hangs may need a reboot");
  }
  hangs_ = false;
  if (times != times_) SetTimes(times);
  times_ = times;
}

void GpuSession::ToGpu(std::size_t offset, std::size_t bytes) {
  if (bytes == 0) return;
  const DriverCalls::Call call(calls_);
  StartToGpu(offset, bytes);
}

void GpuSession::ToCpu(std::size_t offset, std::size_t bytes, char* to) {
  if (bytes == 0) return;
  const DriverCalls::Call call(calls_);
  StartToCpu(offset, bytes, to);
}

void GpuSession::Use(std::size_t offset, std::size_t bytes) {
  if (bytes == 0) return;
  const DriverCalls::Call call(calls_);
  StartUse(offset, bytes);
}

void GpuSession::Launch(std::size_t first, std::size_t end) {
  if (end_ == 0) first_ = first;
  end_ = end;
  const DriverCalls::Call call(calls_);
  StartLaunches(first, end);
  timed_ = times_;
}

std::optional<double> GpuSession::TakenMs() {
  if (!timed_) return std::nullopt;
  timed_ = false;
  const DriverCalls::Call call(calls_);
  return Taken();
}

void GpuSession::Wait() {
  {
    const DriverCalls::Call call(calls_);
    GiveAll();
  }
  const bool done = WaitUntil(limit_, [this] {
    const DriverCalls::Call call(calls_);
    return Done();
  });
  if (!done) {
    hangs_ = true;
    some_hangs = true;
    throw GpuLostError(
        "gpu-hang", "the GPU hangs: it has not ended " + Doing() + " within " + ToString(*limit_),
        "see the kernel's log on the device (dmesg); --profile waits for each "
        "kernel and names the one that hangs; --gpu-limit allows more time");
  }
  first_ = end_ = 0;
}

bool GpuSession::Settles() {
  const auto is_done = [this] {
    try {
      const DriverCalls::Call call(calls_);
      return Done();
    } catch (const GpuError&) {
      return true;  // nothing that failed is under way
    }
  };
  try {
    const DriverCalls::Call call(calls_);
    EnterDriver();
    if (!hangs_) GiveAll();
  } catch (const GpuError&) {
    return true;
  }
  // What hung before is waited for no more.
  if (hangs_ ? is_done() : WaitUntil(limit_, is_done)) return true;
  some_hangs = true;
  return false;
}

std::string GpuSession::Doing() const {
  if (end_ == 0) return "copies";
  const auto said = [this](std::size_t launch) {
    const Layer& layer = graph_->calls[graph_->gpu.launches[launch].call].layer;
    return layer.kernel + " of layer '" + layer.name + "'";
  };
  if (end_ - first_ == 1) return "kernel " + said(first_);
  return "one of " + std::to_string(end_ - first_) + " kernels, from " + said(first_) + " to " +
         said(end_ - 1);
}

std::size_t ArenaBytes(const Graph& graph, bool in_unified) {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < graph.tensors.size(); ++i) {
    const GraphTensor& tensor = graph.tensors[i];
    if (tensor.storage != Storage::kArena || graph.gpu.in_unified[i] != in_unified) continue;
    bytes = std::max(bytes, tensor.offset + tensor.info.bytes);
  }
  return bytes;
}

bool GpuHealth::works() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return in_a_row_ < kMostFailures;
}

void GpuHealth::Worked() {
  const std::lock_guard<std::mutex> lock(mutex_);
  // What others have found broken stays so.
  if (in_a_row_ < kMostFailures) in_a_row_ = 0;
}

void GpuHealth::Failed(const std::string& why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++all_;
  ++in_a_row_;
  why_ = why;
}

void GpuHealth::GiveUp(const std::string& why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  in_a_row_ = kMostFailures;
  why_ = why;
}

std::pair<std::size_t, std::string> GpuHealth::failures() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return {all_, why_};
}

}  // namespace edgepack
