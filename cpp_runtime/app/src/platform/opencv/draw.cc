#include "platform/opencv/draw.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>

#include <edgepack/errors.h>
#include <opencv2/imgcodecs.hpp>

namespace edgepack {
namespace {

/// Blue, green, red; far apart from each other.
constexpr std::array<std::array<std::uint8_t, 3>, 6> kColors = {
    {{60, 220, 60}, {60, 60, 240}, {240, 140, 40}, {40, 200, 240}, {220, 60, 220}, {220, 220, 40}}};

/// A filled rectangle, as far as it lies in the photo.
void Fill(cv::Rect rect, const std::array<std::uint8_t, 3>& color, cv::Mat* image) {
  rect &= cv::Rect(0, 0, image->cols, image->rows);
  for (int y = rect.y; y < rect.y + rect.height; ++y) {
    std::uint8_t* pixel = image->ptr<std::uint8_t>(y) + 3 * static_cast<std::ptrdiff_t>(rect.x);
    for (int x = 0; x < rect.width; ++x) pixel = std::copy(color.begin(), color.end(), pixel);
  }
}

}  // namespace

void DrawBox(const Box& box, cv::Mat* image) {
  const std::array<std::uint8_t, 3>& color = kColors.at(box.found.index % kColors.size());
  const int line = std::max(1, std::max(image->rows, image->cols) / 400);
  // Within the photo, as all boxes are: it is a number of pixels.
  const int left = static_cast<int>(std::lround(box.low.x));
  const int top = static_cast<int>(std::lround(box.low.y));
  const int width = static_cast<int>(std::lround(box.high.x)) - left;
  const int height = static_cast<int>(std::lround(box.high.y)) - top;
  Fill({left, top, width, line}, color, image);
  Fill({left, top + height - line, width, line}, color, image);
  Fill({left, top, line, height}, color, image);
  Fill({left + width - line, top, line, height}, color, image);
  for (const Point point : box.points) {
    const int x = static_cast<int>(std::lround(point.x));
    const int y = static_cast<int>(std::lround(point.y));
    Fill({x - line, y - line, 2 * line + 1, 2 * line + 1}, color, image);
  }
}

void SaveImage(const std::filesystem::path& path, const cv::Mat& image) {
  const std::string suffix = path.extension().string();
  if (suffix != ".png" && suffix != ".jpg" && suffix != ".jpeg") {
    throw UsageError("cannot write " + path.string() + ": not .png or .jpg");
  }
  try {
    if (cv::imwrite(path.string(), image)) return;
  } catch (const cv::Exception& error) {
    throw UsageError("cannot write " + path.string() + ": " + error.err);
  }
  throw UsageError("cannot write " + path.string());
}

}  // namespace edgepack
