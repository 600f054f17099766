"""What was measured, kept in bench/results/*.json, and the tables made of it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.fetch import bench_dir
from bench.ours import DEFAULT, NAME, SETTINGS
from edgepack.base.errors import MismatchError
from edgepack.base.paths import locked, write_atomic
from edgepack.flow.reference import compare

RESULTS = Path(__file__).resolve().parent / "results"
DOCS = RESULTS.parent.parent / "docs" / "performance.md"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One engine's result: `value` (milliseconds or instructions), or why there is none.

    `error` is the largest difference from onnxruntime over its largest value.
    """

    value: float | None = None
    error: float | None = None
    failed: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """For JSON, without what is not there."""
        return {key: value for key, value in vars(self).items() if value is not None}


# row (model) -> engine -> figure
Rows = dict[str, dict[str, Figure]]


def load(name: str) -> dict[str, Rows]:
    """The tables of bench/results/<name>.json by key, empty if there is no such file."""
    path = RESULTS / f"{name}.json"
    if not path.exists():
        return {}
    tables = json.loads(path.read_text())
    return {
        key: {
            row: {engine: Figure(**figure) for engine, figure in figures.items()}
            for row, figures in rows.items()
        }
        for key, rows in tables.items()
    }


def store(name: str, tables: Mapping[str, Rows]) -> None:
    """Writes bench/results/<name>.json, keeping figures that are there and not in `tables`."""
    with locked(bench_dir() / "results"):
        merged = load(name)
        for key, rows in tables.items():
            for row, figures in rows.items():
                merged.setdefault(key, {}).setdefault(row, {}).update(figures)
        plain = {
            key: {
                row: {engine: figure.to_dict() for engine, figure in figures.items()}
                for row, figures in rows.items()
            }
            for key, rows in merged.items()
        }
        text = json.dumps(plain, indent=1, sort_keys=True) + "\n"
        write_atomic(RESULTS / f"{name}.json", text.encode())


def largest_error(
    outputs: Sequence[npt.NDArray[Any]], references: Sequence[npt.NDArray[Any]], tolerance: float
) -> float:
    """The worst output's largest |error| over its largest |reference|.

    An output may lack the batch dimension. Raises MismatchError beyond `tolerance`.
    """
    worst = 0.0
    for output, reference in zip(outputs, references, strict=True):
        if output.size != reference.size:
            raise MismatchError(f"an output is {output.shape}, not {reference.shape}")
        found = compare(output.reshape(reference.shape), reference, tolerance)
        error = found.max_abs_error / found.max_abs_reference
        if not found.ok:
            raise MismatchError(f"outputs differ by {error:.1e} of their largest value")
        worst = max(worst, error)
    return worst


def ratio(figures: Mapping[str, Figure], engine: str = NAME) -> float | None:
    """Ours (by `engine`'s setting) over the best peer's; None without both."""
    peers = [f.value for name, f in figures.items() if name not in SETTINGS and f.value is not None]
    mine = figures.get(engine, Figure()).value
    return mine / min(peers) if mine is not None and peers else None


def gain(figures: Mapping[str, Figure]) -> float | None:
    """`speed` over the default setting; None without both."""
    ours = [figures.get(engine, Figure()).value for engine in (NAME, DEFAULT)]
    return ours[0] / ours[1] if ours[0] is not None and ours[1] is not None else None


def geometric_mean(values: Iterable[float]) -> float | None:
    """None of nothing."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


def table(
    rows: Rows, engines: Sequence[str], titles: Mapping[str, str], *, scale: float, digits: int
) -> str:
    """Markdown: a row per model, a column per engine, and the ratio ours / best peer.

    Values are divided by `scale`. The best peer of a row is bold. Where our default setting was
    measured, too, both have a ratio, and one column compares them.
    """
    is_both = any(DEFAULT in figures for figures in rows.values())
    mine = (NAME, DEFAULT) if is_both else (NAME,)
    if is_both:
        names = [f"{NAME}, speed", f"{NAME}, default"]
        ratio_names = ["speed / best peer", "default / best peer", "speed / default"]
    else:
        names, ratio_names = [NAME], ["ratio"]
    head = ["model", *names, *(titles[engine] for engine in engines), *ratio_names]
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    ratios: list[list[float]] = [[] for _ in ratio_names]
    for model, figures in rows.items():
        values = [f.value for engine in engines if (f := figures.get(engine)) and f.value]
        best = min(values, default=None)
        cells = []
        for engine in (*mine, *engines):
            figure = figures.get(engine, Figure())
            text = "-"
            if figure.failed is not None:
                text = figure.failed
            elif figure.value is not None:
                text = f"{figure.value / scale:.{digits}f}"
                text = f"**{text}**" if engine not in mine and figure.value == best else text
            cells.append(text)
        found = [ratio(figures, engine) for engine in mine]
        if is_both:
            found.append(gain(figures))
        for kept, value in zip(ratios, found, strict=True):
            if value is not None:
                kept.append(value)
            cells.append("-" if value is None else f"{value:.2f}")
        lines.append([model, *cells])
    means = [geometric_mean(each) for each in ratios]
    if means[0] is not None:
        blank = [""] * (len(head) - 1 - len(means))
        cells = ["-" if mean is None else f"{mean:.2f}" for mean in means]
        lines.append([f"geometric mean of {len(ratios[0])}", *blank, *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_section(name: str, text: str, path: Path = DOCS) -> None:
    """Replaces what is between `<!-- name -->` and `<!-- /name -->` in a document."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    document = path.read_text()
    before, found, rest = document.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{path} has no section {name}")
    write_atomic(path, f"{before}{begin}\n{text}\n\n{end}{after}".encode())


def ordered(rows: Rows, models: Iterable[str]) -> Rows:
    """The rows in the order of `models`."""
    return {name: rows[name] for name in models if name in rows}


def median(values: Sequence[float]) -> float:
    """The middle one."""
    return float(np.median(values))
