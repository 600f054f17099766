#include "platform/opencl/opencl.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <edgepack/errors.h>

#include "gpu.h"
#include "platform/opencl/kernel_cache.h"

namespace edgepack::opencl {

Functions::Functions()
    : library("libOpenCL.so.1", "install the GPU's OpenCL driver, or deploy with --compute cpu") {
  library.Find("clGetPlatformIDs", &GetPlatformIDs);
  library.Find("clGetDeviceIDs", &GetDeviceIDs);
  library.Find("clGetDeviceInfo", &GetDeviceInfo);
  library.Find("clCreateContext", &CreateContext);
  library.Find("clCreateCommandQueue", &CreateCommandQueue);
  library.Find("clCreateBuffer", &CreateBuffer);
  library.Find("clCreateProgramWithSource", &CreateProgramWithSource);
  library.Find("clCreateProgramWithBinary", &CreateProgramWithBinary);
  library.Find("clGetProgramInfo", &GetProgramInfo);
  library.Find("clBuildProgram", &BuildProgram);
  library.Find("clGetProgramBuildInfo", &GetProgramBuildInfo);
  library.Find("clCreateKernel", &CreateKernel);
  library.Find("clSetKernelArg", &SetKernelArg);
  library.Find("clEnqueueNDRangeKernel", &EnqueueNDRangeKernel);
  library.Find("clEnqueueReadBuffer", &EnqueueReadBuffer);
  library.Find("clEnqueueWriteBuffer", &EnqueueWriteBuffer);
  library.Find("clEnqueueMapBuffer", &EnqueueMapBuffer);
  library.Find("clEnqueueUnmapMemObject", &EnqueueUnmapMemObject);
  library.Find("clEnqueueMarkerWithWaitList", &EnqueueMarker);
  library.Find("clFlush", &Flush);
  library.Find("clGetEventInfo", &GetEventInfo);
  library.Find("clGetEventProfilingInfo", &GetEventProfilingInfo);
  library.Find("clReleaseEvent", &ReleaseEvent);
  library.Find("clReleaseMemObject", &ReleaseMemObject);
  library.Find("clReleaseKernel", &ReleaseKernel);
  library.Find("clReleaseProgram", &ReleaseProgram);
  library.Find("clReleaseCommandQueue", &ReleaseCommandQueue);
  library.Find("clReleaseContext", &ReleaseContext);
}

namespace {

constexpr char kBuildOptions[] = "-cl-std=CL1.2";
constexpr char kOtherProcessor[] = "deploy with --compute cpu";
constexpr char kOwnMemory[] = "set unified_memory = false in the gpu table of the board's profile";

[[noreturn]] void Fail(const std::string& what, cl_int code) {
  const std::string number = " (OpenCL error " + std::to_string(code) + ")";
  if (code == kMemObjectAllocationFailure || code == kOutOfResources || code == kOutOfHostMemory) {
    throw GpuError("gpu-memory", what + ": the GPU has no memory for it" + number,
                   "use a smaller model or input, or --compute cpu");
  }
  throw GpuError("gpu-failed", what + " failed" + number, kOtherProcessor);
}

void Check(const std::string& what, cl_int code) {
  if (code != kSuccess) Fail(what, code);
}

/// An object that one of the functions releases.
template <typename Object>
class Owned {
 public:
  Owned() = default;
  Owned(Object object, cl_int (*release)(Object)) : object_(object), release_(release) {}
  ~Owned() {
    if (object_ != nullptr) release_(object_);
  }
  Owned(Owned&& other) noexcept
      : object_(std::exchange(other.object_, nullptr)), release_(other.release_) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(object_, other.object_);
    std::swap(release_, other.release_);
    return *this;
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;

  [[nodiscard]] Object get() const { return object_; }

 private:
  Object object_ = nullptr;
  cl_int (*release_)(Object) = nullptr;
};

template <typename Value>
Value DeviceNumber(const Functions& functions, cl_device_id device, cl_uint name) {
  Value value = 0;
  Check("clGetDeviceInfo", functions.GetDeviceInfo(device, name, sizeof(value), &value, nullptr));
  return value;
}

std::string DeviceText(const Functions& functions, cl_device_id device, cl_uint name) {
  std::size_t size = 0;
  Check("clGetDeviceInfo", functions.GetDeviceInfo(device, name, 0, nullptr, &size));
  std::string text(std::min<std::size_t>(size, 4096), '\0');
  Check("clGetDeviceInfo",
        functions.GetDeviceInfo(device, name, text.size(), text.data(), nullptr));
  text.resize(std::min(text.find('\0'), text.size()));
  return text;
}

/// The first GPU, or else the first device of another kind.
cl_device_id FindDevice(const Functions& functions) {
  cl_uint count = 0;
  std::vector<cl_platform_id> platforms;
  if (functions.GetPlatformIDs(0, nullptr, &count) == kSuccess) {
    platforms.resize(std::min<cl_uint>(count, 64));
    Check("clGetPlatformIDs", functions.GetPlatformIDs(static_cast<cl_uint>(platforms.size()),
                                                       platforms.data(), nullptr));
  }
  cl_device_id found = nullptr;
  for (cl_platform_id platform : platforms) {
    if (functions.GetDeviceIDs(platform, kDeviceTypeAll, 0, nullptr, &count) != kSuccess) continue;
    std::vector<cl_device_id> devices(std::min<cl_uint>(count, 64));
    if (functions.GetDeviceIDs(platform, kDeviceTypeAll, static_cast<cl_uint>(devices.size()),
                               devices.data(), nullptr) != kSuccess) {
      continue;
    }
    for (cl_device_id device : devices) {
      if (found == nullptr) found = device;
      if ((DeviceNumber<cl_bitfield>(functions, device, kDeviceType) & kDeviceTypeGpu) != 0) {
        return device;
      }
    }
  }
  if (found == nullptr) {
    throw GpuError("gpu-none", "OpenCL knows no device on this machine", kOtherProcessor);
  }
  return found;
}

class OpenClModel;

class OpenClSession final : public GpuSession {
 public:
  OpenClSession(std::shared_ptr<const OpenClModel> model, char* arena);
  ~OpenClSession() override = default;
  [[nodiscard]] char* unified() const override { return unified_; }
  OpenClSession(const OpenClSession&) = delete;
  OpenClSession& operator=(const OpenClSession&) = delete;
  OpenClSession(OpenClSession&&) = delete;
  OpenClSession& operator=(OpenClSession&&) = delete;

 private:
  void EnterDriver() override {}
  void SetTimes(bool on) override;
  [[nodiscard]] double Taken() override;
  void StartToGpu(std::size_t offset, std::size_t bytes) override;
  void StartToCpu(std::size_t offset, std::size_t bytes, char* to) override;
  void StartUse(std::size_t offset, std::size_t bytes) override;
  void StartLaunches(std::size_t first, std::size_t end) override;
  void GiveAll() override;
  [[nodiscard]] bool Done() override;

  /// Bytes of unified memory that the CPU may use.
  struct Mapped {
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  void MakeUnified(std::size_t bytes);
  [[nodiscard]] char* Map(std::size_t begin, std::size_t end, bool blocking);
  void Unmap(std::size_t index);

  std::shared_ptr<const OpenClModel> model_;
  char* host_;
  Owned<cl_mem> arena_;
  Owned<cl_command_queue> queue_;
  /// Memory of both processors, and where the CPU finds it; nothing if they have none.
  Owned<cl_mem> both_;
  char* unified_ = nullptr;
  std::vector<Mapped> mapped_;
  std::vector<Owned<cl_kernel>> kernels_;  // one for each launch, with its arguments
  Owned<cl_event> given_;                  // done when everything before it is
  bool profiles_ = false;
  std::vector<Owned<cl_event>> timed_;  // of the last launches, if they are timed
};

class OpenClModel final : public Gpu, public std::enable_shared_from_this<OpenClModel> {
 public:
  explicit OpenClModel(const GpuModel& model) : graph(model.graph), device_(Found()) {
    CheckDevice();
    unified_ = !graph->gpu.in_unified.empty() && SharesMemory();
    cl_int code = kSuccess;
    context_ = {functions.CreateContext(nullptr, 1, &device_, nullptr, nullptr, &code),
                functions.ReleaseContext};
    Check("clCreateContext", code);
    params_ = NewBuffer(graph->params_bytes, kMemReadOnly);
    const Owned<cl_command_queue> queue = NewQueue();
    if (graph->params_bytes > 0) {
      Check("copying the weights",
            functions.EnqueueWriteBuffer(queue.get(), params_.get(), 1, 0, graph->params_bytes,
                                         model.params, 0, nullptr, nullptr));
    }
    Build(model.folder / "kernels.cl");
  }

  [[nodiscard]] std::string name() const override {
    return DeviceText(functions, device_, kDeviceName);
  }

  [[nodiscard]] bool has_unified_memory() const override { return unified_; }

  [[nodiscard]] std::unique_ptr<GpuSession> NewSession(
      char* arena, const MemoryMap& /*landing*/) const override {
    return std::make_unique<OpenClSession>(shared_from_this(), arena);
  }

  [[nodiscard]] Owned<cl_mem> NewBuffer(std::size_t bytes, cl_bitfield flags) const {
    cl_int code = kSuccess;
    // Of no bytes there is no buffer.
    Owned<cl_mem> buffer = {functions.CreateBuffer(context_.get(), flags,
                                                   std::max<std::size_t>(bytes, 1), nullptr, &code),
                            functions.ReleaseMemObject};
    Check("a buffer of " + std::to_string(bytes) + " bytes", code);
    return buffer;
  }

  [[nodiscard]] Owned<cl_command_queue> NewQueue(cl_bitfield properties = 0) const {
    cl_int code = kSuccess;
    Owned<cl_command_queue> queue = {
        functions.CreateCommandQueue(context_.get(), device_, properties, &code),
        functions.ReleaseCommandQueue};
    Check("clCreateCommandQueue", code);
    return queue;
  }

  [[nodiscard]] Owned<cl_kernel> NewKernel(const std::string& function) const {
    cl_int code = kSuccess;
    Owned<cl_kernel> kernel = {functions.CreateKernel(program_.get(), function.c_str(), &code),
                               functions.ReleaseKernel};
    if (code != kSuccess) throw BundleError("kernels.cl has no kernel '" + function + "'");
    return kernel;
  }

  [[nodiscard]] cl_mem params() const { return params_.get(); }

  /// For what this device is given.
  [[nodiscard]] DriverLimit limit() const {
    const auto kind = DeviceNumber<cl_bitfield>(functions, device_, kDeviceType);
    return CurrentDriverLimit((kind & kDeviceTypeCpu) != 0);
  }

  const Functions functions;
  const Graph* graph;

 private:
  /// Of all that opening takes this alone has a limit: compiling takes as long as it takes.
  [[nodiscard]] cl_device_id Found() const {
    const DriverCalls calls(CurrentDriverLimit(false));
    const DriverCalls::Call call(calls);
    return FindDevice(functions);
  }

  /// Later versions of OpenCL advise against the question: who does not answer it copies.
  [[nodiscard]] bool SharesMemory() const {
    cl_uint shares = 0;
    return functions.GetDeviceInfo(device_, kDeviceHostUnifiedMemory, sizeof(shares), &shares,
                                   nullptr) == kSuccess &&
           shares != 0;
  }

  void CheckDevice() const {
    const auto threads = DeviceNumber<std::size_t>(functions, device_, kDeviceMaxWorkGroupSize);
    const auto memory = DeviceNumber<cl_ulong>(functions, device_, kDeviceGlobalMemSize);
    const auto buffer = DeviceNumber<cl_ulong>(functions, device_, kDeviceMaxMemAllocSize);
    for (const GpuLaunch& launch : graph->gpu.launches) {
      const std::size_t needed = std::size_t{launch.block[0]} * launch.block[1] * launch.block[2];
      if (needed > threads) {
        throw GpuError("gpu-too-small",
                       "the kernels have groups of " + std::to_string(needed) +
                           " threads, and the GPU allows " + std::to_string(threads),
                       kOtherProcessor);
      }
    }
    const std::size_t most = std::max(graph->arena_bytes, graph->params_bytes);
    if (graph->arena_bytes + graph->params_bytes > memory || most > buffer) {
      throw GpuError("gpu-memory",
                     "the model takes " + std::to_string(graph->arena_bytes + graph->params_bytes) +
                         " bytes of the GPU's " + std::to_string(memory) + ", up to " +
                         std::to_string(buffer) + " in one buffer",
                     "use a smaller model or input, or --compute cpu");
    }
  }

  void Build(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    if (!file.good() && text.empty()) throw BundleError("cannot read " + path.string());
    const KernelCache cache(name() + '\n' + DeviceText(functions, device_, kDeviceVersion) + '\n' +
                            DeviceText(functions, device_, kDriverVersion) + '\n' + kBuildOptions +
                            '\n' + text);
    if (BuildKept(cache.Load())) return;
    BuildText(text);
    cache.Store(Built());
  }

  /// Whether the driver takes a program that it had compiled before.
  bool BuildKept(const std::string& kept) {
    if (kept.empty()) return false;
    const auto* data = reinterpret_cast<const unsigned char*>(kept.data());
    const std::size_t size = kept.size();
    cl_int status = kSuccess;
    cl_int code = kSuccess;
    Owned<cl_program> program = {functions.CreateProgramWithBinary(context_.get(), 1, &device_,
                                                                   &size, &data, &status, &code),
                                 functions.ReleaseProgram};
    if (code != kSuccess || status != kSuccess ||
        functions.BuildProgram(program.get(), 1, &device_, kBuildOptions, nullptr, nullptr) !=
            kSuccess) {
      return false;
    }
    program_ = std::move(program);
    return true;
  }

  /// The program as the driver has compiled it; nothing if it does not say.
  [[nodiscard]] std::string Built() const {
    std::size_t size = 0;
    if (functions.GetProgramInfo(program_.get(), kProgramBinarySizes, sizeof(size), &size,
                                 nullptr) != kSuccess) {
      return "";
    }
    std::string built(std::min<std::size_t>(size, std::size_t{64} << 20U), '\0');
    char* start = built.data();
    if (built.size() != size ||
        functions.GetProgramInfo(program_.get(), kProgramBinaries, sizeof(start), &start,
                                 nullptr) != kSuccess) {
      return "";
    }
    return built;
  }

  void BuildText(const std::string& text) {
    const char* start = text.data();
    const std::size_t size = text.size();
    cl_int code = kSuccess;
    program_ = {functions.CreateProgramWithSource(context_.get(), 1, &start, &size, &code),
                functions.ReleaseProgram};
    Check("clCreateProgramWithSource", code);
    code = functions.BuildProgram(program_.get(), 1, &device_, kBuildOptions, nullptr, nullptr);
    if (code == kSuccess) return;
    std::string log(4096, '\0');
    std::size_t used = 0;
    if (functions.GetProgramBuildInfo(program_.get(), device_, kProgramBuildLog, log.size(),
                                      log.data(), &used) != kSuccess) {
      used = 0;
    }
    log.resize(std::min(log.find('\0'), log.size()));
    throw GpuError("gpu-build",
                   "the driver " + DeviceText(functions, device_, kDriverVersion) + " of " +
                       name() + " cannot compile the kernels: " + log,
                   kOtherProcessor);
  }

  cl_device_id device_;
  bool unified_ = false;
  Owned<cl_context> context_;
  Owned<cl_mem> params_;
  Owned<cl_program> program_;
};

OpenClSession::OpenClSession(std::shared_ptr<const OpenClModel> model, char* arena)
    : GpuSession(model->graph, model->limit()),
      model_(std::move(model)),
      host_(arena),
      queue_(model_->NewQueue()) {
  const Functions& functions = model_->functions;
  const Graph& graph = *model_->graph;
  const bool unified = model_->has_unified_memory();
  arena_ = model_->NewBuffer(unified ? ArenaBytes(graph, false) : graph.arena_bytes, kMemReadWrite);
  if (unified) MakeUnified(ArenaBytes(graph, true));
  for (const GpuLaunch& launch : graph.gpu.launches) {
    Owned<cl_kernel> kernel = model_->NewKernel(launch.function);
    cl_uint number = 0;
    for (const std::size_t index : launch.args) {
      const GraphTensor& tensor = graph.tensors[index];
      cl_mem memory = model_->params();
      if (tensor.storage == Storage::kArena) {
        memory = unified && graph.gpu.in_unified[index] ? both_.get() : arena_.get();
      }
      const cl_ulong offset = tensor.offset;
      Check("an argument of " + launch.function,
            functions.SetKernelArg(kernel.get(), number, sizeof(cl_mem), &memory));
      Check("an argument of " + launch.function,
            functions.SetKernelArg(kernel.get(), number + 1, sizeof(offset), &offset));
      number += 2;
    }
    kernels_.push_back(std::move(kernel));
  }
}

/// By Arm's guide to OpenCL on Mali ("Sharing memory between I/O devices and the GPU"): memory that
/// the driver allocates for both is mapped without a copy, memory of the program's own is not.
void OpenClSession::MakeUnified(std::size_t bytes) {
  both_ = model_->NewBuffer(bytes, kMemReadWrite | kMemAllocHostPtr);
  const std::size_t all = std::max<std::size_t>(bytes, 1);
  unified_ = Map(0, all, true);
  mapped_.push_back({0, all});
  // As for OpenCL's largest type (specification, "Alignment of Types"), and for kernels of the CPU.
  if (reinterpret_cast<std::uintptr_t>(unified_) % kTensorAlignment != 0) {
    throw GpuError("gpu-failed", "the driver maps memory to a place that is not aligned",
                   kOwnMemory);
  }
  std::memset(unified_, 0, all);
}

char* OpenClSession::Map(std::size_t begin, std::size_t end, bool blocking) {
  cl_int code = kSuccess;
  void* const memory =
      model_->functions.EnqueueMapBuffer(queue_.get(), both_.get(), blocking ? 1 : 0, kMapReadWrite,
                                         begin, end - begin, 0, nullptr, nullptr, &code);
  Check("mapping memory of the GPU's", code);
  return static_cast<char*>(memory);
}

void OpenClSession::Unmap(std::size_t index) {
  const Mapped mapped = mapped_[index];
  mapped_.erase(mapped_.begin() + static_cast<std::ptrdiff_t>(index));
  Check("clEnqueueUnmapMemObject",
        model_->functions.EnqueueUnmapMemObject(queue_.get(), both_.get(), unified_ + mapped.begin,
                                                0, nullptr, nullptr));
}

void OpenClSession::StartToGpu(std::size_t offset, std::size_t bytes) {
  Check("copying to the GPU",
        model_->functions.EnqueueWriteBuffer(queue_.get(), arena_.get(), 0, offset, bytes,
                                             host_ + offset, 0, nullptr, nullptr));
}

void OpenClSession::StartToCpu(std::size_t offset, std::size_t bytes, char* to) {
  Check("copying from the GPU",
        model_->functions.EnqueueReadBuffer(queue_.get(), arena_.get(), 0, offset, bytes, to, 0,
                                            nullptr, nullptr));
}

/// No byte is mapped twice: what would be is mapped again as a whole.
void OpenClSession::StartUse(std::size_t offset, std::size_t bytes) {
  Mapped use = {offset, offset + bytes};
  for (std::size_t i = mapped_.size(); i-- > 0;) {
    const Mapped known = mapped_[i];
    if (known.begin <= use.begin && use.end <= known.end) return;
    if (known.end <= use.begin || use.end <= known.begin) continue;
    use = {std::min(known.begin, use.begin), std::max(known.end, use.end)};
    Unmap(i);
  }
  if (Map(use.begin, use.end, false) != unified_ + use.begin) {
    throw GpuError("gpu-failed", "the driver maps memory to another place than before", kOwnMemory);
  }
  mapped_.push_back(use);
}

void OpenClSession::StartLaunches(std::size_t first, std::size_t end) {
  while (!mapped_.empty()) Unmap(mapped_.size() - 1);
  timed_.clear();
  for (std::size_t i = first; i < end; ++i) {
    const GpuLaunch& launch = model_->graph->gpu.launches[i];
    std::array<std::size_t, 3> all = {};
    std::array<std::size_t, 3> group = {};
    for (std::size_t axis = 0; axis < 3; ++axis) {
      group[axis] = launch.block[axis];
      all[axis] = std::size_t{launch.grid[axis]} * launch.block[axis];
    }
    cl_event event = nullptr;
    const cl_int code = model_->functions.EnqueueNDRangeKernel(
        queue_.get(), kernels_[i].get(), 3, nullptr, all.data(), group.data(), 0, nullptr,
        profiles_ ? &event : nullptr);
    if (code != kSuccess) {
      Fail("kernel " + model_->graph->calls[launch.call].layer.kernel + " of layer '" +
               model_->graph->calls[launch.call].layer.name + "'",
           code);
    }
    if (profiles_) timed_.emplace_back(event, model_->functions.ReleaseEvent);
  }
}

/// Whether launches are timed is said where their queue is made, and costs something.
void OpenClSession::SetTimes(bool on) {
  queue_ = model_->NewQueue(on ? kQueueProfiling : 0);
  profiles_ = on;
  timed_.clear();
}

double OpenClSession::Taken() {
  constexpr double kNanosecondsInMs = 1e6;
  double taken_ms = 0;
  for (const Owned<cl_event>& event : timed_) {
    cl_ulong began = 0;
    cl_ulong ended = 0;
    const auto ask = [&](cl_uint name, cl_ulong* time) {
      Check("clGetEventProfilingInfo", model_->functions.GetEventProfilingInfo(
                                           event.get(), name, sizeof(*time), time, nullptr));
    };
    ask(kProfilingStart, &began);
    ask(kProfilingEnd, &ended);
    if (ended > began) taken_ms += static_cast<double>(ended - began) / kNanosecondsInMs;
  }
  return taken_ms;
}

void OpenClSession::GiveAll() {
  const Functions& functions = model_->functions;
  cl_event event = nullptr;
  Check("clEnqueueMarkerWithWaitList", functions.EnqueueMarker(queue_.get(), 0, nullptr, &event));
  given_ = {event, functions.ReleaseEvent};
  Check("clFlush", functions.Flush(queue_.get()));
}

bool OpenClSession::Done() {
  cl_int status = 0;
  Check("clGetEventInfo", model_->functions.GetEventInfo(given_.get(), kEventStatus, sizeof(status),
                                                         &status, nullptr));
  if (status < kEventComplete) Fail("on the GPU, " + Doing(), status);
  return status == kEventComplete;
}

}  // namespace

std::shared_ptr<const Gpu> Open(const GpuModel& model) {
  return std::make_shared<OpenClModel>(model);
}

}  // namespace edgepack::opencl
