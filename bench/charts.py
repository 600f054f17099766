"""The charts that docs/performance.md begins with, made of bench/results."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path

from bench.models import MODELS
from bench.ours import NAME
from bench.peers import TITLES
from bench.results import DOCS, Rows, geometric_mean, load, ordered, ratio
from edgepack.base.paths import write_atomic

FOLDER = DOCS.parent / "charts"
# File -> what it shows, and where its figures are: of which result, which table.
CHARTS: Mapping[str, tuple[str, str, str]] = {
    "x86-64.svg": ("x86-64 with AVX-512, one thread: CPU time", "host", "cpu_ms_1"),
    # Of cores that issue in order, cycles are what counts.
    "aarch64.svg": ("AArch64 (Cortex-A72): instructions", "arm", "rasp4b-64"),
}
_ROW, _TOP, _LEFT, _WIDTH, _RIGHT = 26, 66, 150, 400, 220
_STYLE = """
    text { font: 13px sans-serif; fill: #1c2329 } .t { font-size: 15px; font-weight: 600 }
    .s { fill: #56616b } rect { fill: #3b7dd8 } .worse { fill: #b8902f }
    line { stroke: #56616b; stroke-dasharray: 3 3 }
    @media (prefers-color-scheme: dark) { text { fill: #ddd } .s { fill: #999 }
      rect { fill: #6ea3ea } .worse { fill: #d9b25a } line { stroke: #999 } }
"""


def chart(title: str, rows: Rows) -> str:
    """An SVG with a bar for each model: ours over the best peer, which the dotted line is."""
    found = {model: value for model, figures in rows.items() if (value := ratio(figures))}
    longest = max([*found.values(), 1.0])
    scale = _WIDTH / longest
    height = _TOP + _ROW * len(found) + 14
    width = _LEFT + _WIDTH + _RIGHT
    mean = geometric_mean(found.values())
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"  <title>{escape(title)}, edgepack over the best peer</title>",
        f"  <style>{_STYLE}  </style>",
        f'  <text class="t" x="0" y="20">{escape(title)}</text>',
        f'  <text class="s" x="0" y="40">edgepack over the best peer; shorter is better; '
        f"geometric mean {mean:.2f}</text>",
    ]
    one = _LEFT + scale
    for index, (model, value) in enumerate(found.items()):
        y = _TOP + index * _ROW
        kind = ' class="worse"' if value > 1 else ""
        lines += [
            f'  <text x="{_LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(model)}</text>',
            f'  <rect{kind} x="{_LEFT}" y="{y}" width="{value * scale:.1f}" height="{_ROW - 6}"/>',
            f'  <text class="s" x="{max(_LEFT + value * scale, one) + 8:.1f}" y="{y + 15}">'
            f"{value:.2f} of {escape(_best(rows, model))}</text>",
        ]
    lines.append(f'  <line x1="{one:.1f}" y1="{_TOP - 8}" x2="{one:.1f}" y2="{height - 10}"/>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def charts() -> dict[str, str]:
    """Each chart's file and content."""
    return {
        file: chart(title, ordered(load(result).get(key, {}), MODELS))
        for file, (title, result, key) in CHARTS.items()
    }


def write_charts(folder: Path = FOLDER) -> None:
    """Write all of them."""
    for file, text in charts().items():
        write_atomic(folder / file, text.encode())


def _best(rows: Rows, model: str) -> str:
    """The best peer's name and version."""
    peers = {
        name: figure.value
        for name, figure in rows[model].items()
        if name != NAME and figure.value is not None
    }
    return TITLES[min(peers, key=lambda name: peers[name])]
