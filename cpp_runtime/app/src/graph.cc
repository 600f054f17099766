#include "graph.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "bundle_json.h"

namespace edgepack {
namespace {

constexpr std::size_t kMaxDims = 16;
/// Turns of one loop, turns of loops inside of each other together, and how many of those: no plan
/// runs for ever. As edgepack/frontend/blocks.py has them.
constexpr std::int64_t kMostTurns = 1 << 20;
constexpr std::uint64_t kMostTogether = std::uint64_t{1} << 32;
constexpr std::size_t kMostDepth = 8;

/// Bytes of memory, or a place in it: as wide in the plan of every board, and refused where this
/// machine has no such addresses.
std::size_t ReadSize(std::string_view key, JsonObject* object) {
  constexpr std::uint64_t kLimit = std::numeric_limits<std::size_t>::max() / 2;
  const std::uint64_t bytes = object->Size(key);
  if (bytes > kLimit) {
    object->Fail(key, std::to_string(bytes) + " bytes are more than a program of " +
                          std::to_string(8 * sizeof(std::size_t)) + " bits can address");
  }
  return static_cast<std::size_t>(bytes);
}

/// A number that is below `end`.
std::size_t ReadBelow(std::string_view key, std::size_t end, JsonObject* object) {
  const std::uint64_t number = object->Size(key);
  if (number >= end) object->Fail(key, "there is no number " + std::to_string(number));
  return static_cast<std::size_t>(number);
}

std::string At(std::string_view key, std::size_t index) {
  return std::string(key) + "[" + std::to_string(index) + "]";
}

Shape ReadShape(JsonObject* object) {
  Shape shape = object->Ints("shape");
  if (shape.size() > kMaxDims) object->Fail("shape", "too many dimensions");
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] < 0) object->Fail(At("shape", i), std::to_string(shape[i]) + " is below 0");
  }
  return shape;
}

GraphTensor ReadTensor(JsonObject object, const Graph& graph) {
  GraphTensor tensor;
  tensor.info.name = object.String("name");
  const std::string dtype = object.String("dtype");
  const auto known = DTypeFromName(dtype);
  if (!known) object.Fail("dtype", "unknown dtype '" + dtype + "'");
  tensor.info.dtype = *known;
  tensor.info.shape = ReadShape(&object);

  const std::string storage = object.String("storage");
  std::size_t end = 0;
  if (storage == "arena") {
    std::tie(tensor.storage, end) = std::pair(Storage::kArena, graph.arena_bytes);
  } else if (storage == "params") {
    std::tie(tensor.storage, end) = std::pair(Storage::kParams, graph.params_bytes);
  } else if (storage == "shared") {
    std::tie(tensor.storage, end) = std::pair(Storage::kShared, graph.shared_bytes);
  } else {
    object.Fail("storage", "unknown storage '" + storage + "'");
  }
  tensor.offset = ReadSize("offset", &object);
  tensor.info.bytes = ReadSize("bytes", &object);
  object.Finish();
  const auto bytes = ByteSize(tensor.info.dtype, tensor.info.shape);
  if (!bytes || *bytes != tensor.info.bytes) {
    object.Fail("bytes", std::to_string(tensor.info.bytes) + " does not fit shape " +
                             ToString(tensor.info.shape) + " of " + dtype);
  }
  if (tensor.offset % kTensorAlignment != 0) {
    object.Fail("offset", std::to_string(tensor.offset) + " is not a multiple of 64");
  }
  if (tensor.offset > end || tensor.info.bytes > end - tensor.offset) {
    object.Fail("offset", std::to_string(tensor.offset) + " + " +
                              std::to_string(tensor.info.bytes) + " bytes is outside the " +
                              storage + " of " + std::to_string(end));
  }
  return tensor;
}

std::vector<std::size_t> ReadIndices(std::string_view key, std::size_t count, JsonObject* object) {
  std::vector<std::size_t> indices;
  for (const std::int64_t index : object->Ints(key)) {
    if (index < 0 || static_cast<std::uint64_t>(index) >= count) {
      object->Fail(At(key, indices.size()), "there is no tensor " + std::to_string(index) +
                                                " among " + std::to_string(count));
    }
    indices.push_back(static_cast<std::size_t>(index));
  }
  return indices;
}

/// Inputs or outputs: each once, each in the arena.
std::vector<std::size_t> ReadEnds(std::string_view key, const Graph& graph, JsonObject* object) {
  std::vector<std::size_t> indices = ReadIndices(key, graph.tensors.size(), object);
  for (auto index = indices.begin(); index != indices.end(); ++index) {
    const std::string tensor = "tensor " + std::to_string(*index);
    if (graph.tensors[*index].storage != Storage::kArena) {
      object->Fail(key, tensor + " is not in the arena");
    }
    if (std::find(indices.begin(), index, *index) != index) {
      object->Fail(key, tensor + " is named twice");
    }
  }
  return indices;
}

GraphCount ReadCount(JsonObject object, const Graph& graph) {
  GraphCount count;
  count.output = ReadBelow("output", graph.outputs.size(), &object);
  count.axis =
      ReadBelow("axis", graph.tensors[graph.outputs[count.output]].info.shape.size(), &object);
  count.tensor = ReadBelow("tensor", graph.tensors.size(), &object);
  object.Finish();
  const GraphTensor& tensor = graph.tensors[count.tensor];
  if (tensor.info.dtype != DType::kInt64 || tensor.info.size() != 1 ||
      tensor.storage != Storage::kArena) {
    object.Fail("tensor", "a count is one int64 in the arena");
  }
  return count;
}

/// Pairs of an input and an output at one place, each in one of them only.
ModelState ReadState(JsonObject object, const Graph& graph) {
  ModelState state;
  state.input = ReadBelow("input", graph.inputs.size(), &object);
  state.output = ReadBelow("output", graph.outputs.size(), &object);
  if (object.Has("start")) state.start = ReadBelow("start", graph.tensors.size(), &object);
  object.Finish();
  const GraphTensor& input = graph.tensors[graph.inputs[state.input]];
  const GraphTensor& output = graph.tensors[graph.outputs[state.output]];
  if (input.info.dtype != output.info.dtype || input.info.shape != output.info.shape ||
      input.offset != output.offset) {
    object.Fail("output", "does not lie where the input does");
  }
  if (state.start) {
    const GraphTensor& start = graph.tensors[*state.start];
    if (start.storage == Storage::kArena || start.info.dtype != input.info.dtype ||
        start.info.shape != input.info.shape) {
      object.Fail("start", "is no parameter of the input's type and shape");
    }
  }
  for (const ModelState& other : graph.states) {
    if (other.input == state.input) object.Fail("input", "is in two states");
    if (other.output == state.output) object.Fail("output", "is in two states");
  }
  for (const GraphCount& count : graph.counts) {
    if (count.output == state.output) object.Fail("output", "has a size that depends on the data");
  }
  return state;
}

GraphCall ReadCall(JsonObject object, const Graph& graph) {
  GraphCall call;
  call.layer.kernel = object.String("kernel");
  if (call.layer.kernel.empty()) object.Fail("kernel", "is empty");
  // The first plans had none.
  if (object.Has("layer")) {
    JsonObject layer = object.Object("layer");
    call.layer.name = layer.String("name");
    call.layer.op = layer.String("operator");
    call.layer.macs = layer.Size("macs");
    layer.Finish();
  }
  call.args = ReadIndices("args", graph.tensors.size(), &object);
  if (call.args.empty() || graph.tensors[call.args.back()].storage != Storage::kArena) {
    object.Fail("args", "a kernel must write into the arena");
  }
  object.Finish();
  return call;
}

/// `around` are the blocks that the last one is in, which may have ended before this one.
GraphBlock ReadBlock(JsonObject object, const Graph& graph, std::vector<GraphBlock>* around) {
  GraphBlock block;
  const std::uint64_t first = object.Size("first");
  const std::uint64_t end = object.Size("end");
  const std::uint64_t condition = object.Size("condition");
  block.most = static_cast<std::size_t>(object.Int("most", 1, kMostTurns));
  object.Finish();
  if (first >= end || end > graph.calls.size()) {
    object.Fail("end", "calls " + std::to_string(first) + " to " + std::to_string(end) +
                           " are none of " + std::to_string(graph.calls.size()));
  }
  if (condition >= graph.tensors.size()) {
    object.Fail("condition", "there is no tensor " + std::to_string(condition));
  }
  block.first = static_cast<std::size_t>(first);
  block.end = static_cast<std::size_t>(end);
  block.condition = static_cast<std::size_t>(condition);
  const TensorInfo& goes = graph.tensors[block.condition].info;
  if (goes.dtype != DType::kBool || goes.size() != 1) {
    object.Fail("condition", "is not one truth value");
  }
  if (!graph.blocks.empty() && block.first < graph.blocks.back().first) {
    object.Fail("first", "blocks are not in order");
  }
  while (!around->empty() && around->back().end <= block.first) around->pop_back();
  if (!around->empty() && block.end > around->back().end) {
    object.Fail("end", "reaches out of the block around it");
  }
  around->push_back(block);
  std::uint64_t turns = 1;
  for (const GraphBlock& one : *around) turns *= one.most;
  if (turns > kMostTogether || around->size() > kMostDepth) {
    object.Fail("most", "too many turns, or blocks inside of each other");
  }
  return block;
}

/// As many in one direction as every GPU takes at least (CUDA's y and z of a grid).
constexpr std::int64_t kMostGroups = 65535;
constexpr std::int64_t kMostThreads = 1024;

std::array<std::uint32_t, 3> ReadExtents(std::string_view key, std::int64_t most_first,
                                         std::int64_t most, JsonObject* object) {
  const std::vector<std::int64_t> given = object->Ints(key);
  if (given.size() != 3) object->Fail(key, "is not three numbers");
  std::array<std::uint32_t, 3> extents = {};
  for (std::size_t i = 0; i < 3; ++i) {
    if (given[i] < 1 || given[i] > (i == 0 ? most_first : most)) {
      object->Fail(At(key, i), std::to_string(given[i]) + " is out of bounds");
    }
    extents[i] = static_cast<std::uint32_t>(given[i]);
  }
  return extents;
}

GpuLaunch ReadLaunch(JsonObject object, const Graph& graph) {
  GpuLaunch launch;
  launch.call = ReadSize("call", &object);
  launch.function = object.String("function");
  launch.grid = ReadExtents("grid", std::numeric_limits<std::int32_t>::max(), kMostGroups, &object);
  launch.block = ReadExtents("block", kMostThreads, kMostThreads, &object);
  launch.args = ReadIndices("args", graph.tensors.size(), &object);
  object.Finish();
  const std::vector<GpuLaunch>& before = graph.gpu.launches;
  if (launch.call >= graph.calls.size() || (!before.empty() && launch.call < before.back().call)) {
    object.Fail("call", std::to_string(launch.call) + " is none, or out of order");
  }
  for (const GraphBlock& block : graph.blocks) {
    if (launch.call >= block.first && launch.call < block.end) {
      object.Fail("call", "is in a loop or a branch");
    }
  }
  if (launch.function.empty()) object.Fail("function", "is empty");
  if (std::uint64_t{launch.block[0]} * launch.block[1] * launch.block[2] > kMostThreads) {
    object.Fail("block", "is more than " + std::to_string(kMostThreads) + " threads");
  }
  return launch;
}

GpuCopy ReadCopy(JsonObject object, const Graph& graph, const std::vector<GpuCopy>& earlier) {
  GpuCopy copy;
  copy.before = ReadSize("before", &object);
  const std::string to = object.String("to");
  copy.offset = ReadSize("offset", &object);
  copy.bytes = ReadSize("bytes", &object);
  object.Finish();
  if (to != "gpu" && to != "cpu") object.Fail("to", "'" + to + "' is neither gpu nor cpu");
  copy.to_gpu = to == "gpu";
  if (copy.before > graph.calls.size() ||
      (!earlier.empty() && copy.before < earlier.back().before)) {
    object.Fail("before", std::to_string(copy.before) + " is no call, or out of order");
  }
  if (copy.offset > graph.arena_bytes || copy.bytes > graph.arena_bytes - copy.offset) {
    object.Fail("offset", "is outside the arena of " + std::to_string(graph.arena_bytes));
  }
  return copy;
}

void ReadUnified(JsonObject object, Graph* graph) {
  GpuPlan& plan = graph->gpu;
  plan.in_unified.resize(graph->tensors.size());
  for (const std::size_t index : ReadIndices("tensors", graph->tensors.size(), &object)) {
    plan.in_unified[index] = true;
  }
  for (JsonObject& use : object.Objects("uses")) {
    plan.uses.push_back(ReadCopy(std::move(use), *graph, plan.uses));
    if (plan.uses.back().to_gpu) object.Fail("uses", "are the CPU's alone");
  }
  object.Finish();
  // What the CPU has is in its memory.
  const auto is_there = [&](std::size_t index) {
    return graph->tensors[index].storage != Storage::kArena || plan.in_unified[index];
  };
  for (const std::vector<std::size_t>* const ends : {&graph->inputs, &graph->outputs}) {
    if (!std::all_of(ends->begin(), ends->end(), is_there)) {
      object.Fail("tensors", "have not all inputs and outputs");
    }
  }
  for (const GraphCount& count : graph->counts) {
    if (!is_there(count.tensor)) object.Fail("tensors", "have not all counts");
  }
  std::size_t launch = 0;
  for (std::size_t i = 0; i < graph->calls.size(); ++i) {
    const std::size_t before = launch;
    while (launch < plan.launches.size() && plan.launches[launch].call == i) ++launch;
    const std::vector<std::size_t>& args = graph->calls[i].args;
    if (launch == before && !std::all_of(args.begin(), args.end(), is_there)) {
      object.Fail("tensors", "have not all that calls of the CPU have");
    }
  }
}

void ReadGpu(JsonObject object, Graph* graph) {
  graph->gpu.api = object.String("api");
  if (graph->gpu.api != "cuda" && graph->gpu.api != "opencl") {
    object.Fail("api", "unknown interface '" + graph->gpu.api + "'");
  }
  graph->gpu.arch = object.String("arch");
  graph->gpu.driver = object.String("driver");
  if (object.Has("ptx")) graph->gpu.ptx = object.String("ptx");
  for (JsonObject& launch : object.Objects("launches")) {
    graph->gpu.launches.push_back(ReadLaunch(std::move(launch), *graph));
  }
  for (JsonObject& copy : object.Objects("copies")) {
    graph->gpu.copies.push_back(ReadCopy(std::move(copy), *graph, graph->gpu.copies));
  }
  if (object.Has("unified")) ReadUnified(object.Object("unified"), graph);
  object.Finish();
}

}  // namespace

Graph LoadGraph(const std::filesystem::path& path) {
  const JsonDocument document = ReadBundleJson(path);
  JsonObject root = document.Root();
  CheckFormat("edgepack-graph", &root);
  Graph graph;
  graph.model = root.String("model");
  graph.arena_bytes = ReadSize("arena_bytes", &root);
  graph.params_bytes = ReadSize("params_bytes", &root);
  if (root.Has("shared_bytes")) graph.shared_bytes = ReadSize("shared_bytes", &root);
  for (JsonObject& object : root.Objects("tensors")) {
    graph.tensors.push_back(ReadTensor(std::move(object), graph));
  }
  graph.inputs = ReadEnds("inputs", graph, &root);
  graph.outputs = ReadEnds("outputs", graph, &root);
  if (graph.outputs.empty()) root.Fail("outputs", "is empty");
  if (root.Has("counts")) {
    for (JsonObject& object : root.Objects("counts")) {
      graph.counts.push_back(ReadCount(std::move(object), graph));
    }
  }
  if (root.Has("states")) {
    for (JsonObject& object : root.Objects("states")) {
      graph.states.push_back(ReadState(std::move(object), graph));
    }
  }
  for (JsonObject& object : root.Objects("calls")) {
    graph.calls.push_back(ReadCall(std::move(object), graph));
  }
  if (root.Has("blocks")) {
    std::vector<GraphBlock> around;
    for (JsonObject& object : root.Objects("blocks")) {
      graph.blocks.push_back(ReadBlock(std::move(object), graph, &around));
    }
  }
  if (root.Has("gpu")) {
    // It has copies of the plan's own parameters only.
    if (graph.shared_bytes != 0) root.Fail("shared_bytes", "is of a plan for the CPU only");
    ReadGpu(root.Object("gpu"), &graph);
  }
  root.Finish();
  return graph;
}

}  // namespace edgepack
