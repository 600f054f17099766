"""The page of `bench`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgepack.base import page
from edgepack.base.page import Html
from edgepack.cli.pages.times import run_times

if TYPE_CHECKING:
    from edgepack.deploy.app_answers import AppAnswer


def bench_page(answer: AppAnswer, title: str) -> Html:
    """Latency as a histogram, layers by time, memory."""
    parts = []
    if answer.bench is not None:
        parts.append(page.section("Latency", Html(answer.bench._repr_html_())))
    if answer.profile is not None:
        parts.append(page.section("Layers by time", Html(answer.profile._repr_html_())))
    return page.page(title, *parts, page.section("One run", run_times(answer)))
