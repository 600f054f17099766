"""Signatures over a bundle's manifest, which covers every byte of it.

They are OpenSSH's own (PROTOCOL.sshsig of its source), made and checked by ssh-keygen: keys
can be in files, in an agent or in FIDO2 hardware, and nothing here sees a private one. The
device checks them itself (cpp_runtime/device/src/sshsig.cc); only Ed25519 keys count there.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import re
import shlex
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from edgepack.base.errors import BundleError, ToolchainError, UsageError
from edgepack.base.paths import write_atomic
from edgepack.base.process import last_lines
from edgepack.base.progress import end_step
from edgepack.base.tables import read_text
from edgepack.base.tools import find_tool
from edgepack.bundle.bundle import Bundle, open_bundle, write_tarball
from edgepack.bundle.manifest import MANIFEST_NAME, SIGNATURE_NAME
from edgepack.bundle.tarball import member_time, unpack_tar_gz

log = logging.getLogger(__name__)

NAMESPACE = "edgepack-bundle"
"""What a signature is made for: one over the same bytes for another purpose is none."""

KEY_TYPES = ("ssh-ed25519", "sk-ssh-ed25519@openssh.com")
MOST_SIGNATURES = 8
_BEGIN = b"-----BEGIN SSH SIGNATURE-----"
_TOUCHED = 0x01  # FIDO2's flag "user present"


class SigningError(ToolchainError):
    """ssh-keygen could not make a key or a signature."""


class SignatureError(BundleError):
    """A bundle's signature is none, or not over this bundle."""


class UnsignedError(SignatureError):
    """A bundle has no signature."""


class UnknownSignerError(SignatureError):
    """A bundle is signed by a key that is not among the allowed ones."""


class ExpiredKeyError(SignatureError):
    """The key that signed a bundle is listed, but not for now or not for bundles."""


class TooFewSignersError(SignatureError):
    """Fewer signed a bundle than the list asks for."""


@dataclass(frozen=True, kw_only=True)
class Key:
    """A public key: `line` is "ssh-ed25519 AAAA...", `fingerprint` "SHA256:..."."""

    line: str
    fingerprint: str

    def allowed_signer(self, principal: str) -> str:
        """The line for a file of allowed signers (ssh-keygen(1)) that lets it sign bundles."""
        return f'{principal} namespaces="{NAMESPACE}" {self.line}'


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What `verify` found: the bundle, and the key and name of who signed it.

    `key` is None without a signature, `principal` when no list of signers was given.
    """

    bundle: Bundle
    key: Key | None
    principal: str | None


def check_principal(name: str) -> str:
    """`name` if it can stand in a file of allowed signers as itself, else UsageError."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._@+-]*", name):
        raise UsageError(
            f"a name of a signer: {name!r}", hint="letters, digits and . _ @ + - : ci@example.org"
        )
    return name


def make_key(path: Path, *, hardware: bool = False, comment: str, passphrase: bool = True) -> Key:
    """A new Ed25519 key pair `path` and `path`.pub; ssh-keygen asks for a passphrase.

    With `hardware` the private key stays in a FIDO2 token, which must be there and touched.
    Raises UsageError if `path` exists and SigningError if ssh-keygen fails.
    """
    public = Path(f"{path}.pub")
    for file in (path, public):
        if file.exists():
            raise UsageError(f"a key is there already: {file}", hint="choose another name")
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = "ed25519-sk" if hardware else "ed25519"
    words = ["-q", "-t", kind, "-C", comment, "-f", str(path)]
    _ssh_keygen(*words, *(() if passphrase else ("-N", "")), what="making a key")
    return read_public_key(public)


def read_public_key(path: Path) -> Key:
    """The key in a .pub file. Raises UsageError if it is none that can sign bundles."""
    try:
        words = read_text(path, error=UsageError).split()
        blob = base64.b64decode(words[1], validate=True)
    except (UsageError, IndexError, ValueError):
        raise UsageError(f"not a public key: {path}") from None
    if words[0] not in KEY_TYPES:
        raise UsageError(f"{path}: a key of type {words[0]}", hint=_HINT_TYPE)
    return _key(blob)


def sign(path: Path, key: Path, *, add: bool = False, check: bool = False) -> Verdict:
    """Sign the bundle at `path`, a folder or a .tar.gz, in place; a signature there is replaced.

    `key` is a private key's file, or the .pub file of one that an agent holds. Ed25519 gives
    the same signature for the same key and manifest, and so equal bundles stay equal. With `add`
    signatures of other keys stay; with `check` the version must be new, see `check_version`.
    Raises what `open_bundle` raises, UsageError for a key of another type, and SigningError.
    """
    with tempfile.TemporaryDirectory() as name:
        # Not the cache's copy, which is that of the tarball as it was.
        folder = unpack_tar_gz(path, Path(name)) if path.is_file() else path
        bundle = open_bundle(folder)
        if check:
            check_version(bundle, key)
        verdict = sign_folder(bundle, key, add=add)
        if check:
            note_version(bundle, key)
        if path.is_file():
            write_tarball(verdict.bundle, path, mtime=member_time(path))
    return verdict


def sign_folder(bundle: Bundle, key: Path, *, add: bool = False) -> Verdict:
    """As `sign`, for a bundle that was opened or made already."""
    if not key.is_file():
        raise UsageError(f"no such key: {key}", hint="edgepack keygen makes one")
    armoured = _ssh_keygen(
        *("-Y", "sign", "-q", "-n", NAMESPACE, "-f", str(key)),
        input=_manifest(bundle),
        what="signing",
    )
    signature = _Signature.parse(armoured, bundle.path)
    if signature.key is None:
        raise UsageError(f"{key}: a key of type {signature.kind}", hint=_HINT_TYPE)
    others = [
        block
        for block in (split_signatures(bundle.signature) if add else ())
        if _Signature.parse(block, bundle.path).key != signature.key
    ]
    if len(others) == MOST_SIGNATURES:
        raise UsageError(f"{bundle.path}: it has {MOST_SIGNATURES} signatures, which is the most")
    write_atomic(bundle.path / SIGNATURE_NAME, b"".join([*others, armoured]))
    return Verdict(bundle=bundle, key=signature.key, principal=None)


def split_signatures(text: bytes) -> list[bytes]:
    """The signatures in a file of one or more, one after the other."""
    parts = text.split(_BEGIN)
    return [_BEGIN + part for part in parts[1:]] if not parts[0].strip() else [text]


def check_version(bundle: Bundle, key: Path) -> None:
    """Raise UsageError for a bundle that must not be signed: this key signed another release of
    that name and board before, with the same version, or this one has none.

    Devices that have signers pinned tell old from new by the number alone.
    """
    manifest = bundle.manifest
    for name, board, version, release in _notes(key):
        others = (name, board) == (manifest.name, manifest.board) and release != manifest.release
        if others and (version == str(manifest.version) or not manifest.version):
            problem = f"with the same version {version}" if manifest.version else "before"
            raise UsageError(
                f"{bundle.path}: {'' if manifest.version else 'it has no version, and '}this key "
                f"signed release {release} of {name} for {board} {problem}, see {_notes_file(key)}",
                hint="package it again: --release-version N, or --release-version auto",
            )


def note_version(bundle: Bundle, key: Path) -> None:
    """Write down beside `key` which version it signed, for `check_version`."""
    manifest = bundle.manifest
    note = (manifest.name, manifest.board, str(manifest.version), manifest.release)
    notes = _notes(key)
    if note in notes:
        return
    text = "".join(f"{' '.join(words)}\n" for words in [*notes, note])
    try:
        write_atomic(_notes_file(key), text.encode())
    except OSError as error:
        log.warning("%s cannot be written (%s): see that versions rise", _notes_file(key), error)


def _notes_file(key: Path) -> Path:
    return key.with_name(f"{key.name.removesuffix('.pub')}.signed")


def _notes(key: Path) -> list[tuple[str, ...]]:
    """Name, board, version and release of what was signed."""
    file = _notes_file(key)
    if not file.is_file():
        return []
    return [tuple(line.split()) for line in read_text(file).splitlines() if line.count(" ") == 3]


def verify(path: Path, signers: Path | None = None) -> Verdict:
    """Check every file of a bundle (folder or .tar.gz) and its signature.

    `signers` is a file of allowed signers, as pinned on devices; without it a signature must
    be over the manifest, but may be anybody's, or missing. Raises what `open_bundle` raises,
    and UnsignedError, UnknownSignerError, ExpiredKeyError or SignatureError.
    """
    if signers is not None and not signers.is_file():
        raise UsageError(f"no such file of allowed signers: {signers}")
    bundle = open_bundle(path)
    if not bundle.signature:
        if signers is not None:
            raise UnsignedError(f"{path}: not signed", hint="edgepack sign")
        return Verdict(bundle=bundle, key=None, principal=None)
    found: dict[str, tuple[Key, str | None]] = {}
    refusal: SignatureError | None = None
    for block in split_signatures(bundle.signature):
        try:
            key, principal = _verify_one(path, bundle, block, signers)
        except (UnknownSignerError, ExpiredKeyError) as error:
            refusal = refusal or error
        else:
            if all(key != other for other, _ in found.values()):
                found.setdefault(principal or key.fingerprint, (key, principal))
    needed = 1 if signers is None else _min_signers(signers)
    if refusal is not None and not found:
        raise refusal
    if len(found) < needed:
        raise TooFewSignersError(
            f"{path}: {len(found)} of {needed} signers that {signers} asks for",
            hint="have others sign it as well: edgepack sign BUNDLE --key FILE --add",
        )
    key, principal = next(iter(found.values()))
    return Verdict(bundle=bundle, key=key, principal=principal)


def _min_signers(signers: Path) -> int:
    """As the device reads it in a list (cpp_runtime/device/src/allowed_signers.cc)."""
    for line in read_text(signers).splitlines():
        if line.startswith("# edgepack:"):
            name, _, value = line.removeprefix("# edgepack:").partition("=")
            if name.strip() == "min-signers":
                if not re.fullmatch(r"[1-8]", value.strip()):
                    raise UsageError(f"{signers}: min-signers: {value.strip()!r} is not 1 to 8")
                return int(value)
    return 1


def _verify_one(
    path: Path, bundle: Bundle, armoured: bytes, signers: Path | None
) -> tuple[Key, str | None]:
    """Whose signature it is. Raises what `verify` raises."""
    signature = _Signature.parse(armoured, path)
    if signature.key is None:
        raise SignatureError(f"{path}: signed by a key of type {signature.kind}", hint=_HINT_TYPE)
    if signature.flags is not None and not signature.flags & _TOUCHED:
        raise SignatureError(f"{path}: signed by a hardware key that nobody touched")
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / SIGNATURE_NAME
        file.write_bytes(armoured)
        message = _manifest(bundle)
        words = ("-n", NAMESPACE, "-s", str(file))
        if not _says_yes("-Y", "check-novalidate", *words, input=message):
            raise SignatureError(
                f"{path}: the signature is not over this manifest", hint="edgepack sign"
            )
        principal = None
        if signers is not None:
            principal = _principal(path, file, signers, signature.key)
            listed = ("-f", str(signers), "-I", principal)
            if not _says_yes("-Y", "verify", *words, *listed, input=message):
                raise ExpiredKeyError(
                    f"{path}: {signature.key.fingerprint} of {principal} may not sign bundles: "
                    f"see its namespaces in {signers}"
                )
    return signature.key, principal


_HINT_TYPE = f"devices take {' and '.join(KEY_TYPES)}: edgepack keygen"


@dataclass(frozen=True, kw_only=True)
class _Signature:
    """Of PROTOCOL.sshsig's fields what is needed here; `key` is None for other types."""

    kind: str
    key: Key | None
    flags: int | None

    @classmethod
    def parse(cls, armoured: bytes, path: Path) -> _Signature:
        """Raises SignatureError that names `path`."""
        try:
            lines = armoured.decode("ascii").split()
            blob = base64.b64decode("".join(lines[3:-3]), validate=True)
            if blob[:10] != b"SSHSIG\0\0\0\1":
                raise ValueError
            key, _, _, _, value = _strings(blob[10:], 5)
            kind = _strings(key, 1)[0].decode("ascii")
            # Type, signature, and of hardware keys the flags and a counter.
            _, _, rest = _strings(value, 2, rest=True)
        except (ValueError, struct.error):
            raise SignatureError(f"{path}: {SIGNATURE_NAME} is not a signature") from None
        return cls(
            kind=kind,
            key=_key(key) if kind in KEY_TYPES else None,
            flags=rest[0] if rest else None,
        )


def _strings(data: bytes, count: int, *, rest: bool = False) -> list[bytes]:
    """The first `count` strings (RFC 4251) of `data`, and with `rest` what follows them."""
    strings = []
    for _ in range(count):
        (size,) = struct.unpack_from(">I", data)
        if size > len(data) - 4:
            raise ValueError
        strings.append(data[4 : 4 + size])
        data = data[4 + size :]
    return [*strings, data] if rest else strings


def _key(blob: bytes) -> Key:
    kind = _strings(blob, 1)[0].decode("ascii")
    digest = base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
    return Key(line=f"{kind} {base64.b64encode(blob).decode()}", fingerprint=f"SHA256:{digest}")


def _manifest(bundle: Bundle) -> bytes:
    """The manifest's bytes, the very ones that the files were compared with."""
    data = (bundle.path / MANIFEST_NAME).read_bytes()
    if hashlib.sha256(data).hexdigest() != bundle.manifest_sha256:
        raise BundleError(f"{bundle.path}: {MANIFEST_NAME} was changed while it was read")
    return data


def _principal(path: Path, signature: Path, signers: Path, key: Key) -> str:
    """The first name that the list has for the key now."""
    found = _run("-Y", "find-principals", "-s", str(signature), "-f", str(signers))
    name = found.stdout.decode(errors="replace").split("\n")[0].split(",")[0]
    if found.returncode == 0 and name:
        return name
    if key.line.split()[1] in signers.read_text(encoding="utf-8", errors="replace"):
        raise ExpiredKeyError(
            f"{path}: signed by {key.fingerprint}, which is not valid now",
            hint=f"see valid-before and valid-after in {signers}",
        )
    raise UnknownSignerError(
        f"{path}: signed by {key.fingerprint}, which is not in {signers}",
        hint="sign it with a key that is, or add this one",
    )


def _says_yes(*words: str, input: bytes) -> bool:
    return _run(*words, input=input).returncode == 0


def _ssh_keygen(*words: str, input: bytes | None = None, what: str) -> bytes:
    done = _run(*words, input=input)
    if done.returncode != 0:
        output = last_lines((done.stdout + b"\n" + done.stderr).decode(errors="replace"))
        raise SigningError(f"{what} with ssh-keygen failed:\n{output}")
    return done.stdout


def _run(*words: str, input: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    """ssh-keygen in this process's session: it asks for passphrases on the terminal."""
    tool = find_tool("ssh-keygen")
    log.debug("run %s", shlex.join(("ssh-keygen", *words)))
    end_step()  # the terminal is ssh-keygen's
    return subprocess.run(
        [tool, *words],
        input=b"" if input is None else input,
        capture_output=True,
        check=False,
    )
