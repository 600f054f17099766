#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <edgepack/model.h>
#include <edgepack/tensor.h>

namespace edgepack {

/// Kernels may use vector loads that want this; the arena and params.bin begin at a page.
constexpr std::size_t kTensorAlignment = 64;

/// `kShared` are the parameters of the plan beside this one.
enum class Storage { kArena, kParams, kShared };

/// A tensor of the plan: `info.bytes` bytes at `offset` in its storage.
struct GraphTensor {
  TensorInfo info;
  Storage storage = Storage::kArena;
  std::size_t offset = 0;
};

/// One kernel call in destination passing style: inputs first, then outputs.
struct GraphCall {
  Layer layer;
  std::vector<std::size_t> args;
};

/// Calls `first` to `end` (excluded), done as long as a truth value is true: a loop of
/// at most `most` turns, a branch if that is 1.
struct GraphBlock {
  std::size_t first = 0;
  std::size_t end = 0;
  std::size_t condition = 0;
  std::size_t most = 0;
};

/// Of an axis of an output only the first elements are in use: as many as an int64 tensor says.
struct GraphCount {
  std::size_t output = 0;  ///< its place among the outputs
  std::size_t axis = 0;
  std::size_t tensor = 0;
};

/// A function of the GPU's kernels that is started for call `call`: `grid` groups of `block`
/// threads; `args` are tensors, in the function's own order.
struct GpuLaunch {
  std::size_t call = 0;
  std::string function;
  std::array<std::uint32_t, 3> grid = {};
  std::array<std::uint32_t, 3> block = {};
  std::vector<std::size_t> args;
};

/// Bytes of the arena that are copied to the other processor's arena before call `before`; the
/// number of calls stands for the end.
struct GpuCopy {
  std::size_t before = 0;
  bool to_gpu = false;
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

/// What of a plan a GPU does. It has an arena and parameters of its own, with the same offsets.
struct GpuPlan {
  std::string api;                  ///< "cuda" or "opencl"; empty: there is no GPU in the plan
  std::string arch;                 ///< of CUDA: what the kernels were compiled for, "sm_87"
  std::string driver;               ///< of CUDA: the oldest that was expected, "12.2"
  std::string ptx;                  ///< of CUDA: the oldest that takes kernels.ptx, or empty
  std::vector<GpuLaunch> launches;  ///< by their calls
  std::vector<GpuCopy> copies;      ///< by what they come before
  /// Where both processors have the same memory, and the plan is made for it: instead of copies the
  /// bytes that the CPU uses, from a call on up to the next one of the GPU's.
  std::vector<GpuCopy> uses;
  /// Of each tensor whether it is then in what both have; empty if the plan is not made for that.
  std::vector<bool> in_unified;
};

/// The plan made ahead of time, graph.json.
struct Graph {
  std::string model;
  std::size_t arena_bytes = 0;
  std::size_t params_bytes = 0;
  std::size_t shared_bytes = 0;  ///< of the parameters of the plan beside it; never with a GPU
  std::vector<GraphTensor> tensors;
  std::vector<std::size_t> inputs;
  std::vector<std::size_t> outputs;
  std::vector<GraphCount> counts;
  std::vector<ModelState> states;
  std::vector<GraphCall> calls;
  /// By their first call, outer ones before those inside of them. One is inside of another or
  /// apart from it; how many, and how many turns together, is limited.
  std::vector<GraphBlock> blocks;
  GpuPlan gpu;
};

/// Reads and checks graph.json: after this every index and every offset is in bounds.
/// Throws BundleError.
Graph LoadGraph(const std::filesystem::path& path);

}  // namespace edgepack
