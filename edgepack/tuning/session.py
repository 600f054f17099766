"""What is tried, in which order, and what is kept of it.

    survey -> trials, a few for every kernel in each round -> records
    the best of each kernel, all together -> A/B/A beside the untuned network -> confirmation

Each trial is written down as soon as its round is measured, so that a session that was interrupted
goes on where it was, and no trial is made twice.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgepack.base.intervals import median_interval
from edgepack.base.page import Tabular
from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.deploy.conditions import Conditions
from edgepack.flow.records import (
    Confirmation,
    Record,
    RecordFile,
    Trial,
    choose_records,
    propose_trials,
    trials_of,
)
from edgepack.kernels.choices import Choices, Tunable, Way
from edgepack.tuning.rounds import Round, TimedBlock, Timer, Times, spread

# Variants of a round: each is a network of its own to compile, and to send. The first round, which
# tells how long one takes, has fewer; the confirmation takes as long as three of them.
_VARIANTS = 4
_FIRST_VARIANTS = 2
_CONFIRMATION = 3
# Ways that are tried of a kernel. Further ones hardly ever won, where all were tried.
_MOST_WAYS = 12
# What the cost model takes for so much slower is not tried.
_HOPELESS = 2.0
# Kernels that the cost model gives less than this share of the network are left alone.
_SMALL = 0.002
TRIAL_BLOCKS = 16
VERDICT_BLOCKS = 24
# Where equal runs differ by more than this share, small gains cannot be told.
NOISY = 0.05


@dataclass(frozen=True, kw_only=True)
class Network:
    """What is tuned: `model` is the ONNX file's SHA-256, the others as in `Trial`."""

    cpu: str
    compiler: str
    model: str
    tunables: tuple[Tunable, ...]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """When to stop: after so many minutes, the last measurement included where it fits, and so many
    trials of this session."""

    minutes: float = 10.0
    trials: int | None = None


@dataclass(frozen=True, kw_only=True)
class Tuned(Tabular):
    """What a session found.

    `kernels` are the best trials of those kernels that are made otherwise from now on; there are
    none unless the `confirmation` is that all of them together win. `trials` were made in this
    session, `wrong` of them with other outputs than the reference's; `known` were made before, and
    `left` not for want of time. `noise` is the share by which equal runs differed, None if nothing
    was measured, and `repeated` the blocks that did not count. `conditions` are the first and the
    last of what was measured.
    """

    network: Network
    kernels: Mapping[str, Trial]
    confirmation: Confirmation | None
    trials: int
    known: int
    wrong: int
    left: int
    noise: float | None
    repeated: int
    conditions: tuple[Conditions, ...]

    def rows(self) -> list[dict[str, Any]]:
        """The kernels that are made otherwise from now on."""
        return [
            {
                "kernel": kernel,
                "choice": str(trial.choice),
                "before_ms": trial.default_ms,
                "ms": trial.ms,
                "ratio": trial.ratio,
            }
            for kernel, trial in self.kernels.items()
        ]

    @property
    def is_noisy(self) -> bool:
        """Whether small gains could not be told."""
        return self.noise is not None and self.noise > NOISY

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        confirmation = self.confirmation
        return {
            "cpu": self.network.cpu,
            "compiler": self.network.compiler,
            "model_sha256": self.network.model,
            "trials": self.trials,
            "known": self.known,
            "wrong": self.wrong,
            "left": self.left,
            "noise": self.noise,
            "repeated_blocks": self.repeated,
            "conditions": [str(one) for one in self.conditions],
            "confirmation": None
            if confirmation is None
            else {
                "kept": confirmation.kept,
                "default_ms": confirmation.default_ms,
                "ms": confirmation.ms,
                "ratio": confirmation.ratio,
                "low": confirmation.low,
                "high": confirmation.high,
                "blocks": confirmation.blocks,
            },
            "kernels": [
                {
                    "kernel": kernel,
                    "choice": str(trial.choice),
                    "default_ms": trial.default_ms,
                    "ms": trial.ms,
                    "ratio": trial.ratio,
                    "low": trial.low,
                    "high": trial.high,
                }
                for kernel, trial in sorted(self.kernels.items())
            ],
        }


def tune(
    network: Network,
    bench: Timer,
    records: RecordFile,
    *,
    others: Sequence[Record] = (),
    budget: Budget = Budget(),
    clock: Callable[[], float] = time.monotonic,
    progress: Progress = NO_PROGRESS,
) -> Tuned:
    """Tune a network, and write what is found to `records`.

    `others` are records of other files, whose trials are not made again. Raises what `bench` and
    `records` raise; what was written until then stays.
    """
    return _Session(network, bench, records, others, budget, clock, progress).run()


class _Session:
    """See `tune`."""

    def __init__(
        self,
        network: Network,
        bench: Timer,
        records: RecordFile,
        others: Sequence[Record],
        budget: Budget,
        clock: Callable[[], float],
        progress: Progress,
    ) -> None:
        self.network, self.bench, self.file = network, bench, records
        self.budget, self.clock, self.progress = budget, clock, progress
        self.records: list[Record] = [*others, *records.read()]
        self.ways = _worth_trying(network.tunables)
        self.known = len(self._tried())
        self.trials = self.wrong = 0
        self.rounds: list[Round] = []
        self.run_ms = 0.0
        self.deadline = clock() + 60 * budget.minutes
        # Seconds for one variant, compiled, sent and measured; 0 before the first round.
        self.each = 0.0

    def run(self) -> Tuned:
        """Trials until the time is over, then the confirmation."""
        while batch := self._next(self._room()):
            self._round(batch)
        self._confirm()
        confirmation = self._confirmation()
        return Tuned(
            network=self.network,
            kernels=self._trials_of(confirmation),
            confirmation=confirmation,
            trials=self.trials,
            known=self.known,
            wrong=self.wrong,
            left=sum(len(ways) for ways in self._untried().values()),
            noise=spread([b for r in self.rounds for b in r.blocks]) if self.rounds else None,
            repeated=sum(one.repeated for one in self.rounds),
            conditions=_conditions(self.rounds),
        )

    # ------------------------------------------------ trials

    def _tried(self) -> set[tuple[str, Way]]:
        kernels = {tunable.signature for tunable in self.network.tunables}
        network = self.network
        trials = trials_of(self.records, cpu=network.cpu, compiler=network.compiler)
        return {(trial.kernel, trial.choice) for trial in trials if trial.kernel in kernels}

    def _untried(self) -> dict[str, list[Way]]:
        tried = self._tried()
        left = {
            kernel: [way for way in ways if (kernel, way) not in tried]
            for kernel, ways in self.ways.items()
        }
        return {kernel: ways for kernel, ways in left.items() if ways}

    def _next(self, most: int) -> list[dict[str, Way]]:
        """The variants of the next round: the next ways of each kernel, one in each variant."""
        left = self._untried()
        room = math.inf if self.budget.trials is None else self.budget.trials - self.trials
        variants: list[dict[str, Way]] = []
        for number in range(most):
            variant = {kernel: ways[number] for kernel, ways in left.items() if number < len(ways)}
            kept = dict(list(variant.items())[: int(min(room, len(variant)))])
            room -= len(kept)
            if kept:
                variants.append(kept)
        return variants

    def _room(self) -> int:
        """How many variants the next round may have."""
        if not self.each:
            return _FIRST_VARIANTS
        left = (self.deadline - self.clock()) / self.each
        return max(0, min(_VARIANTS, int(left) - _CONFIRMATION))

    def _time_was(self, started: float, variants: int) -> None:
        """Note how long a measurement took; the untuned network is one more variant."""
        self.each = max(self.each, (self.clock() - started) / (variants + 1))

    def _round(self, variants: Sequence[Mapping[str, Way]]) -> None:
        count = sum(map(len, variants))
        gain = f"; so far {self._gain():.1%} less time" if self.rounds else ""
        kernels = len({kernel for variant in variants for kernel in variant})
        self.progress.step(f"{count} trials of {kernels} kernels{gain}")
        started = self.clock()
        measured = self.bench.measure(variants, blocks=TRIAL_BLOCKS)
        self._note(measured)
        for index, variant in enumerate(variants):
            for kernel, choice in variant.items():
                trial = self._trial(measured, index, kernel, choice)
                self.file.append([trial])
                self.records.append(trial)
                self.trials += 1
                self.wrong += not trial.right
        self._time_was(started, len(variants))

    def _note(self, measured: Round) -> None:
        self.rounds.append(measured)
        self.run_ms = statistics.median(
            math.sqrt(block.untuned[0].run_ms * block.untuned[1].run_ms)
            for block in measured.blocks
        )

    def _trial(self, measured: Round, index: int, kernel: str, choice: Way) -> Trial:
        def of(times: Times) -> float:
            # A kernel may take less than the clock's resolution.
            return max(times.kernels_ms.get(kernel, 0.0), 1e-6)

        default = [_middle(block, of) for block in measured.blocks]
        own = [of(block.variants[index]) for block in measured.blocks]
        if kernel in measured.same[index]:
            own = default  # the very same code, for the cost model had the last word
        ratio, low, high = median_interval(default, own)
        return Trial(
            cpu=self.network.cpu,
            compiler=self.network.compiler,
            kernel=kernel,
            choice=choice,
            ms=_rounded(statistics.median(own)),
            default_ms=_rounded(statistics.median(default)),
            **_bounds(ratio, low, high),
            blocks=len(measured.blocks),
            right=index not in measured.wrong,
        )

    # ------------------------------------------------ what is kept

    def _trials_of(self, confirmation: Confirmation | None) -> dict[str, Trial]:
        """The trials of what won together."""
        if confirmation is None or not confirmation.kept:
            return {}
        network = self.network
        trials = trials_of(self.records, cpu=network.cpu, compiler=network.compiler)
        return {
            trial.kernel: trial
            for trial in trials
            if confirmation.choices.get(trial.kernel) == trial.choice
        }

    def _proposed(self) -> dict[str, Trial]:
        """The most promising trials of this network's kernels."""
        network = self.network
        best = propose_trials(self.records, cpu=network.cpu, compiler=network.compiler)
        kernels = {tunable.signature for tunable in network.tunables}
        return {kernel: trial for kernel, trial in best.items() if kernel in kernels}

    def _gain(self) -> float:
        """What the most promising trials save of a run, if their gains add up."""
        saved = sum(trial.default_ms * (1 - trial.ratio) for trial in self._proposed().values())
        return saved / self.run_ms if self.run_ms else 0.0

    def _confirm(self) -> None:
        """Try the most promising ways together; if they do not win, the surer half of them."""
        best = self._proposed()
        choices = {kernel: trial.choice for kernel, trial in best.items()}
        if not choices or self._judged(choices) is not None:
            return
        surest = sorted(best, key=lambda kernel: best[kernel].default_ms * (best[kernel].high - 1))
        half = {kernel: choices[kernel] for kernel in surest[: len(surest) // 2]}
        won = self._judge(choices).kept
        in_time = self.clock() + _CONFIRMATION * self.each < self.deadline
        if not won and half and self._judged(half) is None and in_time:
            self._judge(half)

    def _confirmation(self) -> Confirmation | None:
        """What the network is compiled by from now on, else what was judged last."""
        network = self.network
        found = choose_records(
            self.records, cpu=network.cpu, compiler=network.compiler, model=network.model
        )
        own = [record for record in found.records if isinstance(record, Confirmation)]
        return next(iter(own or reversed(self._confirmations())), None)

    def _confirmations(self) -> list[Confirmation]:
        network = self.network
        own = (network.cpu, network.compiler, network.model)
        return [
            record
            for record in self.records
            if isinstance(record, Confirmation)
            and (record.cpu, record.compiler, record.model) == own
        ]

    def _judged(self, choices: Choices) -> Confirmation | None:
        """A confirmation of before, of the very same choices."""
        return next((one for one in self._confirmations() if one.choices == choices), None)

    def _judge(self, choices: Mapping[str, Way]) -> Confirmation:
        self.progress.step(
            f"the best of {len(choices)} kernels together, in turns with the untuned network"
        )
        started = self.clock()
        measured = self.bench.measure([choices], blocks=VERDICT_BLOCKS)
        self._note(measured)
        self._time_was(started, 1)

        def of(times: Times) -> float:
            return times.run_ms

        default = [_middle(block, of) for block in measured.blocks]
        own = [of(block.variants[0]) for block in measured.blocks]
        ratio, low, high = median_interval(default, own)
        confirmation = Confirmation(
            cpu=self.network.cpu,
            compiler=self.network.compiler,
            model=self.network.model,
            choices=choices,
            ms=_rounded(statistics.median(own)),
            default_ms=_rounded(statistics.median(default)),
            **_bounds(ratio, low, high),
            blocks=len(measured.blocks),
            right=not measured.wrong,
        )
        self.file.append([confirmation])
        self.records.append(confirmation)
        return confirmation


def _worth_trying(tunables: Sequence[Tunable]) -> dict[str, list[Way]]:
    """Ways to make each kernel that takes some time, in the order in which they are tried."""
    total = sum(one.default.cycles * len(one.layers) for one in tunables)
    found = {}
    for one in tunables:
        if one.default.cycles * len(one.layers) >= _SMALL * total:
            ways = [
                way.choice for way in one.others if way.cycles <= _HOPELESS * one.default.cycles
            ]
            if ways:
                found[one.signature] = ways[:_MOST_WAYS]
    return found


def _middle(block: TimedBlock, of: Callable[[Times], float]) -> float:
    """The untuned network's time between its two of a block: a drift cancels out."""
    return math.sqrt(of(block.untuned[0]) * of(block.untuned[1]))


def _bounds(ratio: float, low: float, high: float) -> dict[str, float]:
    """Rounded such that they stay in order."""
    return {"ratio": _rounded(ratio), "low": _rounded(low), "high": _rounded(high)}


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def _conditions(rounds: Sequence[Round]) -> tuple[Conditions, ...]:
    """The first and the last."""
    blocks = [block for one in rounds for block in one.blocks]
    return (blocks[0].before, blocks[-1].after) if blocks else ()
