// For programs of bundles whose kernels run on the CPU.
#include <edgepack/errors.h>

#include "gpu.h"

namespace edgepack {

std::shared_ptr<const Gpu> OpenGpu(const GpuModel& model) {
  throw BundleError("the kernels are for a GPU (" + model.graph->gpu.api +
                    "), and this program has no part that opens one: it is not the bundle's own");
}

}  // namespace edgepack
