"""PyTorch's time for a model on a GPU: its ONNX nodes one by one, captured as a CUDA graph.

`python3 peer.py MODEL.nodes.json float32|float16` prints milliseconds as JSON, by the way it was
done. It travels with `gpu_worker.py` and needs PyTorch. Weights are random, which costs the same
time.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch  # type: ignore[import-not-found]
from torch.nn import functional as F  # type: ignore[import-not-found]  # noqa: N812

Tensor: TypeAlias = Any
Values = dict[str, Tensor]


def _pads(attributes: Mapping[str, Any], axes: int) -> list[int]:
    pads = attributes.get("pads", [0] * (2 * axes))
    assert pads[:axes] == pads[axes:], "the same on both sides"
    return list(pads[:axes])


def _window(x: Tensor, a: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    size = a["kernel_shape"]
    return size, a.get("strides", [1] * len(size)), _pads(a, x.dim() - 2)


def _conv(a: Mapping[str, Any], x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    kind = F.conv1d if x.dim() == 3 else F.conv2d
    axes = x.dim() - 2
    ones, pads = [1] * axes, a.get("pads", [0] * (2 * axes))
    before, after = pads[:axes], pads[axes:]
    if before != after:
        x = F.pad(x, [p for pair in zip(before[::-1], after[::-1], strict=True) for p in pair])
        before = [0] * axes
    rest = (a.get("strides", ones), before, a.get("dilations", ones), a.get("group", 1))
    return kind(x, w, b, *rest)


def _transposed(a: Mapping[str, Any], x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    more = a.get("output_padding", 0)
    return F.conv_transpose2d(x, w, b, a.get("strides", 1), _pads(a, 2), more, a.get("group", 1))


def _gemm(a: Mapping[str, Any], x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    return F.linear(x, w if a.get("transB") else w.t(), b)


def _slice(a: Mapping[str, Any], x: Tensor, *_: Tensor) -> Tensor:
    starts, ends, *more = a["given"]
    axes = more[0] if more else range(len(starts))
    steps = more[1] if len(more) > 1 else [1] * len(starts)
    place = [slice(None)] * x.dim()
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        place[axis] = slice(start, end, step)
    return x[tuple(place)]


def _resize(a: Mapping[str, Any], x: Tensor, *_: Tensor) -> Tensor:
    given = [item[2:] if item else None for item in a["given"]]
    scales, sizes = given[1], given[2] if len(given) > 2 else None
    assert a["mode"] == "nearest", "linear and cubic ones are written in other ways"
    return F.interpolate(x, size=sizes, scale_factor=None if sizes else scales, mode="nearest")


def _reshape(a: Mapping[str, Any], x: Tensor, _: Tensor) -> Tensor:
    return x.reshape([x.shape[i] if n == 0 else n for i, n in enumerate(a["given"][0])])


def _norm(a: Mapping[str, Any], x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    return F.layer_norm(x, w.shape, w, b, a.get("epsilon", 1e-5))


def _clip(a: Mapping[str, Any], x: Tensor, *_: Tensor) -> Tensor:
    return torch.clamp(x, *(item[0] for item in a["given"]))


def _gather(a: Mapping[str, Any], x: Tensor, at: Tensor) -> Tensor:
    if a["given"][0] is None:
        return F.embedding(at, x)
    (index,) = a["given"][0]
    return x.select(a.get("axis", 0), index)


def _batch_norm(a: Mapping[str, Any], x: Tensor, *p: Tensor) -> Tensor:
    scale, shift, mean, variance = p
    return F.batch_norm(x, mean, variance, scale, shift, eps=a.get("epsilon", 1e-5))


OPERATORS: dict[str, Callable[..., Tensor]] = {
    "Conv": _conv,
    "ConvTranspose": _transposed,
    "BatchNormalization": _batch_norm,
    "Clip": _clip,
    "Gemm": _gemm,
    "Slice": _slice,
    "Resize": _resize,
    "Reshape": _reshape,
    "LayerNormalization": _norm,
    "Add": lambda _, x, y: x + y,
    "Sub": lambda _, x, y: x - y,
    "Mul": lambda _, x, y: x * y,
    "Div": lambda _, x, y: x / y,
    "Relu": lambda _, x: F.relu(x),
    "Sigmoid": lambda _, x: torch.sigmoid(x),
    "HardSigmoid": lambda _, x: F.hardsigmoid(x),
    "HardSwish": lambda _, x: F.hardswish(x),
    "Tanh": lambda _, x: torch.tanh(x),
    "Erf": lambda _, x: torch.erf(x),
    "MatMul": lambda _, x, y: x @ y,
    "Concat": lambda a, *xs: torch.cat(xs, a["axis"]),
    "Transpose": lambda a, x: x.permute(*a["perm"]),
    "Softmax": lambda a, x: F.softmax(x, a.get("axis", -1)),
    "Flatten": lambda a, x: x.flatten(a.get("axis", 1)),
    "GlobalAveragePool": lambda _, x: x.mean((2, 3), keepdim=True),
    "MaxPool": lambda a, x: F.max_pool2d(x, *_window(x, a)),
    "AveragePool": lambda a, x: F.avg_pool2d(
        x, *_window(x, a), count_include_pad=bool(a.get("count_include_pad", 0))
    ),
    "Gather": _gather,
}


def run(graph: Mapping[str, Any], constants: Values, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The model's outputs."""
    values = {**constants, **dict(zip(graph["inputs"], inputs, strict=True))}
    for node in graph["nodes"]:
        given = [values[name] if name else None for name in node["inputs"]]
        values[node["outputs"][0]] = OPERATORS[node["op"]](node["attributes"], *given)
    return [values[name] for name in graph["outputs"]]


def _made(item: Mapping[str, Any], dtype: torch.dtype) -> Tensor:
    if "values" not in item:
        return (torch.randn(item["shape"]) * item["scale"]).to("cuda", dtype)
    made = torch.tensor(item["values"], dtype=getattr(torch, item["dtype"])).reshape(item["shape"])
    # A scalar may be with the CPU, and then changes nobody's type.
    return made if made.dim() == 0 else made.to("cuda", dtype if made.is_floating_point() else None)


def measure(step: Callable[[], list[Tensor]], given: list[Tensor], runs: int = 200) -> float:
    """The median of an inference, from pinned memory to pinned memory, in ms."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            made = step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = step()
    sources = [t.cpu().pin_memory() for t in given]
    sinks = [torch.empty(t.shape, dtype=t.dtype).pin_memory() for t in made]
    times = []
    for _ in range(runs + 20):
        begun = time.perf_counter()
        for target, source in zip(given, sources, strict=True):
            target.copy_(source, non_blocking=True)
        graph.replay()
        for target, source in zip(sinks, made, strict=True):
            target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begun))
    return sorted(times[20:])[runs // 2]


@torch.inference_mode()  # type: ignore[untyped-decorator]
def main(argv: Sequence[str]) -> int:
    """Prints what the ways take."""
    graph = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    dtype = getattr(torch, argv[1])
    made = {}
    for name, layout in (("", torch.contiguous_format), (" NHWC", torch.channels_last)):
        constants = {name: _made(item, dtype) for name, item in graph["constants"].items()}
        given = []
        for item in graph["given"]:
            x = torch.zeros(item["shape"], dtype=getattr(torch, item["dtype"]))
            given.append(x.to("cuda", dtype) if x.is_floating_point() else x.cuda())
        if layout is torch.channels_last:
            if all(x.dim() != 4 for x in given):
                continue
            given = [x.to(memory_format=layout) if x.dim() == 4 else x for x in given]
            for key, value in constants.items():
                if value.is_cuda and value.dim() == 4:
                    constants[key] = value.to(memory_format=layout)

        def step(constants: Values = constants, given: list[Tensor] = given) -> list[Tensor]:
            return run(graph, constants, given)

        made["graph" + name] = measure(step, given)
    if "--compile" in argv:  # takes a minute: in one layout, which it may change
        made["compiled" + name] = measure(torch.compile(step, dynamic=False), given)
    print(json.dumps(made))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
