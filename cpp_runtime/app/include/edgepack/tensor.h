#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace edgepack {

/// Element types of tensors; the names are numpy's ("float32").
enum class DType {
  kBool,
  kInt8,
  kUInt8,
  kInt16,
  kUInt16,
  kInt32,
  kUInt32,
  kInt64,
  kUInt64,
  kFloat16,
  kFloat32,
  kFloat64,
};

/// "float32" -> kFloat32; nothing if there is no such type.
std::optional<DType> DTypeFromName(std::string_view name);
/// numpy's array interface string, little endian ("<f4", "|u1"); nothing if it is another one.
std::optional<DType> DTypeFromNpy(std::string_view descr);

std::string_view Name(DType dtype);
std::string_view NpyDescr(DType dtype);
/// Bytes of one element.
std::size_t ItemSize(DType dtype);

using Shape = std::vector<std::int64_t>;

/// "(1, 3, 224, 224)", as numpy writes it.
std::string ToString(const Shape& shape);

/// Bytes of a packed tensor; nothing if a dimension is negative or the product does not fit.
std::optional<std::size_t> ByteSize(DType dtype, const Shape& shape);

/// What a tensor is, without its data.
struct TensorInfo {
  std::string name;
  DType dtype = DType::kFloat32;
  Shape shape;
  std::size_t bytes = 0;
  /// Of an output whose shape depends on the data the largest one, else empty.
  Shape bound = {};

  /// Number of elements.
  [[nodiscard]] std::size_t size() const { return bytes / ItemSize(dtype); }
};

/// A packed tensor in somebody else's memory. `info` and `data` must outlive it.
struct TensorView {
  const TensorInfo* info = nullptr;
  void* data = nullptr;
};

/// Element `index` of packed data as a double (64-bit integers may lose bits).
double ElementAt(DType dtype, const void* data, std::size_t index);

}  // namespace edgepack
