"""TFLite models come in as ONNX ones that give what LiteRT gives."""

from __future__ import annotations

import base64
import os
import random
import resource
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepack.base.errors import EdgepackError
from edgepack.boards import get_board
from edgepack.compiler import compile_model
from edgepack.flow.reference import random_input, run_reference
from edgepack.flow.verify import difference, make_cases
from edgepack.model import ModelSpec, read_model
from edgepack.model.tflite import (
    NotTfliteError,
    UnsupportedTfliteError,
    read_tflite,
)
from edgepack.native.toolchain import select
from tests import tflite_models
from tests.plan_runner import PlanRunner
from tests.tflite_models import OneOperator

RANDOM = np.random.RandomState(5)


@pytest.fixture(scope="module", autouse=True)
def packages() -> None:
    tflite_models.use_packages()


def weights(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def ints(*values: object) -> np.ndarray:
    return np.array(values, np.int32)


SAME, VALID = 0, 1
CONV = {"strideH": 2, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
SLICE = {"beginMask": 0, "endMask": 0, "ellipsisMask": 0, "newAxisMask": 0, "shrinkAxisMask": 0}
IMAGE = (1, 7, 6, 4)
SMALL = (1, 3, 3, 4)
OPERATORS = [
    OneOperator(
        name="CONV_2D",
        inputs=[IMAGE, weights(5, 3, 3, 4), weights(5)],
        outputs=[(1, 4, 6, 5)],
        kind="Conv2DOptions",
        options={**CONV, "padding": SAME, "fusedActivationFunction": 3},
    ),
    OneOperator(
        name="CONV_2D",
        inputs=[IMAGE, weights(5, 3, 3, 4), weights(5)],
        outputs=[(1, 3, 4, 5)],
        kind="Conv2DOptions",
        options={**CONV, "padding": VALID},
    ),
    OneOperator(
        name="DEPTHWISE_CONV_2D",
        inputs=[IMAGE, weights(1, 3, 2, 8), weights(8)],
        outputs=[(1, 7, 6, 8)],
        kind="DepthwiseConv2DOptions",
        options={
            **CONV, "strideH": 1, "dilationHFactor": 2, "padding": SAME, "depthMultiplier": 2
        },
    ),
    OneOperator(
        name="TRANSPOSE_CONV",
        inputs=[ints(1, 7, 7, 5), weights(5, 3, 3, 4), SMALL],
        outputs=[(1, 7, 7, 5)],
        kind="TransposeConvOptions",
        options={"strideH": 2, "strideW": 2, "padding": VALID},
    ),
    OneOperator(
        name="TRANSPOSE_CONV",
        inputs=[ints(1, 6, 6, 5), weights(5, 3, 3, 4), SMALL],
        outputs=[(1, 6, 6, 5)],
        kind="TransposeConvOptions",
        options={"strideH": 2, "strideW": 2, "padding": SAME},
    ),
    *(
        OneOperator(
            name=name,
            inputs=[IMAGE],
            outputs=[(1, 4, 3, 4)],
            kind="Pool2DOptions",
            options={
                "strideH": 2, "strideW": 2, "filterHeight": 3, "filterWidth": 3, "padding": SAME
            },
        )
        for name in ("AVERAGE_POOL_2D", "MAX_POOL_2D")
    ),
    OneOperator(
        name="FULLY_CONNECTED",
        inputs=[(2, 6), weights(3, 6), None],
        outputs=[(2, 3)],
        kind="FullyConnectedOptions",
        options={"fusedActivationFunction": 1},
    ),
    OneOperator(
        name="BATCH_MATMUL",
        inputs=[(2, 3, 4), (2, 5, 4)],
        outputs=[(2, 3, 5)],
        kind="BatchMatMulOptions",
        options={"adjX": False, "adjY": True},
    ),
    *(
        OneOperator(
            name="RESIZE_BILINEAR",
            inputs=[IMAGE, ints(13, 9)],
            outputs=[(1, 13, 9, 4)],
            kind="ResizeBilinearOptions",
            options={"alignCorners": align, "halfPixelCenters": half},
        )
        for align, half in ((False, False), (True, False), (False, True))
    ),
    *(
        OneOperator(
            name="RESIZE_NEAREST_NEIGHBOR",
            inputs=[IMAGE, ints(*size)],
            outputs=[(1, *size, 4)],
            kind="ResizeNearestNeighborOptions",
            options={"alignCorners": align, "halfPixelCenters": half},
        )
        for align, half in ((False, False), (True, False), (False, True))
        for size in ((13, 9), (4, 5))
    ),
    OneOperator(
        name="PAD",
        inputs=[IMAGE, ints([0, 0], [1, 2], [0, 3], [0, 0])],
        outputs=[(1, 10, 9, 4)],
        kind="PadOptions",
    ),
    OneOperator(
        name="MIRROR_PAD",
        inputs=[IMAGE, ints([0, 0], [1, 2], [0, 3], [0, 0])],
        outputs=[(1, 10, 9, 4)],
        kind="MirrorPadOptions",
        options={"mode": 0},
    ),
    OneOperator(
        name="STRIDED_SLICE",
        inputs=[IMAGE, ints(0, 1, -1, 2), ints(1, 6, -5, 3), ints(1, 2, -2, 1)],
        outputs=[(1, 3, 2)],
        kind="StridedSliceOptions",
        options={**SLICE, "shrinkAxisMask": 8},
    ),
    OneOperator(
        name="STRIDED_SLICE",
        inputs=[IMAGE, ints(0, 3, 4, 2), ints(1, 6, 0, 0), ints(1, 1, -1, 1)],
        outputs=[(1, 6, 5, 2)],
        kind="StridedSliceOptions",
        options={**SLICE, "beginMask": 2, "endMask": 4 | 8},
    ),
    OneOperator(name="SLICE", inputs=[IMAGE, ints(0, 1, 2, 0), ints(1, 3, -1, 2)],
                outputs=[(1, 3, 4, 2)], kind="SliceOptions"),
    OneOperator(name="SPLIT", inputs=[ints(3).reshape(()), IMAGE], outputs=[(1, 7, 6, 2)] * 2,
                kind="SplitOptions", options={"numSplits": 2}),
    OneOperator(name="SPLIT_V", inputs=[IMAGE, ints(1, 5), ints(2).reshape(())],
                outputs=[(1, 7, 1, 4), (1, 7, 5, 4)], kind="SplitVOptions",
                options={"numSplits": 2}),
    OneOperator(name="PACK", inputs=[(2, 3), (2, 3)], outputs=[(2, 2, 3)], kind="PackOptions",
                options={"axis": 1, "valuesCount": 2}),
    OneOperator(name="UNPACK", inputs=[(2, 3)], outputs=[(2,)] * 3, kind="UnpackOptions",
                options={"axis": -1, "num": 3}),
    OneOperator(name="CONCATENATION", inputs=[IMAGE, IMAGE], outputs=[(1, 7, 6, 8)],
                kind="ConcatenationOptions", options={"axis": -1}),
    OneOperator(name="TRANSPOSE", inputs=[IMAGE, ints(0, 2, 3, 1)], outputs=[(1, 6, 4, 7)],
                kind="TransposeOptions"),
    OneOperator(name="GATHER", inputs=[IMAGE, ints(3, 0)], outputs=[(1, 7, 2, 4)],
                kind="GatherOptions", options={"axis": 2}),
    OneOperator(name="TILE", inputs=[(2, 3), ints(2, 1)], outputs=[(4, 3)], kind="TileOptions"),
    *(
        OneOperator(name=name, inputs=[IMAGE, ints(*axes)], outputs=[shape],
                    kind="ReducerOptions", options={"keepDims": keep})
        for name in ("MEAN", "SUM", "REDUCE_MAX")
        for axes, keep, shape in (((1, 2), False, (1, 4)), ((-1,), True, (1, 7, 6, 1)))
    ),
    OneOperator(name="ARG_MAX", inputs=[IMAGE, ints(3).reshape(())], outputs=[(1, 7, 6)],
                kind="ArgMaxOptions", options={"outputType": 4}, dtypes=["int64"]),
    OneOperator(name="SOFTMAX", inputs=[(2, 9)], outputs=[(2, 9)], kind="SoftmaxOptions",
                options={"beta": 2.0}),
    OneOperator(name="LOG_SOFTMAX", inputs=[(2, 9)], outputs=[(2, 9)], kind="LogSoftmaxOptions"),
    OneOperator(name="L2_NORMALIZATION", inputs=[(2, 9)], outputs=[(2, 9)], kind="L2NormOptions"),
    OneOperator(name="PRELU", inputs=[IMAGE, weights(1, 1, 4)], outputs=[IMAGE]),
    OneOperator(name="LEAKY_RELU", inputs=[IMAGE], outputs=[IMAGE], kind="LeakyReluOptions",
                options={"alpha": 0.2}),
    *(
        OneOperator(name="GELU", inputs=[(2, 9)], outputs=[(2, 9)], kind="GeluOptions",
                    options={"approximate": approximate})
        for approximate in (False, True)
    ),
    *(
        OneOperator(name=name, inputs=[(2, 9)], outputs=[(2, 9)])
        for name in ("RELU", "RELU6", "RELU_N1_TO_1", "LOGISTIC", "TANH", "HARD_SWISH", "ABS",
                     "ROUND", "FLOOR", "CEIL", "EXP", "SIN", "COS", "SQUARE", "NEG", "ELU")
    ),
    *(
        OneOperator(name=name, inputs=[IMAGE, weights(4)], outputs=[IMAGE], kind=kind)
        for name, kind in (("ADD", "AddOptions"), ("SUB", "SubOptions"), ("MUL", "MulOptions"),
                           ("DIV", "DivOptions"), ("MAXIMUM", ""), ("SQUARED_DIFFERENCE", ""))
    ),
    OneOperator(name="MINIMUM", inputs=[IMAGE, weights()], outputs=[IMAGE]),
    OneOperator(name="GREATER", inputs=[IMAGE, IMAGE], outputs=[IMAGE], dtypes=["bool"]),
    OneOperator(name="DEPTH_TO_SPACE", inputs=[IMAGE], outputs=[(1, 14, 12, 1)],
                kind="DepthToSpaceOptions", options={"blockSize": 2}),
    OneOperator(name="SPACE_TO_DEPTH", inputs=[(1, 4, 6, 3)], outputs=[(1, 2, 3, 12)],
                kind="SpaceToDepthOptions", options={"blockSize": 2}),
    OneOperator(name="SQUEEZE", inputs=[(1, 3, 1)], outputs=[(3,)], kind="SqueezeOptions"),
    OneOperator(name="EXPAND_DIMS", inputs=[(2, 3), ints(1).reshape(())], outputs=[(2, 1, 3)]),
    OneOperator(name="TOPK_V2", inputs=[(2, 9), ints(3).reshape(())], outputs=[(2, 3), (2, 3)],
                dtypes=["float32", "int32"]),
    OneOperator(name="CAST", inputs=[(2, 9)], outputs=[(2, 9)], kind="CastOptions",
                dtypes=["int32"]),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(OPERATORS)), ids=lambda i: f"{OPERATORS[i].name}-{i}")
def test_each_operator_gives_what_litert_gives(number: int, tmp_path: Path) -> None:
    path = OPERATORS[number].write(tmp_path / "model.tflite")
    fed = [item for item in OPERATORS[number].inputs if isinstance(item, tuple)]
    inputs = [weights(*shape) * 2 for shape in fed]
    wanted = tflite_models.litert_run(path, inputs)
    model = read_model(ModelSpec(path=path))
    assert [info.shape for info in model.outputs] == [tuple(array.shape) for array in wanted]
    for got, want in zip(run_reference(model.proto, {}, inputs), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6 * max(1, np.abs(want).max()))


@pytest.mark.parametrize(
    ("padding", "side", "strides"), [("same", 6, (2, 2)), ("valid", 7, (2, 2)), ("same", 3, (1, 1))]
)
def test_mediapipes_transposed_convolution(
    padding: str, side: int, strides: tuple[int, int], tmp_path: Path
) -> None:
    """It is LiteRT's, and adds a bias. Its options are the struct TfLiteTransposeConvParams, where
    `same` is 1 and `valid` 2."""
    kernel, bias, image = weights(5, 3, 3, 4), weights(5), weights(*SMALL)
    its = OneOperator(
        name="Convolution2DTransposeBias",
        inputs=[SMALL, kernel, bias],
        outputs=[(1, side, side, 5)],
        custom_options=struct.pack("<3i", {"same": 1, "valid": 2}[padding], *strides),
    )
    plain = OneOperator(
        name="TRANSPOSE_CONV",
        inputs=[ints(1, side, side, 5), kernel, SMALL],
        outputs=[(1, side, side, 5)],
        kind="TransposeConvOptions",
        options={
            "strideW": strides[0],
            "strideH": strides[1],
            "padding": {"same": SAME, "valid": VALID}[padding],
        },
    )
    (wanted,) = tflite_models.litert_run(plain.write(tmp_path / "plain.tflite"), [image])
    model = read_model(ModelSpec(path=its.write(tmp_path / "its.tflite")))
    (got,) = run_reference(model.proto, {}, [image])
    np.testing.assert_allclose(got, wanted + bias, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["embedding_model", "hey_mycroft", "alexa"])
def test_real_float_models(name: str) -> None:
    path = tflite_models.wake(name)
    model = read_model(ModelSpec(path=path))
    inputs = [random_input(info, np.random.RandomState(1)) for info in model.inputs]
    (wanted,) = tflite_models.litert_run(path, inputs)
    (got,) = run_reference(model.proto, {}, inputs)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("name", ["okay_nabu", "hey_jarvis"])
def test_a_real_int8_model_carries_its_state(name: str) -> None:
    """A variable is an input and an output, and a state by itself, which begins with real zeros."""
    path = tflite_models.micro(name)
    model = read_model(ModelSpec(path=path))
    audio, *states = model.inputs
    assert model.given == (audio,)
    assert dict(model.states) == {info.name: f"{info.name}.next" for info in states}
    values: dict[str, Any] = dict(model.starts)
    for info in states:
        np.testing.assert_array_equal(values[info.name], np.full(info.shape, -128))
    litert = tflite_models.interpreter(path)
    (given,), (asked,) = litert.get_input_details(), litert.get_output_details()
    random, seen = np.random.RandomState(2), set()
    assigned = tflite_models.assigned(path)
    for _ in range(20):
        values[audio.name] = random.randint(-128, 60, audio.shape).astype(np.int8)
        litert.set_tensor(given["index"], values[audio.name])
        litert.invoke()
        score, *after = run_reference(model.proto, {}, values)
        assert np.array_equal(score, litert.get_tensor(asked["index"]))
        values |= {info.name: state for info, state in zip(states, after, strict=True)}
        for info in states:
            kept = litert.get_tensor(assigned[info.name]).astype(int)
            error = np.abs(values[info.name] - kept)
            # Each layer rounds otherwise where a value lies between two; there are up to 14.
            assert error.max() <= 4
            assert error.mean() < 0.5
            seen.add(int(np.abs(kept + 128).max()))
    assert len(seen) > 10


# What okay_nabu takes for its word, found by trying: loudness in ten bands at twelve times.
_HEARD = (
    "e|&#`e}FW&lz@aJn1Fu-e|Ugkf5@nSfYg69fD8zfIDda|*not9e}BMme}4pAfPjFgXtY!)yfkRof6##V"
    "fUw*k;D8)|%z%u*fW+M3#2A0r5PyGwe^}Ii1b{%?fV?z_42;<1q(C@O#0-CQM5up&uz#Eg"
)


def _heard() -> list[np.ndarray]:
    """114 strides: the word in 57 of them, and silence."""
    word = np.frombuffer(base64.b85decode(_HEARD), np.int8).reshape(12, 10)
    times, bands = np.linspace(0, 11, 57 * 3), np.linspace(0, 9, 40)
    at_times = np.array([np.interp(times, np.arange(12), band) for band in word.T])
    sound = np.array([np.interp(bands, np.arange(10), bar) for bar in at_times.T])
    strides = np.full((114, 1, 3, 40), -128, np.int8)
    strides[:57] = np.clip(np.round(sound), -128, 127).reshape(57, 1, 3, 40)
    return list(strides)


def test_a_wake_word_hears_as_often_as_litert_does(tmp_path: Path) -> None:
    """Its states left out, which begin at the zero point: from integer 0 it hears 47 times.
    And so again after a reset."""
    path, board = tflite_models.micro("okay_nabu"), get_board("local")
    spec = ModelSpec(path=path)
    built = compile_model(spec, board, select(board, "gnu").toolchain, tmp_path / "out")
    runner, model, litert = (
        PlanRunner(built.folder),
        read_model(spec),
        tflite_models.interpreter(path),
    )
    (given,), (asked,) = litert.get_input_details(), litert.get_output_details()
    kept: list[None] = [None] * len(model.states)
    due, found, again = 0, 0, 0
    for stride in _heard():
        litert.set_tensor(given["index"], stride)
        litert.invoke()
        due += int(litert.get_tensor(asked["index"]).item() > 127)
        found += int(runner.run([stride, *kept])[0].item() > 127)
    runner.reset()
    for stride in _heard():
        again += int(runner.run([stride, *kept])[0].item() > 127)
    assert due == 18
    assert abs(found - due) <= 1
    assert again == found


def test_it_is_compiled_like_any_model(tmp_path: Path) -> None:
    spec, board = ModelSpec(path=tflite_models.wake("hey_mycroft")), get_board("rasp3b")
    model = read_model(spec)
    compiled = compile_model(spec, board, select(board).toolchain, tmp_path / "out")
    golden = [random_input(info, np.random.RandomState(0)) for info in model.inputs]
    cases = make_cases(model.inputs, golden)
    assert difference(model.proto, board, compiled, cases, 1e-4) is None


def test_what_has_no_conversion_is_named() -> None:
    with pytest.raises(UnsupportedTfliteError, match=r"hey_jarvis\.tflite: .*: IF: it has no"):
        read_tflite(tflite_models.wake("hey_jarvis"))


def test_damaged_files_end_typed(tmp_path: Path) -> None:
    data = tflite_models.wake("hey_rhasspy").read_bytes()
    path = tmp_path / "model.tflite"
    for bad in (b"", b"\x00\x00\x00\x00TFL3", data[:64], data[: len(data) // 2], bytes(1000)):
        path.write_bytes(bad)
        with pytest.raises(NotTfliteError, match=r"model\.tflite: "):
            read_tflite(path)
    random = np.random.default_rng(7)
    # What is not weights lies at both ends.
    places = [*range(200), *range(len(data) - 6000, len(data))]
    for _ in range(60):
        changed = bytearray(data)
        for at in random.choice(places, 3):
            changed[at] = random.integers(256)
        path.write_bytes(changed)
        try:
            read_model(ModelSpec(path=path))
        except EdgepackError as error:
            assert str(path) in error.message


def _mutant(draw: random.Random, good: bytes) -> bytes:
    """A model of which up to three bits or offsets are others."""
    data = bytearray(good)
    ends = (0, 1, 4, 0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, len(data))
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(8, len(data) - 8)
        if draw.random() < 0.4:
            data[at] ^= 1 << draw.randrange(8)
        else:
            value = draw.choice([*ends, draw.randrange(len(data)), draw.randrange(2**32)])
            struct.pack_into("<I", data, at & ~3, value)
    return bytes(data)


def test_offsets_that_lead_elsewhere_are_refused_in_words(tmp_path: Path) -> None:
    """300 by a seed, in a process of its own: what ends that ends this test's, too."""
    good = [one.write(tmp_path / "good.tflite").read_bytes() for one in OPERATORS[:24]]
    draw, ends = random.Random(40), tmp_path / "ends"
    mutants = [_mutant(draw, draw.choice(good)) for _ in range(300)]
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_CPU, (120, 120))
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
        said = []
        for number, data in enumerate(mutants):
            path = tmp_path / f"{number}.tflite"
            path.write_bytes(data)
            try:
                read_tflite(path)
                said.append("read")
            except EdgepackError as error:
                said.append("refused" if len(error.message) < 5000 else f"LONG {number}")
            except BaseException as error:
                said.append(f"BUG {number} {error!r}"[:300])
            ends.write_text("\n".join(said))
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    said = ends.read_text().splitlines()
    assert [line for line in said if line not in ("read", "refused")] == []
    assert status == 0, f"mutant {len(said)} ended the process: {status}"
    assert said.count("refused") > 50
