"""The [postprocess] table of a project file, which travels to the board as postprocess.json.

What each kind does is defined by its class here; `cpp_runtime/app/src/postprocess` does the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgepack.base.tables import Table, parse_json
from edgepack.postprocess.base import FORMAT, VERSION, PostprocessSpec
from edgepack.postprocess.centernet import CenterNet
from edgepack.postprocess.classes import Classes, Tensors
from edgepack.postprocess.ctc import Ctc
from edgepack.postprocess.embedding import Embedding
from edgepack.postprocess.keypoints import Keypoints
from edgepack.postprocess.masks import Segmentation, TextLines
from edgepack.postprocess.presets import PRESETS
from edgepack.postprocess.ssd import Ssd
from edgepack.postprocess.yolo import Yolo

KINDS: Mapping[str, type[PostprocessSpec]] = {
    one.kind: one
    for one in (
        *(Classes, Tensors, Yolo, CenterNet, Ssd, Keypoints, Segmentation, TextLines, Ctc),
        Embedding,
    )
}
_MOST_OUTPUTS = 64
_MOST_SIZE = 1 << 20


def read_postprocess(
    values: Mapping[str, Any], *, file: str | Path, path: str = "postprocess"
) -> PostprocessSpec:
    """The spec in a table of a project file; `file` and `path` are for messages.

    `preset` names one of `PRESETS`, whose keys the others override. Raises `ConfigError` for an
    unknown key, kind or preset, a wrong type or an impossible value.
    """
    table = Table(values, file=file, path=path)
    if table.has("preset"):
        preset = PRESETS[table.take_choice("preset", tuple(PRESETS))]
        own = {key: value for key, value in values.items() if key != "preset"}
        table = Table({**preset.table, **own}, file=file, path=path)
    return _read(table, KINDS[table.take_choice("kind", tuple(KINDS))])


def parse_postprocess(
    text: str | bytes, *, file: str | Path = "postprocess.json"
) -> PostprocessSpec:
    """The spec in postprocess.json, read as the runtime does. Raises `ConfigError`."""
    data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    values = parse_json(data, file=file)
    table = Table(values, file=file)
    if (found := table.take("format", str)) != FORMAT:
        raise table.fail("format", f"{found!r} is not {FORMAT!r}")
    if (version := table.take("version", int)) != VERSION:
        raise table.fail("version", f"{version} is not {VERSION}")
    kind = KINDS[table.take_choice("kind", tuple(KINDS))]
    names = [field.name for field in dataclasses.fields(kind)]
    for key in values:
        if key not in ("format", "version", "kind", *names):  # what only a project file has
            raise table.fail(key, "unknown key")
    table.need(name for name in names if kind.in_pixels or name != "size")
    size = None
    if kind.in_pixels:
        size = table.take_list("size", int)
        if len(size) != 2 or not all(1 <= side <= _MOST_SIZE for side in size):
            raise table.fail("size", f"{list(size)} is not a height and a width")
    spec = _read(table, kind)
    if not spec.outputs:
        raise table.fail("outputs", "is empty")
    return dataclasses.replace(spec, size=(size[0], size[1]) if size else None)


def _read(table: Table, kind: type[PostprocessSpec]) -> PostprocessSpec:
    outputs = table.take_list("outputs", str, ())
    if len(set(outputs)) != len(outputs) or len(outputs) > _MOST_OUTPUTS:
        raise table.fail("outputs", f"{list(outputs)} names one twice, or too many")
    spec = kind.read(table)
    table.finish()
    return dataclasses.replace(spec, outputs=outputs)
