"""Debian's docker-registry on this machine, for tests."""

from __future__ import annotations

import contextlib
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.boards import unpacked
from tests.support import free_port, require_tool


@contextlib.contextmanager
def registry(folder: Path) -> Iterator[str]:
    """host:port of a registry on this machine, over plain HTTP, that keeps its data in `folder`."""
    # Not installed: as a service it would listen on all addresses of this machine.
    root = unpacked("docker-registry", ["docker-registry"], suite="bookworm", arch="amd64")
    program = root / "usr/bin/docker-registry"
    require_tool("skopeo")
    where = f"127.0.0.1:{free_port()}"
    (folder / "config.yml").write_text(
        "version: 0.1\nlog: {level: error}\n"
        f"storage: {{filesystem: {{rootdirectory: {folder / 'kept'}}}}}\n"
        f"http: {{addr: '{where}', secret: x}}\n"
    )
    with subprocess.Popen(
        [program, "serve", folder / "config.yml"], stderr=subprocess.DEVNULL
    ) as server:
        try:
            for _ in range(600):
                try:
                    urllib.request.urlopen(f"http://{where}/v2/", timeout=1).close()
                    break
                except OSError:
                    time.sleep(0.1)
            yield where
        finally:
            server.kill()
