"""Another version of a model is compiled from kernels that are kept, to the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tvm import tirx

from edgepack.base import paths
from edgepack.boards import get_board
from edgepack.compiler import compile_model
from edgepack.compiler.backend import build
from edgepack.compiler.backend.kernel import Kernel
from edgepack.model import ModelSpec
from edgepack.native.toolchain import select
from tests.onnx_models import Builder
from tests.targets import save_cases


def version(path: Path, seed: int) -> Path:
    """A small network with weights by `seed`."""
    net = Builder(seed)
    value = net.op("Relu", net.conv("x", 3, 32, strides=[2, 2]))
    for _ in range(2):
        value = net.op("Add", value, net.op("Relu", net.conv(value, 32, 32)))
        value = net.conv(value, 32, 32, group=32)
    value = net.op("Softmax", net.op("GlobalAveragePool", value), axis=1)
    return save_cases(path, net, {"x": (1, 3, 48, 48)}, {"y": value})


def compiled(model: Path, cache: Path, out: Path) -> dict[str, bytes]:
    """The three artifacts, by name."""
    paths.set_cache_dir(cache)
    board = get_board("local")
    made = compile_model(ModelSpec(path=model), board, select(board).toolchain, out)
    return {path.name: path.read_bytes() for path in (made.graph, made.params, made.library)}


def test_a_version_from_kept_kernels_equals_one_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (version(tmp_path / f"{seed}", seed) for seed in range(2))
    anew = [
        compiled(model, tmp_path / f"{model.name}-cache", tmp_path / "anew")
        for model in (first, second)
    ]
    made: list[str] = []
    function = Kernel.__dict__["function"].func

    def watched(kernel: Kernel) -> tirx.PrimFunc:
        if kernel._known is not None:
            made.append(kernel.facts.digest)
        return function(kernel)

    monkeypatch.setattr(Kernel, "function", property(watched))
    monkeypatch.setattr(build, "_machine_code", lambda *_: made.append("code"))
    cache = tmp_path / f"{first.name}-cache"
    kept = sorted((cache / "kernels").iterdir())
    assert {path.suffix for path in kept} == {".json", ".o"}
    assert compiled(first, cache, tmp_path / "again") == anew[0]
    assert compiled(second, cache, tmp_path / "other") == anew[1]
    assert anew[0]["params.bin"] != anew[1]["params.bin"]
    assert made == []
    assert sorted((cache / "kernels").iterdir()) == kept
