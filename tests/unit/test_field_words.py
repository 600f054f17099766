"""Words that only this project's makers know do not reach its users: they see the field's."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from edgepack.bundle.verified import Verified
from edgepack.cli import COMMANDS, make_parser

ROOT = Path(__file__).parents[2] / "edgepack"
# Keys of files and options are as they were: what they are is said beside them.
NAMES = re.compile(r"--golden(-input)?|golden_(input|image)")
OURS = re.compile(r"\bgolden\b|\barena\b|judged by|\d well\b|what arrived", re.IGNORECASE)


def messages(path: Path) -> list[str]:
    """Texts of several words in a module, without docstrings."""
    tree = ast.parse(path.read_text("utf-8"))
    docstrings = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in docstrings
    ]
    # What has values in it, as a whole: "2 of 2 well".
    texts += [
        "".join(part.value if isinstance(part, ast.Constant) else "0" for part in node.values)  # type: ignore[misc]
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
    ]
    # A shell's command is none for people.
    return [text for text in texts if " " in text.strip() and "&&" not in text]


@pytest.mark.parametrize("room", ["base", "bundle", "cli", "deploy", "device", "fleet", "flow",
                                  "quantization", "tuning"])  # fmt: skip
def test_messages_have_words_of_the_field(room: str) -> None:
    found = [
        f"{path.name}: {text}"
        for path in sorted((ROOT / room).rglob("*.py"))
        for text in messages(path)
        if OURS.search(NAMES.sub("", text))
    ]
    assert found == []


def test_so_has_the_help() -> None:
    parser = make_parser()
    texts = [parser.format_help()]
    for action in parser._actions:
        for command in getattr(action, "choices", None) or ():
            texts.append(action.choices[command].format_help())  # type: ignore[index]
    assert len(texts) == 1 + len(COMMANDS)
    assert [text for text in texts if OURS.search(NAMES.sub("", text))] == []


def test_what_was_compared_is_told_in_words() -> None:
    verified = Verified(emulated=("golden", "random"), local=("golden",))
    assert str(verified) == (
        "smoke-test input, random (emulated); smoke-test input (on the maker's machine)"
    )
