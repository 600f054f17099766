// The format: numpy.lib.format's documentation, versions 1.0 to 3.0.
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <edgepack/errors.h>
#include <edgepack/npy.h>

#include "memory_map.h"

namespace edgepack {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kHeaderAlignment = 64;

[[noreturn]] void Fail(const std::string& message) { throw std::runtime_error(message); }

/// Reads the header, a Python dict literal of exactly the keys descr, fortran_order and shape.
class HeaderParser {
 public:
  explicit HeaderParser(std::string_view text) : rest_(text) {}

  TensorInfo Parse() {
    TensorInfo info;
    unsigned seen = 0;
    Expect('{');
    while (!Accept('}')) {
      const std::string_view key = QuotedString();
      Expect(':');
      if (key == "descr") {
        seen |= 1U;
        const std::string_view descr = QuotedString();
        const auto dtype = DTypeFromNpy(descr);
        if (!dtype) Fail("dtype '" + std::string(descr) + "' is not supported");
        info.dtype = *dtype;
      } else if (key == "fortran_order") {
        seen |= 2U;
        fortran_order_ = Boolean();
      } else if (key == "shape") {
        seen |= 4U;
        info.shape = Tuple();
      } else {
        Fail("unknown key '" + std::string(key) + "' in the header");
      }
      if (!Accept(',')) {
        Expect('}');
        break;
      }
    }
    if (seen != 7U) Fail("the header lacks descr, fortran_order or shape");
    if (fortran_order_ && info.shape.size() > 1) {
      Fail("the data is in Fortran order; save it with numpy.ascontiguousarray");
    }
    return info;
  }

 private:
  void SkipSpaces() {
    while (!rest_.empty() && (rest_.front() == ' ' || rest_.front() == '\n'))
      rest_.remove_prefix(1);
  }

  bool Accept(char wanted) {
    SkipSpaces();
    if (rest_.empty() || rest_.front() != wanted) return false;
    rest_.remove_prefix(1);
    return true;
  }

  void Expect(char wanted) {
    if (!Accept(wanted)) Fail(std::string("the header is damaged: no '") + wanted + "'");
  }

  std::string_view QuotedString() {
    const char quote = Accept('"') ? '"' : '\'';
    if (quote == '\'') Expect('\'');
    const std::size_t end = rest_.find(quote);
    if (end == std::string_view::npos) Fail("the header is damaged: string without an end");
    const std::string_view text = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    return text;
  }

  bool Boolean() {
    SkipSpaces();
    for (const auto& [word, value] :
         {std::pair{std::string_view("True"), true}, {"False", false}}) {
      if (rest_.substr(0, word.size()) == word) {
        rest_.remove_prefix(word.size());
        return value;
      }
    }
    Fail("the header is damaged: fortran_order is neither True nor False");
  }

  Shape Tuple() {
    Shape shape;
    Expect('(');
    while (!Accept(')')) {
      SkipSpaces();
      std::int64_t dim = 0;
      const auto [end, status] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), dim);
      if (status != std::errc() || dim < 0) Fail("the header is damaged: bad shape");
      rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
      shape.push_back(dim);
      if (!Accept(',')) {
        Expect(')');
        break;
      }
    }
    return shape;
  }

  std::string_view rest_;
  bool fortran_order_ = false;
};

}  // namespace

NpyFile NpyFile::Open(const std::filesystem::path& path) {
  auto map = std::make_shared<MemoryMap>(MemoryMap::File(path));
  const std::string_view file(map->data(), map->size());
  // Magic, two version bytes, and a header length of two bytes (1.0) or four (2.0, 3.0).
  if (file.size() < 10 || file.substr(0, kMagic.size()) != kMagic) Fail("is not a .npy file");
  const int version = static_cast<unsigned char>(file[6]);
  if (version < 1 || version > 3) Fail("has .npy version " + std::to_string(version));
  const std::size_t length_bytes = version == 1 ? 2 : 4;
  const std::size_t begin = 8 + length_bytes;
  std::size_t length = 0;
  for (std::size_t i = 0; i < length_bytes && 8 + i < file.size(); ++i) {
    length |= static_cast<std::size_t>(static_cast<unsigned char>(file[8 + i])) << (8 * i);
  }
  if (begin > file.size() || length > file.size() - begin) Fail("is cut off in its header");

  NpyFile npy;
  npy.info_ = HeaderParser(file.substr(begin, length)).Parse();
  const auto bytes = ByteSize(npy.info_.dtype, npy.info_.shape);
  const std::size_t there = file.size() - begin - length;
  if (!bytes || *bytes != there) {
    Fail("holds " + std::to_string(there) + " bytes of data, shape " + ToString(npy.info_.shape) +
         " of " + std::string(Name(npy.info_.dtype)) + " needs " +
         (bytes ? std::to_string(*bytes) : "more than there can be"));
  }
  npy.info_.bytes = *bytes;
  npy.data_ = map->data() + begin + length;
  npy.owner_ = std::move(map);
  return npy;
}

void WriteNpy(const std::filesystem::path& path, DType dtype, const Shape& shape,
              const void* data) {
  std::string header = "{'descr': '" + std::string(NpyDescr(dtype)) +
                       "', 'fortran_order': False, 'shape': " + ToString(shape) + ", }";
  // Data begins at a multiple of 64; 10 bytes stand before the header, a newline ends it.
  header.append(kHeaderAlignment - (10 + header.size() + 1) % kHeaderAlignment, ' ');
  header += '\n';
  const std::array<char, 4> prefix = {1, 0, static_cast<char>(header.size() & 0xFFU),
                                      static_cast<char>(header.size() >> 8U)};
  std::ofstream file(path, std::ios::binary);
  file << kMagic;
  file.write(prefix.data(), prefix.size());
  file << header;
  file.write(static_cast<const char*>(data),
             static_cast<std::streamsize>(ByteSize(dtype, shape).value_or(0)));
  file.close();
  if (!file) throw UsageError("cannot write " + path.string() + ": " + std::strerror(errno));
}

}  // namespace edgepack
