#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <edgepack/geometry.h>

namespace edgepack {

/// A crop of `height` x `width` pixels, and which points of a photo it shows. With the `matrix`
/// (a, b, c, d, e, f, g, h) the point (x, y) of the crop is
/// ((a x + b y + c) / w, (d x + e y + f) / w) of the photo, where w = g x + h y + 1.
///
/// edgepack/preprocess/warp.py is its mirror, to the byte: sums are in the order that is written
/// there, which says where the formulas come from, too.
struct Warp {
  int height = 0;
  int width = 0;
  std::array<double, 8> matrix{};

  friend bool operator==(const Warp& one, const Warp& other) {
    return one.height == other.height && one.width == other.width && one.matrix == other.matrix;
  }

  /// A point of the crop in the photo.
  [[nodiscard]] Point Source(Point point) const;

  /// Writes the crop, rows of BGR pixels without gaps, to `pixels`: for each pixel's centre the
  /// bilinear mean of the four pixels around it, with those at the photo's edge repeated. The photo
  /// has rows of `stride` bytes.
  void Write(const std::uint8_t* photo, int photo_height, int photo_width, std::size_t stride,
             std::vector<std::uint8_t>* pixels) const;
};

/// What is a rectangle with these corners in the photo, clockwise from the upper left, enlarged by
/// `padding` of its sides on each of them. One that is at least `tall` times as high as wide, if
/// that is not 0, is turned a quarter to the left; then it is turned upside down if it is to be
/// `turned`. Throws ImageError.
Warp WarpByCorners(const std::vector<Point>& corners, double padding, double tall, bool turned);

/// The face with these five points, `side` x `side` pixels, with `padding` of a face more on each
/// side. Throws ImageError.
Warp WarpByFace(const std::vector<Point>& points, int side, double padding);

}  // namespace edgepack
