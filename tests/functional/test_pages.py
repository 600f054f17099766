"""Pages in a real browser, Debian's Chromium: light and dark, and as narrow as a phone."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edgepack.base import page
from edgepack.base.process import run
from tests.boards import unpacked

pytestmark = pytest.mark.slow

LONG = "features.18.0/" * 12
DIGEST = "0123456789abcdef" * 4
PHOTO = cv2.imencode(".png", np.zeros((40, 60, 3), np.uint8))[1].tobytes()
MADE = page.page(
    "mobilenetv2 on pi",
    page.facts({"SHA-256": DIGEST, "folder": LONG}),
    page.section("Layers", page.shares([(LONG, 1.0, "12.345 ms"), ("b", 0.5, "6.100 ms")])),
    page.section("Latency", page.histogram([*range(1, 50)], unit="ms", title="latency")),
    page.section("Files", page.table([(LONG, 12345678, DIGEST)], ("file", "bytes", "SHA-256"))),
    page.section("Photo", page.picture(PHOTO, alt="a photo")),
    page.section(
        "Boxes", page.marked_picture(PHOTO, 60, 40, [((5, 5, 50, 30), LONG)], [(9, 9)], alt="boxes")
    ),
)
# Measures a page that runs no script itself.
MEASURE = """<!DOCTYPE html><body><iframe width="{width}" height="900" srcdoc="{page}"></iframe>
<script>
onload = () => {{
  const inside = document.querySelector("iframe").contentDocument;
  const widths = (what) => [...inside.querySelectorAll(what)].map(
    (one) => one.getBoundingClientRect().width);
  document.body.textContent = JSON.stringify({{
    wide: inside.documentElement.scrollWidth,
    cut: [...inside.querySelectorAll(".bar span")].filter(
      (one) => one.scrollWidth > one.clientWidth).length,
    bars: widths(".bar i"), columns: widths("svg:not(.marks) rect").length,
    pictures: [...inside.images].map((image) => image.naturalWidth)}});
}}
</script>"""


@pytest.fixture(scope="module")
def browse() -> Callable[..., str]:
    """Runs the browser with options and a file; what it prints."""
    packages = ["chromium-headless-shell", "fonts-dejavu-core"]
    root = unpacked("chromium", packages, suite="bookworm", arch="amd64")
    program = next(path for path in root.glob("usr/lib/chromium*/*shell*") if path.is_file())
    libraries = [root / "usr/lib/x86_64-linux-gnu" / name for name in ("", "pulseaudio")]
    env = {
        "LD_LIBRARY_PATH": ":".join(map(str, [*libraries, root / "lib/x86_64-linux-gnu"])),
        "FONTCONFIG_SYSROOT": str(root),
    }

    def browse(file: Path, *options: str) -> str:
        return run(
            [program, "--no-sandbox", "--disable-gpu", "--headless", *options, file.as_uri()],
            env=env,
            timeout_s=300,
        ).stdout

    return browse


def measured(browse: Callable[..., str], file: Path, width: int, shown: str) -> dict[str, Any]:
    file.write_text(MEASURE.format(width=width, page=html.escape(shown)))
    said = html.unescape(browse(file, "--dump-dom", "--virtual-time-budget=5000"))
    found: dict[str, Any] = json.loads(re.findall(r"\{.*\}", said)[-1])
    return found


@pytest.mark.parametrize("width", [360, 1280])
def test_a_page_is_no_wider_than_the_window(
    browse: Callable[..., str], tmp_path: Path, width: int
) -> None:
    found = measured(browse, tmp_path / "measure.html", width, MADE)
    assert found["wide"] <= width
    # A layer's name differs from the next one's at its end.
    assert found["cut"] == 0
    assert found["bars"][0] == pytest.approx(2 * found["bars"][1], rel=0.02)
    assert found["columns"] == 20
    assert found["pictures"] == [60]


def test_a_notebook_has_bars_as_well(browse: Callable[..., str], tmp_path: Path) -> None:
    """Its own page has none of our styles."""
    shown = page.embedded(page.shares([("dog", 1.0, "0.9"), ("cat", 0.5, "0.45")]))
    found = measured(browse, tmp_path / "measure.html", 600, shown)
    assert found["bars"][0] > 100
    assert found["bars"][0] == pytest.approx(2 * found["bars"][1], rel=0.02)


@pytest.mark.parametrize(("scheme", "bright"), [(0, False), (1, True)], ids=["dark", "light"])
def test_a_page_is_dark_where_the_system_is(
    browse: Callable[..., str], tmp_path: Path, scheme: int, *, bright: bool
) -> None:
    file, shot = tmp_path / "page.html", tmp_path / "shot.png"
    file.write_text(MADE)
    # blink::mojom::PreferredColorScheme: kDark is 0, kLight 1.
    settings = f"--blink-settings=preferredColorScheme={scheme}"
    browse(file, f"--screenshot={shot}", "--window-size=800,900", settings)
    image = cv2.imread(str(shot))
    assert image is not None
    assert (np.median(image) > 128) == bright
