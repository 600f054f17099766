"""Norms and softmax along the last axis: some threads of a group share a row, and add up what they
found in a fixed order, so that equal inputs give equal bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from edgepack.compiler.gpu.epilogue import number
from edgepack.compiler.gpu.image import HALF_BITS, element, load, parameters, store
from edgepack.compiler.gpu.kernel import DeviceKernel, Launch, groups
from edgepack.kernels.layer import Norm, Softmax

_THREADS = 128
# Fewer threads for a row would leave memory idle, and more would wait for each other.
_LEAST, _ELEMENTS = 8, 4


def make(
    operator: Norm | Softmax, *, reads_half: bool, makes_half: bool
) -> tuple[DeviceKernel, tuple[np.ndarray, ...], str]:
    """The kernel, its constants [size] (scale and shift of a norm), and its tile in words.

    Its arguments are the rows, the constants and the result.
    """
    constants: tuple[np.ndarray, ...] = ()
    if isinstance(operator, Norm):
        given = (operator.scale, operator.shift)
        constants = tuple(values.astype("float32") for values in given if values is not None)
    names = ["x", *("scale", "shift")[: len(constants)]]
    dtypes = [HALF_BITS if half else "float32" for half in (reads_half, makes_half)]
    rows, size = operator.rows, operator.size
    lanes = _LEAST
    while lanes < _THREADS and lanes * _ELEMENTS < size:
        lanes *= 2
    read = parameters(names, [dtypes[0], *("float32" for _ in constants)])
    each = f"for (int i = lane; i < {size}; i += {lanes})"
    value = load("x", "from + i", half=reads_half)
    whole = partial(_over_lanes, lanes=lanes)
    if isinstance(operator, Norm):
        results = _norm(operator, each, value, whole)
    else:
        results = _softmax(operator, each, value, whole)
    text = f"""
KERNEL({_THREADS}) @rows({read}, GLOBAL {element(dtypes[1])}* RESTRICT y) {{
  SHARED float parts[{_THREADS}];
  const int t = THREAD, lane = t % {lanes}, row = GROUP_X * {_THREADS // lanes} + t / {lanes};
  const INT64 from = row < {rows} ? (INT64)row * {size} : 0;
{results[0]}
  if (row >= {rows}) return;
  {each} {store("y", "from + i", results[1], half=makes_half)}
}}
"""
    launch = Launch(
        function="@rows",
        grid=(groups(rows, _THREADS // lanes), 1, 1),
        block=(_THREADS, 1, 1),
        args=tuple(range(len(names) + 1)),
    )
    arguments = [
        (dtypes[0], (rows * size,)),
        *(("float32", (size,)) for _ in constants),
        (dtypes[1], (rows * size,)),
    ]
    made = DeviceKernel.from_text(text, [launch], arguments)
    return made, constants, f"{lanes} threads a row"


_OverLanes = Callable[[str], str]


def _over_lanes(found: str, lanes: int) -> str:
    """Text that makes a variable the sum of what all threads of its row have there; `most` becomes
    the largest."""
    both = "maximum({0}, {1})" if found == "most" else "{0} + {1}"
    both = both.format("parts[t]", "parts[t + reach]")
    return f"""
  parts[t] = {found};
  for (int reach = {lanes // 2}; reach > 0; reach /= 2) {{
    BARRIER();
    if (lane < reach) parts[t] = {both};
  }}
  BARRIER();
  {found} = parts[t - lane];
  BARRIER();"""


def _softmax(operator: Softmax, each: str, value: str, over_lanes: _OverLanes) -> tuple[str, str]:
    """Statements before the results, and the text of one."""
    text = f"""
  float most = -INFINITE, sum = 0.0f;
  {each} most = maximum(most, {value});{over_lanes("most")}
  {each} sum += EXP({value} - most);{over_lanes("sum")}"""
    if operator.logarithm:
        return f"{text}\n  const float less = LOG(sum);", f"{value} - most - less"
    return text, f"EXP({value} - most) / sum"


def _norm(operator: Norm, each: str, value: str, over_lanes: _OverLanes) -> tuple[str, str]:
    """The same. A mean far from zero is rounded; so what is left of it is taken off, too."""
    size, epsilon = f"{operator.size}.0f", number(operator.epsilon)
    if operator.shift is None:
        text = f"""
  float sum = 0.0f;
  {each} {{ const float v = {value}; sum = MULTIPLY_ADD(v, v, sum); }}{over_lanes("sum")}
  const float root = SQRT(sum / {size} + {epsilon});"""
        return text, f"{value} / root * scale[i]"
    text = f"""
  float sum = 0.0f, left = 0.0f, squares = 0.0f;
  {each} sum += {value};{over_lanes("sum")}
  const float about = sum / {size};
  {each} left += {value} - about;{over_lanes("left")}
  const float rest = left / {size};
  {each} {{
    const float v = {value} - about - rest;
    squares = MULTIPLY_ADD(v, v, squares);
  }}{over_lanes("squares")}
  const float root = SQRT(squares / {size} + {epsilon});"""
    return text, f"({value} - about - rest) / root * scale[i] + shift[i]"
