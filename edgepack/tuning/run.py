"""A job's model tuned: on a device, or by estimated cycles where that is a virtual board."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.compiler import cpu_key
from edgepack.compiler.limited import within
from edgepack.compiler.variants import survey_kernels
from edgepack.device import SshOptions, open_device
from edgepack.device.limit import limited
from edgepack.flow.job import Job, model_limits, settings_of
from edgepack.flow.records import ESTIMATED, RecordFile, read_records
from edgepack.kernels.choices import maker
from edgepack.tuning.estimated import CycleTimer, on_one_core
from edgepack.tuning.rounds import DeviceTimer, Timer
from edgepack.tuning.session import Budget, Network, Tuned, tune

MEASURING_S = 3600.0
"""What many runs on a slow board may take."""
# What is tuned by an emulator's own times.
_EMULATED = " emulated"


def is_estimated(job: Job, *, emulated: bool) -> bool:
    """Whether a model would be tuned by estimated cycles. Raises UsageError without a device."""
    return _is_virtual(job) and not emulated


def _is_virtual(job: Job) -> bool:
    return job.project.need_device() == "virtual" and not job.board.is_local


def tune_job(
    job: Job,
    own: Path,
    *,
    read: Sequence[Path] = (),
    minutes: float = 10,
    trials: int | None = None,
    emulated: bool = False,
    ssh: SshOptions | None = None,
    progress: Progress = NO_PROGRESS,
) -> Tuned:
    """Find faster kernels for a job's model on its device, and write them to the records in `own`.

    Trials in `read` are not made again. With `emulated` a virtual board is timed by its emulator,
    to see how it works. Raises what the device, compiling and `RecordFile` raise; what was written
    until then stays, and the same call goes on from there.
    """
    virtual, estimated = _is_virtual(job), is_estimated(job, emulated=emulated)
    records = RecordFile(own)
    others = read_records(path for path in read if path != own)
    records.read()
    with (
        records.session() as session,
        _timer(job, session, ssh, minutes, progress, estimated=estimated) as timer,
    ):
        tunables = within(
            job.spec.path,
            model_limits(job),
            survey_kernels,
            job.spec,
            job.board,
            settings=settings_of(job),
            progress=progress,
        )
        suffix = ESTIMATED if estimated else _EMULATED if virtual else ""
        network = Network(
            cpu=cpu_key(job.board) + suffix,
            compiler=maker(),
            model=job.model.sha256,
            tunables=on_one_core(tunables) if estimated else tunables,
        )
        return tune(
            network,
            timer,
            records,
            others=others,
            budget=Budget(minutes=minutes, trials=trials),
            progress=progress,
        )


@contextmanager
def _timer(
    job: Job,
    session: str,
    ssh: SshOptions | None,
    minutes: float,
    progress: Progress,
    *,
    estimated: bool,
) -> Iterator[Timer]:
    """What times variants: the device, or estimated cycles where it is a virtual board."""
    if estimated:
        yield CycleTimer(job, progress=progress)
        return
    project = job.project
    spec = project.need_device()
    with closing(open_device(spec, job.board, options=ssh, progress=progress)) as device:
        # Who tunes a model of this name on the device at the same time is in another folder.
        folder = f"{project.root or 'edgepack'}/.tuning-{project.name}-{session}"
        # Compiling counts as well, and what is confirmed when the minutes are over.
        seconds = 2 * 60 * minutes + MEASURING_S
        with (
            limited(device, seconds, "tuning"),
            DeviceTimer(job, device, folder, progress=progress) as timer,
        ):
            yield timer
