#include "graph.h"

#include <algorithm>
#include <utility>

#include "platform/tvm_ffi/json.h"

namespace edgepack {
namespace {

/// Kernels may use vector loads that want this; the arena and params.bin begin at a page.
constexpr std::size_t kAlignment = 64;
constexpr std::size_t kMaxDims = 16;

GraphTensor ReadTensor(const JsonNode& node, const Graph& graph) {
  node.CheckKeys({"name", "dtype", "shape", "storage", "offset", "bytes"});
  GraphTensor tensor;
  tensor.info.name = node["name"].String();
  const std::string dtype = node["dtype"].String();
  const auto known = DTypeFromName(dtype);
  if (!known) node["dtype"].Fail("unknown dtype '" + dtype + "'");
  tensor.info.dtype = *known;
  for (const JsonNode& dim : node["shape"].Elements()) tensor.info.shape.push_back(dim.Int());
  if (tensor.info.shape.size() > kMaxDims) node["shape"].Fail("too many dimensions");

  const std::string storage = node["storage"].String();
  if (storage != "arena" && storage != "params") {
    node["storage"].Fail("unknown storage '" + storage + "'");
  }
  tensor.storage = storage == "arena" ? Storage::kArena : Storage::kParams;
  tensor.offset = node["offset"].Size();
  tensor.info.bytes = node["bytes"].Size();
  const auto bytes = ByteSize(tensor.info.dtype, tensor.info.shape);
  if (!bytes || *bytes != tensor.info.bytes) {
    node["bytes"].Fail(std::to_string(tensor.info.bytes) + " does not fit shape " +
                       ToString(tensor.info.shape) + " of " + dtype);
  }
  if (tensor.offset % kAlignment != 0) {
    node["offset"].Fail(std::to_string(tensor.offset) + " is not a multiple of 64");
  }
  const std::size_t end =
      tensor.storage == Storage::kArena ? graph.arena_bytes : graph.params_bytes;
  if (tensor.offset > end || tensor.info.bytes > end - tensor.offset) {
    node["offset"].Fail(std::to_string(tensor.offset) + " + " + std::to_string(tensor.info.bytes) +
                        " bytes is outside the " + storage + " of " + std::to_string(end));
  }
  return tensor;
}

std::vector<std::size_t> ReadIndices(const JsonNode& node, std::size_t count) {
  std::vector<std::size_t> indices;
  for (const JsonNode& element : node.Elements()) {
    const std::size_t index = element.Size();
    if (index >= count) {
      element.Fail("there is no tensor " + std::to_string(index) + " among " +
                   std::to_string(count));
    }
    indices.push_back(index);
  }
  return indices;
}

/// Inputs or outputs: at least one, each once, each in the arena.
std::vector<std::size_t> ReadEnds(const JsonNode& node, const Graph& graph) {
  std::vector<std::size_t> indices = ReadIndices(node, graph.tensors.size());
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (graph.tensors[indices[i]].storage != Storage::kArena) {
      node.Fail("tensor " + std::to_string(indices[i]) + " is not in the arena");
    }
    if (std::find(indices.begin(), indices.begin() + static_cast<std::ptrdiff_t>(i), indices[i]) !=
        indices.begin() + static_cast<std::ptrdiff_t>(i)) {
      node.Fail("tensor " + std::to_string(indices[i]) + " is named twice");
    }
  }
  return indices;
}

GraphCall ReadCall(const JsonNode& node, const Graph& graph) {
  node.CheckKeys({"kernel", "args", "layer"});
  GraphCall call;
  call.layer.kernel = node["kernel"].String();
  if (call.layer.kernel.empty()) node["kernel"].Fail("is empty");
  // The first plans had none.
  if (node.Has("layer")) {
    const JsonNode layer = node["layer"];
    layer.CheckKeys({"name", "operator", "macs"});
    call.layer.name = layer["name"].String();
    call.layer.op = layer["operator"].String();
    call.layer.macs = layer["macs"].Size();
  }
  call.args = ReadIndices(node["args"], graph.tensors.size());
  if (call.args.empty() || graph.tensors[call.args.back()].storage != Storage::kArena) {
    node["args"].Fail("a kernel must write into the arena");
  }
  return call;
}

}  // namespace

Graph LoadGraph(const std::filesystem::path& path) {
  const JsonNode root = JsonNode::File(path);
  if (!root.Has("format") || root["format"].String() != "edgepack-graph") {
    root.Fail("is not an edgepack graph");
  }
  if (root["version"].Int() != 1) {
    root["version"].Fail("this edgepack-run reads version 1");
  }
  root.CheckKeys({"format", "version", "model", "arena_bytes", "params_bytes", "tensors", "inputs",
                  "outputs", "calls"});
  Graph graph;
  graph.model = root["model"].String();
  graph.arena_bytes = root["arena_bytes"].Size();
  graph.params_bytes = root["params_bytes"].Size();
  for (const JsonNode& node : root["tensors"].Elements()) {
    graph.tensors.push_back(ReadTensor(node, graph));
  }
  graph.inputs = ReadEnds(root["inputs"], graph);
  graph.outputs = ReadEnds(root["outputs"], graph);
  if (graph.outputs.empty()) root["outputs"].Fail("is empty");
  for (const JsonNode& node : root["calls"].Elements()) {
    graph.calls.push_back(ReadCall(node, graph));
  }
  return graph;
}

}  // namespace edgepack
