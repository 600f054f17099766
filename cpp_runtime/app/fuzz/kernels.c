/* The library of all models that are fuzzed: a kernel that reads every byte of its tensors and
 * writes the last one, as a plan allows it to. */
#include <stdint.h>

#include <dlpack/dlpack.h>
#include <tvm/ffi/c_api.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT int __tvm_ffi_touch(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result);
EXPORT int __tvm_ffi_touch(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  (void)self;
  (void)result;
  uint8_t sum = 0;
  for (int32_t i = 0; i < count; ++i) {
    const DLTensor* const tensor = (const DLTensor*)args[i].v_ptr;
    int64_t bytes = tensor->dtype.bits / 8;
    for (int d = 0; d < tensor->ndim; ++d) bytes *= tensor->shape[d];
    volatile uint8_t* const data = (uint8_t*)tensor->data + tensor->byte_offset;
    for (int64_t at = 0; at < bytes; ++at) sum = (uint8_t)(sum + data[at]);
    for (int64_t at = 0; i == count - 1 && at < bytes; ++at) data[at] = sum;
  }
  return 0;
}
