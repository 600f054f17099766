"""The two plans of one release, for the CPU and for a GPU, timed on a device in turns."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from edgepack.base.errors import NothingThereError, RemoteError
from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.deploy.ab_timing import DUEL_S, AbTiming, request_of, take_turns
from edgepack.deploy.answers import SenselessError
from edgepack.deploy.app_answers import AppAnswer, Bench, RanOn
from edgepack.deploy.remote_app import ask_app
from edgepack.device.base import Device
from edgepack.device.limit import limited

PROCESSORS = ("cpu", "gpu")
# What the supervisor says to a program whose last starts were ended by the GPU's driver: so many
# that the CPU runs the model.
_ON_CPU = ("EDGEPACK_GPU_LOST=3",)
# As on the first start after a deploy: no kernel that a driver has compiled is kept anywhere.
_NOTHING_KEPT = ("CACHE_DIRECTORY=/nonexistent", "CUDA_CACHE_DISABLE=1", "POCL_KERNEL_CACHE=0")


@dataclass(frozen=True, kw_only=True)
class Use:
    """What a processor takes of a device besides the time of a run.

    `first_ms` is until the first result is there, if the driver has never compiled the kernels:
    some do so when a model is loaded, others when it runs. `load_ms` is to load it from then on (a
    median). Then come the program's peak of memory, and what of the GPU's own the model takes.
    """

    first_ms: float
    load_ms: float
    rss_peak_bytes: int
    gpu_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class ProcessorTiming:
    """Times of both processors, `timing.a` and `timing.b` by name, and what they take."""

    timing: AbTiming
    uses: dict[str, Use]
    gpu: str

    def to_dict(self) -> dict[str, Any]:
        """For JSON: what two releases give, and `uses` and `gpu`."""
        uses = {name: asdict(use) for name, use in self.uses.items()}
        return {**self.timing.to_dict(), "uses": uses, "gpu": self.gpu}


def time_processors(
    device: Device,
    root: str,
    order: tuple[str, str],
    options: Sequence[str],
    *,
    runs: int,
    progress: Progress = NO_PROGRESS,
) -> ProcessorTiming:
    """The current release on both processors, `order` says which is a; as `time_in_turns`.

    Raises NothingThereError unless it has a plan for each, RemoteError if the GPU does not run it,
    and what `ask_app` raises.
    """
    words = ("--bench", str(runs), *options)
    with limited(device, DUEL_S, "the comparison"):
        request = request_of(device, root, "", words)
        requests = {name: replace(request, environment=_environment(name)) for name in order}
        first_ms: dict[str, float] = {}
        gpu = ""
        for name in PROCESSORS:
            progress.step(f"the first run on the {name.upper()}")
            fresh = replace(
                requests[name],
                options=(*requests[name].options[: -len(words)], "--bench", "1", "--warmup", "0"),
                environment=(*_environment(name), *_NOTHING_KEPT),
            )
            answer = ask_app(device, root, fresh)
            gpu = _checked(device, name, answer).gpu or gpu
            first_ms[name] = answer.times_ms["load"] + _bench_of(device, answer).p50_ms
        answers: dict[str, list[AppAnswer]] = {name: [] for name in order}

        def look(name: str, answer: AppAnswer) -> None:
            _checked(device, name, answer)
            answers[name].append(answer)

        timing = take_turns(device, root, requests, runs=runs, progress=progress, look=look)
    return ProcessorTiming(
        timing=timing,
        uses={name: _use(first_ms[name], answers[name]) for name in order},
        gpu=gpu,
    )


def _environment(processor: str) -> tuple[str, ...]:
    return _ON_CPU if processor == "cpu" else ()


def _bench_of(device: Device, answer: AppAnswer) -> Bench:
    bench = answer.whole_bench or answer.bench
    if bench is None:
        raise SenselessError(f"{device.name}: edgepack-run measured nothing")
    return bench


def _use(first_ms: float, answers: Sequence[AppAnswer]) -> Use:
    return Use(
        first_ms=first_ms,
        load_ms=statistics.median(answer.times_ms["load"] for answer in answers),
        rss_peak_bytes=max(answer.memory.rss_peak_bytes for answer in answers if answer.memory),
        gpu_bytes=max(answer.ran_on.gpu_bytes for answer in answers if answer.ran_on),
    )


def _checked(device: Device, processor: str, answer: AppAnswer) -> RanOn:
    """What an answer says of its processor, which has to be this one."""
    ran_on = answer.ran_on
    other = "a GPU" if ran_on is None else "the CPU"
    if ran_on is None or (processor == "cpu" and ran_on.processor != "cpu"):
        raise NothingThereError(
            f"{device.name}: the release there has no plan for {other}",
            hint='deploy it with --compute "gpu, else cpu"',
        )
    if processor != ran_on.processor or ran_on.failures:
        raise RemoteError(f"{device.name}: the GPU does not run the model: {ran_on.why}")
    if "load" not in answer.times_ms or answer.memory is None:
        raise SenselessError(f"{device.name}: edgepack-run measured nothing")
    return ran_on
