"""docs/reference/output.schema.json, and whether a value is what it says.

Only what that file uses of JSON Schema is known here; any other word is an error.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SCHEMAS: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "docs" / "reference" / "output.schema.json").read_text()
)["$defs"]
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,),
    "null": (type(None),), "array": (list,), "object": (dict,),
}  # fmt: skip
_WORDS = {"type", "properties", "required", "items", "prefixItems", "anyOf", "enum"}


def check_output(command: str, value: Any) -> None:
    """`value` is what `command --json` may print."""
    assert problems(value, SCHEMAS[command], command) == []


def problems(value: Any, schema: dict[str, Any], at: str) -> list[str]:
    """What of `value` is not as the schema says."""
    assert not schema.keys() - _WORDS - {"additionalProperties"}, schema.keys()
    if "anyOf" in schema:
        found = [problems(value, one, at) for one in schema["anyOf"]]
        return [] if [] in found else max(found, key=len)
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
        for key, item in value.items():
            wrong += problems(item, schema.get("properties", {}).get(key, others), f"{at}.{key}")
    if isinstance(value, list):
        parts = schema.get("prefixItems", [])
        for index, item in enumerate(value):
            one = parts[index] if index < len(parts) else schema.get("items", {})
            wrong += problems(item, one, f"{at}[{index}]")
    return wrong
