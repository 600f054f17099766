#include "driver_watch.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace edgepack {
namespace {

using std::chrono::milliseconds;

constexpr char kVariable[] = "EDGEPACK_GPU_LIMIT_S";
constexpr char kLostVariable[] = "EDGEPACK_GPU_LOST";
constexpr double kMostS = 86400;

/// Never destroyed: threads may look at it when the process ends.
struct Watch {
  std::mutex mutex;
  DriverLimit said;
  milliseconds otherwise = kDriverLimit;
  std::function<void(const GpuLostError&)> end;
  bool looks = false;
  std::vector<std::weak_ptr<DriverCalls::Mark>> marks;
};

DriverLimit SaidByEnvironment() {
  const char* const text = std::getenv(kVariable);  // NOLINT(concurrency-mt-unsafe): nobody sets it
  if (text == nullptr || *text == '\0') return std::nullopt;
  char* next = nullptr;
  const double seconds = std::strtod(text, &next);
  if (*next != '\0' || !(seconds >= 0.001 && seconds <= kMostS)) {
    throw UsageError(std::string(kVariable) + ": '" + text +
                     "' is not a number of seconds, 0.001 to 86400");
  }
  return milliseconds(static_cast<milliseconds::rep>(seconds * 1000));
}

Watch& TheWatch() {
  static auto* const watch = new Watch;
  return *watch;
}

void Look() {
  Watch& watch = TheWatch();
  for (;;) {
    milliseconds pause{1000};
    {
      const std::lock_guard<std::mutex> lock(watch.mutex);
      const DriverCalls::Clock::duration now = DriverCalls::Clock::now().time_since_epoch();
      for (const auto& each : watch.marks) {
        const std::shared_ptr<DriverCalls::Mark> mark = each.lock();
        if (mark == nullptr || !mark->limit) continue;
        pause = std::min(pause, std::max(*mark->limit / 4, milliseconds(10)));
        const DriverCalls::Clock::duration began(mark->began.load(std::memory_order_relaxed));
        if (began.count() == 0 || now - began <= *mark->limit) continue;
        watch.end(GpuLostError(
            "gpu-hang",
            "the GPU's driver has not come back from a call within " + ToString(*mark->limit),
            "see the kernel's log on the device (dmesg); a device that hangs may need a reboot"));
      }
    }
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace

std::string ToString(std::chrono::milliseconds limit) {
  const auto count = limit.count();
  return count % 1000 == 0 ? std::to_string(count / 1000) + " s" : std::to_string(count) + " ms";
}

DriverLimit CurrentDriverLimit(bool on_a_cpu) {
  Watch& watch = TheWatch();
  const std::lock_guard<std::mutex> lock(watch.mutex);
  if (watch.said) return watch.said;
  if (const DriverLimit said = SaidByEnvironment()) return said;
  return on_a_cpu ? std::nullopt : DriverLimit(watch.otherwise);
}

void SetDriverLimit(std::chrono::milliseconds limit) {
  Watch& watch = TheWatch();
  const std::lock_guard<std::mutex> lock(watch.mutex);
  watch.said = limit;
}

void SetDefaultDriverLimit(std::chrono::milliseconds limit) {
  Watch& watch = TheWatch();
  const std::lock_guard<std::mutex> lock(watch.mutex);
  watch.otherwise = limit;
}

void EndIfDriverBlocks(std::function<void(const GpuLostError&)> end) {
  Watch& watch = TheWatch();
  const std::lock_guard<std::mutex> lock(watch.mutex);
  watch.end = std::move(end);
}

int StartsLostToGpu() {
  const char* const text = std::getenv(kLostVariable);  // NOLINT(concurrency-mt-unsafe): as above
  return text == nullptr ? 0 : static_cast<int>(std::strtol(text, nullptr, 10));
}

DriverCalls::DriverCalls(DriverLimit limit) : mark_(std::make_shared<Mark>()) {
  mark_->limit = limit;
  Watch& watch = TheWatch();
  const std::lock_guard<std::mutex> lock(watch.mutex);
  if (!watch.end || !limit) return;
  const auto gone = [](const std::weak_ptr<Mark>& mark) { return mark.expired(); };
  watch.marks.erase(std::remove_if(watch.marks.begin(), watch.marks.end(), gone),
                    watch.marks.end());
  watch.marks.push_back(mark_);
  if (watch.looks) return;
  watch.looks = true;
  std::thread(Look).detach();
}

}  // namespace edgepack
