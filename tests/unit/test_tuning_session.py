"""What tuning tries, in which order, what it keeps, and how it goes on after an interruption.

The device is played: its times follow from what each kernel is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from edgepack.cli.pages.tune import costs_after, tune_page
from edgepack.deploy.conditions import Conditions
from edgepack.flow.records import Confirmation, Record, RecordFile, Trial, choose_records
from edgepack.kernels.choices import Choices, Ranked, Tunable, Way
from edgepack.tuning.rounds import Round, TimedBlock, Times
from edgepack.tuning.session import Budget, Network, Tuned, tune

# By pixels of its tile: what a kernel takes of the untuned one's time.
RATIOS = {1: 1.0, 2: 1.3, 3: 0.9, 4: 0.7, 5: 1.1, 6: 0.8}
KERNELS = [f"conv {name}" for name in "abcde"]


def ranked(pixels: int, cycles: float = 1e6) -> Ranked:
    return Ranked(choice=Way(rule="conv", pixels=pixels, vectors=1), cycles=cycles)


NETWORK = Network(
    cpu="aarch64 cortex-a53 x4",
    compiler="0123456789ab",
    model="ab" * 32,
    tunables=tuple(
        Tunable(
            signature=kernel,
            layers=("layer",),
            default=ranked(1),
            others=tuple(map(ranked, list(RATIOS)[1:])),
        )
        for kernel in KERNELS
    ),
)
WAYS = len(KERNELS) * (len(RATIOS) - 1)


@dataclass
class PlayedDevice:
    """Each kernel takes 1 ms, by `RATIOS`, but for a noise that is the same each time; the whole
    network takes `together` times that. `asked` are the variants that it was given."""

    together: Callable[[Choices], float] = lambda _: 1.0
    drift: float = 0.0
    wrong: tuple[int, ...] = ()
    asked: list[Sequence[Choices]] = field(default_factory=list)

    def measure(self, variants: Sequence[Choices], *, blocks: int) -> Round:
        self.asked.append(variants)
        return Round(
            blocks=tuple(self._block(variants, number) for number in range(blocks)),
            wrong=frozenset(self.wrong),
            same=tuple(frozenset(set(KERNELS) - set(variant)) for variant in variants),
            repeated=0,
        )

    def _block(self, variants: Sequence[Choices], number: int) -> TimedBlock:
        def times(choices: Choices, at: float) -> Times:
            clock = 1 + self.drift * (number + at) + 0.001 * (number * 7 % 5 - 2) * bool(choices)
            kernels = {
                kernel: clock * RATIOS[choices[kernel].pixels if kernel in choices else 1]
                for kernel in KERNELS
            }
            return Times(
                run_ms=sum(kernels.values()) * (self.together(choices) if choices else 1.0),
                kernels_ms=kernels,
            )

        return TimedBlock(
            untuned=(times({}, 0), times({}, 1)),
            variants=tuple(times(variant, 0.5) for variant in variants),
            before=Conditions(celsius=40.0),
            after=Conditions(celsius=41.0),
        )


def session(path: Path, device: PlayedDevice, budget: Budget | None = None) -> Tuned:
    return tune(NETWORK, device, RecordFile(path), budget=budget or Budget())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tuning.jsonl"


def trials(path: Path) -> list[Trial]:
    return [record for record in RecordFile(path).read() if isinstance(record, Trial)]


def test_every_way_is_tried_once_and_the_best_are_confirmed(path: Path) -> None:
    device = PlayedDevice()
    found = session(path, device)
    assert (found.trials, found.known, found.left) == (WAYS, 0, 0)
    tried = [(trial.kernel, trial.choice.pixels) for trial in trials(path)]
    assert sorted(tried) == sorted((kernel, p) for kernel in KERNELS for p in (2, 3, 4, 5, 6))
    # All kernels in each variant; two ways in the first round, three in the second; then the best.
    assert [len(variants) for variants in device.asked] == [2, 3, 1]
    assert {way.pixels for way in device.asked[0][0].values()} == {2}
    assert device.asked[2] == [{kernel: ranked(4).choice for kernel in KERNELS}]
    assert found.confirmation is not None
    assert found.confirmation.kept
    assert found.confirmation.ratio == pytest.approx(0.7, abs=0.01)
    assert set(found.kernels) == set(KERNELS)
    assert not found.is_noisy


def test_a_drift_of_the_clock_cancels_out(path: Path) -> None:
    session(path, PlayedDevice(drift=0.05))
    for trial in trials(path):
        assert trial.ratio == pytest.approx(RATIOS[trial.choice.pixels], rel=0.01)


def test_what_does_not_win_together_is_halved_and_then_given_up(path: Path) -> None:
    device = PlayedDevice(together=lambda _: 1.5)
    found = session(path, device)
    confirmations = [len(variants[0]) for variants in device.asked if len(variants) == 1][-2:]
    assert confirmations == [5, 2]
    assert found.confirmation is not None
    assert not found.confirmation.kept
    assert found.kernels == {}
    # Nothing of it is used, and nothing measured again.
    again = PlayedDevice()
    assert session(path, again).kernels == {}
    assert again.asked == []


def test_the_surer_half_is_kept_if_it_wins(path: Path) -> None:
    device = PlayedDevice(together=lambda choices: 1.5 if len(choices) > 2 else 1.0)
    found = session(path, device)
    assert len(found.kernels) == 2
    best = choose_records(
        RecordFile(path).read(), cpu=NETWORK.cpu, compiler=NETWORK.compiler, model=NETWORK.model
    )
    assert best.choices == {kernel: trial.choice for kernel, trial in found.kernels.items()}


def test_wrong_outputs_are_never_chosen(path: Path) -> None:
    found = session(path, PlayedDevice(wrong=(0, 1, 2, 3)))
    assert not any(trial.right for trial in trials(path))
    assert found.wrong == found.trials == WAYS
    assert found.kernels == {}
    assert found.confirmation is None


def test_code_that_is_the_same_is_no_gain(path: Path) -> None:
    class Deaf(PlayedDevice):
        def measure(self, variants: Sequence[Choices], *, blocks: int) -> Round:
            made = super().measure(variants, blocks=blocks)
            return Round(
                blocks=made.blocks,
                wrong=made.wrong,
                same=tuple(frozenset(KERNELS) for _ in variants),
                repeated=0,
            )

    assert session(path, Deaf()).confirmation is None
    assert {(trial.ratio, trial.low, trial.high) for trial in trials(path)} == {(1.0, 1.0, 1.0)}


def test_a_number_of_trials_is_kept_to(path: Path) -> None:
    assert session(path, PlayedDevice(), Budget(trials=7)).trials == 7
    assert len(trials(path)) == 7
    found = session(path, PlayedDevice(), Budget(trials=3))
    assert (found.trials, found.known, found.left) == (3, 7, WAYS - 10)


def test_no_round_is_begun_that_would_not_end_in_time(path: Path) -> None:
    now = [0.0]

    class Slow(PlayedDevice):
        """Ten seconds for each variant, the untuned network among them."""

        def measure(self, variants: Sequence[Choices], *, blocks: int) -> Round:
            now[0] += 10 * (len(variants) + 1)
            return super().measure(variants, blocks=blocks)

    device = Slow()
    budget = Budget(minutes=1.2)
    found = tune(NETWORK, device, RecordFile(path), budget=budget, clock=lambda: now[0])
    # 30 s; of the 42 that are left 30 are for the confirmation.
    assert [len(variants) for variants in device.asked] == [2, 1, 1]
    assert found.left == 2 * len(KERNELS)
    assert now[0] <= 72


def test_small_and_hopeless_kernels_are_left_alone(path: Path) -> None:
    small = Tunable(
        signature="conv small", layers=("s",), default=ranked(1, 100), others=(ranked(2, 90),)
    )
    hopeless = Tunable(
        signature="conv slow", layers=("h",), default=ranked(1), others=(ranked(2, 3e6),)
    )
    network = Network(
        cpu="c", compiler="d", model="ab" * 32, tunables=(*NETWORK.tunables, small, hopeless)
    )
    assert tune(network, PlayedDevice(), RecordFile(path)).trials == WAYS


class _InterruptedFile(RecordFile):
    """Ends the session after so many records, and half of the next one."""

    def __init__(self, path: Path, after: int) -> None:
        super().__init__(path)
        self.left = after

    def append(self, records: Sequence[Record]) -> None:
        if not self.left:
            with self.path.open("a") as file:
                file.write(records[0].to_json()[:40])
            raise KeyboardInterrupt
        self.left -= 1
        super().append(records)


def interruptions() -> Iterator[list[int]]:
    """Twenty moments one by one, and several in a row."""
    yield from ([count] for count in range(WAYS + 1))
    yield [1, 1, 3, 5, 8, 2]


@pytest.mark.parametrize("moments", interruptions(), ids=str)
def test_after_an_interruption_no_trial_is_made_twice(path: Path, moments: list[int]) -> None:
    for after in moments:
        with pytest.raises(KeyboardInterrupt):
            tune(NETWORK, PlayedDevice(), _InterruptedFile(path, after))
    found = session(path, PlayedDevice())
    assert found.known == sum(moments)
    assert found.trials == WAYS - sum(moments)
    made = [trial.key for trial in trials(path)]
    assert len(made) == len(set(made)) == WAYS
    assert {trial.choice.pixels for trial in found.kernels.values()} == {4}
    records = RecordFile(path).read()
    assert sum(isinstance(record, Confirmation) for record in records) == 1


def test_records_of_other_files_are_not_made_again(path: Path, tmp_path: Path) -> None:
    session(path, PlayedDevice(), Budget(trials=10))
    others = RecordFile(path).read()
    mine = RecordFile(tmp_path / "mine.jsonl")
    found = tune(NETWORK, PlayedDevice(), mine, others=others)
    assert (found.known, found.trials) == (10, WAYS - 10)


def test_the_page_shows_the_cost_over_trials(path: Path) -> None:
    found = session(path, PlayedDevice())
    made = tune_page(found, path, "net", estimated=False)
    written = trials(path)
    assert made.count("<circle") == len(written) == WAYS
    costs = costs_after(written)
    # Each kernel's best way takes 0.7 of its time, and they are equally slow.
    assert (costs[0], costs[-1]) == (1.0, pytest.approx(0.7, rel=0.01))
    assert costs == sorted(costs, reverse=True)
    assert "30.0% less" in made
    assert "40.0" in made
    assert str(NETWORK.cpu) in made
    for kernel in KERNELS:
        assert kernel in made
    # Of a trial whose outputs are wrong, and of one within the noise, nothing is gained.
    wrong = [replace(written[0], right=False, ratio=0.1, low=0.1, high=0.1)]
    assert costs_after(wrong) == [1.0, 1.0]
    nothing = session(path.with_name("none.jsonl"), PlayedDevice(), Budget(trials=0))
    assert "No kernel was found" in tune_page(nothing, path, "net", estimated=True)
