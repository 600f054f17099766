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
  /// `beside` has the plan whose parameters this one may share, if there is one.
  explicit State(const std::filesystem::path& folder, const std::filesystem::path& beside = {});

  Graph graph;
  MemoryMap params;
  MemoryMap shared;
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
