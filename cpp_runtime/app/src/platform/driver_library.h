#pragma once

#include <dlfcn.h>
#include <memory>
#include <string>

#include <edgepack/errors.h>

namespace edgepack {

/// A driver's library, opened by its name where the system looks for libraries.
class DriverLibrary {
 public:
  /// Throws GpuError.
  DriverLibrary(std::string name, const std::string& hint) : name_(std::move(name)) {
    handle_.reset(dlopen(name_.c_str(), RTLD_NOW | RTLD_LOCAL));
    if (handle_ == nullptr) {
      const char* why = dlerror();
      throw GpuError(
          "gpu-no-driver",
          "the GPU's driver cannot be opened: " + std::string(why != nullptr ? why : name_), hint);
    }
  }

  /// Throws GpuError if the library has no such function: it is older than what is needed.
  template <typename Function>
  void Find(const char* symbol, Function* function) const {
    void* address = dlsym(handle_.get(), symbol);
    if (address == nullptr) {
      throw GpuError("gpu-driver-too-old", name_ + " has no " + symbol,
                     "install a newer driver, or deploy with --compute cpu");
    }
    *function = reinterpret_cast<Function>(address);
  }

 private:
  /// A driver stays open: it may have threads of its own.
  struct Keep {
    void operator()(void* /*handle*/) const {}
  };

  std::string name_;
  std::unique_ptr<void, Keep> handle_;
};

}  // namespace edgepack
