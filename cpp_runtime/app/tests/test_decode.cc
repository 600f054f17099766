#include <cstring>
#include <string>

#include <doctest/doctest.h>
#include <edgepack/errors.h>
#include <opencv2/imgcodecs.hpp>

#include "platform/opencv/decode.h"
#include "support.h"

namespace edgepack::testing {
namespace {

using Accept = PreprocessSpec::Accept;

/// A picture without two equal neighbours in any direction.
cv::Mat Picture(int type) {
  cv::Mat image(5, 7, type);
  const auto length = static_cast<std::size_t>(image.cols) * image.elemSize();
  for (int y = 0; y < image.rows; ++y) {
    for (std::size_t x = 0; x < length; ++x) {
      image.ptr(y)[x] = static_cast<unsigned char>(static_cast<std::size_t>(y) * 41 + x * 7);
    }
  }
  return image;
}

std::string Encoded(const std::string& extension, const cv::Mat& image) {
  std::vector<unsigned char> bytes;
  REQUIRE(cv::imencode(extension, image, bytes));
  return {bytes.begin(), bytes.end()};
}

cv::Mat Decode(const std::string& bytes, const Accept& accept = {}) {
  const TempFolder folder;
  WriteFile(folder / "photo", bytes);
  return DecodeImage(folder / "photo", accept).bgr;
}

std::string DecodeError(const std::string& bytes) {
  return MessageOf<ImageError>([&] { Decode(bytes); });
}

bool Equal(const cv::Mat& a, const cv::Mat& b) {
  return a.size() == b.size() && a.type() == b.type() &&
         std::memcmp(a.clone().data, b.clone().data, a.total() * a.elemSize()) == 0;
}

/// A JPEG of `image` with an Exif orientation, as cameras write it.
std::string WithOrientation(const cv::Mat& image, char orientation) {
  std::string exif(
      "\xff\xe1\x00\x22"
      "Exif\0\0"
      "MM\0\x2a\0\0\0\x08"
      "\0\x01",
      20);
  exif +=
      std::string("\x01\x12\0\x03\0\0\0\x01\0", 9) + orientation + std::string("\0\0\0\0\0\0", 6);
  std::string jpeg = Encoded(".jpg", image);
  return jpeg.insert(2, exif);
}

}  // namespace

TEST_CASE("colour images") {
  const cv::Mat picture = Picture(CV_8UC3);
  CHECK(Equal(Decode(Encoded(".png", picture)), picture));
  CHECK(Decode(Encoded(".jpg", picture)).size() == picture.size());
}

TEST_CASE("a JPEG is reduced as it is decoded, a PNG is not") {
  const TempFolder folder;
  const auto eighth = [&](const std::string& bytes) {
    WriteFile(folder / "photo", bytes);
    return DecodeImage(folder / "photo", {}, PreprocessSpec::kMostPixels,
                       [](int height, int width) {
                         CHECK((height == 17 && width == 40));
                         return 8;
                       });
  };
  // A colour is its own mean. Rows of other colours show what is up.
  cv::Mat image(17, 40, CV_8UC3, cv::Scalar(200, 100, 50));
  image.rowRange(8, 17).setTo(cv::Scalar(50, 100, 200));
  const Decoded plain = eighth(Encoded(".jpg", image));
  CHECK(plain.size == cv::Size(40, 17));
  REQUIRE(plain.bgr.size() == cv::Size(5, 3));
  CHECK(plain.bgr.at<cv::Vec3b>(0, 2)[0] > 150);
  CHECK(plain.bgr.at<cv::Vec3b>(2, 2)[0] < 100);
  // Turned to the right: what was up is on the right.
  const Decoded turned = eighth(WithOrientation(image, 6));
  CHECK(turned.size == cv::Size(17, 40));
  REQUIRE(turned.bgr.size() == cv::Size(3, 5));
  CHECK(turned.bgr.at<cv::Vec3b>(2, 2)[0] > 150);
  CHECK(turned.bgr.at<cv::Vec3b>(2, 0)[0] < 100);
  const Decoded whole = eighth(Encoded(".png", image));
  CHECK(whole.size == cv::Size(40, 17));
  CHECK(Equal(whole.bgr, image));
}

TEST_CASE("images of another kind are refused, each with its own message, or accepted") {
  const std::string gray = Encoded(".png", Picture(CV_8UC1));
  CHECK(Contains(DecodeError(gray), "image is gray: "));
  CHECK(Decode(gray, {true, false, false}).type() == CV_8UC3);

  const std::string gray_jpeg = Encoded(".jpg", Picture(CV_8UC1));
  CHECK(Contains(DecodeError(gray_jpeg), "image is gray: "));
  CHECK(Decode(gray_jpeg, {true, false, false}).type() == CV_8UC3);

  const std::string alpha = Encoded(".png", Picture(CV_8UC4));
  CHECK(Contains(DecodeError(alpha), "image has an alpha channel: "));
  CHECK(Decode(alpha, {false, true, false}).type() == CV_8UC3);

  const std::string sixteen = Encoded(".png", Picture(CV_16UC3));
  CHECK(Contains(DecodeError(sixteen), "image has 16 bits per channel: "));
  CHECK(Decode(sixteen, {false, false, true}).type() == CV_8UC3);
}

TEST_CASE("transparent colours are an alpha channel") {
  // tRNS after IHDR: length 6, a colour, and a checksum that nobody reads here.
  std::string png = Encoded(".png", Picture(CV_8UC3));
  png.insert(33, std::string("\0\0\0\x06tRNS\0\x01\0\x02\0\x03\0\0\0\0", 18));
  CHECK(Contains(DecodeError(png), "alpha"));
}

TEST_CASE("an image that is too large is refused by its header alone") {
  // 12000 x 12000, of which there is nothing but the header.
  const std::string png = std::string("\x89PNG\r\n\x1a\n", 8) + std::string("\0\0\0\rIHDR", 8) +
                          std::string("\0\0\x2e\xe0\0\0\x2e\xe0\x08\x02\0\0\0", 13) +
                          std::string(4, '\0');
  const std::string jpeg("\xff\xd8\xff\xc0\0\x11\x08\x2e\xe0\x2e\xe0\x03\0\0\0\0", 16);
  const TempFolder folder;
  for (const std::string& bytes : {png, jpeg}) {
    WriteFile(folder / "photo", bytes);
    const auto error = [&](std::int64_t max_pixels) {
      return MessageOf<ImageError>([&] { DecodeImage(folder / "photo", {}, max_pixels); });
    };
    CHECK(Contains(error(143'999'999),
                   "image of 12000 x 12000 pixels is larger than the 143999999 pixels allowed"));
    CHECK(Contains(error(1), "larger than the 1 pixels"));
    CHECK(Contains(error(144'000'000), "damaged"));
  }
  // A product beyond 64 bits.
  WriteFile(folder / "photo", std::string(png).replace(16, 8, 8, '\xff'));
  CHECK(Contains(MessageOf<ImageError>([&] { DecodeImage(folder / "photo", {}); }),
                 "4294967295 x 4294967295 pixels is larger"));
}

TEST_CASE("a header that could be read in two ways is none") {
  const std::string jpeg = Encoded(".jpg", Picture(CV_8UC3));
  // A marker without a length, and one that is shorter than its length.
  for (const char* const segment : {"\xff\x01\x00\x04", "\xff\xd0\x00\x04", "\xff\xe0\x00\x01"}) {
    CHECK(Contains(DecodeError(std::string(jpeg).insert(2, std::string(segment, 4))),
                   "not a JPEG or PNG image"));
  }
}

TEST_CASE("a chunk that says it is longer than its file") {
  // Found by the fuzzer: the decoder takes the memory first, 1.5 GB here.
  const std::string png = Encoded(".png", Picture(CV_8UC3));
  for (const char* const name : {"tEXt", "IDAT"}) {
    const std::string chunk = std::string("\x5f\xff\xff\xff") + name;
    CHECK(Contains(DecodeError(std::string(png).insert(33, chunk)), "image is damaged: "));
  }
}

TEST_CASE("animations are refused") {
  std::string png = Encoded(".png", Picture(CV_8UC3));
  png.insert(33, std::string("\0\0\0\x08"
                             "acTL\0\0\0\x02\0\0\0\0\0\0\0\0",
                             20));
  CHECK(Contains(DecodeError(png), "image is an animation: "));
}

TEST_CASE("files that are no image") {
  CHECK(Contains(DecodeError(""), "not a JPEG or PNG image"));
  CHECK(Contains(DecodeError("GIF89a"), "not a JPEG or PNG image"));
  CHECK(Contains(DecodeError(Encoded(".bmp", Picture(CV_8UC3))), "not a JPEG or PNG image"));
  const TempFolder folder;
  const auto error = [&](const std::string& name) {
    return MessageOf<ImageError>([&] { DecodeImage(folder / name, {}); });
  };
  CHECK(Contains(error("none.png"), "image not found"));
  CHECK(Contains(error("."), "cannot read image"));
}

TEST_CASE("images cut off at every place are errors or images, never crashes") {
  for (const char* extension : {".png", ".jpg"}) {
    const std::string whole = Encoded(extension, Picture(CV_8UC3));
    for (std::size_t size = 0; size < whole.size(); ++size) {
      cv::Mat image;
      const std::string message =
          MessageOf<ImageError>([&] { image = Decode(whole.substr(0, size)); });
      CHECK(image.empty() != message.empty());
    }
  }
}

TEST_CASE("Exif orientation is applied") {
  const cv::Mat picture = Picture(CV_8UC3);
  const cv::Mat upright = Decode(WithOrientation(picture, 1));
  const cv::Mat turned = Decode(WithOrientation(picture, 6));
  CHECK(upright.size() == picture.size());
  CHECK(turned.size() == cv::Size(picture.rows, picture.cols));
}

}  // namespace edgepack::testing
