"""onnx's own tests, compiled for this machine: `./dev conformance`, which writes docs/operators.md.

All node tests, and of the tests of models those whose data are in onnx's wheel; among them the
light ones, real networks whose weights are all the same. Inputs that hold
shapes, sizes or axes are constants here, as they are in exported models; so are those without
elements, which have one value only.

A test passes, is refused by a typed error, is wrong (other values, types or shapes), or ends
without a type: another exception, a crash, the time limit.

With `--target opencl` a plan for a GPU is run by the app, on this machine's driver of OpenCL; its
verdicts are to be those of the CPU.

With `--json`, verdicts are written as they come, and those that are there already are not found
again: a run that was stopped goes on. It is for one state of the compiler.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import pkgutil
import random
import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from edgepack.model import DTYPES, operator_name, walk_nodes

DOCUMENT = Path(__file__).parents[1] / "docs/operators.md"
WORKERS = 2
LIMIT_S = 1800.0
# For the light models, whose weights the file computes: vgg19's are 548 MB.
LIGHT_MEMORY_MB = 8192

# Inputs that hold shapes, sizes, axes or bounds, by position.
PARAMETERS: Mapping[str, Sequence[int]] = {
    "AffineGrid": (1,),
    "BlackmanWindow": (0,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "Compress": (),
    "ConstantOfShape": (0,),
    "CumProd": (1,),
    "CumSum": (1,),
    "DFT": (1, 2),
    "Dropout": (1, 2),
    "Expand": (1,),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "If": (0,),
    "Loop": (0, 1),
    "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "NonMaxSuppression": (2, 3, 4),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "STFT": (1, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "SplitToSequence": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Trilu": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
    **{f"Reduce{kind}": (1,) for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean")},
    **{f"Reduce{kind}": (1,) for kind in ("Min", "Prod", "Sum", "SumSquare")},
}

# Operators whose results are random, or that are for training.
_RANDOM = {"Bernoulli", "Multinomial", "RandomNormal", "RandomUniform"}
_RANDOM |= {"RandomNormalLike", "RandomUniformLike"}
_TEXT = {"StringNormalizer", "StringConcat", "StringSplit", "RegexFullMatch", "LabelEncoder"}

# The operators of convolutional networks, counted apart.
CNN = frozenset(
    """
    Add AveragePool BatchNormalization Cast Clip Concat Conv ConvTranspose DepthToSpace Div Dropout
    Elu Expand Flatten Gemm GlobalAveragePool GlobalMaxPool HardSigmoid HardSwish Identity
    InstanceNormalization LRN LeakyRelu MatMul Max MaxPool Min Mul PRelu Pad Pow ReduceMax
    ReduceMean ReduceMin ReduceSum Relu Reshape Resize Selu Shape Sigmoid Slice Softmax Softplus
    SpaceToDepth Split Sqrt Squeeze Sub Sum Tanh Transpose Unsqueeze Upsample
    """.split()  # noqa: SIM905, of such a length
)

VERDICTS = ("pass", "refused", "wrong", "untyped")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model with sets of inputs and of the outputs that are due."""

    name: str
    operator: str
    model: bytes
    data: Sequence[tuple[Sequence[np.ndarray], Sequence[np.ndarray]]] = field(repr=False)
    rtol: float
    atol: float
    memory_mb: int = 0  # what compiling may take, in a process of its own; 0: it is compiled here


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How a test ended: one of `VERDICTS`, and why if it did not pass."""

    name: str
    operator: str
    verdict: str
    why: str = ""


# ---------------------------------------------------------------- the tests


def cases(operators: Sequence[str] = ()) -> tuple[list[Case], dict[str, str]]:
    """Those that make sense at inference, and why each of the others does not, by name; or only
    the node tests of some operators, which takes less time to make."""
    made: list[Case] = []
    excluded: dict[str, str] = {}
    parameters: dict[str, set[str]] = {}
    for test in _tests_of(operators) if operators else _tests():
        model = test.model or onnx.load(Path(test.model_dir) / "model.onnx")
        reason = _excluded(test.name, model)
        data = list(test.data_sets or _stored(model, Path(test.model_dir)))
        if not reason and not data:
            reason = "it has no data"
        if reason:
            excluded[test.name] = reason
            continue
        # A test of a definition follows that of its operator, and has the same inputs.
        parameters[test.name] = parameters.get(
            test.name.removesuffix("_expanded"), set()
        ) | _parameters(model)
        made.append(_fixed(test, model, data, parameters[test.name]))
    return made, excluded


def _tests() -> Iterator[Any]:
    from onnx.backend.test.case.node import collect_testcases
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield from collect_testcases(None)
    for kind in ("simple", "pytorch-operator", "pytorch-converted"):
        yield from load_model_tests(kind=kind)
    yield from _light_tests()


def _tests_of(operators: Sequence[str]) -> Iterator[Any]:
    """Those of nodes that have a file of the operator's name: importing it makes them."""
    from onnx.backend.test.case import node

    files = {item.name.replace("_", ""): item.name for item in pkgutil.iter_modules(node.__path__)}
    for operator in operators:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(f"{node.__name__}.{files[operator.lower()]}")
        for test in node._NodeTestCases:
            if [one.op_type for one in test.model.graph.node] == [operator]:
                yield test


def _light_tests() -> Iterator[Any]:
    """Those of onnx's light models: their inputs are made as onnx's runner makes them."""
    from onnx.backend.test.case.model import collect_testcases

    data = Path(onnx.__file__).parents[1]
    for test in collect_testcases():
        if not _is_light(test):
            continue
        path = data / test.url
        model = onnx.load(path)
        weights = {tensor.name for tensor in model.graph.initializer}
        given = []
        for value in model.graph.input:
            shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            size = np.prod(shape)
            if value.name not in weights:
                given.append((np.arange(size).reshape(shape) / size).astype("float32"))
        due = [
            _tensor(path.with_name(f"{path.stem}_output_{i}.pb"))
            for i in range(len(model.graph.output))
        ]
        yield replace(test, model=model, data_sets=[(given, due)])


def _tensor(path: Path) -> np.ndarray:
    """A tensor that is a file."""
    tensor = onnx.TensorProto()
    tensor.ParseFromString(path.read_bytes())
    return np.asarray(numpy_helper.to_array(tensor))


def _excluded(name: str, model: onnx.ModelProto) -> str:
    """Why a test makes no sense on a board; empty if it does."""
    nodes = list(walk_nodes(model.graph))
    operators = {node.op_type for node in nodes}
    drops = "training_dropout" in name and "zero_ratio" not in name
    for found, reason in (
        (any("training" in node.domain for node in nodes), "an operator of training"),
        (drops or operators & _RANDOM, "its result is random"),
        (operators & _TEXT, "strings"),
        ("ImageDecoder" in operators, "it reads files: the application does"),
    ):
        if found:
            return reason
    for value in (*model.graph.input, *model.graph.output):
        if not value.type.HasField("tensor_type"):
            return "sequences or optional values at the border of the model"
        kind = TensorProto.DataType.Name(value.type.tensor_type.elem_type).lower()
        if {"float": "float32", "double": "float64"}.get(kind, kind) not in DTYPES:
            return f"{kind} at the border of the model"
    return ""


def _stored(
    model: onnx.ModelProto, folder: Path
) -> Iterator[tuple[list[np.ndarray], list[np.ndarray]]]:
    """The data sets in a test's folder."""

    plain = all(
        value.type.HasField("tensor_type") for value in (*model.graph.input, *model.graph.output)
    )
    for data in sorted(folder.glob("test_data_set_*")) if plain else ():
        given, due = (
            [_tensor(data / f"{kind}_{i}.pb") for i in range(len(list(data.glob(f"{kind}_*.pb"))))]
            for kind in ("input", "output")
        )
        yield given, due


def _parameters(model: onnx.ModelProto) -> set[str]:
    """Names of the inputs that hold shapes and the like."""
    return {
        node.input[position]
        for node in walk_nodes(model.graph)
        for position in PARAMETERS.get(node.op_type, ())
        if position < len(node.input)
    }


def _fixed(
    test: Any,
    model: onnx.ModelProto,
    data: Sequence[tuple[Sequence[np.ndarray], Sequence[np.ndarray]]],
    parameters: Collection[str],
) -> Case:
    """A test with the shapes of its data, and its parameters as constants."""
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value.name for value in model.graph.input if value.name not in weights]
    data = [([_array(v) for v in given], [_array(v) for v in due]) for given, due in data]
    given, _ = data[0]
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    constant = [
        i
        for i, (name, value) in enumerate(zip(inputs, given, strict=False))
        if name in parameters or not value.size
    ]
    del fixed.graph.input[:]
    for i, (name, value) in enumerate(zip(inputs, given, strict=False)):
        if i in constant:
            fixed.graph.initializer.append(numpy_helper.from_array(value, name))
        else:
            kind = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
            fixed.graph.input.append(onnx.helper.make_tensor_value_info(name, kind, value.shape))
    sets = [data[0]] if constant else data
    return Case(
        name=test.name,
        operator=_operator(model),
        model=fixed.SerializeToString(),
        data=[([v for i, v in enumerate(g) if i not in constant], due) for g, due in sets],
        rtol=test.rtol,
        atol=test.atol,
        memory_mb=LIGHT_MEMORY_MB if _is_light(test) else 0,
    )


def _is_light(test: Any) -> bool:
    return (getattr(test, "url", None) or "").startswith("onnx/backend/test/data/light/")


def _array(value: Any) -> np.ndarray:
    """Some tests hold numbers, or tensors as ONNX writes them."""
    made = numpy_helper.to_array(value) if isinstance(value, TensorProto) else value
    return np.asarray(made)


def _operator(model: onnx.ModelProto) -> str:
    """What a test is about: its only operator, or "several"."""
    names = {operator_name(node) for node in model.graph.node if node.op_type != "Constant"}
    return names.pop() if len(names) == 1 else "several"


# ---------------------------------------------------------------- one test


# A board and the CPU that qemu plays for it, by what `--target` says; `OPENCL` is this machine's
# driver of that, such as pocl.
OPENCL = "opencl"
TARGETS = {"armv7": ("rasp3b", "max"), "aarch64": ("rk3399", "cortex-a72"), OPENCL: ("local", "")}


def judge(case: Case, work: Path, target: str = "") -> Verdict:
    """Compile a test for this machine or a target under qemu, run it, compare."""
    from edgepack.base.apart import Limits
    from edgepack.base.errors import EdgepackError
    from edgepack.boards import get_board
    from edgepack.compiler import compile_model, compile_with
    from edgepack.compiler.limited import within
    from edgepack.flow.reference import Reference
    from edgepack.frontend.errors import CompilerError
    from edgepack.gpus import find_local
    from edgepack.model import ModelSpec
    from edgepack.model.meanings import departures
    from edgepack.native.toolchain import select
    from tests.plan_by_app import run_by_app
    from tests.plan_on_arm import run_plan_on_arm
    from tests.plan_runner import run_plan

    def ends(verdict: str, why: str = "") -> Verdict:
        return Verdict(name=case.name, operator=case.operator, verdict=verdict, why=why)

    path = work / "model.onnx"
    path.write_bytes(case.model)
    board_name, cpu = TARGETS.get(target, ("local", ""))
    board = get_board(board_name)
    toolchain = select(board, None if target else "gnu").toolchain
    try:
        what = (ModelSpec(path=path), board, toolchain, work / "out")
        gpu = find_local() if target == OPENCL else None
        assert target != OPENCL or (gpu and gpu.api == OPENCL), "there is no OpenCL device here"
        if case.memory_mb:
            limits = Limits(memory_mb=case.memory_mb, cpu_s=int(LIMIT_S))
            made = within(path, limits, compile_with, *what, gpu=gpu)
        else:
            made = compile_model(*what, gpu=gpu)
    except CompilerError as error:  # the compiler's own failure
        return ends("untyped", str(error))
    except EdgepackError as error:
        return ends("refused", f"{type(error).__name__}: {error}".replace(str(path), "model"))
    except Exception as error:
        return ends("untyped", f"{type(error).__name__}: {error}")
    proto = onnx.load_from_string(case.model)
    departs = departures(proto)
    try:
        for given, said in case.data:
            inputs = [np.asarray(value) for value in given]
            due = Reference(proto).run(inputs) if departs else said
            if target == OPENCL:
                got = run_by_app(made.folder, inputs)
            elif target:
                qemu = [f"qemu-{_QEMU[target]}-static", "-cpu", cpu, "-L", f"/usr/{board.triple}"]
                program = _program(board.triple)
                got = run_plan_on_arm(
                    made.folder, inputs, compiler="", qemu=qemu, work=work, program=program
                )
            else:
                got = run_plan(made.folder, inputs)
            for number, (mine, theirs) in enumerate(zip(got, due, strict=True)):
                wrong = difference(mine, np.asarray(theirs), rtol=case.rtol, atol=case.atol)
                if wrong:
                    return ends("wrong", f"output {number}: {wrong}")
    except Exception as error:
        return ends("untyped", f"run: {type(error).__name__}: {error}")
    return ends("pass")


_QEMU = {"armv7": "arm", "aarch64": "aarch64"}


@cache
def _program(triple: str) -> Path:
    """The program that runs plans, built once in each process."""
    from tests.plan_on_arm import build_program

    return build_program(f"{triple}-gcc", Path(tempfile.mkdtemp(prefix="edgepack-")))


def difference(mine: np.ndarray, due: np.ndarray, *, rtol: float, atol: float) -> str:
    """How an output differs, empty if it does not.

    Sums end in other roundings: the absolute tolerance is at least 2e-6 of the largest value, and
    of float16 one unit in the last place of it.
    """
    if (mine.shape, mine.dtype) != (due.shape, due.dtype):
        return f"{mine.dtype}{mine.shape} for {due.dtype}{due.shape}"
    if due.dtype.kind != "f":
        count = int(np.count_nonzero(mine != due))
        return f"{count} of {due.size} differ" if count else ""
    wide, goal = mine.astype("float64"), due.astype("float64")
    finite = np.abs(goal[np.isfinite(goal)])
    largest = float(finite.max()) if finite.size else 0.0
    atol = max(atol, largest * (2.0**-10 if due.dtype == np.float16 else 2e-6))
    close = np.isclose(wide, goal, rtol=rtol, atol=atol, equal_nan=True)
    if close.all():
        return ""
    with np.errstate(all="ignore"):
        worst = np.nanmax(np.abs(wide - goal))
    return f"{np.count_nonzero(~close)} of {due.size} differ, by up to {worst:.2g}"


# ---------------------------------------------------------------- many tests


def _work(pipe: Connection, target: str) -> None:
    """A worker: judges what it is sent, until it is sent None."""
    while (case := pipe.recv()) is not None:
        with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
            pipe.send(judge(case, Path(folder), target))


class _Worker:
    def __init__(self, target: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, target), daemon=True)
        self.process.start()
        theirs.close()
        self.case: Case | None = None
        self.until = 0.0

    def give(self, case: Case) -> None:
        self.case, self.until = case, time.monotonic() + LIMIT_S
        self.pipe.send(case)

    def verdict(self) -> Verdict | None:
        """What became of the case; None if it is not known yet. A broken worker has no process."""
        assert self.case is not None
        name, operator = self.case.name, self.case.operator
        try:
            if self.pipe.poll():
                made = self.pipe.recv()
                assert isinstance(made, Verdict)
                return made
            if time.monotonic() < self.until and self.process.is_alive():
                return None
            why = "it did not end" if self.process.is_alive() else "the process died"
        except EOFError:
            why = "the process died"
        self.process.kill()
        self.process.join()
        return Verdict(name=name, operator=operator, verdict="untyped", why=why)


def judge_all(todo: Sequence[Case], target: str = "", workers: int = WORKERS) -> Iterator[Verdict]:
    """Verdicts as they come, from so many processes; one that crashes or hangs is replaced."""
    left = iter(todo)
    busy: list[_Worker] = []

    def start(worker: _Worker) -> None:
        case = next(left, None)
        if case is None:
            worker.pipe.send(None)
        else:
            worker.give(case)
            busy.append(worker)

    for _ in range(min(workers, len(todo))):
        start(_Worker(target))
    while busy:
        multiprocessing.connection.wait([worker.pipe for worker in busy], timeout=1)
        for worker in list(busy):
            made = worker.verdict()
            if made is None:
                continue
            yield made
            busy.remove(worker)
            start(worker if worker.process.is_alive() else _Worker(target))


# ---------------------------------------------------------------- the table


def document(verdicts: Iterable[Verdict], excluded: Mapping[str, str]) -> str:
    """docs/operators.md."""
    by_operator: dict[str, Counter[str]] = defaultdict(Counter)
    total: Counter[str] = Counter()
    cnn: Counter[str] = Counter()
    refused: list[Verdict] = []
    for made in sorted(verdicts, key=lambda verdict: verdict.name):
        by_operator[made.operator][made.verdict] += 1
        total[made.verdict] += 1
        if made.operator in CNN:
            cnn[made.verdict] += 1
        if made.verdict != "pass":
            refused.append(made)
    lines = [
        "# Operators",
        "",
        f"`./dev conformance` compiles onnx {onnx.__version__}'s own tests for `local`, runs",
        "them and writes this page. There are tests of single operators, of simple models, of",
        "models that PyTorch converted, and light versions of real networks (AlexNet to",
        "DenseNet-121), whose weights are all equal. Inputs with shapes, sizes or axes, and",
        "empty ones, become constants. *Refused*: edgepack names what it cannot compile.",
        "*Untyped*: an error that it did not expect.",
        "",
        "Where onnxruntime and ONNX differ, [one table](reference/meanings.md) says what",
        "edgepack computes; if it follows onnxruntime, the test compares with onnxruntime.",
        "",
        _row("", *VERDICTS, "total"),
        _row("---", *["---:"] * (len(VERDICTS) + 1)),
        _counts("all", total),
        _counts("convolutional networks", cnn),
        "",
        "## By operator",
        "",
        _row("operator", *VERDICTS, "total"),
        _row("---", *["---:"] * (len(VERDICTS) + 1)),
        *(_counts(f"`{name}`", by_operator[name]) for name in sorted(by_operator)),
        "",
        "## What does not pass",
        "",
        *(f"- `{made.name}`: {made.verdict}: {_short(made.why)}" for made in refused),
        "",
        "## Not run",
        "",
    ]
    reasons: dict[str, list[str]] = defaultdict(list)
    for name, reason in sorted(excluded.items()):
        reasons[reason].append(name)
    for reason, names in sorted(reasons.items()):
        lines += [f"{reason} ({len(names)}): {', '.join(f'`{name}`' for name in names)}", ""]
    return "\n".join(lines).rstrip() + "\n"


def _short(why: str) -> str:
    """The last line of an error's text: the first is what all have in common."""
    return why.strip().splitlines()[-1].strip()[:160] if why.strip() else ""


def _row(*cells: object) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _counts(name: str, counts: Mapping[str, int]) -> str:
    return _row(name, *(counts.get(kind, 0) or "" for kind in VERDICTS), sum(counts.values()))


def _compared(
    todo: Sequence[Case], here: Sequence[Verdict], target: str, workers: int = WORKERS
) -> int:
    """Print which tests end otherwise on a target than here; 1 if any does."""
    own = {made.name: made.verdict for made in here}
    if target == OPENCL:  # by the app, which runs nothing on no input
        todo = [case for case in todo if all(given for given, _ in case.data)]
    differ = 0
    for made in judge_all(todo, target, workers):
        if made.verdict != own[made.name]:
            differ += 1
            print(f"{target}: {made.verdict:8} {made.name}, here {own[made.name]}", made.why)
    print(f"{target}: {len(todo) - differ} of {len(todo)} verdicts are equal")
    return int(differ > 0)


def _kept(path: Path | None, todo: Sequence[Case]) -> list[Verdict]:
    """Verdicts of these tests that are in a file."""
    if path is None or not path.exists():
        return []
    names = {case.name for case in todo}
    lines = path.read_text(encoding="utf-8").splitlines()
    verdicts = (Verdict(**json.loads(line)) for line in lines)
    return [made for made in verdicts if made.name in names]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests; exit code 1 if one is wrong or ends without a type."""
    parser = argparse.ArgumentParser(prog="./dev conformance", description=__doc__)
    parser.add_argument("--sample", type=int, help="so many tests, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (default: 0)")
    parser.add_argument("--only", default="", help="tests with this in their names")
    parser.add_argument("--json", type=Path, help="a file for verdicts, one a line")
    parser.add_argument(
        "--target",
        choices=sorted(TARGETS),
        help="under qemu, or by OpenCL, beside this machine's verdicts",
    )
    parser.add_argument("--workers", type=int, default=WORKERS, help="processes (default: 2)")
    options = parser.parse_args(arguments)
    todo, excluded = cases()
    whole = options.sample is None and not options.only and not options.target
    todo = [case for case in todo if options.only in case.name]
    if options.sample is not None:
        todo = random.Random(options.seed).sample(todo, min(options.sample, len(todo)))
    verdicts = _kept(options.json, todo)
    known = {made.name for made in verdicts}
    left = [case for case in todo if case.name not in known]
    for made in judge_all(left, workers=options.workers):
        verdicts.append(made)
        if options.json:
            with options.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(vars(made)) + "\n")
        if made.verdict != "pass":
            print(f"{made.verdict:8} {made.name}: {_short(made.why)}", flush=True)
    counts = Counter(made.verdict for made in verdicts)
    print(", ".join(f"{counts[kind]} {kind}" for kind in VERDICTS), f"of {len(verdicts)}")
    if options.target:
        return _compared(todo, verdicts, options.target, options.workers)
    if whole:
        DOCUMENT.write_text(document(verdicts, excluded), encoding="utf-8")
    return int(bool(counts["wrong"] or counts["untyped"]))


if __name__ == "__main__":
    sys.exit(main())
