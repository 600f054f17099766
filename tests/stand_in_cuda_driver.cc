// A stand-in for libcuda.so.1, NVIDIA's driver: its modules are kernels that were compiled for this
// machine's CPU (stand_in_cuda_kernels.h), its memory is the machine's. No GPU is here.
//
// As with a real one, work is done later than it was asked for: here when the stream is looked at.
// New memory is full of NaN. What it has, and what fails, is said by the environment, or by lines of
// the file /etc/stand-in-cuda, "STAND_IN_BROKEN 0":
//   STAND_IN_ARCH     compute capability of the device (default: 87)
//   STAND_IN_VERSION  of CUDA that the driver knows (default: 12020, which is 12.2)
//   STAND_IN_DEVICES  0: there is none
//   STAND_IN_INTEGRATED  1: the GPU shares the machine's memory, as a Jetson's does (default: 0)
//   STAND_IN_MEMORY   bytes of its memory (default: 1 GiB)
//   STAND_IN_BUSY     so many launches fail for want of resources, which later ones may have
//   STAND_IN_BROKEN   after so many launches one fails when it runs; from then on everything does
//   STAND_IN_HANGS    after so many launches one does not end, nor anything after it, unless the file
//                     STAND_IN_UNTIL is there; what waits for the device waits as long, among it
//                     what the driver does when the process ends
//   STAND_IN_BLOCKS   after so many launches the driver does not come back from one
//   STAND_IN_NO_JIT   1: the driver's compiler of PTX is not installed
//   STAND_IN_COMPILES_US  microseconds that compiling PTX takes
//   STAND_IN_SLOW_CLOCK  so many times what passes between two events is said of them
//   STAND_IN_TAKES_US microseconds that pass, from the first launch of a run to its end, at least
// Built with -DWITHOUT_GRAPHS it is a driver from before CUDA 11.
#include <chrono>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <elf.h>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace {

using Result = int;
// By CUDA's driver API, enum cudaError_enum.
constexpr Result kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kNotInitialized = 3,
                 kNoDevice = 100, kInvalidImage = 200, kInvalidContext = 201, kNoBinary = 209,
                 kInvalidPtx = 218, kNoCompiler = 221, kUnsupportedPtx = 222,
                 kNotFound = 500, kLaunchFailed = 719, kOutOfResources = 701,
                 kCaptureUnsupported = 900, kNotReady = 600;

long Said(const char* name, long otherwise) {
  if (const char* text = std::getenv(name)) return std::atol(text);
  std::ifstream file("/etc/stand-in-cuda");
  for (std::string word; file >> word;) {
    long value = 0;
    if (file >> value && word == name) return value;
  }
  return otherwise;
}

struct Extent {
  unsigned x, y, z;
};

struct Module {
  void* library = nullptr;
  Extent *thread = nullptr, *block = nullptr, *threads = nullptr, *blocks = nullptr;
};

struct Function {
  Module* module;
  void (*call)(void**);
  int count;
};

using Work = std::function<Result()>;
struct Graph {
  std::vector<Work> work;
};
using Clock = std::chrono::steady_clock;
struct Event {
  std::optional<Clock::time_point> at;
};
struct Stream {
  std::vector<Work> work;
  Clock::time_point began;
  Graph* captured = nullptr;
};

std::recursive_mutex lock;
bool ready = false;
bool broken = false;
std::map<std::uint64_t, std::size_t> memory;
std::map<void*, std::uint64_t> both;
std::size_t used = 0;
long launched = 0;
int context;
thread_local bool entered = false;

// ---------------------------------------------------------------- a block's threads

struct Fiber {
  jmp_buf at;
  ucontext_t start;
  bool started = false;
  bool ended = false;
};
constexpr std::size_t kStack = 256 << 10;
std::vector<Fiber*> fibers;
Fiber* running = nullptr;
jmp_buf scheduler;
const Function* kernel = nullptr;
void** arguments = nullptr;

void GiveWay() {
  if (_setjmp(running->at) == 0) _longjmp(scheduler, 1);
}

void Body() {
  for (;;) {
    kernel->call(arguments);
    running->ended = true;
    GiveWay();
  }
}

void Resume(Fiber* fiber) {
  running = fiber;
  if (_setjmp(scheduler) != 0) return;
  if (fiber->started) _longjmp(fiber->at, 1);
  fiber->started = true;
  setcontext(&fiber->start);
}

Fiber* NewFiber() {
  Fiber* made = new Fiber;
  getcontext(&made->start);
  made->start.uc_stack.ss_sp = mmap(nullptr, kStack, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  made->start.uc_stack.ss_size = kStack;
  made->start.uc_link = nullptr;
  makecontext(&made->start, Body, 0);
  return made;
}

// All threads up to a barrier, then all up to the next one.
bool RunBlock(const Extent& size) {
  const std::size_t count = std::size_t{size.x} * size.y * size.z;
  while (fibers.size() < count) fibers.push_back(NewFiber());
  for (std::size_t i = 0; i < count; ++i) fibers[i]->ended = false;
  for (;;) {
    std::size_t ended = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const unsigned at = static_cast<unsigned>(i);
      *kernel->module->thread = {at % size.x, at / size.x % size.y, at / size.x / size.y};
      Resume(fibers[i]);
      ended += fibers[i]->ended ? 1 : 0;
    }
    if (ended == count) return true;
    if (ended > 0) {
      std::fprintf(stderr, "stand-in for CUDA: %zu of %zu threads never reach a barrier\n", ended,
                   count);
      std::abort();
    }
  }
}

Result Run(const Function* function, const Extent& grid, const Extent& block,
           std::vector<void*> values) {
  std::vector<void*> places;
  for (void*& value : values) places.push_back(&value);
  kernel = function;
  arguments = places.data();
  *function->module->threads = block;
  *function->module->blocks = grid;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        *function->module->block = {x, y, z};
        RunBlock(block);
      }
    }
  }
  return kSuccess;
}

// ---------------------------------------------------------------- checks

Result Checked() {
  if (!ready) return kNotInitialized;
  if (broken) return kLaunchFailed;
  return entered ? kSuccess : kInvalidContext;
}

bool Holds(std::uint64_t place, std::size_t bytes) {
  auto after = memory.upper_bound(place);
  if (after == memory.begin()) return false;
  --after;
  return place + bytes <= after->first + after->second;
}

Result Put(Stream* stream, Work work) {
  if (stream->captured == nullptr && stream->work.empty()) stream->began = Clock::now();
  (stream->captured != nullptr ? stream->captured->work : stream->work).push_back(std::move(work));
  return kSuccess;
}

// Whether the device will never end what it has.
bool Hangs() {
  const char* const until = std::getenv("STAND_IN_UNTIL");
  return launched > Said("STAND_IN_HANGS", 1L << 40) && (until == nullptr || access(until, F_OK) != 0);
}

// What waits for the device.
void WaitForDevice() {
  while (Hangs()) usleep(10000);
}

struct AtTheEnd {
  ~AtTheEnd() { WaitForDevice(); }
} at_the_end;

// What starting something costs: resources that are missing, or the device.
Result Started(bool captured) {
  if (captured) return kSuccess;
  if (launched >= Said("STAND_IN_BLOCKS", 1L << 40)) {
    for (;;) pause();
  }
  if (++launched <= Said("STAND_IN_BUSY", 0)) return kOutOfResources;
  return kSuccess;
}

// What stand_in_cuda.Nvrtc wrote as PTX -> a module. The version of PTX says which driver takes it:
// NVIDIA, "PTX ISA", table "PTX Release History", 7.0 of CUDA 11.0 to 8.2 of 12.2.
Result Compile(const char* text, long device, std::string* module) {
  if (Said("STAND_IN_NO_JIT", 0) != 0) return kNoCompiler;
  int isa = 0, minor = 0, target = 0;
  const char* const version = std::strstr(text, ".version ");
  const char* const arch = std::strstr(text, ".target sm_");
  if (version == nullptr || arch == nullptr ||
      std::sscanf(version, ".version %d.%d", &isa, &minor) != 2 ||
      std::sscanf(arch, ".target sm_%d", &target) != 1) {
    return kInvalidPtx;
  }
  if ((isa + 4) * 1000 + minor * 10 > Said("STAND_IN_VERSION", 12020)) return kUnsupportedPtx;
  if (target > device) return kInvalidPtx;
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  for (const char* at = text + 6; *at != '\n'; at += 2) {
    module->push_back(static_cast<char>(digit(at[0]) * 16 + digit(at[1])));
  }
  usleep(static_cast<unsigned>(Said("STAND_IN_COMPILES_US", 0)));
  return kSuccess;
}

bool Breaks() { return launched > Said("STAND_IN_BROKEN", 1L << 40); }

}  // namespace

#define API extern "C" __attribute__((visibility("default"))) Result
#define LOCKED                                             \
  const std::lock_guard<std::recursive_mutex> held(lock);  \
  if (const Result checked = Checked(); checked != kSuccess) return checked

API cuInit(unsigned flags) {
  if (flags != 0) return kInvalidValue;
  if (Said("STAND_IN_DEVICES", 1) == 0) return kNoDevice;
  ready = true;
  return kSuccess;
}
API cuDriverGetVersion(int* version) {
  return *version = static_cast<int>(Said("STAND_IN_VERSION", 12020)), kSuccess;
}
API cuDeviceGet(int* device, int number) {
  if (!ready) return kNotInitialized;
  return *device = 0, number == 0 ? kSuccess : 101;
}
API cuDeviceGetName(char* name, int size, int) {
  std::snprintf(name, size, "stand-in for an NVIDIA GPU");
  return kSuccess;
}
API cuDeviceGetAttribute(int* value, int attribute, int) {
  const int arch = static_cast<int>(Said("STAND_IN_ARCH", 87));
  switch (attribute) {
    case 75: return *value = arch / 10, kSuccess;
    case 76: return *value = arch % 10, kSuccess;
    case 16: return *value = 8, kSuccess;
    case 18: return *value = static_cast<int>(Said("STAND_IN_INTEGRATED", 0)), kSuccess;
    case 19: return *value = 1, kSuccess;
    case 8: return *value = 48 << 10, kSuccess;
    default: return kInvalidValue;
  }
}
API cuDevicePrimaryCtxRetain(int** made, int) {
  return *made = &context, ready ? kSuccess : kNotInitialized;
}
API cuDevicePrimaryCtxRelease_v2(int) { return kSuccess; }
API cuCtxSetCurrent(int* made) {
  if (made != &context) return kInvalidContext;
  entered = true;
  return kSuccess;
}
API cuMemGetInfo_v2(std::size_t* free, std::size_t* all) {
  LOCKED;
  *all = static_cast<std::size_t>(Said("STAND_IN_MEMORY", 1L << 30));
  *free = *all - used;
  return kSuccess;
}
API cuModuleLoadData(Module** made, const void* image) {
  LOCKED;
  const long device = Said("STAND_IN_ARCH", 87);
  std::string compiled;
  if (std::memcmp(image, "//", 2) == 0) {
    if (const Result result = Compile(static_cast<const char*>(image), device, &compiled);
        result != kSuccess) {
      return result;
    }
    image = compiled.data();
  }
  const auto* header = static_cast<const Elf64_Ehdr*>(image);
  if (std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return kInvalidImage;
  const std::size_t size = header->e_shoff + std::size_t{header->e_shentsize} * header->e_shnum;
  // Not in memory alone: a release's test runs where /proc cannot be read.
  char path[] = "/tmp/stand-in-cuda-XXXXXX";
  const int file = mkstemp(path);
  const bool whole = file >= 0 && write(file, image, size) == static_cast<ssize_t>(size);
  Module module;
  if (whole) module.library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (file >= 0) {
    unlink(path);
    close(file);
  }
  if (module.library == nullptr) {
    const char* why = dlerror();
    std::fprintf(stderr, "stand-in for CUDA: %s\n", why != nullptr ? why : path);
    return kInvalidImage;
  }
  const auto* arch = static_cast<const int*>(dlsym(module.library, "stand_in_arch"));
  if (arch == nullptr) return kInvalidImage;
  // Machine code is for one major version, and for its minor versions from one on.
  const bool runs = *arch / 10 == device / 10 && *arch % 10 <= device % 10;
  if (compiled.empty() && !runs) return kNoBinary;
  *static_cast<void (**)()>(dlsym(module.library, "stand_in_barrier")) = GiveWay;
  module.thread = static_cast<Extent*>(dlsym(module.library, "threadIdx"));
  module.block = static_cast<Extent*>(dlsym(module.library, "blockIdx"));
  module.threads = static_cast<Extent*>(dlsym(module.library, "blockDim"));
  module.blocks = static_cast<Extent*>(dlsym(module.library, "gridDim"));
  *made = new Module(module);
  return kSuccess;
}
API cuModuleUnload(Module* module) {
  LOCKED;
  WaitForDevice();
  dlclose(module->library);
  return kSuccess;
}
API cuModuleGetFunction(Function** made, Module* module, const char* name) {
  LOCKED;
  const std::string text = name;
  void* call = dlsym(module->library, (text + "_call").c_str());
  const auto* count = static_cast<const int*>(dlsym(module->library, (text + "_count").c_str()));
  if (call == nullptr || count == nullptr) return kNotFound;
  *made = new Function{module, reinterpret_cast<void (*)(void**)>(call), *count};
  return kSuccess;
}
API cuMemAlloc_v2(std::uint64_t* made, std::size_t bytes) {
  LOCKED;
  if (bytes == 0) return kInvalidValue;
  if (used + bytes > static_cast<std::size_t>(Said("STAND_IN_MEMORY", 1L << 30))) {
    return kOutOfMemory;
  }
  void* place = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(place, 0xFF, bytes);
  *made = reinterpret_cast<std::uint64_t>(place);
  memory[*made] = bytes;
  used += bytes;
  return kSuccess;
}
API cuMemFree_v2(std::uint64_t place) {
  LOCKED;
  WaitForDevice();
  const auto found = memory.find(place);
  if (found == memory.end()) return kInvalidValue;
  used -= found->second;
  memory.erase(found);
  std::free(reinterpret_cast<void*>(place));
  return kSuccess;
}
// Memory that both have, at one address for the machine and at another one for the device.
API cuMemHostAlloc(void** made, std::size_t bytes, unsigned flags) {
  LOCKED;
  if (bytes == 0 || flags != 3) return kInvalidValue;
  if (used + bytes > static_cast<std::size_t>(Said("STAND_IN_MEMORY", 1L << 30))) {
    return kOutOfMemory;
  }
  const int file = memfd_create("stand-in-cuda", 0);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) return kOutOfMemory;
  const auto view = [&] { return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0); };
  *made = view();
  const auto place = reinterpret_cast<std::uint64_t>(view());
  close(file);
  std::memset(*made, 0xFF, bytes);
  memory[place] = bytes;
  both[*made] = place;
  used += bytes;
  return kSuccess;
}
API cuMemHostGetDevicePointer_v2(std::uint64_t* place, void* host, unsigned flags) {
  LOCKED;
  const auto found = both.find(host);
  if (found == both.end() || flags != 0) return kInvalidValue;
  return *place = found->second, kSuccess;
}
API cuMemFreeHost(void* host) {
  LOCKED;
  WaitForDevice();
  const auto found = both.find(host);
  if (found == both.end()) return kInvalidValue;
  const std::size_t bytes = memory[found->second];
  munmap(reinterpret_cast<void*>(found->second), bytes);
  munmap(host, bytes);
  memory.erase(found->second);
  both.erase(found);
  used -= bytes;
  return kSuccess;
}
API cuMemHostRegister_v2(void*, std::size_t, unsigned) {
  LOCKED;
  return kSuccess;
}
API cuMemHostUnregister(void*) {
  LOCKED;
  WaitForDevice();
  return kSuccess;
}
API cuMemcpyHtoD_v2(std::uint64_t to, const void* from, std::size_t bytes) {
  LOCKED;
  if (!Holds(to, bytes)) return kInvalidValue;
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return kSuccess;
}
API cuMemcpyHtoDAsync_v2(std::uint64_t to, const void* from, std::size_t bytes, Stream* stream) {
  LOCKED;
  if (!Holds(to, bytes)) return kInvalidValue;
  return Put(stream, [=] { return std::memcpy(reinterpret_cast<void*>(to), from, bytes), 0; });
}
API cuMemcpyDtoHAsync_v2(void* to, std::uint64_t from, std::size_t bytes, Stream* stream) {
  LOCKED;
  if (!Holds(from, bytes)) return kInvalidValue;
  return Put(stream, [=] { return std::memcpy(to, reinterpret_cast<void*>(from), bytes), 0; });
}
API cuStreamCreate(Stream** made, unsigned) {
  LOCKED;
  *made = new Stream;
  return kSuccess;
}
API cuStreamQuery(Stream* stream) {
  LOCKED;
  if (stream->captured != nullptr) return kCaptureUnsupported;
  if (Hangs()) return kNotReady;
  const auto takes = std::chrono::microseconds(Said("STAND_IN_TAKES_US", 0));
  if (!stream->work.empty() && Clock::now() - stream->began < takes) return kNotReady;
  std::vector<Work> work = std::move(stream->work);
  stream->work.clear();
  for (const Work& each : work) {
    if (const Result result = each(); result != kSuccess) return result;
  }
  return kSuccess;
}
API cuStreamDestroy_v2(Stream* stream) {
  LOCKED;
  WaitForDevice();
  delete stream;
  return kSuccess;
}
API cuEventCreate(Event** made, unsigned) {
  LOCKED;
  *made = new Event;
  return kSuccess;
}
API cuEventDestroy_v2(Event* event) {
  LOCKED;
  delete event;
  return kSuccess;
}
API cuEventRecord(Event* event, Stream* stream) {
  LOCKED;
  event->at.reset();
  return Put(stream, [=] { return event->at = Clock::now(), kSuccess; });
}
API cuEventElapsedTime(float* taken_ms, Event* from, Event* to) {
  LOCKED;
  if (!from->at || !to->at) return kNotReady;
  *taken_ms = std::chrono::duration<float, std::milli>(*to->at - *from->at).count() *
              static_cast<float>(Said("STAND_IN_SLOW_CLOCK", 1));
  return kSuccess;
}
API cuStreamBeginCapture_v2(Stream* stream, int) {
  LOCKED;
  if (stream->captured != nullptr) return kCaptureUnsupported;
  stream->captured = new Graph;
  return kSuccess;
}
API cuStreamEndCapture(Stream* stream, Graph** made) {
  LOCKED;
  *made = std::exchange(stream->captured, nullptr);
  return *made != nullptr ? kSuccess : kCaptureUnsupported;
}
#ifndef WITHOUT_GRAPHS
API cuGraphInstantiate_v2(Graph** made, Graph* graph, void*, char*, std::size_t) {
  LOCKED;
  *made = new Graph(*graph);
  return kSuccess;
}
#endif
API cuGraphLaunch(Graph* graph, Stream* stream) {
  LOCKED;
  if (const Result result = Started(stream->captured != nullptr); result != kSuccess) return result;
  if (Breaks()) return Put(stream, [] { return broken = true, kLaunchFailed; });
  for (const Work& each : graph->work) Put(stream, each);
  return kSuccess;
}
API cuGraphExecDestroy(Graph* graph) {
  LOCKED;
  delete graph;
  return kSuccess;
}
API cuGraphDestroy(Graph* graph) {
  LOCKED;
  delete graph;
  return kSuccess;
}
API cuLaunchKernel(Function* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                   Stream* stream, void** given, void** more) {
  LOCKED;
  const Extent grid = {grid_x, grid_y, grid_z};
  const Extent block = {block_x, block_y, block_z};
  const std::uint64_t threads = std::uint64_t{block_x} * block_y * block_z;
  if (threads == 0 || threads > 1024 || block_z > 64 || grid_x == 0 || grid_y == 0 || grid_z == 0 ||
      grid_y > 65535 || grid_z > 65535 || shared != 0 || more != nullptr) {
    return kInvalidValue;
  }
  if (const Result result = Started(stream->captured != nullptr); result != kSuccess) return result;
  std::vector<void*> values;
  for (int i = 0; i < function->count; ++i) values.push_back(*static_cast<void**>(given[i]));
  if (stream->captured == nullptr && Breaks()) {
    return Put(stream, [] { return broken = true, kLaunchFailed; });
  }
  return Put(stream, [=] { return Run(function, grid, block, values); });
}
API cuGetErrorName(Result code, const char** name) {
  switch (code) {
    case kInvalidValue: return *name = "CUDA_ERROR_INVALID_VALUE", kSuccess;
    case kOutOfMemory: return *name = "CUDA_ERROR_OUT_OF_MEMORY", kSuccess;
    case kNoCompiler: return *name = "CUDA_ERROR_JIT_COMPILER_NOT_FOUND", kSuccess;
    case kOutOfResources: return *name = "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", kSuccess;
    case kLaunchFailed: return *name = "CUDA_ERROR_LAUNCH_FAILED", kSuccess;
    default: return kInvalidValue;
  }
}
