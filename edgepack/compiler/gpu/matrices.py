"""Products of two tensors that are both computed: tiles in shared memory, one product after the
other in the grid's third direction."""

from __future__ import annotations

from dataclasses import dataclass

from edgepack.compiler.gpu.image import element, is_half, load, parameters, store
from edgepack.compiler.gpu.kernel import DeviceKernel, Launch, groups
from edgepack.gpus import Gpu

_DEPTH = 16
# (rows, columns) of a tile; each thread makes 4x4 of it.
_TILES = ((64, 64), (32, 64), (32, 32))


@dataclass(frozen=True, kw_only=True)
class MatrixProduct:
    """`count` products [rows, depth] x [depth, columns]; an operand that is `shared` is the same
    matrix for all of them."""

    count: int
    rows: int
    depth: int
    columns: int
    left_shared: bool
    right_shared: bool
    # float32, or halves, as `image.PlainImage` has them
    left: str = "float32"
    right: str = "float32"
    output: str = "float32"

    @classmethod
    def of(cls, left: tuple[int, ...], right: tuple[int, ...]) -> MatrixProduct | None:
        """The product of ONNX's MatMul of these shapes; None where it is of another kind."""
        if min(len(left), len(right)) < 2:
            return None
        lead = [tuple(size for size in shape[:-2] if size != 1) for shape in (left, right)]
        if lead[0] and lead[1] and left[:-2] != right[:-2]:
            return None
        count = 1
        for size in lead[0] or lead[1]:
            count *= size
        return cls(
            count=count,
            rows=left[-2],
            depth=left[-1],
            columns=right[-1],
            left_shared=not lead[0],
            right_shared=not lead[1],
        )


def make(product: MatrixProduct, gpu: Gpu) -> tuple[DeviceKernel, str] | None:
    """The kernel, of arguments left, right and output, and its tile; None for more products than a
    grid has places for."""
    if product.count > 65535 or groups(product.rows, 32) > 65535:
        return None

    def tiles(tile: tuple[int, int]) -> int:
        return groups(product.rows, tile[0]) * groups(product.columns, tile[1]) * product.count

    # The largest that gives each processor two groups.
    fitting = [tile for tile in _TILES if tile[0] * tile[1] // 16 <= gpu.threads]
    tile = next((tile for tile in fitting if tiles(tile) >= 2 * gpu.processors), fitting[-1])
    rows, columns = tile
    threads = rows * columns // 16
    across = columns // 4
    left = "0" if product.left_shared else f"(INT64)z * {product.rows * product.depth}"
    right = "0" if product.right_shared else f"(INT64)z * {product.depth * product.columns}"
    lefts, rights = _DEPTH * rows // threads, _DEPTH * columns // threads
    from_left = load("left", f"m * {product.depth} + d", half=is_half(product.left))
    from_right = load("right", f"d * {product.columns} + n", half=is_half(product.right))
    place = f"((INT64)z * {product.rows} + m) * {product.columns} + n"
    stored = store("y", place, "sum[i][j]", half=is_half(product.output))
    text = f"""
KERNEL({threads}) @matmul({parameters("ab", [product.left, product.right])},
                          GLOBAL {element(product.output)}* RESTRICT y) {{
  SHARED float4 as[2][{_DEPTH}][{rows // 4 + 1}];
  SHARED float4 bs[2][{_DEPTH}][{columns // 4}];
  const int t = THREAD, z = GROUP_Z;
  const int m0 = GROUP_Y * {rows}, n0 = GROUP_X * {columns};
  const GLOBAL {element(product.left)}* left = a + {left};
  const GLOBAL {element(product.right)}* right = b + {right};
  float sum[4][4], l[{lefts}], r[{rights}];
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) sum[i][j] = 0.0f;
  const int tm = t / {across}, tn = t % {across};
  for (int k = 0; k <= {groups(product.depth, _DEPTH)}; ++k) {{
    const int use = (k - 1) & 1;
    if (k > 0) {{
#pragma unroll
      for (int i = 0; i < {lefts}; ++i) {{
        const int at = t + i * {threads};
        ((SHARED_POINTER float*)as[use][at % {_DEPTH}])[at / {_DEPTH}] = l[i];
      }}
#pragma unroll
      for (int i = 0; i < {rights}; ++i) {{
        const int at = t + i * {threads};
        ((SHARED_POINTER float*)bs[use][at / {columns}])[at % {columns}] = r[i];
      }}
      BARRIER();
    }}
    if (k < {groups(product.depth, _DEPTH)}) {{
#pragma unroll
      for (int i = 0; i < {lefts}; ++i) {{
        const int at = t + i * {threads};
        const int m = m0 + at / {_DEPTH}, d = k * {_DEPTH} + at % {_DEPTH};
        const int inside = (m < {product.rows}) & (d < {product.depth});
        l[i] = inside ? {from_left} : 0.0f;
      }}
#pragma unroll
      for (int i = 0; i < {rights}; ++i) {{
        const int at = t + i * {threads};
        const int n = n0 + at % {columns}, d = k * {_DEPTH} + at / {columns};
        const int inside = (n < {product.columns}) & (d < {product.depth});
        r[i] = inside ? {from_right} : 0.0f;
      }}
    }}
    if (k > 0) {{
#pragma unroll
      for (int d = 0; d < {_DEPTH}; ++d) {{
        const float4 p = as[use][d][tm], q = bs[use][d][tn];
        const float left4[4] = {{p.x, p.y, p.z, p.w}}, right4[4] = {{q.x, q.y, q.z, q.w}};
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j) sum[i][j] = MULTIPLY_ADD(left4[i], right4[j], sum[i][j]);
      }}
    }}
  }}
#pragma unroll
  for (int i = 0; i < 4; ++i) {{
    const int m = m0 + tm * 4 + i;
#pragma unroll
    for (int j = 0; j < 4; ++j) {{
      const int n = n0 + tn * 4 + j;
      if (m < {product.rows} && n < {product.columns})
        {stored}
    }}
  }}
}}
"""
    launch = Launch(
        function="@matmul",
        grid=(groups(product.columns, columns), groups(product.rows, rows), product.count),
        block=(threads, 1, 1),
        args=(0, 1, 2),
    )
    shapes = [
        (1 if product.left_shared else product.count, product.rows, product.depth),
        (1 if product.right_shared else product.count, product.depth, product.columns),
        (product.count, product.rows, product.columns),
    ]
    dtypes = (product.left, product.right, product.output)
    made = DeviceKernel.from_text(text, [launch], list(zip(dtypes, shapes, strict=True)))
    return made, f"{rows}x{columns}"
