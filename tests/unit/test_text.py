"""What devices say, before a terminal gets it."""

from __future__ import annotations

import json
import logging
import unicodedata
from types import SimpleNamespace

import pytest

from edgepack.base.text import MAX_NAME, megabytes, message, one_line, printable
from edgepack.cli import result_lines, status
from edgepack.cli.console import Console, table
from edgepack.deploy import remote_tool
from edgepack.deploy.answers import Status, read_object
from tests.scripted_tool import RELEASE, STATUS

# Clears the screen, sets the title, answers back, turns the line round, hides it.
NASTY = "\x1b[2J\x1b]0;title\x07\x9b6n\x05\r\u202eevil\u2066\u200b\u2028\u061c\x7f\ud800\ufeff"


def test_every_character() -> None:
    """By Unicode's own categories: controls, formats, surrogates, lines; ASCII stays."""
    text = "".join(map(chr, range(0x11000)))
    shown = printable(text)
    bad = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    left = {unicodedata.category(character) for character in shown.replace("\n", "")}
    assert not left & bad
    plain = "".join(map(chr, range(0x20, 0x7F))) + "äß→漢字\n"
    assert printable(plain) == plain
    assert printable("a\x1b[0m\u202e\t") == "a\\x1b[0m\\u202e\\t"


def test_lines_and_lengths() -> None:
    assert one_line(" a\nerror: b\r\n\tc ") == "a error: b c"
    assert len(one_line("x" * 10**6)) == MAX_NAME + 2
    # What follows cannot be taken for a line of ours.
    assert message("what\nhint: run this\n") == "what\n  hint: run this"


def test_all_that_a_console_prints(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console()
    console.step(NASTY)
    console.note(NASTY)
    console.error(NASTY, NASTY, 7)
    console.data({}, NASTY)
    console.lines([NASTY])
    with console.bar(NASTY, 1):
        pass
    logging.getLogger("edgepack.device").warning("it said %s", NASTY)
    Console(as_json=True).data({"name": NASTY}, "")
    out, err = capsys.readouterr()
    assert all(character.isprintable() or character == "\n" for character in out + err)
    assert err.count("\\x1b[2J") == 6
    # Half a surrogate pair is in no text: JSON that has one is refused by others.
    shown = NASTY.replace("\ud800", "\ufffd")
    assert json.loads(out.splitlines()[-2].partition(":")[2]) == shown


def test_tables_fold_their_widest_columns() -> None:
    rows = [("rasp3b", "Raspberry Pi 3 Model B", 4), ("pynq", "x", 2)]
    header = ("NAME", "TITLE", "CORES")
    assert table(rows, header, width=80).splitlines()[1] == "rasp3b  Raspberry Pi 3 Model B  4"
    folded = table(rows, header, width=30)
    assert folded.splitlines() == [
        "NAME    TITLE            CORES",
        "rasp3b  Raspberry Pi 3   4",
        "        Model B",
        "pynq    x                2",
    ]
    # Narrower than columns can be, it is as wide as it must; without a terminal nothing is folded.
    assert max(map(len, table(rows, header, width=5).splitlines())) == 6 + 2 + 10 + 2 + 5
    assert len(table(rows, header).splitlines()) == 3


def test_sizes_have_one_unit() -> None:
    assert [megabytes(size) for size in (1, 499, 500)] == ["1 byte", "499 bytes", "0.001 MB"]
    assert [megabytes(size) for size in (0, 12_345, 14_100_000, 5 * 10**9)] == [
        "0.0 MB",
        "0.012 MB",
        "14.1 MB",
        "5000.0 MB",
    ]


@pytest.mark.parametrize(
    ("compared", "text"),
    [
        (RELEASE["compared"], "smoke-test input (emulated); random (on the maker's machine)"),
        ({"emulated": [], "local": []}, "no: made with --no-verify"),
        (None, "not recorded"),
    ],
)
def test_status_says_what_was_compared(compared: dict[str, list[str]] | None, text: str) -> None:
    document = {**STATUS, "current": {**RELEASE, "compared": compared}}
    answer = Status.read(read_object(json.dumps(document), "board"))
    assert f"compared  {text}" in result_lines.status_lines(answer, "r on board")


def test_status_of_a_device_that_writes_to_terminals(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {**RELEASE, "name": f"{NASTY}\nrelease 7 is current", "by": NASTY * 10_000}
    named["compared"] = {"emulated": [NASTY] * 1000, "local": [NASTY]}
    text = json.dumps({**STATUS, "current": named, "signers": [NASTY]})
    answer = Status.read(read_object(text, "board"))
    shown = "\n".join(result_lines.status_lines(answer, "r on board"))
    assert all(character.isprintable() or character == "\n" for character in shown)
    assert len(shown) < 3000
    # A line that it makes up is none.
    assert "\nrelease 7" not in shown
    assert len(shown.splitlines()) == 12
    # A program gets what was said.
    nothing = SimpleNamespace(returncode=1, stdout="", stderr="")
    device = SimpleNamespace(name="board", close=lambda: None, run=lambda *_, **__: nothing)
    monkeypatch.setattr(status, "open_release", lambda *_: (device, "r"))
    monkeypatch.setattr(remote_tool, "status", lambda *_: answer)
    status.run(None, Console(as_json=True))  # type: ignore[arg-type]
    out = capsys.readouterr().out
    assert out.isascii()
    assert json.loads(out)["current"]["name"] == named["name"].replace("\ud800", "\ufffd")
