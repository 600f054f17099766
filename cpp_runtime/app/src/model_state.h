#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include <edgepack/model.h>
#include <tvm/ffi/c_api.h>

#include "gpu.h"
#include "graph.h"
#include "memory_map.h"
#include "platform/tvm_ffi/kernel_library.h"

namespace edgepack {

/// What sessions share.
struct Model::State {
  explicit State(const std::filesystem::path& folder);

  Graph graph;
  MemoryMap params;
  KernelLibrary library;
  /// Of each tensor of the graph, packed, in elements.
  std::vector<std::vector<std::int64_t>> strides;
  std::vector<TensorInfo> inputs;
  std::vector<TensorInfo> outputs;
  /// One per call.
  std::vector<TVMFFISafeCallType> kernels;
  std::vector<Layer> layers;
  /// Null if the plan has nothing for one.
  std::shared_ptr<const Gpu> gpu;
  /// The same model for the CPU alone, if there is a plan for that, too.
  std::optional<Model> on_cpu;
  /// Null if no plan is for a GPU.
  std::shared_ptr<GpuHealth> health;
};

}  // namespace edgepack
