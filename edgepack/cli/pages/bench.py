"""The page of `bench`."""

from __future__ import annotations

import statistics
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from edgepack.base import charts, page
from edgepack.base.page import Html
from edgepack.base.text import milliseconds
from edgepack.cli.pages.times import run_times

if TYPE_CHECKING:
    from edgepack.deploy.answers import Release
    from edgepack.deploy.app_answers import AppAnswer
    from edgepack.deploy.conditions import Conditions
    from edgepack.deploy.stage_times import StageTimes

# Fewer runs are no quarters that could be compared.
_QUARTERS = 8
_ONCE = "load"


def bench_page(
    answer: AppAnswer,
    title: str,
    *,
    release: Release | None = None,
    conditions: tuple[Conditions, Conditions] | None = None,
    frame: AppAnswer | None = None,
    stages: StageTimes | None = None,
) -> Html:
    """Each run's latency in order, their percentiles, the parts of a frame, layers, memory; of
    which release, when, and what the device's clock and temperature were before and after.

    `frame` is the answer to a photo, of which the golden input's has no decoding. With `stages`
    there is a table of all models; the rest is of the first.
    """
    from edgepack.cli.result_lines import STAGE_TIMES, stage_ratio_line, stage_time_rows
    from edgepack.deploy.app_answers import emulated_mark

    mark = emulated_mark(answer.emulated)
    bench = answer.bench
    parts = []
    if bench is not None:
        parts.append(
            page.verdict(f"Half of the runs take {milliseconds(bench.p50_ms)}{mark} or less")
        )
    parts.append(_circumstances(answer, release, conditions))
    if stages is not None:
        shown = page.table(stage_time_rows(stages), STAGE_TIMES)
        parts.append(page.section("All models", stage_ratio_line(stages), shown))
    if bench is not None:
        parts.append(
            page.section("Latency", Html(bench._repr_html_()), _drift(bench.times_ms, mark))
        )
    # The median run: a single one of a photo would be the first, which is slower.
    times = {**(frame or answer).times_ms, **({"run": bench.p50_ms} if bench else {})}
    steps = [
        (name, time, milliseconds(time) + mark) for name, time in times.items() if name != _ONCE
    ]
    said = "Decoding and preprocessing of one photo, measured once, and the median run."
    drawn = charts.draw_stacked_bar(steps, title="parts of a frame")
    parts.append(page.section("One frame", said if frame else "", drawn))
    if answer.profile is not None:
        parts.append(page.section("Layers by time", Html(answer.profile._repr_html_())))
    for part in stages.parts if stages else ():
        if part.stage and part.profile:
            layers = Html(part.profile._repr_html_())
            parts.append(page.section(f"Layers of {part.stage} by time", layers))
    parts.append(page.section("One run", run_times(answer)))
    return page.page(title, *parts, kind="bench")


def _circumstances(
    answer: AppAnswer,
    release: Release | None,
    conditions: tuple[Conditions, Conditions] | None,
) -> Html:
    before, after = conditions or (None, None)
    return page.facts(
        {
            "measured": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "release": release and f"{release.release}, of {release.model}",
            "ran on": answer.ran_on,
            "threads": answer.threads,
            "clock and temperature before": before,
            "and after": after,
        }
    )


def _drift(times_ms: tuple[float, ...], mark: str) -> Html:
    """Whether the last runs took longer than the first: what a core that gets hot does."""
    if len(times_ms) < _QUARTERS:
        return Html()
    quarter = len(times_ms) // 4
    first, last = (statistics.median(part) for part in (times_ms[:quarter], times_ms[-quarter:]))
    change = f", {last / first - 1:+.1%}" if first > 0 else ""
    return page.facts(
        {
            "median of the first quarter": milliseconds(first) + mark,
            "of the last quarter": milliseconds(last) + mark + change,
        }
    )
