"""JSON Schemas of the files that users write, made by docs/generate.py."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from edgepack.base.paths import data_file

SCHEMA_OF: Mapping[str, str] = {
    f"{name}.toml": f"{name}.schema.json" for name in ("edgepack", "fleet", "boards")
}
"""The schema's file for each of theirs, in `schemas/`; beside a project it is called the same."""


_DESCRIPTION = "Made by edgepack from what the reader of the file takes."


def head_of(name: str) -> dict[str, str]:
    """What the schema of a file called `name` begins with.

    Draft 4 is what editors know of TOML, and the last that tells 1.0 from the whole number 1.
    """
    return {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "title": name,
        "description": _DESCRIPTION,
    }


def is_schema(path: Path, name: str) -> bool:
    """Whether the file at `path` is the schema of `name`, of whatever version of edgepack."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(values, dict) and values.items() >= head_of(name).items()


def schema_text(name: str) -> str:
    """The JSON Schema of a file called `name`, one of `SCHEMA_OF`."""
    return (data_file("schemas") / SCHEMA_OF[name]).read_text(encoding="utf-8")
