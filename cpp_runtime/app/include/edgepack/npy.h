#pragma once

#include <filesystem>
#include <memory>

#include <edgepack/tensor.h>

namespace edgepack {

/// A .npy file, mapped: dtype, shape and packed little-endian data in C order.
class NpyFile {
 public:
  /// Throws std::runtime_error that says what is wrong with the file (a caller knows whose file
  /// it is); std::system_error if it cannot be read.
  static NpyFile Open(const std::filesystem::path& path);

  [[nodiscard]] const TensorInfo& info() const { return info_; }
  [[nodiscard]] const void* data() const { return data_; }

 private:
  NpyFile() = default;

  TensorInfo info_;
  const void* data_ = nullptr;
  std::shared_ptr<const void> owner_;
};

/// Writes a version 1.0 .npy file, as numpy.save does. Throws UsageError if it cannot be written.
void WriteNpy(const std::filesystem::path& path, DType dtype, const Shape& shape, const void* data);

}  // namespace edgepack
