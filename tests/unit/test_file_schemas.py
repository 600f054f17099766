"""The schemas of project files, fleets and boards: they take what the readers take."""

from __future__ import annotations

import ast
import copy
import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from docs.file_schemas import SCHEMAS, board_samples, fleet_samples, project_samples
from edgepack.base.errors import ConfigError
from edgepack.base.schemas import SCHEMA_OF, is_schema, schema_text
from edgepack.base.tables import to_toml
from edgepack.boards import load_boards
from edgepack.cli import main
from edgepack.fleet.fleet_toml import read_fleet_toml
from edgepack.flow.project import _read_file
from edgepack.postprocess import presets as post
from edgepack.preprocess import presets as pre
from tests.schemas import problems

ROOT = Path(__file__).parents[2]
READERS: Mapping[str, Callable[[Path], object]] = {
    "edgepack.toml": _read_file,
    "fleet.toml": read_fleet_toml,
    "boards.toml": lambda file: load_boards([file]),
}
SAMPLES = {
    "edgepack.toml": project_samples,
    "fleet.toml": fleet_samples,
    "boards.toml": board_samples,
}
OF_THE_SCHEMA = ("unknown key", " is not a string", " is not a whole number",
                 " is not a number", " is not true or false", " is not a list",
                 " is not a table", ": unknown value ")  # fmt: skip
"""What a reader says of a key, a type or a choice, and not of a value."""
OTHERS = ("x", 7, 2.0, 0.5, True, [], ["x"], [1], [[1]], {}, {"x": 1})


def schema_of(name: str) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(schema_text(name))
    return {key: value for key, value in schema.items() if key in KEYWORDS}


KEYWORDS = {"type", "properties", "additionalProperties", "required", "anyOf"}


def test_schemas_are_those_of_the_readers() -> None:
    assert SCHEMAS.keys() == SCHEMA_OF.keys() == READERS.keys()
    for name, make in SCHEMAS.items():
        assert schema_of(name) == make(), "run docs/generate.py"


def mutants(values: Any) -> Iterator[Any]:
    """The same with one key more, one less, or one value of another type."""
    for key in list(values):
        for other in OTHERS:
            yield _with(values, key, other)
        yield {one: value for one, value in values.items() if one != key}
        inner = values[key]
        if isinstance(inner, dict):
            for one in mutants(inner):
                yield _with(values, key, one)
        if isinstance(inner, list) and inner and isinstance(inner[0], dict):
            for one in mutants(inner[0]):
                yield _with(values, key, [one, *inner[1:]])
    yield {**values, "no_such_key": 1}


def _with(values: Any, key: Any, value: Any) -> Any:
    changed = copy.copy(values)
    changed[key] = value
    return changed


@pytest.mark.parametrize("name", READERS)
def test_reader_and_schema_agree(name: str, tmp_path: Path) -> None:
    """Of what differs in one place from a file that is right."""
    (tmp_path / "charset.txt").write_text("a\n")
    file, schema = tmp_path / name, schema_of(name)
    refused = taken = 0
    seen = set()
    changed = [one for sample in [*SAMPLES[name](), *more(name)] for one in mutants(sample)]
    # All boards are read for each: of these, some will do.
    for values in changed[:: 4 if name == "boards.toml" else 1]:
        if (text := "".join(f"{k} = {to_toml(v)}\n" for k, v in values.items())) in seen:
            continue
        seen.add(text)
        file.write_text(text)
        try:
            READERS[name](file)
        except ConfigError as error:
            if any(said in error.message for said in OF_THE_SCHEMA):
                refused += 1
                assert problems(values, schema, name), (error.message, text)
        else:
            taken += 1
            assert not problems(values, schema, name), text
    assert refused > 50
    assert taken > 10


def more(name: str) -> Iterator[dict[str, Any]]:
    """Files with other branches than the samples, or nearly all keys."""
    if name == "edgepack.toml":
        yield tomllib.loads((ROOT / "examples/mobilenetv2/edgepack.toml").read_text())
        for preset in pre.PRESETS:
            yield {"project": {}, "preprocess": {"preset": preset}}
        for preset in post.PRESETS:
            yield {"project": {}, "postprocess": {"preset": preset, "outputs": ["x"]}}
    if name == "boards.toml":
        builtin = tomllib.loads((ROOT / "boards.toml").read_text())["boards"]
        yield {"boards": {"mine": builtin["rasp3b"]}}


def test_edgepacks_own_files_are_right() -> None:
    project = tomllib.loads((ROOT / "examples/mobilenetv2/edgepack.toml").read_text())
    assert problems(project, schema_of("edgepack.toml"), "") == []
    boards = {"boards": tomllib.loads((ROOT / "boards.toml").read_text())["boards"]}
    assert len(boards["boards"]) > 10
    assert problems(boards, schema_of("boards.toml"), "") == []


def test_the_files_of_the_guides_are_right() -> None:
    """Each block of TOML is that of one of the files, or a part of one."""
    count = 0
    for page in [*(ROOT / "docs").glob("**/*.md"), ROOT / "README.md"]:
        for block in page.read_text().split("```toml\n")[1:]:
            values = tomllib.loads(block.partition("```")[0])
            if "runtime_flags" in values:  # of the triples, which only edgepack's own file has
                continue
            schemas = [schema_of(name) for name in READERS]
            for schema in schemas:
                schema.pop("required", None)
            found = [problems(values, schema, str(page)) for schema in schemas]
            assert [] in found, min(found, key=len)
            count += 1
    assert count > 10


def test_every_key_that_is_read_by_name_is_in_its_schema() -> None:
    """The samples lead into every branch of the readers."""
    sources = {
        "edgepack.toml": [
            *("flow/project.py", "bundle/service.py"),
            "preprocess/spec.py",
            *(f"postprocess/{path.stem}.py" for path in ROOT.glob("edgepack/postprocess/*.py")),
        ],
        "fleet.toml": ["fleet/fleet_toml.py", "fleet/plan.py"],
        "boards.toml": ["boards.py", "gpus.py"],
    }
    inner = {"format", "version"}  # of preprocess.json and postprocess.json
    inner |= {"llvm_triple", "float_abi", "debian_arch", "loader", "runtime_flags"}  # of triples
    for name, files in sources.items():
        known = set(_keys(schema_of(name)))
        for file in files:
            for node in ast.walk(ast.parse((ROOT / "edgepack" / file).read_text())):
                if not isinstance(node, ast.Call):
                    continue
                called = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if called.lstrip("_").startswith("take"):
                    found = [one.value for one in node.args if isinstance(one, ast.Constant)]
                    keys = [one for one in found[:1] if isinstance(one, str)]
                    assert set(keys) - inner <= known | {"size"}, (file, keys)


def _keys(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        for value in schema.values():
            yield from _keys(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _keys(value)


@pytest.mark.parametrize("name", READERS)
def test_the_command_prints_or_writes_it(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["schema", name]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(schema_text(name))
    out = tmp_path / "new" / "schema.json"
    assert main(["schema", name, "--out", str(out)]) == 0
    assert out.read_text() == schema_text(name)
    assert is_schema(out, name)
    assert main(["schema", name, "--out", str(out / "schema.json")]) == 2
