"""OpenSSH's known_hosts files: is this the key we know the host by?

paramiko's own reader takes the first key of a type only and overlooks @revoked and
patterns, so a revoked key would pass for a new one.
"""

from __future__ import annotations

import base64
import binascii
import errno
import fnmatch
import hashlib
import hmac
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

_DEFAULT_PORT = 22


class HostKeyVerdict(Enum):
    """What known_hosts says about a key."""

    KNOWN = "known"
    UNKNOWN = "unknown"
    CHANGED = "changed"
    REVOKED = "revoked"


@dataclass(frozen=True, kw_only=True)
class HostLine:
    """One line; `marker` is "", "@revoked" or "@cert-authority"."""

    marker: str
    hosts: tuple[str, ...]
    key_type: str
    key: bytes
    origin: str


class KnownHosts:
    """The lines of some known_hosts files."""

    def __init__(self, entries: Iterable[HostLine]) -> None:
        self._entries = tuple(entries)

    @staticmethod
    def load(paths: Sequence[Path]) -> KnownHosts:
        """Read those of `paths` that are there; lines that make no sense are skipped."""
        entries = []
        for path in paths:
            if path.is_file():
                text = path.read_text(encoding="utf-8", errors="replace")
                entries += _parse(text.splitlines(), str(path))
        return KnownHosts(entries)

    @staticmethod
    def of_lines(lines: Iterable[str]) -> KnownHosts:
        """The same from lines."""
        return KnownHosts(_parse(lines, "host key"))

    def key_types(self, host: str) -> tuple[str, ...]:
        """Types of the keys `host` is known by, to be asked for first."""
        entries = self._of(host) or self._of(_without_port(host))
        return tuple(dict.fromkeys(entry.key_type for entry in entries if not entry.marker))

    def has_authorities(self, host: str) -> bool:
        """Whether `host` may show a certificate for its key."""
        return any(True for _ in self._authorities(host))

    def authority(self, host: str, key: bytes) -> str | None:
        """The line by which `key` may sign certificates of `host`; None if there is none."""
        return next((one.origin for one in self._authorities(host) if one.key == key), None)

    def revoked(self, host: str, key: bytes) -> str | None:
        """The line by which nobody is `host` by `key`, be it its own or the one that signed it."""
        for entry in self._of(host):
            if entry.marker == "@revoked" and entry.key == key:
                return entry.origin
        return None

    def _authorities(self, host: str) -> Iterator[HostLine]:
        entries = (*self._of(host), *self._of(_without_port(host)))
        return (entry for entry in entries if entry.marker == "@cert-authority")

    def check(self, host: str, key_type: str, key: bytes) -> tuple[HostKeyVerdict, str]:
        """Verdict on `key` of `host` (`name`, or `[name]:port`), and the line it rests on.

        A key of another type than the known ones is CHANGED, too: the known types were
        asked for first, so the host does not have them any more.
        """
        if line := self.revoked(host, key):
            return HostKeyVerdict.REVOKED, line
        known = [entry for entry in self._of(host) if not entry.marker]
        # What a host has at port 22 it may have at another one; it need not.
        elsewhere = [] if known else self._of(_without_port(host))
        for entry in (*known, *(entry for entry in elsewhere if not entry.marker)):
            if (entry.key_type, entry.key) == (key_type, key):
                return HostKeyVerdict.KNOWN, entry.origin
        return (HostKeyVerdict.CHANGED, known[0].origin) if known else (HostKeyVerdict.UNKNOWN, "")

    def _of(self, host: str) -> list[HostLine]:
        return [entry for entry in self._entries if _matches(entry.hosts, host)]


def host_name(host: str, port: int) -> str:
    """How known_hosts spells a host: the port only if it is not 22."""
    return host.lower() if port == _DEFAULT_PORT else f"[{host.lower()}]:{port}"


def _without_port(host: str) -> str:
    """The name in `[name]:port`."""
    return host[1:].rpartition("]:")[0] if host.startswith("[") else host


def fingerprint(key: bytes) -> str:
    """As `ssh-keygen -l` prints it."""
    digest = base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")
    return f"SHA256:{digest}"


def append(path: Path, host: str, key_type: str, key: bytes) -> None:
    """Add a line for `host` at the end of `path`, which is made if needed.

    Raises OSError, also for a file that holds something else: whoever wrote an inventory may have
    named it.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    old = path.read_bytes() if path.exists() else b""
    said = [line for line in old.decode(errors="replace").splitlines() if line.strip()]
    lines = [line for line in said if not line.lstrip().startswith("#")]
    if len(_parse(lines, "")) < len(lines):
        raise OSError(errno.EINVAL, "it holds something else than host keys", str(path))
    newline = b"\n" if old and not old.endswith(b"\n") else b""
    with path.open("ab") as file:
        file.write(newline + f"{host} {key_type} {base64.b64encode(key).decode()}\n".encode())


def _parse(lines: Iterable[str], origin: str) -> list[HostLine]:
    entries = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        marker = words.pop(0) if words and words[0].startswith("@") else ""
        if len(words) < 3 or words[0].startswith("#"):
            continue
        try:
            key = base64.b64decode(words[2], validate=True)
        except binascii.Error:
            continue
        entries.append(
            HostLine(
                marker=marker,
                hosts=tuple(words[0].split(",")),
                key_type=words[1],
                key=key,
                origin=f"{origin}:{number}",
            )
        )
    return entries


def _matches(patterns: Sequence[str], host: str) -> bool:
    found = False
    for pattern in patterns:
        if pattern.startswith("|1|"):
            found |= _matches_hash(pattern, host)
        elif pattern.startswith("!"):
            if _matches_glob(pattern[1:], host):
                return False
        else:
            found |= _matches_glob(pattern, host)
    return found


def _matches_glob(pattern: str, host: str) -> bool:
    # Only * and ? are special in known_hosts; [host]:port is literal.
    return fnmatch.fnmatchcase(host, pattern.lower().replace("[", "[[]"))


def _matches_hash(pattern: str, host: str) -> bool:
    try:
        salt, digest = (base64.b64decode(part) for part in pattern.split("|")[2:4])
    except ValueError:
        return False
    # The format prescribes SHA-1 here; it hides names and protects nothing else.
    return hmac.compare_digest(hmac.new(salt, host.encode(), hashlib.sha1).digest(), digest)
