// The functions that TVM's generated code calls through __TVM* pointers. Signatures:
// tvm/runtime/c_backend_api.h and tvm/ffi/c_api.h of TVM 0.27.
#include "platform/tvm_ffi/backend.h"

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

#include <edgepack/thread_pool.h>
#include <edgepack/workspace.h>
#include <tvm/ffi/c_api.h>
#include <tvm/ffi/object.h>

namespace edgepack {
namespace {

/// TVMParallelGroupEnv: what a parallel task is told.
struct ParallelGroupEnv {
  void* sync_handle;
  std::int32_t num_task;
};

using ParallelLambda = int (*)(int task_id, ParallelGroupEnv* env, void* data);

/// Tasks of a loop that leaves their number to us: each of them is some neighbouring turns of the
/// loop. So many that a thread that is late leaves enough of them to the others, so few that
/// calling them costs nothing. The loops that edgepack makes have 64 even turns
/// (compiler/share.py).
int TaskCount(int threads) {
  constexpr int kMost = 64;
  constexpr int kEach = 4;
  int tasks = 1;
  while (tasks < std::min(kMost, threads > 1 ? kEach * threads : 1)) tasks *= 2;
  return tasks;
}

void Release(TVMFFIObjectHandle error) {
  tvm::ffi::details::ObjectUnsafe::DecRefObjectHandle(error);
}

/// The message of the first task that failed; it lies with the thread that ran it.
class Failure {
 public:
  void Keep() {
    TVMFFIObjectHandle raised = nullptr;
    TVMFFIErrorMoveFromRaised(&raised);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (message_ == nullptr) std::swap(message_, raised);
    if (raised != nullptr) Release(raised);
  }

  /// Hands it on to the caller of this thread.
  void Raise() {
    if (message_ == nullptr) return;
    TVMFFIErrorSetRaised(message_);
    Release(message_);
  }

 private:
  std::mutex mutex_;
  TVMFFIObjectHandle message_ = nullptr;
};

int ParallelLaunch(ParallelLambda function, void* data, int num_task) {
  ThreadPool& pool = ThreadPool::Current();
  if (num_task <= 0) num_task = TaskCount(pool.threads());
  Failure failure;
  Failure* const failed = &failure;
  const auto run = [function, data, failed](int task, ThreadPool::Group& group) {
    ParallelGroupEnv env{&group, group.tasks()};
    const int result = function(task, &env, data);
    if (result != 0) failed->Keep();
    return result;
  };
  const int status = pool.Run(num_task, run);
  failure.Raise();
  return status;
}

int ParallelBarrier(int /*task_id*/, ParallelGroupEnv* env) {
  if (static_cast<ThreadPool::Group*>(env->sync_handle)->Wait()) return 0;
  TVMFFIErrorSetRaisedFromCStr("RuntimeError", "a parallel barrier did not open");
  return -1;
}

void* AllocWorkspace(int /*device_type*/, int /*device_id*/, std::uint64_t bytes,
                     int /*dtype_code*/, int /*dtype_bits*/) {
  return Workspace::Global().Allocate(bytes);
}

int FreeWorkspace(int /*device_type*/, int /*device_id*/, void* pointer) {
  Workspace::Global().Free(pointer);
  return 0;
}

/// A kernel that calls a function of TVM's own runtime, which is not on the board.
int LookupFromImports(void* /*library*/, const char* name, void** /*out*/) {
  const std::string message =
      std::string("the kernel needs the function '") + name + "', which is not on the board";
  TVMFFIErrorSetRaisedFromCStr("RuntimeError", message.c_str());
  return -1;
}

/// A call of what that would have given.
int CallFunction(void* /*function*/, TVMFFIAny* /*args*/, std::int32_t /*count*/,
                 TVMFFIAny* /*result*/) {
  TVMFFIErrorSetRaisedFromCStr("RuntimeError", "there are no functions but kernels on the board");
  return -1;
}

template <typename Function>
void* Address(Function* function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace

const std::vector<ContextSymbol>& ContextSymbols() {
  static const std::vector<ContextSymbol> kSymbols = {
      {"__TVMFFIFunctionCall", Address(&CallFunction)},
      {"__TVMFFIErrorSetRaisedFromCStr", Address(&TVMFFIErrorSetRaisedFromCStr)},
      {"__TVMFFIErrorSetRaisedFromCStrParts", Address(&TVMFFIErrorSetRaisedFromCStrParts)},
      {"__TVMFFIHandleInitOnce", Address(&TVMFFIHandleInitOnce)},
      {"__TVMFFIEnvModLookupFromImports", Address(&LookupFromImports)},
      {"__TVMBackendAllocWorkspace", Address(&AllocWorkspace)},
      {"__TVMBackendFreeWorkspace", Address(&FreeWorkspace)},
      {"__TVMBackendParallelLaunch", Address(&ParallelLaunch)},
      {"__TVMBackendParallelBarrier", Address(&ParallelBarrier)},
  };
  return kSymbols;
}

}  // namespace edgepack
