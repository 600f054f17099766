#include "support.h"

#include <doctest/doctest.h>

namespace edgepack::testing {

const std::string& GraphText() {
  static const std::string kText = R"({
    "format": "edgepack-graph", "version": 1, "model": "tiny",
    "arena_bytes": 256, "params_bytes": 16,
    "tensors": [
      {"name": "x", "dtype": "float32", "shape": [1, 4], "storage": "arena", "offset": 0, "bytes": 16},
      {"name": "w", "dtype": "float32", "shape": [4], "storage": "params", "offset": 0, "bytes": 16},
      {"name": "s", "dtype": "float32", "shape": [1, 4], "storage": "arena", "offset": 64, "bytes": 16},
      {"name": "y", "dtype": "float32", "shape": [1, 4], "storage": "arena", "offset": 128, "bytes": 16}],
    "inputs": [0], "outputs": [3],
    "calls": [{"kernel": "add", "args": [0, 1, 2], "layer": {"name": "plus", "operator": "Add", "macs": 6000}},
              {"kernel": "twice", "args": [2, 3]}]})";
  return kText;
}

std::string CountedGraphText() {
  std::string text = Replace(GraphText(), R"({"name": "y", "dtype": "float32", "shape": [1, 4])",
                             R"({"name": "n", "dtype": "int64", "shape": [], "storage": "arena",
                                 "offset": 192, "bytes": 8},
                                {"name": "y", "dtype": "float32", "shape": [2, 2])");
  text = Replace(text, R"("outputs": [3],)",
                 R"("outputs": [4], "counts": [{"output": 0, "axis": 1, "tensor": 3}],)");
  return Replace(text, R"("args": [2, 3]})",
                 R"("args": [2, 4]}, {"kernel": "count", "args": [0, 3]})");
}

std::string StateGraphText() {
  std::string text = Replace(GraphText(), R"("inputs": [0], "outputs": [3],)",
                             R"("inputs": [0, 2], "outputs": [3],
                                "states": [{"input": 1, "output": 0}],)");
  text = Replace(text, R"("offset": 128, "bytes": 16})", R"("offset": 64, "bytes": 16})");
  text = Replace(text, R"("args": [0, 1, 2])", R"("args": [0, 2, 3])");
  return Replace(text, R"(,
              {"kernel": "twice", "args": [2, 3]})",
                 "");
}

std::string StartGraphText() {
  const std::string text = Replace(StateGraphText(), R"("shape": [4])", R"("shape": [1, 4])");
  return Replace(text, R"({"input": 1, "output": 0})", R"({"input": 1, "output": 0, "start": 1})");
}

std::string LoopGraphText() {
  std::string text = Replace(GraphText(), R"({"name": "y",)",
                             R"({"name": "goes", "dtype": "bool", "shape": [], "storage": "arena",
                                 "offset": 192, "bytes": 1},
                                {"name": "low", "dtype": "bool", "shape": [1], "storage": "arena",
                                 "offset": 256, "bytes": 1},
                                {"name": "zero", "dtype": "float32", "shape": [1, 4],
                                 "storage": "arena", "offset": 320, "bytes": 16},
                                {"name": "y",)");
  text = Replace(text, R"("arena_bytes": 256)", R"("arena_bytes": 384)");
  text = Replace(text, R"("outputs": [3],)",
                 R"("outputs": [6], "blocks": [
                    {"first": 3, "end": 7, "condition": 3, "most": 5},
                    {"first": 3, "end": 4, "condition": 4, "most": 1}],)");
  return Replace(text, R"({"kernel": "twice", "args": [2, 3]})",
                 R"({"kernel": "below", "args": [2, 1, 3]},
                    {"kernel": "below", "args": [2, 5, 4]},
                    {"kernel": "twice", "args": [2, 2]},
                    {"kernel": "twice", "args": [2, 2]},
                    {"kernel": "below", "args": [2, 1, 3]},
                    {"kernel": "below", "args": [2, 5, 4]},
                    {"kernel": "twice", "args": [2, 6]})");
}

void WriteModel(const std::filesystem::path& folder, const std::string& graph) {
  const float weights[] = {10, 20, 30, 40};
  WriteFile(folder / "graph.json", graph);
  WriteFile(folder / "params.bin", {reinterpret_cast<const char*>(weights), sizeof(weights)});
  std::filesystem::copy_file(EDGEPACK_TEST_KERNELS, folder / "model.so",
                             std::filesystem::copy_options::overwrite_existing);
}

void WriteBundle(const std::filesystem::path& folder) {
  WriteModel(folder / "model");
  WriteFile(folder / "manifest.json", R"({"schema": 1, "scores": "raw"})");
  WriteFile(folder / "labels.txt", "ant\nbee\ncat\n");
  std::filesystem::create_directories(folder / "golden");
  WriteFloats(folder / "golden" / "input.npy", {1, 4}, {1, 2, 3, 4});
  WriteFloats(folder / "golden" / "output.npy", {1, 4}, {22, 44, 66, 88});
}

TensorInfo Info(DType dtype, Shape shape) {
  TensorInfo info;
  info.dtype = dtype;
  info.shape = std::move(shape);
  info.bytes = ByteSize(info.dtype, info.shape).value();
  return info;
}

void WriteFloats(const std::filesystem::path& path, const Shape& shape,
                 const std::vector<float>& values) {
  REQUIRE(Info(DType::kFloat32, shape).size() == values.size());
  WriteNpy(path, DType::kFloat32, shape, values.data());
}

std::vector<float> ReadFloats(const std::filesystem::path& path) {
  const NpyFile file = NpyFile::Open(path);
  REQUIRE(file.info().dtype == DType::kFloat32);
  const auto* values = static_cast<const float*>(file.data());
  return {values, values + file.info().size()};
}

}  // namespace edgepack::testing
