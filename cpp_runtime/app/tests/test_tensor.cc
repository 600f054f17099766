#include <cmath>
#include <cstdint>
#include <limits>

#include <doctest/doctest.h>
#include <edgepack/tensor.h>

namespace edgepack {

TEST_CASE("names of types") {
  CHECK(DTypeFromName("float32") == DType::kFloat32);
  CHECK(Name(DType::kUInt8) == "uint8");
  CHECK_FALSE(DTypeFromName("float31"));
  CHECK(DTypeFromNpy("<i8") == DType::kInt64);
  CHECK_FALSE(DTypeFromNpy(">f4"));
  for (const auto dtype : {DType::kBool, DType::kInt16, DType::kUInt64, DType::kFloat64}) {
    CHECK(DTypeFromName(Name(dtype)) == dtype);
    CHECK(DTypeFromNpy(NpyDescr(dtype)) == dtype);
  }
}

TEST_CASE("sizes") {
  CHECK(ByteSize(DType::kFloat32, {1, 3, 224, 224}) == 602112U);
  CHECK(ByteSize(DType::kInt8, {}) == 1U);
  CHECK(ByteSize(DType::kInt8, {5, 0}) == 0U);
  CHECK_FALSE(ByteSize(DType::kInt8, {-1}));
  const std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  CHECK_FALSE(ByteSize(DType::kFloat64, {huge, huge}));
  CHECK_FALSE(ByteSize(DType::kFloat64, {0, huge, huge}));
  CHECK_FALSE(ByteSize(DType::kFloat64, {0x10000, 0x10000, 0x10000, 0x10000}));
  CHECK(ToString({1, 3}) == "(1, 3)");
  CHECK(ToString({7}) == "(7,)");
  CHECK(ToString({}) == "()");
}

TEST_CASE("elements as doubles") {
  const float floats[] = {0.5F, -2};
  CHECK(ElementAt(DType::kFloat32, floats, 1) == -2);
  const std::int8_t bytes[] = {1, -128};
  CHECK(ElementAt(DType::kInt8, bytes, 1) == -128);
  CHECK(ElementAt(DType::kUInt8, bytes, 1) == 128);
  const std::int64_t longs[] = {-7};
  CHECK(ElementAt(DType::kInt64, longs, 0) == -7);
  // 1, -2, the smallest subnormal, the largest, infinity, not a number
  const std::uint16_t halves[] = {0x3C00, 0xC000, 0x0001, 0x7BFF, 0x7C00, 0x7E00};
  CHECK(ElementAt(DType::kFloat16, halves, 0) == 1);
  CHECK(ElementAt(DType::kFloat16, halves, 1) == -2);
  CHECK(ElementAt(DType::kFloat16, halves, 2) == std::ldexp(1.0, -24));
  CHECK(ElementAt(DType::kFloat16, halves, 3) == 65504);
  CHECK(std::isinf(ElementAt(DType::kFloat16, halves, 4)));
  CHECK(std::isnan(ElementAt(DType::kFloat16, halves, 5)));
}

}  // namespace edgepack
