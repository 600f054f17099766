"""Text and JSON that others wrote, as files have it and terminals take it."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edgepack.base.errors import ConfigError, EdgepackError
from edgepack.base.tables import read_text
from edgepack.base.text import text_lines, unicode_only
from edgepack.cli import main
from edgepack.fleet import load_fleet
from edgepack.flow.evaluate import find_photos
from edgepack.flow.project import read_labels
from edgepack.preprocess.photos import photos_below

LABELS = "Käfer\nBrötchen\n漢字\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_labels_of_every_editor(tmp_path: Path, encoding: str, end: str) -> None:
    file = tmp_path / "labels.txt"
    file.write_bytes(LABELS.replace("\n", end).encode(encoding))
    assert read_labels(file) == ("Käfer", "Brötchen", "漢字")


def test_what_ends_a_line() -> None:
    """No class becomes another because a label has a character that Python ends lines with."""
    assert text_lines("a\u2028b\nc\x0cd\x1ce\x85\n\nf") == ["a\u2028b", "c\x0cd\x1ce\x85", "", "f"]
    assert text_lines("") == []
    assert text_lines("a") == text_lines("a\n") == ["a"]


@pytest.mark.parametrize(
    ("data", "message", "hint"),
    [
        (LABELS.encode("utf-16"), "not UTF-8 but UTF-16", "iconv -f UTF-16 -t UTF-8 labels.txt"),
        ("Käfer".encode("latin-1"), "not UTF-8 at byte 1", "iconv -f LATIN1 -t UTF-8 labels.txt"),
    ],
)
def test_another_encoding_is_named(tmp_path: Path, data: bytes, message: str, hint: str) -> None:
    file = tmp_path / "labels.txt"
    file.write_bytes(data)
    with pytest.raises(ConfigError, match=message) as raised:
        read_text(file)
    assert hint in (raised.value.hint or "")


@pytest.mark.parametrize("name", ["loop", "x/y", "z" * 300, "a\0b", "."])
def test_files_that_cannot_be_opened(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "x").write_text("")
    with pytest.raises(ConfigError, match="cannot read"):
        read_text(tmp_path / name)


PRINTS = """
import sys
from edgepack.cli.console import Console
Console(as_json=sys.argv[1] == "json").data({"label": sys.argv[2]}, sys.argv[2])
"""


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8", "cp437"])
@pytest.mark.parametrize("kind", ["json", "text"])
def test_a_label_on_any_terminal(encoding: str, kind: str) -> None:
    """What an encoding lacks is spelt out; JSON is the same JSON on all of them."""
    label = os.fsencode("Käfer 漢 ") + b"\xff"
    done = subprocess.run(
        [sys.executable, "-c", PRINTS, kind, label],
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
        check=True,
    )
    said = done.stdout.decode(encoding).rstrip("\n")
    if kind == "json":
        assert json.loads(said) == {"label": "Käfer 漢 \ufffd"}
        assert said.isascii()
    elif encoding == "utf-8":
        assert said == "Käfer 漢 \\udcff"
    else:
        assert said.endswith("\\u6f22 \\udcff")


def test_json_holds_unicode_only() -> None:
    value = {"na\udcffme": ["a\udcff\udcfe", {"b": ("\ud800", 1, None)}]}
    assert unicode_only(value) == {"na\ufffdme": ["a\ufffd\ufffd", {"b": ["\ufffd", 1, None]}]}


# Generated cases: whatever lies in a file or a folder, a person gets a word about it, and no
# traceback.

ODD = (
    *(
        b"\xff",
        b"\xed\xa0\x80",
        b"\xef\xbb\xbf",
        b"\xfe\xff",
        b"\n",
        b"\r",
        b"\t",
        b"\x1b[2J",
        b" ",
    ),
    *("ä".encode(), "漢".encode(), "\u202e".encode(), b"'", b'"', b"\\", b"%", b"*", b"[", b"-"),
)


def odd_name(rng: random.Random) -> bytes:
    """Of a file: any bytes but two."""
    parts = [rng.choice(ODD) for _ in range(rng.randint(0, 4))]
    parts.insert(rng.randint(0, len(parts)), b"x%d" % rng.randrange(10**6))
    return b"".join(parts) + rng.choice([b".jpg", b".JPEG", b".png", b".PNG", b".txt", b""])


def odd_folder(rng: random.Random, folder: Path) -> None:
    """Classes, each a folder of what may lie in one."""
    for label in ("a", "b"):
        inner = folder / label
        inner.mkdir()
        for _ in range(rng.randint(0, 5)):
            path = inner / os.fsdecode(odd_name(rng))
            kind = rng.randrange(7)
            if kind < 2:
                path.write_bytes(rng.randbytes(rng.randint(0, 40)))
            elif kind == 2:
                os.mkfifo(path)
            elif kind == 3:
                path.mkdir()
            else:
                target = rng.choice(["nowhere", str(path), "..", "/dev/null", "/etc/passwd"])
                path.symlink_to(target)


def try_folder(rng: random.Random, folder: Path) -> None:
    odd_folder(rng, folder)
    names = {path.name for path in photos_below(folder)}
    found = find_photos(folder, ["a", "b"])
    assert names == {photo.path.name for photo in found}
    for photo in found:
        json.dumps(unicode_only(photo.name), ensure_ascii=False).encode()


def odd_bytes(rng: random.Random, text: str) -> bytes:
    """`text` in some encoding, some of its bytes others."""
    data = bytearray(
        text.encode(rng.choice(["utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1"]), "replace")
    )
    for _ in range(rng.randint(0, 4)):
        at = rng.randint(0, len(data))
        match rng.randrange(3):
            case 0:
                data[at:at] = rng.choice(ODD)
            case 1:
                del data[at : at + rng.randint(1, 5)]
            case 2:
                data[at:at] = data[rng.randint(0, len(data)) :][: rng.randint(1, 30)]
    return bytes(data)


def try_labels(rng: random.Random, folder: Path) -> None:
    file = folder / "labels.txt"
    file.write_bytes(odd_bytes(rng, LABELS * rng.randint(0, 3)))
    for label in read_labels(file):
        label.encode()


INVENTORIES = {
    "hosts": "[kiosks]\na ansible_host=10.0.0.1 ansible_port=22\nb[1:3]\n[shops]\n"
    "c ansible_user=pi\n",
    "hosts.yml": "all:\n  hosts:\n    a: {ansible_host: 10.0.0.1, x: !vault abc}\n"
    'kiosks:\n  hosts:\n    b:\n      ansible_user: "pi"\n      x: !unsafe "y"\n',
    "hosts.json": '{"_meta": {"hostvars": {"a": {"ansible_host": "10.0.0.1", "ansible_port": 22, '
    '"s": {"__ansible_vault": "x"}}}}, "kiosks": {"hosts": ["a"], "vars": {"ansible_user": "pi"}}}',
    "fleet.toml": '[defaults]\nuser = "pi"\n[groups.a]\ndevices = ["a[1:3]"]\nboard = "rasp3b"\n',
}
SCRIPT = "#!/bin/sh\ncat data\n"


def try_inventory(rng: random.Random, folder: Path) -> None:
    name = rng.choice(list(INVENTORIES))
    data = odd_bytes(rng, INVENTORIES[name])
    file = folder / name
    if name == "hosts.json" and rng.random() < 0.1:
        file = folder / "hosts.sh"
        (folder / "data").write_bytes(data)
        file.write_bytes(odd_bytes(rng, SCRIPT) if rng.random() < 0.3 else SCRIPT.encode())
        file.chmod(rng.choice([0o755, 0o755, 0o644]))
    else:
        file.write_bytes(data)
        file.chmod(rng.choice([0o644, 0o755]))
    for device in load_fleet(file).devices:
        json.dumps(unicode_only(device.name)).encode()


TRIES: tuple[Callable[[random.Random, Path], None], ...] = (try_folder, try_labels, try_inventory)
CASES = 2000


@pytest.mark.parametrize("kind", TRIES, ids=lambda kind: kind.__name__)
def test_no_traceback_over_generated_files(
    kind: Callable[[random.Random, Path], None], tmp_path: Path
) -> None:
    """All kinds together `CASES` cases; what fails is made again by its number alone."""
    refused = taken = 0
    for number in range(CASES // len(TRIES) + 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            kind(random.Random(number), folder)
            taken += 1
        except EdgepackError as error:
            error.message.encode(errors="surrogateescape")
            refused += 1
        except Exception as error:
            raise AssertionError(f"case {number}") from error
    # The cases are of use: neither all right nor all wrong.
    assert min(refused, taken) > 50


@pytest.mark.parametrize("name", [b"\xff", b"\xed\xa0\x80", "ä".encode(), b"a\nb", b"\x1b[2J"])
def test_the_command_line_with_odd_paths(
    name: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 or 3, a message, and JSON that every reader takes."""
    path = os.fsdecode(os.fsencode(tmp_path) + b"/" + name)
    Path(path).write_bytes(b"[group\n")
    for words in (["inspect", path], ["fleet", "plan", path], ["verify", path]):
        assert main([*words, "--json"]) in (2, 3, 5)
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        json.dumps(json.loads(said.out), ensure_ascii=False).encode()
