"""The charts that docs/performance.md begins with, made of bench/results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from bench.cycles import measure as cycles
from bench.models import MODELS
from bench.ours import NAME, SETTINGS
from bench.peers import TITLES
from bench.results import DOCS, Rows, geometric_mean, load, ordered, ratio
from edgepack.base.paths import write_atomic
from edgepack.boards import get_board
from edgepack.kernels.pipeline.cores import CORES, PAIRING

FOLDER = DOCS.parent / "charts"
# File -> what it shows, and where its figures are: of which result, which table.
CHARTS: Mapping[str, tuple[str, str, str]] = {
    "aarch64.svg": ("AArch64 (Cortex-A72), one thread: instructions", "arm", "rasp4b-64"),
    "x86-64.svg": ("x86-64 with AVX-512, one thread: CPU time", "host", "cpu_ms_1"),
}
# Of cores that issue in order, cycles are what counts, and documents leave some of that open.
IN_ORDER = "in-order.svg"
_ROW, _TOP, _WIDTH, _RIGHT, _LETTER = 26, 66, 400, 250, 7.2
_STYLE = """
    text { font: 13px sans-serif; fill: #1c2329 } .t { font-size: 15px; font-weight: 600 }
    .s { fill: #56616b } rect { fill: #3b7dd8 } .worse { fill: #b8902f } .open { opacity: 0.4 }
    line { stroke: #56616b; stroke-dasharray: 3 3 }
    @media (prefers-color-scheme: dark) { text { fill: #ddd } .s { fill: #999 }
      rect { fill: #6ea3ea } .worse { fill: #d9b25a } line { stroke: #999 } }
"""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """Ours over the best peer: what it is at least and at most, and whose figure is the best."""

    label: str
    low: float
    high: float
    peer: str

    def says(self) -> str:
        """Beside the bar."""
        low, high = f"{self.low:.2f}", f"{self.high:.2f}"
        return f"{low if low == high else f'{low} to {high}'} of {self.peer}"


def chart(title: str, rows: Rows) -> str:
    """An SVG with a bar for each model."""
    bars = [
        Bar(label=model, low=value, high=value, peer=_best(rows, model))
        for model, figures in rows.items()
        if (value := ratio(figures))
    ]
    mean = geometric_mean(bar.low for bar in bars)
    return draw(title, f"geometric mean {mean:.2f}", bars)


def in_order() -> str:
    """An SVG with a bar for each core and model, and what the core's documents leave open."""
    bars = []
    tables = cycles.load()
    for board in map(get_board, (name for name in reversed(cycles.BOARDS) if name in tables)):
        if board.cpu not in CORES:
            continue
        name = board.name
        core = f"{board.cpu.title()}, {64 if board.debian_arch == 'arm64' else 32} bits"
        for model in (model for model in MODELS if model in tables[name]):
            engines = tables[name][model]
            if found := cycles.ratios(engines):
                values = [found[pairing] for pairing in PAIRING]
                peers = {
                    engine: stored["cycles"][PAIRING[0]]
                    for engine, stored in engines.items()
                    if engine != NAME and "cycles" in stored
                }
                peer = TITLES[min(peers, key=lambda engine: peers[engine])]
                bars.append(
                    Bar(label=f"{core}: {model}", low=min(values), high=max(values), peer=peer)
                )
    note = "pale: what the documents of the core leave open"
    return draw("Cores that issue in order, one thread: estimated cycles", note, bars)


def draw(title: str, note: str, bars: Sequence[Bar]) -> str:
    """An SVG of the bars; the dotted line is the best peer."""
    left = max(150, round(_LETTER * max(len(bar.label) for bar in bars)))
    scale = _WIDTH / max([*(bar.high for bar in bars), 1.0])
    height = _TOP + _ROW * len(bars) + 14
    width = left + _WIDTH + _RIGHT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"  <title>{escape(title)}, edgepack over the best peer</title>",
        f"  <style>{_STYLE}  </style>",
        f'  <text class="t" x="0" y="20">{escape(title)}</text>',
        f'  <text class="s" x="0" y="40">edgepack over the best peer; shorter is better; '
        f"{escape(note)}</text>",
    ]
    one = left + scale
    for index, bar in enumerate(bars):
        y = _TOP + index * _ROW
        end = max(left + bar.high * scale, one) + 8
        lines += [
            f'  <text x="{left - 8}" y="{y + 15}" text-anchor="end">{escape(bar.label)}</text>',
            _rect(left, y, bar.low * scale, worse=bar.low > 1),
        ]
        if bar.says() != f"{bar.low:.2f} of {bar.peer}":
            start, length = left + bar.low * scale, (bar.high - bar.low) * scale
            lines.append(_rect(start, y, length, worse=bar.high > 1, open_=True))
        lines.append(f'  <text class="s" x="{end:.1f}" y="{y + 15}">{escape(bar.says())}</text>')
    lines.append(f'  <line x1="{one:.1f}" y1="{_TOP - 8}" x2="{one:.1f}" y2="{height - 10}"/>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def charts() -> dict[str, str]:
    """Each chart's file and content."""
    return {IN_ORDER: in_order()} | {
        file: chart(title, ordered(load(result).get(key, {}), MODELS))
        for file, (title, result, key) in CHARTS.items()
    }


def write_charts(folder: Path = FOLDER) -> None:
    """Write all of them."""
    for file, text in charts().items():
        write_atomic(folder / file, text.encode())


def _rect(x: float, y: float, width: float, *, worse: bool, open_: bool = False) -> str:
    kinds = " ".join(name for name, given in (("worse", worse), ("open", open_)) if given)
    kind = f' class="{kinds}"' if kinds else ""
    return f'  <rect{kind} x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_ROW - 6}"/>'


def _best(rows: Rows, model: str) -> str:
    """The best peer's name and version."""
    peers = {
        name: figure.value
        for name, figure in rows[model].items()
        if name not in SETTINGS and figure.value is not None
    }
    return TITLES[min(peers, key=lambda name: peers[name])]
