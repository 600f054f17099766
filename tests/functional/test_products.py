"""Products of matrices with what follows them in one kernel, on every instruction set."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edgepack.compiler.place.emit import LAYOUT
from tests.onnx_models import Builder
from tests.targets import compile_and_run, every_target, save_cases, wrong_outputs

_SQRT2 = float(np.sqrt(2))


def _dense(net: Builder, rows: str, ins: int, outs: int) -> str:
    return net.op("Add", net.op("MatMul", rows, net.weight(ins, outs)), net.weight(outs))


def _gelu(net: Builder, value: str) -> str:
    """As exporters write it before opset 20."""
    inner = net.op("Erf", net.op("Div", value, net.const(_SQRT2, "float32")))
    factor = net.op("Add", inner, net.const(1, "float32"))
    product = net.op("Mul", value, factor)
    return net.op("Mul", product, net.const(0.5, "float32"))


@every_target
def test_what_follows_a_product(tmp_path: Path, board: str, cpu: str) -> None:
    net = Builder(seed=4)
    hidden = _gelu(net, _dense(net, "x", 24, 64))
    back = net.op("Add", "x", _dense(net, hidden, 64, 24))
    scores = net.op("MatMul", "q", "k")
    cases = {
        "gelu": hidden,
        "residual": back,
        "relu": net.op("Relu", _dense(net, "x", 24, 40)),
        # Columns that fill no vector: the last panel overlaps the one before.
        "odd bias": _dense(net, "x", 24, 37),
        "odd gelu": _gelu(net, _dense(net, "x", 24, 37)),
        "odd mask": net.op("Mul", "m", net.op("Sigmoid", _dense(net, "x", 24, 33))),
        "odd sum": net.op("Add", _dense(net, "x", 24, 37), _dense(net, "x", 24, 37)),
        "scaled scores": net.op("Div", scores, net.const(3.0, "float32")),
        "of two products": net.op("Tanh", net.op("Add", scores, net.op("MatMul", "q", "k"))),
        # Not all of it can be taken: the sum is read twice.
        "read twice": net.op("Mul", back, net.op("Sigmoid", back)),
        "heads": net.op("Reshape", _dense(net, "x", 24, 48), net.const([2, 13, 3, 16], "int64")),
        "a column each": net.op("Mul", _dense(net, "x", 24, 48), net.weight(48)),
    }
    shapes = {"x": (2, 13, 24), "q": (3, 11, 16), "k": (3, 16, 11), "m": (2, 13, 33)}
    model = save_cases(tmp_path / "model.onnx", net, shapes, cases)
    random = np.random.default_rng(4)
    inputs = [random.normal(size=shape).astype("float32") for shape in shapes.values()]
    compiled, got = compile_and_run(model, inputs, board, cpu, tmp_path)
    wrong = wrong_outputs(model, inputs, got)
    assert not wrong, "\n".join(wrong)
    # Rows stay as they are: nothing is packed. And no product is left to TVM.
    assert not {layer.rule for layer in compiled.layers} & {"conv", LAYOUT}
    generic = [layer.kernel for layer in compiled.layers if layer.rule == "generic"]
    assert not any("matmul" in kernel for kernel in generic), generic
