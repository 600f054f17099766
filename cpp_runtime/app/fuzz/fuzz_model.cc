// Input: graph.json, a zero byte, params.bin. What loads, runs: no tensor lies outside of the
// memory that was mapped for it. The library is a fixed one, for dlopen trusts what it maps.
#include <filesystem>
#include <stdexcept>

#include <edgepack/session.h>

#include "files.h"
#include "graph.h"

namespace {

using namespace edgepack;

struct Files {
  Files() {
    folder.Link("graph.json", graph.path());
    folder.Link("params.bin", params.path());
    const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe");
    folder.Link("model.so", program.parent_path() / "fuzz-kernels");
  }
  MemoryFile graph;
  MemoryFile params;
  LinkFolder folder;
};

/// Turns of all loops, had each of them those of all others.
double TurnsOf(const Graph& graph) {
  double turns = 1;
  for (const GraphBlock& block : graph.blocks) turns *= static_cast<double>(block.most);
  return turns;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // To touch more takes long and shows no more.
  constexpr std::size_t kMostBytes = 1 << 20;
  constexpr double kMostTurns = 64;
  static const Files files;
  const std::string_view text = Text(data, size);
  const std::string_view graph = text.substr(0, text.find('\0'));
  files.graph.Write(graph);
  files.params.Write(text.substr(std::min(graph.size() + 1, text.size())));
  try {
    const Model model(files.folder.path());
    EDGEPACK_REQUIRE(!model.outputs().empty());
    if (model.arena_bytes() > kMostBytes || TurnsOf(LoadGraph(files.graph.path())) > kMostTurns) {
      return 0;
    }
    Session session(model);
    for (std::size_t i = 0; i < model.inputs().size(); ++i) {
      const TensorInfo& info = model.inputs()[i];
      const std::vector<char> input(info.bytes, 1);
      session.SetInput(i, info, input.data());
    }
    std::vector<double> times;
    session.Run(&times);
    EDGEPACK_REQUIRE(times.size() == model.layers().size());
    volatile char last = 0;
    for (const TensorView& output : session.outputs()) {
      if (output.info->bytes != 0) {
        last = static_cast<const char*>(output.data)[output.info->bytes - 1];
      }
    }
    (void)last;
  } catch (const Error& error) {
    RequireRefusal(error);
  } catch (const std::runtime_error& error) {  // what a run says: here of a count of elements
    EDGEPACK_REQUIRE(*error.what() != '\0');
  }
  return 0;
}
