"""docs/reference/output.schema.json, and whether a value is what a schema says.

Only what that file and those in schemas/ use of JSON Schema is known here; any other word is an
error.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from edgepack import cli
from edgepack.cli.console import Console

SCHEMAS: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "docs" / "reference" / "output.schema.json").read_text()
)["$defs"]
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,),
    "null": (type(None),), "array": (list,), "object": (dict,),
}  # fmt: skip
_WORDS = {"type", "properties", "required", "items", "prefixItems", "anyOf", "enum"}


def command_of(argv: Sequence[str]) -> str | None:
    """The most exact command of the schemas that a command line says; None if it is none."""
    words = {word.partition("=")[0] for word in argv}
    fit = [command for command in SCHEMAS if words.issuperset(command.split())]
    return max(fit, key=lambda command: len(command.split()), default=None)


class Watch:
    """A pytest plugin: what commands print with --json in this process is as their schemas say."""

    def __init__(self) -> None:
        self.argv: Sequence[str] = ()
        self._parser, self._run, self._data = cli.make_parser, cli._run, Console.data

    def pytest_sessionstart(self) -> None:
        """Stand in the way of whatever a command prints."""
        watch = self

        def make_parser(words: Iterable[str] = cli.COMMANDS) -> argparse.ArgumentParser:
            self.argv = tuple(words)
            return self._parser(self.argv)

        def run(parser: argparse.ArgumentParser, args: argparse.Namespace, console: Console) -> int:
            try:
                return self._run(parser, args, console)
            finally:
                self.argv = ()

        def data(self: Console, value: Any, text: str) -> None:
            command = command_of(watch.argv)
            if self.as_json and command is not None:
                check_output(command, json.loads(json.dumps(value)))
            watch._data(self, value, text)

        cli.make_parser, cli._run, Console.data = make_parser, run, data

    def pytest_runtest_logstart(self) -> None:
        """What is printed without a command is no command's."""
        self.argv = ()

    def pytest_sessionfinish(self) -> None:
        """Out of the way."""
        cli.make_parser, cli._run, Console.data = self._parser, self._run, self._data


def check_output(command: str, value: Any) -> None:
    """`value` is what `command --json` may print."""
    found = problems(value, SCHEMAS[command], command)
    assert not found, found


def problems(value: Any, schema: dict[str, Any], at: str) -> list[str]:
    """What of `value` is not as the schema says."""
    assert not schema.keys() - _WORDS - {"additionalProperties"}, schema.keys()
    if "anyOf" in schema:
        found = [problems(value, one, at) for one in schema["anyOf"]]
        if [] not in found:
            return max(found, key=len)
    if "enum" in schema and value not in schema["enum"]:
        return [f"{at}: {value!r} is none of {schema['enum']}"]
    if "type" in schema:
        is_bool = isinstance(value, bool)
        if not isinstance(value, _TYPES[schema["type"]]) or is_bool != (
            schema["type"] == "boolean"
        ):
            return [f"{at}: {value!r} is no {schema['type']}"]
    wrong: list[str] = []
    if isinstance(value, dict):
        wrong += [f"{at}.{key}: missing" for key in schema.get("required", ()) if key not in value]
        others = schema.get("additionalProperties", {})
        if others is False:
            unknown = value.keys() - schema.get("properties", {}).keys()
            wrong += [f"{at}.{key}: unknown" for key in sorted(unknown)]
        for key, item in value.items():
            if others is False and key not in schema.get("properties", {}):
                continue
            wrong += problems(item, schema.get("properties", {}).get(key, others), f"{at}.{key}")
    if isinstance(value, list):
        parts = schema.get("prefixItems", [])
        for index, item in enumerate(value):
            one = parts[index] if index < len(parts) else schema.get("items", {})
            wrong += problems(item, one, f"{at}[{index}]")
    return wrong
