#include "platform/opencv/draw.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include <edgepack/errors.h>
#include <opencv2/imgcodecs.hpp>

#include "platform/opencv/letters.h"
#include "postprocess/counts.h"

namespace edgepack {
namespace {

/// Blue, green, red.
using Color = std::array<std::uint8_t, 3>;

/// Far apart from each other.
constexpr std::array<Color, 6> kColors = {
    {{60, 220, 60}, {60, 60, 240}, {240, 140, 40}, {40, 200, 240}, {220, 60, 220}, {220, 220, 40}}};

/// A filled rectangle, as far as it lies in the photo.
void Fill(cv::Rect rect, const Color& color, cv::Mat* image) {
  rect &= cv::Rect(0, 0, image->cols, image->rows);
  for (int y = rect.y; y < rect.y + rect.height; ++y) {
    std::uint8_t* pixel = image->ptr<std::uint8_t>(y) + 3 * static_cast<std::ptrdiff_t>(rect.x);
    for (int x = 0; x < rect.width; ++x) pixel = std::copy(color.begin(), color.end(), pixel);
  }
}

const Color& ColorOf(std::size_t index) { return kColors.at(index % kColors.size()); }

int Whole(double value) { return static_cast<int>(std::lround(value)); }

/// One for each letter that UTF-8 has: others than ASCII's are question marks.
std::string Letters(const std::string& text) {
  std::string letters;
  for (const char byte : text) {
    const auto value = static_cast<unsigned char>(byte);
    if ((value & 0xC0U) == 0x80) continue;  // not a letter's first
    letters += value >= ' ' && value <= '~' ? byte : '?';
  }
  return letters;
}

/// How large things are drawn on a photo.
struct Scale {
  explicit Scale(const cv::Mat& image)
      : line(std::max(1, std::max(image.rows, image.cols) / 400)),
        dot(std::max(1, (std::max(image.rows, image.cols) + 160) / 320)) {}

  [[nodiscard]] int text_height() const { return (kLetterHeight + 2) * dot; }

  int line;  ///< pixels of a line's width
  int dot;   ///< pixels of a letter's dot
};

/// Letters on a ground of `color`, whose upper left corner is at (x, y).
void DrawText(const std::string& text, int x, int y, const Color& color, cv::Mat* image) {
  const Scale scale(*image);
  const std::string letters = Letters(text);
  const int step = (kLetterWidth + 1) * scale.dot;
  const int width = static_cast<int>(letters.size()) * step + scale.dot;
  // Moved to where it can be read, if there is room.
  x = std::max(0, std::min(x, image->cols - width));
  y = std::max(0, std::min(y, image->rows - scale.text_height()));
  Fill({x, y, width, scale.text_height()}, color, image);
  const int light = (color[0] + 6 * color[1] + 3 * color[2]) / 10;
  const Color ink = light > 110 ? Color{0, 0, 0} : Color{255, 255, 255};
  for (std::size_t i = 0; i < letters.size(); ++i) {
    const auto& columns = kLetters.at(static_cast<std::size_t>(letters[i] - ' '));
    const int left = x + scale.dot + static_cast<int>(i) * step;
    for (int column = 0; column < kLetterWidth; ++column) {
      for (int row = 0; row < kLetterHeight; ++row) {
        if ((columns.at(static_cast<std::size_t>(column)) >> static_cast<unsigned>(row) & 1U) == 0)
          continue;
        Fill({left + column * scale.dot, y + (row + 1) * scale.dot, scale.dot, scale.dot}, ink,
             image);
      }
    }
  }
}

/// "car 0.91".
std::string Caption(const Score& score, std::optional<std::string_view> label) {
  char number[32];
  (void)std::snprintf(number, sizeof(number), " %.2f", score.score);
  return (label && !label->empty() ? std::string(*label) : std::to_string(score.index)) + number;
}

void DrawPoint(Point point, const Color& color, cv::Mat* image) {
  // A corner of a turned box may be anywhere.
  if (!(point.x >= 0 && point.x <= image->cols && point.y >= 0 && point.y <= image->rows)) return;
  const int line = Scale(*image).line;
  const int side = 2 * line + 1;
  Fill({Whole(point.x) - line, Whole(point.y) - line, side, side}, color, image);
}

void DrawBox(const Found::LabelledBox& labelled, cv::Mat* image) {
  const Box& box = labelled.box;
  const Color& color = ColorOf(box.found.index);
  const Scale scale(*image);
  // Within the photo, as all boxes are: it is a number of pixels.
  const int left = Whole(box.low.x);
  const int top = Whole(box.low.y);
  const int width = Whole(box.high.x) - left;
  const int height = Whole(box.high.y) - top;
  Fill({left, top, width, scale.line}, color, image);
  Fill({left, top + height - scale.line, width, scale.line}, color, image);
  Fill({left, top, scale.line, height}, color, image);
  Fill({left + width - scale.line, top, scale.line, height}, color, image);
  for (const Point point : box.points) DrawPoint(point, color, image);
  const int above = top - scale.text_height();
  DrawText(Caption(box.found, labelled.label), left, above < 0 ? top : above, color, image);
}

/// Half of the photo, half of the colour.
void Mix(const Color& color, std::uint8_t* pixel) {
  for (std::size_t i = 0; i < color.size(); ++i) {
    pixel[i] = static_cast<std::uint8_t>((pixel[i] + color[i]) / 2);
  }
}

/// Of a thing in its class's colour, where its pixels are the photo's.
void DrawInstance(const Box& box, cv::Mat* image) {
  if (box.mask.height == 0 || box.mask.height != image->rows || box.mask.width != image->cols) {
    return;
  }
  const Color& color = ColorOf(box.found.index);
  ReadCounts(box.mask.counts, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; ++at) {
      const auto column = static_cast<int>(at / box.mask.height);
      Mix(color, image->ptr<std::uint8_t>(static_cast<int>(at % box.mask.height), column));
    }
  });
}

/// Half of the photo, half of the classes' colours.
void DrawMask(const Mask& mask, cv::Mat* image) {
  for (const auto& [index, area] : mask.areas) {
    const Color& color = ColorOf(index);
    for (std::size_t i = 0; i + 1 < area.runs.size(); i += 2) {
      auto* pixel = image->ptr<std::uint8_t>() + 3 * area.runs[i];
      for (std::int64_t left = area.runs[i + 1]; left > 0; --left, pixel += color.size()) {
        Mix(color, pixel);
      }
    }
  }
}

constexpr std::size_t kNoClass = 255;

}  // namespace

void DrawFound(const Found& found, cv::Mat* image) {
  if (found.mask && image->isContinuous() && image->rows == found.mask->height &&
      image->cols == found.mask->width) {
    DrawMask(*found.mask, image);
  }
  if (found.boxes) {
    for (const Found::LabelledBox& one : *found.boxes) DrawInstance(one.box, image);
    for (const Found::LabelledBox& box : *found.boxes) DrawBox(box, image);
  }
  if (found.keypoints) {
    for (const Found::LabelledMark& one : *found.keypoints) {
      DrawPoint(one.mark.point, ColorOf(one.mark.found.index), image);
    }
  }
  int y = 0;
  const auto add = [&](const std::string& text, std::size_t index) {
    DrawText(text, 0, y, ColorOf(index), image);
    y += Scale(*image).text_height();
  };
  for (const Found::Labelled& top : found.top) add(Caption(top.score, top.label), top.score.index);
  if (found.text) add(Caption({0, found.text->score}, found.text->text), 0);
}

cv::Mat MaskImage(const Mask& mask) {
  cv::Mat image(mask.height, mask.width, CV_8UC1);
  image.setTo(kNoClass);
  for (const auto& [index, area] : mask.areas) {
    if (index >= kNoClass) {
      throw UsageError("--mask: class " + std::to_string(index) + " is no pixel's value",
                       "--json has masks of any class");
    }
    for (std::size_t i = 0; i + 1 < area.runs.size(); i += 2) {
      std::fill_n(image.ptr<std::uint8_t>() + area.runs[i], area.runs[i + 1],
                  static_cast<std::uint8_t>(index));
    }
  }
  return image;
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

std::string EncodeJpeg(const cv::Mat& image) {
  constexpr int kQuality = 80;
  std::vector<unsigned char> bytes;
  cv::imencode(".jpg", image, bytes, {cv::IMWRITE_JPEG_QUALITY, kQuality});
  return {bytes.begin(), bytes.end()};
}

}  // namespace edgepack
