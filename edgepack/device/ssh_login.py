"""Logging in as OpenSSH's client does: which keys, in which order, and what a refusal says.

As sshconnect2.c (`pubkey_prepare`): first the agent's keys that a file names, be it by its .pub,
then the agent's others, then files.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import shlex
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from paramiko.agent import AgentKey, AgentSSH
from paramiko.pkey import PublicBlob

from edgepack.base import text
from edgepack.device.errors import AuthError

log = logging.getLogger(__name__)

_AGENT_S = 10.0
_MAX_KEY_BYTES = 1 << 20
_OPENSSH_MAGIC = b"openssh-key-v1\0"
_CERTIFICATE = "-cert-v01@openssh.com"
_MANY_KEYS = 3
"""A server that hangs up after as many has had enough of them: dropbear says no word of it."""

_INTERACTIVE = "keyboard-interactive"
_NO_KEY = (OSError, ValueError, TypeError, UnsupportedAlgorithm, paramiko.SSHException)
"""What reading a key file raises that holds none that can be used."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """Which keys to try: `first` before all others, then as OpenSSH would."""

    user: str
    where: str
    port: int
    host: str
    first: tuple[Path, ...]
    files: tuple[Path, ...]
    certificates: tuple[Path, ...]
    agent: str | None
    only_files: bool


class KeyLogin:
    """The way in to one host: what `paramiko.SSHClient.connect` calls an auth_strategy."""

    def __init__(self, wish: Wish) -> None:
        self._wish = wish
        self._locked: list[Path] = []
        self._unusable: list[str] = []
        self._asked = ""
        """What the device wanted to be typed."""

    def authenticate(self, transport: paramiko.Transport) -> None:
        """Log in, or raise AuthError; what else paramiko raises is a lost connection."""
        methods = self._none(transport)
        if methods is None:
            return
        accepted, tried = False, 0
        with contextlib.closing(_Agent(self._wish.agent)) as agent:
            for key in _candidates(self._wish, agent, self._locked, self._unusable):
                if "publickey" not in methods:
                    break
                tried += 1
                more = self._offer(transport, key, tried)
                if more is not None:
                    if not more:
                        return
                    accepted, methods = True, more
        if accepted and methods == [_INTERACTIVE] and self._is_let_in(transport):
            return
        raise self._refusal(methods, accepted=accepted, tried=tried)

    def _none(self, transport: paramiko.Transport) -> list[str] | None:
        """How one may log in; None if one is in: some boards ask for nothing."""
        try:
            transport.auth_none(self._wish.user)
        except paramiko.BadAuthenticationType as error:
            return list(error.allowed_types)
        except paramiko.AuthenticationException:
            if not transport.is_active():
                raise
            return ["publickey"]
        return None

    def _offer(
        self, transport: paramiko.Transport, key: paramiko.PKey, tried: int
    ) -> list[str] | None:
        """What is wanted on top of `key`, nothing if it lets in, None if it is refused."""
        try:
            return list(transport.auth_publickey(self._wish.user, key))
        except paramiko.BadAuthenticationType:
            return None
        except paramiko.SSHException as error:
            if transport.is_active():
                log.debug("%s: a key is refused: %s", self._wish.where, error)
                return None
            goodbye = getattr(transport, "goodbye", "")
            if not goodbye and tried < _MANY_KEYS:
                raise
            raise self._turned_away(goodbye, tried) from None

    def _is_let_in(self, transport: paramiko.Transport) -> bool:
        """Whether nothing is to be typed after all."""

        def answer(_title: str, _text: str, prompts: Sequence[tuple[str, bool]]) -> list[str]:
            if prompts:
                self._asked = text.one_line(prompts[0][0], limit=80).rstrip(" :")
                # An empty answer would count as a wrong one.
                raise paramiko.SSHException("something is to be typed")
            return []

        try:
            return not transport.auth_interactive(self._wish.user, answer)
        except paramiko.SSHException:
            return False

    def _turned_away(self, goodbye: str, tried: int) -> AuthError:
        wish = self._wish
        if "oo many authentication failures" in goodbye or not goodbye:
            return AuthError(
                f"{wish.where} refuses {wish.user} after {text.format_count(tried, 'key')}: "
                f"{goodbye or 'it hangs up'}",
                hint="name the right key with --identity FILE (its .pub, if an agent has it), or "
                "with IdentityFile and IdentitiesOnly yes in the OpenSSH configuration",
            )
        return AuthError(
            f"{wish.where} refuses {wish.user}: {goodbye}",
            hint="its sshd's log says why (journalctl -u ssh)",
        )

    def _refusal(self, methods: Sequence[str], *, accepted: bool, tried: int) -> AuthError:
        wish = self._wish
        wants = " or ".join(methods)
        if accepted:
            asks = f" ({self._asked!r})" if self._asked else ""
            return AuthError(
                f"{wish.where} takes the key of {wish.user}, and then asks for more: {wants}{asks}",
                hint="nobody can type here: let the key alone be enough for this account, with "
                f"`Match User {wish.user}` and `AuthenticationMethods publickey` in sshd_config",
            )
        if "publickey" not in methods:
            return AuthError(
                f"{wish.where} takes no keys of {wish.user}, only {wants or 'nothing'}",
                hint="`PubkeyAuthentication yes` in its sshd_config, then ssh-copy-id",
            )
        if self._locked:
            return AuthError(
                f"{wish.where} refuses {wish.user}; a key is protected by a passphrase: "
                f"{', '.join(map(str, self._locked))}",
                hint="unlock it first: eval $(ssh-agent); ssh-add",
            )
        unusable = f"; not usable: {', '.join(self._unusable)}" if self._unusable else ""
        keys = text.format_count(tried, "key") if tried else "no key to offer"
        return AuthError(
            f"{wish.where} refuses {wish.user}: Authentication failed ({keys}){unusable}",
            hint=f"put your key there: ssh-copy-id -p {wish.port} "
            f"{shlex.quote(f'{wish.user}@{wish.host}')}; or name another one with --identity",
        )


class _Agent(AgentSSH):
    """The agent at `path`; one that does not answer has no keys."""

    def __init__(self, path: str | None) -> None:
        super().__init__()
        if not path:
            return
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(_AGENT_S)
        try:
            connection.connect(path)
            self._connect(connection)  # type: ignore[attr-defined]
        except (OSError, paramiko.SSHException, struct.error, ValueError) as error:
            log.debug("no agent at %s: %s", path, error)
            connection.close()
            self._conn = None

    def close(self) -> None:
        """Hang up."""
        self._close()  # type: ignore[attr-defined]


def _candidates(
    wish: Wish, agent: _Agent, locked: list[Path], unusable: list[str]
) -> Iterator[paramiko.PKey]:
    """Keys in the order to try; files that cannot be used are added to the lists."""
    held: dict[bytes, AgentKey] = {}
    for key in agent.get_keys():
        if key.name.endswith(_CERTIFICATE):
            key.public_blob = PublicBlob(key.name, key.blob)  # type: ignore[assignment]
        held.setdefault(key.blob, key)
    files = list(dict.fromkeys((*wish.first, *wish.files)))
    certificates = [cert for path in wish.certificates if (cert := _certificate(path))]
    for path in files:
        if certificate := _certificate(Path(f"{path}-cert.pub")):
            certificates.append(certificate)
    later: list[Path] = []
    named: set[bytes] = set()
    for path in files:
        public = public_blob(path)
        if public is not None and public in held:
            named.add(public)
            yield from _with_certificates(held[public], certificates)
        elif path in wish.first:
            yield from _from_file(path, certificates, locked, unusable)
        else:
            later.append(path)
    if not wish.only_files:
        for blob, key in held.items():
            if blob not in named:
                yield key
    for path in later:
        yield from _from_file(path, certificates, locked, unusable)


def _from_file(
    path: Path, certificates: Sequence[PublicBlob], locked: list[Path], unusable: list[str]
) -> Iterator[paramiko.PKey]:
    if not path.is_file():
        return
    try:
        key = paramiko.PKey.from_path(path)
        key.public_blob = None
    except (paramiko.PasswordRequiredException, TypeError):
        # cryptography says TypeError for a PEM file that wants a passphrase.
        locked.append(path)
    except _NO_KEY as error:
        held = " (its private key is not in the agent)" if _is_public(path) else ""
        log.debug("%s: not a key: %s", path, error)
        unusable.append(f"{path}{held}")
    else:
        yield from _with_certificates(key, certificates)


def _with_certificates(
    key: paramiko.PKey, certificates: Sequence[PublicBlob]
) -> Iterator[paramiko.PKey]:
    """The key, and again with each of its certificates."""
    yield key
    for certificate in certificates:
        if _certified(bytes(certificate.key_blob)) == _certified_parts(key):
            key.public_blob = certificate
            yield key
    if not key.get_name().endswith(_CERTIFICATE):
        key.public_blob = None


def _certified_parts(key: paramiko.PKey) -> tuple[bytes, ...]:
    """The fields of a public key, after its kind."""
    return tuple(_fields(key.asbytes()))[1:]


def _certified(blob: bytes) -> tuple[bytes, ...]:
    """The same of the key in a certificate (PROTOCOL.certkeys): after its kind and a nonce."""
    fields = tuple(_fields(blob))
    kind = fields[0].decode(errors="replace") if fields else ""
    count = {"ssh-rsa": 2, "ssh-ed25519": 1}.get(kind.removesuffix(_CERTIFICATE), 2)
    return fields[2 : 2 + count]


def _fields(blob: bytes) -> Iterator[bytes]:
    """Strings of an SSH message, as many as there are whole ones."""
    at = 0
    while at + 4 <= len(blob):
        (size,) = struct.unpack_from(">I", blob, at)
        if at + 4 + size > len(blob):
            return
        yield blob[at + 4 : at + 4 + size]
        at += 4 + size


def _certificate(path: Path) -> PublicBlob | None:
    blob = _public_line(_read(path))
    if blob is None:
        return None
    kind = next(_fields(blob), b"").decode(errors="replace")
    return PublicBlob(kind, blob) if kind.endswith(_CERTIFICATE) else None


def public_blob(path: Path) -> bytes | None:
    """The public key in `path`, be that a key or its .pub; None if neither says it."""
    data = _read(path)
    return _public_line(data) or _public_half(data) or _public_line(_read(Path(f"{path}.pub")))


def _is_public(path: Path) -> bool:
    return _public_line(_read(path)) is not None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes() if path.stat().st_size <= _MAX_KEY_BYTES else b""
    except OSError:
        return b""


def _public_line(data: bytes) -> bytes | None:
    """The key in a line such as `ssh-ed25519 AAAA... comment`."""
    for line in data.splitlines():
        words = line.split()
        if len(words) >= 2 and not line.startswith((b"#", b"-")):
            with contextlib.suppress(ValueError):
                blob = base64.b64decode(words[1], validate=True)
                if next(_fields(blob), b"") == words[0]:
                    return blob
    return None


def _public_half(data: bytes) -> bytes | None:
    """The public key in OpenSSH's own private key file: readable without a passphrase."""
    lines = data.splitlines()
    if not lines or b"BEGIN OPENSSH PRIVATE KEY" not in lines[0]:
        return None
    with contextlib.suppress(ValueError):
        body = base64.b64decode(b"".join(line for line in lines if not line.startswith(b"-")))
        if body.startswith(_OPENSSH_MAGIC):
            # Cipher, KDF and its options; a number of keys; the public key.
            rest = body[len(_OPENSSH_MAGIC) :]
            parts = [next_ for next_, _ in zip(_fields(rest), range(3), strict=False)]
            at = sum(4 + len(part) for part in parts) + 4
            return next(_fields(rest[at:]), None)
    return None
