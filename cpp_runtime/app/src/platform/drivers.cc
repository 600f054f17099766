#include "gpu.h"

namespace edgepack {

std::shared_ptr<const Gpu> OpenGpu(const GpuModel& model) {
  return model.graph->gpu.api == "cuda" ? cuda::Open(model) : opencl::Open(model);
}

}  // namespace edgepack
