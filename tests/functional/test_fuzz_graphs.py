"""The short form of `./dev fuzz graphs`, and the corners that its long form found."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgepack.base.errors import ModelError
from edgepack.boards import get_board
from edgepack.compiler import compile_model
from edgepack.flow.reference import model_outputs
from edgepack.model import ModelSpec, read_model
from edgepack.native.toolchain import select
from tests.fuzz import drawing, graphs, sketch
from tests.plan_runner import run_plan

FIRST = 40_000
# Some that take little to compile, half of them with odd numbers, one with a narrow type.
SEEDS = tuple(FIRST + number for number in (2, 3, 4, 8, 16, 17, 18, 21, 81))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_graph_is_as_onnxruntime_has_it_or_refused_by_name(
    seed: int, tmp_path: Path
) -> None:
    case = graphs.drawn(seed)
    if case is None:
        pytest.skip("nothing was drawn that can be run")
    made = graphs.judge(case, tmp_path)
    assert made.verdict not in graphs.BUGS, f"{made.operators}: {made.why}"


def test_a_seed_draws_one_graph() -> None:
    one, other = graphs.drawn(FIRST + 1), graphs.drawn(FIRST + 1)
    assert one is not None
    assert other is not None
    assert one.model == other.model


def test_what_is_wrong_is_seen() -> None:
    """A fuzzer that calls everything the same would find nothing."""
    case = next(filter(_is_plain, map(graphs.drawn, range(FIRST, FIRST + 50))))
    assert case is not None
    assert graphs.compared(case, case.due) == ("same", "")
    wrong = [np.asarray(value * 1.001 + 0.01, value.dtype) for value in case.due]
    assert graphs.compared(case, wrong)[0] == "different"
    assert graphs.compared(case, [value.astype("float64") for value in case.due])[0] == "type"


@pytest.mark.parametrize(
    ("got", "due"),
    [
        ([np.nan, 1], [1, 1]),
        ([1, 1], [np.nan, 1]),
        ([np.inf, 1], [-np.inf, 1]),
        ([np.inf, 1], [3.4e38, 1]),
        ([np.inf, 1], [np.nan, 1]),
        ([0, 1], [-np.inf, 1]),
        ([1.001, 2, 3e38], [1, 2, 3e38]),  # beside which both are nothing
    ],
)
def test_a_value_of_another_kind_is_seen(got: list[float], due: list[float]) -> None:
    mine, theirs = [np.array(got, "float32")], [np.array(due, "float32")]
    assert graphs.differences(mine, theirs, theirs)
    assert not graphs.differences(theirs, theirs, theirs)


def test_graphs_have_all_narrow_types_and_odd_numbers() -> None:
    found = set()
    for seed in range(160):
        made = drawing.draw_graph(seed, nodes=1, only="narrow" if seed % 2 else "unary")
        found |= {value.dtype.name for value in made.values.values()}
        inputs = [made.values[name].astype("float64") for name in made.inputs]
        for kind, holds in {"NaN": np.isnan, "infinite": np.isinf}.items():
            found |= {kind} if any(holds(value).any() for value in inputs) else set()
        least = np.finfo("float32").tiny
        if any(((value != 0) & (np.abs(value) < least)).any() for value in inputs):
            found.add("denormal")
    assert found >= {*sketch.NARROW, "NaN", "infinite", "denormal"}


def _busy(_task: int) -> None:
    while True:
        pass


def _idle(_task: int) -> None:
    time.sleep(600)


@pytest.mark.parametrize(
    ("draw", "limit", "other"),
    [(_busy, "_CPU_LIMIT_S", "_LIMIT_S"), (_idle, "_LIMIT_S", "_CPU_LIMIT_S")],
)
def test_a_graph_may_take_so_much_of_a_cpu_and_of_time(
    draw: Callable[[int], None], limit: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that waits takes no CPU, one that has none for a while is not stopped."""
    monkeypatch.setattr(graphs, limit, 1.0)
    monkeypatch.setattr(graphs, other, 1e6)
    (made,) = graphs.judge_all([0], draw, workers=1)
    assert made.why == "it did not end in 1 s" + (" of a CPU" if draw is _busy else "")


def test_the_cpu_of_a_process_is_that_of_its_children_too() -> None:
    burn = "import time\nwhile time.process_time() < 0.5: pass\n"
    sleep = "import time; print(flush=True); time.sleep(600)"
    for inner in (
        f"{burn}{sleep}",
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}]); {sleep}",
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn + sleep!r}])",
    ):
        with subprocess.Popen(
            [sys.executable, "-c", inner], stdout=subprocess.PIPE, start_new_session=True
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            taken = graphs.cpu_of(process.pid)
            os.killpg(process.pid, signal.SIGKILL)
        assert 0.45 <= taken < 60  # in ticks of a clock


def _is_plain(case: graphs.Drawn | None) -> bool:
    """Whether a case has nothing but floats to compare, none of which is huge."""
    kinds = (
        [(value.dtype.name, bool((np.abs(value) < 1e30).all())) for value in case.due]
        if case
        else []
    )
    return set(kinds) == {("float32", True)}


# ---------------------------------------------------------------- corners, by onnxruntime

ROW = np.array([[7, -2, 3, 1]])
REAL = np.array([[1.5, -2.0, 0.25]])
LARGE = np.array([[1_500_000_000, 1_200_000_000, 900_000_000]])
ENDS = np.array([-np.inf, -6e4, -3, np.nan, 1, 6e4, np.inf])
PIXELS = np.arange(60).reshape(1, 2, 5, 6) * 7 % 100
GRID = np.linspace(-1.5, 1.5, 18).reshape(1, 3, 3, 2)
HOT = np.array([[[[1, -np.inf, 3], [4, 5, 6], [7, 8, 9], [2, np.inf, 0]]]], "float32")
PLACES = np.array([[[[-0.9, -0.95], [0.9, 0.3], [-0.95, 0.2]]]], "float32")
SCALES = np.array([1, 1, 1.5, 2.3], "float32")
ALIGNED = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
BEYOND = {"auto_pad": "VALID", "strides": [2, 2], "dilations": [1, 2], "ceil_mode": 1}
ROWS = {"strides": [2], "pads": [1, 0], "ceil_mode": 1, "p": 3}
LOWER = {"auto_pad": "SAME_LOWER", "strides": [2, 2]}

# An opset, an operator, inputs (a list holds a constant), attributes.
Corner = tuple[int, str, Sequence[Any], dict[str, Any]]
CORNERS: Sequence[Corner] = (
    *(
        (18, f"Reduce{kind}", (np.abs(ROW).astype(dtype), [np.array([1])]), {"keepdims": 0})
        for kind in ("Mean", "L2", "LogSumExp", "Prod", "SumSquare")
        for dtype in ("int32", "int64")
    ),
    (18, "ReduceMean", (ROW.astype("int32"), [np.array([1])]), {}),
    # Sums and squares are beyond the type, results are not.
    *(
        (18, f"Reduce{kind}", (LARGE.astype("int32"), [np.array([1])]), {})
        for kind in ("Mean", "L2", "LogSum")
    ),
    (18, "ReduceMean", (np.full((2, 4), 2**62), [np.array([1])]), {}),
    (18, "ReduceLogSum", (np.full((2, 4), 2**62), [np.array([1])]), {}),
    (18, "ReduceL2", (LARGE, [np.array([1])]), {}),
    (20, "ReduceSumSquare", (REAL.astype("float32"),), {"noop_with_empty_axes": 1}),
    (20, "ReduceLogSum", (np.abs(REAL).astype("float64"),), {"noop_with_empty_axes": 1}),
    (20, "ReduceMax", (REAL > 0, [np.array([1])]), {}),
    (8, "ArgMax", (REAL.astype("float32"),), {"axis": -1}),
    # None is larger than the least number of the type.
    *(
        (13, kind, (np.full((1, 3, 5), end, dtype),), {"axis": 1, "select_last_index": last})
        for kind, dtype, end in (
            ("ArgMax", "uint64", 0),
            ("ArgMin", "int64", 2**63 - 1),
            ("ArgMax", "float64", -np.inf),
        )
        for last in (0, 1)
    ),
    *((13, "Sign", (np.array([0, 3], t),), {}) for t in ("uint8", "uint64")),
    (16, "PRelu", (ROW.astype("int64"), [np.array([2])]), {}),
    (9, "Erf", (np.arange(-7, 8).reshape(3, 5),), {}),
    (9, "PRelu", (PIXELS.astype("int64"), [np.array([2, 3])]), {}),
    (16, "PRelu", (PIXELS.astype("int32"), [np.full((2, 1, 6), 2, "int32")]), {}),
    *((22, op, (REAL,), {}) for op in ("Elu", "Selu", "ThresholdedRelu")),
    *(
        (19, op, (PIXELS.astype("float32"),), {**pads, "kernel_shape": [3, 2], "strides": [2, 2]})
        for op in ("MaxPool", "AveragePool", "LpPool")
        for pads in ({"auto_pad": "SAME_UPPER"}, {"auto_pad": "SAME_LOWER", "ceil_mode": 1})
    ),
    (19, "LpPool", (PIXELS.astype("float32"),), {**LOWER, "kernel_shape": [1, 1]}),
    # The last windows reach beyond the image.
    (18, "LpPool", (PIXELS.astype("float32"),), {**BEYOND, "kernel_shape": [2, 3]}),
    (18, "LpPool", (PIXELS[0].astype("float32"),), {**ROWS, "kernel_shape": [3]}),
    # Behind an axis that is as it was.
    *(
        (19, "Pad", (PIXELS.astype("float32"), [np.array(pads)]), {"mode": "wrap"})
        for pads in ((0, 0, 2, 0, 0, 0, 3, 0), (0, 1, 1, 2, 1, 0, 0, 3), (0, 0, 5, 6, 0, 0, 5, 6))
    ),
    (12, "Celu", (np.array(-0.7, "float32"),), {"alpha": 0.5}),
    (12, "Celu", (np.array([-3, -0.0, 2, np.nan, np.inf, -np.inf], "float32"),), {"alpha": 1.5}),
    (12, "Celu", (np.array([-3, -0.0, 2, np.nan, np.inf, -np.inf], "float32"),), {"alpha": -1.5}),
    (13, "Pow", (np.array([4, np.nan, np.inf, -np.inf, -1], "float32"), [np.float32(0.5)]), {}),
    # Three inputs are two where there is nothing to add, also of integers with factors.
    (13, "Gemm", (ROW.T, [ROW]), {"alpha": 2.0}),
    (13, "Gemm", (np.abs(ROW.T).astype("uint32"), [np.abs(ROW).astype("uint32")]), {"beta": 0.5}),
    *(
        (17, "LayerNormalization", (PIXELS.astype(t), [scale.astype(t)], *more), {"axis": -2})
        for t in ("float32", "float64")
        for scale, *more in (
            [PIXELS[0, 0]],
            [PIXELS[0, 0, :, 1:2], [PIXELS[0, 0, 0].astype(t)]],
            [PIXELS[0, 0, 0, 1:2]],
        )
    ),
    (13, "MeanVarianceNormalization", (PIXELS.astype("float32") + 5000,), {"axes": [2, 3]}),
    *(
        (13, "Clip", (ENDS.astype(kind), *bounds), {})
        for kind in ("float16", "float32")
        for bounds in ((), (None, [np.array(2, kind)]), ([np.array(-2, kind)],))
    ),
    (7, "Clip", (ENDS.astype("float32"),), {"max": 2.0}),
    (7, "Clip", (ENDS.astype("float64"),), {}),
    (13, "Log", (np.array([1e-45, 3e-40, 1.1e-38, 1.3e-38, 0, -1e-40], "float32"),), {}),
    (13, "Div", (REAL.astype("float32"), [np.float32(0.0)]), {}),
    (13, "Div", (REAL.astype("float32"), [np.float32(-0.0)]), {}),
    (10, "Dropout", (REAL.astype("float32"),), {"outputs": 2}),
    (7, "Dropout", (REAL.astype("float32"),), {"outputs": 2}),
    (16, "Resize", (PIXELS.astype("float32"), None, [SCALES]), ALIGNED),
    (16, "Resize", (PIXELS.astype("uint8"), None, [SCALES]), {"mode": "cubic"}),
    (10, "Resize", (PIXELS.astype("float32"), [np.array([1, 1, 0.7, 2.3], "float32")]), {}),
    (8, "Upsample", (PIXELS.astype("uint8"),), {"scales": [1.0, 1.0, 2.3, 1.1]}),
    (10, "Resize", (PIXELS[0].astype("int32"), [np.array([1, 0.6, 0.7], "float32")]), {}),
    (
        17,
        "Resize",
        (
            np.arange(243, dtype="float32").reshape(1, 1, 3, 9, 9),
            None,
            [np.array([1, 1, 0.5, 2, 3], "float32")],
        ),
        {"mode": "nearest", "nearest_mode": "round_prefer_ceil"},
    ),
    (7, "Upsample", (PIXELS.astype("float32"),), {"scales": [1.0, 1, 2, 3], "mode": "linear"}),
    *(
        (
            20,
            "GridSample",
            (PIXELS[:, :, :1].astype("float32"), GRID.astype("float32")),
            {"align_corners": 1, "padding_mode": padding, "mode": "cubic"},
        )
        for padding in ("zeros", "reflection")
    ),
    # An infinite pixel that is not around the place.
    (20, "GridSample", (HOT[..., :1], PLACES), {"align_corners": 1, "padding_mode": "zeros"}),
    (20, "GridSample", (HOT, PLACES), {"padding_mode": "reflection"}),
    (22, "LpNormalization", (np.array([[1e-45], [-3e-39], [0], [2]], "float32"),), {"p": 1}),
    (13, "QuantizeLinear", (ROW.astype("int32"), [np.float32(0.5)], [np.int8(3)]), {}),
)


@pytest.mark.parametrize("corner", CORNERS, ids=lambda corner: f"{corner[1]}-{corner[0]}")
def test_corners_are_as_onnxruntime_has_them(corner: Corner, tmp_path: Path) -> None:
    opset, operator, inputs, attributes = corner
    s = sketch.Sketch(0, opset)
    names = [
        "" if value is None else s.const(value[0]) if isinstance(value, list) else s.input(value)
        for value in inputs
    ]
    s.op(operator, *names, **attributes)
    model = s.model()
    due = [s.values[value.name] for value in model.graph.output]
    case = graphs.Drawn(name=operator, model=model, given=s.data(), due=due)
    made = graphs.judge(case, tmp_path)
    assert made.verdict == "same", made.why


def _local_norm(x: np.ndarray) -> np.ndarray:
    """LRN of 5 channels, alpha 0.1, beta 0.5, bias 1."""
    squares = np.pad(np.square(x), [(0, 0), (2, 2), (0, 0), (0, 0)])
    sums = np.stack([squares[:, c : c + 5].sum(1) for c in range(x.shape[1])], 1)
    return np.asarray(x / np.sqrt(1 + 0.1 / 5 * sums))


def _halved(x: np.ndarray) -> np.ndarray:
    """Cubic, by half_pixel_symmetric: 3 of 3.5 results, whose middle is that of 7, at 1, 3 and 5,
    each an element; and thrice as many columns, in the usual places."""
    rows = x[:, :, [1, 3, 5]]
    places = (np.arange(3 * x.shape[3]) + 0.5) / 3 - 0.5
    columns = np.zeros((x.shape[3], len(places)))
    for at, place in enumerate(places):
        for column in range(math.floor(place) - 1, math.floor(place) + 3):
            d = abs(place - column)
            near = 1.5 * d**3 - 2.5 * d**2 + 1
            weight = near if d <= 1 else -0.5 * d**3 + 2.5 * d**2 - 4 * d + 2
            columns[np.clip(column, 0, x.shape[3] - 1), at] += weight if d < 2 else 0
    return np.asarray(rows @ columns)


HOT = np.random.default_rng(3).standard_normal((1, 4, 7, 5)).astype("float32")


@pytest.mark.parametrize(
    ("opset", "operator", "inputs", "attributes", "defined"),
    [
        (
            *(18, "LRN", (np.where(HOT > 1.5, 1e4, HOT).astype("float32"),)),
            {"size": 5, "alpha": 0.1, "beta": 0.5},
            _local_norm,
        ),
        (
            *(19, "Resize", (HOT, None, [np.array([1, 1, 0.5, 3], "float32")])),
            {
                "mode": "cubic",
                "cubic_coeff_a": -0.5,
                "coordinate_transformation_mode": "half_pixel_symmetric",
            },
            _halved,
        ),
        (
            18,
            "InstanceNormalization",
            (HOT[:, :, :1, :1] + 1e4, [np.arange(4, dtype="float32")], [np.ones(4, "float32")]),
            {},
            np.ones_like,
        ),
        (
            *(18, "ReduceLogSumExp", (np.array([np.nan, np.inf], "float32"),)),
            {"keepdims": 0},
            lambda _: np.float64(np.nan),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_defined_is_taken_where_onnxruntime_or_the_reference_have_something_else(
    opset: int,
    operator: str,
    inputs: Sequence[Any],
    attributes: Mapping[str, Any],
    defined: Callable[[np.ndarray], np.ndarray],
    tmp_path: Path,
) -> None:
    s = sketch.Sketch(0, opset)
    names = [
        "" if value is None else s.const(value[0]) if isinstance(value, list) else s.input(value)
        for value in inputs
    ]
    s.op(operator, *names, **attributes)
    due = defined(inputs[0].astype("float64")).astype("float32")
    case = graphs.Drawn(name=operator, model=s.model(), given=s.data(), due=[due])
    made = graphs.judge(case, tmp_path)
    assert made.verdict == "same", made.why


def test_a_shape_that_is_an_output(tmp_path: Path) -> None:
    """Of a tensor whose shape onnxruntime does not know when it folds constants."""
    s = sketch.Sketch(0, 11)
    data = s.input(s.random.standard_normal((2, 3, 2)).astype("float32"))
    normal = s.op("MeanVarianceNormalization", data, axes=[1])[0]
    s.op("Shape", s.op("CumSum", normal, s.const(np.int64(1)))[0])
    model = s.model()
    due = [s.values[item.name] for item in model.graph.output]
    case = graphs.Drawn(name="shape", model=model, given=s.data(), due=due)
    made = graphs.judge(case, tmp_path)
    assert made.verdict == "same", made.why


def test_rows_behind_a_narrow_image_are_those_of_the_model(tmp_path: Path) -> None:
    """The image is turned for its convolution; what takes rows gets them turned back."""
    s = sketch.Sketch(0, 17)
    image = s.input(s.random.standard_normal((1, 3, 33, 2)).astype("float32"))
    weight = s.const(s.random.standard_normal((3, 5, 2, 2)).astype("float32"))
    made = s.op("ConvTranspose", image, weight, pads=[0, 1, 0, 0])[0]
    scale = s.const(np.array([1, 2], "float32"))
    square = s.const(np.array([[1, 2], [3, -4]], "float32"))
    for operator, *more in (
        ["ArgMax"],
        ["Softmax"],
        ["LogSoftmax"],
        ["LayerNormalization", scale],
        ["MatMul", square],
    ):
        s.op(operator, made, *more, **({} if operator == "MatMul" else {"axis": 3}))
    model = s.model()
    due = [s.values[item.name] for item in model.graph.output]
    case = graphs.Drawn(name="rows", model=model, given=s.data(), due=due)
    verdict = graphs.judge(case, tmp_path)
    assert verdict.verdict == "same", verdict.why


def test_powers_in_a_condition(tmp_path: Path) -> None:
    """What is a value and whether it is below 0, in vectors and in what is left of a row."""
    s = sketch.Sketch(0, 17)
    x = s.input(np.linspace(-2, 2, 21).astype("float32"))
    slope = s.const(np.array([-0.9], "float32"))
    for exponent in (-2, -1, 0, 0.5, 1, 2, 3, 4, 15):
        (power,) = s.op("Pow", x, s.const(np.float32(exponent)))
        s.op("PRelu", power, slope)
        s.op("LeakyRelu", power)
    model = s.model()
    due = [s.values[item.name] for item in model.graph.output]
    case = graphs.Drawn(name="powers", model=model, given=s.data(), due=due)
    verdict = graphs.judge(case, tmp_path)
    assert verdict.verdict == "same", verdict.why


@pytest.mark.parametrize("shape", [(), (1, 1), (2, 3)])
def test_a_mask_of_zeros_is_divided_by(shape: Sequence[int], tmp_path: Path) -> None:
    """Before opset 12 a Dropout's is of the data's type, and nothing is true in it."""
    s = sketch.Sketch(0, 8)
    x = s.input(np.full(shape, -3, "float32"))
    _, mask = s.op("Dropout", x, outputs=2)
    s.op("Reciprocal", mask)
    s.op("Div", x, mask)
    model = s.model()
    due = [s.values[item.name] for item in model.graph.output]
    assert [float(np.max(value)) for value in due[-2:]] == [np.inf, -np.inf]
    case = graphs.Drawn(name="mask", model=model, given=s.data(), due=due)
    verdict = graphs.judge(case, tmp_path)
    assert verdict.verdict == "same", verdict.why


def test_what_follows_from_a_nan_is_chosen_and_nothing_else_is(tmp_path: Path) -> None:
    """Where the table of choices has a row for it."""
    s = sketch.Sketch(0, 17)
    x = s.input(np.array([[np.nan, 1, 3], [2, np.nan, 1]], "float32"))
    (hard,) = s.op("Hardmax", x)
    ends = [*s.op("Neg", hard), *s.op("Abs", x)]
    model = s.model()
    due = [s.values[item.name] for item in model.graph.output]
    chosen = graphs.behind_choices(model, s.values)
    assert chosen.intersection(ends) == {ends[0]}
    case = graphs.Drawn(name="x", model=model, given=s.data(), due=due, chosen=chosen)
    assert graphs.judge(case, tmp_path).verdict == "chosen"
    both = [np.zeros_like(value) for value in due]
    assert graphs.compared(case, both)[0] == "different"


def test_integers_beyond_their_type_are_chosen_and_others_are_not() -> None:
    s = sketch.Sketch(0, 17)
    base = s.input(np.array([3, -2], "int32"))
    (small,) = s.op("Pow", base, s.const(np.array([19, 30], "int32")))
    (far,) = s.op("Pow", s.op("Abs", base)[0], s.const(np.array([20, 1], "int32")))
    wide = s.input(np.array([[1 << 40, 1 << 40]]))
    (squares,) = s.op("ReduceSumSquare", wide)
    (total,) = s.op("ReduceSum", wide)
    (floats,) = s.op("Pow", s.op("Cast", base, to=1)[0], s.const(np.float32(40)))
    chosen = graphs.behind_choices(s.model(), s.values)
    assert chosen & {small, far, squares, total, floats} == {far, squares}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_comparison_of_what_was_rounded_is_chosen_on_its_edge(dtype: str) -> None:
    s = sketch.Sketch(0, 17)
    small = s.input(np.array([0.0003, 2], dtype))
    large = s.input(np.array([0.9, 2], dtype))
    below, apart = s.op("Sin", small)[0], s.op("Sin", large)[0]
    s.op("LessOrEqual", small, large)
    (near,) = s.op("LessOrEqual", small, below)
    (far,) = s.op("Less", large, apart)
    (zeros,) = s.op("Equal", *(s.op("Sub", x, x)[0] for x in (small, large)))
    if dtype == "float32":
        s.values[below] = np.nextafter(s.values[small], np.float32(1))
    chosen = graphs.behind_choices(s.model(), s.values)
    assert chosen & {near, far, zeros} == {near}


def test_an_order_of_what_was_rounded_is_chosen_where_it_is_near() -> None:
    s = sketch.Sketch(0, 17)
    given = s.input(np.array([[1, 2, 2, 0, 0], [4, 5, 6, 0, 0]], "float32"))
    (same,) = s.op("Abs", given)
    (near,) = s.op("Mul", same, given)
    s.values[near] = s.values[near].copy()
    s.values[near][0, 2] = np.nextafter(np.float32(4), np.float32(5))
    count = s.const(np.array([2]))
    # Equal ones keep their order, whoever computes them; an input's are nobody's to round.
    s.op("TopK", same, count, outputs=2)
    s.op("TopK", given, count, outputs=2)
    s.op("ArgMax", near, axis=0)
    _, places = s.op("TopK", near, count, outputs=2)
    (first,) = s.op("ArgMax", near, axis=1)
    (last,) = s.op("ArgMin", near, axis=-1)
    chosen = graphs.behind_choices(s.model(), s.values)
    assert chosen == {places, first, last}


def test_how_many_values_there_are_is_chosen_where_they_are_near() -> None:
    s = sketch.Sketch(0, 17)
    given = s.input(np.array([1, 2, 2, 4], "float32"))
    (apart,) = s.op("Mul", given, given)
    (near,) = s.op("Abs", given)
    s.values[near] = np.array([1, 2, np.nextafter(np.float32(2), np.float32(3)), 4], "float32")
    s.op("Unique", given)
    s.op("Unique", apart)
    values, count = s.op("Unique", near, outputs=2)
    assert graphs.behind_choices(s.model(), s.values) == {values, count}


def test_products_that_are_infinite_are_chosen_beside_an_infinity_elsewhere() -> None:
    largest = np.finfo("float32").max
    s = sketch.Sketch(0, 17)
    image = np.ones((1, 2, 1, 3), "float32")
    image[0, 0, 0, 2] = np.inf
    x = s.input(image)
    (large,) = s.op("Conv", x, s.const(np.full((1, 2, 1, 1), -largest, "float32")))
    s.op("Conv", x, s.const(np.full((1, 2, 1, 1), 2.0, "float32")))
    # By their order 0, an infinity or 4.8.
    (order,) = s.op("ReduceProd", s.input(np.array([1e-45, 1e-3, largest, 1e10], "float32")))
    s.op("ReduceProd", s.input(np.array([1e-45, 1e-3, largest, 0.5], "float32")))
    assert graphs.behind_choices(s.model(), s.values) == {large, order}


def test_attributes_that_the_reference_reads_otherwise() -> None:
    def of(operator: str, x: np.ndarray, **attributes: Any) -> frozenset[str]:
        s = sketch.Sketch(0, 19)
        given = [s.input(x)]
        if operator == "Conv":
            given.append(s.const(np.ones((2, 2, 2, 2))))
        made = s.op(operator, *given, **attributes)
        assert graphs.behind_choices(s.model(), s.values) == frozenset()
        chosen = graphs.behind_choices(s.model(), s.values, by_reference=True)
        assert chosen in ({*made}, frozenset())
        return chosen

    image = np.ones((1, 2, 5, 5))
    hot = image.copy()
    hot[0, 0, 1, 1] = np.inf
    dilated = {"dilations": [2, 1]}
    assert of("Conv", hot, **dilated)
    assert not of("Conv", image, **dilated)
    assert not of("Conv", hot)
    pool: dict[str, Any] = {"kernel_shape": [2, 2], "auto_pad": "SAME_UPPER"}
    assert of("AveragePool", image, **pool, **dilated)
    assert not of("AveragePool", image, **pool)
    assert not of("AveragePool", image, kernel_shape=[2, 2], **dilated)
    assert graphs._has_another_size([np.ones((1, 10)), np.array([1, 0.7], "float32")])
    assert not graphs._has_another_size([np.ones((1, 10)), np.array([1, 0.65], "float32")])
    assert of("Unique", image, sorted=0)
    assert not of("Unique", image)


def test_no_node_has_a_shape_of_the_reference_s_alone() -> None:
    """onnxruntime makes less than size * stride of a kernel below the stride, as onnx infers it."""
    s = sketch.Sketch(0, 17)
    image, weight = s.input(np.ones((1, 1, 3))), s.const(np.ones((1, 1, 1)))
    with pytest.raises(sketch.InvalidNodeError, match="another shape than onnx infers"):
        s.op("ConvTranspose", image, weight, auto_pad="SAME_UPPER", strides=[3])
    s.op("ConvTranspose", image, weight, auto_pad="VALID", strides=[3])


def test_a_cubic_resize_of_integers_is_rounded_either_way_at_a_half() -> None:
    """-1/8 of 7 and 9/8 of 3 are 2.5."""
    s = sketch.Sketch(0, 20)
    image = s.input(np.array([[[2, 6, 7, 3]]], "uint8"))
    sizes = s.const(np.array([1, 1, 3], "float32"))
    form = {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1}
    s.op("Resize", image, "", sizes, coordinate_transformation_mode="asymmetric", **form)
    model = s.model()
    ways = sketch.run_to_either_side(model, graphs.names(model, s.data()))
    assert sorted(int(outputs[0][0, 0, -1]) for outputs in ways) == [2, 3]


def test_a_norm_in_float64_is_told_from_a_wrong_one() -> None:
    """ONNX has norms of float64 in float32, which pairs of neighbours are far apart in."""
    x = np.array([[1.75, 0.0099, 0.1657, -0.2709], [-0.42760199, -0.44501984, 1.17, 1.4928]])
    node = helper.make_node("GroupNormalization", ["x", "scale", "bias"], ["y"], num_groups=2)
    scale = np.array([-0.9256339491, -1.3517668789, -0.9683591279, -2.0651959333])
    bias = np.array([-1.1911963236, -1.4625755567, -1.0264197130, -2.4749224089])
    held = [numpy_helper.from_array(scale, "scale"), numpy_helper.from_array(bias, "bias")]
    ends = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, x.shape) for name in "xy"]
    graph = helper.make_graph([node], "norm", ends[:1], ends[1:], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    due = sketch.run_by_onnxruntime(model, {"x": x})
    assert due is not None
    pairs = x.reshape(2, 2, 2)
    far = pairs - pairs.mean(2, keepdims=True)
    normed = far / np.sqrt((far**2).mean(2, keepdims=True) + 1e-5)
    right = normed.reshape(x.shape) * scale + bias
    case = graphs.Drawn(name="norm", model=model, given=[x], due=due)
    assert graphs.compared(case, [right])[0] == "unsteady"
    assert graphs.compared(case, [right + 1e-3])[0] == "different"


def test_the_tail_of_a_gelu_is_told_from_a_wrong_one() -> None:
    """There 1 + Erf is some of float32's last bits: this and the next are 5e-5 apart."""
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 20]> g (float[1] x) => (float[1] y) { y = Gelu (x) }'
    )
    x = np.array([-3.2232003], "float32")
    due = sketch.run_by_onnxruntime(model, {"x": x})
    assert due is not None
    case = graphs.Drawn(name="tail", model=model, given=[x], due=due)
    bit = 0.5 * abs(x) * np.float32(2.0**-24)
    assert graphs.compared(case, [due[0] + bit])[0] == "unsteady"
    assert graphs.compared(case, [due[0] * np.float32(1.01)])[0] == "different"


def test_what_is_steep_behind_an_erf_is_told_from_a_wrong_one() -> None:
    """The next float32 to 0.9999956 has an arc sine that is 2e-5 off."""
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 13]> g (float[1] x) => (float[1] y) '
        "{ e = Erf (x) y = Asin (e) }"
    )
    x = np.array([3.2453], "float32")
    due = sketch.run_by_onnxruntime(model, {"x": x})
    assert due is not None
    case = graphs.Drawn(name="steep", model=model, given=[x], due=due)
    near = np.arcsin(
        np.nextafter(np.sin(due[0].astype("float64")).astype("float32"), np.float32(0))
    )
    assert 1e-5 < due[0] - near < 1e-4
    assert graphs.compared(case, [near])[0] == "unsteady"
    assert graphs.compared(case, [due[0] - np.float32(1e-3)])[0] == "different"


@pytest.mark.parametrize("opset", [9, 17, 18])
@pytest.mark.parametrize("kind", ["float", "double"])
def test_a_norm_of_one_element_is_told_from_a_wrong_one(opset: int, kind: str) -> None:
    """It is its bias; by onnxruntime's scale and shift, 300 times as large, it is 1e-5 off."""
    text = (
        '<ir_version: 4, opset_import: ["": OPSET]> g (float[1, 2, 1] x) => (float[1, 2, 1] y)'
        "<float[2] scale = {-0.39522025, 0.44109333}, float[2] bias = {0.2870353, -1.5970267}>"
        "{ y = InstanceNormalization <epsilon = 0.00001> (x, scale, bias) }"
    )
    model = onnx.parser.parse_model(text.replace("OPSET", str(opset)).replace("float", kind))
    of_type = helper.tensor_dtype_to_np_dtype(model.graph.input[0].type.tensor_type.elem_type)
    x = np.array([[[2.0853167], [-0.99327725]]], of_type)
    right = np.array([[[0.2870353], [-1.5970267]]], of_type)
    off = np.array([[[1.3e-5], [0]]], of_type)
    case = graphs.Drawn(name="one", model=model, given=[x], due=[right + off])
    assert graphs.compared(case, [right])[0] == "unsteady"
    assert graphs.compared(case, [right + 1e-3])[0] == "different"


def test_a_way_may_have_a_library_for_each_node() -> None:
    """onnxruntime has no NonZero of uint64, and onnx's reference no Upsample by 2.3."""
    model = onnx.parser.parse_model(
        '<ir_version: 4, opset_import: ["": 9]> g (uint64[3] a, float[1, 1, 2] x) => '
        "(int64[1, n] i, float[1, 1, 4] y) <float[3] scales = {1.0, 1.0, 2.3}>"
        "{ i = NonZero (a) y = Upsample (x, scales) }"
    )
    given = {"a": np.array([0, 7, 1], "uint64"), "x": np.array([[[5, 6]]], "float32")}
    assert sketch.run_by_onnxruntime(model, given) is None
    assert sketch.run_by_reference(model, given) is None
    found = sketch.run_by_each(model, given)
    assert found is not None
    assert [value.tolist() for value in found] == [[[1, 2]], [[[5, 5, 5, 6]]]]


def test_an_infinity_in_a_tile_of_winograd_is_a_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside it a wrong result stays one."""
    weights = np.random.default_rng(0).standard_normal((32, 32, 3, 3)).astype("float32")
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", (1, 32, 18, 18)), ("y", (1, 32, 16, 16)))
    ]
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    graph = helper.make_graph(
        [node], "g", ends[:1], ends[1:], [numpy_helper.from_array(weights, "w")]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)

    def judged(name: str, x: np.ndarray) -> str:
        due = sketch.run_by_onnxruntime(model, {"x": x})
        assert due is not None
        (tmp_path / name).mkdir()
        case = graphs.Drawn(name=name, model=model, given=[x], due=due)
        return graphs.judge(case, tmp_path / name).verdict

    plain = np.ones((1, 32, 18, 18), "float32")
    hot = plain.copy()
    hot[0, 1, 3, 3] = np.inf
    assert judged("plain", plain) == "same"
    assert judged("hot", hot) == "chosen"
    wrong = graphs.Run(outputs=[np.full((1, 32, 16, 16), np.nan, "float32")], by_winograd=True)
    monkeypatch.setattr(graphs, "run", lambda *_args, **_named: wrong)
    assert judged("wrong", hot) == "different"


def test_an_order_of_small_sigmoids_is_told_from_a_wrong_one() -> None:
    """onnxruntime has them equal, and takes the first; onnx's reference tells them apart."""
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 13]> g (float[4] x) => (float[3] v, int64[3] i) '
        "<int64[1] k = {3}> { s = Sigmoid (x) v, i = TopK (s, k) }"
    )
    x = np.array([-60, -50, -70, 1], "float32")
    due = sketch.run_by_onnxruntime(model, {"x": x})
    assert due is not None
    np.testing.assert_array_equal(due[1], [3, 0, 1])
    case = graphs.Drawn(name="order", model=model, given=[x], due=due)
    assert graphs.compared(case, [due[0], np.array([3, 1, 0])])[0] == "unsteady"
    assert graphs.compared(case, [due[0] * np.float32(1.01), np.array([3, 1, 0])])[0] == "different"


def test_a_pool_that_rounds_up_averages_its_window(tmp_path: Path) -> None:
    """In float64, which onnxruntime has no kernel for; onnx's reference takes other windows."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (double[1, 1, 4, 7] x) => (double[1, 1, 2, 3] y)'
        "{ y = AveragePool <kernel_shape = [2, 3], strides = [2, 3], ceil_mode = 1> (x) }"
    )
    x = np.random.default_rng(0).standard_normal((1, 1, 4, 7))
    right = np.array([[x[0, 0, i : i + 2, j : j + 3].mean() for j in (0, 3, 6)] for i in (0, 2)])
    (made,) = _outputs(model, [x], tmp_path)
    np.testing.assert_allclose(made, right[None, None], rtol=1e-12)
    assert graphs.behind_choices(model, {"x": x}, by_reference=True) == {"y"}
    assert not graphs.behind_choices(model, {"x": x})


def test_groups_of_a_transposed_convolution_have_their_own_bias(tmp_path: Path) -> None:
    """In float64, which onnxruntime has no kernel for, of a model whose output has no shape; onnx's
    reference gives each group the first one's."""
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 16]> g (double[1, 2, 1, 2] x) => (double y) '
        "<double[2, 1, 1, 1] w = {2, 3}, double[2] b = {10, 20}> "
        "{ y = ConvTranspose <group = 2> (x, w, b) }"
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    (made,) = _outputs(model, [np.array([[[[1.0, 4]], [[5, 7]]]])], tmp_path)
    np.testing.assert_array_equal(made, [[[[12, 18]], [[35, 41]]]])
    chosen = graphs.behind_choices(model, {}, by_reference=True)
    assert chosen == {"y"}
    assert not graphs.behind_choices(model, {})


def test_all_nan_are_one_value(tmp_path: Path) -> None:
    """As onnx's reference has it; to onnxruntime NaN is equal to all there is."""
    values = np.array([np.nan, 1, np.nan, 2, 1, -1], "float32")
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 19]> g (float[6] x) => '
        "(float[n] y, int64[n] i, int64[6] v, int64[n] c) { y, i, v, c = Unique (x) }"
    )
    due = onnx.reference.ReferenceEvaluator(model).run(None, {"x": values})
    for mine, wanted in zip(_outputs(model, [values], tmp_path), due, strict=True):
        np.testing.assert_array_equal(mine, wanted)
    case = graphs.Drawn(
        name="x",
        model=model,
        given=[values],
        due=sketch.run_by_onnxruntime(model, {"x": values}) or [],
        chosen=graphs.behind_choices(model, {"x": values}),
    )
    assert graphs.judge(case, tmp_path).verdict == "chosen"


@pytest.mark.parametrize("operator", ["ScatterElements", "ScatterND"])
@pytest.mark.parametrize("reduction", ["add", "mul", "min", "max"])
def test_truth_values_that_are_scattered(operator: str, reduction: str, tmp_path: Path) -> None:
    """A sum is true where one is, a product where all are: places twice, once and never."""
    places = np.array([0, 0, 1, 2, 2, 3])
    data, given = np.array([1, 0, 1, 0, 1], bool), np.array([0, 1, 1, 0, 0, 0], bool)
    s = sketch.Sketch(0, 18)
    where = places[:, None] if operator == "ScatterND" else places
    x, at, new = s.input(data), s.input(where), s.input(given)
    s.op(operator, x, at, new, reduction=reduction)
    due = data.copy()
    combine = {"add": np.logical_or, "max": np.logical_or}.get(reduction, np.logical_and)
    combine.at(due, places, given)
    (got,) = _outputs(s.model(), s.data(), tmp_path)
    assert got.tolist() == due.tolist()


@pytest.mark.parametrize("operator", ["ScatterElements", "ScatterND"])
@pytest.mark.parametrize("reduction", ["min", "max"])
def test_an_extremum_of_what_is_scattered_is_nan(
    operator: str, reduction: str, tmp_path: Path
) -> None:
    """As numpy has it; onnxruntime forgets a NaN of the data."""
    data, updates = np.array([[np.nan, np.nan, 1, 1, 5], [1, np.nan, np.nan, 0, 9]], "float32")
    s = sketch.Sketch(0, 18)
    places = np.arange(5).reshape((5, 1) if operator == "ScatterND" else (5,))
    s.op(operator, s.input(data), s.const(places), s.input(updates), reduction=reduction)
    model = s.model()
    (made,) = _outputs(model, s.data(), tmp_path)
    numpys = np.minimum if reduction == "min" else np.maximum
    np.testing.assert_array_equal(made, numpys(data, updates))
    case = graphs.Drawn(
        name="x",
        model=model,
        given=s.data(),
        due=sketch.run_by_onnxruntime(model, graphs.names(model, s.data())) or [],
        chosen=graphs.behind_choices(model, s.values),
    )
    assert graphs.judge(case, tmp_path).verdict == "chosen"


def test_what_a_model_rounds_at_its_end_stays_rounded(tmp_path: Path) -> None:
    """Beside an operator on integers, too, between which numbers are not rounded."""
    for dtype in ("float32", "float16"):
        s = sketch.Sketch(0, 19)
        data, weights = PIXELS.astype("uint8"), np.arange(36).reshape(2, 2, 3, 3).astype("int8")
        steps = [s.const(np.float32(0.03)), s.const(np.uint8(3))]
        narrow = [s.const(np.float32(0.2)), s.const(np.int8(0))]
        s.op("QLinearConv", s.input(data), *steps, s.const(weights), *narrow, *steps)
        ends = [s.const(np.array(0.185, dtype)), s.const(np.int8(-8))]
        (rounded,) = s.op("QuantizeLinear", s.input(REAL.astype(dtype)), *ends)
        s.op("DequantizeLinear", rounded, *ends)
        model = s.model()
        due = [s.values[value.name] for value in model.graph.output]
        (tmp_path / dtype).mkdir()
        case = graphs.Drawn(name=dtype, model=model, given=s.data(), due=due)
        made = graphs.judge(case, tmp_path / dtype)
        assert made.verdict == "same", made.why


@pytest.mark.parametrize("visible", [True, False])
def test_a_pair_between_numbers_rounds_if_its_integers_are_an_output(
    visible: bool, tmp_path: Path
) -> None:
    """Beside an operator on integers; if they are none, the numbers stay as they are."""
    s = sketch.Sketch(0, 19)
    data, steps = PIXELS.astype("uint8"), [s.const(np.float32(0.03)), s.const(np.uint8(3))]
    weights = np.arange(36).reshape(2, 2, 3, 3).astype("int8")
    narrow = [s.const(np.float32(0.2)), s.const(np.int8(0))]
    s.op("QLinearConv", s.input(data), *steps, s.const(weights), *narrow, *steps)
    real = s.op("Neg", s.input(REAL.astype("float32")))[0]
    (integers,) = s.op("QuantizeLinear", real, *narrow)
    (number,) = s.op("DequantizeLinear", integers, *narrow)
    (end,) = s.op("Div", number, s.const(np.float32(3)))
    model = s.model()
    keep = [value for value in model.graph.output if value.name != integers]
    del model.graph.output[:]
    info = onnx.helper.make_tensor_value_info(integers, onnx.TensorProto.INT8, REAL.shape)
    model.graph.output.extend([*keep, info] if visible else keep)
    due = [s.values[value.name] for value in model.graph.output]
    chosen = graphs.behind_choices(model, s.values)
    assert chosen == (frozenset() if visible else {number, end})
    case = graphs.Drawn(name="x", model=model, given=s.data(), due=due, chosen=chosen)
    assert graphs.judge(case, tmp_path).verdict == ("same" if visible else "chosen")


def test_halves_that_are_equal_are_one_value(tmp_path: Path) -> None:
    values = np.linspace(0.5, 1, 3000, dtype="float32").astype("float16")
    s = sketch.Sketch(0, 19)
    s.op("Unique", s.op("Sin", s.input(values))[0])
    model = s.model()
    made = _outputs(model, s.data(), tmp_path)[0]
    assert len(made) == len(np.unique(made)) < 2048


def test_what_the_reference_reads_otherwise_is_chosen(tmp_path: Path) -> None:
    """Of a model that onnxruntime does not run."""
    s = sketch.Sketch(0, 19)
    volume = s.input(PIXELS.reshape(1, 2, 2, 5, 3).astype("float32"))
    sizes = s.const(np.array([1, 1, 1.6, 1.3, 2], "float32"))
    s.op("Resize", volume, "", sizes, **{**ALIGNED, "mode": "cubic"})
    model = s.model()
    due = [s.values[value.name] for value in model.graph.output]
    assert sketch.run_by_onnxruntime(model, graphs.names(model, s.data())) is None
    for by_reference, verdict in ((True, "chosen"), (False, "different")):
        chosen = graphs.behind_choices(model, s.values, by_reference=by_reference)
        case = graphs.Drawn(name="x", model=model, given=s.data(), due=due, chosen=chosen)
        folder = tmp_path / verdict
        folder.mkdir()
        assert graphs.judge(case, folder).verdict == verdict


@pytest.mark.parametrize("keepdims", [0, 1])
def test_means_of_a_whole_volume(keepdims: int, tmp_path: Path) -> None:
    s = sketch.Sketch(0, 23)
    x = s.input(np.sin(np.arange(4 * 6 * 2 * 9, dtype="float32")).reshape(1, 4, 6, 2, 9))
    weights = s.const(np.cos(np.arange(4 * 8, dtype="float32")).reshape(4, 1, 2, 2, 2))
    (image,) = s.op("Conv", x, weights, group=4, auto_pad="SAME_LOWER")
    s.op("ReduceMean", image, keepdims=keepdims)
    s.op("RMSNormalization", image, s.const(np.ones((1, 4, 6, 2, 9), "float32")), axis=0)
    model = s.model()
    due = [s.values[value.name] for value in model.graph.output]
    case = graphs.Drawn(name="x", model=model, given=s.data(), due=due)
    assert graphs.judge(case, tmp_path).verdict == "same"


def test_integers_in_other_steps_behind_a_layer(tmp_path: Path) -> None:
    """What a DequantizeLinear makes goes into a QuantizeLinear with nothing in between. No quotient
    of these steps lies between two integers."""
    s = sketch.Sketch(0, 13)
    steps = [
        [s.const(np.float32(x)), s.const(np.uint8(zero))] for x, zero in ((0.7, 7), (1.37, 90))
    ]
    pixels = PIXELS.astype("float32") % 7
    value = s.input(pixels)
    weight = s.const(np.sign(np.arange(18) - 8.5).astype("int8").reshape(1, 2, 3, 3))
    real = s.op("DequantizeLinear", weight, s.const(np.float32(0.3)), s.const(np.int8(0)))[0]
    for number, (scale, zero) in enumerate((*steps, steps[0])):
        value = s.op("QuantizeLinear", value, scale, zero)[0]
        value = s.op("DequantizeLinear", value, scale, zero)[0]
        value = s.op("Conv", value, real)[0] if not number else value
    model = s.model()
    due = [s.values[item.name] for item in model.graph.output]
    case = graphs.Drawn(name="steps", model=model, given=[pixels], due=due)
    made = graphs.judge(case, tmp_path)
    assert made.verdict == "same", made.why


@pytest.mark.parametrize("form", ["axis", "blocks"])
def test_steps_of_many_scales_beside_a_layer_on_integers(form: str, tmp_path: Path) -> None:
    """Each stays with its channel, or its block, behind what works on plain integers."""
    random = np.random.default_rng(2)
    s = sketch.Sketch(0, 21)
    x = s.input(random.normal(size=(3, 2, 4, 6)).astype("float32"))
    scales = np.linspace(0.01, 0.4, 3, dtype="float32")
    zeros = np.array([3, -2, 0], "int8")
    more: dict[str, int] = {"axis": 0}
    if form == "blocks":
        scales, zeros = (np.resize(steps, (3, 1, 4, 6)) for steps in (scales, zeros))
        more = {"axis": 1, "block_size": 2}
    steps = s.const(scales), s.const(zeros)
    (made,) = s.op("QuantizeLinear", x, *steps, **more)
    if form == "axis":
        (made,) = s.op("MaxPool", made, kernel_shape=[2, 2])
    (made,) = s.op("Clip", made, *(s.const(np.int8(bound)) for bound in (-100, 90)))
    s.op("DequantizeLinear", made, *steps, **more)
    one = s.const(np.float32(0.5)), s.const(np.int8(1))
    rows = s.input(random.integers(-9, 9, (2, 5)).astype("int8"))
    s.op("QLinearMatMul", rows, *one, s.const(np.eye(5, dtype="int8")), *one, *one)
    model = s.model()
    due = sketch.run_by_onnxruntime(model, graphs.names(model, s.data()))
    assert due is not None
    for mine, theirs in zip(_outputs(model, s.data(), tmp_path), due, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


def test_default_numbers_of_float64_are_onnx_s_of_float32(tmp_path: Path) -> None:
    """Attributes are float32: an alpha of 0.2 is 0.200000003."""
    s = sketch.Sketch(0, 17)
    x = s.input(np.array([-1.5, -0.7, 0.3, 1.1, 2.2]))
    for operator in ("HardSigmoid", "LeakyRelu", "Selu"):
        s.op(operator, x)
    real, (alpha, gamma) = s.values[x], np.float32([1.67326319217681884765625, 1.0507010221481323])
    due = [
        np.clip(real * float(np.float32(0.2)) + 0.5, 0, 1),
        np.where(real < 0, real * float(np.float32(0.01)), real),
        float(gamma) * np.where(real < 0, float(alpha) * np.expm1(real), real),
    ]
    for made, wanted in zip(_outputs(s.model(), s.data(), tmp_path), due, strict=True):
        np.testing.assert_allclose(made, wanted, rtol=1e-14)


@pytest.mark.parametrize("operator", ["Pow", "IsNaN", "Div", "Mod"])
def test_bfloat16_that_tvm_has_no_code_for(operator: str, tmp_path: Path) -> None:
    """By ml_dtypes, which computes in float32 and rounds to nearest, as IEEE 754 does."""
    import ml_dtypes

    rows = [
        np.array([0.5, 1.25, 2.5, 3.0, 0.75, 0.1, 7.0, np.nan], "float32"),
        np.array([2.0, 1.5, 3.0, 0.5, 2.0, 1.0, 0.3, 2.0], "float32"),
    ]
    s = sketch.Sketch(0, 22)
    one, other = (s.op("Cast", s.input(row), to=TensorProto.BFLOAT16)[0] for row in rows)
    numpys = {"Pow": np.power, "Div": np.divide, "Mod": np.fmod}
    wide = [row.astype(ml_dtypes.bfloat16).astype("float32") for row in rows]
    if operator == "IsNaN":
        s.op(operator, one)
        due = np.isnan(wide[0])
    else:
        (made,) = s.op(operator, one, other, fmod=1 if operator == "Mod" else None)
        s.op("Cast", made, to=TensorProto.FLOAT)
        due = numpys[operator](*wide).astype(ml_dtypes.bfloat16).astype("float32")
    (got,) = _outputs(s.model(), s.data(), tmp_path)
    np.testing.assert_allclose(got, due, rtol=2.0**-8)


# ---------------------------------------------------------------- 4 bits, old opsets, functions


def _outputs(model: onnx.ModelProto, given: Sequence[np.ndarray], folder: Path) -> list[np.ndarray]:
    path = folder / "model.onnx"
    onnx.save(model, path)
    board = get_board("local")
    made = compile_model(
        ModelSpec(path=path), board, select(board, "gnu").toolchain, folder / "out"
    )
    return run_plan(made.folder, given)


@pytest.mark.parametrize(
    ("kind", "exponent"),
    [
        ("float32", np.array([2**24 + 1, 2**24, 1, 0, -3, 1], "int64")),
        ("float32", np.array([2**24 + 1, -(2**31), 1, 0, -3, 1], "int32")),
        ("float32", np.array([2.0**24 + 1, 2.0**24, 1e-300, 0, -3, 1], "float64")),
        ("float16", np.array([2049, 2048, 1e-30, 0, -3, 1], "float32")),
    ],
    ids=lambda value: value if isinstance(value, str) else value.dtype.name,
)
def test_exponents_with_more_bits_than_their_base(
    kind: str, exponent: np.ndarray, tmp_path: Path
) -> None:
    """By IEEE 754's pow: whether an exponent is odd, or 0, is in its last bit."""
    s = sketch.Sketch(0, 17)
    base = s.input(np.array([-1, -1, 0, 0, 2, np.nan], kind))
    s.op("Pow", base, s.input(exponent))
    (got,) = _outputs(s.model(), s.data(), tmp_path)
    np.testing.assert_array_equal(got, np.array([-1, 1, 0, 1, 0.125, np.nan], kind))


@pytest.mark.parametrize("operator", ["Sin", "Cos"])
def test_waves_of_sums(operator: str, tmp_path: Path) -> None:
    """Where libm is called for few: the sums have names, in registers and in memory."""
    random = np.random.default_rng(0)
    s = sketch.Sketch(0, 17)
    weights = random.standard_normal((4, 4, 2, 2)).astype("float32")
    x = s.input(random.standard_normal((1, 4, 2, 8)).astype("float32"))
    (sums,) = s.op("Conv", x, s.const(weights), pads=[0, 1, 0, 0])
    (made,) = s.op(operator, sums)
    due = getattr(np, operator.lower())(s.values[sums].astype("float64"))
    (got,) = _outputs(s.model(), s.data(), tmp_path)
    assert made
    np.testing.assert_allclose(got, due, rtol=0, atol=2e-6)


@pytest.mark.parametrize("operator", ["QuantizeLinear", "DequantizeLinear"])
@pytest.mark.parametrize(
    ("shape", "why"),
    [([2, 2], "its scales are in blocks"), ([3], "it has 3 scales for 4 elements along axis 1")],
)
def test_steps_that_fit_nothing_are_refused_by_name(
    operator: str, shape: Sequence[int], why: str, tmp_path: Path
) -> None:
    """onnx's own check lets such a node pass before opset 21."""
    given, made = ("FLOAT", "UINT8") if operator == "QuantizeLinear" else ("INT8", "FLOAT")
    graph = helper.make_graph(
        [helper.make_node(operator, ["x", "steps"], ["y"], name="here", axis=1)],
        "graph",
        [helper.make_tensor_value_info("x", getattr(TensorProto, given), (2, 4))],
        [helper.make_tensor_value_info("y", getattr(TensorProto, made), (2, 4))],
        [numpy_helper.from_array(np.full(shape, 0.5, "float32"), "steps")],
    )
    opsets = [helper.make_opsetid("", 13)]
    model = helper.make_model(graph, ir_version=7, opset_imports=opsets)
    with pytest.raises(ModelError, match=f"{operator} 'here' cannot be compiled.*{why}"):
        _outputs(model, [], tmp_path)


@pytest.mark.parametrize("kind", ["int4", "uint4"])
def test_weights_of_4_bits_by_blocks(kind: str, tmp_path: Path) -> None:
    import ml_dtypes

    dtype, random = np.dtype(getattr(ml_dtypes, kind)), np.random.default_rng(0)
    low, high = (-8, 8) if kind == "int4" else (0, 16)
    whole = random.integers(low, high, (4, 6))
    scale = random.uniform(0.1, 0.2, (2, 6)).astype("float32")
    zero = random.integers(low, high, (2, 6))
    s = sketch.Sketch(0, 21)
    x = s.input(random.standard_normal((3, 4)).astype("float32"))
    weights = [s.const(whole.astype(dtype)), s.const(scale), s.const(zero.astype(dtype))]
    s.op("MatMul", x, *s.op("DequantizeLinear", *weights, axis=0, block_size=2))
    real = (whole - zero.repeat(2, 0)) * scale.repeat(2, 0)
    (made,) = _outputs(s.model(), s.data(), tmp_path)
    np.testing.assert_allclose(made, s.values[x] @ real, rtol=1e-5)


OLD = np.random.default_rng(0).standard_normal((1, 2, 2, 2)).astype("float32")
CHANNELS = np.array([2.0, 3.0], "float32")
WIDE = CHANNELS[:, None, None]


@pytest.mark.parametrize(
    ("opset", "operator", "weights", "attributes", "due"),
    [
        (6, "Add", [CHANNELS], {"broadcast": 1, "axis": 1}, OLD + WIDE),
        (6, "Mul", [CHANNELS[:1]], {"broadcast": 1}, OLD * 2),
        (6, "Sub", [CHANNELS], {"broadcast": 1}, OLD - CHANNELS),
        (6, "PRelu", [CHANNELS], {}, np.where(OLD < 0, OLD * WIDE, OLD)),
        (4, "Reshape", [], {"shape": [2, 4]}, OLD.reshape(2, 4)),
        (5, "Cast", [], {"to": "DOUBLE"}, OLD.astype("float64")),
        (
            1,
            "Pad",
            [],
            {"paddings": [0, 0, 1, 1, 0, 0, 1, 1]},
            np.pad(OLD, ((0, 0), (0, 0), (1, 1), (1, 1))),
        ),
        (1, "Relu", [], {"consumed_inputs": [0]}, np.maximum(OLD, 0)),
        (
            6,
            "Upsample",
            [],
            {"height_scale": 2.0, "width_scale": 2.0},
            OLD.repeat(2, 2).repeat(2, 3),
        ),
    ],
)
def test_opsets_before_7_mean_what_they_meant(
    opset: int,
    operator: str,
    weights: Sequence[np.ndarray],
    attributes: dict[str, Any],
    due: np.ndarray,
    tmp_path: Path,
) -> None:
    names = [f"w{i}" for i in range(len(weights))]
    kind = helper.np_dtype_to_tensor_dtype(due.dtype)
    graph = helper.make_graph(
        [helper.make_node(operator, ["x", *names], ["y"], **attributes)],
        "old",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, OLD.shape),
            *(
                helper.make_tensor_value_info(n, 1, w.shape)
                for n, w in zip(names, weights, strict=True)
            ),
        ],
        [helper.make_tensor_value_info("y", kind, due.shape)],
        [numpy_helper.from_array(w, n) for n, w in zip(names, weights, strict=True)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=3)
    (made,) = _outputs(model, [OLD], tmp_path)
    assert made.dtype == due.dtype
    np.testing.assert_allclose(made, due, rtol=1e-6)


def test_a_function_means_what_its_own_opset_says(tmp_path: Path) -> None:
    """Softmax of opset 11 is over all axes from one on; onnxruntime takes the model's opset."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
        g (float[2,3,4] x) => (float[2,3,4] y) { y = my.f(x) }
        <domain: "my", opset_import: ["" : 11]> f (x) => (y) { y = Softmax<axis=1>(x) }"""
    )
    data = np.random.default_rng(0).standard_normal((2, 3, 4)).astype("float32")
    powers = np.exp(data)
    due = powers / powers.sum((1, 2), keepdims=True)
    (made,) = _outputs(model, [data], tmp_path)
    np.testing.assert_allclose(made, due, rtol=1e-5)
    # And what `package` compares with is the same.
    loaded = read_model(ModelSpec(path=tmp_path / "model.onnx"))
    ((reference,),) = model_outputs(loaded.path, loaded.proto, [[data]])
    np.testing.assert_allclose(reference, due, rtol=1e-5)
