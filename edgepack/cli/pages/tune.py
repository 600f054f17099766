"""The page of `tune`: what was tried, and what it was worth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edgepack.base import charts, page
from edgepack.base.page import Html

if TYPE_CHECKING:
    from edgepack.flow.records import Trial
    from edgepack.tuning.session import Tuned

_SHOWN_KERNELS = 100


def tune_page(found: Tuned, own: Path, title: str, *, estimated: bool, mark: str = "") -> Html:
    """The outcome, the cost of all kernels that were tried after each trial, and each trial.

    Trials are those in the file `own`, in which earlier sessions' are, too. `estimated`: times are
    not measured; `mark` stands beside what an emulator took.
    """
    trials = _trials_in(own, found)
    whole = found.confirmation
    parts = [_verdict(found, mark), _facts(found, estimated=estimated)]
    if trials:
        costs = costs_after(trials)
        parts.append(
            page.section(
                "Cost over trials",
                "The time of all kernels that were tried, after each trial, by the best way of "
                "each so far: 1 is the untuned network's.",
                charts.curves(
                    {"cost": list(enumerate(costs))},
                    title="cost over trials",
                    x=(0.0, float(len(trials))),
                    y=(0.0, max(1.0, *costs)),
                    ends=(("0", f"{len(trials)} trials"), ("0", "1")),
                ),
                page.facts({"after all trials": f"{costs[-1]:.3f}"}),
            )
        )
        parts.append(
            page.section(
                "Each trial",
                "Its kernel's time for one of the untuned one's, in the order of the file: what "
                "lies below the line is faster.",
                charts.dots(
                    [trial.ratio for trial in trials], unit="", title="trials", lines={"1": 1.0}
                ),
            )
        )
    unit = f"ms{mark}"
    rows = [
        (
            kernel,
            str(trial.choice),
            f"{trial.default_ms:.3f}",
            f"{trial.ms:.3f}",
            f"{trial.ratio:.3f}",
            f"{trial.low:.3f} to {trial.high:.3f}",
        )
        for kernel, trial in sorted(found.kernels.items(), key=_gain)[:_SHOWN_KERNELS]
    ]
    header = ("kernel", "choice", f"{unit} before", unit, "ratio", "with 95 % confidence")
    if rows and whole is not None:
        parts.append(
            page.section(
                "Made otherwise from now on",
                page.table(rows, header, (False, False, True, True, True, True)),
            )
        )
    return page.page(title, *parts, kind="tune")


def _gain(item: tuple[str, Trial]) -> float:
    trial = item[1]
    return trial.default_ms * (trial.ratio - 1)


def _trials_in(own: Path, found: Tuned) -> list[Trial]:
    """Those of this network's kernels, in the order in which they were written."""
    from edgepack.flow.records import Trial, read_records

    network = found.network
    kernels = {tunable.signature for tunable in network.tunables}
    return [
        record
        for record in (read_records([own]) if own.exists() else ())
        if isinstance(record, Trial)
        and (record.cpu, record.compiler) == (network.cpu, network.compiler)
        and record.kernel in kernels
    ]


def costs_after(trials: Sequence[Trial]) -> list[float]:
    """The time of all kernels that are tried in `trials` before the first of them and after each,
    by the best way that won until then, for one of the untuned ones' time.
    """
    untuned: dict[str, float] = {}
    for trial in trials:
        untuned.setdefault(trial.kernel, trial.default_ms)
    total = sum(untuned.values()) or 1.0
    best = dict.fromkeys(untuned, 1.0)
    costs = [1.0]
    for trial in trials:
        if trial.wins:
            best[trial.kernel] = min(best[trial.kernel], trial.ratio)
        costs.append(sum(untuned[kernel] * ratio for kernel, ratio in best.items()) / total)
    return costs


def _verdict(found: Tuned, mark: str) -> Html:
    whole = found.confirmation
    if whole is None:
        return page.verdict("No kernel was found that is faster by more than the noise")
    said = f"{whole.default_ms:.2f} ms{mark} untuned, {whole.ms:.2f} ms{mark} tuned"
    if not whole.kept:
        return page.verdict(f"{said}: nothing is kept")
    return page.verdict(f"{said}: {1 - whole.ratio:.1%} less", ok=True)


def _facts(found: Tuned, *, estimated: bool) -> Html:
    whole = found.confirmation
    sure = "by all assumptions" if estimated else "with 95 % confidence"
    conditions = found.conditions if not estimated else ()
    return page.facts(
        {
            "CPU": found.network.cpu,
            "tuned / untuned": whole
            and f"{whole.ratio:.3f}, {sure} {whole.low:.3f} to {whole.high:.3f}",
            "trials": f"{found.trials} now, {found.known} known before, {found.left} left",
            "in variants with wrong outputs": found.wrong or None,
            "equal runs differed by": None
            if estimated or found.noise is None
            else f"{found.noise:.1%}",
            "blocks repeated": found.repeated or None,
            "before": conditions[0] if conditions else None,
            "after": conditions[-1] if conditions else None,
        }
    )
