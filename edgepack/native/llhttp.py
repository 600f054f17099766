"""The source of llhttp, Node.js' parser of HTTP, which the app serves requests with.

It is the copy that the Python package httptools carries.
"""

from __future__ import annotations

from pathlib import Path

from edgepack.base.kept import keep
from edgepack.base.paths import cache_dir
from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.native.sdist import Sdist, fetch_sdist, unpack_sdist

SDIST = Sdist(
    package="httptools",
    version="0.9.0",
    sha256="d484ebb7e3a3f3597b0f645fbd1b85633674ca808c1f5ba11c2caf7c66f5c8b6",
)
"""llhttp 9.4.3."""
_VENDOR = "vendor/llhttp/"
_FILES = ("LICENSE", "include/llhttp.h", "src/api.c", "src/http.c", "src/llhttp.c")


def fetch_llhttp(*, progress: Progress = NO_PROGRESS) -> Path:
    """The folder with `llhttp/`: its sources, header and licence, fetched with pip once.

    Raises ToolchainError if pip fails or the file is not the pinned one.
    """

    def make(work: Path) -> None:
        progress.step("fetching the source of llhttp")
        file = fetch_sdist(SDIST, work)
        unpack_sdist(file, work, _wanted)
        file.unlink()

    return keep(cache_dir() / "llhttp" / SDIST.sha256[:16], make)


def llhttp_license(sources: Path) -> str:
    """The text that comes with it."""
    return (sources / "llhttp" / "LICENSE").read_text(encoding="utf-8")


def _wanted(path: str) -> str | None:
    below = path.removeprefix(_VENDOR)
    if below == path or below not in _FILES:
        return None
    return f"llhttp/{below.rpartition('/')[2]}"
