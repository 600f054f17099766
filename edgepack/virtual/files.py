"""Files that make a root file system a certain board: its keys, its name, its settings."""

from __future__ import annotations

import base64
from dataclasses import asdict, dataclass
from typing import Any

from edgepack.virtual.keys import KeyPair
from edgepack.virtual.sshd import Sshd


@dataclass(frozen=True, kw_only=True)
class BoardFile:
    """A file written when the board starts; `owner` is "root" or "pi"."""

    path: str
    data: bytes
    mode: int = 0o644
    owner: str = "root"

    def to_dict(self) -> dict[str, Any]:
        """For JSON; the data in base64."""
        return {**asdict(self), "data": base64.b64encode(self.data).decode()}


def identity(*, hostname: str, login: KeyPair, host: KeyPair, sshd: Sshd) -> list[BoardFile]:
    """The files that let `login` in as root and pi, and give `sshd` the key `host`."""
    key = f"{login.public}\n".encode()
    return [
        BoardFile(path="/etc/hostname", data=f"{hostname}\n".encode()),
        BoardFile(path=sshd.host_key_file, data=sshd.host_key(host), mode=0o600),
        BoardFile(path="/root/.ssh/authorized_keys", data=key, mode=0o600),
        BoardFile(path="/home/pi/.ssh/authorized_keys", data=key, mode=0o600, owner="pi"),
    ]
