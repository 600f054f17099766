"""Convolutions with windows of 3x3 pixels by Winograd's algorithm, F(m x m, 3 x 3): see
`kernels.tiles.toom_cook`.

Three launches: of each tile of (m + 2)^2 pixels its transform, the products of each element of
all tiles with those of the weights, and of those the transform to m x m results. Each element is a
group of a 1x1 convolution, whose image and results are scratch memory. It takes 2.25 (m = 2) or 4
times fewer multiply-adds, and writes and reads each element of the scratch memory once: so it pays
where a GPU computes little for what its memory moves, and channels are neither few nor so many that
their transformed weights are what takes time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from edgepack.compiler.gpu.convolution import (
    GroupTile,
    ProductSite,
    TiledProduct,
    argument_types,
    estimate,
    read_epilogue,
    store_result,
)
from edgepack.compiler.gpu.epilogue import number, statements
from edgepack.compiler.gpu.image import PlainImage, element, load, parameters
from edgepack.compiler.gpu.kernel import DeviceKernel, Launch, groups
from edgepack.kernels.layer import Convolution, TransposedConvolution
from edgepack.kernels.tiles.toom_cook import POINTS, LineForm, Transform

# Results of a tile in each direction. Those of six take 64 registers for the elements alone, and
# twice the error.
_SIZES = (4, 2)
_TAPS = 3
_THREADS = 128
# Scratch memory: more is a burden for boards, whatever it gains.
_MOST_BYTES = 64 << 20
# What a launch costs beside its work, in cycles, as for parts of a product.
_LAUNCH = 2500
# The cost model is a guess for GPUs that nobody measured: a gain has to be a clear one.
_FASTER = 0.8


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """F(m x m, 3 x 3) of a layer, and the tile of its products."""

    form: LineForm
    tile: GroupTile
    time: float


def choose(site: ProductSite, most_results: int | None) -> _Plan | None:
    """How a layer is made if that is faster, with at most so many results of a tile in each
    direction; None if it is not, or for a GPU whose memory's speed is not known."""
    operator, gpu = site.operator, site.gpu
    if (
        isinstance(operator, TransposedConvolution)
        or operator.kernel != (_TAPS, _TAPS)
        or operator.stride != (1, 1)
        or operator.dilation != (1, 1)
        or operator.groups != 1
        or operator.gated
        or site.half_weights
        or site.image.rows
        or not gpu.bytes_per_cycle
        or (site.tf32 and gpu.has_tensor_cores)
    ):
        return None
    limit = _FASTER * _direct_time(site)
    plans = (_plan(site, size) for size in _SIZES if most_results is None or size <= most_results)
    fast = [plan for plan in plans if plan is not None and plan.time < limit]
    return min(fast, key=lambda plan: plan.time, default=None)


def _direct_time(site: ProductSite) -> float:
    """Cycles of an implicit GEMM, or of moving what it reads and writes."""
    elements = site.image.size + site.output.size + site.operator.weight.size
    return max(estimate(site)[0], 4 * elements / site.gpu.bytes_per_cycle)


def _plan(site: ProductSite, results: int) -> _Plan | None:
    gpu, size = site.gpu, results + _TAPS - 1
    form = LineForm(results=results, points=POINTS[size], taps=_TAPS)
    inner = _products(site, form)
    if 4 * (inner.image.size + inner.output.size) > _MOST_BYTES:
        return None
    product, tile, _ = estimate(inner, most_parts=1)
    scratch = inner.image.size + inner.output.size
    moved = 2 * scratch + site.image.size + site.output.size + inner.operator.weight.size
    lines = size + size, size + results
    operations = (
        form.forth(results).operations * lines[0] * inner.image.size
        + form.back(results).operations * lines[1] * inner.output.size
    ) / size**2
    computed = product + operations / (gpu.processors * gpu.lanes)
    time = max(computed, 4 * moved / gpu.bytes_per_cycle) + 2 * (_LAUNCH + 1500)
    return _Plan(form=form, tile=tile, time=time)


def _tiles(site: ProductSite, form: LineForm) -> tuple[int, int]:
    """Rows and columns of tiles of an image."""
    return groups(site.output.height, form.results), groups(site.output.width, form.results)


def _products(site: ProductSite, form: LineForm) -> ProductSite:
    """The products of all elements: a 1x1 convolution with a group for each of them."""
    rows, columns = _tiles(site, form)
    count, tiles = form.size**2, site.output.batch * rows * columns
    outs, ins = site.operator.weight.shape[:2]
    g = form.matrix(0)
    weight = np.einsum("ap,oipq,bq->aboi", g, site.operator.weight, g, optimize=True)
    operator = Convolution(
        weight=weight.reshape(count * outs, ins, 1, 1).astype("float32"),
        bias=None,
        stride=(1, 1),
        before=(0, 0),
        dilation=(1, 1),
        groups=count,
    )
    image = PlainImage(batch=1, channels=count * ins, height=1, width=tiles)
    return replace(
        site,
        operator=operator,
        image=image,
        output=replace(image, channels=count * outs),
        expression=(),
        constants=(),
        operands=(),
    )


def make(site: ProductSite, plan: _Plan) -> tuple[DeviceKernel, tuple[np.ndarray, ...], str]:
    """The kernel, its constants (weights and bias first), and its tile in words; arguments are
    those of `convolution.make`."""
    return _Winograd(site, plan).kernel()


class _Products(TiledProduct):
    """Sums that are stored as they are."""

    def finish(self) -> str:
        row, column, value = self.member("tm", "tn")
        return f"""
#pragma unroll
  for (int i = 0; i < {self.tile.own_outs}; ++i) {{
    const int m = m0 + {row};
    if (m >= {self.outs}) continue;
#pragma unroll
    for (int j = 0; j < {self.tile.own_columns}; ++j) {{
      const int at = n0 + {column};
      if (at < {self.columns}) y[(g * {self.outs} + m) * {self.columns} + at] = {value};
    }}
  }}"""


class _Winograd:
    def __init__(self, site: ProductSite, plan: _Plan) -> None:
        self.site, self.form = site, plan.form
        self.inner = _products(site, plan.form)
        self.products = _Products(self.inner, plan.tile, 1)
        self.tiles = _tiles(site, plan.form)
        self.outs, self.ins = site.operator.weight.shape[:2]

    def kernel(self) -> tuple[DeviceKernel, tuple[np.ndarray, ...], str]:
        site, inner, tile = self.site, self.inner, self.products.tile
        bias = site.operator.bias
        bias = np.zeros(self.outs, "float32") if bias is None else bias.astype("float32")
        constants = (self.products.packed(), bias, *site.constants)
        operands = [f"o{index}" for index in range(len(site.operands))]
        own = [f"c{index}" for index in range(len(site.constants))]
        names = ["x", *operands, "w", "bias", *own, "y", "forth", "back"]
        tensors = argument_types(site, constants)
        tensors += [("float32", (inner.image.size,)), ("float32", (inner.output.size,))]
        dtypes = {name: dtype for name, (dtype, _) in zip(names, tensors, strict=True)}
        self.products.dtypes = {"x": "float32", "w": dtypes["w"], "y": "float32"}
        ended = ["back", "bias", *operands, *own]
        text = (
            self._forth(dtypes["x"])
            + self.products.product(["x", "w"])
            + self._back(parameters(ended, [dtypes[name] for name in ended]))
        )

        def launch(function: str, count: int, *args: str) -> Launch:
            return Launch(
                function=function,
                grid=(groups(count, _THREADS), 1, 1),
                block=(_THREADS, 1, 1),
                args=tuple(map(names.index, args)),
            )

        count = self.inner.image.width
        launches = [
            launch("@forth", self.ins * count, "x", "forth"),
            Launch(
                function="@product",
                grid=(groups(count, tile.columns), groups(self.outs, tile.outs), self.form.size**2),
                block=(tile.threads, 1, 1),
                args=tuple(map(names.index, ["forth", "w", "back"])),
            ),
            launch("@back", self.outs * count, *ended, "y"),
        ]
        made = DeviceKernel.from_text(text, launches, tensors)
        shown = f"F({self.form.results}x{self.form.results}), {tile.outs}x{tile.columns}"
        return made, constants, shown

    def _place(self, of: str) -> str:
        """Which channel and which tile a thread has, and where that begins in the output."""
        rows, columns = self.tiles
        count, results = self.inner.image.width, self.form.results
        image = f"tile / {rows * columns}" if self.site.output.batch > 1 else "0"
        inner = f"tile % {rows * columns}" if self.site.output.batch > 1 else "tile"
        return f"""
  const int i = GROUP_X * {_THREADS} + THREAD;
  if (i >= {of} * {count}) return;
  const int channel = i / {count}, tile = i % {count};
  const int image_ = {image}, inner = {inner};
  const int v0 = inner / {columns} * {results}, h0 = inner % {columns} * {results};"""

    def _forth(self, dtype: str) -> str:
        """Pixels to elements."""
        site, size = self.site, self.form.size
        image, before = site.image, site.operator.before
        transform = self.form.forth(self.form.results)
        batch = "image_" if image.batch > 1 else "0"
        pixel = load("x", image.index(batch, "channel", f"v * {image.width} + h"), half=image.half)
        return f"""
KERNEL({_THREADS}) @forth({parameters(["x"], [dtype])}, GLOBAL float* RESTRICT y) {{
{self._place(str(self.ins))}
  float d[{size}][{size}];
#pragma unroll
  for (int a = 0; a < {size}; ++a)
#pragma unroll
    for (int b = 0; b < {size}; ++b) {{
      const int v = v0 + a - {before[0]}, h = h0 + b - {before[1]};
      const int seen = (v >= 0) & (v < {image.height}) & (h >= 0) & (h < {image.width});
      d[a][b] = seen ? {pixel} : 0.0f;
    }}
{_pass(transform, "d[{}][b]", "d[{}][b]", "b", size)}
{_pass(transform, "d[a][{}]", "d[a][{}]", "a", size)}
#pragma unroll
  for (int a = 0; a < {size}; ++a)
#pragma unroll
    for (int b = 0; b < {size}; ++b)
      y[((a * {size} + b) * {self.ins} + channel) * {self.inner.image.width} + tile] = d[a][b];
}}
"""

    def _back(self, arguments: str) -> str:
        """Sums of products to results, and the epilogue."""
        site, output, size = self.site, self.site.output, self.form.size
        results, count = self.form.results, self.inner.image.width
        transform = self.form.back(results)
        constant, operand = read_epilogue(site, "image_", "channel", "pixel_")
        text, result = statements(site.expression, "e0", channel=constant, operand=operand)
        return f"""
KERNEL({_THREADS}) @back({arguments}, GLOBAL {element(output.dtype)}* RESTRICT y) {{
{self._place(str(self.outs))}
  float d[{size}][{size}];
#pragma unroll
  for (int a = 0; a < {size}; ++a)
#pragma unroll
    for (int b = 0; b < {size}; ++b)
      d[a][b] = back[((a * {size} + b) * {self.outs} + channel) * {count} + tile];
{_pass(transform, "d[{}][b]", "d[{}][b]", "b", size)}
{_pass(transform, "d[a][{}]", "d[a][{}]", "a", results)}
#pragma unroll
  for (int a = 0; a < {results}; ++a)
#pragma unroll
    for (int b = 0; b < {results}; ++b) {{
      const int v = v0 + a, h = h0 + b;
      if (v >= {output.height} || h >= {output.width}) continue;
      const int pixel_ = v * {output.width} + h;
      const float e0 = d[a][b] + bias[channel]; {text}
      {store_result(output, result)}
    }}
}}
"""


def _pass(transform: Transform, given: str, made: str, line: str, lines: int) -> str:
    """A loop over lines, each of which is transformed in its place."""
    return "\n".join(
        [
            "#pragma unroll",
            f"  for (int {line} = 0; {line} < {lines}; ++{line}) {{",
            *(f"    {text}" for text in _statements(transform, given, made)),
            "  }",
        ]
    )


def _statements(transform: Transform, given: str, made: str) -> Iterator[str]:
    for index in range(transform.inputs):
        yield f"const float t{index} = {given.format(index)};"
    for index, terms in enumerate(transform.steps, transform.inputs):
        text = ""
        for coefficient, value in terms:
            if not text:
                text = f"t{value}" if coefficient == 1 else f"{number(coefficient)} * t{value}"
            elif coefficient in (1, -1):
                text += f" {'+' if coefficient == 1 else '-'} t{value}"
            else:
                text = f"MULTIPLY_ADD({number(coefficient)}, t{value}, {text})"
        yield f"const float t{index} = {text};"
    for index, value in enumerate(transform.outputs):
        yield f"{made.format(index)} = t{value};"
