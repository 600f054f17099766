"""edgepack-run on a device for many rows of a table, by one command there.

The rows of each input go there as one file, of which `dd` cuts one after the other; what the app
gives comes back as one file, too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgepack.base.errors import EdgepackError, MismatchError, TimeLimitError
from edgepack.bundle.manifest import APP
from edgepack.deploy.remote_app import (
    app_command,
    parse_answer,
    release_folder,
    temporary_folder,
)
from edgepack.device.base import Device
from edgepack.device.errors import ConnectionLostError
from edgepack.device.facts import own_folder

# Of one command. What was done by those before it is not lost where a connection breaks.
_MOST_ROWS = 256
_MOST_BYTES = 16 << 20


def rows_at_once(row_bytes: int) -> int:
    """How many rows of so many bytes one `ask_app_of_rows` takes."""
    return max(1, min(_MOST_ROWS, _MOST_BYTES // max(row_bytes, 1)))


def ask_app_of_rows(
    device: Device, root: str, inputs: Sequence[npt.NDArray[Any]], outputs: int
) -> tuple[list[list[npt.NDArray[Any]]], EdgepackError | None]:
    """Run the current release below `root` on each row of `inputs`, by one command there.

    `inputs` are those of the model in their order, (rows, ...) each, `outputs` is how many it has.
    Returns the outputs of each row, up to the first that fails, and what that raises.

    Raises MismatchError for outputs that are none, and what is of no row, as `ask_app` does.
    """
    inside = f"{release_folder('')[1:]}/{APP}"
    rows = len(inputs[0])
    with (
        tempfile.TemporaryDirectory(prefix="edgepack-") as own,
        temporary_folder(device, f"{root}/{inside}", needed=True) as folder,
    ):
        parts, words = [], []
        for at, values in enumerate(inputs):
            file = Path(own) / f"rows{at}.raw"
            file.write_bytes(np.ascontiguousarray(values).tobytes())
            device.put(file, f"{folder}/rows{at}.raw")
            parts.append(
                f"dd if={folder}/rows{at}.raw of={folder}/{at}.raw bs={values.nbytes // rows} "
                "skip=$i count=1 2>/dev/null"
            )
            words += ["--input", f"{folder}/{at}.raw"]
        for at in range(outputs):
            words += ["--output", f"{folder}/{at}.npy"]
            parts.append(f"cat {folder}/{at}.npy >> {folder}/all{at}.npy")
        copied = " && ".join(parts[: len(inputs)])
        kept = " && ".join(parts[len(inputs) :])
        done = device.run(
            f'r=$({own_folder(root)}) || exit; i=0; while [ "$i" -lt {rows} ]; do '
            f'{copied} || exit 74; said=$("$r"/{app_command(inside, words)}) || '
            '{ code=$?; echo "$said"; exit "$code"; }; '
            f'{kept} || exit 74; i=$((i+1)); done; echo "$said"',
            check=False,
        )
        error = None
        try:
            parse_answer(device, done)
        except (ConnectionLostError, TimeLimitError):
            raise
        except EdgepackError as raised:
            error = raised
        found: list[list[npt.NDArray[Any]]] = []
        for at in range(outputs):
            file = Path(own) / f"all{at}.npy"
            if error is not None:
                # There is none if the first row failed.
                device.run(f": >> {folder}/all{at}.npy")
            device.get(f"{folder}/all{at}.npy", file)
            found.append(_arrays_in(file, rows, device.name, is_whole=error is None))
    count = min(map(len, found))
    if error is None and count != rows:
        raise MismatchError(f"{device.name}: outputs of {count} rows, not of {rows}")
    return [[output[row] for output in found] for row in range(count)], error


def _arrays_in(file: Path, most: int, device: str, *, is_whole: bool) -> list[npt.NDArray[Any]]:
    """The arrays of a file, one .npy after the other; if it is not whole, the last is cut off."""
    size = file.stat().st_size
    found: list[npt.NDArray[Any]] = []
    with file.open("rb") as data:
        while data.tell() < size and len(found) < most:
            try:
                found.append(np.load(data, allow_pickle=False))
            except (OSError, ValueError, EOFError) as error:
                if not is_whole:
                    break
                raise MismatchError(f"{device}: its outputs cannot be read: {error}") from None
    return found
