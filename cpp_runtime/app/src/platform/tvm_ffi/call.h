#pragma once

#include <stdexcept>
#include <string>

#include <tvm/ffi/c_api.h>

namespace edgepack {

/// What a kernel says that fails; `kind` is the error's name in TVM ("IndexError").
struct KernelError : std::runtime_error {
  KernelError(const std::string& kernel, std::string kind_of_it, std::string what_it_says)
      : std::runtime_error("kernel " + kernel + ": " + what_it_says),
        kind(std::move(kind_of_it)),
        said(std::move(what_it_says)) {}

  std::string kind;
  std::string said;
};

/// Calls a kernel. Throws KernelError if it fails, and std::runtime_error if it does not say why.
void Call(const std::string& name, TVMFFISafeCallType function, const TVMFFIAny* args, int count);

}  // namespace edgepack
