"""A kernel as plans know it: its function is made when somebody needs it, and not where all that a
plan needs of it is kept from another time."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import tvm
import tvm_ffi
from tvm import tirx

from edgepack.base.paths import write_atomic
from edgepack.compiler.backend.code import digest_of
from edgepack.compiler.backend.constants import join_bounds
from edgepack.compiler.backend.inside import Numbers
from edgepack.kernels.tiles import tir


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a plan needs of a kernel's function.

    `digest` is the same for equal functions only. `arguments` are the element type and the shape
    of each; `in_place` are numbers of an argument and a result that may share memory. `packed` is
    what it calls by its name in TVM's registry, "" if nothing.
    """

    digest: str
    arguments: tuple[tuple[str, tuple[int, ...]], ...]
    in_place: tuple[tuple[int, int], ...]
    packed: str

    @classmethod
    def of(cls, function: tirx.PrimFunc) -> Facts:
        """Those of a function."""
        packed: list[str] = []

        def look(call: tvm.ir.Call) -> None:
            if isinstance(call.op, tvm.ir.Op) and call.op.name == "tirx.tvm_call_packed":
                packed.append(str(call.args[0].value))

        tvm_ffi.structural_walk(function.body, (tvm.ir.Call, look))
        return cls(
            digest=digest_of(function),
            arguments=tuple(
                (str(buffer.dtype), tuple(int(size) for size in buffer.shape))
                for buffer in function.params
            ),
            in_place=tuple(tir.in_place(function)),
            packed=packed[0] if packed else "",
        )

    @classmethod
    def read(cls, text: str) -> Facts:
        """What `text` wrote; ValueError, KeyError or TypeError if that is something else."""
        found = json.loads(text)
        made = cls(
            digest=found["digest"],
            arguments=tuple((dtype, tuple(shape)) for dtype, shape in found["arguments"]),
            in_place=tuple((read, written) for read, written in found["in_place"]),
            packed=found["packed"],
        )
        if made.text() != text:
            raise ValueError(text)
        return made

    def text(self) -> str:
        """One line."""
        return json.dumps(asdict(self))


class Kernel:
    """A function and its facts, each made when it is asked for the first time."""

    def __init__(self, make: Callable[[], tirx.PrimFunc], facts: Facts | None = None) -> None:
        self._make, self._known = make, facts
        self._numbers: dict[int, tuple[int, int] | None] = {}

    @classmethod
    def of(cls, function: tirx.PrimFunc) -> Kernel:
        """One that is made already."""
        return cls(lambda: function)

    @cached_property
    def function(self) -> tirx.PrimFunc:
        """The function itself."""
        return self._make()

    def called(self, numbers: Numbers) -> None:
        """Take note of a call, in which some arguments are constants: their least and largest
        elements, by number."""
        given = {index: numbers.get(index) for index in range(len(self.facts.arguments))}
        before = self._numbers or given
        self._numbers = {index: join_bounds(before[index], given[index]) for index in given}

    @property
    def numbers(self) -> dict[int, tuple[int, int]]:
        """The bounds of arguments that are constants in every call."""
        return {index: found for index, found in self._numbers.items() if found is not None}

    @cached_property
    def facts(self) -> Facts:
        """Those of the function."""
        return self._known or Facts.of(self.function)


class KeptFacts:
    """Facts of kernels in `folder`, by what their functions are made from.

    A file of the cache is a line after its hash; what is cut off or changed is made again.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._here: dict[str, Kernel] = {}

    def kernel(self, key: str, make: Callable[[], tirx.PrimFunc]) -> Kernel:
        """The kernel that `make` makes: the same one for the same key."""
        if key not in self._here:
            facts = self._read(key)
            self._here[key] = kernel = Kernel(make, facts)
            if facts is None:
                self._write(key, kernel.facts)
        return self._here[key]

    def _path(self, key: str) -> Path | None:
        return self._folder / f"{key}.json" if self._folder else None

    def _read(self, key: str) -> Facts | None:
        path = self._path(key)
        if path is None:
            return None
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            check, _, text = path.read_text(encoding="utf-8").partition(" ")
            if check == _check(text):
                path.touch()  # it is used now (see `edgepack.base.cache`)
                return Facts.read(text)
        return None

    def _write(self, key: str, facts: Facts) -> None:
        path = self._path(key)
        if path is not None:
            with contextlib.suppress(OSError):  # a full disk: the next one makes it again
                write_atomic(path, f"{_check(facts.text())} {facts.text()}".encode())


def _check(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
