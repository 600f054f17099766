"""Records of tuning: what is read from a file, and what is chosen by it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgepack.flow.records import (
    ESTIMATED,
    Confirmation,
    Record,
    RecordFile,
    RecordsError,
    Trial,
    choose_for_cpu,
    choose_records,
    propose_trials,
    read_records,
)
from edgepack.kernels.choices import Way

CPU, COMPILER, MODEL = "aarch64 cortex-a53 x4", "0123456789ab", "ab" * 32
WIDE, TALL, SQUARE = (Way(rule="conv", pixels=p, vectors=v) for p, v in ((8, 1), (1, 8), (4, 4)))
SLOW = Trial(
    cpu=CPU,
    compiler=COMPILER,
    kernel="conv a",
    choice=WIDE,
    ms=1.1,
    default_ms=1.0,
    ratio=1.1,
    low=1.05,
    high=1.15,
    blocks=6,
)
FAST = replace(SLOW, choice=TALL, ms=0.8, ratio=0.8, low=0.75, high=0.85)
FASTEST = replace(SLOW, choice=SQUARE, ms=0.7, ratio=0.7, low=0.65, high=0.75)
TOGETHER = Confirmation(
    cpu=CPU,
    compiler=COMPILER,
    model=MODEL,
    choices={"conv a": SQUARE},
    ms=9.0,
    default_ms=10.0,
    ratio=0.9,
    low=0.88,
    high=0.92,
    blocks=12,
)
LOST = replace(TOGETHER, ratio=1.0, low=0.97, high=1.03)


def choices(*records: Record, model: str = MODEL) -> Mapping[str, Way]:
    return choose_records(records, cpu=CPU, compiler=COMPILER, model=model).choices


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "tuning.jsonl")
    assert file.read() == []
    file.append([SLOW, FAST])
    file.append([TOGETHER])
    assert file.read() == [SLOW, FAST, TOGETHER]
    assert len(file.path.read_text().splitlines()) == 3


def test_what_was_cut_off_is_not_read_and_then_written_over(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "tuning.jsonl")
    file.append([SLOW, FAST])
    whole = file.path.read_bytes()
    for cut in (1, 30, len(FAST.to_json())):
        file.path.write_bytes(whole[:-cut])
        assert file.read() == [SLOW]
        file.append([FAST])
        assert file.path.read_bytes() == whole


@pytest.mark.parametrize("order", list(itertools.permutations([SLOW, FAST, FASTEST, LOST])))
def test_what_is_chosen_does_not_depend_on_the_order(order: tuple[Record, ...]) -> None:
    assert choices(*order[:]) == {}
    assert choices(*(record for record in order if record is not LOST)) == {"conv a": SQUARE}


def test_the_fastest_that_is_faster_by_more_than_the_noise() -> None:
    assert choices(SLOW, FAST, FASTEST) == {"conv a": SQUARE}
    assert choices(SLOW, FAST, replace(FASTEST, high=1.01)) == {"conv a": TALL}
    assert choices(SLOW, FAST, replace(FASTEST, right=False)) == {"conv a": TALL}
    assert choices(SLOW) == {}
    # Of the same trial twice, as of two machines, the surer one counts.
    assert choices(FAST, replace(FAST, ratio=1.0, low=0.999, high=1.001)) == {}


@pytest.mark.parametrize("other", [{"cpu": "x86_64 znver4 x2"}, {"compiler": "ffffffffffff"}])
def test_records_of_another_cpu_or_compiler_do_not_count(other: dict[str, Any]) -> None:
    assert choices(replace(FASTEST, **other), FAST) == {"conv a": TALL}
    assert choices(FAST, replace(LOST, choices={"conv a": TALL}, **other)) == {"conv a": TALL}


def test_what_did_not_win_together_is_not_used_for_that_network() -> None:
    assert choices(FAST, FASTEST, LOST) == {}
    assert choices(FAST, FASTEST, LOST, model="cd" * 32) == {"conv a": SQUARE}


def test_what_was_confirmed_is_used_and_nothing_else() -> None:
    other = replace(FASTEST, kernel="conv b")
    assert choices(FAST, FASTEST, other) == {"conv a": SQUARE, "conv b": SQUARE}
    assert choices(FAST, FASTEST, other, LOST, TOGETHER) == {"conv a": SQUARE}
    # Of several, the one that is surest to be faster.
    surer = replace(TOGETHER, choices={"conv b": TALL}, high=0.91)
    for records in ((TOGETHER, surer), (surer, TOGETHER)):
        assert choices(*records) == {"conv b": TALL}
        assert choose_records(records, cpu=CPU, compiler=COMPILER, model=MODEL).records == (surer,)
    found = choose_records([other, SLOW, FAST], cpu=CPU, compiler=COMPILER, model=MODEL)
    assert found.records == (FAST, other)


def test_estimates_count_where_nothing_was_measured() -> None:
    def made(*records: Record) -> Mapping[str, Way]:
        return choose_for_cpu(records, cpu=CPU, compiler=COMPILER, model=MODEL).choices

    estimated = replace(FAST, cpu=CPU + ESTIMATED)
    assert made(estimated) == {"conv a": TALL}
    assert made(estimated, FASTEST) == {"conv a": SQUARE}
    # On the board no way was faster: that is an answer, too.
    assert made(estimated, SLOW) == {}
    assert made(estimated, replace(SLOW, compiler="another")) == {"conv a": TALL}


def test_what_is_likely_to_win_is_proposed() -> None:
    def best(*records: Record) -> list[Way]:
        found = propose_trials(records, cpu=CPU, compiler=COMPILER)
        return [trial.choice for trial in found.values()]

    likely = replace(FAST, low=0.6, high=1.3)
    assert not likely.wins
    assert best(SLOW, likely) == [TALL]
    assert best(replace(likely, high=1.5)) == []  # more above than below
    assert best(replace(likely, ratio=0.98)) == []
    assert best(replace(likely, right=False)) == []
    # A larger gain that is less sure: 0.7 * 1.3 is more than 0.8 * 0.85.
    assert best(FAST, replace(FASTEST, low=0.4, high=1.3)) == [TALL]


def spoilt(key: str, value: object) -> str:
    record = TOGETHER if key in ("model", "choices") else FAST
    return json.dumps({**json.loads(record.to_json()), key: value})


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("nonsense", "line 2: not JSON"),
        ("[1]", "line 2: not a JSON object"),
        ('{"kind": "trial"}', "line 2: cpu: missing"),
        (spoilt("kind", "guess"), "line 2: kind: unknown value 'guess'"),
        (spoilt("colour", 1), "line 2: colour: unknown key"),
        (spoilt("cpu", ""), "line 2: cpu: '' is empty"),
        (spoilt("cpu", "a\x1b[31mb"), "line 2: cpu: "),
        (spoilt("kernel", "k" * 513), "line 2: kernel: "),
        (spoilt("ms", 0), "line 2: ms: 0.0 is not above 0"),
        (spoilt("ms", True), "line 2: ms: True is not a number"),
        (spoilt("ratio", 2), "line 2: ratio: 2.0 is not between low and high"),
        (spoilt("high", 1e300), "line 2: high: 1e+300 is not above 0, or beyond"),
        (spoilt("blocks", 0), "line 2: blocks: 0 is not from 1"),
        (spoilt("right", 1), "line 2: right: 1 is not true or false"),
        (spoilt("choice", {"rule": "conv", "pixels": -1}), "line 2: choice.pixels: -1"),
        (spoilt("choice", {"rule": "conv", "order": "up"}), "line 2: choice.order: unknown value"),
        (spoilt("choice", {"rule": "conv", "share": 1}), "line 2: choice.share: 1 is not a string"),
        (spoilt("choice", {"rule": "conv", "unroll": 1.5}), "line 2: choice.unroll: 1.5 is not a"),
        (spoilt("choice", {"pixels": 1}), "line 2: choice.rule: missing"),
        (spoilt("choice", []), "line 2: choice: [] is not a table"),
        (spoilt("model", "ab"), "line 2: model: 'ab' is not 64 hex digits"),
        (spoilt("choices", {"k": {"rule": ""}}), "line 2: choices.k.rule: ''"),
        (spoilt("choices", {"\u00e4": {"rule": "conv"}}), "line 2: choices: "),
    ],
)
def test_a_bad_line_is_named_with_its_file_and_field(
    tmp_path: Path, line: str, problem: str
) -> None:
    file = tmp_path / "foreign.jsonl"
    file.write_text(f"{SLOW.to_json()}\n{line}\n")
    with pytest.raises(RecordsError) as caught:
        read_records([file])
    assert caught.value.message.startswith(f"{file}: {problem}")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordsError, match=f"cannot read {tmp_path}"):
        read_records([tmp_path])
