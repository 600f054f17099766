"""Depthwise convolutions, transposed ones too, and pooling: a thread for each result, which reads
its own window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgepack.compiler.gpu.epilogue import number, statements
from edgepack.compiler.gpu.image import PlainImage, element, load, parameters, store
from edgepack.compiler.gpu.kernel import DeviceKernel, Launch, groups
from edgepack.kernels.layer import (
    Convolution,
    GlobalPooling,
    Pooling,
    TransposedConvolution,
)
from edgepack.kernels.tiles.expression import Expression

_THREADS = 128


@dataclass(frozen=True, kw_only=True)
class WindowSite:
    """A layer, its tensors and its epilogue."""

    operator: Convolution | Pooling | GlobalPooling
    image: PlainImage
    output: PlainImage
    expression: Expression
    constants: tuple[np.ndarray, ...]
    operands: tuple[PlainImage, ...]


def make(site: WindowSite) -> tuple[DeviceKernel, tuple[np.ndarray, ...], str]:
    """The kernel and its constants (weights and bias first, if it has some).

    Its arguments are the image, the operands, the constants and the output.
    """
    match site.operator:
        case TransposedConvolution():
            return _depthwise_transposed(site, site.operator)
        case Convolution():
            return _depthwise(site, site.operator)
        case Pooling():
            return _pooling(site, site.operator)
        case GlobalPooling():
            return _whole(site, site.operator)


def _depthwise(
    site: WindowSite, operator: Convolution
) -> tuple[DeviceKernel, tuple[np.ndarray, ...], str]:
    rows, columns = operator.kernel
    outs = operator.weight.shape[0]
    each = outs // operator.groups  # results of each channel
    bias = np.zeros(outs, "float32") if operator.bias is None else operator.bias
    weight = np.ascontiguousarray(operator.weight.reshape(outs, rows * columns))
    body = f"""
  float e0 = bias[channel];
  const GLOBAL {element(site.image.dtype)}* from =
      x + (image * {site.image.channels} + channel / {each})
      * {site.image.pixels};
  const int top = pixel / {site.output.width} * {operator.stride[0]} - {operator.before[0]};
  const int left = pixel % {site.output.width} * {operator.stride[1]} - {operator.before[1]};
#pragma unroll
  for (int r = 0; r < {rows}; ++r) {{
    const int v = top + r * {operator.dilation[0]};
    if (v < 0 || v >= {site.image.height}) continue;
#pragma unroll
    for (int s = 0; s < {columns}; ++s) {{
      const int h = left + s * {operator.dilation[1]};
      if (h >= 0 && h < {site.image.width})
        e0 = MULTIPLY_ADD(w[channel * {rows * columns} + r * {columns} + s],
                          {load("from", f"v * {site.image.width} + h", half=site.image.half)}, e0);
    }}
  }}
"""
    return _each(site, "depthwise", body, [weight, bias.astype("float32")], ["w", "bias"])


def _depthwise_transposed(
    site: WindowSite, operator: TransposedConvolution
) -> tuple[DeviceKernel, tuple[np.ndarray, ...], str]:
    """Each result gathers the pixels whose windows reach it: every stride-th tap has one."""
    rows, columns = operator.kernel
    down, across = operator.stride
    outs = operator.weight.shape[0]
    each = outs // operator.groups
    bias = np.zeros(outs, "float32") if operator.bias is None else operator.bias
    weight = np.ascontiguousarray(operator.weight.reshape(outs, rows * columns))
    body = f"""
  float e0 = bias[channel];
  const GLOBAL {element(site.image.dtype)}* from =
      x + (image * {site.image.channels} + channel / {each})
      * {site.image.pixels};
  const int bottom = pixel / {site.output.width} + {operator.before[0]};
  const int right = pixel % {site.output.width} + {operator.before[1]};
  for (int r = bottom % {down}; r < {rows} && r <= bottom; r += {down}) {{
    const int v = (bottom - r) / {down};
    if (v >= {site.image.height}) continue;
    for (int s = right % {across}; s < {columns} && s <= right; s += {across}) {{
      const int h = (right - s) / {across};
      if (h < {site.image.width})
        e0 = MULTIPLY_ADD(w[channel * {rows * columns} + r * {columns} + s],
                          {load("from", f"v * {site.image.width} + h", half=site.image.half)}, e0);
    }}
  }}
"""
    given = [weight, bias.astype("float32")]
    return _each(site, "depthwise_transposed", body, given, ["w", "bias"])


def _pooling(
    site: WindowSite, operator: Pooling
) -> tuple[DeviceKernel, tuple[np.ndarray, ...], str]:
    rows, columns = operator.kernel
    image = site.image
    is_max = operator.kind == "max"
    if is_max:
        start, step, end = number(float("-inf")), "e0 = maximum(e0, value);", ""
    else:
        start, step = "0.0f", "e0 += value; ++count;"
        if operator.count_padding:
            # What lies in the image and its padding: a window may reach over both.
            bottom, right = image.height + operator.after[0], image.width + operator.after[1]
            end = (
                f"const int in_v = min_int(top + {rows}, {bottom}) - top;"
                f" const int in_h = min_int(left + {columns}, {right}) - left;"
                " e0 /= (float)(in_v * in_h);"
            )
        else:
            end = "e0 /= (float)count;"
    body = f"""
  float e0 = {start};
  {"" if is_max else "int count = 0;"}
  const GLOBAL {element(site.image.dtype)}* from =
      x + (image * {image.channels} + channel) * {image.pixels};
  const int top = pixel / {site.output.width} * {operator.stride[0]} - {operator.before[0]};
  const int left = pixel % {site.output.width} * {operator.stride[1]} - {operator.before[1]};
  for (int r = 0; r < {rows}; ++r) {{
    const int v = top + r * {operator.dilation[0]};
    if (v < 0 || v >= {image.height}) continue;
    for (int s = 0; s < {columns}; ++s) {{
      const int h = left + s * {operator.dilation[1]};
      if (h < 0 || h >= {image.width}) continue;
      const float value = {load("from", f"v * {image.width} + h", half=image.half)};
      {step}
    }}
  }}
  {end}
"""
    return _each(site, operator.kind, body, [], [])


def _whole(
    site: WindowSite, operator: GlobalPooling
) -> tuple[DeviceKernel, tuple[np.ndarray, ...], str]:
    """A group of threads for each channel."""
    image = site.image
    start, step = {
        "average": ("0.0f", "{0} + {1}"),
        "max": (number(float("-inf")), "maximum({0}, {1})"),
        "min": (number(float("inf")), "minimum({0}, {1})"),
    }[operator.kind]
    own = step.format("sum", load("from", "i", half=image.half))
    other = step.format("sums[t]", "sums[t + reach]")
    end = f" / {image.pixels}.0f" if operator.kind == "average" else ""
    declared, result = _epilogue(site)
    names = _names(site, [])
    body = f"""
KERNEL(64) @{operator.kind}({_arguments(site, names, [])}) {{
  SHARED float sums[64];
  const int t = THREAD, plane = GROUP_X;
  const int image = plane / {image.channels}, channel = plane % {image.channels}, pixel = 0;
  const GLOBAL {element(site.image.dtype)}* from =
      x + plane * {image.pixels};
  float sum = {start};
  for (int i = t; i < {image.pixels}; i += 64) sum = {own};
  sums[t] = sum;
  for (int reach = 32; reach > 0; reach /= 2) {{
    BARRIER();
    if (t < reach) sums[t] = {other};
  }}
  if (t == 0) {{
    const float e0 = sums[0]{end};
    {declared}
    {store("y", site.output.index("image", "channel", "pixel"), result, half=site.output.half)}
  }}
}}
"""
    launch = Launch(
        function=f"@{operator.kind}",
        grid=(image.batch * image.channels, 1, 1),
        block=(64, 1, 1),
        args=tuple(range(len(names) + 1)),
    )
    made = DeviceKernel.from_text(body, [launch], _tensors(site, []))
    return made, site.constants, ""


def _each(
    site: WindowSite, name: str, body: str, own: Sequence[np.ndarray], words: Sequence[str]
) -> tuple[DeviceKernel, tuple[np.ndarray, ...], str]:
    """A thread for each result, of which `body` computes e0."""
    output = site.output
    names = _names(site, words)
    declared, result = _epilogue(site)
    text = f"""
KERNEL({_THREADS}) @{name}({_arguments(site, names, own)}) {{
  const int at = GROUP_X * {_THREADS} + THREAD;
  if (at >= {output.size}) return;
  const int plane = at / {output.pixels}, pixel = at % {output.pixels};
  const int image = plane / {output.channels}, channel = plane % {output.channels};
{body}
  {declared}
  {store("y", "at", result, half=output.half)}
}}
"""
    launch = Launch(
        function=f"@{name}",
        grid=(groups(output.size, _THREADS), 1, 1),
        block=(_THREADS, 1, 1),
        args=tuple(range(len(names) + 1)),
    )
    made = DeviceKernel.from_text(text, [launch], _tensors(site, own))
    return made, (*own, *site.constants), ""


def _names(site: WindowSite, own: Sequence[str]) -> list[str]:
    operands = [f"o{index}" for index in range(len(site.operands))]
    return ["x", *operands, *own, *(f"c{index}" for index in range(len(site.constants)))]


def _arguments(site: WindowSite, names: Sequence[str], own: Sequence[np.ndarray]) -> str:
    *read, (written, _) = _tensors(site, own)
    given = parameters(names, [dtype for dtype, _ in read])
    return f"{given}, GLOBAL {element(written)}* RESTRICT y"


def _tensors(site: WindowSite, own: Sequence[np.ndarray]) -> list[tuple[str, tuple[int, ...]]]:
    """Types and shapes of a kernel's arguments."""
    images = [(item.dtype, (item.size,)) for item in (site.image, *site.operands)]
    constants = [(str(item.dtype), tuple(item.shape)) for item in (*own, *site.constants)]
    return [*images, *constants, (site.output.dtype, (site.output.size,))]


def _epilogue(site: WindowSite) -> tuple[str, str]:
    def operand(index: int, each_channel: bool) -> str:
        image = site.operands[index]
        place = image.index("image", "channel", "0" if each_channel else "pixel")
        return load(f"o{index}", place, half=image.half)

    return statements(
        site.expression, "e0", channel=lambda index: f"c{index}[channel]", operand=operand
    )
