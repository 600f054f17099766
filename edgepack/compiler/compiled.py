"""A compiled model, and the cache of them.

An entry goes by all that it depends on: what is compiled, and the compiler's own sources.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgepack.base.kept import keep
from edgepack.base.paths import cache_dir
from edgepack.base.tables import read_json
from edgepack.compiler.settings import CompileSettings

if TYPE_CHECKING:
    from edgepack.boards import Board
    from edgepack.compiler.backend.report import LayerReport
    from edgepack.gpus import Gpu
    from edgepack.model import LoadedModel, ModelSpec, TensorInfo
    from edgepack.native.toolchain import Toolchain

OBJECTS = "kernels.o"
_META = "compiled.json"
_PATHS = {"folder", "graph", "params", "library", "device_code"}
# What the compiler is made of: its own modules, those it imports and their data, and the packages
# that decide what comes out. onnxruntime and numpy fold constants, onnx expands operators.
_PACKAGE = Path(__file__).parents[1]
_SOURCES = (
    "base",
    "boards.py",
    "compiler",
    "cpus.json",
    "cpus.py",
    "frontend",
    "gpus.py",
    "kernels",
    "model",
    "native/linker.py",
    "native/prebuilt.py",
    "native/toolchain.py",
    "native/wheel_places.py",
)
_DEPENDENCIES = ("apache-tvm", "apache-tvm-ffi", "numpy", "onnx", "onnxruntime")
_READS_WITH = {  # a format's file is made ONNX by
    ".tflite": ("tflite",),
    ".pt": ("onnxscript", "torch"),
    ".pt2": ("onnxscript", "torch"),
    ".pth": ("onnxscript", "torch"),
}


@dataclass(frozen=True, kw_only=True)
class CompiledModel:
    """The folder with a model's three compiled files for one board.

    `arena_bytes` is the memory that all tensors of a run share, including inputs and outputs;
    `states_bytes` is the part that is kept between runs. `params_bytes` is the size of the
    mapped parameter file. `layers` has the origin and the cost of each kernel call. `floats` has
    the names of nodes of a quantised model that do not use integers, with reasons. `device_code`
    has the kernels of a GPU, if one runs the model; beside it there may be kernels.ptx, the same
    for later GPUs. `objects`, in the same folder, is the library's object file.
    """

    folder: Path
    graph: Path
    params: Path
    library: Path
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    arena_bytes: int
    params_bytes: int
    model_sha256: str
    tvm_version: str
    layers: tuple[LayerReport, ...] = ()
    floats: Mapping[str, str] = field(default_factory=dict)
    states_bytes: int = 0
    device_code: Path | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        """What a bundle has of it, but for the object file."""
        code = () if self.device_code is None else sorted(self.folder.glob("kernels.[cp]*"))
        return (self.library, self.graph, self.params, *code)

    @property
    def objects(self) -> Path:
        """The object file with the kernels."""
        return self.folder / OBJECTS


@dataclass(frozen=True, kw_only=True)
class CompileTask:
    """All that the artifacts of a model depend on, but for the compiler."""

    model: LoadedModel
    spec: ModelSpec
    board: Board
    toolchain: Toolchain
    settings: CompileSettings
    gpu: Gpu | None

    @property
    def key(self) -> str:
        """A hash of all of it, and of the compiler."""
        settings, precision = self.settings, self.settings.precision
        board = {
            key: value
            for key, value in self.board.to_dict().items()
            if key not in ("title", "os", "origin", "virtual", "libc", "glibc")
        }
        parts: Mapping[str, Any] = {
            "model": self.model.sha256,
            "name": self.model.name,
            "shapes": {name: list(shape) for name, shape in sorted(self.spec.shapes.items())},
            "constants": dict(sorted(self.spec.constants.items())),
            "states": dict(self.model.states),
            "board": board,
            "gpu": None if self.gpu is None else asdict(self.gpu),
            "growth": settings.growth,
            "choices": {kernel: asdict(choice) for kernel, choice in settings.choices.items()},
            "precision": precision.name,
            "quantized": precision.quantized,
            "bounded": sorted(precision.bounded),
            "direct": precision.direct
            if isinstance(precision.direct, bool)
            else sorted(precision.direct),
            "floats": None if precision.floats is None else dict(precision.floats),
            "samples": [
                hashlib.sha256(array.tobytes()).hexdigest()
                for inputs in precision.samples
                for array in inputs
            ],
            "toolchain": self.toolchain.title,
            "dependencies": {
                **{name: importlib.metadata.version(name) for name in _DEPENDENCIES},
                **{name: _version(name) for name in _READS_WITH.get(self.model.path.suffix, ())},
            },
            "sources": {
                str(source.relative_to(_PACKAGE)): hashlib.sha256(source.read_bytes()).hexdigest()
                for source in _compiler_sources()
            },
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]


def keep_compiled(task: CompileTask, compile: Callable[[Path], CompiledModel]) -> CompiledModel:
    """The compiled model, from the cache; `compile` makes it in a folder if it is not there."""

    def make(work: Path) -> None:
        meta = {key: value for key, value in asdict(compile(work)).items() if key not in _PATHS}
        (work / _META).write_text(json.dumps(meta, indent=2))

    return _read_compiled(keep(cache_dir() / "compiled" / task.key, make))


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _compiler_sources() -> Iterator[Path]:
    for name in _SOURCES:
        source = _PACKAGE / name
        yield from source.rglob("*.py") if source.is_dir() else [source]


def _read_compiled(folder: Path) -> CompiledModel:
    from edgepack.compiler.backend.report import Joint, LayerReport, Stored
    from edgepack.model import TensorInfo

    def joint(item: Mapping[str, Any]) -> Joint:
        return Joint(shape=tuple(item["shape"]), start=item["start"])

    meta = read_json(folder / _META)
    for key in ("inputs", "outputs"):
        meta[key] = tuple(
            TensorInfo(
                name=item["name"],
                dtype=item["dtype"],
                shape=tuple(item["shape"]),
                bounded=tuple(item["bounded"]),
            )
            for item in meta[key]
        )
    meta["layers"] = tuple(
        LayerReport(
            **{
                **item,
                "shape": tuple(item["shape"]),
                "stored": Stored(**item["stored"]) if item["stored"] else None,
                "joint": joint(item["joint"]) if item["joint"] else None,
            }
        )
        for item in meta["layers"]
    )
    return CompiledModel(
        folder=folder,
        graph=folder / "graph.json",
        params=folder / "params.bin",
        library=folder / "model.so",
        device_code=next(iter(sorted(folder.glob("kernels.c*"))), None),
        **meta,
    )
