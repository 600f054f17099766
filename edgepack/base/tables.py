"""Checked reading of TOML and JSON tables.

A reader takes each known key out of a table; `finish` refuses what is left. Every
message names the file, the key's full path and the value.
"""

from __future__ import annotations

import codecs
import contextlib
import contextvars
import json
import re
import tomllib
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar, overload

from edgepack.base.errors import ConfigError, EdgepackError, perhaps
from edgepack.base.paths import OutsideError, inside
from edgepack.base.text import MAX_SHOWN, one_line, shorten

T = TypeVar("T")
_REQUIRED: Any = object()
_MOST_PARTS = 64
_DOTTED = re.compile(
    r"(?<![A-Za-z0-9_-])"
    rf"""(?:(?:[A-Za-z0-9_-]++|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){{{_MOST_PARTS}}}"""
)

_NAMES: dict[Any, str] = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a table",
}


def read_text(path: Path, *, error: type[EdgepackError] = ConfigError) -> str:
    """The text of `path`, without the mark that some editors begin UTF-8 with.

    The one way to read text that others wrote. Raises `error` if it is missing, unreadable or
    not UTF-8.
    """
    try:
        data = path.read_bytes()
        return data.decode("utf-8-sig")
    except FileNotFoundError:
        raise error(f"file not found: {path}") from None
    except OSError as reason:
        raise error(f"cannot read {path}: {reason.strerror}") from None
    except UnicodeDecodeError as reason:
        wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        raise error(
            f"{path}: not UTF-8 {'but UTF-16' if wide else f'at byte {reason.start}'}",
            hint=f"save it as UTF-8, for example: iconv -f {'UTF-16' if wide else 'LATIN1'} "
            f"-t UTF-8 {path.name}",
        ) from None
    except ValueError as reason:  # a name with a null byte
        raise error(f"cannot read {path}: {reason}") from None


def read_toml(path: Path, *, error: type[EdgepackError] = ConfigError) -> dict[str, Any]:
    """The table in a TOML file; raises `error` with the line if it is not TOML."""
    text = read_text(path, error=error)
    if _DOTTED.search(text):
        # tomllib's time grows with the square of its parts.
        raise error(f"{path}: a key of more than {_MOST_PARTS} parts")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as reason:  # also a number of too many digits
        raise error(f"{path}: not valid TOML: {one_line(reason)}") from None


def read_json(path: Path, *, error: type[EdgepackError] = ConfigError) -> dict[str, Any]:
    """The object in a JSON file; raises `error` if it is not one."""
    try:
        value = json.loads(read_text(path, error=error))
    except (ValueError, RecursionError) as reason:
        raise error(f"{path}: not valid JSON: {one_line(reason)}") from None
    if not isinstance(value, dict):
        raise error(f"{path}: not a JSON object")
    return value


def parse_json(
    data: bytes, *, file: str | Path, error: type[EdgepackError] = ConfigError
) -> dict[str, Any]:
    """The object in `data`, read as the device does (cpp_runtime/common/json.h).

    UTF-8 that holds no half of a surrogate pair, no key twice in a table, no NaN; a whole
    number beyond 64 bits is a float. Raises `error` if it is no such object.
    """
    try:
        document = json.loads(
            data.decode(),
            object_pairs_hook=_unique_keys,
            parse_constant=_no_constant,
            parse_int=_int64,
        )
        # Fails on half a surrogate pair, which JSON can spell and UTF-8 cannot.
        json.dumps(document, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as reason:
        raise error(f"{file}: not JSON: {reason}") from None
    if not isinstance(document, dict):
        raise error(f"{file}: not a JSON object")
    return document


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) != len(pairs):
        names = [key for key, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key '{twice}' is given twice")
    return table


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _int64(digits: str) -> int | float:
    most = len(str(-(2**63)))
    value = int(digits) if len(digits) <= most else 2**63
    return value if -(2**63) <= value < 2**63 else float(digits)


@dataclass(frozen=True, kw_only=True)
class TakenKey:
    """A key that a reader asked a table for: what a schema says of it.

    `path` is the table's ("boards.rasp3b"). `kind` is a type, or a union of some; that of each item
    if it `is_list`. `choices` are the values that are possible, () for any of the kind. `value` is
    what a choice came to.
    """

    path: str
    key: str
    kind: Any
    required: bool
    is_list: bool = False
    choices: tuple[str, ...] = ()
    value: object = None


_taken: contextvars.ContextVar[list[TakenKey] | None] = contextvars.ContextVar(
    "taken", default=None
)


@contextlib.contextmanager
def watch_keys() -> Iterator[list[TakenKey]]:
    """Within this block, the keys that tables are asked for, be they there or not."""
    taken: list[TakenKey] = []
    token = _taken.set(taken)
    try:
        yield taken
    finally:
        _taken.reset(token)


@contextlib.contextmanager
def in_another_file() -> Iterator[None]:
    """Within this block, tables are those of a file that another names: nobody watches them."""
    token = _taken.set(None)
    try:
        yield
    finally:
        _taken.reset(token)


def _kinds(kind: Any) -> tuple[Any, ...]:
    """The types of a union; a type by itself."""
    return typing.get_args(kind) or (kind,)


def _fits(value: object, kind: Any) -> bool:
    """Whether it is of the kind: a whole number is a float too, a truth value no number."""
    kinds = _kinds(kind)
    if isinstance(value, bool):
        return bool in kinds or object in kinds
    return isinstance(value, kinds) or (float in kinds and isinstance(value, int))


def _named(kind: Any) -> str:
    kinds = _kinds(kind)
    named = (one for one in kinds if one is not int or float not in kinds)
    return " or ".join(_NAMES.get(one, str(one)) for one in named)


class Table:
    """One table of a file, `path` in it ("boards.rasp3b"), read key by key."""

    def __init__(
        self,
        values: Mapping[str, Any],
        *,
        file: str | Path,
        path: str = "",
        error: type[EdgepackError] = ConfigError,
    ) -> None:
        self._left = dict(values)
        self._known: set[str] = set()
        self.file = file
        self._path = path
        self._error = error

    def name(self, key: str) -> str:
        """`key` with the path that leads to it."""
        return f"{self._path}.{key}" if self._path else key

    def fail(self, key: str, problem: str, *, hint: str | None = None) -> EdgepackError:
        """The error to raise for `key`."""
        where = one_line(self.name(key))
        return self._error(f"{self.file}: {where}: {shorten(problem, MAX_SHOWN)}", hint=hint)

    def file_inside(self, key: str, name: str) -> Path:
        """The file that `key` calls `name`, relative to this file's folder, and within it."""
        try:
            return inside(Path(self.file).parent, name)
        except OutsideError as reason:
            raise self.fail(
                key,
                f"{name!r} {reason}",
                hint="put it into the folder; or --allow-outside, if you trust whoever wrote this",
            ) from None

    def has(self, key: str) -> bool:
        """Whether `key` is there and not yet taken."""
        return key in self._left

    def has_list(self, key: str) -> bool:
        """Whether `key` is there, not yet taken, and a list."""
        return isinstance(self._left.get(key), list)

    @overload
    def take(self, key: str, kind: type[T]) -> T: ...
    @overload
    def take(self, key: str, kind: type[T], default: None) -> T | None: ...
    @overload
    def take(self, key: str, kind: type[T], default: T) -> T: ...

    def take(self, key: str, kind: type[T], default: Any = _REQUIRED) -> Any:
        """The value of `key`, which must be of `kind` (float takes whole numbers too)."""
        self._note(key, kind, required=default is _REQUIRED)
        return self._take(key, kind, default)

    def _note(self, key: str, kind: Any, *, required: bool, **more: Any) -> None:
        if (taken := _taken.get()) is not None:
            taken.append(TakenKey(path=self._path, key=key, kind=kind, required=required, **more))

    def _take(self, key: str, kind: Any, default: Any = _REQUIRED) -> Any:
        self._known.add(key)
        if key not in self._left:
            if default is _REQUIRED:
                raise self.fail(key, "missing", hint=f"it must be {_named(kind)}")
            return default
        value = self._left.pop(key)
        if value is None and default is None:  # JSON's null; TOML has none
            return None
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if not _fits(value, kind):
            raise self.fail(key, f"{value!r} is not {_named(kind)}")
        return value

    def take_list(
        self, key: str, kind: type[T], default: Sequence[T] | None = None
    ) -> tuple[T, ...]:
        """A list of `kind`; required unless there is a `default`."""
        self._note(key, kind, required=default is None, is_list=True)
        if default is not None and key not in self._left:
            self._known.add(key)
            return tuple(default)
        values: list[Any] = self._take(key, list)
        for value in values:
            if not _fits(value, kind):
                raise self.fail(key, f"{value!r} is not {_named(kind)}")
        return tuple(float(value) if kind is float else value for value in values)  # type: ignore[misc]

    @overload
    def take_choice(
        self, key: str, choices: Sequence[str], default: str = ..., *, hints: Mapping[str, str] = {}
    ) -> str: ...
    @overload
    def take_choice(self, key: str, choices: Sequence[str], default: None) -> str | None: ...

    def take_choice(
        self,
        key: str,
        choices: Sequence[str],
        default: Any = _REQUIRED,
        *,
        hints: Mapping[str, str] = {},
    ) -> str | None:
        """One of `choices`; `hints` are for values that are none and often meant."""
        value: str | None = self._take(key, str, default)
        self._note(key, str, required=default is _REQUIRED, choices=tuple(choices), value=value)
        if value is not None and value not in choices:
            hint = hints.get(value) or perhaps(value, choices)
            raise self.fail(key, f"unknown value {value!r}", hint=hint)
        return value

    def need(self, keys: Iterable[str]) -> Table:
        """This table, of which no key of `keys` may be left out, not even one with a default."""
        for key in keys:
            if key not in self._left:
                raise self.fail(key, "missing")
        return self

    def take_table(self, key: str, *, required: bool = True) -> Table | None:
        """The table under `key`, to be read and finished by the caller."""
        value: dict[str, Any] | None = (
            self.take(key, dict) if required else self.take(key, dict, None)
        )
        if value is None:
            return None
        return Table(value, file=self.file, path=self.name(key), error=self._error)

    def finish(self) -> None:
        """Refuse the keys that nothing has taken."""
        for key in self._left:
            raise self.fail(key, "unknown key", hint=perhaps(key, self._known))


def to_toml(value: Any) -> str:
    """A value as TOML writes it. JSON's strings are TOML's but for DEL."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {to_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(to_toml, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value)
