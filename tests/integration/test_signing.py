"""Signing bundles with real ssh-keygen and ssh-agent, and what the device's own check says."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from edgepack import cli
from edgepack.base.errors import EdgepackError, UsageError
from edgepack.bundle import signing
from edgepack.bundle.bundle import Bundle, DamagedBundleError, open_bundle, write_tarball
from edgepack.bundle.manifest import MANIFEST_NAME, SIGNATURE_NAME
from edgepack.bundle.signing import (
    ExpiredKeyError,
    SignatureError,
    SigningError,
    UnknownSignerError,
    UnsignedError,
)
from tests.bundles import small_bundle
from tests.device_tool import host_probe
from tests.ssh_keys import HardwareKey, agent, make_key, public


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return small_bundle(tmp_path)


def device_says(bundle: Path, signers: Path, now: int = 1795262400) -> str:
    """The slug with which the device's code refuses, or "ok"."""
    manifest = bundle / MANIFEST_NAME
    words = ["signature", manifest, bundle / SIGNATURE_NAME, signers, str(now)]
    done = subprocess.run([host_probe(), *words], capture_output=True, check=False, timeout=60)
    return str(json.loads(done.stdout).get("kind", "ok"))


def signers_file(folder: Path, *lines: str) -> Path:
    path = folder / "allowed_signers"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def run_cli(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, object]:
    assert cli.main([*map(str, words), "--json"]) == 0
    answer: dict[str, object] = json.loads(capsys.readouterr().out)
    return answer


def test_keygen_sign_verify(
    tmp_path: Path, bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    key, signers = tmp_path / "keys" / "release", tmp_path / "signers"
    made = run_cli(
        capsys, "keygen", key, "--no-passphrase", "--principal", "me@here", "--signers", signers
    )
    shown = subprocess.run(["ssh-keygen", "-lf", key], capture_output=True, text=True, check=True)
    assert made["fingerprint"] == shown.stdout.split()[1]
    assert key.stat().st_mode & 0o077 == 0
    assert signers.read_text() == f'me@here namespaces="edgepack-bundle" {public(key)}\n'

    signed = run_cli(capsys, "sign", bundle.path, "--key", key)
    assert signed["release"] == bundle.manifest.release
    verified = run_cli(capsys, "verify", bundle.path, "--signers", signers)
    assert verified["principal"] == "me@here"
    assert verified["fingerprint"] == made["fingerprint"]
    assert device_says(bundle.path, signers) == "ok"


def test_a_tarball_is_signed_in_place_and_reproducibly(tmp_path: Path, bundle: Bundle) -> None:
    key = make_key(tmp_path)
    first, second = tmp_path / "a" / "x.tar.gz", tmp_path / "b" / "x.tar.gz"
    for path in (first, second):
        write_tarball(bundle, path, mtime=1234567890)
        signing.sign(path, key)
    assert first.read_bytes() == second.read_bytes()
    # The same as from a folder that was signed before.
    signing.sign(bundle.path, key)
    write_tarball(open_bundle(bundle.path), second, mtime=1234567890)
    assert first.read_bytes() == second.read_bytes()
    assert signing.verify(first, signers_file(tmp_path, f"me {public(key)}")).principal == "me"
    # Signing again changes nothing.
    digest = hashlib.sha256(first.read_bytes()).digest()
    signing.sign(first, key)
    assert hashlib.sha256(first.read_bytes()).digest() == digest


def test_a_tarball_in_the_cache_stays_unsigned(tmp_path: Path, bundle: Bundle) -> None:
    path, copy = tmp_path / "x.tar.gz", tmp_path / "copy.tar.gz"
    write_tarball(bundle, path)
    shutil.copy(path, copy)
    open_bundle(path)
    signing.sign(path, make_key(tmp_path))
    assert signing.verify(path).key is not None
    assert signing.verify(copy).key is None


def test_a_key_that_only_an_agent_has(
    tmp_path: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = make_key(tmp_path)
    with agent(key) as socket:
        key.unlink()
        monkeypatch.setenv("SSH_AUTH_SOCK", socket)
        signing.sign(bundle.path, Path(f"{key}.pub"))
    signers = signers_file(tmp_path, f"me {public(key)}")
    assert signing.verify(bundle.path, signers).principal == "me"
    assert device_says(bundle.path, signers) == "ok"


def test_a_signature_as_hardware_makes_it(tmp_path: Path, bundle: Bundle) -> None:
    key = HardwareKey(private=Ed25519PrivateKey.generate())
    signers = signers_file(tmp_path, f"me {key.public}")
    manifest = (bundle.path / MANIFEST_NAME).read_bytes()
    (bundle.path / SIGNATURE_NAME).write_text(key.sign(manifest))
    assert signing.verify(bundle.path, signers).principal == "me"
    (bundle.path / SIGNATURE_NAME).write_text(key.sign(manifest, flags=0))
    with pytest.raises(SignatureError, match="nobody touched"):
        signing.verify(bundle.path, signers)
    assert device_says(bundle.path, signers) == "bad-signature"


@pytest.mark.parametrize(
    ("line", "error", "slug"),
    [
        ("other {other}", UnknownSignerError, "unknown-signer"),
        ('me valid-before="20200101" {key}', ExpiredKeyError, "expired-key"),
        ('me valid-after="20990101" {key}', ExpiredKeyError, "expired-key"),
        ('me namespaces="git" {key}', ExpiredKeyError, "unknown-signer"),
        ('a,b namespaces="git,edgepack-*" {key}', None, "ok"),
    ],
)
def test_here_and_on_the_device_alike(
    tmp_path: Path, bundle: Bundle, line: str, error: type[EdgepackError] | None, slug: str
) -> None:
    key, other = make_key(tmp_path), make_key(tmp_path, "other")
    signing.sign(bundle.path, key)
    signers = signers_file(tmp_path, line.format(key=public(key), other=public(other)))
    if error is None:
        assert signing.verify(bundle.path, signers).principal == "a"
    else:
        with pytest.raises(error, match=r"signed by SHA256:|may not sign bundles"):
            signing.verify(bundle.path, signers)
    assert device_says(bundle.path, signers) == slug


def test_what_verify_refuses(tmp_path: Path, bundle: Bundle) -> None:
    key = make_key(tmp_path)
    signers = signers_file(tmp_path, f"me {public(key)}")
    with pytest.raises(UnsignedError, match="not signed"):
        signing.verify(bundle.path, signers)
    signing.sign(bundle.path, key)
    signature = bundle.path / SIGNATURE_NAME
    good = signature.read_bytes()
    signature.write_bytes(good[:60])
    with pytest.raises(SignatureError, match=r"manifest\.json\.sig is not a signature"):
        signing.verify(bundle.path)
    signature.write_bytes(good)

    other = small_bundle(tmp_path / "other", params=b"others")
    (other.path / SIGNATURE_NAME).write_bytes(good)
    with pytest.raises(SignatureError, match="not over this manifest"):
        signing.verify(other.path, signers)
    with pytest.raises(SignatureError, match="not over this manifest"):
        signing.verify(other.path)

    (bundle.path / "labels.txt").write_text("changed\n")
    with pytest.raises(DamagedBundleError, match=r"labels\.txt"):
        signing.verify(bundle.path, signers)
    with pytest.raises(DamagedBundleError, match=r"labels\.txt"):
        signing.sign(bundle.path, key)


def test_keys_that_cannot_sign(tmp_path: Path, bundle: Bundle) -> None:
    with pytest.raises(UsageError, match="no such key"):
        signing.sign(bundle.path, tmp_path / "none")
    with pytest.raises(UsageError, match="a key of type ssh-rsa"):
        signing.sign(bundle.path, make_key(tmp_path, "rsa", kind="rsa"))
    key = make_key(tmp_path)
    key.chmod(0o644)  # ssh-keygen takes no key that others can read
    with pytest.raises(SigningError, match="signing with ssh-keygen failed"):
        signing.sign(bundle.path, key)
    assert not (bundle.path / SIGNATURE_NAME).exists()


def test_keys_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = make_key(tmp_path)
    before = key.read_bytes()
    assert cli.main(["keygen", str(key), "--no-passphrase"]) == 2
    assert f"a key is there already: {key}" in capsys.readouterr().err
    assert key.read_bytes() == before
    assert cli.main(["keygen", str(tmp_path / "k"), "--principal", "a b"]) == 2
    assert "a name of a signer: 'a b'" in capsys.readouterr().err
    # No token is plugged into this machine.
    assert cli.main(["keygen", str(tmp_path / "k"), "--hardware", "--no-passphrase"]) == 4
    assert "making a key with ssh-keygen failed" in capsys.readouterr().err
