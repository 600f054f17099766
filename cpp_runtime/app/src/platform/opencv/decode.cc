#include "platform/opencv/decode.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include <edgepack/errors.h>
#include <opencv2/imgcodecs.hpp>

#include "memory_map.h"

namespace edgepack {
namespace {

constexpr std::string_view kPng = "\x89PNG\r\n\x1a\n";
constexpr std::string_view kJpeg = "\xff\xd8\xff";

/// What a file's header declares. A decoder would turn any of these into 8-bit colour silently.
using Kinds = PreprocessSpec::Accept;

std::uint32_t BigEndian(std::string_view data, std::size_t at, int bytes) {
  std::uint32_t value = 0;
  for (int i = 0; i < bytes; ++i) {
    value = value << 8U | static_cast<unsigned char>(data[at + static_cast<std::size_t>(i)]);
  }
  return value;
}

/// PNG: chunks of length (4), name (4), data and checksum (4), IHDR first. Transparent colours
/// (tRNS) stand before the pixels (IDAT).
std::optional<Kinds> PngKinds(std::string_view data) {
  if (data.size() < 33 || data.substr(12, 4) != "IHDR") return std::nullopt;
  const std::uint32_t depth = BigEndian(data, 24, 1);
  const std::uint32_t color = BigEndian(data, 25, 1);
  Kinds kinds;
  kinds.sixteen_bit = depth == 16;
  kinds.gray = color == 0 || color == 4;
  kinds.alpha = color == 4 || color == 6;
  std::size_t at = kPng.size();
  while (!kinds.alpha && data.size() - at >= 12) {
    const std::string_view name = data.substr(at + 4, 4);
    const std::uint32_t length = BigEndian(data, at, 4);
    if (name == "IDAT") break;
    kinds.alpha = name == "tRNS";
    if (length > data.size() - at - 12) break;
    at += 12 + length;
  }
  return kinds;
}

/// JPEG: after SOI segments of FF (perhaps repeated), marker, length (2, itself included), data.
/// A frame header (SOFn) holds precision (1), height (2), width (2), number of components (1).
std::optional<Kinds> JpegKinds(std::string_view data) {
  std::size_t at = 2;
  while (at + 4 <= data.size() && BigEndian(data, at, 1) == 0xFF) {
    const std::uint32_t marker = BigEndian(data, at + 1, 1);
    if (marker == 0xFF) {
      ++at;
      continue;
    }
    if (marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC) {
      if (at + 10 > data.size()) return std::nullopt;
      Kinds kinds;
      kinds.gray = BigEndian(data, at + 9, 1) == 1;
      return kinds;
    }
    at += std::size_t{2} + BigEndian(data, at + 2, 2);
  }
  return std::nullopt;
}

std::optional<Kinds> ImageKinds(std::string_view data) {
  if (data.substr(0, kPng.size()) == kPng) return PngKinds(data);
  if (data.substr(0, kJpeg.size()) == kJpeg) return JpegKinds(data);
  return std::nullopt;
}

[[noreturn]] void Refuse(const std::string& what, const std::string& path,
                         const std::string& conversion, const std::string& kind) {
  throw ImageError("image " + what + ": " + path,
                   "to " + conversion + ", add \"" + kind +
                       "\" to `accept` in the [preprocess] table and deploy again; else give a "
                       "photo like those the model was trained on");
}

MemoryMap MapImage(const std::filesystem::path& path) {
  try {
    return MemoryMap::File(path);
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::no_such_file_or_directory) {
      throw ImageError("image not found: " + path.string());
    }
    throw ImageError("cannot read image " + path.string() + ": " + error.code().message());
  }
}

}  // namespace

cv::Mat DecodeImage(const std::filesystem::path& path, const PreprocessSpec::Accept& accept) {
  const MemoryMap file = MapImage(path);
  const std::optional<Kinds> kinds = ImageKinds({file.data(), file.size()});
  if (!kinds || file.size() > INT32_MAX) {
    throw ImageError("not a JPEG or PNG image: " + path.string(),
                     "convert it to PNG, or give another file");
  }
  if (kinds->sixteen_bit && !accept.sixteen_bit) {
    Refuse("has 16 bits per channel", path.string(), "keep the upper 8 bits", "16bit");
  }
  if (kinds->alpha && !accept.alpha) {
    Refuse("has an alpha channel", path.string(), "drop the alpha channel", "alpha");
  }
  if (kinds->gray && !accept.gray) {
    Refuse("is gray", path.string(), "repeat the gray channel as colours", "gray");
  }
  const cv::Mat encoded(1, static_cast<int>(file.size()), CV_8UC1, file.data());
  cv::Mat image;
  try {
    image = cv::imdecode(encoded, cv::IMREAD_COLOR);
  } catch (const cv::Exception& error) {
    throw ImageError("image cannot be decoded: " + path.string() + ": " + error.err);
  }
  if (image.empty()) throw ImageError("image is damaged: " + path.string());
  return image;
}

}  // namespace edgepack
