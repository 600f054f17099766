"""Photos of 12 megapixels to tensors of 224 x 224: edgepack-run beside Pillow.

Both let libjpeg-turbo decode a JPEG at 1/8 of its size, resize what that gives with the same
filter, crop it and normalise it. Counted are instructions on ARM, under qemu-user, and CPU time on
this machine. edgepack-run's are those of the whole program, its start among them; Pillow's are
those of a photo alone, in a process that has its modules.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from bench.arm import build_plugin, difference, run_with_plugin
from bench.fetch import bench_dir
from bench.host import run_timed, worker
from bench.ours import NAME
from bench.peers import DEBIAN_PACKAGES, WORKER, Emulator, emulator, host_python
from bench.photos import PACKAGES, unpack
from bench.results import Figure, Rows, geometric_mean, load, median, ratio, store
from edgepack.base.errors import MismatchError
from edgepack.base.paths import atomic_dir, locked
from edgepack.base.progress import Progress
from edgepack.boards import get_board
from edgepack.native.app import build_runtime
from edgepack.native.toolchain import select
from edgepack.preprocess.spec import PreprocessSpec, Resize

REQUIREMENTS = Path(__file__).with_name("requirements-pillow.lock")
BOARDS = ("rasp3b", "rasp3b-64")
PEER = "pillow"
WHOLE = "whole"
SIZE = (4000, 3000)
# worker.py's pillow() has the same numbers.
SPEC = PreprocessSpec(
    input="x",
    decode="scaled",
    resize=Resize(mode="shortest", height=256, width=256),
    interpolation="pil-bilinear",
    crop=(224, 224),
    scale=1 / 255,
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
)
# Of a tensor whose deviation is 1: Pillow's libjpeg-turbo may be of another version.
_TOLERANCE = 0.02
_ROUNDS = 15
_TITLES = {
    WHOLE: "edgepack, whole photo",
    NAME: NAME,
    PEER: "Pillow, draft mode",
}


@dataclass(frozen=True, kw_only=True)
class Shot:
    """A photograph of a Debian package, to be made as large as a camera's and stored with a quality
    of libjpeg's scale; colours have half as many pixels in each direction, as cameras have it."""

    name: str
    package: str
    file: str
    quality: int

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.quality}.jpg"


_LOMIRI, _MATE = "lomiri-wallpapers-16.04", "mate-backgrounds"
# From the smoothest, which is hardly more than a sky, to the grain of hides and grass.
SHOTS = (
    Shot(name="sunset", package=_LOMIRI, file="sunset_by_Aitzol_Berasategi.jpg", quality=85),
    Shot(name="dragonfly", package=_LOMIRI, file="Dragonfly_by_Bolly.jpg", quality=92),
    Shot(
        name="mountains", package=_LOMIRI, file="picosdeeuropa_by_Aitzol_Berasategi.jpg", quality=85
    ),
    Shot(name="elephants", package=_MATE, file="Elephants_5640x3172.jpg", quality=85),
    Shot(name="elephants", package=_MATE, file="Elephants_5640x3172.jpg", quality=92),
)


def shots() -> list[Path]:
    """The files of SHOTS, fetched and made if they are not in the cache."""
    key = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    folder = bench_dir() / f"camera-{key}"
    with locked(folder):
        if not folder.is_dir():
            with atomic_dir(folder) as work:
                for package in PACKAGES:
                    wanted = [shot for shot in SHOTS if shot.package == package.name]
                    with tempfile.TemporaryDirectory(prefix="edgepack-") as name:
                        if wanted:
                            _make(wanted, unpack(package, Path(name)), work)
    return [folder / shot.file_name for shot in SHOTS]


def _make(wanted: list[Shot], files: Path, folder: Path) -> None:
    for shot in wanted:
        (source,) = files.rglob(shot.file)
        image = cv2.imread(str(source))
        assert image is not None
        height, width = image.shape[:2]
        scale = max(SIZE[0] / width, SIZE[1] / height)
        sides = (round(width * scale), round(height * scale))
        large = cv2.resize(image, sides, interpolation=cv2.INTER_LANCZOS4)
        top, left = (sides[1] - SIZE[1]) // 2, (sides[0] - SIZE[0]) // 2
        settings = [cv2.IMWRITE_JPEG_QUALITY, shot.quality]
        settings += [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420]
        cropped = large[top : top + SIZE[1], left : left + SIZE[0]]
        cv2.imwrite(str(folder / shot.file_name), cropped, settings)


def measure(boards: Sequence[str], progress: Progress, *, rounds: int) -> None:
    """Counts, times and stores figures."""
    progress.step("fetching photos")
    found = shots()
    for board in boards:
        packages = (*DEBIAN_PACKAGES, "python3-pil")
        emulated = emulator(get_board(board), progress, packages=packages)
        for photo in found:
            progress.step(f"{board}: {photo.stem}")
            store("camera", {board: {_row(photo): _count(emulated, photo, progress)}})
    for photo in found:
        progress.step(f"this machine: {photo.stem}")
        store("camera", {"local": {_row(photo): _time(photo, progress, rounds)}})


def _row(photo: Path) -> str:
    return f"{photo.stem}, {photo.stat().st_size / 1e6:.1f} MB"


def _app(board: str, progress: Progress) -> Path:
    found = get_board(board)
    return build_runtime(found, select(found).toolchain, progress=progress).app


@contextlib.contextmanager
def _bundle(spec: PreprocessSpec) -> Iterator[Path]:
    """A folder with as much of a bundle as the app needs for a tensor."""
    with tempfile.TemporaryDirectory(prefix="edgepack-") as name:
        folder = Path(name)
        (folder / "manifest.json").write_text("{}")
        (folder / "preprocess.json").write_text(spec.to_json())
        yield folder


def _words(bundle: Path, photo: Path) -> list[str | Path]:
    words = ["--preprocess-only", "--json", "--threads", "1"]
    return ["--bundle", bundle, "--image", photo, *words, "--save-tensor", bundle / "tensor.npy"]


def count_ours(
    emulated: Emulator, photo: Path, progress: Progress, spec: PreprocessSpec = SPEC
) -> tuple[int, npt.NDArray[np.float32]]:
    """Guest instructions of edgepack-run from a photo to its tensor, and the tensor.

    Raises CountError if the program fails, and what building it raises.
    """
    app = _app(emulated.board.name, progress)
    with _bundle(spec) as folder:
        out = folder / "count"
        argv = emulated.argv(app, plugin=f"{build_plugin()},out={out}", env={})
        run_with_plugin([*argv, *_words(folder, photo)], out, f"{NAME} on {photo.name}", None)
        return int(out.read_text()), np.load(folder / "tensor.npy")


def _count(emulated: Emulator, photo: Path, progress: Progress) -> dict[str, Figure]:
    scaled, tensor = count_ours(emulated, photo, progress)
    whole, _ = count_ours(emulated, photo, progress, replace(SPEC, decode="full"))
    with tempfile.TemporaryDirectory(prefix="edgepack-") as name:
        folder = Path(name)
        np.save(folder / "none.npy", np.zeros(0))
        out = folder / "count"

        def count(photos: int) -> int:
            arguments: list[str | Path] = [photo, folder / "none.npy", folder, "1"]
            argv = emulated.peer(PEER, f"{build_plugin()},out={out}", arguments)
            run_with_plugin(argv, out, f"{PEER} on {photo.name}", f"{photos}\n".encode())
            return int(out.read_text())

        peers = difference(count, 1)
        _check(tensor, np.load(folder / "0.npy"), photo)
    return {NAME: Figure(value=scaled), WHOLE: Figure(value=whole), PEER: Figure(value=peers)}


def _time(photo: Path, progress: Progress, rounds: int) -> dict[str, Figure]:
    """CPU milliseconds, in turns."""
    app, python = _app("local", progress), host_python(progress, REQUIREMENTS)
    ours: list[float] = []
    theirs: list[float] = []
    with _bundle(SPEC) as folder:
        np.save(folder / "none.npy", np.zeros(0))
        arguments: list[str | Path] = [photo, folder / "none.npy", folder, "1"]
        with worker([python, WORKER, PEER, *arguments]) as run:
            run(1)
            for _ in range(max(rounds, _ROUNDS)):
                ours.append(run_timed([app, *_words(folder, photo)])[1])
                theirs.extend(run(1).cpu_ms)
        _check(np.load(folder / "tensor.npy"), np.load(folder / "0.npy"), photo)
    return {NAME: Figure(value=median(ours)), PEER: Figure(value=median(theirs))}


def _check(tensor: npt.NDArray[Any], peers: npt.NDArray[Any], photo: Path) -> None:
    difference = float(np.abs(tensor - peers).mean())
    if not difference <= _TOLERANCE:
        raise MismatchError(f"{photo.name}: tensors differ from Pillow's by {difference:.3f}")


def report() -> str:
    """Markdown of all figures so far."""
    tables = load("camera")
    parts = []
    for board in BOARDS:
        if rows := tables.get(board):
            title = f"**{get_board(board).triple}**, M instructions"
            parts.append(f"{title}\n\n{_table(rows, (WHOLE, NAME, PEER), 1e6)}")
    if rows := tables.get("local"):
        parts.append(f"**this machine, median CPU time, ms**\n\n{_table(rows, (NAME, PEER), 1)}")
    return "\n\n".join(parts)


def _table(rows: Rows, columns: Sequence[str], scale: float) -> str:
    lines = [["photo", *(_TITLES[name] for name in columns), "ratio"]]
    lines.append(["---", *["---:"] * (len(columns) + 1)])
    ratios = []
    by_size = sorted(rows, key=lambda row: float(row.rsplit(" ", 2)[1]))
    for name in by_size:
        pair = {engine: rows[name][engine] for engine in (NAME, PEER)}
        ratios.append(found := ratio(pair) or 0.0)
        values = [f"{(rows[name][engine].value or 0) / scale:.1f}" for engine in columns]
        lines.append([name, *values, f"{found:.2f}"])
    mean = geometric_mean(ratios)
    lines.append([f"geometric mean of {len(ratios)}", *[""] * len(columns), f"{mean or 0:.2f}"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
