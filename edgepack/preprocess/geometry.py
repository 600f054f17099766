"""Where a photo's pixels lie in the tensor that was made of it, and back."""

from __future__ import annotations

from dataclasses import dataclass

_FAR = 1e6  # pixels: a point is no farther


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """A photo of `height` x `width` pixels in a tensor.

    It was scaled to `scaled_height` x `scaled_width` pixels; the tensor's upper left corner lies at
    (`top`, `left`) of that, which are negative where a letterbox has a border. Coordinates are
    continuous: the corner of the first pixel is (0, 0), its centre (0.5, 0.5).
    """

    height: int
    width: int
    scaled_height: int
    scaled_width: int
    top: int = 0
    left: int = 0

    @classmethod
    def same(cls, height: int, width: int) -> Geometry:
        """That of a tensor which is the photo."""
        return cls(height=height, width=width, scaled_height=height, scaled_width=width)

    def point(self, x: float, y: float) -> tuple[float, float]:
        """The point (x, y) of the tensor in the photo; what lies beside it is moved to its edge."""
        source_x, source_y = self.place(x, y)
        return min(max(source_x, 0.0), self.width), min(max(source_y, 0.0), self.height)

    def place(self, x: float, y: float) -> tuple[float, float]:
        """The point (x, y) of the tensor in pixels of the photo, in it or beside it."""
        source_x = (x + self.left) * self.width / self.scaled_width
        source_y = (y + self.top) * self.height / self.scaled_height
        return min(max(source_x, -_FAR), _FAR), min(max(source_y, -_FAR), _FAR)
