#include "platform/tvm_ffi/call.h"

#include <stdexcept>
#include <string>

#include <tvm/ffi/error.h>

namespace edgepack {

void Call(const std::string& name, TVMFFISafeCallType function, const TVMFFIAny* args, int count) {
  TVMFFIAny result = {};
  if (function(nullptr, args, count, &result) == 0) return;
  TVMFFIObjectHandle raised = nullptr;
  TVMFFIErrorMoveFromRaised(&raised);
  if (raised == nullptr) throw std::runtime_error("kernel " + name + " failed without a message");
  namespace unsafe = tvm::ffi::details;
  const auto error = unsafe::ObjectUnsafe::ObjectRefFromObjectPtr<tvm::ffi::Error>(
      unsafe::ObjectUnsafe::ObjectPtrFromOwned<tvm::ffi::Object>(
          static_cast<TVMFFIObject*>(raised)));
  throw KernelError(name, error.kind(), error.message());
}

}  // namespace edgepack
