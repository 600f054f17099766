// Input: a .npy file.
#include <cmath>
#include <stdexcept>

#include <edgepack/npy.h>

#include "files.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace edgepack;
  static const MemoryFile file;
  static const MemoryFile copy;
  file.Write(Text(data, size));
  try {
    const NpyFile npy = NpyFile::Open(file.path());
    EDGEPACK_REQUIRE(ByteSize(npy.info().dtype, npy.info().shape) == npy.info().bytes);
    EDGEPACK_REQUIRE(npy.info().bytes <= size);
    double sum = 0;
    for (std::size_t i = 0; i < npy.info().size(); ++i) {
      sum += std::fabs(ElementAt(npy.info().dtype, npy.data(), i));
    }
    EDGEPACK_REQUIRE(!(sum < 0));
    // What we write, we read.
    WriteNpy(copy.path(), npy.info().dtype, npy.info().shape, npy.data());
    const NpyFile again = NpyFile::Open(copy.path());
    EDGEPACK_REQUIRE(again.info().shape == npy.info().shape);
    EDGEPACK_REQUIRE(again.info().dtype == npy.info().dtype);
  } catch (const std::runtime_error& error) {
    EDGEPACK_REQUIRE(*error.what() != '\0');
  }
  return 0;
}
