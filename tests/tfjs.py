"""A TensorFlow.js layers model as ONNX: the few layers that esrgan-slim is made of."""

from __future__ import annotations

import base64
import hashlib
import json
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bench.fetch import bench_dir
from edgepack.base.errors import EdgepackError, ToolchainError
from edgepack.base.paths import atomic_dir, locked
from edgepack.base.process import run
from edgepack.base.tools import look_for


class LayerError(EdgepackError):
    """A layer that is not converted here."""


@dataclass(frozen=True, kw_only=True)
class NpmPackage:
    """A package of the npm registry, with the sha512 of its archive as npm writes it."""

    name: str
    version: str
    integrity: str


ESRGAN_SLIM = NpmPackage(
    name="@upscalerjs/esrgan-slim",
    version="1.0.0",
    integrity="sha512-DXtwn5SE71+pZKluN/hGeLaZv6ZylyFQYSvMqU08kKCEA5Y9Q1cIIk4EvPTPZw8VqGi2C6F02c8OjhtId4BK2w==",
)


def npm_unpacked(package: NpmPackage, part: str) -> Path:
    """A cached folder with the files of a folder of `package`; nothing of it is installed.

    Raises ToolchainError if there is no npm, if it fails, or if it brings another archive.
    """
    npm = look_for("npm")
    if npm is None:
        raise ToolchainError(
            f"npm, which fetches {package.name}, is not installed", hint="apt-get install npm"
        )
    name = package.name.replace("/", "-").lstrip("@")
    folder = bench_dir() / "npm" / f"{name}-{package.version}" / part
    with locked(folder):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(prefix="edgepack-") as got, atomic_dir(folder) as work:
                run(
                    [npm, "pack", "--silent", f"{package.name}@{package.version}"],
                    cwd=got,
                    what=f"npm pack of {package.name} {package.version}",
                )
                (file,) = Path(got).glob("*.tgz")
                digest = base64.b64encode(hashlib.sha512(file.read_bytes()).digest()).decode()
                if f"sha512-{digest}" != package.integrity:
                    raise ToolchainError(
                        f"{file.name}: sha512-{digest}, expected {package.integrity}"
                    )
                with tarfile.open(file) as archive:
                    for member in archive:
                        data = archive.extractfile(member)
                        if data and str(Path(member.name).parent) == f"package/{part}":
                            (work / Path(member.name).name).write_bytes(data.read())
    return folder


def convert(model_json: Path) -> onnx.ModelProto:
    """The ONNX form of a layers model; input and output are NHWC, as in the file.

    Weights must be one file of float32. Raises `LayerError` for a layer that it does not know.
    """
    description = json.loads(model_json.read_text(encoding="utf-8"))
    config = description["modelTopology"]["model_config"]["config"]
    weights = _weights(model_json.parent, description["weightsManifest"])
    graph = _Graph()
    for layer in config["layers"]:
        graph.add(layer, weights)
    ((first, _, _),) = config["input_layers"]
    ((last, _, _),) = config["output_layers"]
    nodes = [
        helper.make_node("Transpose", [first], [f"{first}/NCHW"], perm=[0, 3, 1, 2]),
        *graph.nodes,
        helper.make_node("Transpose", [f"{last}/NCHW"], [last], perm=[0, 2, 3, 1]),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", f"h{end}", f"w{end}", 3])
        for end, name in enumerate((first, last))
    ]
    made = helper.make_graph(nodes, config["name"], ends[:1], ends[1:], graph.constants)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def _weights(folder: Path, manifest: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    (group,) = manifest
    (name,) = group["paths"]
    data = (folder / name).read_bytes()
    found, at = {}, 0
    for weight in group["weights"]:
        if weight["dtype"] != "float32" or "quantization" in weight:
            raise LayerError(f"{name}: {weight['name']} is no plain float32")
        count = int(np.prod(weight["shape"]))
        values = np.frombuffer(data, "<f4", count, at)
        found[weight["name"]] = values.reshape(weight["shape"])
        at += 4 * count
    return found


class _Graph:
    """Nodes for layers, NCHW between them; each layer's result is called LAYER/NCHW."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def add(self, layer: dict[str, Any], weights: dict[str, np.ndarray]) -> None:
        name, config = layer["name"], layer["config"]
        inputs = [f"{source}/NCHW" for node in layer["inbound_nodes"] for source, *_ in node]
        match layer["class_name"], config:
            case "InputLayer", _:
                return
            case "Conv2D", {
                "strides": [1, 1],
                "dilation_rate": [1, 1],
                "groups": 1,
                "activation": "linear",
                "use_bias": True,
                "padding": padding,
                "kernel_size": [high, wide],
            } if padding == "same" or (high, wide) == (1, 1):
                # At stride 1 and an odd size, TensorFlow's SAME is as much on all sides.
                pads = [high // 2, wide // 2] * 2
                kernel = weights[f"{name}/kernel"].transpose(3, 2, 0, 1)  # HWIO -> OIHW
                inputs += [
                    self._constant(f"{name}/kernel", kernel),
                    self._constant(f"{name}/bias", weights[f"{name}/bias"]),
                ]
                self._node("Conv", inputs, name, pads=pads)
            case "Activation", {"activation": "relu"}:
                self._node("Relu", inputs, name)
            case "Concatenate", {"axis": 3}:
                self._node("Concat", inputs, name, axis=1)
            case "Add", _:
                self._node("Add", inputs, name)
            case "UpSampling2D", {"size": [high, wide], "interpolation": "nearest"}:
                scales = self._constant(f"{name}/scales", np.array([1, 1, high, wide], np.float32))
                self._node(
                    "Resize",
                    [*inputs, "", scales],
                    name,
                    coordinate_transformation_mode="asymmetric",
                    mode="nearest",
                    nearest_mode="floor",
                )
            case kind, _:
                raise LayerError(f"{name}: no conversion for {kind} with {config}")

    def _node(self, kind: str, inputs: list[str], name: str, **attributes: object) -> None:
        self.nodes.append(helper.make_node(kind, inputs, [f"{name}/NCHW"], name, **attributes))

    def _constant(self, name: str, values: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name
