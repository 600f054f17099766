#include "platform/opencv/decode.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <edgepack/errors.h>
#include <opencv2/imgcodecs.hpp>

#include "memory_map.h"

namespace edgepack {
namespace {

constexpr std::string_view kPng = "\x89PNG\r\n\x1a\n";
constexpr std::string_view kJpeg = "\xff\xd8\xff";

/// What a file's header declares. A decoder would turn any of these kinds into 8-bit colour
/// silently, take any size, and show an animation's first picture.
struct Header {
  PreprocessSpec::Accept kinds;
  std::int64_t height = 0;
  std::int64_t width = 0;
  bool jpeg = false;
  bool animated = false;
  /// A part of it does not end within the file. OpenCV would take as much memory as it says.
  bool damaged = false;
};

std::uint32_t BigEndian(std::string_view data, std::size_t at, int bytes) {
  std::uint32_t value = 0;
  for (int i = 0; i < bytes; ++i) {
    value = value << 8U | static_cast<unsigned char>(data[at + static_cast<std::size_t>(i)]);
  }
  return value;
}

/// PNG: chunks of length (4), name (4), data and checksum (4), IHDR first. Transparent colours
/// (tRNS) and what makes it an animation (acTL) stand before the pixels (IDAT).
std::optional<Header> PngHeader(std::string_view data) {
  if (data.size() < 33 || data.substr(12, 4) != "IHDR") return std::nullopt;
  const std::uint32_t depth = BigEndian(data, 24, 1);
  const std::uint32_t color = BigEndian(data, 25, 1);
  Header header;
  header.width = BigEndian(data, 16, 4);
  header.height = BigEndian(data, 20, 4);
  header.kinds.sixteen_bit = depth == 16;
  header.kinds.gray = color == 0 || color == 4;
  header.kinds.alpha = color == 4 || color == 6;
  std::size_t at = kPng.size();
  while (data.size() - at >= 12) {
    const std::string_view name = data.substr(at + 4, 4);
    const std::uint32_t length = BigEndian(data, at, 4);
    if (length > data.size() - at - 12) break;
    if (name == "IDAT") return header;
    header.kinds.alpha = header.kinds.alpha || name == "tRNS";
    header.animated = header.animated || name == "acTL";
    at += 12 + length;
  }
  header.damaged = true;
  return header;
}

/// JPEG: after SOI segments of FF (perhaps repeated), marker, length (2, itself included), data.
/// A frame header (SOFn) holds precision (1), height (2), width (2), number of components (1).
/// Whatever could be read in two ways is no header: the decoder would see another size.
std::optional<Header> JpegHeader(std::string_view data) {
  std::size_t at = 2;
  while (at + 4 <= data.size() && BigEndian(data, at, 1) == 0xFF) {
    const std::uint32_t marker = BigEndian(data, at + 1, 1);
    if (marker == 0xFF) {
      ++at;
      continue;
    }
    if (marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC) {
      if (at + 10 > data.size()) return std::nullopt;
      Header header;
      header.jpeg = true;
      header.height = BigEndian(data, at + 5, 2);
      header.width = BigEndian(data, at + 7, 2);
      header.kinds.gray = BigEndian(data, at + 9, 1) == 1;
      return header;
    }
    // Those of ITU T.81 that stand alone, without a length: TEM, and RST0 to EOI.
    const bool alone = marker <= 0x01 || (marker >= 0xD0 && marker <= 0xD9);
    const std::uint32_t length = BigEndian(data, at + 2, 2);
    if (alone || length < 2) return std::nullopt;
    at += std::size_t{2} + length;
  }
  return std::nullopt;
}

std::optional<Header> ReadHeader(std::string_view data) {
  if (data.substr(0, kPng.size()) == kPng) return PngHeader(data);
  if (data.substr(0, kJpeg.size()) == kJpeg) return JpegHeader(data);
  return std::nullopt;
}

[[noreturn]] void Refuse(const std::string& what, const std::string& path,
                         const std::string& conversion, const std::string& kind) {
  throw ImageError("image " + what + ": " + path,
                   "to " + conversion + ", add \"" + kind +
                       "\" to `accept` in the [preprocess] table and deploy again; else give a "
                       "photo like those the model was trained on");
}

int ReadMode(int reduction) {
  switch (reduction) {
    case 2:
      return cv::IMREAD_REDUCED_COLOR_2;
    case 4:
      return cv::IMREAD_REDUCED_COLOR_4;
    case 8:
      return cv::IMREAD_REDUCED_COLOR_8;
    default:
      return cv::IMREAD_COLOR;
  }
}

MemoryMap MapImage(const std::filesystem::path& path) {
  try {
    return MemoryMap::File(path);
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::no_such_file_or_directory) {
      throw ImageError("image not found: " + path.string());
    }
    // What MemoryMap says of a FIFO, a socket or a device.
    const bool odd = error.code() == std::errc::invalid_argument ||
                     error.code() == std::errc::no_such_device_or_address;
    throw ImageError("cannot read image " + path.string() + ": " +
                     (odd ? "not a plain file" : error.code().message()));
  }
}

}  // namespace

Decoded DecodeImage(const std::filesystem::path& path, const PreprocessSpec::Accept& accept,
                    std::int64_t max_pixels, const Reduction& reduction) {
  const MemoryMap file = MapImage(path);
  return DecodeImage({file.data(), file.size()}, path.string(), accept, max_pixels, reduction);
}

Decoded DecodeImage(std::string_view file, const std::string& name,
                    const PreprocessSpec::Accept& accept, std::int64_t max_pixels,
                    const Reduction& reduction, cv::Mat* memory) {
  const std::optional<Header> header = ReadHeader(file);
  if (!header || file.size() > INT32_MAX) {
    throw ImageError("not a JPEG or PNG image: " + name, "convert it to PNG, or give another file");
  }
  if (header->animated) {
    throw ImageError("image is an animation: " + name, "give one picture of it");
  }
  // By a division: the product of what a damaged header says may be more than any number.
  if (header->height > 0 && header->width > max_pixels / header->height) {
    throw ImageError("image of " + std::to_string(header->width) + " x " +
                         std::to_string(header->height) + " pixels is larger than the " +
                         std::to_string(max_pixels) + " pixels allowed: " + name,
                     "give a smaller photo, or set `max_pixels` in the [preprocess] table if "
                     "there is memory for it");
  }
  const PreprocessSpec::Accept& kinds = header->kinds;
  if (kinds.sixteen_bit && !accept.sixteen_bit) {
    Refuse("has 16 bits per channel", name, "keep the upper 8 bits", "16bit");
  }
  if (kinds.alpha && !accept.alpha) {
    Refuse("has an alpha channel", name, "drop the alpha channel", "alpha");
  }
  if (kinds.gray && !accept.gray) {
    Refuse("is gray", name, "repeat the gray channel as colours", "gray");
  }
  if (header->damaged) throw ImageError("image is damaged: " + name);
  // OpenCV has no matrix of constants. NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast)
  const cv::Mat encoded(1, static_cast<int>(file.size()), CV_8UC1, const_cast<char*>(file.data()));
  cv::Size size(static_cast<int>(header->width), static_cast<int>(header->height));
  const int divisor = reduction && header->jpeg ? reduction(size.height, size.width) : 1;
  cv::Mat own;
  cv::Mat image;
  try {
    image = cv::imdecode(encoded, ReadMode(divisor), memory != nullptr ? memory : &own);
  } catch (const cv::Exception& error) {
    throw ImageError("image cannot be decoded: " + name + ": " + error.err);
  }
  if (image.empty()) throw ImageError("image is damaged: " + name);
  if (divisor == 1) return image;
  const bool turned = (image.rows > image.cols) != (size.height > size.width);
  if (turned) std::swap(size.height, size.width);
  return {image, size};
}

}  // namespace edgepack
