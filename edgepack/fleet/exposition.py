"""Prometheus' text format (0.0.4), read and written: what a device tells is looked at first.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from edgepack.base.text import one_line
from edgepack.deploy.answers import SenselessError

MAX_BYTES = 1 << 18
MAX_SAMPLES = 4000
"""Of one device: of histograms, classes and whatever else one model has it is a few hundred."""
MAX_LABEL = 300
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,99}", re.ASCII)
# Possessive: a hostile line takes no more time than its length.
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]{0,99}+)="((?:[^"\\\n]|\\["\\n])*+)"(,|$)', re.ASCII)
_LINE = re.compile(r"([a-zA-Z_][a-zA-Z0-9_]{0,99}+)(?:\{(.*)\})? (\S{1,40}+)", re.ASCII)
_VALUE = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]+)?|Inf)|NaN", re.ASCII)
_ESCAPED = re.compile(r'\\(["\\n])')
_TYPES = ("counter", "gauge", "histogram", "summary", "untyped")


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A series and its value, which is what was written."""

    name: str
    labels: Mapping[str, str]
    value: str

    def to_text(self) -> str:
        """Its line."""
        labels = ",".join(f'{name}="{_escape(value)}"' for name, value in self.labels.items())
        return f"{self.name}{{{labels}}} {self.value}" if labels else f"{self.name} {self.value}"

    def labelled(self, labels: Mapping[str, str]) -> Sample:
        """With these labels before its own, which do not replace them."""
        own = {name: value for name, value in self.labels.items() if name not in labels}
        return replace(self, labels={**labels, **own})


@dataclass(frozen=True, kw_only=True)
class Exposition:
    """All samples of a text, and the metrics' types and what they mean, by name."""

    samples: tuple[Sample, ...]
    types: Mapping[str, str]
    helps: Mapping[str, str]


def parse_exposition(text: str, source: str) -> Exposition:
    """What `source` wrote. Raises `SenselessError` for what is not of the format, or too much."""
    if len(text) > MAX_BYTES:
        raise SenselessError(f"{source}: metrics of {len(text)} characters, at most {MAX_BYTES}")
    samples: list[Sample] = []
    types: dict[str, str] = {}
    helps: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line:
            continue
        if line.startswith("#"):
            words = line.split(" ", 3)
            if len(words) == 4 and words[1] in ("HELP", "TYPE") and _NAME.fullmatch(words[2]):
                if words[1] == "HELP":
                    helps[words[2]] = one_line(words[3])
                elif words[3] in _TYPES:
                    types[words[2]] = words[3]
            continue
        sample = _sample(line)
        if sample is None or len(samples) == MAX_SAMPLES:
            what = f"more than {MAX_SAMPLES} series" if sample else f"no series: {line[:80]!r}"
            raise SenselessError(f"{source}: metrics, line {number}: {one_line(what)}")
        samples.append(sample)
    return Exposition(samples=tuple(samples), types=types, helps=helps)


def _sample(line: str) -> Sample | None:
    found = _LINE.fullmatch(line)
    if found is None or not _VALUE.fullmatch(found[3]):
        return None
    labels: dict[str, str] = {}
    rest = found[2] or ""
    at = 0
    while at < len(rest):
        label = _LABEL.match(rest, at)
        if label is None or label[1] in labels:
            return None
        value = _ESCAPED.sub(lambda it: "\n" if it[1] == "n" else it[1], label[2])
        labels[label[1]] = one_line(value, limit=MAX_LABEL)
        at = label.end()
    return Sample(name=found[1], labels=labels, value=found[3])


def exposition_text(
    samples: Iterable[Sample], types: Mapping[str, str], helps: Mapping[str, str]
) -> str:
    """The text: all samples of a metric together, as the format wants it."""
    by_metric: dict[str, list[Sample]] = {}
    for sample in samples:
        by_metric.setdefault(_metric_of(sample.name, types), []).append(sample)
    lines = []
    for metric, members in by_metric.items():
        if metric in helps:
            lines.append(f"# HELP {metric} {helps[metric]}")
        if metric in types:
            lines.append(f"# TYPE {metric} {types[metric]}")
        lines += [member.to_text() for member in members]
    return "".join(f"{line}\n" for line in lines)


def _metric_of(name: str, types: Mapping[str, str]) -> str:
    for suffix in ("_bucket", "_sum", "_count"):
        if types.get(name.removesuffix(suffix)) == "histogram":
            return name.removesuffix(suffix)
    return name


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
