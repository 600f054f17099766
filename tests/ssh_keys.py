"""Keys and signatures of OpenSSH for tests: by ssh-keygen, and what only hardware would make."""

from __future__ import annotations

import base64
import hashlib
import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.support import require_tool

NAMESPACE = "edgepack-bundle"
HARDWARE = "sk-ssh-ed25519@openssh.com"


def make_key(folder: Path, name: str = "key", kind: str = "ed25519") -> Path:
    """A key pair without a passphrase by ssh-keygen: the private key's file."""
    path = folder / name
    tool = require_tool("ssh-keygen")
    subprocess.run(
        [tool, "-q", "-t", kind, "-N", "", "-C", name, "-f", path], check=True, timeout=60
    )
    return path


def public(key: Path) -> str:
    """`ssh-ed25519 AAAA...`, without the comment."""
    return " ".join(Path(f"{key}.pub").read_text().split()[:2])


def sign(
    key: Path, message: Path, *, namespace: str = NAMESPACE, options: tuple[str, ...] = ()
) -> Path:
    """`message`.sig by `ssh-keygen -Y sign`."""
    signature = Path(f"{message}.sig")
    signature.unlink(missing_ok=True)
    words = [require_tool("ssh-keygen"), "-Y", "sign", "-q", "-n", namespace, "-f", key]
    subprocess.run([*words, *options, message], check=True, capture_output=True, timeout=60)
    return signature


def ssh_keygen_accepts(
    message: Path, signature: Path, signers: Path, identity: str, *, time: str = ""
) -> bool:
    """What `ssh-keygen -Y verify` says, in UTC; `time` as in YYYYMMDDHHMMSS."""
    words = [require_tool("ssh-keygen"), "-Y", "verify", "-n", NAMESPACE, "-I", identity]
    words += ["-f", str(signers), "-s", str(signature)]
    words += ["-O", f"verify-time={time}"] if time else []
    done = subprocess.run(
        words,
        input=message.read_bytes(),
        capture_output=True,
        check=False,
        timeout=60,
        env={**os.environ, "TZ": "UTC"},
    )
    return done.returncode == 0


@contextmanager
def agent(*keys: Path) -> Iterator[str]:
    """A real ssh-agent that holds `keys`: its socket."""
    socket = keys[0].parent / "agent.socket"
    process = subprocess.Popen(
        [require_tool("ssh-agent"), "-D", "-a", socket], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()  # printed when it listens
        environment = {**os.environ, "SSH_AUTH_SOCK": str(socket)}
        for key in keys:
            subprocess.run(
                [require_tool("ssh-add"), "-q", key], check=True, env=environment, timeout=60
            )
        yield str(socket)
    finally:
        process.terminate()
        process.wait()


def wire(data: bytes) -> bytes:
    """RFC 4251's string."""
    return struct.pack(">I", len(data)) + data


@dataclass(frozen=True, kw_only=True)
class HardwareKey:
    """Stands for a FIDO2 key: the same bytes by the same algorithm, without the hardware.

    After PROTOCOL.u2f and PROTOCOL.sshsig of OpenSSH's source.
    """

    private: Ed25519PrivateKey
    application: bytes = b"ssh:"

    @property
    def blob(self) -> bytes:
        """The public key."""
        point = self.private.public_key().public_bytes_raw()
        return wire(HARDWARE.encode()) + wire(point) + wire(self.application)

    @property
    def public(self) -> str:
        """As in a .pub file."""
        return f"{HARDWARE} {base64.b64encode(self.blob).decode()}"

    def sign(
        self, message: bytes, *, flags: int = 1, counter: int = 7, hash_name: str = "sha512"
    ) -> str:
        """The armoured signature; `flags` are FIDO2's: 1 is a touch, 4 a PIN."""
        digest = hashlib.new(hash_name, message).digest()
        names = wire(NAMESPACE.encode()) + wire(b"") + wire(hash_name.encode())
        data = b"SSHSIG" + names + wire(digest)
        signed = hashlib.sha256(self.application).digest() + struct.pack(">BI", flags, counter)
        value = self.private.sign(signed + hashlib.sha256(data).digest())
        inner = wire(HARDWARE.encode()) + wire(value) + struct.pack(">BI", flags, counter)
        return armour(b"SSHSIG" + struct.pack(">I", 1) + wire(self.blob) + names + wire(inner))


def armour(blob: bytes) -> str:
    """`blob` between the two marker lines."""
    text = base64.b64encode(blob).decode()
    lines = "\n".join(text[start : start + 70] for start in range(0, len(text), 70))
    return f"-----BEGIN SSH SIGNATURE-----\n{lines}\n-----END SSH SIGNATURE-----\n"


def dearmour(text: str) -> bytes:
    """The opposite of `armour`."""
    return base64.b64decode("".join(text.splitlines()[1:-1]))
