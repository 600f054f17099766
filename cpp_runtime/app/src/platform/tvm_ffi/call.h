#pragma once

#include <string>

#include <tvm/ffi/c_api.h>

namespace edgepack {

/// Calls a kernel. Throws std::runtime_error with its message if it fails.
void Call(const std::string& name, TVMFFISafeCallType function, const TVMFFIAny* args, int count);

}  // namespace edgepack
