"""A function's name says what it does: it is a verb phrase, no pronoun and no participle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_PRONOUNS = frozenset({
    "all", "any", "both", "each", "either", "everybody", "everything", "it", "its", "neither",
    "nobody", "none", "nothing", "one", "other", "others", "own", "that", "these", "they", "this",
    "those", "what", "which", "who", "whole",
})  # fmt: skip
# Those that do not end in -ed or -ing, and are no verbs by themselves, as `put` and `run` are.
_PARTICIPLES = frozenset({
    "begun", "bought", "bound", "broken", "brought", "built", "caught", "chosen", "done", "drawn",
    "felt", "found", "frozen", "given", "gone", "gotten", "grown", "heard", "held", "hidden",
    "kept", "known", "laid", "led", "left", "lent", "lost", "made", "meant", "paid", "said",
    "seen", "sent", "shaken", "shown", "spent", "stood", "taken", "thought", "told", "worn",
    "written",
})  # fmt: skip
_VERBS_AND_NOUNS = frozenset({
    "bring", "embed", "exceed", "feed", "need", "ping", "proceed", "ring", "seed", "shed", "speed",
    "string", "succeed",
})  # fmt: skip
_SMALL_WORDS = frozenset({
    "at", "by", "for", "from", "here", "in", "into", "of", "off", "on", "only", "out", "there",
    "to", "up", "with",
})  # fmt: skip

# Context managers: `with locked(folder):` says what holds in the block.
_CONTEXT_MANAGERS = {
    "edgepack/base/paths.py": {"locked"},
    "edgepack/base/process.py": {"watched"},
    "edgepack/device/limit.py": {"limited"},
}


def is_bad(name: str) -> bool:
    """Whether a name is a pronoun or a participle, with small words after it at most."""
    first, *rest = name.split("_")
    is_participle = first in _PARTICIPLES or first.endswith(("ed", "ing"))
    return (
        first in _PRONOUNS or (is_participle and first not in _VERBS_AND_NOUNS)
    ) and _SMALL_WORDS.issuperset(rest)


def public_functions() -> Iterator[tuple[str, str]]:
    """The file and name of each public function of a module."""
    for path in sorted((ROOT / "edgepack").rglob("*.py")):
        file = path.relative_to(ROOT).as_posix()
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                yield file, node.name


def test_no_public_function_is_named_by_a_pronoun_or_a_participle() -> None:
    found: dict[str, set[str]] = {}
    seen = 0
    for file, name in public_functions():
        seen += 1
        if is_bad(name):
            found.setdefault(file, set()).add(name)
    assert seen > 1200
    assert found == _CONTEXT_MANAGERS


@pytest.mark.parametrize(
    "name", ["told", "made", "one", "left", "chosen_for", "said_of", "reporting_to", "counted"]
)
def test_what_says_nothing_is_no_name(name: str) -> None:
    assert is_bad(name)


@pytest.mark.parametrize(
    "name", ["need_board", "feed", "run", "known_hosts", "format_count", "seed", "set_signers"]
)
def test_what_says_what_it_does_is_one(name: str) -> None:
    assert not is_bad(name)
