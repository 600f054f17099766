"""Writes docs/reference/{cli,api}.md from the command line and the public API.

`--check` writes nothing and exits with 1 if a file is out of date.
"""

from __future__ import annotations

import argparse
import inspect
import os
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent / "reference"
HEAD = "<!-- Made by docs/generate.py: change the source, not this file. -->\n"


def cli_page() -> str:
    """Every command's help."""
    from edgepack.cli import make_parser

    os.environ["COLUMNS"] = "96"
    parser = make_parser()
    parts = [HEAD, "# Command line\n", f"```\n{parser.format_help()}```\n"]
    return "\n".join([*parts, *_sections(parser, "edgepack", "##")])


def _sections(parser: argparse.ArgumentParser, name: str, level: str) -> Iterator[str]:
    """A section for each command, one level down for each action of a command."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, command in action.choices.items():
                title = f"{name} {word}"
                yield f"{level} {title}\n\n```\n{command.format_help()}```\n"
                yield from _sections(command, title, level + "#")


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


def main(argv: list[str]) -> int:
    """Write or check both pages."""
    check = argv == ["--check"]
    stale = []
    for name, page in (("cli.md", cli_page()), ("api.md", api_page())):
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
