"""`./dev docs`, as a user runs it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

from edgepack.base.paths import cache_dir

DEV = Path(__file__).resolve().parents[2] / "dev"
# What a browser fetches by itself, from another host.
_FETCHED = re.compile(
    r"<(?:script|img|link rel=\"?(?:stylesheet|preload|icon))[^>]*https?://[^>]*>"
)


def test_the_site_is_built_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    done = subprocess.run(
        [DEV, "docs", "--out", tmp_path / "site"],
        env={**os.environ, "EDGEPACK_CACHE": str(cache_dir())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    pages = [*(tmp_path / "site").rglob("*.html")]
    assert tmp_path / "site" / "docs/guides/your-board/index.html" in pages
    assert {page: found for page in pages if (found := _FETCHED.findall(page.read_text()))} == {}
    index = json.loads((tmp_path / "site/search/search_index.json").read_text())
    assert any("smoke test" in entry["text"] for entry in index["docs"])
