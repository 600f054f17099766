"""The key that opens every virtual board, and each board's own host key."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from edgepack.base.paths import cache_dir, locked
from edgepack.base.process import run
from edgepack.base.tools import find_tool


@dataclass(frozen=True, kw_only=True)
class KeyPair:
    """An ed25519 pair: `file` is the private half (mode 600), `public` its one line."""

    file: Path
    public: str

    @property
    def private(self) -> str:
        """The private half's text."""
        return self.file.read_text()


def login_key() -> KeyPair:
    """The key that root and pi of every virtual board of this cache accept."""
    return _key("login")


def host_key(name: str) -> KeyPair:
    """The host key of the board called `name`: the same every time it is started."""
    return _key(f"host-{name}-{hashlib.sha256(name.encode()).hexdigest()[:8]}")


def _key(name: str) -> KeyPair:
    folder = cache_dir() / "virtual" / "keys"
    file = folder / name
    public = folder / f"{name}.pub"
    with locked(folder / name):
        if not public.exists():
            folder.chmod(0o700)
            file.unlink(missing_ok=True)
            kind = ("-q", "-t", "ed25519", "-N", "", "-C", "edgepack")
            run([find_tool("ssh-keygen"), *kind, "-f", file], what="making an ssh key")
    return KeyPair(file=file, public=public.read_text().strip())
