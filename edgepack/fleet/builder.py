"""What makes one bundle of a fleet, run in a process of its own: see `edgepack.base.apart`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.flow.project import Project


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is to be made (of `project`, with its board), where, and whose key signs it."""

    project: Project
    out: Path
    key: Path | None


def make(order: Order, *, progress: Progress = NO_PROGRESS) -> Path:
    """The folder of the bundle."""
    from edgepack.bundle.signing import sign_folder
    from edgepack.flow.job import make_job, package_job

    bundle = package_job(make_job(order.project), order.out, progress=progress)
    if order.key is not None:
        sign_folder(bundle, order.key)
    return bundle.path
