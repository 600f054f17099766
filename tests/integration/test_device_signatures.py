"""The device tool's check of signatures, against what ssh-keygen makes and says."""

from __future__ import annotations

import base64
import calendar
import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests import ssh_keys
from tests.device_tool import host_probe
from tests.ssh_keys import HardwareKey, agent, armour, dearmour, make_key, public, sign, wire

NOW = calendar.timegm((2026, 11, 21, 12, 0, 0))
NOW_TEXT = "20261121120000"
MANIFEST = b'{"board":"rasp3b"}\n'


@pytest.fixture
def message(tmp_path: Path) -> Path:
    path = tmp_path / "manifest.json"
    path.write_bytes(MANIFEST)
    return path


def probe(message: Path, signature: Path, signers: Path, now: int = NOW) -> dict[str, Any]:
    """The tool's answer; "kind" is there when it refused."""
    done = subprocess.run(
        [host_probe(), "signature", message, signature, signers, str(now)],
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
        env={**os.environ, "TZ": "UTC"},
    )
    assert done.returncode in (0, 5), done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    assert ("kind" in answer) == (done.returncode == 5)
    return answer


def listed(folder: Path, text: str) -> Path:
    path = folder / "allowed_signers"
    path.write_text(text)
    return path


def test_a_signature_by_a_key_in_a_file(tmp_path: Path, message: Path) -> None:
    key = make_key(tmp_path)
    signature = sign(key, message)
    signers = listed(tmp_path, f"# who may\n\nrelease@example.org {public(key)} a comment\n")
    answer = probe(message, signature, signers)
    shown = subprocess.run(["ssh-keygen", "-lf", key], capture_output=True, text=True, check=True)
    assert answer == {
        "principal": "release@example.org",
        "fingerprint": shown.stdout.split()[1],
        "key": public(key),
    }


@pytest.mark.parametrize("hash_name", ["sha256", "sha512"])
def test_both_hashes_of_the_format(tmp_path: Path, message: Path, hash_name: str) -> None:
    key = make_key(tmp_path)
    signature = sign(key, message, options=("-O", f"hashalg={hash_name}"))
    assert hash_name.encode() in dearmour(signature.read_text())
    signers = listed(tmp_path, f"me {public(key)}\n")
    assert probe(message, signature, signers)["principal"] == "me"


def test_a_signature_by_an_agent(tmp_path: Path, message: Path, monkeypatch: Any) -> None:
    key = make_key(tmp_path)
    with agent(key) as socket:
        monkeypatch.setenv("SSH_AUTH_SOCK", socket)
        key.unlink()  # only the agent has it now
        signature = sign(Path(f"{key}.pub"), message)
    assert probe(message, signature, listed(tmp_path, f"me {public(key)}"))["principal"] == "me"


@pytest.mark.parametrize("hash_name", ["sha256", "sha512"])
def test_a_signature_as_hardware_makes_it(tmp_path: Path, message: Path, hash_name: str) -> None:
    key = HardwareKey(private=Ed25519PrivateKey.generate())
    signature = tmp_path / "sig"
    signature.write_text(key.sign(MANIFEST, hash_name=hash_name))
    signers = listed(tmp_path, f"me {key.public}\n")
    # ssh-keygen says that this stand-in makes what a real one would.
    assert ssh_keys.ssh_keygen_accepts(message, signature, signers, "me")
    assert probe(message, signature, signers)["key"] == key.public
    # Nobody touched it: stricter than ssh-keygen.
    signature.write_text(key.sign(MANIFEST, flags=0))
    answer = probe(message, signature, signers)
    assert answer["kind"] == "bad-signature" and "touched" in answer["message"]
    # The counter and the flags are signed, too.
    blob = dearmour(key.sign(MANIFEST))
    signature.write_text(armour(blob[:-1] + b"\x08"))
    assert probe(message, signature, signers)["kind"] == "bad-signature"


def test_another_manifest(tmp_path: Path, message: Path) -> None:
    key = make_key(tmp_path)
    signature = sign(key, message)
    signers = listed(tmp_path, f"me {public(key)}\n")
    message.write_bytes(MANIFEST.replace(b"rasp3b", b"rasp4b"))
    answer = probe(message, signature, signers)
    assert answer["kind"] == "bad-signature"
    assert "not over this manifest" in answer["message"]


def test_another_key(tmp_path: Path, message: Path) -> None:
    key, other = make_key(tmp_path), make_key(tmp_path, "other")
    signature = sign(other, message)
    answer = probe(message, signature, listed(tmp_path, f"me {public(key)}\n"))
    assert answer["kind"] == "unknown-signer"
    shown = subprocess.run(["ssh-keygen", "-lf", other], capture_output=True, text=True, check=True)
    assert shown.stdout.split()[1] in answer["message"]


def test_the_name_of_a_trusted_key_on_another_ones_signature(tmp_path: Path, message: Path) -> None:
    """The key's place in the blob is not signed: the trusted one there does not help."""
    key, other = make_key(tmp_path), make_key(tmp_path, "other")
    signature = sign(other, message)
    theirs, ours = (base64.b64decode(public(each).split()[1]) for each in (other, key))
    signature.write_text(armour(dearmour(signature.read_text()).replace(theirs, ours)))
    answer = probe(message, signature, listed(tmp_path, f"me {public(key)}\n"))
    assert answer["kind"] == "bad-signature"


def test_a_signature_for_another_purpose(tmp_path: Path, message: Path) -> None:
    key = make_key(tmp_path)
    signature = sign(key, message, namespace="git")
    answer = probe(message, signature, listed(tmp_path, f"me {public(key)}\n"))
    assert answer["kind"] == "bad-signature" and "purpose" in answer["message"]


@pytest.mark.parametrize("kind", ["rsa", "ecdsa"])
def test_other_kinds_of_keys(tmp_path: Path, message: Path, kind: str) -> None:
    key, own = make_key(tmp_path, kind=kind), make_key(tmp_path, "own")
    signature = sign(key, message)
    answer = probe(message, signature, listed(tmp_path, f"me {public(own)}\n"))
    assert answer["kind"] == "bad-signature" and "its key is not of type" in answer["message"]
    answer = probe(message, signature, listed(tmp_path, f"me {public(own)}\nme {public(key)}\n"))
    assert answer["kind"] == "bad-signers" and "line 2: a key of type" in answer["message"]


# What ssh-keygen says of each is asked below; the last column is what is stricter here.
LISTS = {
    "plain": ("me {key}", "me", None),
    "principals with commas": ("me@a,you@b {key} comment", "you@b", None),
    "quoted principals": ('"me" {key}', "me", None),
    "this namespace": ('me namespaces="edgepack-bundle" {key}', "me", None),
    "several namespaces": ('me namespaces="git,edgepack-*" {key}', "me", None),
    "options in capitals": ('me NAMESPACES="edgepack-bundle" {key}', "me", None),
    "another namespace": ('me namespaces="git" {key}', "unknown-signer", None),
    "a negated namespace": ('me namespaces="*,!edgepack-bundle" {key}', "unknown-signer", None),
    "valid": ('me valid-after="20260101",valid-before="20270101" {key}', "me", None),
    "valid until then": ('me valid-before="20261121120001" {key}', "me", None),
    "just expired": ('me valid-before="202611211159" {key}', "expired-key", None),
    "expired": ('me valid-before="20261120" {key}', "expired-key", None),
    "expired, in UTC": ('me valid-before="20261120Z" {key}', "expired-key", "old"),
    "not yet": ('me valid-after="20261122" {key}', "expired-key", None),
    "a later line for the key": ('me valid-before="20200101" {key}\nme {key}', "me", None),
    "carriage returns": ("me {key}\r", "me", "old"),
    "other": ("me {other}", "unknown-signer", None),
    "both": ("you {other}\nme {key}", "me", None),
    "no lines": ("# nothing\n", "bad-signers", None),
    "an unknown option": ('me no-such-option="1" {key}', "bad-signers", None),
    "an option without quotes": ("me namespaces=git {key}", "bad-signers", None),
    "an option for a principal": ('valid-before="20200101" {key}', "bad-signers", "principal"),
    "options for a principal": (
        'valid-before="20200101",namespaces="git" {key}',
        "bad-signers",
        None,
    ),
    "an authority for a principal": ("cert-authority {key}", "bad-signers", None),
    "a quote in the principals": ('me"x" {key}', "bad-signers", None),
    "no blank after the principals": ('"me"{key}', "bad-signers", "blank"),
    "nobody": ("!me {key}", "bad-signers", None),
    "a zero byte": ('me namespaces="*,\0" {key}', "bad-signers", None),
    "an option twice": (
        'me namespaces="a",namespaces="edgepack-bundle" {key}',
        "bad-signers",
        None,
    ),
    "no such day": ('me valid-before="20270231" {key}', "bad-signers", "normalised"),
    "no such time": ('me valid-before="yesterday" {key}', "bad-signers", None),
    "before is after": (
        'me valid-after="20270101",valid-before="20260101" {key}',
        "bad-signers",
        None,
    ),
    "a certificate authority": ("me cert-authority {key}", "bad-signers", None),
    "no key": ("me", "bad-signers", None),
    "half a key": ("me {half}", "bad-signers", None),
    "a bad line beside a good one": ("me {key}\nthis is not one", "bad-signers", "skipped"),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_of_signers_as_ssh_keygen_reads_them(
    tmp_path: Path, message: Path, name: str
) -> None:
    text, expected, difference = LISTS[name]
    key, other = make_key(tmp_path), make_key(tmp_path, "other")
    signature = sign(key, message)
    half = public(key)[:50]
    signers = listed(tmp_path, text.format(key=public(key), other=public(other), half=half))
    answer = probe(message, signature, signers)
    accepted = "kind" not in answer
    if accepted:
        assert expected in answer["principal"]
    else:
        assert answer["kind"] == expected
    identity = expected if accepted else "me"
    said = ssh_keys.ssh_keygen_accepts(message, signature, signers, identity, time=NOW_TEXT)
    if difference == "old":  # depends on the version of OpenSSH
        return
    assert accepted == (said and difference is None), f"ssh-keygen says {said}"


def test_whatever_is_accepted_ssh_keygen_accepts(tmp_path: Path, message: Path) -> None:
    """Bits flipped, bytes cut and doubled anywhere in the signature or the list: seeded."""
    key = make_key(tmp_path)
    signature = sign(key, message)
    signers = listed(tmp_path, f'me namespaces="edgepack-*" {public(key)}\n')
    good = {path: path.read_bytes() for path in (signature, signers)}
    assert "kind" not in probe(message, signature, signers)
    rng = random.Random(4)
    refused = 0
    for turn in range(150):
        for path, data in good.items():
            path.write_bytes(data)
        path = signature if turn % 3 else signers
        data = bytearray(good[path])
        # Not the name: ssh-keygen is asked by it.
        place = rng.randrange(0 if path == signature else len("me"), len(data))
        match rng.randrange(3):
            case 0:
                data[place] ^= 1 << rng.randrange(8)
            case 1:
                del data[place : place + rng.randint(1, 20)]
            case _:
                data[place:place] = data[place : place + rng.randint(1, 20)]
        path.write_bytes(data)
        answer = probe(message, signature, signers)
        if "kind" in answer:
            refused += 1
            assert answer["kind"] in ("bad-signature", "bad-signers", "unknown-signer")
        else:
            assert ssh_keys.ssh_keygen_accepts(message, signature, signers, "me"), bytes(data)
    # What is left changes nothing that counts.
    assert refused >= 120


KEY, OTHER = "{key}", "{other}"
PIECES = (
    "me", "me,you", "*", "!me", '"me"', '"me,you"', "me@host", KEY, KEY, KEY, OTHER, "ssh-ed25519",
    'namespaces="edgepack-bundle"', 'namespaces="git"', 'namespaces="*"', 'namespaces="git,edge*"',
    'namespaces="!edgepack-bundle,*"', 'NameSpaces="git"', 'valid-before="20200101"',
    'valid-before="20300101Z"', 'valid-after="20300101"', 'valid-after="20200101"',
    'valid-before="20270231"', "cert-authority", "valid-before=", "comment", "#", ",", "=", '"',
    '""', "\\", '\\"', "\t", "\r", "\n", "\x0b", "\0",
)  # fmt: skip
BETWEEN = (" ", " ", " ", " ", "", ",", "\t", "\n", "  ", "\r\n")


def random_list(dice: random.Random) -> str:
    """A list of allowed signers, or nearly one."""
    lines = []
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        options = ",".join(dice.sample(PIECES[12:23], dice.choice((0, 0, 1, 1, 2, 3))))
        words = [dice.choice(PIECES[:7]), options, dice.choice(PIECES[7:11]), "c"]
        line = " ".join(word for word in words if word)
        for _ in range(dice.choice((0, 0, 1, 1, 2, 4))):
            at = dice.randrange(len(line) + 1)
            match dice.randrange(4):
                case 0:  # a piece, mostly where a word begins
                    at = dice.choice([0, *(i + 1 for i, c in enumerate(line) if c in ' ,"')])
                    line = line[:at] + dice.choice(PIECES) + dice.choice(BETWEEN) + line[at:]
                case 1:
                    line = line[:at] + line[at + dice.randint(1, 12) :]
                case 2:  # a word goes
                    parts = line.split(" ")
                    del parts[dice.randrange(len(parts))]
                    line = " ".join(parts)
                case _:
                    line = line[:at] + dice.choice('",=! \\\t#') + line[at:]
        lines.append(line)
    return "\n".join(lines) + dice.choice(("\n", "\n", ""))


def laxer_than_ssh_keygen(folder: Path, message: Path, seed: int, count: int) -> list[str]:
    """Of `count` random lists those that the tool takes and ssh-keygen does not."""
    key, other = make_key(folder), make_key(folder, "other")
    signature, dice = sign(key, message), random.Random(seed)
    lists = [
        random_list(dice).replace(KEY, public(key)).replace(OTHER, public(other)).encode("latin-1")
        for _ in range(count)
    ]
    done = subprocess.run(
        [host_probe(), "signers", message, signature, str(NOW)],
        input=b"".join(b"%d\n%b" % (len(text), text) for text in lists),
        capture_output=True, check=True, timeout=600, env={**os.environ, "TZ": "UTC"},
    )  # fmt: skip
    answers = [json.loads(line.decode(errors="replace")) for line in done.stdout.split(b"\n")[:-1]]
    assert len(answers) == count
    file, laxer, taken = folder / "allowed_signers", [], 0
    for text, answer in zip(lists, answers, strict=True):
        if "kind" in answer:
            continue
        taken += 1
        file.write_bytes(text)
        if not any(
            ssh_keys.ssh_keygen_accepts(message, signature, file, name, time=NOW_TEXT)
            for name in answer["principal"].split(",")
        ):
            laxer.append(text.decode("latin-1"))
    assert count / 50 < taken < count
    return laxer


def test_no_list_is_taken_that_ssh_keygen_refuses(tmp_path: Path, message: Path) -> None:
    assert laxer_than_ssh_keygen(tmp_path, message, seed=11, count=400) == []


@pytest.mark.slow
def test_no_list_of_many_thousands_is(tmp_path: Path, message: Path) -> None:
    assert laxer_than_ssh_keygen(tmp_path, message, seed=12, count=40_000) == []


def test_every_bit_of_the_blob_counts(tmp_path: Path, message: Path) -> None:
    key = make_key(tmp_path)
    signature = sign(key, message)
    signers = listed(tmp_path, f"me {public(key)}\n")
    blob = dearmour(signature.read_text())
    for place in range(len(blob)):
        changed = bytearray(blob)
        changed[place] ^= 1 << place % 8
        signature.write_text(armour(bytes(changed)))
        answer = probe(message, signature, signers)
        assert answer.get("kind") in ("bad-signature", "unknown-signer"), place


def test_the_order_of_the_curve_added_to_a_signature(tmp_path: Path, message: Path) -> None:
    """RFC 8032, 5.1.7: S below the order, or anybody could make a second valid signature."""
    key = make_key(tmp_path)
    signature = sign(key, message)
    blob = dearmour(signature.read_text())
    order = 2**252 + 27742317777372353535851937790883648493
    scalar = int.from_bytes(blob[-32:], "little") + order
    signature.write_text(armour(blob[:-32] + scalar.to_bytes(32, "little")))
    answer = probe(message, signature, listed(tmp_path, f"me {public(key)}\n"))
    assert answer["kind"] == "bad-signature"


def test_a_key_of_small_order_signs_nothing(tmp_path: Path, message: Path) -> None:
    """With such a "key" one signature fits every message: an attacker's list must not do that."""
    point = bytes([1]) + bytes(31)
    blob = wire(b"ssh-ed25519") + wire(point)
    inner = wire(b"ssh-ed25519") + wire(point + bytes(32))
    names = wire(ssh_keys.NAMESPACE.encode()) + wire(b"") + wire(b"sha512")
    signature = tmp_path / "sig"
    signature.write_text(armour(b"SSHSIG\0\0\0\1" + wire(blob) + names + wire(inner)))
    signers = listed(tmp_path, f"me ssh-ed25519 {base64.b64encode(blob).decode()}\n")
    assert probe(message, signature, signers)["kind"] == "bad-signature"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda _: "", "it does not begin with"),
        (lambda text: "x" + text, "it does not begin with"),
        (lambda text: text[:100], "it is cut short"),
        (lambda text: text + "more", "something follows its end"),
        (lambda text: text + text, "something follows its end"),
        (lambda text: text.replace("U1NIU0lH", "U1NI*0lH"), "it is not base64"),
        (lambda text: text.replace("U1NIU0lH", "U1NIU0lX"), "it is not an SSH signature"),
        (lambda text: armour(dearmour(text) + b"x"), "it is damaged"),
        (lambda text: armour(dearmour(text)[:-1]), "it is damaged"),
    ],
)
def test_no_signature(tmp_path: Path, message: Path, change: Any, said: str) -> None:
    key = make_key(tmp_path)
    signature = sign(key, message)
    changed = change(signature.read_text())
    signature.write_text(changed)
    answer = probe(message, signature, listed(tmp_path, f"me {public(key)}\n"))
    assert answer["kind"] == "bad-signature"
    assert said in answer["message"]
