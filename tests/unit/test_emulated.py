"""Times and memory of an emulator are never shown as those of a board."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgepack.base.text import milliseconds
from edgepack.cli.pages.bench import bench_page
from edgepack.cli.result_lines import answer_lines, bench_lines, profile_lines
from edgepack.cli.tune import _lines as tuned_lines
from edgepack.deploy.ab_timing import time_in_turns
from edgepack.deploy.app_answers import AppAnswer
from edgepack.deploy.remote_app import RunRequest, ask_app
from tests.scripted_tool import ScriptedDevice

ANSWER = {
    "edgepack": "0.1.0",
    "threads": 2,
    "load_ms": 1.0,
    "run_ms": 13140.123,
    "rss_peak_bytes": 44_000_000,
    "params_bytes": 14_000_000,
    "arena_bytes": 2_900_000,
    "bench": {
        "runs": 3, "warmup": 1, "mean_ms": 13140.123, "std_ms": 1.5, "min_ms": 13139.0,
        "max_ms": 13142.0, "p50_ms": 13140.0, "p90_ms": 13141.0, "p99_ms": 13142.0,
        "times_ms": [13139.0, 13140.0, 13142.0],
    },
    "profile": {
        "runs": 3, "overhead_ms": 0.5,
        "layers": [{"layer": "a", "operator": "Conv", "kernel": "k", "ms": 2.5, "share": 1.0}],
    },
}  # fmt: skip


def ask(*, emulated: bool) -> AppAnswer:
    return ask_app(device(emulated=emulated), "r", RunRequest(golden=True))


def device(*, emulated: bool) -> Any:
    scripted = ScriptedDevice("board", lambda _command: json.dumps(ANSWER))
    scripted.is_emulated = emulated  # type: ignore[attr-defined]
    return scripted


def shown(answer: AppAnswer) -> list[str]:
    """Lines and cells with a time or the peak of memory."""
    assert answer.bench is not None
    assert answer.profile is not None
    lines = [*answer_lines(answer), *bench_lines(answer.bench), *profile_lines(answer.profile)]
    page = str(bench_page(answer, "title"))
    assert ("latency of 3 runs (emulated)" in page) == answer.emulated  # over the histogram
    page = re.sub("<style>.*?</style>|<svg.*?</svg>", "", page, flags=re.DOTALL)
    lines += [cell for cell in re.split(r"<[^>]+>", page) if cell]
    return [line for line in lines if re.search(r"\bms\b|\bpeak\b.*MB|\bMS\b", line)]


def test_each_time_of_a_virtual_board_says_so() -> None:
    lines = shown(ask(emulated=True))
    assert len(lines) > 12
    assert [line for line in lines if "emulated" not in line.lower()] == []
    assert ask(emulated=True).to_dict()["emulated"] is True


def test_those_of_a_board_do_not() -> None:
    lines = shown(ask(emulated=False))
    assert len(lines) > 12
    assert [line for line in lines if "emulated" in line.lower()] == []
    assert ask(emulated=False).to_dict()["emulated"] is False


@pytest.mark.parametrize(
    ("areas", "shown"),
    [
        ([{"index": 0, "label": "road", "pixels": 40, "runs": [0, 40]}], "40 pixels     0  road"),
        ([], "no areas"),
    ],
)
def test_areas_of_a_mask_are_shown(areas: list[object], shown: str) -> None:
    said = json.dumps({"edgepack": "0.1.0", "run_ms": 1.0, "areas": areas})
    scripted: Any = ScriptedDevice("board", lambda _command: said)
    lines = answer_lines(ask_app(scripted, "r", RunRequest(golden=True)))
    assert lines[0].strip() == shown


def test_two_releases_side_by_side_say_so() -> None:
    assert time_in_turns(device(emulated=True), "r", ("a", "b"), (), runs=1).emulated


@pytest.mark.parametrize("emulated", [True, False])
def test_what_tuning_timed_by_an_emulator_says_so(emulated: bool) -> None:
    times = {"default_ms": 2.0, "ms": 1.0, "ratio": 0.5}
    whole = SimpleNamespace(**times, low=0.4, high=0.6, kept=True)
    found: Any = SimpleNamespace(
        trials=1, known=0, left=0, wrong=0, noise=None, conditions=(), confirmation=whole,
        kernels={"conv": SimpleNamespace(**times, choice="wide")},
    )  # fmt: skip
    job: Any = SimpleNamespace(project=SimpleNamespace(name="m"))
    lines = tuned_lines(found, Path("tuning.jsonl"), job, "m", estimated=False, emulated=emulated)
    timed = [line for line in "\n".join(lines).splitlines() if re.search(r"\bms\b|\bMS\b", line)]
    assert len(timed) == 2
    assert all(("emulated" in line.lower()) == emulated for line in timed)


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [(0.004, "0.00 ms"), (4.25, "4.25 ms"), (132.52, "132.5 ms"), (13140.123, "13140 ms")],
)
def test_no_time_has_an_exponent(time_ms: float, text: str) -> None:
    assert milliseconds(time_ms) == text


def test_a_notebook_shows_no_exponent() -> None:
    answer = ask(emulated=False)
    assert answer.bench is not None
    assert not re.search(r"\de[+-]\d", answer.bench._repr_html_())
