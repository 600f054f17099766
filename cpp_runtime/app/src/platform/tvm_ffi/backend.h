#pragma once

#include <vector>

namespace edgepack {

/// A variable of the kernel library and the function whose address it is to hold.
struct ContextSymbol {
  const char* name;
  void* address;
};

/// What compiled kernels call: the thread pool, the workspace and tvm_ffi's own functions.
const std::vector<ContextSymbol>& ContextSymbols();

}  // namespace edgepack
