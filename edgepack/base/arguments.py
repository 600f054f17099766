"""Errors of functions in the words of Python: what fails is an argument there, and no option."""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Collection
from typing import ParamSpec, TypeVar

from edgepack.base.errors import EdgepackError, UsageError

_P = ParamSpec("_P")
_T = TypeVar("_T")
# An option, and its value if that can be told from the next word of a sentence: a placeholder, a
# number, an address.
_OPTION = re.compile(
    r"(?<![\w-])--(no-)?([a-z][a-z0-9-]*)"
    r"(?:[ =]([A-Z][A-Z0-9_]*|\d[\d.,x]*|\w+@\w+|[a-z]+-[a-z]*\d+|virtual|local)(?![\w-]))?"
)
# Options that go by another name in Python, and those that are on or off.
_NAMES = {
    "allow-outside": "edgepack.outside_allowed()",
    "image": "images",
    "golden-input": "golden_input",
    "pictures": "folder",
    "release-version": "version",
    "set": "constants",
    "shape": "shapes",
    "state": "states",
    "snr": "snr_db",
}
# What a project file has, in other words.
_PHRASES = {
    "add a [preprocess] table: `edgepack init` writes one": "say how photos become tensors: "
    "preprocess, a preset's name or a table; or project, a file that edgepack.init writes",
}
_SWITCHES = {"static", "verify", "exact", "overwrite", "emulated", "again", "service"}


# The arguments that each such function has itself, by its name.
own_arguments: dict[str, list[str]] = {}


def in_words_of_arguments(text: str, own: Collection[str] = ()) -> str:
    """`text` with `board="rasp3b"`'s kind of words for options; what is in `...` is a command, and
    stays. `own` are the function's arguments."""
    for phrase, words in _PHRASES.items():
        text = text.replace(phrase, words)
    parts = re.sub(r"^command line\b", "model", text).split("`")
    parts[::2] = [_OPTION.sub(lambda found: _argument(found, own), part) for part in parts[::2]]
    return "`".join(parts)


def _argument(found: re.Match[str], own: Collection[str]) -> str:
    no, option, value = found.groups()
    name = option.replace("-", "_")
    name = name if name in own else _NAMES.get(option, name)
    if no or option in _SWITCHES:
        return f"{name}={not no}" + (f" {value}" if value else "")
    if value is None:
        return name
    return f"{name}={value}" if value[0].isupper() or value[0].isdigit() else f'{name}="{value}"'


def check_path(name: str, value: object) -> None:
    """Raise `UsageError` if the argument is no path of a file."""
    if isinstance(value, str | os.PathLike):
        return
    kind = type(value)
    hint = "give a str or a Path"
    if isinstance(value, bytes):
        hint = "give a str or a Path: os.fsdecode makes one of the bytes of a path"
    elif kind.__name__ == "ModelProto":
        hint = "save it, and give the path: onnx.save(model, 'model.onnx')"
    elif "Image" in kind.__name__ or kind.__name__ == "ndarray":
        hint = "save it as a PNG; what is deployed takes arrays: deployed.run(array)"
    elif isinstance(getattr(value, "name", None), str):
        hint = f"give its path: {getattr(value, 'name', '')!r}"
    what = "not given" if value is None else f"{kind.__name__} is no path"
    raise UsageError(f"{name}: {what}", hint=hint)


# How a parameter is annotated that is a path; whether it may be left out.
_PATHS = {
    "File": False,
    "str | Path": False,
    "File | None": True,
    "str | Path | None": True,
}


def _paths_of(function: Callable[..., object]) -> dict[str, bool]:
    found = inspect.signature(function).parameters.values()
    return {one.name: _PATHS[one.annotation] for one in found if one.annotation in _PATHS}


def speaks_of_arguments(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """`function`, whose errors name arguments where the command line's would name options.

    A path that is something else is refused by the argument's name.
    """
    paths = _paths_of(function)
    names = list(inspect.signature(function).parameters)
    own_arguments[function.__name__] = names

    @functools.wraps(function)
    def spoken(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            for name, value in (*zip(names, args, strict=False), *kwargs.items()):
                if name in paths and not (value is None and paths[name]):
                    check_path(name, value)
            return function(*args, **kwargs)
        except EdgepackError as error:
            error.message = in_words_of_arguments(error.message, names)
            error.hint = in_words_of_arguments(error.hint, names) if error.hint else None
            error.args = (error.message,)
            raise

    return spoken
