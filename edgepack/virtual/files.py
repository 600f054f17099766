"""Files that make a root file system a certain board: its keys, its name, its settings."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from edgepack.virtual.keys import KeyPair


@dataclass(frozen=True, kw_only=True)
class BoardFile:
    """A file written when the board starts; `owner` is "root" or "pi"."""

    path: str
    text: str
    mode: int = 0o644
    owner: str = "root"

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def identity(*, hostname: str, login: KeyPair, host: KeyPair) -> list[BoardFile]:
    """The files that let `login` in as root and pi, and give sshd the key `host`."""
    key = f"{login.public}\n"
    return [
        BoardFile(path="/etc/hostname", text=f"{hostname}\n"),
        BoardFile(path="/etc/ssh/ssh_host_ed25519_key", text=host.private, mode=0o600),
        BoardFile(path="/root/.ssh/authorized_keys", text=key, mode=0o600),
        BoardFile(path="/home/pi/.ssh/authorized_keys", text=key, mode=0o600, owner="pi"),
    ]
