"""Keys of gpg's, which sign repositories for apt."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from edgepack.base.process import run
from tests.support import require_tool

KEY = "packages@example.org"


@contextlib.contextmanager
def gpg_keys(*users: str) -> Iterator[None]:
    """A home for gpg, with a key for each of `users`."""
    for program in ("apt-get", "apt-ftparchive", "dpkg-deb", "gpg", "gpgv"):
        require_tool(program)
    # The agent's socket lies in it, whose path has at most 107 signs.
    home = Path("/tmp") / f"edgepack-gpg-{os.getpid()}"
    home.mkdir(mode=0o700)
    before = os.environ.get("GNUPGHOME")
    os.environ["GNUPGHOME"] = str(home)
    try:
        for user in users:
            words = ["--batch", "--passphrase", "", "--quick-gen-key", user, "ed25519", "sign"]
            run(["gpg", *words, "never"])
        yield
    finally:
        run(["gpgconf", "--kill", "all"], check=False)
        os.environ.pop("GNUPGHOME")
        if before is not None:
            os.environ["GNUPGHOME"] = before
        shutil.rmtree(home, ignore_errors=True)
