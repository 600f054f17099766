"""Which convolutions lose too much by Winograd's algorithm in half precision."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edgepack.frontend import ranges, rounding
from edgepack.frontend.precision import LEAST_WINOGRAD_DB
from edgepack.kernels.tiles import toom_cook
from tests.onnx_models import Builder


def image(channels: int, size: int = 13) -> np.ndarray:
    """As a layer reads it behind a ReLU: [channels, rows, columns]."""
    values = np.random.default_rng(channels).normal(size=(channels, size, size))
    return np.maximum(values, 0).astype("float32")


def weights(outs: int, ins: int) -> np.ndarray:
    """[out, in, 3, 3]"""
    return np.random.default_rng(outs).normal(size=(outs, ins, 3, 3)).astype("float32") / ins


@pytest.mark.parametrize("channels", [3, 16, 40])
def test_usual_numbers_keep_their_accuracy(channels: int) -> None:
    found = {
        size: rounding.signal_db(image(channels), weights(24, channels), size)
        for size in toom_cook.HALF_FORMS
    }
    assert LEAST_WINOGRAD_DB < found[4] < found[2] < 80


def test_what_cancels_loses_it() -> None:
    """A flat image under weights whose sum is zero: the error is that of the offset."""
    flat = image(16) * 0.1 + 100
    edges = weights(8, 16)
    edges -= edges.mean(axis=(1, 2, 3), keepdims=True)
    assert rounding.signal_db(flat, edges, 4) < LEAST_WINOGRAD_DB


def test_what_comes_near_the_largest_half_is_refused() -> None:
    assert rounding.signal_db(image(16) * 9000, weights(8, 16), 4) == -math.inf


def test_no_signal_is_no_loss() -> None:
    assert rounding.signal_db(np.zeros((5, 1, 2), "float32"), weights(8, 5), 4) == math.inf


def test_the_worst_sample_decides() -> None:
    """Of the nodes that the algorithm could do, by their names."""
    net = Builder(seed=1)
    edges = weights(8, 16)
    edges -= edges.mean(axis=(1, 2, 3), keepdims=True)
    flat = net.op("Conv", "x", net.const(edges), pads=[1] * 4)
    strided = net.op("Conv", "x", net.const(edges), pads=[1] * 4, strides=[2, 2])
    net_proto = net.model({"x": (1, 16, 13, 13)}, {flat: None, strided: None})
    nodes = {output: node.name or output for node in net_proto.graph.node for output in node.output}
    usual, offset = image(16)[None], image(16)[None] * 0.1 + 100
    found = ranges.find(net_proto, [[usual], [np.zeros_like(usual)]], computes=True)
    assert found.winograd == {}
    found = ranges.find(net_proto, [[usual], [offset]], computes=True)
    assert found.winograd == {nodes[flat]: 0}
    assert ranges.find(net_proto, [[offset]], computes=False).winograd == {}
