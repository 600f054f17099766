"""What a run took, for several pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgepack.base import page
from edgepack.base.page import Html
from edgepack.base.text import megabytes, milliseconds

if TYPE_CHECKING:
    from edgepack.deploy.app_answers import AppAnswer


def run_times(answer: AppAnswer) -> Html:
    """Times of its steps, and memory."""
    from edgepack.deploy.app_answers import emulated_mark

    mark = emulated_mark(answer.emulated)
    steps = [(name, time, milliseconds(time) + mark) for name, time in answer.times_ms.items()]
    memory = answer.memory
    memory_facts = page.facts(
        {
            "threads": answer.threads,
            "peak memory": megabytes(memory.rss_peak_bytes) + mark if memory else None,
            "weights": megabytes(memory.params_bytes) if memory else None,
            "activations": megabytes(memory.arena_bytes) if memory else None,
        }
    )
    return Html(page.shares(steps) + memory_facts)
