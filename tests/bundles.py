"""A small bundle for tests: real files, tiny, for any board."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from edgepack.boards import Board, get_board
from edgepack.bundle.bundle import Bundle, Contents, ExpectedClass, Golden, make_bundle
from edgepack.model import TensorInfo
from edgepack.native.toolchain import Toolchain


@dataclass(frozen=True, kw_only=True)
class FakeCompiled:
    library: Path
    graph: Path
    params: Path
    inputs: tuple[TensorInfo, ...] = (
        TensorInfo(name="input", dtype="float32", shape=(1, 3, 2, 2)),
    )
    outputs: tuple[TensorInfo, ...] = (TensorInfo(name="scores", dtype="float32", shape=(1, 4)),)
    arena_bytes: int = 4096
    params_bytes: int = 256
    model_sha256: str = "ab" * 32
    tvm_version: str = "0.27.0"
    device_code: Path | None = None


ZIG = Toolchain(
    kind="zig",
    triple="arm-linux-gnueabihf",
    version="0.17.0",
    glibc="2.28",
    cc=("zig", "cc"),
    cxx=("zig", "c++"),
    cmake_args=(),
)


@dataclass(frozen=True, kw_only=True)
class FakeRuntime:
    app: Path
    toolchain: Toolchain = ZIG
    opencv_version: str = "4.14.0"
    licenses: Mapping[str, str] = field(default_factory=lambda: {"zlib": "zlib licence\n"})


@dataclass(frozen=True, kw_only=True)
class FakeTool:
    path: Path
    licenses: Mapping[str, str] = field(default_factory=lambda: {"zstd": "zstd licence\n"})


@dataclass(frozen=True, kw_only=True)
class FakePreprocess:
    text: str = '{"format":"edgepack-preprocess","version":1}\n'

    def to_json(self) -> str:
        return self.text


def golden(**changes: Any) -> Golden:
    values: dict[str, Any] = {
        "inputs": (np.arange(12, dtype=np.float32).reshape(1, 3, 2, 2),),
        "outputs": (np.array([[0.0, 1.0, 0.5, 0.25]], dtype=np.float32),),
    }
    return Golden(**{**values, **changes})


def small_bundle(
    folder: Path,
    *,
    board: str | Board = "rasp3b",
    app: bytes | Path = b"the app\n",
    library: bytes | Path = b"the kernels\n",
    params: bytes = bytes(range(256)),
    **changes: Any,
) -> Bundle:
    """A bundle in `folder`/out, made from files in `folder`/parts; `changes` of its `Contents`."""
    parts = folder / "parts"
    parts.mkdir(parents=True, exist_ok=True)
    for name, data in {
        "app": app, "tool": b"the tool\n", "model.so": library, "graph.json": b"{}\n",
        "params.bin": params,
    }.items():  # fmt: skip
        (parts / name).write_bytes(data.read_bytes() if isinstance(data, Path) else data)
    photo = parts / "photo.PNG"
    photo.write_bytes(b"\x89PNG\r\n")
    values: dict[str, Any] = {
        "name": "tiny",
        "board": get_board(board) if isinstance(board, str) else board,
        "compiled": FakeCompiled(
            library=parts / "model.so", graph=parts / "graph.json", params=parts / "params.bin"
        ),
        "runtime": FakeRuntime(app=parts / "app"),
        "tool": FakeTool(path=parts / "tool"),
        "preprocess": FakePreprocess(),
        "labels": ["cat", "dog", "espresso", "Käse"],
        "golden": golden(image=photo, expected=ExpectedClass(index=1, label="dog")),
        "model_file": "tiny.onnx",
    }
    return make_bundle(Contents(**{**values, **changes}), folder / "out")
