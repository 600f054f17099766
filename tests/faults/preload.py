"""preload.c, built: what stands between the device tool and libc, and says when a call fails."""

from __future__ import annotations

import functools
import hashlib
import re
import subprocess
import sys
from array import array
from pathlib import Path

from edgepack.base.paths import atomic_dir, cache_dir, locked
from tests.support import require_tool

_SOURCE = Path(__file__).with_name("preload.c")
_NAME = "preload.so"


def call_names() -> list[str]:
    """The calls that it counts, in order."""
    text = _SOURCE.read_text()
    table = text[text.index("#define CALLS") : text.index("enum call")]
    return re.findall(r"X\(([a-z0-9_]+)\)", table)


@functools.cache
def library() -> Path:
    """Built for this machine."""
    key = hashlib.sha256(_SOURCE.read_bytes() + sys.platform.encode()).hexdigest()[:16]
    out = cache_dir() / "device-tool" / f"preload-{key}"
    with locked(out):
        if not out.exists():
            with atomic_dir(out) as work:
                words = [require_tool("gcc"), "-shared", "-fPIC", "-O1", "-o", work / _NAME]
                subprocess.run([*words, _SOURCE, "-ldl"], check=True)
    return out / _NAME


def environment(**settings: object) -> dict[str, str]:
    """For a tool of `host_tool(faults=True)`; `settings` as in preload.c: clock=..., links="no"."""
    named = {f"EDGEPACK_{key.upper()}": str(value) for key, value in settings.items()}
    return {"LD_PRELOAD": str(library()), **named}


class Counts:
    """The file in which the calls are counted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clear()

    def clear(self) -> None:
        """No call was made yet."""
        self.path.write_bytes(bytes(4 * (1 + len(call_names()))))

    def read(self) -> tuple[int, dict[str, int]]:
        """How often the fault happened, and how often each call was made."""
        faults, *calls = array("I", self.path.read_bytes())
        return faults, dict(zip(call_names(), calls, strict=True))
