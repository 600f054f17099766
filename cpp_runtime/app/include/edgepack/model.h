#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
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
  std::uint64_t macs = 0;  ///< a 32-bit board has layers of more than 2^32, too
};

/// An input that is a state: what a run leaves in output number `output`, the next one finds in
/// input number `input`, unless that is written before. Both are one memory. `start` is the tensor
/// of the plan that holds what it is before the first run; zero without one.
struct ModelState {
  std::size_t input = 0;
  std::size_t output = 0;
  std::optional<std::size_t> start = std::nullopt;
};

/// Which of `count` inputs are no states, by position.
inline std::vector<std::size_t> InputsBesides(const std::vector<ModelState>& states,
                                              std::size_t count) {
  std::vector<std::size_t> besides;
  for (std::size_t i = 0; i < count; ++i) {
    const auto is_it = [i](const ModelState& state) { return state.input == i; };
    if (std::none_of(states.begin(), states.end(), is_it)) besides.push_back(i);
  }
  return besides;
}

/// Which processor runs a model that has a plan for a GPU.
struct Processor {
  bool on_gpu = false;
  std::string gpu;            ///< its name as the driver says it; empty if there is none
  std::size_t failures = 0;   ///< runs that the GPU failed in, and the CPU did instead
  std::string why;            ///< what the GPU said last when it failed, or why it is not there
  std::size_t gpu_bytes = 0;  ///< of its memory: parameters, and the tensors of one session
  bool unified = false;       ///< whether that is the CPU's, too: then nothing is copied
};

/// A compiled model: the kernels of model.so, the order of graph.json in which they are called, and
/// parameters that are mapped from params.bin and never copied. Sessions run it.
///
/// Nothing of it ever changes: any number of threads may use it. A copy is the same model; its
/// files are unmapped when the last copy and the last session are gone.
class Model {
 public:
  /// Loads the three files of `folder`. If it is for a GPU and has the plan for the CPU in its own
  /// folder `cpu`, that runs the model where the GPU cannot. Throws BundleError, and GpuError where
  /// there is no other plan.
  explicit Model(const std::filesystem::path& folder);

  [[nodiscard]] const std::string& name() const;
  /// Memory of each session.
  [[nodiscard]] std::size_t arena_bytes() const;
  /// Memory that all sessions share.
  [[nodiscard]] std::size_t params_bytes() const;

  /// One per kernel call, in the order in which they run.
  [[nodiscard]] const std::vector<Layer>& layers() const;

  /// Inputs and outputs by position. The shape of an output that has a bound is the bound.
  [[nodiscard]] const std::vector<TensorInfo>& inputs() const;
  [[nodiscard]] const std::vector<TensorInfo>& outputs() const;

  [[nodiscard]] const std::vector<ModelState>& states() const;

  /// Gives the kernel back the memory of the parameters: whoever reads them next, as a run does,
  /// maps them again from the file.
  void DropParams() const;

  /// Nothing if no plan of it is for a GPU. It may be another one after each run.
  [[nodiscard]] std::optional<Processor> processor() const;

 private:
  friend class Session;
  struct State;
  explicit Model(std::shared_ptr<const State> state);
  std::shared_ptr<const State> state_;
};

}  // namespace edgepack
