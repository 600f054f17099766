"""Host certificates, as OpenSSH's PROTOCOL.certkeys has them: what one says, and whether it holds.

Who may sign them is said by known_hosts, in lines of `@cert-authority`.
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass

import paramiko

from edgepack.base import text
from edgepack.device.known_hosts import fingerprint

SUFFIX = "-cert-v01@openssh.com"
"""Behind the name of a key's kind."""

_HOST = 2  # SSH2_CERT_TYPE_HOST
_FOR_EVER = (1 << 64) - 1
# How many fields the key itself has, in each kind of certificate.
_FIELDS = {"ssh-rsa": 2, "ssh-ed25519": 1} | {f"ecdsa-sha2-nistp{n}": 2 for n in (256, 384, 521)}
_MOST_NAMES = 1000


class BadCertificateError(ValueError):
    """Why a certificate proves nothing."""


@dataclass(frozen=True, kw_only=True)
class HostCertificate:
    """What is signed, by the key `authority`; times are in seconds since 1970."""

    authority: bytes
    kind: int
    names: tuple[str, ...]
    valid_after: int
    valid_before: int
    critical: bytes
    signed: bytes
    signature: bytes

    def check(self, name: str, *, now: float | None = None) -> None:
        """Return if it proves that its key is that of the host `name`, at the time `now`.

        Raises BadCertificateError: as OpenSSH's client, what it must not be is all of it.
        """
        now = time.time() if now is None else now
        self._check_signature()
        if self.kind != _HOST:
            raise BadCertificateError("it is of a user, not of a host")
        if now < self.valid_after:
            raise BadCertificateError(f"it is not valid before {_date(self.valid_after)}")
        if now >= self.valid_before:
            raise BadCertificateError(f"it was valid until {_date(self.valid_before)}")
        # One that names nobody is anybody's. Patterns are none here.
        if self.names and name not in self.names:
            listed = text.one_line(", ".join(self.names), limit=100)
            raise BadCertificateError(f"it is of {listed}, not of {name}")
        if self.critical:
            raise BadCertificateError("it has critical options, which are unknown")

    def _check_signature(self) -> None:
        signature = paramiko.Message(self.signature)
        try:
            kind, algorithm = paramiko.Message(self.authority).get_text(), signature.get_text()
            if algorithm == "ssh-rsa":
                raise BadCertificateError("it is signed with SHA-1, which is too weak")
            if _string(algorithm.encode()) + _string(signature.get_string()) != self.signature:
                raise BadCertificateError("its signature does not end where it should")
            signature.rewind()
            key = paramiko.PKey.from_type_string(kind, self.authority)
            if key.verify_ssh_sig(self.signed, signature):
                return
        except BadCertificateError:
            raise
        except Exception as error:  # whatever cryptography makes of bytes that are no key
            raise BadCertificateError(
                f"its signature cannot be read: {text.one_line(error)}"
            ) from None
        raise BadCertificateError(f"it is not signed by {fingerprint(self.authority)}")


def certificate_of(key: paramiko.PKey) -> HostCertificate | None:
    """The certificate that a host showed as its key; None for a plain key, and for what is none."""
    blob = getattr(key.public_blob, "key_blob", b"")
    if not blob:
        return None
    try:
        return _parse(blob)
    except (ValueError, LookupError, paramiko.SSHException):
        return None


def _parse(blob: bytes) -> HostCertificate:
    message = paramiko.Message(blob)
    fields = _FIELDS[message.get_text().removesuffix(SUFFIX)]
    for _ in range(1 + fields):  # a nonce, and the key
        message.get_string()
    message.get_int64()  # its number
    kind = message.get_int()
    message.get_string()  # what its signer calls it
    names = _names(message.get_string())
    after, before = message.get_int64(), message.get_int64()
    critical = message.get_string()
    message.get_string()  # extensions, which hosts have none of
    message.get_string()
    authority = message.get_string()
    signed = message.get_so_far()
    signature = message.get_string()
    # paramiko fills up what is too short.
    if signed + _string(signature) != blob:
        raise ValueError("it does not end where it should")
    return HostCertificate(
        authority=authority,
        kind=kind,
        names=names,
        valid_after=after,
        valid_before=before,
        critical=critical,
        signed=signed,
        signature=signature,
    )


def _string(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def _names(data: bytes) -> tuple[str, ...]:
    message, names = paramiko.Message(data), []
    while message.get_remainder():
        names.append(message.get_text())
        if len(names) > _MOST_NAMES:
            raise ValueError("it has too many names")
    return tuple(names)


def _date(when: int) -> str:
    if when >= _FOR_EVER:
        return "ever"
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(when))
    except (OverflowError, OSError, ValueError):
        return f"second {when}"
