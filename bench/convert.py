"""ONNX -> each peer's own format, cached."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from pathlib import Path

import onnx

from bench import tflite
from bench.fetch import Wheel, bench_dir, unpacked
from bench.models import BenchModel, with_shape
from edgepack.base.errors import ModelError
from edgepack.base.paths import atomic_dir, locked
from edgepack.base.process import run

# ncnn's own converter, a static program; the package's Python side would need torch.
_PNNX = Wheel(
    name="pnnx",
    version="20261020",
    platform="manylinux_2_17_x86_64",
    sha256="d50d921e5897293d616444191c1a2dc5366423c81bdb4bd22a985fe8071cf17c",
)
_LITERT = Wheel(
    name="ai_edge_litert",
    version="2.3.0",
    platform="manylinux_2_27_x86_64",
    sha256="1f15078a6725d2357d9de9221664c29afa0545d807559c5f7199ce5e40b96b23",
)
_SCHEMA = "ai_edge_litert/schema_py_generated.py"


def converted(model: BenchModel, engine: str) -> Path:
    """What the worker loads for `engine`: the ONNX file itself, or its converted form.

    Raises ToolchainError or NotConvertibleError if it cannot be converted.
    """
    match engine:
        case "ncnn" | "ncnn-half":
            return _to_ncnn(model) / "model"
        case "litert" | "tflite":
            return _to_tflite(model) / "model.tflite"
        case _:
            return model.path


def _to_ncnn(model: BenchModel) -> Path:
    folder = _folder(model, "ncnn", _PNNX.sha256 + "embed 2")
    with locked(folder):
        if not folder.is_dir():
            pnnx = unpacked(_PNNX) / "pnnx" / "pnnx"
            pnnx.chmod(0o755)
            shape = ",".join(map(str, (1, *model.shape[1:])))
            with (
                tempfile.TemporaryDirectory(prefix="edgepack-") as scratch,
                atomic_dir(folder) as work,
            ):
                onnx.save(_for_pnnx(model), Path(scratch) / "model.onnx")
                run(
                    [pnnx, "model.onnx", "fp16=0", f"inputshape=[{shape}]"],
                    cwd=Path(scratch),
                    what=f"pnnx on {model.name}",
                )
                for suffix in ("param", "bin"):
                    shutil.move(Path(scratch) / f"model.ncnn.{suffix}", work / f"model.{suffix}")
                if model.tokens:
                    _embed(work / "model.param", work / "model.bin")
    return folder


def _for_pnnx(model: BenchModel) -> onnx.ModelProto:
    """The model for one image, as ncnn has no batches, with tokens as floats.

    pnnx tries the model out with random floats, whatever is asked for: as integers' bits they are
    no tokens, and it crashes.
    """
    if not model.tokens:
        return with_shape(model.path, (1, *model.shape[1:]))
    proto = onnx.load(model.path)
    proto.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    for node in proto.graph.node:
        node.input[:] = ["as_integers" if name == model.input else name for name in node.input]
    cast = onnx.helper.make_node("Cast", [model.input], ["as_integers"], to=onnx.TensorProto.INT32)
    proto.graph.node.insert(0, cast)
    return proto


def _embed(param: Path, weights: Path) -> None:
    """Puts ncnn's Embed, which takes integers, for the Cast and Gather that pnnx leaves.

    The table is the file's first weight; Embed's has a word in front that says it is float32.
    """
    magic, counts, source, cast, table, gather, *rest = param.read_text().splitlines()
    kinds = [line.split()[0] for line in (cast, table, gather)]
    if kinds != ["Tensor.to", "MemoryData", "Gather"]:
        raise ModelError(f"pnnx begins with {', '.join(kinds)}: no table of tokens")
    layers, blobs = map(int, counts.split())
    features, rows = (int(word.partition("=")[2]) for word in table.split()[-2:])
    tokens, out = source.split()[4], gather.split()[6]
    embed = f"Embed tokens 1 1 {tokens} {out} 0={features} 1={rows} 2=0 3={features * rows}"
    lines = [magic, f"{layers - 2} {blobs - 2}", source, embed, *rest]
    param.write_text("\n".join(lines) + "\n")
    weights.write_bytes(bytes(4) + weights.read_bytes())


def _to_tflite(model: BenchModel) -> Path:
    source = hashlib.sha256(Path(tflite.__file__).read_bytes()).hexdigest()
    folder = _folder(model, "tflite", source + _LITERT.sha256)
    with locked(folder):
        if not folder.is_dir():
            schema = unpacked(_LITERT, lambda name: name == _SCHEMA) / _SCHEMA
            with atomic_dir(folder) as work:
                (work / "model.tflite").write_bytes(tflite.convert(model.path, schema))
    return folder


def _folder(model: BenchModel, kind: str, tool: str) -> Path:
    content = hashlib.sha256(model.path.read_bytes()).hexdigest()
    key = hashlib.sha256(json.dumps([content, tool]).encode()).hexdigest()[:12]
    return bench_dir() / kind / f"{model.name}-{key}"
