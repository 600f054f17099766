#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include <tvm/ffi/c_api.h>

namespace edgepack {

/// model.so: the kernels, with TVM's context pointers filled with this program's functions.
class KernelLibrary {
 public:
  /// Throws BundleError: no ELF file of this machine, cut off, or a symbol that nobody has.
  explicit KernelLibrary(const std::filesystem::path& path);

  /// The entry point of a kernel; throws BundleError if there is none.
  [[nodiscard]] TVMFFISafeCallType Find(const std::string& kernel) const;

 private:
  struct Close {
    void operator()(void* handle) const;
  };

  std::string name_;
  std::unique_ptr<void, Close> handle_;
};

/// Calls a kernel. Throws std::runtime_error with its message if it fails.
void Call(const std::string& name, TVMFFISafeCallType function, const TVMFFIAny* args, int count);

}  // namespace edgepack
