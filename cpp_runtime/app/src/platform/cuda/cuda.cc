#include "platform/cuda/cuda.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <edgepack/errors.h>

#include "gpu.h"
#include "memory_map.h"

namespace edgepack::cuda {

Functions::Functions()
    : library("libcuda.so.1", "install the GPU's driver, or deploy with --compute cpu") {
  library.Find("cuInit", &Init);
  library.Find("cuDriverGetVersion", &DriverGetVersion);
  library.Find("cuDeviceGet", &DeviceGet);
  library.Find("cuDeviceGetName", &DeviceGetName);
  library.Find("cuDeviceGetAttribute", &DeviceGetAttribute);
  library.Find("cuDevicePrimaryCtxRetain", &PrimaryCtxRetain);
  library.Find("cuDevicePrimaryCtxRelease_v2", &PrimaryCtxRelease);
  library.Find("cuCtxSetCurrent", &CtxSetCurrent);
  library.Find("cuMemGetInfo_v2", &MemGetInfo);
  library.Find("cuModuleLoadData", &ModuleLoadData);
  library.Find("cuModuleUnload", &ModuleUnload);
  library.Find("cuModuleGetFunction", &ModuleGetFunction);
  library.Find("cuMemAlloc_v2", &MemAlloc);
  library.Find("cuMemFree_v2", &MemFree);
  library.Find("cuMemHostAlloc", &MemHostAlloc);
  library.Find("cuMemHostGetDevicePointer_v2", &MemHostGetDevicePointer);
  library.Find("cuMemFreeHost", &MemFreeHost);
  library.Find("cuMemHostRegister_v2", &MemHostRegister);
  library.Find("cuMemHostUnregister", &MemHostUnregister);
  library.Find("cuMemcpyHtoD_v2", &MemcpyHtoD);
  library.Find("cuMemcpyHtoDAsync_v2", &MemcpyHtoDAsync);
  library.Find("cuMemcpyDtoHAsync_v2", &MemcpyDtoHAsync);
  library.Find("cuStreamCreate", &StreamCreate);
  library.Find("cuStreamDestroy_v2", &StreamDestroy);
  library.Find("cuStreamQuery", &StreamQuery);
  library.Find("cuEventCreate", &EventCreate);
  library.Find("cuEventDestroy_v2", &EventDestroy);
  library.Find("cuEventRecord", &EventRecord);
  library.Find("cuEventElapsedTime", &EventElapsedTime);
  library.Find("cuStreamBeginCapture_v2", &StreamBeginCapture);
  library.Find("cuStreamEndCapture", &StreamEndCapture);
  library.Find("cuGraphInstantiate_v2", &GraphInstantiate);
  library.Find("cuGraphLaunch", &GraphLaunch);
  library.Find("cuGraphExecDestroy", &GraphExecDestroy);
  library.Find("cuGraphDestroy", &GraphDestroy);
  library.Find("cuLaunchKernel", &LaunchKernel);
  library.Find("cuGetErrorName", &GetErrorName);
}

namespace {

constexpr char kOtherProcessor[] = "deploy with --compute cpu";

std::string Described(const Functions& functions, CUresult code) {
  const char* name = nullptr;
  const bool known = functions.GetErrorName(code, &name) == kSuccess && name != nullptr;
  return known ? name : "CUDA error " + std::to_string(code);
}

void Check(const Functions& functions, const std::string& what, CUresult code) {
  if (code == kSuccess) return;
  if (code == kOutOfMemory) {
    throw GpuError("gpu-memory", what + ": the GPU has no memory for it",
                   "use a smaller model or input, or --compute cpu");
  }
  throw GpuError("gpu-failed", what + " failed: " + Described(functions, code), kOtherProcessor);
}

std::string Version(int number) {
  return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

/// The opposite: of "12.2" 12020; of what is no version 0, which every driver is new enough for.
int VersionNumber(const std::string& text) {
  int major = 0;
  int minor = 0;
  const char* const end = text.data() + text.size();
  const auto [point, failed] = std::from_chars(text.data(), end, major);
  if (failed != std::errc() || point == end || *point != '.') return 0;
  if (std::from_chars(point + 1, end, minor).ec != std::errc()) return 0;
  constexpr int kMost = 999;  // far beyond, and within an int
  return major < 0 || major > kMost || minor < 0 || minor > 99 ? 0 : major * 1000 + minor * 10;
}

/// Of "sm_87" 87; of what is none 0, as of code for one GPU only, "sm_90a".
int ArchNumber(const std::string& text) {
  constexpr std::string_view kPrefix = "sm_";
  if (text.compare(0, kPrefix.size(), kPrefix) != 0) return 0;
  int number = 0;
  const char* const end = text.data() + text.size();
  const auto [point, failed] = std::from_chars(text.data() + kPrefix.size(), end, number);
  return failed != std::errc() || point != end || number < 10 ? 0 : number;
}

class CudaModel;

class CudaSession final : public GpuSession {
 public:
  CudaSession(std::shared_ptr<const CudaModel> model, char* arena, const MemoryMap& landing);
  ~CudaSession() override;
  [[nodiscard]] char* unified() const override { return unified_; }
  CudaSession(const CudaSession&) = delete;
  CudaSession& operator=(const CudaSession&) = delete;
  CudaSession(CudaSession&&) = delete;
  CudaSession& operator=(CudaSession&&) = delete;

 private:
  void EnterDriver() override;
  void SetTimes(bool on) override;
  [[nodiscard]] double Taken() override;
  void StartToGpu(std::size_t offset, std::size_t bytes) override;
  void StartToCpu(std::size_t offset, std::size_t bytes, char* to) override;
  /// It is mapped for both all the time.
  void StartUse(std::size_t /*offset*/, std::size_t /*bytes*/) override {}
  void StartLaunches(std::size_t first, std::size_t end) override;
  void GiveAll() override {}  // a stream begins at once
  [[nodiscard]] bool Done() override;
  void Pin(char* data, std::size_t bytes);
  void AllocateUnified(std::size_t bytes);
  void Free();
  void Record(CUevent event);
  void Start(std::size_t index);
  [[nodiscard]] CUgraphExec Captured(std::size_t first, std::size_t end);

  std::shared_ptr<const CudaModel> model_;
  char* host_;
  std::vector<char*> pinned_;
  CUdeviceptr arena_ = 0;
  /// Memory of both processors, as each of them finds it; nothing if they have none.
  char* unified_ = nullptr;
  CUdeviceptr unified_on_gpu_ = 0;
  CUstream stream_ = nullptr;
  /// What launches are timed by, around them; null unless they are.
  CUevent began_ = nullptr;
  CUevent ended_ = nullptr;
  /// Of each launch: where each of its tensors is.
  std::vector<std::vector<CUdeviceptr>> addresses_;
  /// Launches that were captured once, by the first and the end.
  std::map<std::pair<std::size_t, std::size_t>, CUgraphExec> graphs_;
};

class CudaModel final : public Gpu, public std::enable_shared_from_this<CudaModel> {
 public:
  explicit CudaModel(const GpuModel& model) : graph(model.graph) {
    const DriverCalls calls(CurrentDriverLimit(false));
    {
      const DriverCalls::Call call(calls);
      const CUresult code = functions.Init(0);
      if (code == kNoDevice) {
        throw GpuError("gpu-none", "the driver knows no GPU on this machine", kOtherProcessor);
      }
      Check(functions, "cuInit", code);
      Check(functions, "cuDeviceGet", functions.DeviceGet(&device_, 0));
      if (DriverVersion() < VersionNumber(graph->gpu.driver)) ThrowOther();
      // A GPU with memory of its own reads the host's through the bus: copies are faster.
      unified_ = !graph->gpu.in_unified.empty() && Attribute(kIntegrated) > 0 &&
                 Attribute(kCanMapHostMemory) > 0;
      Check(functions, "cuDevicePrimaryCtxRetain", functions.PrimaryCtxRetain(&context, device_));
    }
    try {
      LoadKernels(model.folder, calls);
      const DriverCalls::Call call(calls);
      params = Allocate(graph->params_bytes, "the weights");
      if (graph->params_bytes > 0) {
        Check(functions, "copying the weights",
              functions.MemcpyHtoD(params, model.params, graph->params_bytes));
      }
    } catch (...) {
      Close();
      throw;
    }
  }

  ~CudaModel() override { Close(); }
  CudaModel(const CudaModel&) = delete;
  CudaModel& operator=(const CudaModel&) = delete;
  CudaModel(CudaModel&&) = delete;
  CudaModel& operator=(CudaModel&&) = delete;

  [[nodiscard]] std::string name() const override {
    std::array<char, 256> text = {};
    Check(functions, "cuDeviceGetName",
          functions.DeviceGetName(text.data(), static_cast<int>(text.size() - 1), device_));
    return text.data();
  }

  [[nodiscard]] bool has_unified_memory() const override { return unified_; }

  [[nodiscard]] std::unique_ptr<GpuSession> NewSession(char* arena,
                                                       const MemoryMap& landing) const override {
    const DriverCalls calls(CurrentDriverLimit(false));
    const DriverCalls::Call call(calls);
    return std::make_unique<CudaSession>(shared_from_this(), arena, landing);
  }

  /// Needs the context; of no bytes there is no memory.
  [[nodiscard]] CUdeviceptr Allocate(std::size_t bytes, const std::string& what) const {
    if (bytes == 0) return 0;
    CUdeviceptr memory = 0;
    const CUresult code = functions.MemAlloc(&memory, bytes);
    if (code == kOutOfMemory) {
      std::size_t free = 0;
      std::size_t all = 0;
      if (functions.MemGetInfo(&free, &all) != kSuccess) free = all = 0;
      throw GpuError("gpu-memory",
                     what + " take " + std::to_string(bytes) + " bytes, of the GPU's " +
                         std::to_string(all) + " are free " + std::to_string(free),
                     "end other programs on the GPU, use a smaller model, or --compute cpu");
    }
    Check(functions, "memory for " + what, code);
    return memory;
  }

  const Functions functions;
  const Graph* graph;
  CUcontext context = nullptr;
  CUdeviceptr params = 0;
  /// One for each launch.
  std::vector<CUfunction> kernels;

 private:
  /// Machine code, where this GPU runs it; else what the driver compiles for it.
  void LoadKernels(const std::filesystem::path& folder, const DriverCalls& calls) {
    CUresult code = kNoBinaryForGpu;
    std::filesystem::path file = folder / "kernels.cubin";
    {
      const DriverCalls::Call call(calls);
      Check(functions, "cuCtxSetCurrent", functions.CtxSetCurrent(context));
      if (RunsMachineCode()) code = functions.ModuleLoadData(&module_, ReadFile(file).c_str());
    }
    if (code == kNoBinaryForGpu && !graph->gpu.ptx.empty() && IsLater()) {
      if (DriverVersion() < VersionNumber(graph->gpu.ptx)) ThrowTooOldForPtx();
      // Compiling takes as long as it takes: nobody waits for an end of the call.
      file = folder / "kernels.ptx";
      code = functions.ModuleLoadData(&module_, ReadFile(file).c_str());
      if (code == kUnsupportedPtxVersion) ThrowTooOldForPtx();
      if (code == kNoPtxCompiler || code == kPtxIsOff) ThrowNoPtx(code);
    }
    if (code == kNoBinaryForGpu || code == kUnsupportedPtxVersion) ThrowOther();
    const DriverCalls::Call call(calls);
    Check(functions, "loading the kernels", code);
    for (const GpuLaunch& launch : graph->gpu.launches) {
      CUfunction function = nullptr;
      if (functions.ModuleGetFunction(&function, module_, launch.function.c_str()) != kSuccess) {
        throw BundleError(file.filename().string() + " has no kernel '" + launch.function + "'");
      }
      kernels.push_back(function);
    }
  }

  /// With a NUL behind it, by which the driver finds the end of PTX.
  static std::string ReadFile(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    std::string text{std::istreambuf_iterator<char>(file), {}};
    if (!file.good() && text.empty()) throw BundleError("cannot read " + path.string());
    return text;
  }

  /// 87 of compute capability 8.7; 0: it does not say.
  [[nodiscard]] int Capability() const {
    const int major = Attribute(kComputeCapabilityMajor);
    return major == 0 ? 0 : major * 10 + Attribute(kComputeCapabilityMinor);
  }

  /// 0: the driver does not know it.
  [[nodiscard]] int Attribute(int number) const {
    int value = 0;
    return functions.DeviceGetAttribute(&value, number, device_) == kSuccess ? value : 0;
  }

  /// By NVIDIA's rule: on the same major compute capability from its own minor one on. Where it is
  /// not known, the driver is asked.
  [[nodiscard]] bool RunsMachineCode() const {
    const int code = ArchNumber(graph->gpu.arch);
    const int gpu = Capability();
    return code == 0 || gpu == 0 || (gpu / 10 == code / 10 && gpu >= code);
  }

  [[nodiscard]] bool IsLater() const {
    const int code = ArchNumber(graph->gpu.arch);
    return code != 0 && Capability() > code;
  }

  /// 0: it does not say.
  [[nodiscard]] int DriverVersion() const {
    int version = 0;
    return functions.DriverGetVersion(&version) == kSuccess ? version : 0;
  }

  /// What the kernels are for, and what is here.
  [[noreturn]] void ThrowOther() const {
    throw GpuError("gpu-other",
                   "the kernels are for " + graph->gpu.arch + " with a driver of CUDA " +
                       graph->gpu.driver + " or newer; " + Here(),
                   "deploy again for this board's own profile");
  }

  [[noreturn]] void ThrowTooOldForPtx() const {
    throw GpuError("gpu-other",
                   "the kernels are for " + graph->gpu.arch +
                       ", and for later GPUs with a driver of CUDA " + graph->gpu.ptx +
                       " or newer; " + Here(),
                   "install a newer driver, or deploy again for this board's own profile");
  }

  [[noreturn]] void ThrowNoPtx(CUresult code) const {
    throw GpuError("gpu-other",
                   "the kernels are for " + graph->gpu.arch +
                       ", and the driver does not compile them for a later GPU (" +
                       Described(functions, code) + "); " + Here(),
                   "deploy again for this board's own profile");
  }

  [[nodiscard]] std::string Here() const {
    return "this is " + name() + ", sm_" + std::to_string(Capability()) +
           " with a driver of CUDA " + Version(DriverVersion());
  }

  void Close() {
    if (context == nullptr || functions.CtxSetCurrent(context) != kSuccess) return;
    if (params != 0) functions.MemFree(params);
    if (module_ != nullptr) functions.ModuleUnload(module_);
    functions.PrimaryCtxRelease(device_);
  }

  CUdevice device_ = 0;
  bool unified_ = false;
  CUmodule module_ = nullptr;
};

CudaSession::CudaSession(std::shared_ptr<const CudaModel> model, char* arena,
                         const MemoryMap& landing)
    : GpuSession(model->graph, CurrentDriverLimit(false)), model_(std::move(model)), host_(arena) {
  const Functions& functions = model_->functions;
  const Graph& graph = *model_->graph;
  EnterDriver();
  try {
    Check(functions, "cuStreamCreate", functions.StreamCreate(&stream_, kStreamNonBlocking));
    if (model_->has_unified_memory()) {
      arena_ = model_->Allocate(ArenaBytes(graph, false), "the tensors");
      AllocateUnified(ArenaBytes(graph, true));
    } else {
      arena_ = model_->Allocate(graph.arena_bytes, "the tensors");
      Pin(host_, graph.arena_bytes);
      Pin(landing.data(), landing.size());
    }
  } catch (...) {
    Free();
    throw;
  }
  for (const GpuLaunch& launch : graph.gpu.launches) {
    std::vector<CUdeviceptr>& addresses = addresses_.emplace_back();
    for (const std::size_t index : launch.args) {
      const GraphTensor& tensor = graph.tensors[index];
      CUdeviceptr memory = model_->params;
      if (tensor.storage == Storage::kArena) {
        memory = unified_ != nullptr && graph.gpu.in_unified[index] ? unified_on_gpu_ : arena_;
      }
      addresses.push_back(memory + tensor.offset);
    }
  }
}

void CudaSession::AllocateUnified(std::size_t bytes) {
  const Functions& functions = model_->functions;
  void* memory = nullptr;
  Check(functions, "memory of both processors for the tensors",
        functions.MemHostAlloc(&memory, std::max<std::size_t>(bytes, 1),
                               kHostMemoryForAllContexts | kHostMemoryOnDevice));
  unified_ = static_cast<char*>(memory);
  Check(functions, "cuMemHostGetDevicePointer",
        functions.MemHostGetDevicePointer(&unified_on_gpu_, memory, 0));
  std::memset(memory, 0, bytes);
}

CudaSession::~CudaSession() { Free(); }

void CudaSession::Free() {
  const Functions& functions = model_->functions;
  if (functions.CtxSetCurrent(model_->context) != kSuccess) return;
  for (const auto& [launches, graph] : graphs_) functions.GraphExecDestroy(graph);
  for (CUevent event : {began_, ended_}) {
    if (event != nullptr) functions.EventDestroy(event);
  }
  if (stream_ != nullptr) functions.StreamDestroy(stream_);
  for (char* const data : pinned_) functions.MemHostUnregister(data);
  if (unified_ != nullptr) functions.MemFreeHost(unified_);
  if (arena_ != 0) functions.MemFree(arena_);
}

/// Copies of pinned memory are faster. Where it cannot be pinned, they are slower.
void CudaSession::Pin(char* data, std::size_t bytes) {
  if (bytes == 0 || model_->functions.MemHostRegister(data, bytes, 0) != kSuccess) return;
  pinned_.push_back(data);
}

void CudaSession::EnterDriver() {
  Check(model_->functions, "cuCtxSetCurrent", model_->functions.CtxSetCurrent(model_->context));
}

void CudaSession::StartToGpu(std::size_t offset, std::size_t bytes) {
  Check(model_->functions, "copying to the GPU",
        model_->functions.MemcpyHtoDAsync(arena_ + offset, host_ + offset, bytes, stream_));
}

void CudaSession::StartToCpu(std::size_t offset, std::size_t bytes, char* to) {
  Check(model_->functions, "copying from the GPU",
        model_->functions.MemcpyDtoHAsync(to, arena_ + offset, bytes, stream_));
}

void CudaSession::Start(std::size_t index) {
  const GpuLaunch& launch = model_->graph->gpu.launches[index];
  std::vector<void*> arguments;
  arguments.reserve(addresses_[index].size());
  for (CUdeviceptr& address : addresses_[index]) arguments.push_back(&address);
  const Layer& layer = model_->graph->calls[launch.call].layer;
  Check(model_->functions, "kernel " + layer.kernel + " of layer '" + layer.name + "'",
        model_->functions.LaunchKernel(model_->kernels[index], launch.grid[0], launch.grid[1],
                                       launch.grid[2], launch.block[0], launch.block[1],
                                       launch.block[2], 0, stream_, arguments.data(), nullptr));
}

CUgraphExec CudaSession::Captured(std::size_t first, std::size_t end) {
  const auto known = graphs_.find({first, end});
  if (known != graphs_.end()) return known->second;
  const Functions& functions = model_->functions;
  Check(functions, "cuStreamBeginCapture",
        functions.StreamBeginCapture(stream_, kCaptureThreadLocal));
  CUgraph graph = nullptr;
  try {
    for (std::size_t i = first; i < end; ++i) Start(i);
  } catch (...) {
    functions.StreamEndCapture(stream_, &graph);
    if (graph != nullptr) functions.GraphDestroy(graph);
    throw;
  }
  Check(functions, "cuStreamEndCapture", functions.StreamEndCapture(stream_, &graph));
  CUgraphExec made = nullptr;
  const CUresult code = functions.GraphInstantiate(&made, graph, nullptr, nullptr, 0);
  functions.GraphDestroy(graph);
  Check(functions, "cuGraphInstantiate", code);
  return graphs_.emplace(std::make_pair(first, end), made).first->second;
}

void CudaSession::StartLaunches(std::size_t first, std::size_t end) {
  // Before the first event: the GPU would wait for what is captured only now.
  CUgraphExec graph = end - first == 1 ? nullptr : Captured(first, end);
  Record(began_);
  if (graph == nullptr) {
    Start(first);
  } else {
    Check(model_->functions, "cuGraphLaunch", model_->functions.GraphLaunch(graph, stream_));
  }
  Record(ended_);
}

void CudaSession::Record(CUevent event) {
  if (event == nullptr) return;
  Check(model_->functions, "cuEventRecord", model_->functions.EventRecord(event, stream_));
}

void CudaSession::SetTimes(bool on) {
  for (CUevent* event : {&began_, &ended_}) {
    if (*event != nullptr) model_->functions.EventDestroy(std::exchange(*event, nullptr));
    if (!on) continue;
    Check(model_->functions, "cuEventCreate", model_->functions.EventCreate(event, kEventDefault));
  }
}

double CudaSession::Taken() {
  float taken_ms = 0;
  Check(model_->functions, "cuEventElapsedTime",
        model_->functions.EventElapsedTime(&taken_ms, began_, ended_));
  return double{taken_ms};
}

bool CudaSession::Done() {
  const CUresult code = model_->functions.StreamQuery(stream_);
  if (code == kNotReady) return false;
  if (code != kSuccess) Check(model_->functions, "on the GPU, " + Doing(), code);
  return true;
}

}  // namespace

std::shared_ptr<const Gpu> Open(const GpuModel& model) {
  return std::make_shared<CudaModel>(model);
}

}  // namespace edgepack::cuda
