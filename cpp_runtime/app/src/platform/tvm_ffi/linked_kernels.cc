// The kernels of a program that was linked with them: nothing is loaded, a table says where they
// are.

#include <cstdint>
#include <cstring>
#include <string_view>

#include <edgepack/errors.h>

#include "memory_map.h"
#include "platform/tvm_ffi/backend.h"
#include "platform/tvm_ffi/kernel_library.h"

// What edgepack/native/linked_app.py puts into the program when it links it: the graph.json's
// FNV-1a (64 bits), the number of symbols (32 bits), and the distance (32 bits, signed, from the
// number itself) to two distances for each symbol: to its name and to what it names.
extern "C" const unsigned char edgepack_kernels[];

namespace edgepack {
namespace {

template <typename Number>
Number Read(const unsigned char* place) {
  Number value;
  std::memcpy(&value, place, sizeof(value));
  return value;
}

/// What a distance leads to.
void* Follow(const unsigned char* place) {
  const auto here = reinterpret_cast<std::uintptr_t>(place);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the distance may lead to another object
  return reinterpret_cast<void*>(here + static_cast<std::uintptr_t>(Read<std::int32_t>(place)));
}

// http://www.isthe.com/chongo/tech/comp/fnv/
std::uint64_t HashOf(const MemoryMap& file) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (std::size_t i = 0; i < file.size(); ++i) {
    hash = (hash ^ static_cast<unsigned char>(file.data()[i])) * 0x100000001b3;
  }
  return hash;
}

void* FindLinked(std::string_view name) {
  const auto* symbol = static_cast<const unsigned char*>(Follow(&edgepack_kernels[12]));
  for (auto left = Read<std::uint32_t>(&edgepack_kernels[8]); left > 0; --left, symbol += 8) {
    if (name == static_cast<const char*>(Follow(symbol))) return Follow(symbol + 4);
  }
  return nullptr;
}

}  // namespace

void KernelLibrary::Close::operator()(void* /*handle*/) const {}

KernelLibrary::KernelLibrary(const std::filesystem::path& folder) : name_("edgepack-run") {
  const std::filesystem::path graph = folder / "graph.json";
  if (HashOf(MemoryMap::File(graph)) != Read<std::uint64_t>(&edgepack_kernels[0])) {
    throw BundleError(graph.string() + " is of another model than this program's kernels",
                      "run the edgepack-run of the same bundle");
  }
  for (const ContextSymbol& symbol : ContextSymbols()) {
    if (void* slot = FindLinked(symbol.name)) *static_cast<void**>(slot) = symbol.address;
  }
}

TVMFFISafeCallType KernelLibrary::Find(const std::string& kernel) const {
  void* address = FindLinked("__tvm_ffi_" + kernel);
  if (address == nullptr) throw BundleError(name_ + " has no kernel '" + kernel + "'");
  return reinterpret_cast<TVMFFISafeCallType>(address);
}

}  // namespace edgepack
