"""The SSH servers of virtual boards: how each is started, and how it wants its own key."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from dataclasses import dataclass

from edgepack.virtual.keys import KeyPair

_OPENSSH_MAGIC = b"openssh-key-v1\0"


@dataclass(frozen=True, kw_only=True)
class Sshd:
    """`one_connection` serves the one on its standard input and output, `daemon` (for a shell)
    those that come to port 22.

    `host_key` gives the content of `host_key_file`. `passes_environment`: a login gets that of the
    server.
    """

    one_connection: tuple[str, ...]
    daemon: str
    host_key_file: str
    host_key: Callable[[KeyPair], bytes]
    passes_environment: bool


def dropbear_key(pair: KeyPair) -> bytes:
    """The private half of the ed25519 `pair` as dropbear reads it.

    Two strings of RFC 4251: the name of the kind, and seed and public key (64 bytes). OpenSSH
    has both at the end of its own format (PROTOCOL.key in its source), in which nothing is
    encrypted here.
    """
    lines = pair.private.split("\n")
    packed = base64.b64decode("".join(line for line in lines if not line.startswith("-----")))
    rest = packed.removeprefix(_OPENSSH_MAGIC)
    for _ in range(3):  # cipher, key derivation and its options: "none", "none" and nothing
        _, rest = _string(rest)
    _, rest = _string(rest[4:])  # how many keys there are; the public half
    private, _ = _string(rest)
    kind, rest = _string(private[8:])  # a number, twice, by which decryption is checked
    _, rest = _string(rest)
    secret, _ = _string(rest)
    return b"".join(struct.pack(">I", len(text)) + text for text in (kind, secret))


def _string(data: bytes) -> tuple[bytes, bytes]:
    """The string that `data` begins with, and what follows it."""
    end = 4 + int.from_bytes(data[:4])
    return data[4:end], data[end:]


OPENSSH = Sshd(
    one_connection=("/usr/sbin/sshd", "-i", "-e"),
    daemon="/usr/sbin/sshd",
    host_key_file="/etc/ssh/ssh_host_ed25519_key",
    host_key=lambda pair: pair.private.encode(),
    passes_environment=False,
)
DROPBEAR = Sshd(
    one_connection=("/usr/sbin/dropbear", "-i", "-e"),
    daemon="/usr/sbin/dropbear -e",
    host_key_file="/etc/dropbear/dropbear_ed25519_host_key",
    host_key=dropbear_key,
    passes_environment=True,
)
