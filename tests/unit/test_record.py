"""What a graph carries of operators of ours is all there is to them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, get_type_hints

import numpy as np
import onnx
import pytest
import tvm_ffi
from tvm import relax

from edgepack.frontend.private import packed_name, private_call, read_private, stands_for
from edgepack.kernels import integer
from edgepack.kernels.layer import DynamicIntegers, DynamicRange, DynamicSums, Quantized
from edgepack.kernels.record import from_parts, to_parts

KINDS = (*integer.KINDS, DynamicIntegers, DynamicRange, DynamicSums, Quantized)


def records(kind: Any) -> Iterator[Any]:
    """One with values that are easily lost, and one with as little as there may be."""
    some: dict[str, Any] = {
        "bool": True,
        "int": -(2**31),
        "float": float(np.float32(0.1)),
        "str": "uint8",
        "int | None": 0,
        "tuple[int, int]": (0, 2**40),
        "tuple[int, ...]": (0, -1, 7),
        "tuple[float, ...]": (2.0, float(np.float32(1e-30))),
        "Steps": integer.Steps(scale=float(np.float32(1 / 3)), zero=-128),
        "Target": integer.Target(zero=0, low=-128, high=127),
        "Array": np.array([[-128, 127]], "int8"),
        "np.ndarray": np.array([[-128, 127]], "int8"),
        "np.ndarray | None": np.array([3, -3], "int32"),
    }
    few = some | {"bool": False, "int": 0, "float": 0.0, "int | None": None}
    few |= {"np.ndarray | None": None, "tuple[int, ...]": (), "tuple[float, ...]": (1.0,)}
    for given in (some, few):
        yield kind(**{field.name: given[str(field.type)] for field in dataclasses.fields(kind)})


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        equal = np.array_equal(one, other)
        return equal and (one.dtype, one.shape) == (other.dtype, other.shape)
    if dataclasses.is_dataclass(one):
        names = [field.name for field in dataclasses.fields(one)]
        return type(one) is type(other) and all(
            same(getattr(one, name), getattr(other, name)) for name in names
        )
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_record_is_the_same_after_its_way_through_relax(kind: Any) -> None:
    data = relax.Var("data", relax.TensorType([1, 2], "int8"))
    for record in records(kind):
        call = private_call(record, [data, data], relax.TensorType([1, 2], "int8"))
        found = read_private(call, *KINDS)
        assert found is not None
        assert same(record, found[0])
        assert found[1] == [data, data]
        assert stands_for(call, kind)
        others = [other for other in KINDS if other is not kind]
        assert read_private(call, *others) is None
        assert not stands_for(call, *others)
        assert packed_name(call) == f"edgepack.{kind.__name__}"


@pytest.mark.parametrize("kind", integer.KINDS, ids=lambda kind: kind.__name__)
def test_a_record_is_the_same_after_its_way_through_onnx(kind: Any) -> None:
    for record in records(kind):
        attributes, arrays = to_parts(record)
        node = onnx.helper.make_node("Any", ["x"], ["y"], **attributes)
        node = onnx.NodeProto.FromString(node.SerializeToString())
        read = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
        # Before its own come arrays that are the node's inputs.
        assert same(record, from_parts(kind, read, [np.zeros(1), *arrays]))


def test_every_kind_of_field_is_one_that_travels() -> None:
    """A new field of another type needs a way of its own, and `records` a value."""
    for kind in KINDS:
        assert get_type_hints(kind).keys() >= {field.name for field in dataclasses.fields(kind)}
        assert len(list(records(kind))) == 2


def test_calls_that_differ_in_a_field_are_two() -> None:
    """Common subexpressions are made once: what travels in attributes counts, too."""
    data = relax.Var("data", relax.TensorType([1, 2], "float32"))
    made = relax.TensorType([2], "float32")
    one, same_one, other = (
        private_call(DynamicRange(size=size), [data], made) for size in (2, 2, 3)
    )
    assert tvm_ffi.structural_equal(one, same_one)
    assert not tvm_ffi.structural_equal(one, other)
