#ifndef EDGEPACK_DEVICE_ZSTD_H_
#define EDGEPACK_DEVICE_ZSTD_H_

#include <cstddef>

namespace edgepack::device {

// Decompresses the zstd frames in the `size` bytes at `data` to `out`, which has room for
// `capacity` bytes. Returns how many were written.
// Throws Error "damaged" for anything but whole, valid frames that fit.
size_t ZstdDecompress(void* out, size_t capacity, const void* data, size_t size);

}  // namespace edgepack::device

#endif  // EDGEPACK_DEVICE_ZSTD_H_
