"""A real browser for tests of pages: Debian's Chromium, unpacked, without a window."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edgepack.base.process import run
from tests.boards import unpacked

WIDTHS = (360, 1280)
# blink::mojom::PreferredColorScheme
SCHEMES = {"dark": 0, "light": 1}
LEAST_CONTRAST, LEAST_LARGE = 4.5, 3.0
"""WCAG 2.1, 1.4.3 (AA): of text, and of text from 24 px on, or 18.66 px if it is bold."""

# Measures pages that run no script of their own, each in a frame of every width. The contrast of a
# text is that of its colour and what lies under the middle of its first line, as WCAG defines it.
LOOK = """<!DOCTYPE html><html><head><meta charset="utf-8"></head>
<body style="margin:0"><main style="display:flex;align-items:start">{frames}</main><pre></pre>
<script>
const channel = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const light = (c) => 0.2126 * channel(c[0]) + 0.7152 * channel(c[1]) + 0.0722 * channel(c[2]);
const parsed = (text) => {{
  const numbers = (text.match(/[\\d.]+/g) || []).map(Number);
  return text.startsWith("rgb") ? [...numbers, 1].slice(0, 4) : null;
}};
const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3]));
const contrast = (a, b) => {{
  const both = [light(a) + 0.05, light(b) + 0.05];
  return Math.max(...both) / Math.min(...both);
}};
const painted = (view, element) => {{
  const style = view.getComputedStyle(element);
  const shape = ["rect", "circle"].includes(element.tagName);
  if (element.tagName === "IMG" || element.tagName === "image") return "image";
  const color = parsed(shape ? style.fill : style.backgroundColor);
  if (!color) return null;
  return [color[0], color[1], color[2], color[3] * (shape ? Number(style.fillOpacity) : 1)];
}};
const under = (doc, view, element, x, y) => {{
  const layers = [];
  for (const one of doc.elementsFromPoint(x, y)) {{
    if (element.contains(one) && one !== element) continue;
    if (one === element && element.tagName === "text") continue;
    const color = painted(view, one);
    if (color === "image") return null;
    if (!color || !color[3]) continue;
    layers.push(color);
    if (color[3] === 1) break;
  }}
  const dark = view.matchMedia("(prefers-color-scheme: dark)").matches;
  let below = dark ? [18, 18, 18] : [255, 255, 255];
  for (const color of layers.reverse()) below = over(color, below);
  return below;
}};
const texts = (doc, view) => {{
  const found = [];
  const walker = doc.createTreeWalker(doc.body, NodeFilter.SHOW_TEXT);
  for (let node; node = walker.nextNode();) {{
    if (!node.data.trim()) continue;
    const element = node.parentElement, style = view.getComputedStyle(element);
    if (style.visibility !== "visible") continue;
    if (element.closest("svg.marks, style, title, script, option")) continue;
    const range = doc.createRange();
    range.selectNodeContents(node);
    const box = [...range.getClientRects()].find((one) => one.width > 1 && one.height > 1);
    if (!box) continue;
    const below = under(doc, view, element, box.x + box.width / 2, box.y + box.height / 2);
    if (!below) continue;
    const own = parsed(element.closest("svg") ? style.fill : style.color);
    const value = contrast(over(own, below), below);
    const large = parseFloat(style.fontSize) * (element.closest("svg") ?
      element.closest("svg").getBoundingClientRect().width /
      (element.closest("svg").viewBox.baseVal.width || 1) : 1);
    found.push({{text: node.data.trim().slice(0, 60), contrast: value, pixels: large,
      bold: Number(style.fontWeight) >= 700}});
  }}
  return found;
}};
onload = () => {{
  const all = [...document.querySelectorAll("iframe")].map((frame) => {{
    const doc = frame.contentDocument, view = frame.contentWindow;
    doc.querySelectorAll("details").forEach((one) => one.open = true);
    const wide = doc.documentElement.scrollWidth;
    frame.height = Math.min(doc.documentElement.scrollHeight, 20000);
    return {{width: Number(frame.width), wide,
      high: doc.documentElement.scrollHeight,
      scripts: doc.scripts.length,
      background: view.getComputedStyle(doc.body).backgroundColor,
      outside: [...doc.querySelectorAll("body *")].filter((one) => {{
        const box = one.getBoundingClientRect();
        return box.right > frame.width * 1 + 1 && !one.closest(".wide") && !one.closest("svg");
      }}).map((one) => one.outerHTML.slice(0, 80)),
      loaded: view.performance.getEntriesByType("resource").map((one) => one.name).filter(
        (name) => !name.startsWith("data:")),
      small: texts(doc, view).filter((one) => one.pixels < 9).map((one) => one.text),
      texts: texts(doc, view)}};
  }});
  document.querySelector("pre").textContent = "LOOKED" + JSON.stringify(all);
}};
</script></body></html>"""


@dataclass(frozen=True, kw_only=True)
class Looked:
    """A page as it was laid out in a window of `width` pixels."""

    width: int
    wide: int
    high: int
    background: str
    outside: list[str]
    loaded: list[str]
    small: list[str]
    texts: list[dict[str, Any]]
    scripts: int

    def pale(self) -> list[str]:
        """Texts of too little contrast, with it."""
        return [
            f"{one['text']}: {one['contrast']:.2f}"
            for one in self.texts
            if one["contrast"]
            < (
                LEAST_LARGE
                if one["pixels"] >= 24 or (one["bold"] and one["pixels"] >= 18.66)
                else LEAST_CONTRAST
            )
        ]


Browse = Callable[..., str]


def open_browser() -> Browse:
    """Runs the browser with options, on a file or an address; what it prints."""
    packages = ["chromium-headless-shell", "fonts-dejavu-core"]
    root = unpacked("chromium", packages, suite="bookworm", arch="amd64")
    program = next(path for path in root.glob("usr/lib/chromium*/*shell*") if path.is_file())
    libraries = [root / "usr/lib/x86_64-linux-gnu" / name for name in ("", "pulseaudio")]
    env = {
        "LD_LIBRARY_PATH": ":".join(map(str, [*libraries, root / "lib/x86_64-linux-gnu"])),
        "FONTCONFIG_SYSROOT": str(root),
    }

    def browse(page: Path | str, *options: str) -> str:
        address = page.as_uri() if isinstance(page, Path) else page
        return run(
            [program, "--no-sandbox", "--disable-gpu", "--headless", *options, address],
            env=env,
            timeout_s=300,
        ).stdout

    return browse


def look(browse: Browse, shown: str, folder: Path, name: str, scheme: str) -> list[Looked]:
    """A page in windows of all `WIDTHS`; a screenshot of them side by side is left in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    file, shot = folder / f"{name}.look.html", folder / f"{name}-{scheme}.png"
    frames = "".join(
        f'<iframe width="{width}" height="4000" scrolling="no" style="border:0;flex:none" '
        f'srcdoc="{html.escape(shown)}"></iframe>'
        for width in WIDTHS
    )
    file.write_text(LOOK.format(frames=frames))
    said = browse(
        file,
        "--dump-dom",
        f"--screenshot={shot}",
        f"--window-size={sum(WIDTHS)},4000",
        f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}",
        "--virtual-time-budget=5000",
    )
    found = re.search(r"LOOKED(\[.*\])</pre>", said, re.DOTALL)
    assert found, said[-2000:]
    file.unlink()
    return [Looked(**one) for one in json.loads(html.unescape(found[1]))]


def check_page(browse: Browse, shown: str, folder: Path, name: str) -> None:
    """Assert that a page fits windows of all widths, light and dark, can be read, loads nothing."""
    for scheme in SCHEMES:
        for one in look(browse, shown, folder, name, scheme):
            where = f"{name}, {one.width} px, {scheme}"
            assert one.wide <= one.width, f"{where}: {one.wide} px wide: {one.outside[:5]}"
            assert one.outside == [], where
            assert one.loaded == [], where
            assert one.pale() == [], where
            assert one.small == [], where
            assert len(one.texts) > 3, where
            dark = sum(map(int, re.findall(r"\d+", one.background)[:3])) < 3 * 128
            assert dark == (scheme == "dark"), where


@pytest.fixture(scope="module")
def browse() -> Iterator[Browse]:
    """`open_browser`, once."""
    yield open_browser()
