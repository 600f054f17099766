#include "warp.h"

#include <algorithm>
#include <cmath>
#include <string>

#include <edgepack/errors.h>

namespace edgepack {
namespace {

constexpr double kMostPixels = 1 << 22;
constexpr double kMostCoordinate = 1e6;
constexpr int kFractions = 256;
constexpr std::size_t kChannels = 3;
constexpr std::size_t kCorners = 4;

constexpr double kFaceSide = 112;
constexpr std::array<Point, 5> kFacePoints = {{{38.2946, 51.6963},
                                               {73.5318, 51.5014},
                                               {56.0252, 71.7366},
                                               {41.5493, 92.3655},
                                               {70.7299, 92.2041}}};

void Check(const std::vector<Point>& points, std::size_t count) {
  if (points.size() != count) {
    throw ImageError("it has " + std::to_string(points.size()) + " points instead of " +
                     std::to_string(count));
  }
  for (const Point& point : points) {
    if (!(std::abs(point.x) <= kMostCoordinate && std::abs(point.y) <= kMostCoordinate)) {
      throw ImageError("a point of it lies beside all photos");
    }
  }
}

double Length(Point one, Point other) {
  const double dx = one.x - other.x;
  const double dy = one.y - other.y;
  return std::sqrt(dx * dx + dy * dy);
}

double Pixels(double length) { return std::max(1.0, std::floor(length + 0.5)); }

/// Pixels of a row whose positions are found together, so that a compiler takes several at once.
constexpr std::size_t kBlock = 64;

/// Where a position is, in fractions of a pixel behind the centre of the first, of `size` pixels.
int Fractions(double at, int size) {
  const double most = (size - 1) * kFractions;
  const double fractions = (at - 0.5) * kFractions + 0.5;
  // What is converted is not negative, which rounds it down; nor is it NaN.
  const double positive = fractions > 0 ? fractions : 0;
  return static_cast<int>(positive < most ? positive : most);
}

/// Writes the mean of the four pixels around a place, in fractions of a pixel.
void WritePixel(const std::uint8_t* photo, int height, int width, std::size_t stride, int x, int y,
                std::uint8_t* to) {
  constexpr auto kFraction = static_cast<std::uint32_t>(kFractions);
  constexpr std::uint32_t kArea = kFraction * kFraction;
  const int column = x / kFractions;
  const int row = y / kFractions;
  const auto across = static_cast<std::uint32_t>(x % kFractions);
  const auto down = static_cast<std::uint32_t>(y % kFractions);
  const std::uint32_t both = across * down;
  const std::uint32_t right = across * kFraction - both;
  const std::uint32_t below = down * kFraction - both;
  const std::uint32_t here = kArea - right - below - both;
  const std::uint8_t* const a =
      photo + static_cast<std::size_t>(row) * stride + static_cast<std::size_t>(column) * kChannels;
  const std::uint8_t* const b = column + 1 < width ? a + kChannels : a;
  const std::size_t next = row + 1 < height ? stride : 0;
  std::array<std::uint8_t, kChannels> mixed;  // NOLINT(*-member-init): filled by the loop
  for (std::size_t i = 0; i < kChannels; ++i) {
    const std::uint32_t sum = a[i] * here + b[i] * right + a[i + next] * below + b[i + next] * both;
    mixed[i] =
        static_cast<std::uint8_t>((sum + kFractions * kFractions / 2) / (kFractions * kFractions));
  }
  std::copy(mixed.begin(), mixed.end(), to);
}

Point Middle(const Point* points, std::size_t count) {
  Point sum;
  for (std::size_t i = 0; i < count; ++i) {
    sum.x += points[i].x;
    sum.y += points[i].y;
  }
  return {sum.x / static_cast<double>(count), sum.y / static_cast<double>(count)};
}

}  // namespace

Point Warp::Source(Point point) const {
  const auto& [a, b, c, d, e, f, g, h] = matrix;
  const double w = g * point.x + h * point.y + 1.0;
  return {(a * point.x + b * point.y + c) / w, (d * point.x + e * point.y + f) / w};
}

void Warp::Write(const std::uint8_t* photo, int photo_height, int photo_width, std::size_t stride,
                 std::vector<std::uint8_t>* pixels) const {
  pixels->resize(static_cast<std::size_t>(height) * static_cast<std::size_t>(width) * kChannels);
  std::uint8_t* to = pixels->data();
  const auto [a, b, c, d, e, f, g, h] = matrix;
  const auto columns = static_cast<std::size_t>(width);
  std::array<int, kBlock> xs = {};
  std::array<int, kBlock> ys = {};
  for (int row = 0; row < height; ++row) {
    // As Source(), with what a row has in common outside of its loop.
    const double down = row + 0.5;
    const double bx = b * down;
    const double ey = e * down;
    const double hw = h * down;
    for (std::size_t begin = 0; begin < columns; begin += kBlock) {
      const std::size_t count = std::min(kBlock, columns - begin);
      const double left = static_cast<double>(begin) + 0.5;
      for (std::size_t i = 0; i < count; ++i) {
        const double across = left + static_cast<int>(i);
        const double w = g * across + hw + 1.0;
        xs[i] = Fractions((a * across + bx + c) / w, photo_width);
        ys[i] = Fractions((d * across + ey + f) / w, photo_height);
      }
      for (std::size_t i = 0; i < count; ++i, to += kChannels) {
        WritePixel(photo, photo_height, photo_width, stride, xs[i], ys[i], to);
      }
    }
  }
}

Warp WarpByCorners(const std::vector<Point>& corners, double padding, double tall, bool turned) {
  Check(corners, kCorners);
  std::array<Point, kCorners> p{};
  std::copy(corners.begin(), corners.end(), p.begin());
  double width = std::max(Length(p[0], p[1]), Length(p[3], p[2]));
  double height = std::max(Length(p[0], p[3]), Length(p[1], p[2]));
  if (tall > 0 && height >= tall * width) {
    std::rotate(p.begin(), p.begin() + 1, p.end());
    std::swap(width, height);
  }
  if (turned) std::rotate(p.begin(), p.begin() + 2, p.end());
  for (std::size_t i = 0; i < kCorners; ++i) {
    const Point a = p[i];
    const Point b = p[(i + 1) % kCorners];
    const Point c = p[(i + 2) % kCorners];
    if (!((b.x - a.x) * (c.y - b.y) - (b.y - a.y) * (c.x - b.x) > 0)) {
      throw ImageError("its corners are not those of a convex shape, clockwise");
    }
  }
  const double dx1 = p[1].x - p[2].x;
  const double dx2 = p[3].x - p[2].x;
  const double dx3 = p[0].x - p[1].x + p[2].x - p[3].x;
  const double dy1 = p[1].y - p[2].y;
  const double dy2 = p[3].y - p[2].y;
  const double dy3 = p[0].y - p[1].y + p[2].y - p[3].y;
  const double area = dx1 * dy2 - dx2 * dy1;
  double g = (dx3 * dy2 - dx2 * dy3) / area;
  double h = (dx1 * dy3 - dx3 * dy1) / area;
  const double a = p[1].x - p[0].x + g * p[1].x;
  const double b = p[3].x - p[0].x + h * p[3].x;
  const double d = p[1].y - p[0].y + g * p[1].y;
  const double e = p[3].y - p[0].y + h * p[3].y;
  const double whole = 1.0 + 2.0 * padding;
  const double columns = Pixels(width * whole);
  const double rows = Pixels(height * whole);
  if (columns * rows > kMostPixels) {
    throw ImageError("it would be " + std::to_string(static_cast<std::int64_t>(columns)) + " x " +
                     std::to_string(static_cast<std::int64_t>(rows)) + " pixels; at most " +
                     std::to_string(static_cast<std::int64_t>(kMostPixels)) + " are possible");
  }
  const double across = whole / columns;
  const double down = whole / rows;
  const double w = 1.0 - (g + h) * padding;
  g = g * across / w;
  h = h * down / w;
  const double nearest =
      std::min({w, 1.0 + g * columns, 1.0 + h * rows, 1.0 + g * columns + h * rows});
  if (!(nearest > 0)) throw ImageError("enlarged by the padding, it reaches behind the horizon");
  return {static_cast<int>(rows),
          static_cast<int>(columns),
          {a * across / w, b * down / w, (p[0].x - (a + b) * padding) / w, d * across / w,
           e * down / w, (p[0].y - (d + e) * padding) / w, g, h}};
}

Warp WarpByFace(const std::vector<Point>& points, int side, double padding) {
  Check(points, kFacePoints.size());
  const double scale = side / (kFaceSide * (1.0 + 2.0 * padding));
  std::array<Point, kFacePoints.size()> places{};
  std::transform(kFacePoints.begin(), kFacePoints.end(), places.begin(), [&](Point at) -> Point {
    return {(at.x + 0.5 + padding * kFaceSide) * scale, (at.y + 0.5 + padding * kFaceSide) * scale};
  });
  const Point from = Middle(points.data(), points.size());
  const Point to = Middle(places.data(), places.size());
  double spread = 0;
  double along = 0;
  double turning = 0;
  for (std::size_t i = 0; i < places.size(); ++i) {
    const double dx = points[i].x - from.x;
    const double dy = points[i].y - from.y;
    const double du = places[i].x - to.x;
    const double dv = places[i].y - to.y;
    spread += dx * dx + dy * dy;
    along += dx * du + dy * dv;
    turning += dx * dv - dy * du;
  }
  const double size = along * along + turning * turning;
  if (!(spread > 0 && size > 0)) throw ImageError("its key points are all in one place");
  // The inverse of what brings the points to their places.
  const double cos = along * spread / size;
  const double sin = turning * spread / size;
  return {side,
          side,
          {cos, sin, from.x - (cos * to.x + sin * to.y), -sin, cos,
           from.y - (cos * to.y - sin * to.x), 0.0, 0.0}};
}

}  // namespace edgepack
