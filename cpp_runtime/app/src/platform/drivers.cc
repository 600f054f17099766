#include <edgepack/errors.h>

#include "gpu.h"

namespace edgepack {

#ifdef EDGEPACK_NO_DRIVERS
std::shared_ptr<const Gpu> OpenGpu(const GpuModel& model) {
  throw BundleError("the kernels are for a GPU (" + model.graph->gpu.api +
                    "), and this program has no part that opens one: it is not the bundle's own");
}
#else
std::shared_ptr<const Gpu> OpenGpu(const GpuModel& model) {
  return model.graph->gpu.api == "cuda" ? cuda::Open(model) : opencl::Open(model);
}
#endif

}  // namespace edgepack
