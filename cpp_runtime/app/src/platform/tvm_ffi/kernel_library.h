#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include <tvm/ffi/c_api.h>

namespace edgepack {

/// A model's kernels, with TVM's context pointers filled with this program's functions. They are in
/// model.so (kernel_library.cc), or the program was linked with them (linked_kernels.cc).
class KernelLibrary {
 public:
  /// Of the model in `folder`. Throws BundleError: no ELF file of this machine, cut off, a symbol
  /// that nobody has, or a program that was linked with another model's kernels.
  explicit KernelLibrary(const std::filesystem::path& folder);

  /// The entry point of a kernel; throws BundleError if there is none.
  [[nodiscard]] TVMFFISafeCallType Find(const std::string& kernel) const;

 private:
  struct Close {
    void operator()(void* handle) const;
  };

  std::string name_;
  std::unique_ptr<void, Close> handle_;
};

}  // namespace edgepack
