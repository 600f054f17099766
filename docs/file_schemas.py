"""JSON Schemas of edgepack.toml, fleet.toml and a file of boards, from what their readers ask for.

The readers themselves say which keys there are and of which types: they read the samples below, and
`watch_keys` notes what they ask their tables for. A sample only has to lead into each branch.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from edgepack.base.errors import ConfigError
from edgepack.base.schemas import head_of
from edgepack.base.tables import TakenKey, to_toml, watch_keys
from edgepack.boards import load_boards
from edgepack.fleet.fleet_toml import read_fleet_toml
from edgepack.flow.project import _read_file as read_project
from edgepack.postprocess import presets
from edgepack.postprocess.gallery import Gallery
from edgepack.postprocess.spec import read_postprocess

FREE = "any-name"
"""In samples: a key that may be called anything."""
_Values = Mapping[str, Any]
_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array"}

_KIND_NEEDS: Mapping[str, Sequence[_Values]] = {
    "ctc": ({"characters": ["a"]}, {"charset": "charset.txt"}),
    "embedding": (
        {"gallery": "gallery.json"},
        {"made_by": "", "people": [], "owners": [], "vectors": []},
    ),
    "ssd": (
        {"maps": [1, 1], "anchors": [1, 1], "counts": [1]},
        {"strides": [8], "generate": {"style": "tf"}},
        {"strides": [8], "generate": {"style": "ssd", "scales": [1, 2], "ratios": [2]}},
    ),
}
"""What some kinds of [postprocess] cannot be without."""


def project_samples() -> Iterator[_Values]:
    """Projects, which lead the reader of edgepack.toml into each of its branches."""
    from edgepack.postprocess.spec import KINDS
    from edgepack.preprocess.spec import MODES

    yield {"project": {}}
    yield {"project": {}, **{key: {FREE: [1]} for key in ("shapes", "set")}}
    yield {"project": {}, "set": {FREE: 1}, "states": {FREE: "output"}}
    yield {"project": {}, "compile": {}, "tune": {}, "health": {}, "quantize": {}, "monitor": {}}
    yield {"project": {}, "compile": {"exact": ["node"]}, "tune": {"records": ["a.jsonl"]}}
    yield {"project": {}, "service": {"args": ["--watch", "/srv/photos"]}}
    sink = {"name": "home", "url": "mqtt://192.0.2.1", "buffer": "/srv/door"}
    yield {
        "project": {},
        "sink": [sink],
        "when": [{"name": "a", "class": "b", "gpio": {"line": 1}, "clip": {"folder": "/a"}}],
        "counter": [{"name": "a", "class": "b", "line": [0, 1, 2, 3]}],
    }
    sink |= {"username": "door", "password_file": "/etc/door"}
    yield {"project": {}, "sink": [sink], "when": [{"name": "a", "class": "b", "run": ["/bin/a"]}]}
    stage = {"name": "a", "model": "model.onnx", "shapes": {FREE: [1]}, "labels": "labels.txt"}
    stage["states"] = {FREE: "out"}
    side = {"height": 8, "width": 8}
    for mode in MODES:
        resize = {"mode": mode, **({"size": 8} if mode == "shortest" else side)}
        yield {"project": {}, "preprocess": {"resize": resize}}
        yield _of_stage(stage, preprocess={"resize": resize, "crop": side})
    yield {"project": {}, "preprocess": {"preset": "timm", "crop": side}}
    yield _of_stage(stage, preprocess={"preset": "timm"})
    turned = {"align": "corners", "turned_by": {"stage": "a", "class": "1"}}
    yield _of_stage({**stage, **turned}, preprocess={"preset": "timm"})
    step = {"scale": 1.0, "zero_point": 0}
    yield {"project": {}, "preprocess": {"dtype": "int8", "quantization": step}}
    exact = {"resize": {"mode": "exact", **side}}
    integers = {**exact, "dtype": "int8", "quantization": step}
    yield _of_stage(stage, preprocess=integers)
    for kind in KINDS:
        for needs in _KIND_NEEDS.get(kind, ({},)):
            yield {"project": {}, "postprocess": {"kind": kind, **needs}}
            yield _of_stage(stage, preprocess=exact, postprocess={"kind": kind, **needs})


def _of_stage(stage: _Values, **tables: _Values) -> _Values:
    return {"project": {}, "stage": [{**stage, **tables}]}


def fleet_samples() -> Iterator[_Values]:
    """The same for fleet.toml."""
    more: dict[str, Any] = {"labels": {FREE: "value"}, "jump": ["user@host"]}
    yield {"devices": {FREE: {}}}
    yield {"devices": {FREE: more}, "fleet": {}, "rollout": {}, "defaults": {}}
    yield {"groups": {FREE: {"devices": ["one"]}}, "defaults": more}
    yield {"groups": {FREE: {"devices": ["one"], **more}}}


def board_samples() -> Iterator[_Values]:
    """The same for a file of boards."""
    gpu = {"api": "opencl", "processors": 1, "lanes": 1, "threads": 1, "shared_kb": 1, "device": ""}
    yield {"boards": {FREE: {"base": "rasp3b"}}}
    yield {"boards": {FREE: {"base": "rasp3b", "gpu": gpu, "has": ["fma"]}}}


def taken_by(read: Callable[[Path], object], samples: Iterable[_Values]) -> list[list[TakenKey]]:
    """What a reader asks for in each sample. Raises `ConfigError` for one that it refuses."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for name in ("charset.txt", "labels.txt", "model.onnx"):
            (Path(folder) / name).write_text("a\n")
        Gallery().write(Path(folder) / "gallery.json")
        file = Path(folder) / "sample.toml"
        for sample in samples:
            file.write_text("".join(f"{key} = {to_toml(value)}\n" for key, value in sample.items()))
            with watch_keys() as taken:
                read(file)
            found.append(taken)
    return found


class _Schema:
    """The schema of a file, from what its reader took in each of several `samples`."""

    def __init__(
        self, samples: Sequence[Sequence[TakenKey]], *, partial: str | None = None
    ) -> None:
        self._samples = samples
        self._partial = partial  # a table of which any key may be left out
        self._known: dict[str, dict[str, Any]] = {}

    def table(self, path: str) -> dict[str, Any]:
        """Of the table at `path`, and of those in it."""
        if path not in self._known:  # each sample asks for it
            self._known[path] = self._made(path)
        return self._known[path]

    def _made(self, path: str) -> dict[str, Any]:
        visits = [own for sample in self._samples if (own := [t for t in sample if t.path == path])]
        tag = _tag(visits)
        if tag is None:
            return self._object(path, visits)
        by_value: dict[object, list[list[TakenKey]]] = {}
        for own in visits:
            by_value.setdefault(_tag_value(own, tag.key), []).append(own)
        keys = {value: {t.key for own in group for t in own} for value, group in by_value.items()}
        if len({frozenset(one) for one in keys.values()}) == 1:
            return self._object(path, visits)
        assert set(tag.choices) == by_value.keys(), f"{path}.{tag.key}: no sample for each"
        variants = []
        for value, group in by_value.items():
            one = self._object(path, group)
            one["properties"][tag.key] = {"enum": [value]}
            variants.append(one)
        return {"anyOf": variants}

    def _object(self, path: str, visits: Sequence[Sequence[TakenKey]]) -> dict[str, Any]:
        by_key: dict[str, list[TakenKey]] = {}
        for one in (t for own in visits for t in own):
            by_key.setdefault(one.key, []).append(one)
        schema: dict[str, Any] = {"type": "object", "additionalProperties": False}
        properties = {key: self._value(path, taken) for key, taken in by_key.items()}
        if (free := properties.pop(FREE, None)) is not None:
            schema["additionalProperties"] = free
        if properties:
            schema["properties"] = properties
        required = [
            key
            for key in properties
            if all(any(t.key == key and t.required for t in own) for own in visits)
        ]
        if required and path != self._partial:
            schema["required"] = required
        return schema

    def _value(self, path: str, taken: Sequence[TakenKey]) -> dict[str, Any]:
        """Of a key, which may have been taken in several ways."""
        at = f"{path}.{taken[0].key}" if path else taken[0].key
        found: list[dict[str, Any]] = []
        for one in taken:
            if one.is_list and one.kind is dict:
                found.append({"type": "array", "items": self.table(f"{at}[0]")})
            elif one.is_list:
                found.append({"type": "array", "items": _of_kinds(one.kind)})
            elif one.kind is dict:
                found.append(self.table(at))
            elif one.choices:
                found.append({"enum": list(one.choices)})
            else:
                found.append(_of_kinds(one.kind))
        return _any_of(found)


def _tag(visits: Sequence[Sequence[TakenKey]]) -> TakenKey | None:
    """The choice that a table has to make, whatever else it holds."""
    for one in visits[0] if visits else ():
        if one.choices and all(any(t.key == one.key and t.required for t in own) for own in visits):
            return one
    return None


def _tag_value(taken: Sequence[TakenKey], key: str) -> object:
    return next(one.value for one in taken if one.key == key)


def _any_of(schemas: Iterable[dict[str, Any]]) -> dict[str, Any]:
    different = []
    for one in schemas:
        if one not in different:
            different.append(one)
    return different[0] if len(different) == 1 else {"anyOf": different}


def _of_kinds(kind: Any) -> dict[str, Any]:
    return _any_of({"type": _TYPES[one]} for one in get_args(kind) or (kind,))


def _with_presets(variants: Sequence[dict[str, Any]]) -> None:
    """A preset of [postprocess] says the kind, and whatever else is needed."""
    for variant in variants:
        (kind,) = variant["properties"]["kind"]["enum"]
        by_kind = {name: preset.table["kind"] for name, preset in presets.PRESETS.items()}
        own = [name for name in by_kind if by_kind[name] == kind]
        # Of some, the kind may be another.
        fit = [name for name in by_kind if _is_read({"preset": name, "kind": kind})]
        assert variant["required"] == ["kind"]
        if fit:
            variant["properties"]["preset"] = {"enum": fit}
        if own:
            by_preset = {"required": ["preset"], "properties": {"preset": {"enum": own}}}
            variant["anyOf"] = [{"required": variant.pop("required")}, by_preset]


def _is_read(values: _Values) -> bool:
    """Whether it is, with what else its kind may need."""
    for needs in ({}, *_KIND_NEEDS.get(values["kind"], ())):
        with contextlib.suppress(ConfigError):
            read_postprocess({**values, **needs}, file="edgepack.toml")
            return True
    return False


def project_schema() -> dict[str, Any]:
    """Of edgepack.toml."""
    schema = _Schema(taken_by(read_project, project_samples())).table("")
    for tables in (schema, schema["properties"]["stage"]["items"]):
        _with_presets(tables["properties"]["postprocess"]["anyOf"])
    return schema


def fleet_schema() -> dict[str, Any]:
    """Of fleet.toml."""
    return _Schema(taken_by(read_fleet_toml, fleet_samples())).table("")


def boards_schema() -> dict[str, Any]:
    """Of a user's file of boards, which holds what differs from those of edgepack."""

    def read(file: Path) -> None:
        load_boards([file])

    own = f"boards.{FREE}"
    samples = [
        # The boards of edgepack are read first.
        [one for one in sample if one.path in ("", "boards") or one.path.startswith(own)]
        for sample in taken_by(read, board_samples())
    ]
    return _Schema(samples, partial=own).table("")


SCHEMAS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "edgepack.toml": project_schema,
    "fleet.toml": fleet_schema,
    "boards.toml": boards_schema,
}


def schema_text(name: str) -> str:
    """The schema of a file called `name`."""
    return json.dumps({**head_of(name), **SCHEMAS[name]()}, indent=1) + "\n"
