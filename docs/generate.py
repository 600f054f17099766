"""Writes what docs/reference has of the command line and the public API.

cli.md, api.md, edgepack.1 for man, and output.schema.json: what --json prints.

`--check` writes nothing and exits with 1 if a file is out of date.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import os
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent / "reference"
HEAD = "<!-- Made by docs/generate.py: change the source, not this file. -->\n"


def cli_page() -> str:
    """Every command's help."""
    from edgepack.cli import make_parser

    os.environ["COLUMNS"] = "96"
    parser = make_parser()
    parts = [HEAD, "# Command line\n", f"```\n{parser.format_help()}```\n"]
    for title, text in _helps(parser, "edgepack"):
        # One level down for each action of a command.
        parts.append(f"{'#' * (title.count(' ') + 1)} {title}\n\n```\n{text}```\n")
    return "\n".join(parts)


def man_page() -> str:
    """edgepack(1), for man: every command's help, as it is."""
    from edgepack.base.version import VERSION
    from edgepack.cli import make_parser

    os.environ["COLUMNS"] = "76"
    parser = make_parser()
    blocks = [("edgepack", parser.format_help()), *_helps(parser, "edgepack")]
    lines = [
        '.\\" Made by docs/generate.py: change the source, not this file.',
        f'.TH EDGEPACK 1 "" "edgepack {VERSION}" "User Commands"',
        ".SH NAME",
        f"edgepack \\- {parser.description}",
        ".SH SYNOPSIS",
        ".B edgepack",
        ".I COMMAND",
        "[\\fIARGUMENT\\fR ...]",
    ]
    for title, text in blocks:
        lines += [f'.SH "{title}"', ".nf", *map(_roff, text.splitlines()), ".fi"]
    return "\n".join(lines) + "\n"


def _helps(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, str]]:
    """Each command, and each action of one, with its help."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, command in action.choices.items():
                yield f"{name} {word}", command.format_help()
                yield from _helps(command, f"{name} {word}")


def _roff(line: str) -> str:
    """A line of text as roff has it: no escapes, no requests, plain dashes and quotes."""
    for plain, escaped in (("\\", "\\e"), ("-", "\\-"), ("'", "\\(aq"), ("`", "\\(ga")):
        line = line.replace(plain, escaped)
    return f"\\&{line}" if line.startswith(".") else line


def api_page() -> str:
    """Signature and docstring of everything in edgepack.__all__."""
    import edgepack

    parts = [HEAD, "# Python API\n", inspect.cleandoc(edgepack.__doc__ or "") + "\n"]
    for name in edgepack.__all__:
        thing = getattr(edgepack, name)
        if not callable(thing):
            continue
        title = f"## {name}\n"
        if inspect.isclass(thing) and issubclass(thing, Exception):
            signature = f"class {name}({thing.__bases__[0].__name__})"
        else:
            signature = f"{'class ' if inspect.isclass(thing) else ''}{name}{_signature(thing)}"
        parts += [title, f"`from edgepack import {name}`\n", f"```python\n{signature}\n```\n"]
        parts.append(inspect.cleandoc(thing.__doc__ or "") + "\n")
    return "\n".join(parts)


def _signature(thing: object) -> str:
    parameters = inspect.signature(thing).parameters.values()  # type: ignore[arg-type]
    if not parameters:
        return "()"
    return "(\n" + "".join(f"    {p.name}: {p.annotation}\n" for p in parameters) + ")"


def schema_page() -> str:
    """JSON Schema (draft 2020-12) of what --json prints, as far as that is a typed record."""
    from edgepack.base.errors import EXIT_CODES
    from edgepack.compiler.backend.report import Estimate
    from edgepack.compiler.frontend.inspect import ModelInfo
    from edgepack.deploy.deploy import DeployPlan, Report
    from edgepack.device.facts import DeviceFacts
    from edgepack.flow.dry_run import DryRun, Part
    from edgepack.gate.gate import Problem
    from edgepack.virtual.state import VirtualBoard

    text, number = {"type": "string"}, {"type": "integer"}
    steps = {"type": "array", "items": _object({"kind": text, "text": text})}
    plan = _record(DeployPlan, steps=steps)
    perhaps = {name: _or_null(schema) for name, schema in plan["properties"].items()}
    dry_run = {
        "exact": {"type": "boolean"},
        "device": text,
        "board": text,
        "facts": _or_null(_record(DeviceFacts)),
        "problems": {"type": "array", "items": _record(Problem)},
        "parts": {"type": "array", "items": _record(Part)},
        "bundle_bytes": number,
    }
    assert {"device", "board", "facts", "problems", "parts"} <= DryRun.__dataclass_fields__.keys()
    error = {"code": {"enum": list(EXIT_CODES)}, "message": text, "hint": _or_null(text)}
    inspect_more = {
        "can_be_compiled": {"type": "boolean"},
        "because": _or_null(text),
        "estimate": _or_null(_record(Estimate)),
    }
    outputs = {
        "error": _object({"error": _object(error)}),
        "board up": _record(VirtualBoard),
        "board list": {"type": "array", "items": _record(VirtualBoard)},
        "deploy": _record(Report),
        "deploy --dry-run": _object(perhaps | dry_run),
        "deploy --dry-run --bundle": plan,
        "inspect": _object(_record(ModelInfo)["properties"] | inspect_more),
    }
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$comment": "Made by docs/generate.py: change the source, not this file.",
        "title": "What edgepack COMMAND --json prints: $defs has it by command",
    }
    return json.dumps({**head, "$defs": outputs}, indent=1) + "\n"


def _record(kind: type, **properties: Any) -> dict[str, Any]:
    """A dataclass as `dataclasses.asdict` and json write it; some `properties` in another way."""
    hints = typing.get_type_hints(kind)
    fields = {field.name: _schema(hints[field.name]) for field in dataclasses.fields(kind)}
    return _object(fields | properties)


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


_SIMPLE = {
    str: {"type": "string"},
    Path: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    type(None): {"type": "null"},
    Any: {},
}


def _schema(kind: Any) -> dict[str, Any]:
    """Of a type that a field has."""
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if dataclasses.is_dataclass(kind):
        return _record(typing.cast(type, kind))
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_schema(one) for one in inner]}
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _schema(inner[1])}
    if origin is tuple and inner[-1] is not Ellipsis:
        return {"type": "array", "prefixItems": [_schema(one) for one in inner]}
    if origin in (tuple, list, frozenset) or issubclass(origin, Sequence):
        return {"type": "array", "items": _schema(inner[0])}
    raise TypeError(f"no schema for {kind}")


def main(argv: list[str]) -> int:
    """Write or check all pages."""
    check = argv == ["--check"]
    stale = []
    pages = (
        ("cli.md", cli_page()),
        ("api.md", api_page()),
        ("edgepack.1", man_page()),
        ("output.schema.json", schema_page()),
    )
    for name, page in pages:
        file = HERE / name
        if not file.exists() or file.read_text() != page:
            stale.append(name)
            if not check:
                file.write_text(page)
    if stale and check:
        print(f"out of date: {', '.join(stale)}; run docs/generate.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
