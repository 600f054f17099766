"""Models on a GPU: `./dev gpu`.

    ./dev gpu                       the models of the benchmark on this machine's GPU
    ./dev gpu --pack FOLDER         for another machine's: python3 FOLDER/run.py there
    ./dev gpu --like rk3399         with the kernels that are made for that board's GPU

The folder has bundles, inputs, what onnxruntime makes of them, the app and a script: no network and
no package is needed there. It prints a table for docs/performance.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

from bench import gpu_worker
from bench.models import ALL, MODELS, WIDE, BenchModel, get_model
from edgepack.base.errors import EdgepackError, UsageError
from edgepack.base.progress import Progress
from edgepack.boards import get_board
from edgepack.cli.console import Console
from edgepack.compiler import compile_model
from edgepack.frontend.precision import PRECISIONS, Precision
from edgepack.gpus import Gpu, find_local
from edgepack.model import ModelSpec
from edgepack.native.app import build_runtime
from edgepack.native.toolchain import select

_FILES = Path(__file__).resolve().parent
# Constants of so few elements may be shapes and limits; what is larger is a weight.
_FEW = 16
# Operators whose inputs but the first are read when the model is, not when it runs.
_READ = ("Clip", "Gather", "Reshape", "Resize", "Slice")


def pack(
    out: Path, models: Sequence[str], precisions: Sequence[str], gpu: Gpu, progress: Progress
) -> None:
    """A folder with all that `gpu_worker` runs; `out` must not be there."""
    board = get_board("local")
    toolchain = select(board).toolchain
    out.mkdir(parents=True)
    shutil.copy(build_runtime(board, toolchain).gpu_app, out / "edgepack-run")
    shutil.copy(_FILES / "gpu_worker.py", out / "run.py")
    shutil.copy(_FILES / "gpu_peer.py", out / "peer.py")
    cases = []
    for name in models:
        model = get_model(name)
        (out / f"{name}.nodes.json").write_text(json.dumps(nodes(onnx.load(model.path))))
        for precision in precisions:
            progress.step(f"compiling {name} in {precision} for {gpu.device}")
            cases.append(_case(out, model, precision, gpu))
    described = f"{gpu.device}, {gpu.arch or gpu.api}"
    (out / "plan.json").write_text(json.dumps({"for": described, "cases": cases}, indent=1))


def _case(out: Path, model: BenchModel, precision: str, gpu: Gpu) -> dict[str, Any]:
    board = get_board("local")
    folder = out / f"{model.name}-{precision}"
    spec, x = ModelSpec(path=model.path), model.sample()
    compile_model(
        spec,
        board,
        select(board).toolchain,
        folder / "model",
        precision=Precision(name=precision, samples=((x,),) if precision != PRECISIONS[0] else ()),
        gpu=gpu,
    )
    (folder / "model" / "kernels.o").unlink()
    (folder / "manifest.json").write_text("{}")
    np.save(folder / "in0.npy", x)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.path, options, ["CPUExecutionProvider"])
    expected = []
    for index, made in enumerate(session.run(None, {model.input: x})):
        expected.append(f"due{index}.npy")
        np.save(folder / expected[-1], made)
    return {
        "model": model.name,
        "precision": precision,
        "folder": folder.name,
        "inputs": ["in0.npy"],
        "expected": expected,
    }


def nodes(model: onnx.ModelProto) -> dict[str, Any]:
    """A model as `gpu_peer` reads it: nodes, and constants, of which weights are a shape and the
    scale of their values."""
    constants = {t.name: _constant(numpy_helper.to_array(t)) for t in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    made = []
    for node in model.graph.node:
        attributes = {a.name: _plain(onnx.helper.get_attribute_value(a)) for a in node.attribute}
        if node.op_type == "Constant":
            constants[node.output[0]] = _constant(attributes["value"])
            continue
        if node.op_type in _READ:
            given = [constants.get(name, {}).get("values") for name in node.input[1:]]
            attributes["given"] = given
        made.append(
            {
                "op": node.op_type,
                "inputs": list(node.input),
                "outputs": list(node.output),
                "attributes": attributes,
            }
        )
    given = []
    for value in inputs:
        kind = value.type.tensor_type
        given.append(
            {
                "shape": [dim.dim_value for dim in kind.shape.dim],
                "dtype": str(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)),
            }
        )
    return {
        "nodes": made,
        "constants": constants,
        "inputs": [value.name for value in inputs],
        "given": given,
        "outputs": [value.name for value in model.graph.output],
    }


def _constant(values: np.ndarray) -> dict[str, Any]:
    item: dict[str, Any] = {"shape": list(values.shape), "dtype": str(values.dtype)}
    if values.size <= _FEW or values.dtype.kind != "f":
        return {**item, "values": values.ravel().tolist()}
    return {**item, "scale": float(np.abs(values).mean())}


def _plain(value: Any) -> Any:
    """An attribute as JSON has it; a tensor as an array."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _gpu(args: argparse.Namespace) -> Gpu:
    """This machine's, a board's, or the one that was described."""
    if args.arch:
        return Gpu(
            api="cuda",
            device=args.arch,
            arch=args.arch,
            driver=args.driver,
            processors=args.processors,
            lanes=128,
            threads=1024,
            shared_kb=48,
        )
    found = find_local()
    if args.like:
        gpu = get_board(args.like).gpu
        if gpu is None:
            raise UsageError(f"--like {args.like}: this board's profile has no GPU")
        if args.pack is None and (found is None or found.api != gpu.api):
            here = "no GPU" if found is None else f"{found.device} with {found.api}"
            raise UsageError(
                f"--like {args.like}: kernels for its {gpu.device} need {gpu.api}; here is {here}",
                hint="--pack FOLDER to run them elsewhere",
            )
        return gpu
    if found is None:
        raise UsageError("there is no GPU here", hint="--pack FOLDER --arch sm_90 for another's")
    # Its own driver is newer than any compiler that is at hand.
    return replace(found, driver=args.driver) if found.api == "cuda" else found


@contextlib.contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="edgepack-gpu-") as folder:
        yield Path(folder) / "packed"


def main(argv: Sequence[str]) -> int:
    """Packs, and runs what was packed unless it is for elsewhere."""
    parser = argparse.ArgumentParser(prog="./dev gpu", description=__doc__, allow_abbrev=False)
    parser.add_argument("--pack", type=Path, metavar="FOLDER", help="only make the folder")
    parser.add_argument(
        "--models", nargs="+", choices=ALL, default=[*MODELS, *WIDE], metavar="MODEL"
    )
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=[PRECISIONS[0]])
    parser.add_argument("--like", metavar="BOARD", help="make kernels for this board's GPU")
    parser.add_argument("--arch", help="of another machine's GPU, as sm_90")
    parser.add_argument("--processors", type=int, default=132, help="of that; default: 132")
    parser.add_argument("--driver", default="12.2", help="CUDA's, at least; default: 12.2")
    args, rest = parser.parse_known_args(argv)
    console = Console()
    try:
        with _folder(args.pack) as folder:
            pack(folder, args.models, args.precision, _gpu(args), console)
            if args.pack is not None:
                console.lines([f"python3 {args.pack}/run.py"])
                return 0
            done = subprocess.run([sys.executable, folder / "run.py", *rest], check=False)
            return done.returncode
    except EdgepackError as error:
        console.error(str(error), error.hint, error.exit_code)
        return error.exit_code


__all__ = ["gpu_worker", "main", "nodes", "pack"]

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
