#include "platform/tvm_ffi/kernel_library.h"

#include <cstring>
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <system_error>

#include <edgepack/errors.h>

#include "memory_map.h"
#include "platform/tvm_ffi/backend.h"

namespace edgepack {
namespace {

/// The dynamic linker trusts what it maps: a library that is cut off kills the process.
void CheckElf(const MemoryMap& file, const std::string& name) {
  ElfW(Ehdr) header;
  if (file.size() < sizeof(header)) throw BundleError(name + " is not a shared library");
  std::memcpy(&header, file.data(), sizeof(header));
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_type != ET_DYN ||
      header.e_phentsize != sizeof(ElfW(Phdr))) {
    throw BundleError(name + " is not a shared library of this machine");
  }
  const std::size_t table = std::size_t{header.e_phnum} * sizeof(ElfW(Phdr));
  if (header.e_phoff > file.size() || table > file.size() - header.e_phoff) {
    throw BundleError(name + " is cut off");
  }
  for (std::size_t i = 0; i < header.e_phnum; ++i) {
    ElfW(Phdr) segment;
    std::memcpy(&segment, file.data() + header.e_phoff + i * sizeof(segment), sizeof(segment));
    if (segment.p_offset > file.size() || segment.p_filesz > file.size() - segment.p_offset) {
      throw BundleError(name + " is cut off");
    }
  }
}

std::string LastLinkerError() {
  const char* message = dlerror();
  return message == nullptr ? "unknown reason" : message;
}

}  // namespace

void KernelLibrary::Close::operator()(void* handle) const { dlclose(handle); }

KernelLibrary::KernelLibrary(const std::filesystem::path& folder) : name_("model.so") {
  const std::filesystem::path path = folder / name_;
  try {
    CheckElf(MemoryMap::File(path), name_);
  } catch (const std::system_error& error) {
    throw BundleError("cannot read " + path.string() + ": " + error.code().message());
  }
  // An absolute path: without a slash the linker would search its own folders. RTLD_NOW: a missing
  // symbol is an error here, not a crash in the middle of a run.
  handle_.reset(dlopen(std::filesystem::absolute(path).c_str(), RTLD_NOW | RTLD_LOCAL));
  if (handle_ == nullptr) throw BundleError("cannot load " + name_ + ": " + LastLinkerError());
  for (const ContextSymbol& symbol : ContextSymbols()) {
    auto* const slot = static_cast<void**>(dlsym(handle_.get(), symbol.name));
    // Another model may have the same library open, and run it right now.
    if (slot != nullptr && *slot != symbol.address) *slot = symbol.address;
  }
}

TVMFFISafeCallType KernelLibrary::Find(const std::string& kernel) const {
  void* address = dlsym(handle_.get(), ("__tvm_ffi_" + kernel).c_str());
  if (address == nullptr) throw BundleError(name_ + " has no kernel '" + kernel + "'");
  return reinterpret_cast<TVMFFISafeCallType>(address);
}

}  // namespace edgepack
