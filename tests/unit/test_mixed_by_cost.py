"""Which layers of a quantised model are left in float."""

from __future__ import annotations

from dataclasses import replace

import onnx

from edgepack.compiler.mixed import left_in_float
from edgepack.compiler.settings import DEFAULTS
from edgepack.frontend.integer_recognition import Recognition
from edgepack.kernels.tiles.cpu import CORTEX_A53
from tests.onnx_models import Builder
from tests.quantized_models import Chains


def test_large_tensors_stay_on_integers_where_they_go_to_memory() -> None:
    net = Builder(3)
    chains = Chains(net, "uint8")
    x = chains.conv(chains.steps("x", 0.02), 16, 96, [1, 1])
    x = chains.conv(x, 96, 96, [3, 3], pads=[1] * 4, group=96)
    net.op("Identity", chains.conv(x, 96, 24, [1, 1]), outputs=["y"])
    shape = (1, 16, 112, 112)
    model = net.model({"x": shape}, {"y": (1, 24, 112, 112)})
    found = Recognition(onnx.shape_inference.infer_shapes(model))
    assert len(found.taken) == 3
    # 1.2 MB as integers, 4.8 MB as numbers.
    fitting = replace(CORTEX_A53, l2_bytes=8 << 20)
    assert left_in_float(found, fitting, DEFAULTS)
    assert not left_in_float(found, CORTEX_A53, DEFAULTS)
