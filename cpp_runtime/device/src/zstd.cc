#include "zstd.h"

#include "error.h"

// By its path: this header has the same name.
#include <zstd/zstd.h>

namespace edgepack::device {

size_t ZstdDecompress(void* out, size_t capacity, const void* data, size_t size) {
  const size_t written = ::ZSTD_decompress(out, capacity, data, size);
  if (::ZSTD_isError(written) != 0) {
    throw Refused("damaged", "compressed data is damaged", "send it again");
  }
  return written;
}

}  // namespace edgepack::device
