"""All passes over kernels that a compile runs, one by one: `./dev fuzz passes`.

    ./dev fuzz passes [--seed S] [--count N] [--seconds T] [--target CPU]

Random models are compiled, and each of TVM's and our passes is told what `tests.tir_interpreter`
makes of each function before and after it, to the bit. What passes over whole graphs make of them,
and what LLVM does, is seen by running the result: `tests/functional/test_exact_arithmetic.py`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import tirx

from edgepack.compiler.backend import code
from tests import tir_interpreter
from tests.fuzz import drawing
from tests.fuzz.expressions import Expressions, hot
from tests.onnx_models import Builder

# Elements of a kernel's tensors, all together, that are not too many to interpret.
_MOST = 500


class Watch:
    """What passes made of functions: `ran` counts them, `compared` those that a pass changed,
    `unread` those of them that nothing is known of; `wrong` says where a result changed."""

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()
        self.compared = 0
        self.unread: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.random = np.random.default_rng(7)
        # Functions that were seen, with their inputs and results.
        self.known: list[tuple[tirx.PrimFunc, list[np.ndarray], list[np.ndarray]]] = []

    def instrument(self) -> Any:
        """For a PassContext."""
        watch = self
        pending: list[list[tuple[str, tirx.PrimFunc]]] = []

        @tvm.instrument.pass_instrument  # type: ignore[misc]
        class Instrument:
            def run_before_pass(self, module: tvm.IRModule, _info: Any) -> None:
                pending.append(_functions(module))

            def run_after_pass(self, module: tvm.IRModule, info: Any) -> None:
                before, after = pending.pop(), _functions(module)
                if info.name == "sequential" or len(before) != len(after):
                    return
                for (name, one), (_, other) in zip(before, after, strict=True):
                    if one.same_as(other):
                        watch.ran[str(info.name)] += 1
                    else:
                        watch.compare(str(info.name), name, one, other)

        return Instrument()

    def compare(self, step: str, name: str, one: tirx.PrimFunc, other: tirx.PrimFunc) -> None:
        """Whether a pass kept what a function computes."""
        try:
            given, due = self._result(one)
            got = tir_interpreter.run(other, given)
        except (AttributeError, KeyError, AssertionError, TypeError, ValueError) as error:
            self.unread[f"{type(error).__name__} {str(error)[:60]}"] += 1
            return
        self.ran[step] += 1
        self.compared += 1
        self.known = [(other, given, got)]
        if not all(map(same_bits, due, got)):
            self.wrong.append(f"{step} changed {name}:\n{one}\n{other}")

    def _result(self, function: tirx.PrimFunc) -> tuple[list[np.ndarray], list[np.ndarray]]:
        for known, given, due in self.known:
            if known.same_as(function):
                return given, due
        given = [self._tensor(param) for param in function.params]
        if sum(tensor.size for tensor in given) > _MOST:
            raise ValueError("too large")
        return given, tir_interpreter.run(function, given)

    def _tensor(self, param: tirx.Var) -> np.ndarray:
        shape, kind = [int(extent) for extent in param.shape], tir_interpreter.dtype_of(param)
        if kind.kind == "f" or kind.name == "bfloat16":
            count = int(np.prod(shape))
            with np.errstate(over="ignore"):
                return np.resize(hot((max(60, count),)), shape).astype(kind)
        return self.random.integers(0, 2, shape).astype(kind)


def _functions(module: tvm.IRModule) -> list[tuple[str, tirx.PrimFunc]]:
    found = [(v.name_hint, f) for v, f in module.functions.items() if isinstance(f, tirx.PrimFunc)]
    return sorted(found, key=lambda item: item[0].removeprefix("__tvm_ffi_"))


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether tensors are equal to the bit, but for which NaN is where."""
    if one.dtype.kind not in "fV" and one.dtype.name != "bfloat16":
        return bool(np.array_equal(one, other))
    bits = f"u{one.itemsize}"
    return bool(((one.view(bits) == other.view(bits)) | (np.isnan(one) & np.isnan(other))).all())


@contextmanager
def watching() -> Iterator[Watch]:
    """All passes that run in this process are watched; no machine code is kept from before."""
    watch = Watch()
    context, kept_code = tvm.transform.PassContext, code.kept_code

    def watched(*args: Any, **kwargs: Any) -> Any:
        return context(*args, **{**kwargs, "instruments": [watch.instrument()]})

    tvm.transform.PassContext = watched
    code.kept_code = lambda: None
    try:
        with context(opt_level=2, instruments=[watch.instrument()]):
            yield watch
    finally:
        tvm.transform.PassContext, code.kept_code = context, kept_code


# ---------------------------------------------------------------- models


def arithmetic(seed: int) -> onnx.ModelProto:
    """Random expressions of floats."""
    given = {"x": hot((5, 13)), "image": hot((1, 2, 5, 7))}
    net = Builder(seed)
    expressions = Expressions(net, given, seed)
    with np.errstate(all="ignore"):
        due = [expressions.draw(1 + number % 6) for number in range(6)]
    outputs = {f"{number} {name}": value.shape for number, (name, value) in enumerate(due)}
    for (name, _), output in zip(due, outputs, strict=True):
        net.op("Identity", name, outputs=[output])
    return net.model({name: value.shape for name, value in given.items()}, outputs, opset=19)


def positions(seed: int) -> onnx.ModelProto:
    """A tensor that is turned, cut, repeated and put together: of the places of its elements."""
    random = np.random.default_rng(seed)
    net = Builder(seed)
    shape = [int(extent) for extent in random.integers(1, 7, random.integers(1, 4))]
    name, first = "x", tuple(shape)
    for _ in range(random.integers(2, 5)):
        name, shape = _moved(net, random, name, shape)
    net.op("Relu", name, outputs=["y"])
    return net.model({"x": first}, {"y": tuple(shape)}, opset=17)


def _moved(
    net: Builder, random: np.random.Generator, name: str, shape: list[int]
) -> tuple[str, list[int]]:
    axis = int(random.integers(len(shape)))
    extent = shape[axis]
    match random.integers(5):
        case 0:
            times = [int(n) for n in random.integers(1, 4, len(shape))]
            made = net.op("Tile", name, net.const(np.array(times), "int64"))
            return made, [n * m for n, m in zip(shape, times, strict=True)]
        case 1:
            order = [int(n) for n in random.permutation(len(shape))]
            return net.op("Transpose", name, perm=order), [shape[n] for n in order]
        case 2:
            count = int(np.prod(shape))
            sizes = [n for n in range(1, count + 1) if count % n == 0]
            first = int(random.choice(sizes))
            made = net.op("Reshape", name, net.const(np.array([first, count // first]), "int64"))
            return made, [first, count // first]
        case 3:
            step = int(random.choice([-3, -2, -1, 1, 2, 3]))
            start = int(random.integers(extent))
            end = -(1 << 31) if step < 0 else extent
            values = (start, end, axis, step)
            consts = (net.const(np.array([value]), "int64") for value in values)
            left = start + 1 if step < 0 else extent - start
            made = net.op("Slice", name, *consts)
            return made, [*shape[:axis], -(-left // abs(step)), *shape[axis + 1 :]]
        case _:
            made = net.op("Concat", name, net.op("Neg", name), axis=axis)
            return made, [*shape[:axis], 2 * extent, *shape[axis + 1 :]]


def drawn(seed: int) -> onnx.ModelProto:
    """What `./dev fuzz graphs` draws."""
    return drawing.draw_graph(seed).model()


Draw = Callable[[int], onnx.ModelProto]
KINDS: Sequence[Draw] = (arithmetic, positions, drawn)


def compile_watched(model: onnx.ModelProto, watch: Watch, board: str, folder: Path) -> None:
    """Compile a model, all passes watched; what is refused has been seen as far as it went."""
    from edgepack.base.errors import EdgepackError
    from edgepack.boards import get_board
    from edgepack.compiler import compile_model
    from edgepack.model import ModelSpec
    from edgepack.native.toolchain import select

    path = folder / "model.onnx"
    onnx.save(model, path)
    profile = get_board(board)
    kind = "gnu" if profile.is_local else "zig"
    try:
        compile_model(
            ModelSpec(path=path), profile, select(profile, kind).toolchain, folder / "out"
        )
    except EdgepackError:
        watch.unread["the model is refused"] += 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw, compile, compare; exit code 1 if a pass changed a result."""
    parser = argparse.ArgumentParser(prog="./dev fuzz passes")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="(default: the time)")
    parser.add_argument("--count", type=int, default=1 << 40, help="of models")
    parser.add_argument("--seconds", type=float, default=600, help="(default: 600)")
    parser.add_argument("--board", default="local", help="whose code is made (default: local)")
    options = parser.parse_args(arguments)
    end, tried = time.monotonic() + options.seconds, 0
    with watching() as watch:
        for seed in range(options.seed, options.seed + options.count):
            if time.monotonic() > end:
                break
            tried += 1
            count = len(watch.wrong)
            with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
                model = KINDS[seed % len(KINDS)](seed)
                if model.graph.node and model.graph.output:
                    compile_watched(model, watch, options.board, Path(folder))
            for text in watch.wrong[count:]:
                print(f"seed {seed}: {text}", flush=True)
    for name, times in sorted(watch.ran.items()):
        print(f"{times:7} {name}")
    print(f"{watch.compared:7} compared")
    for name, times in sorted(watch.unread.items()):
        print(f"{times:7} not compared: {name}")
    print(f"{tried} models from seed {options.seed}, {len(watch.wrong)} results changed")
    return int(bool(watch.wrong))


if __name__ == "__main__":
    sys.exit(main())
