"""Resizes of random shapes, scales and modes, on every instruction set, against onnxruntime.

Each test draws its cases from a seed, makes them the outputs of one model, compiles it for a
target and runs it there. The long form draws many more.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from edgepack.frontend.errors import ImportModelError
from edgepack.frontend.importer import import_model
from edgepack.frontend.load import load_model
from edgepack.model import ModelSpec
from tests.onnx_models import Builder
from tests.targets import TARGETS, compile_and_run, every_target, save_cases, wrong_outputs

COORDINATES = (
    "half_pixel",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)
ROUNDING = ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")


@dataclass(frozen=True)
class Case:
    """A resize by scales or to a size, the shape of its input, and what comes before and after."""

    shape: tuple[int, ...]
    scales: tuple[float, ...]
    size: tuple[int, ...]
    attributes: dict[str, object]
    region: tuple[float, ...]
    before: str
    after: str


def resize_case(random: np.random.Generator) -> Case:
    """To whole multiples of the size, to any size, or by any scales."""
    shape = (
        int(random.integers(1, 3)),
        int(random.choice([1, 3, 4, 5, 8, 13, 16, 21, 40])),
        int(random.integers(1, 17)),
        int(random.integers(1, 25)),
    )
    times = random.choice([1, 2, 3, 4, 8, 0.5], size=2)
    size = np.maximum(2, times * shape[2:]).astype(int)
    if random.integers(2):
        size = random.integers(2, 60, size=2)
    mode, coordinates = (
        str(random.choice(k)) for k in (["nearest", "linear", "cubic"], COORDINATES)
    )
    scales: tuple[float, ...] = ()
    # Of scales that give no whole size align_corners is another in onnxruntime than in ONNX.
    if coordinates not in ("tf_crop_and_resize", "align_corners") and random.integers(2):
        drawn = random.uniform(np.divide(2, shape[2:]), 3.5).astype("float32")
        scales, size = (1.0, 1.0, *map(float, drawn)), np.array([], int)
    attributes: dict[str, object] = {
        "mode": mode,
        "coordinate_transformation_mode": coordinates,
        "extrapolation_value": float(random.choice([0.0, 1.5])),
    }
    if mode == "nearest":
        attributes["nearest_mode"] = str(random.choice(ROUNDING))
    if mode == "cubic":
        attributes["cubic_coeff_a"] = float(random.choice([-0.5, -0.75]))
        attributes["exclude_outside"] = int(random.integers(2))
    low, high = random.uniform(-0.2, 0.4, size=2), random.uniform(0.6, 1.2, size=2)
    return Case(
        shape=shape,
        scales=scales,
        size=tuple(size.tolist()),
        attributes=attributes,
        region=(0, 0, *low.tolist(), 1, 1, *high.tolist()),
        before=str(random.choice(["", "Conv", "Conv", "Conv"])),
        after=str(random.choice(["", "Conv", "Relu", "Sum", "Concat"])),
    )


def deep_case(random: np.random.Generator, axes: int) -> Case:
    """One of `axes` axes: a sequence or a volume. onnxruntime has no cubic ones."""
    of = resize_case(random)
    while of.attributes["mode"] == "cubic":
        of = resize_case(random)
    channels = int(random.choice([1, 3, 8, 13]))
    inner = tuple(int(size) for size in random.integers(1, 11, size=axes))
    low, high = random.uniform(-0.2, 0.4, size=axes), random.uniform(0.6, 1.2, size=axes)
    scales: tuple[float, ...] = ()
    size = random.integers(2, 21, size=axes)
    if of.scales:
        drawn = random.uniform(np.divide(2, inner), 3.5).astype("float32")
        scales, size = (1.0, 1.0, *map(float, drawn)), np.array([], int)
    return Case(
        shape=(int(random.integers(1, 3)), channels, *inner),
        scales=scales,
        size=tuple(size.tolist()),
        attributes=of.attributes,
        region=(0, 0, *low.tolist(), 1, 1, *high.tolist()),
        before="",
        after=str(random.choice(["", "Relu"])),
    )


def _add(net: Builder, number: int, case: Case) -> str:
    """The case's output in the model."""
    batch, channels = case.shape[:2]
    value = f"x{number}"
    if case.before:
        value = net.op("Relu", net.conv(value, channels, channels, 1))
    region = net.const(case.region, "float32")
    if case.scales:
        to = [net.const(case.scales, "float32")]
    else:
        to = ["", net.const([batch, channels, *case.size], "int64")]
    value = net.op("Resize", value, region, *to, **case.attributes)
    match case.after:
        case "Conv":
            return net.conv(value, channels, 7, 3)
        case "Sum":
            other = net.conv(value, channels, channels, 1)
            return net.op("Add", value, net.op("Relu", other))
        case "Concat":
            other = net.conv(value, channels, channels, 1)
            return net.conv(net.op("Concat", value, other, axis=1), 2 * channels, 5, 3)
        case "Relu":
            return net.op("Relu", value)
    return value


def check(
    folder: Path, board: str, cpu: str, *, seed: int, count: int, axes: Sequence[int] = (2,)
) -> None:
    """Compile, run and compare `count` cases each of so many axes."""
    random = np.random.default_rng(seed)
    cases = [
        resize_case(random) if number == 2 else deep_case(random, number)
        for number in axes
        for _ in range(count)
    ]
    net = Builder(seed=seed)
    # A case is told by the name of its output.
    named = {f"{number} {case}": _add(net, number, case) for number, case in enumerate(cases)}
    shapes = {f"x{number}": case.shape for number, case in enumerate(cases)}
    model = save_cases(folder / "model.onnx", net, shapes, named)
    inputs = [random.normal(size=shape).astype("float32") for shape in shapes.values()]
    compiled, got = compile_and_run(model, inputs, board, cpu, folder)
    wrong = wrong_outputs(model, inputs, got)
    assert not wrong, "\n".join(wrong)
    resized = [layer.rule for layer in compiled.layers].count("resize")
    # Of the others, those that repeat each pixel of a plain tensor are copies like others.
    assert resized >= sum(case.attributes["mode"] != "nearest" for case in cases)


@every_target
def test_resize(tmp_path: Path, board: str, cpu: str) -> None:
    check(tmp_path, board, cpu, seed=21, count=8)


def test_bytes_are_scaled_to_whole_sizes_only(tmp_path: Path) -> None:
    net = Builder()
    net.op("Resize", "x", "", net.const([1, 1, 1.3, 1.3], "float32"), outputs=["y"])
    kinds = dict.fromkeys("xy", TensorProto.UINT8)
    path = net.save(tmp_path / "m.onnx", {"x": (1, 1, 5, 5)}, {"y": (1, 1, 6, 6)}, kinds)
    with pytest.raises(ImportModelError, match="do not give a whole size"):
        import_model(load_model(ModelSpec(path=path)))


def test_the_ends_of_sizes(tmp_path: Path) -> None:
    """One row and one column, as input and as result; scales that leave all sizes as they are."""
    net, named, shapes = Builder(seed=7), {}, {}
    sizes = {"one": (1, 1), "row": (1, 9), "column": (9, 1), "image": (2, 3)}
    for (name, inner), mode, coordinates in itertools.product(
        sizes.items(), ("nearest", "linear"), ("align_corners", "half_pixel")
    ):
        of = {"mode": mode, "coordinate_transformation_mode": coordinates}
        for to in sizes.values():
            shapes[value := f"x{len(shapes)}"] = (1, 3, *inner)
            size = net.const([1, 3, *to], "int64")
            named[f"{name} to {to} {of}"] = net.op("Resize", value, "", "", size, **of)
        shapes[value := f"x{len(shapes)}"] = (1, 3, *inner)
        scales = net.const([1, 1, 1.05, 1.1], "float32")
        named[f"{name} as it is {of}"] = net.op("Resize", value, "", scales, **of)
    model = save_cases(tmp_path / "model.onnx", net, shapes, named)
    random = np.random.default_rng(7)
    inputs = [random.normal(size=shape).astype("float32") for shape in shapes.values()]
    _, got = compile_and_run(model, inputs, "local", "native", tmp_path)
    assert not wrong_outputs(model, inputs, got)


def test_positions_on_the_edge_of_an_element(tmp_path: Path) -> None:
    """9 * (5 / 3) and 2 / (2 / 3) are whole in float32, though 5 / 3 and 2 / 3 are not there."""
    net, cases, inputs = Builder(), {}, {}
    modes = ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
    for size in (5, 9, 13):
        inputs[f"{size}"] = (2, size)
        for scale in (1 / 3, 2 / 3, 5 / 3, 0.7, 1.7, 2.3, 0.5, 4.0):
            scales = net.const([1, scale], "float32")
            symmetric = ("half_pixel_symmetric",) if scale in (0.5, 4.0) else ()
            for mode, of in itertools.product(modes, ("asymmetric", "half_pixel", *symmetric)):
                cases[f"{size} by {scale:.2f} {mode} {of}"] = net.op(
                    *("Resize", f"{size}", "", scales),
                    coordinate_transformation_mode=of,
                    mode="nearest",
                    nearest_mode=mode,
                )
    model = save_cases(tmp_path / "model.onnx", net, inputs, cases, opset=19)
    random = np.random.default_rng(0)
    given = [random.normal(size=shape).astype("float32") for shape in inputs.values()]
    _, got = compile_and_run(model, given, "local", "native", tmp_path)
    assert not wrong_outputs(model, given, got)


def test_an_aspect_ratio_is_kept_by_rounded_sizes(tmp_path: Path) -> None:
    """Halfway up, as ONNX has it: 3 rows become 5 where 2 columns become 3."""
    net, cases, due, inputs = Builder(), {}, {}, {}
    for (height, width), size in {
        (3, 2): (9, 3),
        (2, 3): (3, 12),
        (5, 7): (8, 6),
        (4, 5): (7, 13),
        (6, 4): (4, 4),
    }.items():
        inputs[value := f"{height}x{width}"] = (1, 2, height, width)
        sizes = net.const(list(size), "int64")
        for policy, mode in itertools.product(("not_larger", "not_smaller"), ("nearest", "linear")):
            name = f"{value} {policy} {size} {mode}"
            cases[name] = net.op(
                *("Resize", value, "", "", sizes),
                axes=[2, 3],
                keep_aspect_ratio_policy=policy,
                mode=mode,
            )
            ratios = [Fraction(to, of) for to, of in zip(size, (height, width), strict=True)]
            scale = min(ratios) if policy == "not_larger" else max(ratios)
            due[name] = tuple(math.floor(scale * of + Fraction(1, 2)) for of in (height, width))
    model = save_cases(tmp_path / "model.onnx", net, inputs, cases, opset=19)
    random = np.random.default_rng(0)
    given = [random.normal(size=shape).astype("float32") for shape in inputs.values()]
    _, got = compile_and_run(model, given, "local", "native", tmp_path)
    assert [value.shape[2:] for value in got] == list(due.values())
    assert not wrong_outputs(model, given, got)


@every_target
def test_sequences_and_volumes(tmp_path: Path, board: str, cpu: str) -> None:
    check(tmp_path, board, cpu, seed=31, count=4, axes=(1, 3))


@pytest.mark.slow
@pytest.mark.parametrize(("board", "cpu"), TARGETS)
@pytest.mark.parametrize("seed", range(3))
def test_many(tmp_path: Path, board: str, cpu: str, seed: int) -> None:
    check(tmp_path, board, cpu, seed=200 + seed, count=60)


@pytest.mark.slow
@pytest.mark.parametrize(("board", "cpu"), TARGETS)
@pytest.mark.parametrize("seed", range(2))
def test_many_sequences_and_volumes(tmp_path: Path, board: str, cpu: str, seed: int) -> None:
    check(tmp_path, board, cpu, seed=300 + seed, count=25, axes=(1, 3))


@pytest.mark.parametrize("kind", [np.nan, np.inf])
def test_a_resize_of_other_than_images_reads_neighbours_only(kind: float, tmp_path: Path) -> None:
    """A NaN is in the results between it and its neighbours, not all along the axis."""
    net = Builder()
    scales = net.const([1, 2, 1], "float32")
    form = {"mode": "linear", "coordinate_transformation_mode": "asymmetric"}
    cases = {"wide": net.op("Resize", "x", "", scales, **form)}
    path = save_cases(tmp_path / "model.onnx", net, {"x": (2, 5, 3)}, cases)
    x = np.random.default_rng(0).standard_normal((2, 5, 3)).astype("float32")
    x[1, 2, 1] = kind
    due = np.repeat(x, 2, axis=1)
    due[:, 1:-1:2] = (x[:, 1:] + x[:, :-1]) / 2
    _, (made,) = compile_and_run(path, [x], "local", "native", tmp_path)
    np.testing.assert_allclose(made, due, rtol=1e-6)
    assert np.count_nonzero(~np.isfinite(made)) == 3
