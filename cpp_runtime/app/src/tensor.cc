#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include <edgepack/tensor.h>

namespace edgepack {
namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  std::string_view npy;
  std::size_t item_size;
};

constexpr std::array<DTypeRow, 12> kDTypes = {{
    {DType::kBool, "bool", "|b1", 1},
    {DType::kInt8, "int8", "|i1", 1},
    {DType::kUInt8, "uint8", "|u1", 1},
    {DType::kInt16, "int16", "<i2", 2},
    {DType::kUInt16, "uint16", "<u2", 2},
    {DType::kInt32, "int32", "<i4", 4},
    {DType::kUInt32, "uint32", "<u4", 4},
    {DType::kInt64, "int64", "<i8", 8},
    {DType::kUInt64, "uint64", "<u8", 8},
    {DType::kFloat16, "float16", "<f2", 2},
    {DType::kFloat32, "float32", "<f4", 4},
    {DType::kFloat64, "float64", "<f8", 8},
}};

const DTypeRow& Row(DType dtype) { return kDTypes.at(static_cast<std::size_t>(dtype)); }

template <typename T>
double Load(const void* data, std::size_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + index * sizeof(T), sizeof(T));
  return static_cast<double>(value);
}

/// IEEE 754 binary16: no compiler here has the type on every CPU.
double LoadFloat16(const void* data, std::size_t index) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, static_cast<const char*>(data) + index * sizeof(bits), sizeof(bits));
  const int exponent = (bits >> 10) & 0x1F;
  const int mantissa = bits & 0x3FF;
  double value = 0;
  if (exponent == 0x1F) {
    value = mantissa == 0 ? std::numeric_limits<double>::infinity()
                          : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(mantissa, -24);
  } else {
    value = std::ldexp(mantissa + 1024, exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

}  // namespace

std::optional<DType> DTypeFromName(std::string_view name) {
  for (const DTypeRow& row : kDTypes) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

std::optional<DType> DTypeFromNpy(std::string_view descr) {
  for (const DTypeRow& row : kDTypes) {
    if (row.npy == descr) return row.dtype;
  }
  return std::nullopt;
}

std::string_view Name(DType dtype) { return Row(dtype).name; }
std::string_view NpyDescr(DType dtype) { return Row(dtype).npy; }
std::size_t ItemSize(DType dtype) { return Row(dtype).item_size; }

std::string ToString(const Shape& shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i != 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + (shape.size() == 1 ? ",)" : ")");
}

std::optional<std::size_t> ByteSize(DType dtype, const Shape& shape) {
  // Half of the address space: pointer differences stay representable.
  constexpr std::size_t kLimit = std::numeric_limits<std::size_t>::max() / 2;
  // Without the zeros: else strides could be more than any number.
  std::size_t bytes = ItemSize(dtype);
  bool empty = false;
  for (const std::int64_t dim : shape) {
    if (dim < 0) return std::nullopt;
    empty = empty || dim == 0;
    if (dim == 0) continue;
    if (bytes > kLimit / static_cast<std::uint64_t>(dim)) return std::nullopt;
    bytes *= static_cast<std::size_t>(dim);
  }
  return empty ? 0 : bytes;
}

double ElementAt(DType dtype, const void* data, std::size_t index) {
  switch (dtype) {
    case DType::kBool:
    case DType::kUInt8:
      return Load<std::uint8_t>(data, index);
    case DType::kInt8:
      return Load<std::int8_t>(data, index);
    case DType::kInt16:
      return Load<std::int16_t>(data, index);
    case DType::kUInt16:
      return Load<std::uint16_t>(data, index);
    case DType::kInt32:
      return Load<std::int32_t>(data, index);
    case DType::kUInt32:
      return Load<std::uint32_t>(data, index);
    case DType::kInt64:
      return Load<std::int64_t>(data, index);
    case DType::kUInt64:
      return Load<std::uint64_t>(data, index);
    case DType::kFloat16:
      return LoadFloat16(data, index);
    case DType::kFloat32:
      return Load<float>(data, index);
    case DType::kFloat64:
      return Load<double>(data, index);
  }
  return std::numeric_limits<double>::quiet_NaN();
}

}  // namespace edgepack
