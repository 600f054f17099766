"""A bit that flips in the cache between two commands: what is shipped is what was made, and it is
said.

The model is compiled and compared for this machine each time. Where the app or the device tool
would be compiled anew, which takes minutes, a copy of what was compiled first stands in.
"""

from __future__ import annotations

import logging
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from edgepack.base import paths
from edgepack.base.kept import damage
from edgepack.bundle.manifest import MANIFEST_NAME
from edgepack.flow.job import make_job, package_job
from edgepack.flow.project import load_project
from edgepack.native import app, device_tool

pytestmark = pytest.mark.slow
SHIPPED = ("compiled", "runtime", "device-tool")
SHARED = ("opencv", "llhttp", "zig", "plan-runner", "kernels", *SHIPPED)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    weights = [((7 * n) % 13 - 6) / 8 for n in range(4 * 4)]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Tanh", ["m"], ["y"])],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor("w", TensorProto.FLOAT, [4, 4], weights)],
    )
    path = tmp_path_factory.mktemp("model") / "tiny.onnx"
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


@pytest.fixture
def package(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], bytes]:
    """Packages the model by a cache of its own; the manifest, which has the hash of every file."""
    real, own = paths.cache_dir(), tmp_path / "cache"
    own.mkdir()
    for kind in SHARED:
        (real / kind).mkdir(exist_ok=True)
        (own / kind).symlink_to(real / kind)
    monkeypatch.setattr(paths, "_cache_dir", own)
    project = load_project(None, {"model": model, "board": "local"})

    def run() -> bytes:
        bundle = package_job(make_job(project), tmp_path / "out")
        return (bundle.path / MANIFEST_NAME).read_bytes()

    run()
    # From here on entries are our own: those that were used, with their hashes.
    for kind in SHIPPED:
        (own / kind).unlink()
        (own / kind).mkdir()
    name = app.runtime_name(make_job(project).board, make_job(project).toolchain.toolchain)
    tool = device_tool.tool_name(make_job(project).board)
    for kind, entry in (("runtime", name), ("device-tool", tool)):
        shutil.copytree(real / kind / entry, own / kind / entry)
        shutil.copy(real / kind / f"{entry}.sha256", own / kind)

    def compile_app(_source: object, out: Path, *_rest: object) -> None:
        shutil.copytree(real / "runtime" / name, out, dirs_exist_ok=True)

    def compile_tool(out: Path, *_rest: object, **_more: object) -> None:
        shutil.copy(real / "device-tool" / tool / "edgepack-device", out)

    (sources,) = (path for path in (real / "device-tool").glob("sources-*") if path.is_dir())
    for module in (app, device_tool):
        monkeypatch.setattr(module, "fetch_sources", lambda **_: sources)
    monkeypatch.setattr(app, "_compile", compile_app)
    monkeypatch.setattr(device_tool, "compile_tool", compile_tool)
    return run


def files_of(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    def take() -> list[str]:
        lines = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
        caplog.clear()
        return [line for line in lines if "made again" in line]

    yield take


def test_what_is_shipped_is_what_was_made(
    package: Callable[[], bytes], said: Callable[[], list[str]]
) -> None:
    cache = paths.cache_dir()
    made = package()
    said()
    assert package() == made and said() == []
    draw = random.Random(9)
    for kind, files in (
        ("compiled", ("model.so", "params.bin", "compiled.json")),
        ("verified", ("*",)),
        ("runtime", ("edgepack-run",)),
        ("device-tool", ("edgepack-device", "*.sha256")),
    ):
        for pattern in files:
            (path,) = (
                path
                for path in (cache / kind).rglob(pattern)
                if path.is_file() and (pattern != "*" or not path.suffix)
            )
            flip(path, draw.randrange(path.stat().st_size * 8))
            assert package() == made, path
            lines = said()
            assert lines and all(f"the cache's {kind}/" in line for line in lines), (path, lines)
    assert package() == made and said() == []


def test_a_bit_in_500_places_of_what_is_shipped(package: Callable[[], bytes]) -> None:
    package()
    cache = paths.cache_dir()
    entries = [
        path
        for kind in SHIPPED
        for path in (cache / kind).iterdir()
        if path.is_dir() and not path.name.startswith(".")
    ]
    assert len(entries) == 3 and all(damage(entry) is None for entry in entries)
    draw = random.Random(500)
    for _ in range(500):
        entry = draw.choice(entries)
        path = draw.choice([*files_of(entry), entry.with_name(f"{entry.name}.sha256")])
        bit = draw.randrange(path.stat().st_size * 8)
        flip(path, bit)
        assert damage(entry) is not None, (path, bit)
        flip(path, bit)
    assert all(damage(entry) is None for entry in entries)
