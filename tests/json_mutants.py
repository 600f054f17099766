"""Mutants of JSON documents, to compare two readers: what one takes the other has to take."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Document = dict[str, Any]

# Values for any place: wrong types, bounds of what is allowed, and what only looks right.
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 63, 64, 65, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63)),
    *(0.0, 0.5, 1.0, 1.5, 999_999.5, 1e6, 1_000_001, 86_400, 86_401, 1 << 20, (1 << 20) + 1),
    *("", "a", ".", "..", "-a", "a-", "a/b", "/", "/a", "/a/../b", "/a b", "//", 1e308),
    *("root", "camera", "Camera", "_a", "9a", "u" * 32, "u" * 33, "a\n", "a\0", "\x7f", "é"),
    *("\ud800", "x" * 64, "x" * 65, "x" * 100, "x" * 101, "w" * 1024, "w" * 1025),
    *("é" * 1024, "é" * 1025, "2.31", "2.31\n", "2", ".1", "2.", "2.3.4", "٢.٣", "0" * 12),
    *("ab" * 32, "AB" * 32, "ab" * 31, "0644", "0755", "0777", "644", "raw", "softmax", "RAW"),
    *("always", "on-failure", "never", "float32", "float16", "uint64", "bfloat16", "uint8"),
    *("gray", "rgb", "shortest", "exact", "letterbox", "floor", "NHWC", "alpha", "16bit"),
    *(255, 256, 16384, 16385, 1 << 30, (1 << 30) + 1, 5e-324, -0.5, ["gray", "gray"], [0.5] * 3),
    *({"mode": "exact", "height": 9, "width": 9}, {"height": 65, "width": 64}, [1, 1e-9, 0]),
    *([], [1], ["a"], [""], [None], ["a"] * 64, ["a"] * 65, ["/a", "/b-c/d.e"], [[]], [{}], {}),
    *({"a": 1}, [1, 224], [1.0], [-1], [True], [2**63]),
    [{"name": "x", "dtype": "int8", "shape": []}],
)  # fmt: skip
# Ways to write a number that JSON has, or has not.
NUMBERS = (
    *("-0", "0.0", "1e2", "1E+2", "1e-2", "01", "+1", "1.", ".5", "0x10", "1_0", "1e400", "-1e400"),
    *("1" + "0" * 400, "9223372036854775807", "9223372036854775808", "0." + "9" * 40, "NaN"),
    *("Infinity", "-", "", "1 2", "null", "true", '"1"'),
)  # fmt: skip
PIECES = (b" ", b"\0", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\\u0000", b"\\ud800", b"//")


def as_it_is(document: Document) -> None:
    """Mends nothing."""


def mutants(
    documents: Sequence[Document],
    names: Sequence[str],
    *,
    seed: int,
    finish: Callable[[Document], None] = as_it_is,
) -> Iterator[bytes]:
    """Texts without end, the same ones for a seed: changed documents, and changed texts of them.

    Keys are also renamed to `names`; `finish` mends what a changed document has to hold.
    """
    rng = random.Random(seed)
    while True:
        document = json.loads(json.dumps(rng.choice(documents)))
        for _ in range(rng.choice((1, 1, 1, 2))):
            change_the_document(document, names, rng)
        finish(document)
        text = json.dumps(document, indent=1).encode()
        yield change_the_text(text, rng) if rng.random() < 0.3 else text


def place(document: Document, rng: random.Random) -> tuple[Any, Any]:
    """A container in `document` and a key of it; what lies in small tables comes as often."""
    container: Any = document
    while True:
        key = rng.choice(list(container) if isinstance(container, dict) else range(len(container)))
        inner = container[key]
        if not isinstance(inner, dict | list) or not inner or rng.random() < 0.3:
            return container, key
        container = inner


def change_the_document(document: Document, names: Sequence[str], rng: random.Random) -> None:
    container, key = place(document, rng)
    action = rng.randrange(5)
    if action == 0:
        del container[key]
    elif action == 1 and isinstance(container, dict):
        container[rng.choice(names)] = container.pop(key)
    elif action == 2 and isinstance(container, dict):
        container[rng.choice(names)] = container[key]
    elif action == 3:
        other, other_key = place(document, rng)
        container[key] = json.loads(json.dumps(other[other_key]))
    else:
        container[key] = rng.choice(VALUES)


def change_the_text(text: bytes, rng: random.Random) -> bytes:
    action = rng.randrange(4)
    numbers = list(re.finditer(rb"(?<=[ \[])[0-9.]+(?=[,\n\]])", text)) if action == 0 else []
    if numbers:
        number = rng.choice(numbers)
        return text[: number.start()] + rng.choice(NUMBERS).encode() + text[number.end() :]
    if action < 2:  # a line twice, or not at all: a key twice, a comma too many
        lines = text.split(b"\n")
        at = rng.randrange(len(lines))
        lines[at : at + 1] = [lines[at]] * rng.choice((0, 2))
        return b"\n".join(lines)
    at = rng.randrange(len(text))
    if action == 2:
        return text[:at] + rng.randbytes(1) + text[at + 1 :]
    return text[:at] + rng.choice(PIECES) + text[at:]
