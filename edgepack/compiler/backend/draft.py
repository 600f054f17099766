"""A plan in the making: tensors without a place, and the calls that read and write them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from tvm import relax, te, topi

from edgepack.compiler.backend.constants import bounds_of
from edgepack.compiler.backend.kernel import Kernel
from edgepack.compiler.backend.plan import Call, PlanError
from edgepack.compiler.backend.report import LayerReport
from edgepack.kernels.tiles.layout import ALIGNMENT
from edgepack.model import DTYPES


@dataclass
class PlanValue:
    """A tensor before it has a place.

    It shows the bytes of the value `root` (maybe itself) from byte `start` on. Of a root, `first`
    and `last` are the calls between which its bytes hold something; an input's do from -1 on, and
    an output's up to the end. Of what a call writes, `first` is that call wherever its bytes are;
    `used` is the last call that has this value, whatever else shows its bytes. `fixed` are inputs
    and outputs. `joined` are joints, which no call writes as one.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    root: int
    start: int = 0
    data: np.ndarray | None = None
    fixed: bool = False
    joined: bool = False
    first: int = -1
    last: int = -1
    used: int = -1

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * (
            1 if self.dtype == "bool" else np.dtype(self.dtype).itemsize
        )


class PlanDraft:
    """The values and the calls so far of the plan of the model at `path`; of each call there is a
    report, or None."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values: list[PlanValue] = []
        self.calls: list[Call] = []
        self.reports: list[LayerReport | None] = []
        self.kernels: dict[str, Kernel] = {}
        self._constants: dict[tuple[str, tuple[int, ...], bytes], list[int]] = {}

    def new_value(self, like: relax.TensorType, name: str | None = None) -> int:
        return self.new_tensor(str(like.dtype), tuple(int(dim) for dim in like.shape), name)

    def new_tensor(self, dtype: str, shape: tuple[int, ...], name: str | None = None) -> int:
        if dtype not in DTYPES:
            raise PlanError(f"{self.path}: a tensor inside the model has type {dtype}")
        index = len(self.values)
        self.values.append(PlanValue(name or f"t{index}", dtype, shape, root=index))
        return index

    def view(self, like: relax.TensorType, source: int, start: int = 0) -> int:
        index = self.new_value(like)
        shown = self.values[source]
        assert start % ALIGNMENT == 0
        self.values[index].root = shown.root
        self.values[index].start = shown.start + start
        self.values[index].data = shown.data
        return index

    def joint(self, like: relax.TensorType, parts: Sequence[int]) -> int:
        index = self.new_value(like)
        made = self.values[index]
        made.joined = True
        made.first = min(self.values[part].first for part in parts)
        start = 0
        for part in parts:
            value = self.values[part]
            assert value.root == part, f"{value.name} cannot be put into {made.name}"
            assert value.data is None
            assert not value.fixed
            assert start % ALIGNMENT == 0
            self.move(part, index, start)
            start += value.nbytes
        assert start == made.nbytes
        return index

    def move(self, root: int, into: int, start: int = 0) -> None:
        """Let the bytes of `root` be those of `into` from byte `start` on."""
        target, last = self.values[into], self.values[root].last
        target.last = max(target.last, last)
        for value in self.values:
            if value.root == root:
                value.root = into
                value.start += start

    def shaped(self, index: int, shape: tuple[int, ...]) -> int:
        """The bytes of a value in another shape."""
        value = self.values[index]
        self.values.append(
            PlanValue(
                f"t{len(self.values)}", value.dtype, shape, value.root, value.start, value.data
            )
        )
        return len(self.values) - 1

    def stored(self, new: int, data: np.ndarray) -> int:
        """The last value, as a parameter; an equal one that is there already instead."""
        values = bytes_of(data)
        some = values[:: max(1, values.size // _SAMPLE)].tobytes()
        alike = self._constants.setdefault((self.values[new].dtype, data.shape, some), [])
        for index in alike:
            known = self.values[index].data
            if known is not None and np.array_equal(bytes_of(known), values):
                self.values.pop()
                return index
        self.values[new].data = data
        alike.append(new)
        return new

    def copy(self, source: int, target: int | None = None) -> int:
        """A copy of a value, in a place of its own or in that of `target`."""
        value = self.values[source]
        outputs: list[int] = []
        if target is None:
            target = len(self.values)
            self.values.append(PlanValue(f"t{target}", value.dtype, value.shape, root=target))
            outputs = [target]
        if not value.nbytes:
            return target
        placeholder = te.placeholder(value.shape, value.dtype, name="data")
        function = te.create_prim_func([placeholder, topi.identity(placeholder)])
        name = "copy_" + "_".join([value.dtype, *map(str, value.shape)])
        inputs = [source] if outputs else [source, target]
        self.add_call(name, Kernel.of(function), inputs, outputs)
        return target

    def root_of(self, index: int) -> int:
        return self.values[index].root

    def add_call(
        self,
        name: str,
        kernel: Kernel,
        inputs: list[int],
        outputs: list[int],
        scratch: Sequence[int] = (),
        report: LayerReport | None = None,
    ) -> None:
        now = len(self.calls)
        if kernel.facts.packed:
            # It can call what is linked into it, but nothing by its name in TVM's registry.
            raise PlanError(
                f"{self.path}: the model needs '{kernel.facts.packed}' at run time, "
                "which the runtime lacks"
            )
        name = self._named(name, kernel)
        self.kernels[name].called(self._numbers_of(inputs))
        self.reports.append(report and replace(report, kernel=name))
        for index in (*outputs, *scratch):
            self.values[index].first = now
        for index in (*inputs, *outputs, *scratch):
            self.keep(index, now)
        args = (*inputs, *outputs, *scratch)
        self.calls.append(Call(kernel=name, args=args, inputs=len(inputs)))

    def keep(self, index: int, call: int) -> None:
        """Let the bytes of a value be what they are up to a call."""
        value = self.values[index]
        value.used = max(value.used, call)
        root = self.values[value.root]
        root.last = max(root.last, call)

    def _numbers_of(self, inputs: Sequence[int]) -> dict[int, tuple[int, int]]:
        """The bounds of those inputs of a call that are constants, by number."""
        data = ((number, self.values[index].data) for number, index in enumerate(inputs))
        bounds = ((number, bounds_of(item)) for number, item in data if item is not None)
        return {number: found for number, found in bounds if found is not None}

    def _named(self, wanted: str, kernel: Kernel) -> str:
        """What a kernel is called: bodies of loops may have others of the same name."""
        name, count = wanted, 1
        while name in self.kernels:
            known = self.kernels[name]
            if known is kernel or known.facts.digest == kernel.facts.digest:
                return name
            count += 1
            name = f"{wanted}_b{count}"
        self.kernels[name] = kernel
        return name


# As many of a constant's bytes say whether it may be equal to another one.
_SAMPLE = 1024


def bytes_of(data: np.ndarray) -> np.ndarray:
    """The bytes of an array that lies in order."""
    return data.reshape(-1).view("uint8")
