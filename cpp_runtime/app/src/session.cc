#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include <edgepack/errors.h>
#include <edgepack/session.h>

#include "model_state.h"
#include "outside.h"
#include "platform/tvm_ffi/call.h"

namespace edgepack {
namespace {

DLDataType ToDLDataType(DType dtype) {
  const auto bits = static_cast<std::uint8_t>(8 * ItemSize(dtype));
  switch (dtype) {
    case DType::kBool:
      return {kDLBool, bits, 1};
    case DType::kInt8:
    case DType::kInt16:
    case DType::kInt32:
    case DType::kInt64:
      return {kDLInt, bits, 1};
    case DType::kUInt8:
    case DType::kUInt16:
    case DType::kUInt32:
    case DType::kUInt64:
      return {kDLUInt, bits, 1};
    case DType::kFloat16:
    case DType::kFloat32:
    case DType::kFloat64:
      break;
  }
  return {kDLFloat, bits, 1};
}

}  // namespace

std::shared_ptr<const MemoryMap> MakeArena(std::size_t bytes) {
  try {
    return std::make_shared<const MemoryMap>(MemoryMap::Zeroed(bytes));
  } catch (const std::bad_alloc&) {
    throw BundleError("there is no memory for an arena of " + std::to_string(bytes) + " bytes",
                      "use a smaller model or input, or a board with more memory");
  }
}

struct Session::State {
  /// What is looked at behind each call. Nothing: a GPU may be given many of them at once. Times:
  /// it is waited for. Tensors: the call's come to the CPU.
  enum class Look { kNothing, kTimes, kTensors };

  State(Model shared_model, ThreadPool* threads, std::shared_ptr<const MemoryMap> memory = nullptr)
      : model(std::move(shared_model)),
        pool(threads),
        arena(memory != nullptr ? std::move(memory) : MakeArena(model.arena_bytes())) {
    if (arena->size() < model.arena_bytes()) throw std::logic_error("the arena is too small");
    const Graph& graph = shared().graph;
    if (shared().gpu != nullptr) OpenGpuSession();
    tensors.reserve(graph.tensors.size());
    for (std::size_t i = 0; i < graph.tensors.size(); ++i) tensors.push_back(TensorAt(i));
    args.resize(graph.calls.size());
    for (std::size_t i = 0; i < args.size(); ++i) {
      args[i].reserve(graph.calls[i].args.size());
      for (const std::size_t index : graph.calls[i].args) {
        TVMFFIAny arg = {};
        arg.type_index = kTVMFFIDLTensorPtr;
        arg.v_ptr = &tensors[index];
        args[i].push_back(arg);
      }
    }
    for (const TensorInfo& info : model.inputs()) inputs.push_back({&info, nullptr});
    found = model.outputs();
    for (const TensorInfo& info : found) outputs.push_back({&info, nullptr});
    PlaceEnds();
    // The arena is zero: memory of states that begin so is not touched before it is used.
    for (const ModelState& state : model.states()) {
      if (state.start) Begin(state);
    }
  }

  /// Inputs and outputs are where the calls have them, or apart from those.
  void PlaceEnds() {
    const Graph& graph = shared().graph;
    const auto place = [&](std::size_t index) -> void* {
      return ends_apart ? arena->data() + graph.tensors[index].offset : tensors[index].data;
    };
    for (std::size_t i = 0; i < inputs.size(); ++i) inputs[i].data = place(graph.inputs[i]);
    for (std::size_t i = 0; i < outputs.size(); ++i) outputs[i].data = place(graph.outputs[i]);
  }

  ~State() {
    if (gpu == nullptr || gpu->Settles()) return;
    // The driver may come back to all of this at any time: it stays.
    (void)gpu.release();
    (void)new (std::nothrow) std::shared_ptr<const MemoryMap>(arena);
    (void)new (std::nothrow) MemoryMap(std::move(landing));
    (void)new (std::nothrow) Model(model);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  State(State&&) = delete;
  State& operator=(State&&) = delete;

  /// Makes a state what it is before the first run.
  void Begin(const ModelState& state) const {
    const TensorView& input = inputs[state.input];
    if (input.info->bytes == 0) return;
    if (state.start) {
      std::memcpy(input.data, tensors[*state.start].data, input.info->bytes);
    } else {
      std::memset(input.data, 0, input.info->bytes);
    }
  }

  [[nodiscard]] const Model::State& shared() const { return *model.state_; }

  [[nodiscard]] char* MemoryOf(std::size_t index) const {
    switch (shared().graph.tensors[index].storage) {
      case Storage::kArena:
        return IsUnified(index) ? gpu->unified() : arena->data();
      case Storage::kParams:
        return shared().params.data();
      case Storage::kShared:
        break;
    }
    return shared().shared.data();
  }

  [[nodiscard]] bool IsUnified(std::size_t index) const {
    return unified && shared().graph.gpu.in_unified[index];
  }

  [[nodiscard]] DLTensor TensorAt(std::size_t index) const {
    const GraphTensor& tensor = shared().graph.tensors[index];
    DLTensor view = {};
    view.data = MemoryOf(index) + tensor.offset;
    view.device = {kDLCPU, 0};
    view.ndim = static_cast<std::int32_t>(tensor.info.shape.size());
    view.dtype = ToDLDataType(tensor.info.dtype);
    // DLPack has no tensors of constant shape; kernels only read it.
    // NOLINTBEGIN(cppcoreguidelines-pro-type-const-cast)
    view.shape = const_cast<std::int64_t*>(tensor.info.shape.data());
    view.strides = const_cast<std::int64_t*>(shared().strides[index].data());
    // NOLINTEND(cppcoreguidelines-pro-type-const-cast)
    return view;
  }

  void OpenGpuSession() {
    const bool has_unified = shared().gpu->has_unified_memory();
    if (!has_unified) FindLandings();
    try {
      gpu = shared().gpu->NewSession(arena->data(), landing);
    } catch (const GpuError& error) {
      if (!shared().on_cpu) throw;
      shared().health->Failed(error.message);
      return;
    }
    unified = has_unified;
    // The CPU goes on with inputs that no GPU writes to, even if one hangs.
    ends_apart = unified && shared().on_cpu;
    FindStretches();
    if (shared().on_cpu) keeps_inputs = unified || LeavesInputs();
  }

  /// What is copied between the memories of both processors, or used by the CPU in unified memory.
  [[nodiscard]] const std::vector<GpuCopy>& copies() const {
    return unified ? shared().graph.gpu.uses : shared().graph.gpu.copies;
  }

  /// Whether a run writes nothing of the host's arena where its inputs are.
  [[nodiscard]] bool LeavesInputs() const {
    const Graph& graph = shared().graph;
    const auto leaves = [&](std::size_t offset, std::size_t bytes) {
      return std::none_of(graph.inputs.begin(), graph.inputs.end(), [&](std::size_t index) {
        const GraphTensor& input = graph.tensors[index];
        return offset < input.offset + input.info.bytes && input.offset < offset + bytes;
      });
    };
    for (const GpuCopy& copy : graph.gpu.copies) {
      if (!copy.to_gpu && !leaves(copy.offset, copy.bytes)) return false;
    }
    for (std::size_t i = 0; i < graph.calls.size(); ++i) {
      if (shared().kernels[i] == nullptr) continue;
      for (const std::size_t index : graph.calls[i].args) {
        const GraphTensor& tensor = graph.tensors[index];
        const bool is_input =
            std::find(graph.inputs.begin(), graph.inputs.end(), index) != graph.inputs.end();
        if (tensor.storage == Storage::kArena && !is_input &&
            !leaves(tensor.offset, tensor.info.bytes)) {
          return false;
        }
      }
    }
    return true;
  }

  /// What the GPU does at each call: copies before it, and from it on launches up to the next copy,
  /// or up to what the CPU does.
  struct Stretch {
    std::size_t first_copy = 0;
    std::size_t end_copy = 0;
    std::size_t first = 0;  ///< launches of this call alone
    std::size_t end = 0;
    std::size_t end_call = 0;  ///< of all calls that can be started together with it
    std::size_t end_launch = 0;
  };

  void FindStretches() {
    const GpuPlan& plan = shared().graph.gpu;
    stretches.resize(shared().graph.calls.size() + 1);
    std::size_t copy = 0;
    std::size_t launch = 0;
    for (std::size_t i = 0; i < stretches.size(); ++i) {
      Stretch& here = stretches[i];
      here.first_copy = copy;
      while (copy < copies().size() && copies()[copy].before == i) ++copy;
      here.end_copy = copy;
      here.first = launch;
      while (launch < plan.launches.size() && plan.launches[launch].call == i) ++launch;
      here.end = launch;
    }
    for (std::size_t i = stretches.size() - 1; i-- > 0;) {
      Stretch& here = stretches[i];
      const Stretch& next = stretches[i + 1];
      const bool goes_on = next.first_copy == next.end_copy && next.first < next.end;
      here.end_call = goes_on ? next.end_call : i + 1;
      here.end_launch = goes_on ? next.end_launch : here.end;
    }
  }

  /// Where copies to the CPU arrive. If a run of the GPU's fails, some may still be under way while
  /// the CPU does the run: none of them may write over the CPU's tensors.
  void FindLandings() {
    if (!shared().on_cpu) return;
    std::size_t bytes = 0;
    for (const GpuCopy& copy : shared().graph.gpu.copies) {
      landings.push_back(bytes);
      if (!copy.to_gpu) bytes += copy.bytes;
    }
    landing = MemoryMap::Zeroed(bytes);
  }

  void Copy(const Stretch& here) const {
    const bool lands = !landings.empty();
    bool waits = false;
    for (std::size_t i = here.first_copy; i < here.end_copy; ++i) {
      const GpuCopy& copy = copies()[i];
      if (copy.to_gpu) {
        gpu->ToGpu(copy.offset, copy.bytes);
      } else if (unified) {
        gpu->Use(copy.offset, copy.bytes);
        waits = true;
      } else {
        gpu->ToCpu(copy.offset, copy.bytes,
                   lands ? landing.data() + landings[i] : arena->data() + copy.offset);
        waits = true;
      }
    }
    if (!waits) return;
    gpu->Wait();
    if (!lands) return;
    for (std::size_t i = here.first_copy; i < here.end_copy; ++i) {
      const GpuCopy& copy = copies()[i];
      if (copy.to_gpu || copy.bytes == 0) continue;
      std::memcpy(arena->data() + copy.offset, landing.data() + landings[i], copy.bytes);
    }
  }

  /// The calls from `at` on that the GPU does; returns the first one behind them, or `at` itself if
  /// that is the CPU's.
  [[nodiscard]] std::size_t OnGpu(std::size_t at) const {
    const Stretch& here = stretches[at];
    Copy(here);
    if (here.first == here.end) return at;
    gpu->Launch(here.first, look == Look::kNothing ? here.end_launch : here.end);
    if (look == Look::kNothing) return here.end_call;
    if (look == Look::kTensors) {
      for (const std::size_t index : shared().graph.calls[at].args) {
        const GraphTensor& tensor = shared().graph.tensors[index];
        if (tensor.storage != Storage::kArena) continue;
        if (IsUnified(index)) {
          gpu->Use(tensor.offset, tensor.info.bytes);
          continue;
        }
        gpu->ToCpu(tensor.offset, tensor.info.bytes, arena->data() + tensor.offset);
      }
    }
    gpu->Wait();
    return at + 1;
  }

  void CallKernel(std::size_t index) const {
    const std::vector<TVMFFIAny>& given = args[index];
    try {
      Call(shared().layers[index].kernel, shared().kernels[index], given.data(),
           static_cast<int>(given.size()));
    } catch (const KernelError& error) {
      if (error.kind != "IndexError") throw;
      const std::optional<Outside> outside = ReadOutside(error.said, given.size());
      if (!outside) throw;
      std::vector<TensorView> arguments;
      for (const std::size_t tensor : shared().graph.calls[index].args) {
        arguments.push_back({&shared().graph.tensors[tensor].info, tensors[tensor].data});
      }
      throw ErrorOf(*outside, shared().layers[index], arguments, inputs);
    }
  }

  /// Does calls `at` to `end`, and `after` behind each; `inner` is the first block from there on.
  /// Blocks are the CPU's, `in_block` says that this is one.
  template <typename After>
  void Do(std::size_t at, std::size_t end, std::size_t inner, bool in_block,
          const After& after) const {
    const std::vector<GraphBlock>& blocks = shared().graph.blocks;
    while (at < end) {
      if (gpu != nullptr && !in_block) {
        const std::size_t next = OnGpu(at);
        if (next > at) {
          while (at < next) after(at++);
          continue;
        }
      }
      if (inner == blocks.size() || blocks[inner].first > at) {
        CallKernel(at);
        after(at++);
        continue;
      }
      DoBlock(inner, after);
      at = blocks[inner].end;
      while (inner < blocks.size() && blocks[inner].first < at) ++inner;
    }
  }

  // As deep as graph.cc lets blocks be inside of each other.
  // NOLINTNEXTLINE(misc-no-recursion)
  template <typename After>
  void DoBlock(std::size_t index, const After& after) const {
    const GraphBlock& block = shared().graph.blocks[index];
    const auto* goes = static_cast<const unsigned char*>(tensors[block.condition].data);
    for (std::size_t turn = 0; *goes != 0; ++turn) {
      if (turn == block.most) {
        if (turn == 1) return;
        throw ModelInputError("on this input, a loop goes on after " + std::to_string(turn) +
                                  " turns, the most that it may take",
                              "limit its turns where the model is made");
      }
      Do(block.first, block.end, index + 1, true, after);
    }
  }

  /// One run of a plan for the GPU that has no other beside it.
  void WholeOnGpu() {
    try {
      All(Look::kNothing, [](std::size_t) {});
      shared().health->Worked();
    } catch (const GpuLostError& error) {
      shared().health->Failed(error.message);
      throw;
    } catch (const GpuError& error) {
      shared().health->Failed(error.message);
      if (shared().health->works()) throw;
      throw GpuLostError("gpu-lost",
                         "the GPU failed in " + std::to_string(GpuHealth::kMostFailures) +
                             " runs, one after the other: " + error.message,
                         error.hint);
    }
  }

  /// One run, by the CPU's plan where the GPU fails.
  void Whole() {
    if (gpu == nullptr && !shared().on_cpu) {
      All(Look::kNothing, [](std::size_t) {});
      return;
    }
    if (!shared().on_cpu) return WholeOnGpu();
    if (gpu != nullptr && shared().health->works()) {
      KeepInputs();
      try {
        All(Look::kNothing, [](std::size_t) {});
        shared().health->Worked();
        return;
      } catch (const GpuError& error) {
        shared().health->Failed(error.message);
      }
      BringInputsBack();
    }
    WholeOnCpu();
  }

  void KeepInputs() {
    if (keeps_inputs) return;
    kept.resize(inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const char* const data = static_cast<const char*>(inputs[i].data);
      kept[i].assign(data, data + inputs[i].info->bytes);
    }
  }

  void BringInputsBack() const {
    for (std::size_t i = 0; i < kept.size(); ++i) {
      if (!kept[i].empty()) std::memcpy(inputs[i].data, kept[i].data(), kept[i].size());
    }
  }

  void WholeOnCpu() {
    if (on_cpu == nullptr) on_cpu = std::make_unique<State>(*shared().on_cpu, pool);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const std::size_t bytes = inputs[i].info->bytes;
      if (bytes > 0) std::memcpy(on_cpu->inputs[i].data, inputs[i].data, bytes);
    }
    on_cpu->All(Look::kNothing, [](std::size_t) {});
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      found[i] = on_cpu->found[i];
      if (found[i].bytes > 0) std::memcpy(outputs[i].data, on_cpu->outputs[i].data, found[i].bytes);
    }
  }

  /// One run, with `after` behind each call.
  template <typename After>
  void All(Look at_calls, const After& after) {
    look = at_calls;
    if (!unified) return Once(after);
    try {
      Once(after);
    } catch (const GpuLostError&) {
      usable = false;
      throw;
    } catch (...) {
      usable = false;
      try {
        Use();
      } catch (const GpuError&) {  // what failed first is what is told
      }
      throw;
    }
  }

  /// Lets the CPU use its part of unified memory after a run that failed.
  void Use() {
    Copy(stretches.back());
    usable = true;
  }

  template <typename After>
  void Once(const After& after) {
    if (gpu != nullptr) gpu->Enter(look == Look::kTimes);
    if (!usable) {
      Use();
      if (!ends_apart) {
        throw GpuError("gpu-failed",
                       "an earlier run failed, and the GPU had the inputs' memory until now",
                       "write all inputs again, then run again");
      }
    }
    if (ends_apart) {
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        const std::size_t bytes = inputs[i].info->bytes;
        void* const due = tensors[shared().graph.inputs[i]].data;
        if (bytes > 0) std::memcpy(due, inputs[i].data, bytes);
      }
    }
    Do(0, args.size(), 0, false, after);
    if (gpu != nullptr) {
      Copy(stretches.back());
      gpu->Wait();
    }
    if (ends_apart) {
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        const std::size_t index = shared().graph.outputs[i];
        const std::size_t bytes = shared().graph.tensors[index].info.bytes;
        if (bytes > 0) std::memcpy(outputs[i].data, tensors[index].data, bytes);
      }
    }
    CutOutputs();
  }

  /// Gives outputs the shapes that their counts say, and moves what is in use together.
  void CutOutputs() {
    for (const GraphCount& count : shared().graph.counts) {
      found[count.output].shape = found[count.output].bound;
    }
    for (const GraphCount& count : shared().graph.counts) {
      TensorInfo& info = found[count.output];
      std::int64_t used = 0;
      std::memcpy(&used, tensors[count.tensor].data, sizeof(used));
      std::int64_t& extent = info.shape[count.axis];
      if (used < 0 || used > extent) {
        throw std::runtime_error("output '" + info.name + "' is said to have " +
                                 std::to_string(used) + " of " + std::to_string(extent) +
                                 " elements along axis " + std::to_string(count.axis));
      }
      std::size_t rows = 1;
      for (std::size_t i = 0; i < count.axis; ++i) rows *= static_cast<std::size_t>(info.shape[i]);
      std::size_t step = ItemSize(info.dtype);
      for (std::size_t i = count.axis + 1; i < info.shape.size(); ++i) {
        step *= static_cast<std::size_t>(info.shape[i]);
      }
      const std::size_t row = step * static_cast<std::size_t>(extent);
      const std::size_t left = step * static_cast<std::size_t>(used);
      char* const data = static_cast<char*>(outputs[count.output].data);
      for (std::size_t i = 1; i < rows; ++i) std::memmove(data + i * left, data + i * row, left);
      extent = used;
      info.bytes = rows * left;
    }
  }

  Model model;
  ThreadPool* pool;
  std::shared_ptr<const MemoryMap> arena;
  /// Null if the plan has nothing for one.
  std::unique_ptr<GpuSession> gpu;
  /// Whether the calls' arena is memory that both processors have, and whether the CPU may use its
  /// part of that between runs.
  bool unified = false;
  bool usable = true;
  /// Whether inputs and outputs are in `arena` all the same, and are copied by the CPU.
  bool ends_apart = false;
  /// Of each copy of the plan, if it is one to the CPU, its place in `landing`; none if it arrives
  /// in the arena.
  std::vector<std::size_t> landings;
  MemoryMap landing;
  /// The same model by its plan for the CPU, once the GPU has failed.
  std::unique_ptr<State> on_cpu;
  /// Whether inputs are as they were given when a run of the GPU's plan has failed; else they are
  /// `kept` before it.
  bool keeps_inputs = false;
  std::vector<std::vector<char>> kept;
  /// One for each call, and one for the end; none without a GPU.
  std::vector<Stretch> stretches;
  Look look = Look::kNothing;
  std::vector<DLTensor> tensors;
  std::vector<TensorView> inputs;
  std::vector<TensorView> outputs;
  /// What the outputs are after a run.
  std::vector<TensorInfo> found;
  /// Of each call.
  std::vector<std::vector<TVMFFIAny>> args;
};

Session::Session(Model model, ThreadPool* pool, std::shared_ptr<const MemoryMap> arena)
    : state_(std::make_unique<State>(std::move(model), pool, std::move(arena))) {}
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

const Model& Session::model() const { return state_->model; }
const std::vector<TensorView>& Session::inputs() const { return state_->inputs; }
const std::vector<TensorView>& Session::outputs() const { return state_->outputs; }

void Session::SetInput(std::size_t index, const TensorInfo& info, const void* data) {
  if (index >= state_->inputs.size()) {
    throw ModelInputError("the model has " + std::to_string(state_->inputs.size()) +
                          " inputs, there is no number " + std::to_string(index));
  }
  const TensorView& input = state_->inputs[index];
  if (info.dtype != input.info->dtype || info.shape != input.info->shape) {
    throw ModelInputError("input '" + input.info->name + "' is " +
                          std::string(Name(input.info->dtype)) + " " + ToString(input.info->shape) +
                          ", not " + std::string(Name(info.dtype)) + " " + ToString(info.shape));
  }
  // Of no elements there may be no address; a state may be given the output that it is.
  if (input.info->bytes > 0) std::memmove(input.data, data, input.info->bytes);
}

void Session::Reset() {
  for (const ModelState& state : state_->model.states()) state_->Begin(state);
}

void Session::Run() {
  const ThreadPool::Use use(state_->pool);
  state_->Whole();
}

void Session::Run(const std::function<void(std::size_t)>& after) {
  const ThreadPool::Use use(state_->pool);
  state_->All(State::Look::kTensors, after);
}

void Session::Run(std::vector<double>* times_ms) {
  using Clock = std::chrono::steady_clock;
  const ThreadPool::Use use(state_->pool);
  times_ms->assign(state_->args.size(), 0);
  Clock::time_point start = Clock::now();
  state_->All(State::Look::kTimes, [&](std::size_t i) {
    const Clock::time_point end = Clock::now();
    const std::optional<double> on_gpu =
        state_->gpu != nullptr ? state_->gpu->TakenMs() : std::nullopt;
    (*times_ms)[i] +=
        on_gpu ? *on_gpu : std::chrono::duration<double, std::milli>(end - start).count();
    start = on_gpu ? Clock::now() : end;
  });
}

TensorView Session::tensor(std::size_t index) const {
  if (index >= state_->tensors.size()) {
    throw ModelInputError("the plan has " + std::to_string(state_->tensors.size()) +
                          " tensors, there is no number " + std::to_string(index));
  }
  return {&state_->shared().graph.tensors[index].info, state_->tensors[index].data};
}

}  // namespace edgepack
