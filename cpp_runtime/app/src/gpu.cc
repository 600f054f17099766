#include "gpu.h"

namespace edgepack {

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

std::shared_ptr<const Gpu> OpenGpu(const GpuModel& model) {
  return model.graph->gpu.api == "cuda" ? cuda::Open(model) : opencl::Open(model);
}

}  // namespace edgepack
