"""Prometheus' text format, read by a parser of our own and small: promtool judges the format."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})? (\S+)')
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A series and its value."""

    name: str
    labels: dict[str, str]
    value: float


def parse_metrics(text: str) -> list[Sample]:
    """All samples of a text."""
    samples = []
    for line in text.splitlines():
        if line.startswith("#") or not line:
            continue
        found = _LINE.fullmatch(line)
        assert found, line
        labels = {
            name: re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], value)
            for name, value in _LABEL.findall(found[2] or "")
        }
        samples.append(Sample(name=found[1], labels=labels, value=float(found[3])))
    return samples
