#include <chrono>
#include <cstring>
#include <deque>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include <edgepack/errors.h>
#include <edgepack/model.h>
#include <tvm/ffi/c_api.h>

#include "graph.h"
#include "memory_map.h"
#include "platform/tvm_ffi/call.h"
#include "platform/tvm_ffi/kernel_library.h"

namespace edgepack {
namespace {

DLDataType ToDLDataType(DType dtype) {
  const auto bits = static_cast<std::uint8_t>(8 * ItemSize(dtype));
  switch (dtype) {
    case DType::kBool:
      return {kDLBool, bits, 1};
    case DType::kInt8:
    case DType::kInt16:
    case DType::kInt32:
    case DType::kInt64:
      return {kDLInt, bits, 1};
    case DType::kUInt8:
    case DType::kUInt16:
    case DType::kUInt32:
    case DType::kUInt64:
      return {kDLUInt, bits, 1};
    case DType::kFloat16:
    case DType::kFloat32:
    case DType::kFloat64:
      break;
  }
  return {kDLFloat, bits, 1};
}

MemoryMap MapParams(const std::filesystem::path& path, std::size_t bytes) {
  try {
    MemoryMap params = MemoryMap::File(path);
    if (params.size() != bytes) {
      throw BundleError("params.bin has " + std::to_string(params.size()) +
                        " bytes, graph.json says " + std::to_string(bytes));
    }
    params.Prefetch();
    return params;
  } catch (const std::system_error& error) {
    throw BundleError("cannot read " + path.string() + ": " + error.code().message());
  }
}

MemoryMap MakeArena(std::size_t bytes) {
  try {
    return MemoryMap::Zeroed(bytes);
  } catch (const std::bad_alloc&) {
    throw BundleError("there is no memory for an arena of " + std::to_string(bytes) + " bytes",
                      "use a smaller model or input, or a board with more memory");
  }
}

}  // namespace

struct Model::State {
  struct BoundCall {
    TVMFFISafeCallType function;
    std::vector<TVMFFIAny> args;
  };

  explicit State(const std::filesystem::path& folder)
      : graph(LoadGraph(folder / "graph.json")),
        params(MapParams(folder / "params.bin", graph.params_bytes)),
        library(folder),
        arena(MakeArena(graph.arena_bytes)) {
    tensors.reserve(graph.tensors.size());
    for (GraphTensor& tensor : graph.tensors) {
      const MemoryMap& storage = tensor.storage == Storage::kArena ? arena : params;
      DLTensor view = {};
      view.data = storage.data() + tensor.offset;
      view.device = {kDLCPU, 0};
      view.ndim = static_cast<std::int32_t>(tensor.info.shape.size());
      view.dtype = ToDLDataType(tensor.info.dtype);
      view.shape = tensor.info.shape.data();
      view.strides = Strides(tensor.info.shape);
      tensors.push_back(view);
    }
    for (const std::size_t index : graph.inputs) inputs.push_back(View(index));
    for (const std::size_t index : graph.outputs) found.push_back(graph.tensors[index].info);
    for (const GraphCount& count : graph.counts) {
      found[count.output].bound = found[count.output].shape;
    }
    for (std::size_t i = 0; i < found.size(); ++i) {
      outputs.push_back({&found[i], tensors[graph.outputs[i]].data});
    }
    calls.reserve(graph.calls.size());
    for (GraphCall& call : graph.calls) {
      BoundCall bound = {library.Find(call.layer.kernel), {}};
      bound.args.reserve(call.args.size());
      for (const std::size_t index : call.args) {
        TVMFFIAny arg = {};
        arg.type_index = kTVMFFIDLTensorPtr;
        arg.v_ptr = &tensors[index];
        bound.args.push_back(arg);
      }
      calls.push_back(std::move(bound));
      layers.push_back(std::move(call.layer));
    }
  }

  void CallKernel(std::size_t index) const {
    const BoundCall& call = calls[index];
    Call(layers[index].kernel, call.function, call.args.data(), static_cast<int>(call.args.size()));
  }

  /// Gives outputs the shapes that their counts say, and moves what is in use together.
  void CutOutputs() {
    for (const GraphCount& count : graph.counts) {
      found[count.output].shape = found[count.output].bound;
    }
    for (const GraphCount& count : graph.counts) {
      TensorInfo& info = found[count.output];
      std::int64_t used = 0;
      std::memcpy(&used, tensors[count.tensor].data, sizeof(used));
      std::int64_t& extent = info.shape[count.axis];
      if (used < 0 || used > extent) {
        throw std::runtime_error("output '" + info.name + "' is said to have " +
                                 std::to_string(used) + " of " + std::to_string(extent) +
                                 " elements along axis " + std::to_string(count.axis));
      }
      std::size_t rows = 1;
      for (std::size_t i = 0; i < count.axis; ++i) rows *= static_cast<std::size_t>(info.shape[i]);
      std::size_t step = ItemSize(info.dtype);
      for (std::size_t i = count.axis + 1; i < info.shape.size(); ++i) {
        step *= static_cast<std::size_t>(info.shape[i]);
      }
      const std::size_t row = step * static_cast<std::size_t>(extent);
      const std::size_t kept = step * static_cast<std::size_t>(used);
      char* const data = static_cast<char*>(outputs[count.output].data);
      for (std::size_t i = 1; i < rows; ++i) std::memmove(data + i * kept, data + i * row, kept);
      extent = used;
      info.bytes = rows * kept;
    }
  }

  TensorView View(std::size_t index) { return {&graph.tensors[index].info, tensors[index].data}; }

  /// Packed strides in elements; they live as long as the model.
  std::int64_t* Strides(const Shape& shape) {
    std::vector<std::int64_t>& result = strides.emplace_back(shape.size(), 1);
    for (std::size_t i = shape.size(); i-- > 1;) result[i - 1] = result[i] * shape[i];
    return result.data();
  }

  Graph graph;
  MemoryMap params;
  KernelLibrary library;
  MemoryMap arena;
  std::deque<std::vector<std::int64_t>> strides;
  std::vector<DLTensor> tensors;
  std::vector<TensorView> inputs;
  std::vector<TensorView> outputs;
  /// What the outputs are after a run.
  std::vector<TensorInfo> found;
  std::vector<BoundCall> calls;
  std::vector<Layer> layers;
};

Model::Model(const std::filesystem::path& folder) : state_(std::make_unique<State>(folder)) {}
Model::~Model() = default;
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;

const std::string& Model::name() const { return state_->graph.model; }
std::size_t Model::arena_bytes() const { return state_->graph.arena_bytes; }
std::size_t Model::params_bytes() const { return state_->graph.params_bytes; }
const std::vector<Layer>& Model::layers() const { return state_->layers; }
const std::vector<TensorView>& Model::inputs() const { return state_->inputs; }
const std::vector<TensorView>& Model::outputs() const { return state_->outputs; }

void Model::SetInput(std::size_t index, const TensorInfo& info, const void* data) {
  if (index >= state_->inputs.size()) {
    throw ModelInputError("the model has " + std::to_string(state_->inputs.size()) +
                          " inputs, there is no number " + std::to_string(index));
  }
  const TensorView& input = state_->inputs[index];
  if (info.dtype != input.info->dtype || info.shape != input.info->shape) {
    throw ModelInputError("input '" + input.info->name + "' is " +
                          std::string(Name(input.info->dtype)) + " " + ToString(input.info->shape) +
                          ", not " + std::string(Name(info.dtype)) + " " + ToString(info.shape));
  }
  // Of no elements there may be no address.
  if (input.info->bytes > 0) std::memcpy(input.data, data, input.info->bytes);
}

void Model::Run() {
  for (std::size_t i = 0; i < state_->calls.size(); ++i) state_->CallKernel(i);
  state_->CutOutputs();
}

void Model::Run(const std::function<void(std::size_t)>& after) {
  for (std::size_t i = 0; i < state_->calls.size(); ++i) {
    state_->CallKernel(i);
    after(i);
  }
  state_->CutOutputs();
}

void Model::Run(std::vector<double>* times_ms) {
  using Clock = std::chrono::steady_clock;
  times_ms->resize(state_->calls.size());
  Clock::time_point start = Clock::now();
  Run([&](std::size_t i) {
    const Clock::time_point end = Clock::now();
    (*times_ms)[i] = std::chrono::duration<double, std::milli>(end - start).count();
    start = end;
  });
}

TensorView Model::tensor(std::size_t index) const {
  if (index >= state_->tensors.size()) {
    throw ModelInputError("the plan has " + std::to_string(state_->tensors.size()) +
                          " tensors, there is no number " + std::to_string(index));
  }
  return state_->View(index);
}

}  // namespace edgepack
