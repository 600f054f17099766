#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include <edgepack/model.h>
#include <edgepack/tensor.h>
#include <edgepack/thread_pool.h>

namespace edgepack {

class MemoryMap;

/// Memory of so many bytes for the runs of sessions. Throws BundleError if there is none.
std::shared_ptr<const MemoryMap> MakeArena(std::size_t bytes);

/// Runs a model, in memory of its own: an arena. Parameters and kernels are the model's, whichever
/// session runs it, so that sessions on different threads run at the same time. One session is for
/// one thread at a time.
///
/// Kernels take scratch memory from Workspace::Global().
class Session {
 public:
  /// `pool` runs the kernels' parallel loops and outlives the session. Throws BundleError if there
  /// is no memory. An `arena` is that of several sessions, which do not run at the same time: what
  /// one has read, and its states, are gone once another runs.
  explicit Session(Model model, ThreadPool* pool = &ThreadPool::Global(),
                   std::shared_ptr<const MemoryMap> arena = nullptr);
  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  [[nodiscard]] const Model& model() const;

  /// Inputs and outputs by position. The data lies in the session's own memory and stays where it
  /// is: write into an input and read an output in place. That
  /// memory is short: a run takes it over once an input was read, and outputs may lie where the
  /// inputs were. So write all inputs before each run, and read the outputs before that. An input
  /// that is one of the model's states may be left as the last run left it; before the first run
  /// it is what the model begins with, zero unless the model says else. The shape of an output that
  /// has a bound is the bound until the first run, and then what the last one found.
  [[nodiscard]] const std::vector<TensorView>& inputs() const;
  [[nodiscard]] const std::vector<TensorView>& outputs() const;

  /// Copies a packed tensor into input `index`. Throws ModelInputError if there is no such input,
  /// or if dtype or shape is not the input's.
  void SetInput(std::size_t index, const TensorInfo& info, const void* data);

  /// Makes all states what they are before the first run.
  void Reset();

  /// Computes the outputs. Throws std::runtime_error with a kernel's message if it fails, and
  /// ModelInputError if a loop takes more turns than the plan says.
  void Run();

  /// The same, and writes the milliseconds of each kernel call, one per layer, to `times_ms`: of a
  /// loop those of all its turns. The clock is std::chrono::steady_clock, read once between two
  /// calls; of what a GPU does it is the GPU's own, and copies to it count for no call.
  void Run(std::vector<double>* times_ms);

  /// The same, and calls `after` behind each kernel call, with the layer's index: in a loop as
  /// often as there are turns, in a branch that is not taken never.
  void Run(const std::function<void(std::size_t)>& after);

  /// What lies at tensor `index` of graph.json now: between two calls of a run, results of
  /// layers. Throws ModelInputError if there is none.
  [[nodiscard]] TensorView tensor(std::size_t index) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace edgepack
