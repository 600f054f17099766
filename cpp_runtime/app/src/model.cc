#include <string>
#include <system_error>
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

/// Packed strides in elements.
std::vector<std::int64_t> Strides(const Shape& shape) {
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  return strides;
}

}  // namespace

Model::State::State(const std::filesystem::path& folder)
    : graph(LoadGraph(folder / "graph.json")),
      params(MapParams(folder / "params.bin", graph.params_bytes)),
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

Model::Model(const std::filesystem::path& folder) : state_(std::make_shared<const State>(folder)) {}

const std::string& Model::name() const { return state_->graph.model; }
std::size_t Model::arena_bytes() const { return state_->graph.arena_bytes; }
std::size_t Model::params_bytes() const { return state_->graph.params_bytes; }
const std::vector<Layer>& Model::layers() const { return state_->layers; }
const std::vector<TensorInfo>& Model::inputs() const { return state_->inputs; }
const std::vector<TensorInfo>& Model::outputs() const { return state_->outputs; }
const std::vector<ModelState>& Model::states() const { return state_->graph.states; }

}  // namespace edgepack
