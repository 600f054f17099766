"""Small ARM programs for tests, made by the Debian cross compiler."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from tests.support import require_tool

PREFIX = "arm-linux-gnueabihf-"


def gcc(folder: Path, source: str, *flags: str, suffix: str = "c", prefix: str = PREFIX) -> Path:
    """`source` (of language `suffix`: c, cc, s) compiled and linked in a new folder of `folder`."""
    compiler = require_tool(prefix + ("g++" if suffix == "cc" else "gcc"))
    work = Path(tempfile.mkdtemp(dir=folder))
    (work / f"source.{suffix}").write_text(source)
    out = work / "out.so"
    subprocess.run([compiler, "-o", out, f"source.{suffix}", *flags], check=True, cwd=work)
    return out


def strip(path: Path, prefix: str = PREFIX) -> Path:
    """A copy of `path` without any symbol that the dynamic linker does not need."""
    out = path.with_suffix(".stripped")
    subprocess.run([require_tool(prefix + "strip"), "-s", "-o", out, path], check=True)
    return out
