"""Golden tensors: read from files, and whether they can tell a wrong board from a right one.

A test that any output passes is worse than none: a golden output without a finite number, the same
all over, or the same for every input, is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgepack.base.errors import ConfigError, MismatchError
from edgepack.model import LoadedModel, TensorInfo

Array = npt.NDArray[Any]

_KEY = "golden_input"
# Of a file's header: numpy writes some hundred bytes.
_MOST_DIMENSIONS = 32
_MOST_SHOWN = 4  # inputs


class GoldenInputError(ConfigError):
    """A file of `golden_input` is no tensor that the model takes."""


class SenselessGoldenError(MismatchError):
    """The golden outputs would pass on a board whatever it computes."""


def read_tensors(model: LoadedModel, files: Sequence[Path]) -> dict[str, Array]:
    """The arrays of `files` by the names of the model's inputs: of all, or of all that are no
    states. Raises `GoldenInputError`."""
    names = [info.name for info in model.given]
    infos = model.given if len(files) == len(model.given) else model.inputs
    if len(files) != len(infos):
        states = ", or one for each state, too" if model.states else ""
        raise GoldenInputError(
            f"{_KEY}: {len(files)} files, but the model takes {len(names)} inputs: "
            + ", ".join(names),
            hint=f"give one .npy file for each, in this order{states}",
        )
    return {info.name: _read_tensor(file, info) for file, info in zip(files, infos, strict=True)}


def _read_tensor(file: Path, info: TensorInfo) -> Array:
    what = f"{_KEY}: {file}"
    shape = tuple(size for size in info.shape if isinstance(size, int))
    wanted = f"{info.dtype} {shape}"
    try:
        with file.open("rb") as opened:
            found = _read_npy(opened, math.prod(shape) * np.dtype(info.dtype).itemsize)
    except (OSError, ValueError, EOFError) as error:
        raise GoldenInputError(
            f"{what}: not a tensor of input '{info.name}' ({wanted}): {error}",
            hint="numpy.save writes such a file",
        ) from None
    found = found.astype(found.dtype.newbyteorder("="), copy=False)
    if found.dtype != np.dtype(info.dtype) or found.shape != shape:
        raise GoldenInputError(
            f"{what} is {found.dtype.name} {found.shape}, input '{info.name}' is {wanted}",
            hint=f"numpy.save({file.name!r}, array.astype({info.dtype!r}).reshape({shape}))",
        )
    return np.ascontiguousarray(found).reshape(shape)  # not an axis more where there are none


def _read_npy(file: Any, most_bytes: int) -> Array:
    """The array of a .npy file, if it is no larger than the input: a header can say anything."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"version {version} of .npy is not known")
    read = np.lib.format.read_array_header_1_0
    read = read if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    if len(shape) > _MOST_DIMENSIONS or math.prod(shape) * dtype.itemsize > most_bytes:
        raise ValueError(f"it is {dtype.name} {shape}")
    file.seek(0)
    array: Array = np.lib.format.read_array(file, allow_pickle=False)
    return array


def check_golden(
    model: LoadedModel,
    outputs: Sequence[Array],
    others: Sequence[Sequence[Array]],
    *,
    given: str,
    kept: Collection[str] = (),
) -> None:
    """Raise `SenselessGoldenError` if golden `outputs` tell nothing.

    `others` are what other inputs give, `given` what the golden input is ("the photo cat.png"),
    `kept` the outputs that are states.
    """
    told: Mapping[str, tuple[Array, list[Array]]] = {
        info.name: (output, [other[number] for other in others])
        for number, (info, output) in enumerate(zip(model.outputs, outputs, strict=True))
        if info.name not in kept
    }
    names = ", ".join(f"'{name}'" for name in told)
    dead = {name for name, (output, _) in told.items() if output.size and not _finite(output).size}
    for name, (output, _) in told.items():
        # One that is infinite may be right beside others: a board has to find that, too.
        if name in dead and (np.isnan(output).any() or len(dead) == len(told)):
            kinds = (("not a number (NaN)", np.isnan), ("infinite", np.isinf))
            what = " or ".join(kind for kind, is_kind in kinds if is_kind(output).any())
            raise _senseless(model, given, f"output '{name}' is {what} everywhere")
    # One that is constant may be right beside others: how many boxes there are, a mask.
    if told and all(_is_constant(output) for output, _ in told.values()):
        are_some = any(_finite(output).size < output.size for output, _ in told.values())
        which = "all finite values" if are_some else "all values"
        raise _senseless(model, given, f"{which} of {names} are one")
    if (
        told
        and others
        and all(all(_same(output, other) for other in found) for output, found in told.values())
    ):
        raise _senseless(model, given, f"{names} are the same for all inputs that were tried")


def _senseless(model: LoadedModel, given: str, why: str) -> SenselessGoldenError:
    photo = "golden_image for a photo, or " if any(map(_may_be_photo, model.given)) else ""
    tensors = f"{_KEY} for other tensors"
    if len(model.given) <= _MOST_SHOWN:
        saved = "; ".join(map(_saved, model.given))
        named = " ".join(f"--golden-input {file_of(info)}" for info in model.given)
        tensors = f"in Python {saved}, and then {named} (in a project {_KEY})"
    return SenselessGoldenError(
        f"{model.path}: a test with {given} would tell nothing: by the reference, {why}",
        hint=f"give a real input, for which the model says something: {photo}{tensors}; "
        "--no-verify makes the bundle anyway",
    )


def _may_be_photo(info: TensorInfo) -> bool:
    return len(info.shape) == 4


def file_of(info: TensorInfo) -> str:
    """A file's name for an input, which needs no quotes."""
    return re.sub(r"[^A-Za-z0-9]+", "_", info.name).strip("_")[:40] + ".npy"


def _saved(info: TensorInfo) -> str:
    return (
        f"numpy.save({file_of(info)!r}, numpy.asarray(YOURS, {info.dtype!r}).reshape({info.shape}))"
    )


def _finite(output: Array) -> Array:
    """The values that are finite, one after the other: of others than floats all."""
    flat = output.reshape(-1)
    return flat[np.isfinite(flat)] if output.dtype.kind == "f" else flat


def _is_constant(output: Array) -> bool:
    """Whether an output has several values, of which the finite ones are all one, or none at
    all."""
    if output.size == 0:
        return True
    finite = _finite(output)
    return output.size > 1 and bool((finite == finite[:1]).all())


def _same(one: Array, other: Array) -> bool:
    if one.shape != other.shape:
        return False
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind == "f"))
