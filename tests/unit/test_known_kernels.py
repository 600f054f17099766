"""What is kept of kernels: the key says everything, and holds for other weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from tvm import tirx

from edgepack.boards import get_board
from edgepack.compiler import plan_model
from edgepack.compiler.backend.kernel import Facts, KeptFacts, Kernel
from edgepack.compiler.place import emit
from edgepack.compiler.place.emit import _Kernels
from edgepack.compiler.place.placement import place_layers
from edgepack.compiler.settings import CompileSettings
from edgepack.frontend import importer
from edgepack.frontend.load import load_model
from edgepack.frontend.precision import FULL, Precision
from edgepack.kernels import key as known
from edgepack.kernels.choices import Way
from edgepack.kernels.key import key_of_site
from edgepack.kernels.layer import BlockQuantized, Convolution, Layer, Norm, RowProduct
from edgepack.kernels.rules import convolution, winograd
from edgepack.kernels.rules.rule import LayerKernel, LayerSite, Rule
from edgepack.kernels.rules.table import RULES
from edgepack.kernels.tiles import tir
from edgepack.kernels.tiles.cpu import (
    CORTEX_A9,
    CORTEX_A53,
    CORTEX_A53_32,
    CORTEX_A72,
    CORTEX_A76,
    ZEN4,
    CpuModel,
)
from edgepack.kernels.tiles.element import FLOAT16
from edgepack.kernels.tiles.expression import Operation, Scalar, Step
from edgepack.kernels.tiles.layout import Blocked
from edgepack.kernels.value import Value
from edgepack.model import ModelSpec
from tests.onnx_models import Builder
from tests.targets import save_cases


def network(path: Path, seed: int) -> Path:
    """A layer for every rule whose kernels are kept; all weights are by `seed`."""
    net = Builder(seed)
    value = net.op("Relu", net.conv("x", 3, 24, strides=[2, 2]))
    large = net.conv(net.op("Relu", net.conv(value, 24, 48, kernel=1)), 48, 48, group=48)
    active = net.op("Relu", net.op("Mul", large, net.weight(1, 48, 1, 1)))
    value = net.op("Relu", net.conv(value, 24, 48))
    value = net.conv(value, 48, 48, group=48)
    mean = net.op("GlobalAveragePool", value)
    gate = net.op("Sigmoid", net.conv(mean, 48, 48, kernel=1))
    gated = net.conv(net.op("Mul", value, gate), 48, 24, kernel=1)
    scale, shift, average = net.weight(24), net.weight(24), net.weight(24)
    variance = net.const(1 + net.random.random(24), "float32")
    normal = net.op("BatchNormalization", gated, scale, shift, average, variance)
    value = net.op("Add", net.conv(net.op("Relu", normal), 24, 24, group=3), gated)
    value = net.op("MaxPool", value, kernel_shape=[3, 3], strides=[2, 2])
    plain = net.op("GlobalAveragePool", value)
    value = net.op("AveragePool", value, kernel_shape=[2, 2])
    slope = net.const(net.random.random((24, 1, 1)), "float32")
    cases = {
        "y": net.op("PRelu", net.conv(value, 24, 24, kernel=1), slope),
        "mean": mean,
        "largest": net.op("GlobalMaxPool", value),
        "large": large,
        "active": net.conv(active, 48, 24, kernel=1),
        "plain": plain,
    }
    far = {"kernel_shape": [3], "dilations": [4], "pads": [8, 0]}
    cases["sequence"] = net.op("Conv", "s", net.weight(24, 64, 3), **far)
    cases["z"] = net.op("Tanh", net.op("Concat", value, value, axis=1))
    return save_cases(path, net, {"x": (1, 3, 64, 48), "s": (1, 64, 40)}, cases)


def sites(
    path: Path, cpu: CpuModel, precision: Precision = FULL
) -> Iterator[tuple[Rule, LayerSite]]:
    """All layers of a network that rules take, either way that the cores may have shared. To a CPU
    with so small a cache images are large."""
    cpu = replace(cpu, l2_bytes=1 << 16)
    module = importer.import_model(load_model(ModelSpec(path=path)))
    placement = place_layers(module["main"], cpu, CompileSettings(precision=precision))
    for placed in placement.layers:
        if placed.rule is not None and placed.rule.rows is None and placed.alias is None:
            for by_pixels in (False, True):
                yield placed.rule, placement.site(placed.layer, by_pixels=by_pixels)


@pytest.mark.parametrize(
    ("cpu", "precision"),
    [
        (replace(ZEN4, cores=2), FULL),
        (ZEN4, FULL),
        (replace(CORTEX_A72, cores=4), FULL),
        (CORTEX_A53, FULL),
        (replace(CORTEX_A53_32, cores=4), FULL),
        (CORTEX_A9, FULL),
        (replace(CORTEX_A76, cores=4), Precision(name="float16")),
    ],
    ids=lambda item: getattr(item, "name", None),
)
def test_code_is_the_same_for_other_weights(
    tmp_path: Path, cpu: CpuModel, precision: Precision
) -> None:
    versions: list[dict[str, str]] = []
    rules = set()
    for seed in range(2):
        found: dict[str, str] = {}
        for rule, site in sites(network(tmp_path / f"{seed}.onnx", seed), cpu, precision):
            if not rule.kept:
                assert key_of_site(rule, site) == ""
                continue
            function = rule.make(site).function
            assert not isinstance(function, tirx.PrimFunc)
            digest = Facts.of(function()).digest
            assert found.setdefault(key_of_site(rule, site), digest) == digest
            rules.add(rule.name)
        versions.append(found)
    assert versions[0] == versions[1]
    assert all(versions[0])
    absent = {"winograd"}
    if precision.is_half:
        # Weights that are stored as halves are widened one panel at a time, which none streams.
        absent |= {"streamed", "preactivated", "dilated"}
    of_images = {rule.name for rule in RULES if rule.kept and rule.rows is None}
    assert rules >= of_images - absent


def rows(path: Path, seed: int, shape: tuple[int, int, int], heads: int, *, masked: bool) -> Path:
    """A block of a transformer, whose kernels are of plain tensors; `shape` is [1, tokens, width],
    and all weights are by `seed`."""
    net, (_, count, width) = Builder(seed), shape

    def linear(value: str, ins: int, outs: int) -> str:
        return net.op("Add", net.op("MatMul", value, net.weight(ins, outs)), net.weight(outs))

    def normal(value: str) -> str:
        return net.op("LayerNormalization", value, net.weight(width), net.weight(width), axis=-1)

    parts = net.const([1, count, heads, width // heads], "int64")
    value = normal("x")
    q, k, v = (net.op("Reshape", linear(value, width, width), parts) for _ in range(3))
    k = net.op("Transpose", k, perm=[0, 2, 3, 1])
    q, v = (net.op("Transpose", part, perm=[0, 2, 1, 3]) for part in (q, v))
    scores = net.op("MatMul", q, k)
    if masked:
        scores = net.op("Add", scores, net.weight(1, 1, count, count))
    merged = net.op("MatMul", net.op("Softmax", scores, axis=-1), v)
    merged = net.op("Transpose", merged, perm=[0, 2, 1, 3])
    merged = net.op("Reshape", merged, net.const([1, count, width], "int64"))
    value = net.op("Add", linear(merged, width, width), "x")
    inner = net.op("Relu", linear(normal(value), width, 2 * width))
    value = net.op("Add", linear(inner, 2 * width, width), value)
    last = net.op("Tanh", linear(value, width, 24))
    return save_cases(path, net, {"x": shape}, {"y": last})


def test_plain_kernels_of_one_key_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For other weights, and of networks and boards that are alike in all but one thing."""
    digests: dict[str, str] = {}
    names: dict[str, set[str]] = {}

    class Seen(_Kernels):
        def add(self, made: LayerKernel, key: str) -> str:
            if key and not isinstance(made.function, tirx.PrimFunc):
                digest = Facts.of(made.function()).digest
                assert digests.setdefault(key, digest) == digest
                names.setdefault(made.name.split("_")[0], set()).add(key)
            return super().add(made, key)

    monkeypatch.setattr(emit, "_Kernels", Seen)
    networks = [
        ((1, 24, 48), 4, False),
        ((1, 24, 48), 2, False),
        ((1, 24, 48), 4, True),
        ((1, 25, 48), 4, False),
        ((1, 40, 48), 4, False),
    ]
    boards = ("local", "rasp3b")

    def planned(seed: int, shape: tuple[int, int, int], heads: int, *, masked: bool) -> None:
        path = rows(tmp_path / "model.onnx", seed, shape, heads, masked=masked)
        for board in boards:
            plan_model(load_model(ModelSpec(path=path)), get_board(board))

    for shape, heads, masked in networks:
        planned(0, shape, heads, masked=masked)
    known = len(digests)
    shape, heads, masked = networks[0]
    planned(1, shape, heads, masked=masked)
    assert len(digests) == known
    assert names.keys() >= {"product", "attention", "layer"}
    # One for each board, size and form at least.
    assert len(names["attention"]) >= len(boards) * len(networks)


def few_rows(path: Path, seed: int, *, bits: int = 4, block: int = 32, zeros: bool = True) -> Path:
    """A product of one row and numbers, and one of it and integers in blocks."""
    net = Builder(seed)
    given = [
        net.const(net.random.integers(0, 256, (48, 64 // block, block * bits // 8)), "uint8"),
        net.const(net.random.uniform(0.01, 0.1, (48, 64 // block)), "float32"),
    ]
    if zeros:
        of_blocks = (48, -(-64 // block * bits // 8))
        given.append(net.const(net.random.integers(0, 256, of_blocks), "uint8"))
    sizes = {"K": 64, "N": 48, "bits": bits, "block_size": block}
    row = net.op("Tanh", net.op("MatMul", "x", net.weight(64, 64)))
    net.op("MatMulNBits", row, *given, domain="com.microsoft", outputs=["y"], **sizes)
    proto = net.model({"x": (1, 1, 64)}, {"y": (1, 1, 48)})
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(proto, path)
    return path


@pytest.mark.parametrize("board", ["local", "rasp3b", "rasp4b-64"])
def test_kernels_of_few_rows_depend_on_no_value(
    board: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests: dict[str, str] = {}

    class Seen(_Kernels):
        def add(self, made: LayerKernel, key: str) -> str:
            if key and not isinstance(made.function, tirx.PrimFunc):
                digest = Facts.of(made.function()).digest
                assert digests.setdefault(key, digest) == digest
            return super().add(made, key)

    monkeypatch.setattr(emit, "_Kernels", Seen)
    forms: list[dict[str, Any]] = [{}, {"block": 16}, {"bits": 8}, {"zeros": False}]
    for count, form in enumerate(forms, start=2):
        for seed in (0, 1):
            path = few_rows(tmp_path / "model.onnx", seed, **form)
            plan_model(load_model(ModelSpec(path=path)), get_board(board))
            # That of numbers, and one of each form.
            assert len(digests) == count


# What stands in for a field that has nothing.
LIKE = {
    "mean": Blocked(element=FLOAT16, batch=1, channels=8, height=1, width=1, block=8),
    "choice": Way(rule="conv"),
    "reads": FLOAT16,
    "most_results": 2,
    "expression": (Operation(name="maximum", arguments=(Step(index=0), Scalar(value=0.0))),),
}


def others(thing: object, name: str = "") -> Iterator[tuple[str, object]]:
    """`thing` with one thing about it changed, for each, and what that is."""
    if thing is None:
        yield name, LIKE.get(name, 1)
    elif isinstance(thing, tuple) and not thing:
        yield name, LIKE.get(name, (np.ones(3, "float32"),))
    elif isinstance(thing, bool):
        yield name, not thing
    elif isinstance(thing, int | float):
        yield name, thing + 1
    elif isinstance(thing, str):
        yield name, f"{thing}x"
    elif isinstance(thing, frozenset):
        yield name, thing | {"more"}
    elif isinstance(thing, np.ndarray):
        yield f"{name} shape", np.zeros((*thing.shape, 1), thing.dtype)
        yield f"{name} type", thing.astype("float16")
    elif isinstance(thing, Value):
        yield f"{name} shape", Value(name="v", shape=(*thing.shape[:-1], 99))
        yield f"{name} type", Value(name="v", shape=thing.shape, dtype="float16")
    elif isinstance(thing, Mapping):
        yield f"{name} more", {**thing, "more": 1}
        if thing:
            yield f"{name} less", dict(list(thing.items())[1:])
        for key, value in thing.items():
            yield from ((what, {**thing, key: other}) for what, other in others(value, name))
    elif isinstance(thing, tuple):
        yield f"{name} less", thing[:-1]
        yield f"{name} more", (*thing, thing[0])
        for index, item in enumerate(thing):
            for what, other in others(item, f"{name}[{index}]"):
                yield what, (*thing[:index], other, *thing[index + 1 :])
    elif is_dataclass(thing) and not isinstance(thing, type):
        for field in fields(thing):
            if field.name in known._named(known._UNSEEN, thing):
                continue
            for what, other in others(getattr(thing, field.name), field.name):
                yield f"{name}.{what}", replace(thing, **{field.name: other})
    else:
        raise AssertionError(f"{name}: {type(thing)}")


def a_site(tmp_path: Path) -> LayerSite:
    """That of a convolution with an operand."""
    found = sites(network(tmp_path / "model.onnx", 0), ZEN4)
    return next(site for rule, site in found if rule is convolution.RULE and site.layer.operands)


def test_the_key_is_of_all_that_a_kernel_is_made_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = a_site(tmp_path)
    operator = site.layer.operator
    assert isinstance(operator, Convolution)
    rule = convolution.RULE
    keys = {"as it is": key_of_site(rule, site), "rule": key_of_site(winograd.RULE, site)}
    for what, other in others(site):
        if "quantized" not in what:
            keys[what] = key_of_site(rule, other)  # type: ignore[arg-type]
    # Beside `.layer.inputs more`, which is one tensor twice.
    alike = Value(name="v", shape=site.layer.inputs[0].shape)
    layer = replace(site.layer, inputs=(*site.layer.inputs, alike))
    keys["two tensors"] = key_of_site(rule, replace(site, layer=layer))
    with monkeypatch.context() as patch:
        patch.setattr(known, "_makers", lambda: "another version")
        keys["compiler"] = key_of_site(rule, site)
    # Fields that a site of any layer has; some of each part of it.
    assert keys.keys() >= {
        ".layer.operator.weight shape",
        ".layer.operator.stride[1]",
        ".layer.expression more",
        ".limits.most_results",
        ".inputs[0].halo.top",
        ".output.element.name",
        ".cpu.l2_bytes",
        ".cpu.features",
        ".by_pixels",
        ".choice",
    }
    assert len(set(keys.values())) == len(keys), sorted(keys, key=keys.__getitem__)


def test_values_of_weights_and_origins_are_not_in_the_key(tmp_path: Path) -> None:
    site = a_site(tmp_path)
    layer, operator = site.layer, site.layer.operator
    assert isinstance(operator, Convolution)
    other = replace(
        layer,
        operator=replace(operator, weight=operator.weight + 1, bias=np.zeros_like(operator.bias)),
        computes=(),
    )
    rule = convolution.RULE
    assert key_of_site(rule, replace(site, layer=other)) == key_of_site(rule, site) != ""


def test_what_no_key_can_say_has_none(tmp_path: Path) -> None:
    site = a_site(tmp_path)
    assert key_of_site(winograd.rule([4], always=True), site) == ""
    assert key_of_site(replace(convolution.RULE, kept=False), site) == ""


def test_every_weight_is_named_by_its_field() -> None:
    for kind, names in known._WEIGHTS.items():
        assert set(names) <= {field.name for field in fields(kind)}
    assert known._WEIGHTS.keys() == {BlockQuantized, Convolution, Layer, Norm, RowProduct}


# ------------------------------------------------ on the disk


def doubled(size: int = 8) -> tirx.PrimFunc:
    """y = x + x, in place."""
    x, y = (tir.buffer(name, (size,), "float32") for name in "xy")
    body = tir.loop_of("i", size, lambda i: tir.store(y, tir.load(x, [i]) + tir.load(x, [i]), [i]))
    return tir.function([x, y], body, in_place=[(x, y)])


def never() -> tirx.PrimFunc:
    raise AssertionError("made again")


def test_facts_are_those_of_the_function(tmp_path: Path) -> None:
    facts = Kernel.of(doubled()).facts
    assert facts.arguments == (("float32", (8,)), ("float32", (8,)))
    assert facts.in_place == ((0, 1),)
    assert facts.packed == ""
    assert facts.digest != Facts.of(doubled(9)).digest
    assert Facts.read(facts.text()) == facts
    assert KeptFacts(tmp_path).kernel("key", doubled).facts == facts
    assert KeptFacts(tmp_path).kernel("key", never).facts == facts


def test_equal_keys_are_one_kernel() -> None:
    kept = KeptFacts(None)
    assert kept.kernel("key", doubled) is kept.kernel("key", never)
    assert kept.kernel("key", never) is not kept.kernel("other", doubled)


def test_a_bit_that_flipped_is_seen(tmp_path: Path) -> None:
    facts = KeptFacts(tmp_path).kernel("key", doubled).facts
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for broken in [
        b"",
        whole[:20],
        whole + b"\n",
        *(bytes([*whole[:at], whole[at] ^ 1, *whole[at + 1 :]]) for at in range(len(whole))),
    ]:
        path.write_bytes(broken)
        assert KeptFacts(tmp_path).kernel("key", doubled).facts == facts
        assert path.read_bytes() == whole


def test_who_cannot_write_there_makes_it_each_time(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for _ in range(2):
        assert KeptFacts(tmp_path / "file").kernel("key", doubled).facts.digest
