"""edgepack's own side: bundles of the benchmark's models."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from bench import avx2
from bench.fetch import bench_dir
from bench.models import BenchModel
from edgepack.base.errors import MismatchError
from edgepack.base.progress import Progress
from edgepack.flow.job import Job, compile_job, make_job, package_job
from edgepack.flow.optimize import DEFAULT_OPTIMIZE
from edgepack.flow.project import load_project
from edgepack.frontend.precision import FULL

NAME = "edgepack"
# The same under the setting that nobody has to choose.
DEFAULT = "edgepack-default"
# How each of them is compiled (`--optimize`).
SETTINGS = {NAME: "speed", DEFAULT: DEFAULT_OPTIMIZE}
TOLERANCE = 1e-4


@dataclass(frozen=True, kw_only=True)
class Packaged:
    """A bundle's folder, the bytes its tensors share at run time, and those of its parameters."""

    folder: Path
    arena_bytes: int
    params_bytes: int
    tolerance: float

    def is_like(self, other: Packaged) -> bool:
        """Whether both run the same code with the same parameters."""
        files = ("model/graph.json", "model/model.so", "model/params.bin")
        return all(
            (self.folder / name).read_bytes() == (other.folder / name).read_bytes()
            for name in files
        )

    def argv(self, *, runs: int, threads: int) -> list[str | Path]:
        """Runs the golden input `runs` times, after one time to warm up."""
        words = f"--golden --bench {runs} --warmup 1 --threads {threads} --affinity none --json"
        words += f" --tolerance {self.tolerance}"
        app = self.folder / "bin" / "edgepack-run"
        return [app, "--bundle", self.folder, *words.split()]


def package(
    model: BenchModel,
    board_name: str,
    progress: Progress,
    *,
    precision: str = FULL.name,
    engine: str = NAME,
) -> Packaged:
    """The bundle of `model` for a board. Its golden input is the model's sample."""
    progress.step(f"packaging {model.name} for {board_name}")
    optimize = SETTINGS[engine]
    job = _job(model, board_name, precision=precision, optimize=optimize)
    out = bench_dir() / "bundles" / f"{model.name}-{precision}-{optimize}-{board_name}"
    bundle = package_job(job, out, progress=progress)
    for other in out.iterdir():  # of kernels that have changed since
        if other != bundle.path:
            shutil.rmtree(other, ignore_errors=True)
    return Packaged(
        folder=bundle.path,
        arena_bytes=bundle.manifest.model.arena_bytes,
        params_bytes=bundle.manifest.model.params_bytes,
        tolerance=bundle.manifest.tolerance,
    )


def compiled_library(model: BenchModel, board_name: str, progress: Progress) -> Path:
    """The kernels of `model` for a board."""
    return compile_job(_job(model, board_name), progress=progress).library


def _job(
    model: BenchModel,
    board_name: str,
    *,
    precision: str = FULL.name,
    optimize: str = SETTINGS[NAME],
) -> Job:
    # Peers transform weights when they load them, into memory that nobody counts. What is measured
    # is compared with the reference then.
    flags = {"model": model.path, "name": model.name, "board": board_name, "scores": "raw"}
    if board_name == avx2.BOARD:
        flags["boards"] = [avx2.BOARDS]
    job = make_job(
        load_project(None, {**flags, "optimize": optimize, "precision": precision, "verify": False})
    )
    # They are photos, sounds and texts as their preprocessing makes them.
    inputs = tuple(info.name for info in job.model.inputs)
    return replace(job, project=replace(job.project, bounded=inputs))


def check(report: dict[str, object], what: str) -> float:
    """Largest |error| over largest |reference| in edgepack-run's JSON; raises MismatchError."""
    expected = report["expected"]
    assert isinstance(expected, dict)
    error = float(expected["max_abs_error"]) / float(expected["max_abs_reference"])
    if not expected["ok"]:
        raise MismatchError(f"{what}: outputs differ by {error:.1e} of their largest value")
    return error
