// Input: graph.json.
#include <set>

#include "files.h"
#include "graph.h"

namespace {

using namespace edgepack;

/// Strides are counted in these.
void CheckStrides(const Shape& shape) {
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 1;) {
    EDGEPACK_REQUIRE(!__builtin_mul_overflow(stride, shape[i], &stride));
  }
}

/// They are inside of each other or apart, in order, and end after so many turns.
void CheckBlocks(const Graph& graph) {
  for (std::size_t i = 0; i < graph.blocks.size(); ++i) {
    const GraphBlock& block = graph.blocks[i];
    EDGEPACK_REQUIRE(block.first < block.end && block.end <= graph.calls.size());
    const TensorInfo& condition = graph.tensors.at(block.condition).info;
    EDGEPACK_REQUIRE(condition.dtype == DType::kBool && condition.bytes == 1);
    double turns = static_cast<double>(block.most);
    for (std::size_t j = 0; j < i; ++j) {
      const GraphBlock& before = graph.blocks[j];
      EDGEPACK_REQUIRE(before.first <= block.first);
      EDGEPACK_REQUIRE(before.end <= block.first || before.end >= block.end);
      if (before.end > block.first) turns *= static_cast<double>(before.most);
    }
    EDGEPACK_REQUIRE(block.most >= 1 && turns <= 4294967296.0);
  }
}

/// The promises of graph.h: no tensor and no index points outside.
void CheckGraph(const Graph& graph) {
  EDGEPACK_REQUIRE(!graph.outputs.empty());
  for (const GraphTensor& tensor : graph.tensors) {
    const std::size_t end = tensor.storage == Storage::kArena    ? graph.arena_bytes
                            : tensor.storage == Storage::kParams ? graph.params_bytes
                                                                 : graph.shared_bytes;
    EDGEPACK_REQUIRE(tensor.offset % 64 == 0);
    EDGEPACK_REQUIRE(tensor.offset <= end && tensor.info.bytes <= end - tensor.offset);
    EDGEPACK_REQUIRE(ByteSize(tensor.info.dtype, tensor.info.shape) == tensor.info.bytes);
    CheckStrides(tensor.info.shape);
  }
  for (const std::vector<std::size_t>* const ends : {&graph.inputs, &graph.outputs}) {
    for (const std::size_t index : *ends) {
      EDGEPACK_REQUIRE(graph.tensors.at(index).storage == Storage::kArena);
    }
    EDGEPACK_REQUIRE(std::set<std::size_t>(ends->begin(), ends->end()).size() == ends->size());
  }
  for (const GraphCall& call : graph.calls) {
    EDGEPACK_REQUIRE(!call.layer.kernel.empty() && !call.args.empty());
    for (const std::size_t index : call.args) EDGEPACK_REQUIRE(index < graph.tensors.size());
    EDGEPACK_REQUIRE(graph.tensors[call.args.back()].storage == Storage::kArena);
  }
  CheckBlocks(graph);
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const MemoryFile file;
  file.Write(Text(data, size));
  try {
    CheckGraph(LoadGraph(file.path()));
  } catch (const Error& error) {
    RequireRefusal(error);
  }
  return 0;
}
