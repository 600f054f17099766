"""How exact float32 is inside networks: errors against float64, ours over onnxruntime's.

    python -m bench.rounding [--photos N] [--board BOARD] [MODEL ...]
    python -m bench.rounding --tiles

Each network is computed three times on the same photographs: in float64 by onnx's reference, by
onnxruntime, and by our compiler with each setting that changes how sums are made. With --board
both engines run their ARM code under qemu; onnxruntime has no package for 32-bit ARM, so this
machine's is used. Compared is what every convolution and product reads, and the outputs: the root
of the mean square of what each tensor is off, ours over onnxruntime's. Printed are the median over
a network's tensors, the largest of them, and that of the last output.

With --tiles no network runs: printed is what Winograd's tiles alone are off, over a convolution of
which sums have parts of 128 products; first all in float32, then with sums over channels that are
not rounded before their end, which is the least that any order of them can reach.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnxruntime import SessionOptions

from bench.accuracy import PREPROCESSING
from bench.arm import build_plugin, run_with_plugin
from bench.models import get_model
from bench.peers import ARM_WHEELS, emulator
from bench.photos import Photo, photos
from edgepack.base.paths import write_atomic
from edgepack.base.progress import NO_PROGRESS
from edgepack.boards import Board, get_board, load_boards
from edgepack.compiler import compile_model
from edgepack.compiler.backend.run import run_plan
from edgepack.frontend.precision import Precision
from edgepack.kernels.tiles import toom_cook
from edgepack.model import ModelSpec
from edgepack.model.session import cpu_session
from edgepack.native.emulate import run_emulated
from edgepack.native.toolchain import select
from edgepack.preprocess.spec import Resize

Array = npt.NDArray[Any]

NETWORKS = (
    "mobilenetv1",
    "mobilenetv2",
    "mobilenetv3-small",
    "efficientnet-lite0",
    "squeezenet1.1",
    "resnet18",
    "resnet50",
    "mobilenetv4-small",
    "shufflenetv2",
    "regnety-400mf",
)
"""Two with trained weights, eight with drawn ones."""

_PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_IMAGENET = PREPROCESSING["mobilenetv2"]
# As a project with preprocessing compiles: its input, a photograph, is bounded. `speed` lets
# Winograd's algorithm take what it gains by, `exact` forbids it.
SETTINGS = {"speed": False, "exact": True}

VIRTUAL = sorted(name for name, board in load_boards().items() if board.virtual is not None)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A network with a setting: what its tensors are off, over what onnxruntime's are."""

    network: str
    setting: str
    tensors: int
    median: float
    largest: float
    output: float


def inner(graph: onnx.GraphProto) -> list[str]:
    """What products read that is computed inside the graph, and its outputs, in order."""
    made = {name for node in graph.node for name in node.output}
    read = [node.input[0] for node in graph.node if node.op_type in _PRODUCTS]
    names = [name for name in read if name in made]
    return list(dict.fromkeys([*names, *(output.name for output in graph.output)]))


def with_outputs(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """The model with those tensors as its outputs."""
    inferred = onnx.shape_inference.infer_shapes(model)
    known = {value.name: value for value in (*inferred.graph.value_info, *inferred.graph.output)}
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.output[:]
    copy.graph.output.extend(known[name] for name in names)
    return copy


def in_float64(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with float64 wherever it has float32."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    del wide.graph.value_info[:]
    for tensor in wide.graph.initializer:
        _widen(tensor)
    for value in (*wide.graph.input, *wide.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for node in wide.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                _widen(attribute.t)
            if node.op_type == "Cast" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.DOUBLE
    return wide


def _widen(tensor: onnx.TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        values = numpy_helper.to_array(tensor).astype("float64")
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


class Conv(OpRun):  # type: ignore[misc]
    """A convolution of images by one product for each group, where onnx's own is a loop."""

    op_domain = ""

    def _run(self, data: Array, weight: Array, bias: Array | None = None, **words: Any) -> Any:
        height, width = weight.shape[2:]
        pads = words.get("pads") or [0, 0, 0, 0]
        strides, dilations = words.get("strides") or [1, 1], words.get("dilations") or [1, 1]
        groups = words.get("group") or 1
        if (words.get("auto_pad") or "NOTSET") not in ("NOTSET", "VALID"):
            raise NotImplementedError(words["auto_pad"])
        wide = np.pad(data, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
        reach = ((height - 1) * dilations[0] + 1, (width - 1) * dilations[1] + 1)
        seen = sliding_window_view(wide, reach, axis=(2, 3))
        seen = seen[:, :, :: strides[0], :: strides[1], :: dilations[0], :: dilations[1]]
        parts = zip(np.split(seen, groups, 1), np.split(weight, groups, 0), strict=True)
        made = [
            np.tensordot(part, w, ((1, 4, 5), (1, 2, 3))).transpose(0, 3, 1, 2) for part, w in parts
        ]
        whole = np.concatenate(made, 1)
        return (whole if bias is None else whole + bias.reshape(1, -1, 1, 1),)


def off(got: Array, exact: Array) -> float:
    """The root of the mean square of what `got` is off."""
    return float(np.sqrt(np.mean((got.astype("float64") - exact) ** 2)))


def theirs_on(board: Board, path: Path, inputs: Sequence[Array]) -> list[list[Array]]:
    """onnxruntime's outputs for each of `inputs`, by its ARM code where it has some."""
    if board.virtual is None or "onnxruntime" not in ARM_WHEELS[board.debian_arch]:
        session = cpu_session(path.read_bytes(), SessionOptions())
        (given,) = (value.name for value in session.get_inputs())
        return [session.run(None, {given: data}) for data in inputs]
    emulated = emulator(board, NO_PROGRESS)
    outputs = []
    for data in inputs:
        with tempfile.TemporaryDirectory(prefix="edgepack-") as name:
            folder = Path(name)
            np.save(folder / "input.npy", data)
            arguments: list[str | Path] = [path, folder / "input.npy", folder, "1"]
            plugin = f"{build_plugin()},out={folder / 'count'}"
            argv = emulated.peer("onnxruntime", plugin, arguments)
            run_with_plugin(argv, folder / "count", f"onnxruntime on {path.name}", b"1\n")
            count = len(onnx.load(path).graph.output)
            outputs.append([np.load(folder / f"{k}.npy") for k in range(count)])
    return outputs


def ours_on(board: Board, folder: Path, inputs: Sequence[Array]) -> list[list[Array]]:
    """The outputs of the compiled model in `folder` for each of `inputs`."""
    if board.virtual is None:
        return [run_plan(folder, [data]) for data in inputs]
    return run_emulated(folder, board, [[data] for data in inputs])


def measure(name: str, shown: Sequence[Photo], board: Board) -> list[Row]:
    """The rows of a network."""
    model = onnx.load(get_model(name).path)
    names = inner(model.graph)
    model = with_outputs(model, names)
    inputs = [input_of(name, model, photo) for photo in shown]
    constants = {tensor.name for tensor in model.graph.initializer}
    (given,) = (v.name for v in model.graph.input if v.name not in constants)
    reference = ReferenceEvaluator(in_float64(model), new_ops=[Conv])
    exact = [reference.run(names, {given: data.astype("float64")}) for data in inputs]
    rows = []
    with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model, path)
        theirs = theirs_on(board, path, inputs)
        both = [
            pair for runs in zip(theirs, exact, strict=True) for pair in zip(*runs, strict=True)
        ]
        scale = max(off(e, np.zeros(1)) for _, e in both)
        if max(off(t, e) for t, e in both) > 1e-3 * scale:
            raise ValueError(f"{name}: onnx's reference computes something else than onnxruntime")
        for setting, direct in SETTINGS.items():
            out = Path(folder) / setting
            precision = Precision(bounded=frozenset([given]), direct=direct)
            toolchain = select(board).toolchain
            compile_model(ModelSpec(path=path), board, toolchain, out, precision=precision)
            ours = ours_on(board, out, inputs)
            ratios = [
                _mean([off(g[k], e[k]) for g, e in zip(ours, exact, strict=True)])
                / _mean([off(t[k], e[k]) for t, e in zip(theirs, exact, strict=True)])
                for k in range(len(names))
            ]
            rows.append(
                Row(
                    network=name,
                    setting=setting,
                    tensors=len(names),
                    median=float(np.median(ratios)),
                    largest=max(ratios),
                    output=ratios[-1],
                )
            )
    return rows


def _mean(values: Sequence[float]) -> float:
    return max(float(np.mean(values)), np.finfo("float64").tiny)


def input_of(name: str, model: onnx.ModelProto, photo: Photo) -> Array:
    """The photo as the network's input."""
    spec = PREPROCESSING.get(name, _IMAGENET)
    height, width = (d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim[2:])
    if (height, width) != (spec.crop or (0, 0)):
        exact = Resize(mode="exact", height=height, width=width)
        spec = replace(spec, resize=exact, crop=None)
    return spec.load(photo.path)


@dataclass(frozen=True, kw_only=True)
class TileRow:
    """A tile of a 3x3 convolution by Winograd's algorithm: its error over that of a plain one."""

    results: int
    channels: int
    rounded: float
    exact_sums: float


def tile_row(points: toom_cook.Points, channels: int, count: int) -> TileRow:
    """Measured on `count` tiles of normal inputs behind a ReLU, with normal
    weights."""
    rng = np.random.default_rng(0)
    form = toom_cook.LineForm(results=len(points) - 1, points=points, taps=3)
    side, results = form.size, form.results
    images = rng.standard_normal((side, side, channels, count)).clip(0).astype("float32")
    weights = rng.standard_normal((3, 3, channels)).astype("float32")
    wide = sliding_window_view(images.astype("float64"), (3, 3), axis=(0, 1))
    exact = np.einsum("yxcnij,ijc->yxn", wide, weights.astype("float64"))
    terms = np.einsum("yxcnij,ijc->cijyxn", wide, weights.astype("float64"))
    plain = _sum(terms.reshape(-1, *exact.shape), _PART)
    g = form.matrix(0)
    factors = np.einsum("ki,ijc,lj->klc", g, weights.astype("float64"), g).astype("float32")
    tiles = _both_ways(form.forth(results), images)
    products = np.einsum("klc,klcn->ckln", factors.astype("float64"), tiles.astype("float64"))
    return TileRow(
        results=results,
        channels=channels,
        rounded=off(_both_ways(form.back(results), _sum(products, _PART)), exact)
        / off(plain, exact),
        exact_sums=off(
            _both_ways(form.back(results), products.sum(axis=0).astype("float32")), exact
        )
        / off(plain, exact),
    )


# Products in a part of a sum, on x86-64 and in onnxruntime.
_PART = 128


def _sum(terms: Array, part: int) -> Array:
    """The sum over the first axis by multiply-adds in float32, in parts."""
    total = np.zeros(terms.shape[1:], "float32")
    for first in range(0, len(terms), part):
        inner = np.zeros_like(total)
        for term in terms[first : first + part]:
            inner = (inner + term).astype("float32")
        total = total + inner
    return total


def _both_ways(transform: toom_cook.Transform, values: Array) -> Array:
    """A transform along the first two axes, its multiply-adds in float32."""
    for _ in range(2):
        numbers = list(values)
        for terms in transform.steps:
            made = np.zeros_like(values[0])
            for factor, number in terms:
                made = (made + factor * numbers[number].astype("float64")).astype("float32")
            numbers.append(made)
        values = np.stack([numbers[number] for number in transform.outputs]).swapaxes(0, 1)
    return values


def print_tiles() -> None:
    """The table of --tiles."""
    print(f"{'results':8} {'channels':>8} {'rounded':>8} {'exact sums':>11}")
    for points in toom_cook.POINTS.values():
        for channels, count in ((64, 64), (512, 16)):
            row = tile_row(points, channels, count)
            side = f"{row.results}x{row.results}"
            print(
                f"{side:8} {row.channels:8} {row.rounded:8.2f} {row.exact_sums:11.2f}", flush=True
            )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help="(default: ten networks)")
    parser.add_argument("--photos", type=int, default=3, metavar="N")
    parser.add_argument("--board", default="local", choices=["local", *VIRTUAL])
    parser.add_argument("--json", type=Path, help="a file for the rows")
    parser.add_argument("--tiles", action="store_true", help="Winograd's tiles alone")
    args = parser.parse_args(argv)
    if args.tiles:
        print_tiles()
        return 0
    shown = photos()[:: max(1, len(photos()) // args.photos)][: args.photos]
    rows: list[Row] = []
    print(f"{'network':20} {'setting':8} {'tensors':>7} {'median':>7} {'largest':>8} {'output':>7}")
    for name in args.models or NETWORKS:
        for row in measure(name, shown, get_board(args.board)):
            print(
                f"{row.network:20} {row.setting:8} {row.tensors:7} {row.median:7.2f}"
                f" {row.largest:8.2f} {row.output:7.2f}",
                flush=True,
            )
            rows.append(row)
    if args.json is not None:
        write_atomic(
            args.json, json.dumps([asdict(row) for row in rows], indent=1).encode() + b"\n"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
