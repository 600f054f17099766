"""Rows of a CSV file as inputs of a model of tables."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgepack.base.errors import UsageError
from edgepack.base.tables import read_text
from edgepack.base.text import shorten, text_lines
from edgepack.model import LoadedModel, TensorInfo
from edgepack.model.sources.mlflow import ABOUT, columns_of

Array = npt.NDArray[Any]

# MLflow's types of columns that are numbers, and the limits of those that are whole.
_WHOLE = {"integer": (-(2**31), 2**31 - 1), "long": (-(2**63), 2**63 - 1), "boolean": (0, 1)}
_KINDS = (*_WHOLE, "float", "double")
_TRUTH = {"true": "1", "false": "0"}
_MOST_BYTES = 1 << 28
_MOST_COLUMNS = 1 << 16


class RowsError(UsageError):
    """A file of rows is none, or not of what the model takes."""


def takes_rows(inputs: Sequence[TensorInfo]) -> bool:
    """Whether inputs are what a row of a table has: one vector, or a number each."""
    shapes = [[size for size in info.shape if isinstance(size, int)] for info in inputs]
    if not shapes or any(info.dtype == "bool" for info in inputs):
        return False
    if len(shapes) == 1:
        return len(shapes[0]) <= 2 and math.prod(shapes[0]) == max(shapes[0], default=1)
    return all(math.prod(shape) == 1 for shape in shapes)


def read_rows(
    model: LoadedModel, file: Path, target: str | None = None
) -> Iterator[tuple[int, dict[str, Array], str]]:
    """The line of each row of a CSV file, its inputs by their names, and its cell of `target`.

    A model of one vector takes all columns but `target`, in order, or those that the MLmodel beside
    it names, whatever their order; one of single numbers the columns with its inputs' names. All
    are taken in order where there is no header. The first row is a header if a cell of it is no
    number, or if it counts from 0 as pandas' does without names. An empty cell is not a number
    (NaN), as pandas writes it. Raises `RowsError`.
    """
    if not takes_rows(model.inputs):
        shapes = ", ".join(f"'{info.name}' {tuple(info.shape)}" for info in model.inputs)
        raise RowsError(
            f"{file}: the model takes no rows of a table, but {shapes}",
            hint="one vector, or inputs of one number each; golden_input takes any tensor",
        )
    table = _RowsFile(file)
    known = _known_columns(model)
    columns = _columns(table, model.inputs, target, list(known))
    at = None if target is None else _column(table, target)
    # Without a header the names are those that are known, in their order.
    kinds = [known.get(name, "") for name in table.names]
    if known and not table.has_header:
        of_position = iter(known.values())
        kinds = ["" if i == at else next(of_position, "") for i in range(len(table.names))]
    for line, cells in table.rows:
        values = {
            info.name: _array(
                [(table.names[i], _plain(cells[i], kinds[i])) for i in chosen],
                [kinds[i] for i in chosen],
                info,
                file,
                line,
            )
            for info, chosen in zip(model.inputs, columns, strict=True)
        }
        yield line, values, "" if at is None else cells[at]


def answer_of(text: str, labels: Sequence[str], where: str) -> float:
    """The number in a cell of answers, or that of the label it has. Raises `RowsError`."""
    if text in labels:
        return labels.index(text)
    try:
        return _float(text)
    except ValueError:
        what = "no number" + (", and no label" if labels else "")
        raise RowsError(
            f"{where}: '{shorten(text, 40)}' is {what}",
            hint="" if labels else "labels in [project] name the classes",
        ) from None


class _RowsFile:
    """The cells of a CSV file, all rows as long as the first. `names` are those of the header, or
    numbers from 1."""

    def __init__(self, file: Path) -> None:
        self.file = file
        if file.is_file() and file.stat().st_size > _MOST_BYTES:
            raise RowsError(f"{file}: larger than {_MOST_BYTES >> 20} MB")
        lines = text_lines(read_text(file, error=RowsError))
        reader = csv.reader(lines, strict=True)
        self.rows: list[tuple[int, list[str]]] = []
        try:
            for row in reader:
                cells = [cell.strip() for cell in row]
                if any(cells):
                    self.rows.append((reader.line_num, cells))
        except csv.Error as error:
            raise RowsError(f"{file}: line {reader.line_num}: not CSV: {error}") from None
        first = self.rows[0][1] if self.rows else []
        if len(first) > _MOST_COLUMNS:
            raise RowsError(f"{file}: {len(first)} columns; at most {_MOST_COLUMNS}")
        counted = [str(i) for i in range(len(first))]
        counts = len(first) > 1 and (first == counted or first == ["", *counted[:-1]])
        self.has_header = counts or not all(_is_number(cell) for cell in first)
        self.names = first if self.has_header else [str(i + 1) for i in range(len(first))]
        if self.has_header:
            del self.rows[0]
            if "" in self.names:
                raise RowsError(
                    f"{file}: column {self.names.index('') + 1} has no name",
                    hint="pandas writes its index so: table.to_csv(file, index=False)",
                )
        if not self.rows:
            raise RowsError(f"{file}: there is no row", hint="a line of numbers with commas each")
        for line, cells in self.rows:
            if len(cells) != len(self.names):
                raise RowsError(
                    f"{file}: line {line}: {len(cells)} values, and {len(self.names)} in the first"
                )


def _is_number(cell: str) -> bool:
    try:
        _float(cell)
    except ValueError:
        return False
    return True


def _float(cell: str) -> float:
    """Of a cell; NaN of an empty one. Python's own 1_000 and digits of other scripts are none."""
    if "_" in cell or not cell.isascii():
        raise ValueError(cell)
    return float(cell or "nan")


def _column(table: _RowsFile, name: str) -> int:
    if table.names.count(name) != 1:
        named = ", ".join(table.names)
        how = "no column" if name not in table.names else "more than one column"
        raise RowsError(f"{table.file}: {how} '{name}'", hint=f"there are: {shorten(named, 200)}")
    return table.names.index(name)


def _known_columns(model: LoadedModel) -> dict[str, str]:
    """The types of a vector's columns by their names, or of single numbers', as MLflow has them;
    none if it says nothing."""
    columns = {one.name: one.type for one in columns_of(model.path)}
    sizes = [
        math.prod(size for size in info.shape if isinstance(size, int)) for info in model.inputs
    ]
    file = model.path.parent / ABOUT
    if columns and len(columns) != sum(sizes):
        raise RowsError(
            f"{file}: signature.inputs: {len(columns)} columns, but the model takes {sum(sizes)} "
            "numbers",
            hint="steps before the model are not in its ONNX file: convert the whole pipeline",
        )
    for name, kind in columns.items():
        if kind not in _KINDS:
            raise RowsError(
                f"{file}: signature.inputs: column '{shorten(name, 40)}' is of type "
                f"'{shorten(kind, 40)}', of which a CSV file has none",
                hint=f"types that are numbers: {', '.join(_KINDS)}",
            )
    return columns


def _columns(
    table: _RowsFile, inputs: Sequence[TensorInfo], target: str | None, known: Sequence[str]
) -> list[Sequence[int]]:
    """Which columns are each input's. `known` are the names of a vector's."""
    if len(inputs) > 1 and table.has_header:
        return [[_column(table, info.name)] for info in inputs]
    if known and table.has_header:
        if target in known:
            raise RowsError(
                f"{table.file}: column '{target}' is an input of the model, not the answer",
                hint=f"inputs: {shorten(', '.join(known), 200)}",
            )
        return [[_column(table, name) for name in known]]
    left_out = None if target is None else _column(table, target)
    free = [i for i in range(len(table.names)) if i != left_out]
    sizes = [math.prod(size for size in info.shape if isinstance(size, int)) for info in inputs]
    if len(free) != sum(sizes):
        hint = ""
        if target is None and len(free) == sum(sizes) + 1:
            hint = f"if a column has the answers: --target {table.names[-1]}, for example"
        raise RowsError(
            f"{table.file}: {len(free)} columns, but the model takes {sum(sizes)} numbers",
            hint=hint or ("columns are parted by commas" if ";" in "".join(table.names) else None),
        )
    if len(inputs) == 1:
        return [free]
    return [[i] for i in free]


def _plain(text: str, kind: str) -> str:
    """A cell of a column of that type as a number."""
    return _TRUTH.get(text.lower(), text) if kind == "boolean" else text


def _array(
    cells: Sequence[tuple[str, str]],
    kinds: Sequence[str],
    info: TensorInfo,
    file: Path,
    line: int,
) -> Array:
    dtype = np.dtype(info.dtype)
    values = []
    for (name, text), kind in zip(cells, kinds, strict=True):
        where = f"{file}: line {line}: {name}"
        value = _number(text, dtype, where)
        if kind in _WHOLE:
            low, high = _WHOLE[kind]
            if not (math.isfinite(value) and value == int(value) and low <= value <= high):
                raise RowsError(
                    f"{where}: '{shorten(text, 40)}' is no {kind}, which the column is by {ABOUT}"
                )
        values.append(value)
    shape = tuple(size for size in info.shape if isinstance(size, int))
    return np.array(values, dtype).reshape(shape)


def _number(text: str, dtype: np.dtype[Any], where: str) -> float | int:
    wanted = f"'{shorten(text, 40)}' is no {dtype.name}"
    if dtype.kind == "f":
        try:
            value = _float(text)
        except ValueError:
            raise RowsError(f"{where}: {wanted}") from None
        if math.isfinite(value) and abs(value) > float(np.finfo(dtype).max):
            raise RowsError(f"{where}: {wanted}: it is too large")
        return value
    try:
        _float(text)
        whole = int(text)
    except ValueError:
        raise RowsError(f"{where}: {wanted}") from None
    if not np.iinfo(dtype).min <= whole <= np.iinfo(dtype).max:
        raise RowsError(f"{where}: {wanted}: it is too large")
    return whole
