#include <algorithm>
#include <string>
#include <system_error>
#include <tuple>
#include <utility>

#include <edgepack/errors.h>
#include <edgepack/model.h>

#include "model_state.h"

namespace edgepack {
namespace {

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

/// The parameters of the plan in a folder; none is named where there is no other plan.
MemoryMap MapShared(const std::filesystem::path& folder, std::size_t bytes) {
  if (folder.empty()) throw BundleError("graph.json shares parameters, but of no other plan");
  return MapParams(folder / "params.bin", bytes);
}

/// Packed strides in elements.
std::vector<std::int64_t> Strides(const Shape& shape) {
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  return strides;
}

}  // namespace

Model::State::State(const std::filesystem::path& folder, const std::filesystem::path& beside)
    : graph(LoadGraph(folder / "graph.json")),
      params(MapParams(folder / "params.bin", graph.params_bytes)),
      shared(graph.shared_bytes == 0 ? MemoryMap() : MapShared(beside, graph.shared_bytes)),
      library(folder) {
  strides.reserve(graph.tensors.size());
  for (const GraphTensor& tensor : graph.tensors) strides.push_back(Strides(tensor.info.shape));
  for (const std::size_t index : graph.inputs) inputs.push_back(graph.tensors[index].info);
  for (const std::size_t index : graph.outputs) outputs.push_back(graph.tensors[index].info);
  for (const GraphCount& count : graph.counts) {
    outputs[count.output].bound = outputs[count.output].shape;
  }
  kernels.reserve(graph.calls.size());
  layers.reserve(graph.calls.size());
  std::vector<bool> on_gpu(graph.calls.size());
  for (const GpuLaunch& launch : graph.gpu.launches) on_gpu[launch.call] = true;
  for (std::size_t i = 0; i < graph.calls.size(); ++i) {
    const Layer& layer = graph.calls[i].layer;
    kernels.push_back(on_gpu[i] ? nullptr : library.Find(layer.kernel));
    layers.push_back(layer);
  }
  if (!graph.gpu.api.empty()) gpu = OpenGpu({&graph, folder, params.data()});
}

namespace {

bool AreAlike(const std::vector<TensorInfo>& one, const std::vector<TensorInfo>& other) {
  const auto alike = [](const TensorInfo& a, const TensorInfo& b) {
    return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape;
  };
  return std::equal(one.begin(), one.end(), other.begin(), other.end(), alike);
}

}  // namespace

Model::Model(std::shared_ptr<const State> state) : state_(std::move(state)) {}

Model::Model(const std::filesystem::path& folder) {
  const std::filesystem::path other = folder / "cpu";
  std::error_code unknown;
  if (!std::filesystem::exists(other / "graph.json", unknown)) {
    const auto state = std::make_shared<State>(folder);
    if (state->gpu != nullptr) state->health = std::make_shared<GpuHealth>();
    state_ = state;
    return;
  }
  const auto on_cpu = std::make_shared<State>(other, folder);
  const auto health = std::make_shared<GpuHealth>();
  if (const int starts = StartsLostToGpu(); starts >= static_cast<int>(GpuHealth::kMostFailures)) {
    health->GiveUp("the GPU's driver hung in the last " + std::to_string(starts) + " starts");
    on_cpu->health = health;
    state_ = on_cpu;
    return;
  }
  try {
    const auto state = std::make_shared<State>(folder);
    if (!AreAlike(state->inputs, on_cpu->inputs) || !AreAlike(state->outputs, on_cpu->outputs)) {
      throw BundleError("the plans for the GPU and for the CPU have other inputs or outputs");
    }
    state->on_cpu = Model(std::shared_ptr<const State>(on_cpu));
    state->health = health;
    state_ = state;
  } catch (const GpuError& error) {
    health->GiveUp(error.message);
    on_cpu->health = health;
    state_ = on_cpu;
  }
}

const std::string& Model::name() const { return state_->graph.model; }
std::size_t Model::arena_bytes() const { return state_->graph.arena_bytes; }
std::size_t Model::params_bytes() const { return state_->graph.params_bytes; }
const std::vector<Layer>& Model::layers() const { return state_->layers; }
const std::vector<TensorInfo>& Model::inputs() const { return state_->inputs; }
const std::vector<TensorInfo>& Model::outputs() const { return state_->outputs; }
const std::vector<ModelState>& Model::states() const { return state_->graph.states; }

void Model::DropParams() const {
  state_->params.Drop(0, state_->params.size());
  state_->shared.Drop(0, state_->shared.size());
  if (state_->on_cpu) state_->on_cpu->DropParams();
}

std::optional<Processor> Model::processor() const {
  if (state_->gpu == nullptr && state_->health == nullptr) return std::nullopt;
  Processor found;
  found.on_gpu = state_->gpu != nullptr;
  if (state_->health != nullptr) {
    found.on_gpu = found.on_gpu && (state_->health->works() || !state_->on_cpu);
    std::tie(found.failures, found.why) = state_->health->failures();
  }
  try {
    if (found.on_gpu) {
      found.gpu = state_->gpu->name();
      found.unified = state_->gpu->has_unified_memory();
      const Graph& graph = state_->graph;
      found.gpu_bytes =
          params_bytes() +
          (found.unified ? ArenaBytes(graph, true) + ArenaBytes(graph, false) : graph.arena_bytes);
    }
  } catch (const GpuError& error) {
    found.why = error.message;
  }
  return found;
}

}  // namespace edgepack
