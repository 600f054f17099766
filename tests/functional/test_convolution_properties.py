"""Convolutions of random shapes, on every instruction set, against onnxruntime.

Each test draws its cases from a seed, makes them the outputs of one model, compiles it for a
target and runs it there. The long form draws many more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepack.compiler.backend.report import LayerReport
from edgepack.compiler.place.emit import LAYOUT
from edgepack.frontend.precision import Precision
from edgepack.kernels.rules import winograd
from edgepack.kernels.rules.rule import Rule
from edgepack.kernels.rules.table import RULES
from edgepack.kernels.tiles import toom_cook
from tests.onnx_models import Builder
from tests.targets import TARGETS, compile_and_run, every_target, save_cases, wrong_outputs


@dataclass(frozen=True)
class Case:
    """A convolution, what follows it, and the shape of its input."""

    shape: tuple[int, int, int, int]
    outs: int
    kernel: tuple[int, int] = (3, 3)
    group: int = 1
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (1, 1, 1, 1)
    bias: bool = True
    after: str = "Relu"


Draw = Callable[[np.random.Generator], Case]
AFTER = ("", "Relu", "Clip", "Sigmoid", "Sum", "PRelu")


def _size(random: np.random.Generator, kernel: int, most: int) -> int:
    """A height or width that the window fits into without padding."""
    return int(random.integers(kernel, max(kernel + 1, most)))


_LINES = ("down", "across")


def winograd_case(
    random: np.random.Generator, taps: int = 3, stride: int = 1, lines: str = "both"
) -> Case:
    """What the Winograd rule takes: windows of stride 1 or 2, square or in one direction."""
    rows, columns = ((taps, stride) if lines in ("both", which) else (1, 1) for which in _LINES)
    kernel = (rows[0], columns[0])
    return Case(
        kernel=kernel,
        strides=(rows[1], columns[1]),
        shape=(
            int(random.integers(1, 3)),
            int(random.integers(1, 40)),
            _size(random, kernel[0], 22),
            _size(random, kernel[1], 22),
        ),
        outs=int(random.integers(1, 40)),
        pads=_pads(random, kernel),
        bias=bool(random.integers(2)),
        after=str(random.choice(AFTER)),
    )


def plain_case(random: np.random.Generator) -> Case:
    """Any window, stride, dilation and grouping."""
    group = int(random.choice([1, 1, 1, 2, 3, 4]))
    kernel = [(1, 1), (3, 3), (5, 5), (7, 7), (1, 7), (3, 2), (4, 1)][random.integers(7)]
    dilations = tuple(int(d) for d in random.integers(1, 3, size=2))
    wide = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    return Case(
        shape=(
            int(random.integers(1, 4)),
            group * int(random.integers(1, 14)),
            _size(random, wide[0], 18),
            _size(random, wide[1], 18),
        ),
        outs=group * int(random.integers(1, 14)),
        kernel=kernel,
        group=group,
        strides=(int(random.integers(1, 4)), int(random.integers(1, 4))),
        dilations=(dilations[0], dilations[1]),
        pads=_pads(random, kernel),
        bias=bool(random.integers(2)),
        after=str(random.choice(AFTER)),
    )


def depthwise_case(random: np.random.Generator) -> Case:
    """A filter per channel."""
    channels = int(random.integers(2, 45))
    size = int(random.choice([3, 5, 7]))
    stride = int(random.integers(1, 3))
    dilation = int(random.choice([1, 1, 2]))
    wide = (size - 1) * dilation + 1
    return Case(
        shape=(
            int(random.integers(1, 3)),
            channels,
            _size(random, wide, 24),
            _size(random, wide, 36),
        ),
        outs=channels,
        kernel=(size, size),
        group=channels,
        strides=(stride, stride),
        dilations=(dilation, dilation),
        pads=_pads(random, (size, size)),
        bias=bool(random.integers(2)),
        after=str(random.choice(AFTER)),
    )


def _pads(random: np.random.Generator, kernel: tuple[int, int]) -> tuple[int, int, int, int]:
    top, bottom = random.integers(0, kernel[0], size=2)
    left, right = random.integers(0, kernel[1], size=2)
    return int(top), int(left), int(bottom), int(right)


def _add(net: Builder, number: int, case: Case) -> str:
    """The case's output in the model."""
    weights = [net.weight(case.outs, case.shape[1] // case.group, *case.kernel)]
    if case.bias:
        weights.append(net.weight(case.outs))
    attributes = {
        "kernel_shape": list(case.kernel),
        "group": case.group,
        "strides": list(case.strides),
        "dilations": list(case.dilations),
        "pads": list(case.pads),
    }
    value = net.op("Conv", f"x{number}", *weights, **attributes)
    match case.after:
        case "Clip":
            limits = (net.const(-0.5, "float32"), net.const(1.5, "float32"))
            return net.op("Clip", value, *limits)
        case "Sum":
            # Of equal shape, and made by another kernel.
            other = net.op("Conv", f"x{number}", net.weight(*weights_shape(case)), **attributes)
            return net.op("Relu", net.op("Add", value, other))
        case "Mean":
            other = net.op("Conv", f"x{number}", net.weight(*weights_shape(case)), **attributes)
            return net.op("GlobalAveragePool", net.op("Relu", net.op("Add", value, other)))
        case "PRelu":
            return net.op("PRelu", value, net.weight(case.outs, 1, 1))
        case "":
            return value
        case name:
            return net.op(name, value)


def weights_shape(case: Case) -> tuple[int, ...]:
    """[out, in per group, rows, columns]"""
    return case.outs, case.shape[1] // case.group, *case.kernel


def check(
    folder: Path,
    board: str,
    cpu: str,
    draw: Draw,
    *,
    seed: int,
    count: int,
    rules: Sequence[Rule] = RULES,
) -> tuple[str, ...]:
    """Compile, run and compare; the rules that made the kernels."""
    reports = checked(folder, board, cpu, draw, seed=seed, count=count, rules=rules)
    return tuple(report.rule for report in reports)


def checked(
    folder: Path,
    board: str,
    cpu: str,
    draw: Draw,
    *,
    seed: int,
    count: int,
    rules: Sequence[Rule],
) -> tuple[LayerReport, ...]:
    """The same; reports of the kernels."""
    random = np.random.default_rng(seed)
    cases = [draw(random) for _ in range(count)]
    net = Builder(seed=seed)
    # A case is told by the name of its output.
    named = {f"{number} {case}": _add(net, number, case) for number, case in enumerate(cases)}
    shapes = {f"x{number}": case.shape for number, case in enumerate(cases)}
    model = save_cases(folder / "model.onnx", net, shapes, named)
    inputs = [random.normal(size=shape).astype("float32") for shape in shapes.values()]
    # Inputs that nothing bounds have no large tiles of Winograd's.
    precision = Precision(bounded=frozenset(shapes))
    compiled, got = compile_and_run(model, inputs, board, cpu, folder, rules, precision)
    wrong = wrong_outputs(model, inputs, got)
    assert not wrong, "\n".join(wrong)
    return compiled.layers


# What Winograd would take goes to the convolution rule.
PLAIN = [rule for rule in RULES if rule is not winograd.RULE]


@every_target
def test_sums_in_parts(tmp_path: Path, board: str, cpu: str) -> None:
    """Of as many parts as leave a short, a whole and no last one, in blocks that do not divide."""
    sizes = [((5, 5), 256), ((3, 3), 340), ((3, 3), 1940), ((1, 1), 3085), ((7, 1), 451)]
    cases = [
        Case(shape=(1, channels, *kernel), outs=5, kernel=kernel, pads=(0, 0, 0, 0))
        for kernel, channels in sizes
    ]
    cases.append(Case(shape=(1, 256, 6, 7), outs=12, kernel=(5, 5), strides=(2, 2), after="Sum"))
    draw = iter(cases)
    rules = check(tmp_path, board, cpu, lambda _: next(draw), seed=9, count=len(cases), rules=PLAIN)
    assert rules.count("conv") >= len(cases)


def only_winograd(*results: int, fresh: bool = False) -> list[Rule]:
    """Rules of which Winograd's takes all it can, with tiles of `results` in one direction."""
    return [winograd.rule(results, always=True, fresh=fresh), *PLAIN]


@every_target
@pytest.mark.parametrize(
    ("results", "stride"),
    [(results, stride) for stride in (1, 2) for results in toom_cook.FORMS[3, stride]],
)
def test_winograd(tmp_path: Path, board: str, cpu: str, results: int, stride: int) -> None:
    draw = partial(winograd_case, stride=stride)
    rules = check(tmp_path, board, cpu, draw, seed=results, count=3, rules=only_winograd(results))
    assert rules.count("winograd") >= 3


def of_each_window(
    folder: Path,
    board: str,
    cpu: str,
    windows: Sequence[tuple[int, int, str]],
    rules: Sequence[Rule],
) -> tuple[LayerReport, ...]:
    """Reports of a case of each: its weights in a direction, its stride, and the directions."""
    remaining = iter(windows)

    def draw(random: np.random.Generator) -> Case:
        return winograd_case(random, *next(remaining))

    return checked(folder, board, cpu, draw, seed=2, count=len(windows), rules=rules)


@every_target
@pytest.mark.parametrize("results", [(2, 3), (4, 5, 6)])
def test_winograd_of_other_windows(
    tmp_path: Path, board: str, cpu: str, results: tuple[int, ...]
) -> None:
    """Two of each window that there are such tiles for: square, and a row or a column."""
    windows = [
        (*window, lines)
        for at, (window, forms) in enumerate(toom_cook.FORMS.items())
        for lines in ("both", _LINES[at % 2])
        if any(size in forms for size in results)
    ]
    reports = of_each_window(tmp_path, board, cpu, windows, only_winograd(*results))
    rules = [report.rule for report in reports]
    assert rules.count("winograd") >= len(windows) >= 12


@every_target
@pytest.mark.parametrize("results", [(2, 3), (4, 6)])
def test_winograd_of_fresh_weights(
    tmp_path: Path, board: str, cpu: str, results: tuple[int, ...]
) -> None:
    """Weights that are transformed in each run, of each window that this is for."""
    windows = [
        (*window, lines)
        for window, forms in toom_cook.FORMS.items()
        for lines in ("both", "down", "across")
        if any(size in forms and forms[size].parts == 1 for size in results)
    ]
    rules = only_winograd(*results, fresh=True)
    reports = of_each_window(tmp_path, board, cpu, windows, rules)
    fresh = [report for report in reports if "fresh weights" in report.tile]
    assert len(fresh) >= len(windows) >= 6


@every_target
@pytest.mark.parametrize("results", [2, 4])
def test_winograd_of_many_channels(tmp_path: Path, board: str, cpu: str, results: int) -> None:
    """More blocks of them than a tile has positions; sums lie where inputs were."""
    case = Case(shape=(1, 280, 7, 9), outs=280, bias=True)
    rules = check(
        tmp_path, board, cpu, lambda _: case, seed=1, count=1, rules=only_winograd(results)
    )
    assert rules.count("winograd") == 1


@every_target
def test_plain(tmp_path: Path, board: str, cpu: str) -> None:
    rules = check(tmp_path, board, cpu, plain_case, seed=7, count=6, rules=PLAIN)
    assert rules.count("conv") >= 6


@every_target
def test_depthwise(tmp_path: Path, board: str, cpu: str) -> None:
    rules = check(tmp_path, board, cpu, depthwise_case, seed=8, count=4)
    assert rules.count("depthwise") >= 4


@every_target
def test_depthwise_windows_beyond_the_image(tmp_path: Path, board: str, cpu: str) -> None:
    def case(height: int, width: int, kernel: int, pad: int, **rest: Any) -> Case:
        pads = (pad, pad, pad, pad)
        around = {"outs": 20, "group": 20, "kernel": (kernel, kernel), "pads": pads, **rest}
        return Case(shape=(1, 20, height, width), **around)

    cases = [
        case(1, 9, 5, 2),
        case(2, 33, 5, 2, after="Sum"),
        case(3, 12, 7, 3, strides=(2, 2)),
        case(4, 11, 3, 3, dilations=(3, 3)),
        case(7, 7, 5, 2, after="Sigmoid"),
        # Some windows have no pixel at all.
        case(3, 6, 3, 4),
        case(2, 8, 3, 5, dilations=(2, 2), strides=(1, 2)),
    ]
    remaining = iter(cases)
    rules = check(tmp_path, board, cpu, lambda _: next(remaining), seed=9, count=len(cases))
    assert rules.count("depthwise") >= len(cases)


@every_target
def test_wide_depthwise(tmp_path: Path, board: str, cpu: str) -> None:
    """Rows so long that ARM has no immediate for their bytes, and windows of any size."""

    def case(width: int, size: int, **rest: Any) -> Case:
        pads = (size // 2,) * 4
        around = {"outs": 7, "group": 7, "kernel": (size, size), "pads": pads, **rest}
        return Case(shape=(1, 7, 9, width), **around)

    cases = [
        case(203, 3, after="Mean"),
        case(407, 5, after="Mean", strides=(2, 2)),
        case(1003, 9, after="Mean"),
        case(21, 9, after="Clip"),
        case(301, 7, after="Sigmoid", strides=(1, 2)),
        case(24, 21, after="Clip"),
        case(150, 1, kernel=(1, 75), pads=(0, 60, 0, 14), after="Mean"),
        case(35, 1, kernel=(11, 34), pads=(5, 70, 5, 33), dilations=(1, 3), strides=(2, 1)),
        case(9, 1, kernel=(31, 5), pads=(30, 2, 15, 2), after="Sigmoid"),
    ]
    remaining = iter(cases)
    rules = check(tmp_path, board, cpu, lambda _: next(remaining), seed=11, count=len(cases))
    assert rules.count("depthwise") >= len(cases)


@every_target
def test_first_layers(tmp_path: Path, board: str, cpu: str) -> None:
    """Images of few channels: AVX reads them as they are, without zeros around them; others pack
    some rows at a time."""
    cases = [
        Case(shape=(1, 3, 37, 70), outs=20, strides=(2, 2)),
        Case(shape=(1, 3, 41, 67), outs=8, kernel=(7, 7), strides=(2, 2), pads=(3, 3, 3, 3)),
        Case(shape=(1, 1, 64, 128), outs=16, kernel=(5, 5), pads=(2, 2, 2, 2), after="Sum"),
        Case(shape=(3, 4, 18, 9), outs=5, pads=(2, 0, 1, 2), after="Sigmoid"),
        # Windows wider than the image, and some that have no pixel at all.
        Case(shape=(1, 2, 4, 3), outs=33, kernel=(7, 5), pads=(6, 4, 6, 4)),
        Case(shape=(2, 3, 6, 8), outs=4, pads=(5, 4, 4, 5), strides=(1, 3)),
        Case(shape=(1, 3, 9, 21), outs=12, kernel=(1, 1), pads=(0, 0, 0, 0)),
        Case(shape=(1, 3, 9, 21), outs=12, dilations=(2, 1)),
    ]
    remaining = iter(cases)
    rules = check(
        tmp_path, board, cpu, lambda _: next(remaining), seed=10, count=len(cases), rules=PLAIN
    )
    # Every output changes its layout; of the inputs, only that of the dilated one, which is too low
    # for bands of rows.
    assert rules.count(LAYOUT) == 1 + len(cases)


@pytest.mark.slow
@pytest.mark.parametrize(("board", "cpu"), TARGETS)
@pytest.mark.parametrize("seed", range(3))
def test_many(tmp_path: Path, board: str, cpu: str, seed: int) -> None:
    for draw in (plain_case, depthwise_case):
        (tmp_path / draw.__name__).mkdir()
        check(tmp_path / draw.__name__, board, cpu, draw, seed=100 + seed, count=24)
    for (taps, stride), forms in toom_cook.FORMS.items():
        forced = only_winograd(list(forms)[seed % len(forms)])
        for lines in ("both", *_LINES):
            draw = partial(winograd_case, taps=taps, stride=stride, lines=lines)
            (folder := tmp_path / f"{taps} by {stride} {lines}").mkdir()
            rules = check(folder, board, cpu, draw, seed=100 + seed, count=8, rules=forced)
            assert rules.count("winograd") >= 8
