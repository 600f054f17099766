/* Kernels as TVM's code generator writes them: an entry point __tvm_ffi_<name>, and variables that
 * the runtime fills with its own functions. */
#include <signal.h>
#include <stdint.h>

#include <dlpack/dlpack.h>
#include <tvm/ffi/c_api.h>

typedef struct {
  void* sync_handle;
  int32_t num_task;
} ParallelGroupEnv;

typedef int (*ParallelLambda)(int task_id, ParallelGroupEnv* env, void* data);

#define EXPORT __attribute__((visibility("default")))

EXPORT int (*__TVMBackendParallelLaunch)(ParallelLambda, void*, int);
EXPORT int (*__TVMBackendParallelBarrier)(int, ParallelGroupEnv*);
EXPORT void* (*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int);
EXPORT int (*__TVMBackendFreeWorkspace)(int, int, void*);
EXPORT int (*__TVMFFIEnvModLookupFromImports)(void*, const char*, void**);
EXPORT void (*__TVMFFIErrorSetRaisedFromCStr)(const char*, const char*);

#define KERNEL(name)                                                            \
  EXPORT int __tvm_ffi_##name(void* self, const TVMFFIAny* args, int32_t count, \
                              TVMFFIAny* result);                               \
  EXPORT int __tvm_ffi_##name(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result)
#define UNUSED(x) ((void)(x))

static DLTensor* Tensor(const TVMFFIAny* args, int i) { return (DLTensor*)args[i].v_ptr; }
static float* Data(const TVMFFIAny* args, int i) { return (float*)Tensor(args, i)->data; }

static int64_t Size(const DLTensor* tensor) {
  int64_t size = 1;
  for (int i = 0; i < tensor->ndim; ++i) size *= tensor->shape[i];
  return size;
}

typedef struct {
  const float* a;
  const float* b;
  float* out;
  int64_t size;
} AddData;

static int AddTask(int task, ParallelGroupEnv* env, void* data) {
  const AddData* add = (const AddData*)data;
  for (int64_t i = task; i < add->size; i += env->num_task) add->out[i] = add->a[i] + add->b[i];
  return 0;
}

/* out = a + b, on all threads. */
KERNEL(add) {
  UNUSED(self);
  UNUSED(result);
  if (count != 3) {
    __TVMFFIErrorSetRaisedFromCStr("TypeError", "add takes 3 tensors");
    return -1;
  }
  AddData data = {Data(args, 0), Data(args, 1), Data(args, 2), Size(Tensor(args, 2))};
  return __TVMBackendParallelLaunch(AddTask, &data, 0);
}

/* The end of the process, if a photo's first pixel is 2: (2 * 1 - 1) / 0.5. */
KERNEL(kill_at_two) {
  UNUSED(self);
  UNUSED(count);
  UNUSED(result);
  return Data(args, 0)[0] == 2 ? raise(SIGKILL) : 0;
}

/* out = 2 * a, through scratch memory. */
KERNEL(twice) {
  UNUSED(self);
  UNUSED(count);
  UNUSED(result);
  const int64_t size = Size(Tensor(args, 0));
  float* scratch = (float*)__TVMBackendAllocWorkspace(kDLCPU, 0, (uint64_t)size * 4, kDLFloat, 32);
  if (scratch == 0) return -1;
  for (int64_t i = 0; i < size; ++i) scratch[i] = Data(args, 0)[i];
  for (int64_t i = 0; i < size; ++i) Data(args, 1)[i] = scratch[i] + scratch[i];
  return __TVMBackendFreeWorkspace(kDLCPU, 0, scratch);
}

/* An int64 out[0] = a[0]. */
KERNEL(count) {
  UNUSED(self);
  UNUSED(count);
  UNUSED(result);
  *(int64_t*)Tensor(args, 1)->data = (int64_t)Data(args, 0)[0];
  return 0;
}

/* A truth value out[0] = a[0] < b[0]. */
KERNEL(below) {
  UNUSED(self);
  UNUSED(count);
  UNUSED(result);
  *(uint8_t*)Tensor(args, 2)->data = Data(args, 0)[0] < Data(args, 1)[0];
  return 0;
}

static int BarrierTask(int task, ParallelGroupEnv* env, void* data) {
  int32_t* arrived = (int32_t*)data;
  __atomic_fetch_add(arrived, 1, __ATOMIC_SEQ_CST);
  const int status = __TVMBackendParallelBarrier(task, env);
  return status != 0 || __atomic_load_n(arrived, __ATOMIC_SEQ_CST) != env->num_task;
}

/* out[0] = 1 if a barrier held back both tasks until the last one came. */
KERNEL(barrier) {
  UNUSED(self);
  UNUSED(result);
  int32_t arrived = 0;
  const int status = __TVMBackendParallelLaunch(BarrierTask, &arrived, 2);
  Data(args, count - 1)[0] = status == 0;
  return status;
}

/* The one function that generated code imports. */
KERNEL(fail) {
  UNUSED(self);
  UNUSED(args);
  UNUSED(count);
  UNUSED(result);
  const char* parts[] = {"expected ", "3 rows"};
  TVMFFIErrorSetRaisedFromCStrParts("ValueError", parts, 2);
  return -1;
}

/* As a kernel says it that was told to look at element 3 of its first argument, and found there
 * what is no position. */
KERNEL(outside) {
  UNUSED(self);
  UNUSED(result);
  UNUSED(count);
  Data(args, 2)[0] = 3;
  const char* parts[] = {"Gather 'a|b': its input 'indices'|-2|1|0|2"};
  TVMFFIErrorSetRaisedFromCStrParts("IndexError", parts, 1);
  return -1;
}

KERNEL(outside_of_nothing) {
  UNUSED(self);
  UNUSED(args);
  UNUSED(count);
  UNUSED(result);
  const char* parts[] = {"|0|5|-1|-1"};
  TVMFFIErrorSetRaisedFromCStrParts("IndexError", parts, 1);
  return -1;
}

KERNEL(outside_without_numbers) {
  UNUSED(self);
  UNUSED(args);
  UNUSED(count);
  UNUSED(result);
  const char* parts[] = {"|0|5|x|-1"};
  TVMFFIErrorSetRaisedFromCStrParts("IndexError", parts, 1);
  return -1;
}

KERNEL(fail_silently) {
  UNUSED(self);
  UNUSED(args);
  UNUSED(count);
  UNUSED(result);
  return -1;
}

static int FailTask(int task, ParallelGroupEnv* env, void* data) {
  UNUSED(data);
  if (task != env->num_task - 1) return 0;
  __TVMFFIErrorSetRaisedFromCStr("ValueError", "the last task failed");
  return -1;
}

KERNEL(fail_in_a_thread) {
  UNUSED(self);
  UNUSED(args);
  UNUSED(count);
  UNUSED(result);
  return __TVMBackendParallelLaunch(FailTask, 0, 0);
}

KERNEL(call_outside) {
  UNUSED(args);
  UNUSED(count);
  UNUSED(result);
  void* function = 0;
  return __TVMFFIEnvModLookupFromImports(self, "runtime.something", &function);
}
