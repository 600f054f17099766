#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <edgepack/tensor.h>

namespace edgepack {

/// What a kernel call is for, for people to read: the ONNX node's name and operator, and how many
/// multiply-adds it takes. A plan that does not say leaves them empty, and 0.
struct Layer {
  std::string kernel;
  std::string name;
  std::string op;
  std::size_t macs = 0;
};

/// A compiled model: the kernels of model.so, called in the order of graph.json, on parameters
/// that are mapped from params.bin and never copied.
///
/// Kernels run on ThreadPool::Global() and take scratch memory from Workspace::Global().
class Model {
 public:
  /// Loads the three files of `folder`. Throws BundleError.
  explicit Model(const std::filesystem::path& folder);
  ~Model();
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  [[nodiscard]] const std::string& name() const;
  [[nodiscard]] std::size_t arena_bytes() const;
  [[nodiscard]] std::size_t params_bytes() const;

  /// One per kernel call, in the order in which they run.
  [[nodiscard]] const std::vector<Layer>& layers() const;

  /// Inputs and outputs by position. The data lies in the model's own memory and stays where it
  /// is: write into an input and read an output in place. That memory is short: a run takes it
  /// over once an input was read, and outputs may lie where the inputs were. So write all inputs
  /// before each run, and read the outputs before that. The shape of an output that has a bound is
  /// the bound until the first run, and then what the last one found.
  [[nodiscard]] const std::vector<TensorView>& inputs() const;
  [[nodiscard]] const std::vector<TensorView>& outputs() const;

  /// Copies a packed tensor into input `index`. Throws ModelInputError if there is no such input,
  /// or if dtype or shape is not the input's.
  void SetInput(std::size_t index, const TensorInfo& info, const void* data);

  /// Computes the outputs. Throws std::runtime_error with a kernel's message if it fails.
  void Run();

  /// The same, and writes the milliseconds of each kernel call, one per layer, to `times_ms`. The
  /// clock is std::chrono::steady_clock, read once between two calls.
  void Run(std::vector<double>* times_ms);

  /// The same, and calls `after` behind each kernel call, with the layer's index.
  void Run(const std::function<void(std::size_t)>& after);

  /// What lies at tensor `index` of graph.json now: between two calls of a run, results of
  /// layers. Throws ModelInputError if there is none.
  [[nodiscard]] TensorView tensor(std::size_t index) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace edgepack
