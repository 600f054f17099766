"""The runtimes edgepack is measured against: which, where from, and how to start them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.fetch import Wheel, bench_dir, unpacked
from edgepack.base.paths import atomic_dir, locked
from edgepack.base.process import run
from edgepack.base.progress import Progress
from edgepack.boards import Board
from edgepack.cycles import trace
from edgepack.virtual import apt, profile

WORKER = Path(__file__).with_name("worker.py")
REQUIREMENTS = Path(__file__).with_name("requirements.lock")

# engine (a name of worker.ENGINES) -> title
TITLES = {
    "onnxruntime": "onnxruntime 1.31.1",
    "ncnn": "ncnn 1.0.20261020",
    "ncnn-half": "ncnn 1.0.20261020, half precision",
    "openvino": "OpenVINO 2026.4.1",
    "openvino-vnni": "OpenVINO 2026.4.1, no AMX",
    "litert": "LiteRT 2.3.0",
    "tflite": "tflite-runtime 2.14.0",
}
HOST_ENGINES = ("onnxruntime", "ncnn", "openvino", "litert")

_FLATBUFFERS = Wheel(
    name="flatbuffers",
    version="25.12.19",
    platform="any",
    sha256="7634f50c427838bb021c2d66a3d1168e9d199b0607e6329399f04846d42e20b4",
)
# Debian architecture -> engine -> wheels. There are no others for 32-bit ARM.
ARM_WHEELS: dict[str, dict[str, tuple[Wheel, ...]]] = {
    "armhf": {
        "ncnn": (
            Wheel(
                name="ncnn",
                version="1.0.20261020",
                platform="manylinux_2_31_armv7l",
                sha256="fa8e1d7442f7de63871c2a71ae610090cc8e18e508099edbf8327caec5a87b8d",
            ),
        ),
        "tflite": (
            Wheel(
                name="tflite_runtime",
                version="2.14.0",
                platform="manylinux_2_34_armv7l",
                sha256="c4e66a74165b18089c86788400af19fa551768ac782d231a9beae2f6434f7949",
            ),
        ),
    },
    "arm64": {
        "ncnn": (
            Wheel(
                name="ncnn",
                version="1.0.20261020",
                platform="manylinux_2_28_aarch64",
                sha256="0503da4f3960ee2e555feef55db13adffd6c62eb59a4bd22f8083b12d1757ad8",
            ),
        ),
        "tflite": (
            Wheel(
                name="tflite_runtime",
                version="2.14.0",
                platform="manylinux_2_34_aarch64",
                sha256="ce9fa5d770a9725c746dcbf6f59f3178233b3759f09982e8b2db8d2234c333b0",
            ),
        ),
        "litert": (
            Wheel(
                name="ai_edge_litert",
                version="2.3.0",
                platform="manylinux_2_27_aarch64",
                sha256="853fc608f96da87bd5f3458465dfb9abbf18d5ae6b94eceacead407146f175ae",
            ),
            _FLATBUFFERS,
        ),
        "onnxruntime": (
            Wheel(
                name="onnxruntime",
                version="1.31.1",
                platform="manylinux_2_28_aarch64",
                sha256="da05378364c44d4407e463982d2bf8d5e4cfea873283757e48beeb41df97b7f3",
            ),
            _FLATBUFFERS,
        ),
    },
}
# Python and numpy come from Debian: the index has no numpy for 32-bit ARM.
_SUITE = "bookworm"
_PYTHON = "usr/bin/python3.11"
DEBIAN_PACKAGES = ("python3-minimal", "python3-numpy", "libatomic1", "libgomp1", "libstdc++6")
_EXCLUDE = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*")
_OF_THE_MACHINE = ("dev", "proc", "sys", "tmp")


def host_python(progress: Progress, requirements: Path = REQUIREMENTS) -> Path:
    """Python of an environment with the host's peers, made if it is not in the cache."""
    key = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = bench_dir() / f"venv-{key}"
    python = folder / "bin" / "python"
    with locked(folder):
        if not (folder / "ready").exists():
            progress.step("installing the peers into an environment of their own")
            shutil.rmtree(folder, ignore_errors=True)
            # Environments do not survive a rename, hence the file that says it is whole.
            run([sys.executable, "-m", "venv", folder])
            run(
                [
                    *(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
                    *("--no-deps", "--requirement", requirements),
                ],
                what="pip install of the peers",
            )
            (folder / "ready").touch()
    return python


@dataclass(frozen=True, kw_only=True)
class Emulator:
    """qemu-user in the guise of a board.

    `root` is what the guest sees of /: Debian's Python, and the board's own /proc/cpuinfo and
    /sys/devices/system/cpu, by which the peers choose their kernels (and without which some
    crash).
    """

    board: Board
    root: Path

    def argv(self, program: Path, *, plugin: str, env: dict[str, str]) -> list[str | Path]:
        """Starts `program` with the environment `env` only: its size changes the count."""
        assert self.board.virtual is not None
        qemu = trace.emulator(self.board.debian_arch)
        settings = [word for name, value in env.items() for word in ("-E", f"{name}={value}")]
        words: list[str | Path] = [
            "env",
            "-i",
            qemu,
            "-cpu",
            self.board.virtual.qemu_cpu,
            "-L",
            str(self.root),
        ]
        return [*words, "-plugin", plugin, *settings, program]

    def peer(self, engine: str, plugin: str, arguments: list[str | Path]) -> list[str | Path]:
        """Starts the worker with `engine` and `arguments`."""
        library = self.root / "usr" / "lib" / self.board.triple
        package = engine.removesuffix("-half")
        wheels = ARM_WHEELS[self.board.debian_arch].get(package, ())  # else Debian's
        env = {
            # Debian's alternatives, which are links that only an installation makes.
            "LD_LIBRARY_PATH": os.pathsep.join(
                str(path) for path in (library, library / "blas", library / "lapack")
            ),
            "PYTHONPATH": os.pathsep.join(str(unpacked(wheel)) for wheel in wheels),
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        python = self.root / _PYTHON
        return [*self.argv(python, plugin=plugin, env=env), WORKER, engine, *arguments]


def emulator(
    board: Board, progress: Progress, *, packages: Sequence[str] = DEBIAN_PACKAGES
) -> Emulator:
    """The emulator of an ARM `board`, with Debian's `packages`.

    Its root file system is made if it is not in the cache.
    """
    assert board.virtual is not None
    recipe = json.dumps([_SUITE, packages, _EXCLUDE])
    key = hashlib.sha256(recipe.encode()).hexdigest()[:12]
    base = bench_dir() / "roots" / f"{board.debian_arch}-{key}"
    with locked(base):
        if not base.is_dir():
            progress.step(f"fetching Python for {board.debian_arch}")
            with atomic_dir(base) as work:
                apt.unpack(packages, work, suite=_SUITE, arch=board.debian_arch, exclude=_EXCLUDE)
    files = {"proc/cpuinfo": profile.cpuinfo(board, board.virtual)}
    files |= {f"sys/{name}": text for name, text in profile.sys_files(board).items()}
    key = hashlib.sha256(json.dumps([recipe, files]).encode()).hexdigest()[:12]
    root = bench_dir() / "roots" / f"{board.name}-{key}"
    with locked(root):
        if not root.is_dir():
            with atomic_dir(root) as work:
                for source in sorted(base.iterdir()):
                    if source.is_symlink():
                        (work / source.name).symlink_to(source.readlink())
                    elif source.name not in _OF_THE_MACHINE:
                        shutil.copytree(
                            source, work / source.name, symlinks=True, copy_function=_link
                        )
                for name, text in files.items():
                    (work / name).parent.mkdir(parents=True, exist_ok=True)
                    (work / name).write_text(text)
    return Emulator(board=board, root=root)


def _link(source: str, target: str) -> None:
    """A second name for a file instead of a copy, for shutil.copytree."""
    os.link(source, target, follow_symlinks=False)
