#pragma once

namespace edgepack {

struct Point {
  double x = 0;
  double y = 0;
};

/// A photo of `height` x `width` pixels in the tensor that was made of it.
///
/// It was scaled to `scaled_height` x `scaled_width` pixels; the tensor's upper left corner lies at
/// (`top`, `left`) of that, which are negative where a letterbox has a border. Coordinates are
/// continuous: the corner of the first pixel is (0, 0), its centre (0.5, 0.5).
/// edgepack/preprocess/geometry.py is its mirror.
struct Geometry {
  int height = 0;
  int width = 0;
  int scaled_height = 0;
  int scaled_width = 0;
  int top = 0;
  int left = 0;

  /// That of a tensor which is the photo.
  static Geometry Same(int height, int width) { return {height, width, height, width, 0, 0}; }

  /// A point of the tensor in the photo; what lies beside it is moved to its edge.
  [[nodiscard]] Point Source(Point point) const;

  /// A point of the tensor in pixels of the photo, in it or beside it.
  [[nodiscard]] Point Place(Point point) const;
};

}  // namespace edgepack
