"""The two readers of manifest.json, in Python and in the device's C++, read the same.

What one accepts and the other refuses would be a bundle that is made and never installed, or one
that is installed and cannot be opened here. Both get the manifests of the fuzzer's corpus and
thousands of mutants, the same ones each time. They differ on purpose in two things:

- Python recomputes the release id. The device need not: what it trusts is the signature over the
  bytes, and the hash of each file.
- Python takes no service arguments with letters that cannot be printed; the device, which has no
  tables of Unicode, refuses ASCII's control characters only.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import subprocess
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest

from edgepack.bundle.manifest import ManifestError, parse_manifest, release_id
from edgepack.bundle.service import Service
from tests.bundles import small_bundle
from tests.device_tool import host_probe
from tests.fuzz import CORPUS

MUTANTS = 6000
_OWN_RULES = ("its content is that of", "empty, too long or not one printable line")
"""What Python says where it is the stricter one: see above."""

# Values for any place: wrong types, bounds of what is allowed, and what only looks right.
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 63, 64, 65, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63)),
    *(0.0, 0.5, 1.0, 1.5, 999_999.5, 1e6, 1_000_001, 86_400, 86_401, 1 << 20, (1 << 20) + 1),
    *("", "a", ".", "..", "-a", "a-", "a/b", "/", "/a", "/a/../b", "/a b", "//", 1e308),
    *("root", "camera", "Camera", "_a", "9a", "u" * 32, "u" * 33, "a\n", "a\0", "\x7f", "é"),
    *("\ud800", "x" * 64, "x" * 65, "x" * 100, "x" * 101, "w" * 1024, "w" * 1025),
    *("é" * 1024, "é" * 1025, "2.31", "2.31\n", "2", ".1", "2.", "2.3.4", "٢.٣", "0" * 12),
    *("ab" * 32, "AB" * 32, "ab" * 31, "0644", "0755", "0777", "644", "raw", "softmax", "RAW"),
    *("always", "on-failure", "never", "float32", "float16", "uint64", "bfloat16"),
    *([], [1], ["a"], [""], [None], ["a"] * 64, ["a"] * 65, ["/a", "/b-c/d.e"], [[]], [{}], {}),
    *({"a": 1}, [1, 224], [1.0], [-1], [True], [2**63]),
    [{"name": "x", "dtype": "int8", "shape": []}],
)  # fmt: skip
NAMES = (
    *("schema", "name", "release", "health", "service", "version", "size", "sha256", "mode"),
    *("a", "", "bin/edgepack-run", "bin", "bin/edgepack-run/x", "user", "manifest.json"),
    "manifest.json.sig",
    *("../x", "a/", "/a", "a//b", ".a", "-a", "a b", "a\\b", "é", "p" * 100, "p" * 101, "\ud800"),
)  # fmt: skip
# Ways to write a number that JSON has, or has not.
NUMBERS = (
    *("-0", "0.0", "1e2", "1E+2", "1e-2", "01", "+1", "1.", ".5", "0x10", "1_0", "1e400", "-1e400"),
    *("1" + "0" * 400, "9223372036854775807", "9223372036854775808", "0." + "9" * 40, "NaN"),
    *("Infinity", "-", "", "1 2", "null", "true", '"1"'),
)  # fmt: skip
PIECES = (b" ", b"\0", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\\u0000", b"\\ud800", b"//")


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Good manifests: with a service and without, and of the first schema."""
    service = Service(
        args=("--watch", "/in", "Käse"), watchdog_s=2.5, memory_mb=200, writable=("/in",)
    )
    folder = tmp_path_factory.mktemp("manifests")
    made = [
        json.loads(small_bundle(folder / name, **changes).manifest.to_bytes())
        for name, changes in (("with", {"service": service, "version": 7}), ("without", {}))
    ]
    old = {**made[1], "schema": 1}
    for key in ("version", "health", "service"):
        del old[key]
    old["release"] = release_id(old)
    return [*made, old]


def place(document: dict[str, Any], rng: random.Random) -> tuple[Any, Any]:
    """A container in `document` and a key of it; what lies in small tables comes as often."""
    container: Any = document
    while True:
        key = rng.choice(list(container) if isinstance(container, dict) else range(len(container)))
        inner = container[key]
        if not isinstance(inner, dict | list) or not inner or rng.random() < 0.3:
            return container, key
        container = inner


def change_the_document(document: dict[str, Any], rng: random.Random) -> None:
    container, key = place(document, rng)
    action = rng.randrange(5)
    if action == 0:
        del container[key]
    elif action == 1 and isinstance(container, dict):
        container[rng.choice(NAMES)] = container.pop(key)
    elif action == 2 and isinstance(container, dict):
        container[rng.choice(NAMES)] = container[key]
    elif action == 3:
        other, other_key = place(document, rng)
        container[key] = json.loads(json.dumps(other[other_key]))
    else:
        container[key] = rng.choice(VALUES)


def change_the_text(text: bytes, rng: random.Random) -> bytes:
    action = rng.randrange(4)
    if action == 0:
        number = rng.choice(list(re.finditer(rb"(?<=[ \[])[0-9.]+(?=[,\n\]])", text)))
        return text[: number.start()] + rng.choice(NUMBERS).encode() + text[number.end() :]
    if action == 1:  # a line twice, or not at all: a key twice, a comma too many
        lines = text.split(b"\n")
        at = rng.randrange(len(lines))
        lines[at : at + 1] = [lines[at]] * rng.choice((0, 2))
        return b"\n".join(lines)
    at = rng.randrange(len(text))
    if action == 2:
        return text[:at] + rng.randbytes(1) + text[at + 1 :]
    more = rng.choice(
        (b" ", b"\0", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\\u0000", b"\\ud800", b"//")
    )
    return text[:at] + more + text[at:]


def mutants(documents: list[dict[str, Any]]) -> Iterator[bytes]:
    rng = random.Random(20260401)
    for _ in range(MUTANTS):
        document = json.loads(json.dumps(rng.choice(documents)))
        for _ in range(rng.choice((1, 1, 1, 2))):
            change_the_document(document, rng)
        with contextlib.suppress(UnicodeEncodeError):  # half a pair: \ud800
            document["release"] = release_id(document)
        text = json.dumps(document, indent=1).encode()
        yield change_the_text(text, rng) if rng.random() < 0.3 else text


def device_says(texts: list[bytes]) -> list[dict[str, Any]]:
    """What the device's reader read of each, or its error."""
    stdin = b"".join(b"%d\n%b" % (len(text), text) for text in texts)
    done = subprocess.run([host_probe(), "manifests"], input=stdin, capture_output=True, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(texts)
    return answers


def python_says(text: bytes) -> dict[str, Any] | str:
    """The same of Python's, or its message."""
    try:
        manifest = parse_manifest(text)
    except ManifestError as error:
        return error.message
    service = manifest.service
    return {
        "schema": manifest.schema,
        "name": manifest.name,
        "board": manifest.board,
        "release": manifest.release,
        "triple": manifest.compatible.triple,
        "cpu": manifest.compatible.cpu,
        "glibc": manifest.compatible.glibc,
        "hwcaps": list(manifest.compatible.hwcaps),
        "version": manifest.version,
        "tolerance": manifest.tolerance,
        "timeout_s": manifest.health.timeout_s,
        "max_latency_ms": manifest.health.max_latency_ms,
        "max_memory_mb": manifest.health.max_memory_mb,
        "service": service
        and {
            "args": list(service.args),
            "restart": service.restart,
            "watchdog_s": service.watchdog_s,
            "memory_mb": service.memory_mb,
            "user": service.user,
            "writable": list(service.writable),
        },
        "model_sha256": manifest.model.sha256,
        "files": {
            path: [entry.sha256, entry.size, entry.mode == "0755"]
            for path, entry in manifest.files.items()
        },
    }


def assert_agreed(texts: list[bytes]) -> tuple[int, int]:
    """How many were accepted and refused by both."""
    accepted = refused = 0
    for text, device in zip(texts, device_says(texts), strict=True):
        python = python_says(text)
        if isinstance(python, dict):
            assert device == python, text.decode()
            accepted += 1
        elif device.get("kind") == "bad-manifest":
            refused += 1
        else:
            assert any(rule in python for rule in _OWN_RULES), (python, text.decode())
    return accepted, refused


def test_mutants(documents: list[dict[str, Any]]) -> None:
    texts = [json.dumps(document, indent=1).encode() for document in documents]
    assert assert_agreed(texts) == (len(documents), 0)
    accepted, refused = assert_agreed(list(mutants(documents)))
    print(f"{accepted} mutants accepted by both readers, {refused} refused by both")
    # Neither all good nor all bad: else this would say little.
    assert accepted > MUTANTS / 20
    assert refused > MUTANTS / 2


def test_what_the_fuzzer_found() -> None:
    with zipfile.ZipFile(CORPUS / "manifest.zip") as corpus:
        texts = [corpus.read(name) for name in corpus.namelist()]
    accepted, refused = assert_agreed(texts)
    assert accepted > 0
    assert refused > 500


def test_manifests_that_are_too_large(documents: list[dict[str, Any]]) -> None:
    text = json.dumps(documents[0]).encode()
    limit = 4 << 20
    assert assert_agreed([text + b" " * (limit - len(text))]) == (1, 0)
    assert assert_agreed([text + b" " * (limit + 1 - len(text))]) == (0, 1)
