#include "support.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <system_error>

#include <doctest/doctest.h>

namespace edgepack::testing {

TempFolder::TempFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "edgepack-test-XXXXXX").string();
  REQUIRE(mkdtemp(name.data()) != nullptr);
  path_ = name;
}

TempFolder::~TempFolder() {
  // qemu-user cannot list a folder of ext4 for a 32-bit program; ctest's clean-up gets the rest.
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void WriteFile(const std::filesystem::path& path, std::string_view content) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary);
  file << content;
  REQUIRE(file.good());
}

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE(file.good());
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string Replace(std::string text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

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

}  // namespace edgepack::testing
