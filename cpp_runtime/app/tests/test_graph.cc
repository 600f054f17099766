#include <doctest/doctest.h>
#include <edgepack/errors.h>

#include "graph.h"
#include "support.h"

namespace edgepack::testing {
namespace {

std::string LoadError(const std::string& text) {
  const TempFolder folder;
  WriteFile(folder / "graph.json", text);
  return MessageOf([&] { LoadGraph(folder / "graph.json"); });
}

std::string LoadError(std::string_view from, std::string_view to) {
  return LoadError(Replace(GraphText(), from, to));
}

}  // namespace

TEST_CASE("a graph is read") {
  const TempFolder folder;
  WriteFile(folder / "graph.json", GraphText());
  const Graph graph = LoadGraph(folder / "graph.json");
  CHECK(graph.model == "tiny");
  CHECK(graph.arena_bytes == 256);
  CHECK(graph.params_bytes == 16);
  REQUIRE(graph.tensors.size() == 4);
  CHECK(graph.tensors[1].storage == Storage::kParams);
  CHECK(graph.tensors[3].offset == 128);
  CHECK(graph.inputs == std::vector<std::size_t>{0});
  CHECK(graph.outputs == std::vector<std::size_t>{3});
  REQUIRE(graph.calls.size() == 2);
  CHECK(graph.calls[0].layer.kernel == "add");
  CHECK(graph.calls[0].layer.name == "plus");
  CHECK(graph.calls[0].layer.op == "Add");
  CHECK(graph.calls[0].layer.macs == 6000);
  CHECK(graph.calls[0].args == std::vector<std::size_t>{0, 1, 2});
  // As all calls were in the first plans.
  CHECK(graph.calls[1].layer.kernel == "twice");
  CHECK(graph.calls[1].layer.name.empty());
  CHECK(graph.calls[1].layer.macs == 0);
}

TEST_CASE("text that is no graph") {
  CHECK(Contains(LoadError(""), "graph.json: not JSON"));
  CHECK(Contains(LoadError(GraphText().substr(0, 300)), "graph.json: not JSON"));
  CHECK(Contains(LoadError("[]"), "graph.json: the top is no JSON object"));
  CHECK(Contains(LoadError("{}"), "graph.json: format: missing"));
  CHECK(Contains(LoadError("edgepack-graph", "graph"), "format: is not edgepack-graph"));
  CHECK(Contains(LoadError(R"("version": 1)", R"("version": 2)"), "reads version 1"));
  CHECK(Contains(LoadError("\"model\": \"tiny\"", "\"model\": 3"), "model: not a string"));
  CHECK(Contains(LoadError("\"inputs\"", "\"more\": 1, \"inputs\""), "more: unknown key"));
  CHECK(Contains(LoadError("\"arena_bytes\": 256,", ""), "arena_bytes: missing"));
  CHECK(Contains(LoadError("\"arena_bytes\": 256", "\"arena_bytes\": 2.5"),
                 "arena_bytes: not an integer"));
  CHECK(Contains(LoadError("\"arena_bytes\": 256", "\"arena_bytes\": 1e400"), "not JSON"));
  CHECK(Contains(LoadError("\"macs\": 6000", "\"macs\": -1"), "calls[0].layer.macs: -1 is not"));
  CHECK(Contains(LoadError("\"macs\"", "\"max\": 1, \"macs\""), "calls[0].layer.max: unknown key"));
  CHECK(Contains(LoadError("\"inputs\": [0]", "\"inputs\": 0"), "inputs: not a list"));
}

TEST_CASE("numbers of every width") {
  const TempFolder folder;
  const auto macs = [&](const std::string& number) {
    WriteFile(folder / "graph.json", Replace(GraphText(), "6000", number));
    return LoadGraph(folder / "graph.json").calls[0].layer.macs;
  };
  // One below, at and above what 31, 32 and 63 bits hold; all but the last on every board.
  CHECK(macs("2147483647") == 0x7FFFFFFFU);
  CHECK(macs("2147483648") == 0x80000000U);
  CHECK(macs("4294967295") == 0xFFFFFFFFU);
  CHECK(macs("4294967296") == std::uint64_t{1} << 32U);
  CHECK(macs("10683187200") == 10683187200U);
  CHECK(macs("9223372036854775807") == std::uint64_t{INT64_MAX});
  CHECK(Contains(LoadError("6000", "9223372036854775808"), "macs: not an integer of 64 bits"));

  // Memory is another matter: what cannot be addressed is refused, and never cut to fewer bits.
  constexpr bool kIsWide = sizeof(std::size_t) > 4;
  const std::string more = "4294967552";  // 2^32 + 256
  const auto is_refused = [&](std::string_view key, std::string_view from) {
    const std::string name(key);
    const std::string said =
        LoadError("\"" + name + "\": " + std::string(from), "\"" + name + "\": " + more);
    return Contains(said, name + ": " + more + " bytes are more than a program of 32 bits");
  };
  CHECK(is_refused("arena_bytes", "256") == !kIsWide);
  CHECK(is_refused("params_bytes", "16") == !kIsWide);
  CHECK(is_refused("offset", "128") == !kIsWide);
  CHECK(is_refused("bytes", "16") == !kIsWide);
  CHECK(LoadError("\"arena_bytes\": 256", "\"arena_bytes\": 2147483647").empty());
  CHECK(LoadError("\"arena_bytes\": 256", "\"arena_bytes\": 2147483648").empty() == kIsWide);
  // Indices: 2^32 is not 0, nor 2^32 + 1 one.
  CHECK(Contains(LoadError("\"outputs\": [3]", "\"outputs\": [4294967299]"),
                 "there is no tensor 4294967299"));
  CHECK(Contains(LoadError("[0, 1, 2]", "[0, 1, 4294967298]"), "there is no tensor 4294967298"));
  CHECK(Contains(LoadError("[1, 4]", "[1, 4294967300]"), "does not fit shape"));
  const auto count = [](std::string_view from, std::string_view to) {
    return LoadError(Replace(CountedGraphText(), from, to));
  };
  CHECK(Contains(count("\"axis\": 1", "\"axis\": 4294967297"), "no number 4294967297"));
  CHECK(Contains(count("\"tensor\": 3", "\"tensor\": 4294967299"), "no number 4294967299"));
  const auto loop = [](std::string_view from, std::string_view to) {
    return LoadError(Replace(LoopGraphText(), from, to));
  };
  CHECK(Contains(loop("\"end\": 7", "\"end\": 4294967303"), "calls 3 to 4294967303 are none"));
  CHECK(Contains(loop("\"condition\": 3", "\"condition\": 4294967299"), "tensor 4294967299"));
  CHECK(Contains(loop("\"most\": 5", "\"most\": 4294967301"), "most: 4294967301 is not"));
}

TEST_CASE("tensors out of bounds") {
  CHECK(Contains(LoadError("\"params\"", "\"shared\""), "is outside the shared of 0"));
  CHECK(Contains(LoadError("\"inputs\"", R"("gpu": {}, "shared_bytes": 16, "inputs")"),
                 "shared_bytes: is of a plan for the CPU only"));
  CHECK(Contains(LoadError("\"offset\": 128", "\"offset\": 256"),
                 "tensors[3].offset: 256 + 16 bytes is outside the arena of 256"));
  CHECK(Contains(LoadError("\"offset\": 128", "\"offset\": -64"), "is not between 0"));
  CHECK(Contains(LoadError("\"offset\": 128", "\"offset\": 9223372036854775744"),
                 "tensors[3].offset: "));
  CHECK(Contains(LoadError("\"offset\": 128", "\"offset\": 100"), "not a multiple of 64"));
  CHECK(Contains(LoadError("\"params_bytes\": 16", "\"params_bytes\": 15"), "outside the params"));
  CHECK(Contains(LoadError("\"bytes\": 16", "\"bytes\": 20"), "20 does not fit shape (1, 4)"));
  CHECK(Contains(LoadError("[1, 4]", "[1, -4]"), "tensors[0].shape[1]: -4 is below 0"));
  CHECK(Contains(LoadError("[1, 4]", "[4294967296, 4294967296]"), "does not fit shape"));
  CHECK(Contains(LoadError("float32", "float33"), "unknown dtype 'float33'"));
  CHECK(Contains(LoadError("\"storage\": \"arena\"", "\"storage\": \"disk\""), "unknown storage"));
  CHECK(
      Contains(LoadError("[1, 4]", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,4]"), "too many dimensions"));
}

TEST_CASE("indices out of bounds") {
  CHECK(
      Contains(LoadError("\"outputs\": [3]", "\"outputs\": [4]"), "there is no tensor 4 among 4"));
  CHECK(Contains(LoadError("\"outputs\": [3]", "\"outputs\": []"), "outputs: is empty"));
  CHECK(Contains(LoadError("\"inputs\": [0]", "\"inputs\": [1]"), "tensor 1 is not in the arena"));
  CHECK(Contains(LoadError("\"inputs\": [0]", "\"inputs\": [0, 0]"), "named twice"));
  CHECK(Contains(LoadError("[0, 1, 2]", "[0, 1, 22]"), "calls[0].args[2]: there is no tensor 22"));
  CHECK(Contains(LoadError("[0, 1, 2]", "[0, 2, 1]"), "must write into the arena"));
  CHECK(Contains(LoadError("[0, 1, 2]", "[]"), "must write into the arena"));
  CHECK(Contains(LoadError("\"kernel\": \"add\"", "\"kernel\": \"\""), "kernel: is empty"));
}

TEST_CASE("what a GPU does") {
  const std::string launch =
      R"({"call": 0, "function": "k_add", "grid": [2, 1, 1], "block": [64, 1, 1], "args": [0, 2]})";
  const std::string copy = R"({"before": 0, "to": "gpu", "offset": 0, "bytes": 24})";
  const auto graph_with = [](const std::string& api, const std::string& launches,
                             const std::string& copies) {
    return Replace(GraphText(), "\"inputs\"",
                   R"("gpu": {"api": ")" + api +
                       R"(", "arch": "sm_87", "driver": "12.2", "launches": [)" + launches +
                       R"(], "copies": [)" + copies + "]}, \"inputs\"");
  };
  const TempFolder folder;
  WriteFile(folder / "graph.json", graph_with("cuda", launch, copy));
  const GpuPlan gpu = LoadGraph(folder / "graph.json").gpu;
  CHECK(gpu.api == "cuda");
  REQUIRE(gpu.launches.size() == 1);
  CHECK(gpu.launches[0].function == "k_add");
  CHECK(gpu.launches[0].grid == std::array<std::uint32_t, 3>{2, 1, 1});
  CHECK(gpu.launches[0].args == std::vector<std::size_t>{0, 2});
  REQUIRE(gpu.copies.size() == 1);
  CHECK(gpu.copies[0].to_gpu);

  const auto error = [&](const std::string& launches, const std::string& copies) {
    return LoadError(graph_with("cuda", launches, copies));
  };
  CHECK(Contains(LoadError(graph_with("metal", "", "")), "gpu.api: unknown interface 'metal'"));
  CHECK(Contains(error(Replace(launch, "\"call\": 0", "\"call\": 2"), ""), "launches[0].call: 2"));
  CHECK(Contains(error(Replace(launch, "\"call\": 0", "\"call\": 1") + ", " + launch, ""),
                 "launches[1].call: 0"));
  CHECK(Contains(error(Replace(launch, "k_add", ""), ""), "launches[0].function: is empty"));
  CHECK(Contains(error(Replace(launch, "[2, 1, 1]", "[2, 1]"), ""), "grid: is not three numbers"));
  CHECK(Contains(error(Replace(launch, "[2, 1, 1]", "[0, 1, 1]"), ""), "grid[0]: 0 is out of"));
  CHECK(Contains(error(Replace(launch, "[2, 1, 1]", "[1, 65536, 1]"), ""), "grid[1]: 65536"));
  CHECK(Contains(error(Replace(launch, "[64, 1, 1]", "[64, 32, 1]"), ""),
                 "block: is more than 1024 threads"));
  CHECK(Contains(error(Replace(launch, "[0, 2]", "[0, 4]"), ""), "args[1]: there is no tensor 4"));
  CHECK(Contains(error("", Replace(copy, "gpu", "tpu")), "copies[0].to: 'tpu' is neither"));
  CHECK(Contains(error("", Replace(copy, "\"before\": 0", "\"before\": 3")),
                 "copies[0].before: 3 is no call"));
  CHECK(Contains(error("", Replace(copy, "24", "9223372036854775807")), "copies[0]."));
  CHECK(Contains(error("", Replace(copy, "\"offset\": 0", "\"offset\": 250")),
                 "copies[0].offset: is outside the arena of 256"));
}

TEST_CASE("what both processors have") {
  const auto graph_with = [](const std::string& tensors, const std::string& uses) {
    return Replace(GraphText(), "\"inputs\"",
                   R"("gpu": {"api": "cuda", "arch": "sm_87", "driver": "12.2", "launches": [)"
                   R"({"call": 0, "function": "k", "grid": [1, 1, 1], "block": [1, 1, 1], )"
                   R"("args": [0, 2]}], "copies": [], "unified": {"tensors": [)" +
                       tensors + R"(], "uses": [)" + uses + R"(]}}, "inputs")");
  };
  const std::string use = R"({"before": 1, "to": "cpu", "offset": 0, "bytes": 24})";
  const TempFolder folder;
  WriteFile(folder / "graph.json", graph_with("0, 2, 3", use));
  const Graph graph = LoadGraph(folder / "graph.json");
  REQUIRE(graph.gpu.in_unified.size() == graph.tensors.size());
  for (std::size_t i = 0; i < graph.tensors.size(); ++i) {
    CHECK(graph.gpu.in_unified[i] == (i == 0 || i == 2 || i == 3));
  }
  REQUIRE(graph.gpu.uses.size() == 1);
  CHECK(graph.gpu.uses[0].before == 1);
  const auto error = [&](const std::string& tensors, const std::string& uses) {
    return LoadError(graph_with(tensors, uses));
  };
  CHECK(Contains(error("0, 2, 9", use), "gpu.unified.tensors[2]: there is no tensor 9"));
  CHECK(Contains(error("2, 3", use), "unified.tensors: have not all inputs and outputs"));
  CHECK(Contains(error("0, 2", use), "unified.tensors: have not all inputs and outputs"));
  CHECK(Contains(error("0, 3", use), "unified.tensors: have not all that calls of the CPU have"));
  CHECK(Contains(error("0, 2, 3", Replace(use, "cpu", "gpu")), "uses: are the CPU's alone"));
  CHECK(Contains(error("0, 2, 3", Replace(use, "24", "257")), "uses[0].offset: is outside"));
}

TEST_CASE("states") {
  const TempFolder folder;
  WriteFile(folder / "graph.json", StateGraphText());
  const Graph graph = LoadGraph(folder / "graph.json");
  REQUIRE(graph.states.size() == 1);
  CHECK(graph.states[0].input == 1);
  CHECK(graph.states[0].output == 0);
  const auto error = [](std::string_view from, std::string_view to) {
    return LoadError(Replace(StateGraphText(), from, to));
  };
  const std::string state = R"({"input": 1, "output": 0})";
  CHECK(Contains(error(state, "{}"), "states[0].input: missing"));
  CHECK(Contains(error(state, "1"), "states"));
  CHECK(Contains(error(state, R"({"input": 2, "output": 0})"), "there is no number 2"));
  CHECK(Contains(error(state, R"({"input": 1, "output": 1})"), "there is no number 1"));
  CHECK(Contains(error(state, R"({"input": -1, "output": 0})"), "-1 is not"));
  const auto start = [&](std::string_view tensor) {
    return error(state, R"({"input": 1, "output": 0, "start": )" + std::string(tensor) + "}");
  };
  CHECK(Contains(start("0"), "states[0].start: is no parameter of the input's type and shape"));
  CHECK(Contains(start("1"), "is no parameter of the input's type and shape"));  // (4), not (1, 4)
  CHECK(Contains(start("4"), "states[0].start: there is no number 4"));
  CHECK(LoadError(StartGraphText()).empty());
  CHECK(Contains(error(state, R"({"input": 0, "output": 0})"),
                 "states[0].output: does not lie where the input does"));
  CHECK(Contains(error(state, state + ", " + state), "states[1].input: is in two states"));
  CHECK(Contains(error(state, R"({"input": 1, "output": 0, "more": 1})"), "more: unknown key"));
}

TEST_CASE("blocks of calls") {
  const auto error = [](std::string_view blocks) {
    return LoadError(Replace(GraphText(), "\"outputs\": [3],",
                             "\"outputs\": [3], \"blocks\": " + std::string(blocks) + ","));
  };
  const auto goes = [](std::string_view blocks) {
    std::string text = Replace(LoopGraphText(), R"("most": 5},)", R"("most": 5})");
    text = Replace(text, R"({"first": 3, "end": 4, "condition": 4, "most": 1})", blocks);
    return LoadError(text);
  };
  CHECK(error("[]").empty());
  CHECK(LoadError(LoopGraphText()).empty());
  CHECK(goes("").empty());
  CHECK(Contains(error("{}"), "blocks: not a list"));
  CHECK(Contains(error("[{}]"), "blocks[0].first: missing"));
  CHECK(Contains(error(R"([{"first": 0, "end": 3, "condition": 0, "most": 1}])"),
                 "blocks[0].end: calls 0 to 3 are none of 2"));
  CHECK(Contains(error(R"([{"first": 1, "end": 1, "condition": 0, "most": 1}])"), "calls 1 to 1"));
  CHECK(Contains(error(R"([{"first": -1, "end": 1, "condition": 0, "most": 1}])"), "-1 is not"));
  CHECK(Contains(error(R"([{"first": 0, "end": 1, "condition": 4, "most": 1}])"),
                 "blocks[0].condition: there is no tensor 4"));
  CHECK(Contains(error(R"([{"first": 0, "end": 1, "condition": 0, "most": 1}])"),
                 "blocks[0].condition: is not one truth value"));
  CHECK(Contains(error(R"([{"first": 0, "end": 1, "condition": 0, "most": 0}])"),
                 "blocks[0].most: 0 is not between 1 and 1048576"));
  CHECK(Contains(error(R"([{"first": 0, "end": 1, "condition": 0, "most": 1048577}])"), "most"));
  CHECK(Contains(goes(R"(, {"first": 2, "end": 4, "condition": 4, "most": 1})"),
                 "blocks[1].first: blocks are not in order"));
  CHECK(Contains(goes(R"(, {"first": 6, "end": 8, "condition": 4, "most": 1})"),
                 "blocks[1].end: reaches out of the block around it"));
  const std::string inner = R"(, {"first": 3, "end": 7, "condition": 4, "most": 1})";
  CHECK(goes(inner).empty());
  std::string deep;
  for (int i = 0; i < 7; ++i) deep += inner;
  CHECK(goes(deep).empty());
  CHECK(Contains(goes(deep + inner), "blocks[8].most: too many turns"));
  const std::string most = R"(, {"first": 4, "end": 6, "condition": 4, "most": 1048576})";
  CHECK(goes(most).empty());
  CHECK(Contains(goes(most + most), "blocks[2].most: too many turns"));
  // Side by side they are not inside of each other.
  CHECK(goes(R"(, {"first": 4, "end": 5, "condition": 4, "most": 1048576},
                  {"first": 5, "end": 7, "condition": 4, "most": 1048576})")
            .empty());
}

}  // namespace edgepack::testing
