#include <stdexcept>
#include <system_error>

#include <doctest/doctest.h>
#include <edgepack/errors.h>
#include <edgepack/npy.h>

#include "support.h"

namespace edgepack::testing {
namespace {

/// A version 1.0 file with this header and 16 bytes of data.
std::string NpyText(const std::string& header, std::size_t data = 16) {
  std::string text("\x93NUMPY\x01\x00", 8);
  text += static_cast<char>(header.size());
  text += '\0';
  return text + header + std::string(data, 'x');
}

std::string OpenError(const std::string& text) {
  const TempFolder folder;
  WriteFile(folder / "a.npy", text);
  return MessageOf<std::runtime_error>([&] { NpyFile::Open(folder / "a.npy"); });
}

}  // namespace

TEST_CASE("a file is read as it was written") {
  const TempFolder folder;
  for (const Shape& shape : {Shape{}, Shape{3}, Shape{2, 0}, Shape{1, 2, 3, 4}}) {
    const TensorInfo info = Info(DType::kFloat32, shape);
    std::vector<float> values(info.size());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) / 3;
    WriteNpy(folder / "a.npy", DType::kFloat32, shape, values.data());
    const NpyFile file = NpyFile::Open(folder / "a.npy");
    CHECK(file.info().dtype == DType::kFloat32);
    CHECK(file.info().shape == shape);
    for (std::size_t i = 0; i < values.size(); ++i) {
      CHECK(ElementAt(DType::kFloat32, file.data(), i) == static_cast<double>(values[i]));
    }
  }
  // Data begins at a multiple of 64, as numpy wants it.
  CHECK((ReadFile(folder / "a.npy").size() - 96) % 64 == 0);
}

TEST_CASE("numpy's own spellings are understood") {
  const TempFolder folder;
  for (const char* header : {"{'descr': '<f4', 'fortran_order': False, 'shape': (4,), }   \n",
                             R"({"shape":(2,2),"fortran_order":False,"descr":"<f4"})",
                             "{'descr': '<f4', 'fortran_order': True, 'shape': (4,)}"}) {
    WriteFile(folder / "a.npy", NpyText(header));
    CHECK(NpyFile::Open(folder / "a.npy").info().bytes == 16);
  }
}

TEST_CASE("damaged files") {
  const std::string good = "{'descr': '<f4', 'fortran_order': False, 'shape': (4,)}";
  CHECK(OpenError("") == "is not a .npy file");
  CHECK(OpenError("\x93NUMPX\x01\x00__") == "is not a .npy file");
  CHECK(OpenError(NpyText(good).replace(6, 1, "\x09")) == "has .npy version 9");
  CHECK(OpenError(NpyText(good).substr(0, 30)) == "is cut off in its header");
  CHECK(OpenError(NpyText(good).replace(6, 1, "\x02")) == "is cut off in its header");
  CHECK(Contains(OpenError(NpyText(good, 15)), "holds 15 bytes of data, shape (4,) of float32"));
  CHECK(Contains(OpenError(NpyText(good, 17)), "needs 16"));
  CHECK(Contains(OpenError(NpyText(Replace(good, "<f4", ">f4"))), "dtype '>f4' is not supported"));
  CHECK(Contains(OpenError(NpyText(Replace(good, "(4,)", "(-4,)"))), "bad shape"));
  CHECK(Contains(OpenError(NpyText(Replace(good, "(4,)", "(99999999999,99999999999,)"))),
                 "more than there can be"));
  CHECK(Contains(OpenError(NpyText(Replace(good, "False", "Maybe"))), "neither True nor False"));
  CHECK(Contains(OpenError(NpyText(Replace(good, "'shape'", "'shapes'"))), "unknown key 'shapes'"));
  CHECK(Contains(OpenError(NpyText("{'descr': '<f4'}")), "lacks"));
  CHECK(Contains(OpenError(NpyText("{'descr': '<f4")), "string without an end"));
  CHECK(Contains(OpenError(NpyText("{")), "damaged"));
  const std::string fortran = Replace(Replace(good, "False", "True"), "(4,)", "(2, 2)");
  CHECK(Contains(OpenError(NpyText(fortran)), "Fortran order"));
}

TEST_CASE("files that cannot be read or written") {
  const TempFolder folder;
  CHECK_THROWS_AS(NpyFile::Open(folder / "none.npy"), std::system_error);
  CHECK_THROWS_AS(NpyFile::Open(folder.path()), std::system_error);
  const float value = 1;
  CHECK_THROWS_AS(WriteNpy(folder / "no" / "a.npy", DType::kFloat32, {1}, &value), UsageError);
}

}  // namespace edgepack::testing
