"""Records of tuning: what was measured on a device, and which kernels are made otherwise for it.

A file has a JSON object on each line, and is only ever appended to. Files are merged by `cat`, in
any order: what is chosen depends on the set of the lines alone. There are two kinds:

    trial     one way to make one kernel, against the cost model's way, inside a network
    confirmation   all ways that were chosen for a network, against the untuned network

Whoever made a file, it is read as if by hand: each line has its keys, types and bounds.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgepack.base.errors import ConfigError
from edgepack.base.paths import cache_dir, data_file, open_lock
from edgepack.base.tables import Table, parse_json
from edgepack.kernels.choices import FETCHES, LOADS, ORDERS, WEIGHTS, Way

RECORDS_FILE = "tuning.jsonl"
"""Beside the project file."""

ESTIMATED = " estimated"
"""After the CPU of a record: no board was measured, its cycles were estimated."""

_SHIPPED = "tuned"
"""The folder of the records that come with edgepack."""

MAX_FILE_BYTES = 64 << 20
_MAX_LINE_BYTES = 1 << 20
_MAX_TEXT = 512
_MAX_MS = 1e7
_MAX_RATIO = 1e6
_MAX_BLOCKS = 10_000
_MAX_TILE = 1 << 20
_MAX_RESULTS = 16
_TEXT = re.compile(r"[!-~]+( [!-~]+)*")
# What a kernel is faster by at least: less is not worth other code.
_LEAST_GAIN = 0.01
# The ratio below which more is likely than noise, though the noise be larger.
_LIKELY_GAIN = 0.97


class RecordsError(ConfigError):
    """A line of a file of records that nobody can make anything of."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One way to make a kernel, timed beside the cost model's way.

    `cpu` is `compiler.cpu_key`, perhaps with `ESTIMATED`, `compiler` `choices.maker`, `kernel` a
    layer's signature. Times are medians of all calls of the kernel in one run, in milliseconds.
    `ratio` is the median of choice / default over `blocks` blocks, between `low` and `high` with
    95 % confidence, or by all assumptions of an estimate. `right`: the network's outputs were the
    reference's.
    """

    cpu: str
    compiler: str
    kernel: str
    choice: Way
    ms: float
    default_ms: float
    ratio: float
    low: float
    high: float
    blocks: int
    right: bool = True

    @property
    def key(self) -> tuple[str, str, str, Way]:
        """What is tried once."""
        return (self.cpu, self.compiler, self.kernel, self.choice)

    @property
    def wins(self) -> bool:
        """Whether it is faster by more than the noise."""
        return self.right and self.high < 1 and self.ratio <= 1 - _LEAST_GAIN

    @property
    def promises(self) -> bool:
        """Whether it is worth to be tried together with others: it wins, or is likely to."""
        likely = self.ratio <= _LIKELY_GAIN and self.high - 1 < 1 - self.low
        return self.wins or (self.right and likely)

    def to_json(self) -> str:
        """A line of a file."""
        values = asdict(self)
        return _line({"kind": "trial", **values, "choice": _choice_values(self.choice)})


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """A whole network with the choices of some kernels, timed beside the untuned one.

    `model` is the SHA-256 of the ONNX file. The rest as in `Trial`.
    """

    cpu: str
    compiler: str
    model: str
    choices: Mapping[str, Way]
    ms: float
    default_ms: float
    ratio: float
    low: float
    high: float
    blocks: int
    right: bool = True

    @property
    def kept(self) -> bool:
        """Whether the network is faster by more than the noise."""
        return self.right and self.high < 1

    def to_json(self) -> str:
        """A line of a file."""
        values = {
            "kind": "confirmation",
            **{key: value for key, value in vars(self).items() if key != "choices"},
            "choices": {
                kernel: _choice_values(choice) for kernel, choice in sorted(self.choices.items())
            },
        }
        return _line(values)


Record = Trial | Confirmation


def _line(values: Mapping[str, Any]) -> str:
    return json.dumps(values, sort_keys=True)


def _choice_values(choice: Way) -> dict[str, Any]:
    """What is not left to the cost model."""
    values = asdict(choice)
    return {key: value for key, value in values.items() if value or key == "rule"}


# ------------------------------------------------ reading


def read_records(files: Iterable[Path]) -> list[Record]:
    """The records of some files.

    Of a last line that is cut off, nothing is read. Raises `RecordsError`, which names file, line
    and field.
    """
    return [record for file in files for record in _read_file(file)]


def shipped_records(board: str) -> tuple[Path, ...]:
    """The file of records that comes with edgepack for a board, if there is one."""
    file = data_file(_SHIPPED) / f"{board}.jsonl"
    return (file,) if file.is_file() else ()


def _read_file(file: Path) -> list[Record]:
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise RecordsError(f"{file}: more than {MAX_FILE_BYTES >> 20} MiB")
        data = file.read_bytes()
    except OSError as error:
        raise RecordsError(f"cannot read {file}: {error.strerror}") from None
    lines = data.split(b"\n")[:-1]
    return [_read_line(line, f"{file}: line {i}") for i, line in enumerate(lines, start=1) if line]


def _read_line(line: bytes, where: str) -> Record:
    if len(line) > _MAX_LINE_BYTES:
        raise RecordsError(f"{where}: more than {_MAX_LINE_BYTES >> 20} MiB")
    table = Table(parse_json(line, file=where, error=RecordsError), file=where, error=RecordsError)
    kind = table.take_choice("kind", ("trial", "confirmation"))
    common: dict[str, Any] = {
        "cpu": _text(table, "cpu"),
        "compiler": _text(table, "compiler"),
        "ms": _number(table, "ms", _MAX_MS),
        "default_ms": _number(table, "default_ms", _MAX_MS),
        "ratio": _number(table, "ratio", _MAX_RATIO),
        "low": _number(table, "low", _MAX_RATIO),
        "high": _number(table, "high", _MAX_RATIO),
        "blocks": _count(table, "blocks", 1, _MAX_BLOCKS),
        "right": table.take("right", bool),
    }
    if not common["low"] <= common["ratio"] <= common["high"]:
        raise table.fail("ratio", f"{common['ratio']} is not between low and high")
    record: Record
    if kind == "trial":
        kernel = _text(table, "kernel")
        record = Trial(**common, kernel=kernel, choice=_choice(table.take_table("choice")))
    else:
        model = table.take("model", str)
        if not re.fullmatch("[0-9a-f]{64}", model):
            raise table.fail("model", f"{model!r} is not 64 hex digits")
        record = Confirmation(**common, model=model, choices=_choices(table))
    table.finish()
    return record


def _choices(table: Table) -> dict[str, Way]:
    values: dict[str, Any] = table.take("choices", dict)
    inner = Table(values, file=table.file, path=table.name("choices"), error=RecordsError)
    found = {}
    for kernel in values:
        if not _TEXT.fullmatch(kernel) or len(kernel) > _MAX_TEXT:
            raise table.fail("choices", f"{kernel[:80]!r} is not a kernel")
        found[kernel] = _choice(inner.take_table(kernel))
    return found


def _choice(table: Table | None) -> Way:
    assert table is not None  # required
    choice = Way(
        rule=_text(table, "rule"),
        pixels=_count(table, "pixels", 0, _MAX_TILE),
        vectors=_count(table, "vectors", 0, _MAX_TILE),
        order=table.take_choice("order", ORDERS, ""),
        share=table.take_choice("share", ORDERS, ""),
        unroll=_count(table, "unroll", 0, _MAX_TILE),
        results=_count(table, "results", 0, _MAX_RESULTS),
        loads=table.take_choice("loads", LOADS, ""),
        fetch=table.take_choice("fetch", FETCHES, ""),
        weights=table.take_choice("weights", WEIGHTS, ""),
        rows=_count(table, "rows", 0, _MAX_TILE),
    )
    table.finish()
    return choice


def _text(table: Table, key: str) -> str:
    value = table.take(key, str)
    if not _TEXT.fullmatch(value) or len(value) > _MAX_TEXT:
        raise table.fail(key, f"{value[:80]!r} is empty, too long or not printable ASCII")
    return value


def _number(table: Table, key: str, most: float) -> float:
    value = table.take(key, float)
    if not (math.isfinite(value) and 0 < value <= most):
        raise table.fail(key, f"{value} is not above 0, or beyond {most:g}")
    return value


def _count(table: Table, key: str, least: int, most: int) -> int:
    value = table.take(key, int) if least else table.take(key, int, 0)
    if not least <= value <= most:
        raise table.fail(key, f"{value} is not from {least} to {most}")
    return value


# ------------------------------------------------ writing


class RecordFile:
    """A file of records that is appended to; several processes may do so at the same time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[Record]:
        """What is there; nothing if there is no file."""
        return read_records([self.path]) if self.path.exists() else []

    @contextlib.contextmanager
    def session(self) -> Iterator[str]:
        """Be the only session that writes here, of all on this machine; its name, which one on
        another machine or with another file does not have.

        Raises `RecordsError` if there is one already.
        """
        whose = f"{platform.node()} {self.path.resolve()}"
        name = hashlib.sha256(whose.encode()).hexdigest()[:12]
        with open_lock(cache_dir() / "tuning" / name) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RecordsError(
                    f"{self.path}: another session writes there",
                    hint="wait for its end, or write to another file: --records FILE",
                ) from None
            yield name

    def append(self, records: Sequence[Record]) -> None:
        """Write records at the end, and to the disk. What was cut off there is overwritten."""
        data = "".join(f"{record.to_json()}\n" for record in records).encode()
        with self.path.open("ab+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


# ------------------------------------------------ choosing


def trials_of(records: Iterable[Record], *, cpu: str, compiler: str) -> list[Trial]:
    """Each trial for a CPU by a compiler once, in an order of its own: the surest of equal ones."""
    found: dict[tuple[str, str, str, Way], Trial] = {}
    for record in records:
        if isinstance(record, Trial) and (record.cpu, record.compiler) == (cpu, compiler):
            before = found.get(record.key)
            if before is None or _sureness(record) < _sureness(before):
                found[record.key] = record
    return [found[key] for key in sorted(found)]


def _sureness(trial: Trial) -> tuple[float, str]:
    return (trial.high / trial.low, trial.to_json())


def propose_trials(records: Iterable[Record], *, cpu: str, compiler: str) -> dict[str, Trial]:
    """The best trial of each kernel that has one which promises something, by the kernel.

    Of two with equal ratios, the surer one is better.
    """
    return _best(
        trial for trial in trials_of(records, cpu=cpu, compiler=compiler) if trial.promises
    )


def _best(trials: Iterable[Trial]) -> dict[str, Trial]:
    best: dict[str, Trial] = {}
    for trial in trials:
        before = best.get(trial.kernel)
        if before is None or _rank(trial) < _rank(before):
            best[trial.kernel] = trial
    return best


def _rank(trial: Trial) -> tuple[float, Way]:
    return (trial.ratio * trial.high, trial.choice)


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """How kernels are made, by their signatures, and the records that say so."""

    choices: Mapping[str, Way]
    records: tuple[Record, ...] = ()


def choose_for_cpu(records: Sequence[Record], *, cpu: str, compiler: str, model: str) -> Chosen:
    """What a network is compiled by for a CPU: by what was measured, or by estimates where nothing
    was. Parameters are those of `choose_records`."""
    measured = any((record.cpu, record.compiler) == (cpu, compiler) for record in records)
    cpu += "" if measured else ESTIMATED
    return choose_records(records, cpu=cpu, compiler=compiler, model=model)


def choose_records(records: Sequence[Record], *, cpu: str, compiler: str, model: str) -> Chosen:
    """What a network is compiled by; `model` is the SHA-256 of its ONNX file.

    Where choices were confirmed in this very network, the surest of them, and nothing else. Where
    none were, the best of the trials that won in any network, but for those that did not win
    together in this one.
    """
    judged = [
        record
        for record in records
        if isinstance(record, Confirmation)
        and (record.cpu, record.compiler, record.model) == (cpu, compiler, model)
    ]
    kept = [record for record in judged if record.kept]
    if kept:
        surest = min(kept, key=lambda record: (record.high, record.to_json()))
        return Chosen(choices=surest.choices, records=(surest,))
    lost = {item for record in judged for item in record.choices.items()}
    trials = trials_of(records, cpu=cpu, compiler=compiler)
    best = {
        kernel: trial
        for kernel, trial in _best(trial for trial in trials if trial.wins).items()
        if (kernel, trial.choice) not in lost
    }
    return Chosen(
        choices={kernel: trial.choice for kernel, trial in best.items()},
        records=tuple(trial for _, trial in sorted(best.items())),
    )
