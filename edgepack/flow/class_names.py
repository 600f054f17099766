"""Names of classes, as people and tools write them: in a model's metadata, and in files beside it.

A project's own file of labels has a name on each line (`read_labels`). Here is what becomes one:
lists and tables in JSON, YAML or Python, numbered lines, protobuf's text, names in one line.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from edgepack.base.errors import ConfigError, EdgepackError
from edgepack.base.tables import read_text
from edgepack.base.text import text_lines

MOST_TEXT = 1 << 20
_MOST_CLASSES = 1 << 16
_MOST_LETTERS = 60  # of a label in a line of several
_SEPARATORS = "\n;|\t,"
KEYS = (
    *(
        "names",
        "labels",
        "label",
        "classes",
        "class_names",
        "classnames",
        "class_labels",
        "label_names",
    ),
    *("categories", "category_names", "id2label", "label2id", "idx_to_class", "class_to_idx"),
    *("label_map", "labelmap", "class_map", "class_list", "label_list", "labels_list", "classlist"),
    *("class_indices", "index_to_class", "idx2label", "idx2class", "target_names", "output_labels"),
    *("class_index", "imagenet_class_index", "display_names", "displaynames"),
    *("labels_map", "index_to_name", "ind_to_class"),
)
"""What a list of classes is called, as `key_of` has it."""

_NAMED = ("name", "label", "class", "class_name", "display_name", "title")
_NUMBERED = ("id", "index", "class_id", "value")

# Beside a model, `{stem}.onnx`; the first that has as many names as the model has classes.
_FILES = (
    *("labels.txt", "classes.txt", "imagenet_classes.txt", "label.txt", "names.txt"),
    *("class_names.txt", "label_map.txt", "labelmap.txt", "label_list.txt", "categories.txt"),
    *("labels.json", "label.json", "classes.json", "class_names.json", "class_indices.json"),
    *("imagenet_class_index.json", "class_index.json", "labels_map.json", "index_to_name.json"),
    *("label_map.json", "labelmap.json", "id2label.json", "class_to_idx.json", "names.json"),
    *("label_map.pbtxt", "labelmap.pbtxt", "labels.yaml", "classes.yaml", "data.yaml"),
    *("labels.csv", "classes.csv", "metadata.json", "metadata.yaml"),
)
TEXTS = (".txt", ".names", ".labels")
"""How files end that have a name on each line."""
FORMS = (".json", ".yaml", ".yml", ".pbtxt", ".csv")
"""How files end that are no list of lines."""
_OF_MODEL = ("{}.txt", "{}_labels.txt", "{}-labels.txt", "{}.labels", "{}.names", "{}.json")


def key_of(text: str) -> str:
    """A key in one spelling: `Class-Names` and `model.class_names` are `class_names`."""
    words = re.findall(r"[^\W_]+", text.casefold())
    return "_".join(words[1:] if len(words) > 1 and words[0] in ("model", "dataset") else words)


def literal(text: str) -> Any:
    """The Python literal that `text` is, or None."""
    if not text or len(text) > MOST_TEXT:
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def value_in(text: str) -> Any:
    """What JSON, a Python literal, or numbers with commas stand for; None if it is none."""
    if not text or len(text) > MOST_TEXT:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return literal(text) if text.lstrip()[:1] in ("[", "{", "(") else literal(f"[{text}]")


def label_of(value: object) -> str:
    """One line, or empty."""
    return " ".join(str(value).split()) if isinstance(value, str | int) else ""


def names_in(text: str) -> tuple[str, ...]:
    """The classes that `text` lists, in their order; none if it is no list of two or more."""
    text = text.removeprefix("\ufeff").strip()
    value = value_in(_as_numpy(text))
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, str) and len(value) < len(text):
        return names_in(value)  # the whole list in quotes, or as JSON within JSON
    if value is None and len(text) <= MOST_TEXT:
        # The separator that comes first in this order.
        by = next((one for one in _SEPARATORS if one in text), None)
        value = text_lines(text) if by == "\n" else text.split(by) if by else None
        if value and by != "\n" and max(map(len, value)) > _MOST_LETTERS:
            return ()
        if value:
            value = without_numbers([one.strip() for one in value])
    return names_of(value)


def names_of(value: Any) -> tuple[str, ...]:
    """As `names_in`, of a list or table that was read."""
    if isinstance(value, list | tuple) and value and all(map(_is_pair, value)):
        value = dict(map(_turned, value))  # [[0, "cat"]] or [["cat", 0]]
    if isinstance(value, dict):
        value = _names_of_table(value)
    if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        value = _names_of_entries(value)
    if not isinstance(value, list | tuple) or not 1 < len(value) <= _MOST_CLASSES:
        return ()
    labels = tuple(map(label_of, value))
    return labels if all(labels) and not all(isinstance(one, int) for one in value) else ()


def _is_pair(value: object) -> bool:
    return isinstance(value, list | tuple) and {type(one) for one in value} == {int, str}


def _turned(pair: Sequence[Any]) -> tuple[Any, Any]:
    return (pair[0], pair[1]) if isinstance(pair[0], int) else (pair[1], pair[0])


def _names_of_table(table: dict[Any, Any]) -> list[Any] | None:
    """By numbers from 0 or from 1, which are keys, ends of keys, or values: {"0": "cat"},
    {"LABEL_0": "cat"}, {"cat": 0}; None without such numbers.

    What is numbered may have a name, as in {"0": {"name": "cat"}}, or end in it, as Keras'
    {"0": ["n02123045", "tabby"]}; what is named may have a number.
    """
    keys, values = list(table), list(table.values())
    ends = [re.fullmatch(r"(.*?)(\d{1,6})", str(key)) for key in keys]
    are_alike = all(ends) and len({match[1] for match in ends if match}) == 1
    ways = [(keys, values), (values, keys)]
    if all(type(one) is int for one in values):  # names may be numbers, as digits are
        ways.reverse()
    if are_alike:
        ways.append(([match[2] for match in ends if match], values))
    return next(filter(None, (_by_number(*way) for way in ways)), None)


def _by_number(numbers: Sequence[Any], names: Sequence[Any]) -> list[Any] | None:
    known = [number for one in numbers if (number := _number_of(one)) is not None]
    first = min(known, default=-1)
    if first not in (0, 1) or sorted(known) != [*range(first, first + len(numbers))]:
        return None
    return [_name_of(name) for _, name in sorted(zip(known, names, strict=True), key=_first)]


def _first(pair: tuple[int, Any]) -> int:
    return pair[0]


def _number_of(value: Any) -> int | None:
    if isinstance(value, dict):
        value = next((value[key] for key in _NUMBERED if key in value), None)
    text = str(value) if type(value) is int or isinstance(value, str) else ""
    return int(text) if re.fullmatch(r"\d{1,6}", text) else None


def _name_of(value: Any) -> Any:
    if isinstance(value, dict):
        return next((value[key] for key in _NAMED if key in value), None)
    return value[-1] if isinstance(value, list) and value else value


def _names_of_entries(entries: list[dict[str, Any]]) -> list[Any] | None:
    """Of COCO's categories and the like, by their numbers, which may have gaps: the model's classes
    are in their order. Without numbers, in the order of the list."""
    name = next((key for key in _NAMED if all(key in one for one in entries)), None)
    number = next((key for key in _NUMBERED if any(key in one for one in entries)), None)
    if name is None or number is None:
        return None if name is None else [one[name] for one in entries]
    numbers = [one.get(number) for one in entries]
    if not all(type(one) is int for one in numbers) or len(set(numbers)) != len(numbers):
        return None
    return [one[name] for one in sorted(entries, key=lambda one: one[number])]


def _as_numpy(text: str) -> str:
    """numpy's `['cat' 'dog']` as a list: Python makes one word of words that nothing parts."""
    is_array = re.fullmatch(r"\[\s*(?:'[^']*'|\"[^\"]*\")(?:\s+(?:'[^']*'|\"[^\"]*\"))+\s*\]", text)
    return re.sub(r"(['\"])\s+(['\"])", r"\1, \2", text) if is_array else text


def without_numbers(lines: list[str]) -> list[str]:
    """`0 cat`, `1: dog` ... without the numbers, if all have theirs, from 0 or from 1."""
    found = [re.fullmatch(r"(\d{1,6})(?:\s*[:=,;.)]\s*|\s+)(\S.*)", line) for line in lines]
    if len(lines) < 2 or not all(found):
        return lines
    numbers = [int(match[1]) for match in found if match]
    if numbers not in ([*range(len(lines))], [*range(1, len(lines) + 1)]):
        return lines
    return [match[2] for match in found if match]


# ---------------------------------------------------------------- files


def files_beside(model: Path) -> Iterator[Path]:
    """The files in the model's folder that may list its classes, best first."""
    there = {}
    try:
        found = sorted(model.absolute().parent.iterdir(), reverse=True)
    except OSError:  # a folder that lists nothing
        return
    for file in found:
        there[file.name.casefold()] = model.parent / file.name
    own = [name.format(model.stem).casefold() for name in _OF_MODEL]
    darknet = sorted(name for name in there if name.endswith(".names"))
    for name in dict.fromkeys((*_FILES[:1], *own, *_FILES[1:], *darknet)):
        if name in there and there[name].is_file() and there[name] != model:
            yield there[name]


def names_in_file(file: Path, *, is_list: bool = True) -> tuple[str, ...] | None:
    """The classes that a file lists in another way than a name on each line; None if it does not.

    A file that may hold other things (not `is_list`) says by a key which are classes. Raises
    `ConfigError` for one that cannot be read.
    """
    text = read_text(file).removeprefix("\ufeff")
    suffix = file.suffix.lower()
    if suffix == ".json" or text.lstrip()[:1] in ("[", "{"):
        value = _of_lines(text) or value_in(text.strip())
        return (names_of(value) if is_list else ()) or _in_tables(value) or None
    if suffix in (".yaml", ".yml"):
        return _in_tables(_read_yaml(file)) or None
    if suffix == ".pbtxt":
        return _in_protobuf_text(text) or None
    lines = [line.strip() for line in text_lines(text.strip())]
    if suffix == ".csv":
        return _in_csv(lines) or None
    if len(lines) == 1:
        return names_in(text) or None
    bare = without_numbers(lines)
    return tuple(bare) if bare != lines else None


def _of_lines(text: str) -> list[Any] | None:
    """The values in JSON of each line; None for another text."""
    lines = text_lines(text.strip())
    try:
        return [json.loads(line) for line in lines] if len(lines) > 1 else None
    except (ValueError, RecursionError):
        return None


def try_names_in_file(file: Path) -> tuple[str, ...] | None:
    """As `names_in_file`, of a file that nobody named; None, too, for one that cannot be read."""
    try:
        return names_in_file(file, is_list=is_called_so(file))
    except EdgepackError:
        return None


def is_called_so(file: Path) -> bool:
    """Whether a file is called as one that lists classes, and nothing else."""
    return key_of(file.stem) in KEYS


def _in_tables(value: Any, depth: int = 5) -> tuple[str, ...]:
    """The names that are listed somewhere in a table, by a key that says so."""
    if not isinstance(value, dict) or not depth:
        return ()
    keyed = {key_of(str(key)): one for key, one in value.items()}
    own: Iterable[tuple[str, ...]] = (names_of(keyed[key]) for key in KEYS if key in keyed)
    below = (_in_tables(one, depth - 1) for one in value.values() if isinstance(one, dict))
    return next(filter(None, own), ()) or next(filter(None, below), ())


def _read_yaml(file: Path) -> dict[str, Any]:
    from edgepack.flow.data_sets import read_yaml

    try:
        return read_yaml(file)
    except EdgepackError as error:
        raise ConfigError(str(error)) from None


def _in_protobuf_text(text: str) -> tuple[str, ...]:
    """TensorFlow's label maps: item { id: 1 name: "cat" }, as numbers go up."""
    found: list[dict[str, Any]] = []
    for item in re.findall(r"item\s*\{([^{}]*)\}", text):
        number = re.search(r"\bid\s*:\s*(\d{1,6})\b", item)
        name = re.search(r"\bdisplay_name\s*:\s*(['\"])(.*?)\1", item) or re.search(
            r"\bname\s*:\s*(['\"])(.*?)\1", item
        )
        if number is None or name is None:
            return ()
        found.append({"id": int(number[1]), "name": name[2]})
    return names_of(found)


def _in_csv(lines: list[str]) -> tuple[str, ...]:
    """A column of names, by its head; or numbers and names without one."""
    import csv

    rows = [row for row in csv.reader(lines) if row]
    heads = [key_of(head) for head in rows[0]] if rows else []
    at = next((heads.index(key) for key in (*_NAMED, *KEYS) if key in heads), None)
    if at is not None and all(len(row) > at for row in rows):
        entries = [dict(zip(heads, row, strict=False)) for row in rows[1:]]
        number = next((key for key in _NUMBERED if key in heads), None)
        if number is None:
            return names_of([entry[heads[at]] for entry in entries])
        if not all(entry.get(number, "").isdecimal() for entry in entries):
            return ()
        return names_of([{"id": int(one[number]), "name": one[heads[at]]} for one in entries])
    return names_of(without_numbers(lines)) if all(len(row) == 2 for row in rows) else ()
