"""Many rows by one command: a shell on this machine, and an app that may fail."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from edgepack.base.errors import MismatchError, NothingThereError, PositionError
from edgepack.deploy.remote_rows import ask_app_of_rows, rows_at_once
from edgepack.device.local import LocalDevice

# The sum of two inputs and their difference; -1 is none of its positions.
APP = """#!{python}
import sys
import numpy as np
words = sys.argv[1:]
files = [words[at + 1] for at, word in enumerate(words) if word in ("--input", "--output")]
a, b = np.fromfile(files[0], "float32"), np.fromfile(files[1], "int64")
if a[0] == -1:
    print('{{"error": {{"kind": "x", "message": "no position", "hint": "another"}}}}')
    sys.exit(10)
if a[0] == -2:
    sys.exit("killed")
np.save(files[2], (a + b).reshape(1, 3))
np.save(files[3], a.sum() - b.sum())
print('{{"edgepack": "1"}}')
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    app = tmp_path / "root/current/bin/edgepack-run"
    app.parent.mkdir(parents=True)
    app.write_text(APP.format(python=sys.executable))
    app.chmod(0o755)
    return tmp_path


def rows(count: int) -> list[np.ndarray]:
    values = np.arange(count * 3, dtype=np.float32).reshape(count, 1, 3)
    return [values, np.arange(count, dtype=np.int64).reshape(count, 1)]


def test_each_row_has_its_outputs(home: Path) -> None:
    found, error = ask_app_of_rows(LocalDevice(home), "root", rows(3), 2)
    assert error is None
    assert [one[0].tolist() for one in found] == [[[0, 1, 2]], [[4, 5, 6]], [[8, 9, 10]]]
    assert [float(one[1]) for one in found] == [3 - 0, 12 - 1, 21 - 2]
    assert not list((home / "tmp").iterdir())


@pytest.mark.parametrize("at", [0, 2])
def test_up_to_the_row_that_fails(home: Path, at: int) -> None:
    values, more = rows(3)
    values[at, 0, 0] = -1
    found, error = ask_app_of_rows(LocalDevice(home), "root", [values, more], 2)
    assert len(found) == at
    assert isinstance(error, PositionError)
    assert (error.message, error.hint) == ("local: no position", "another")
    values[at, 0, 0] = -2
    found, error = ask_app_of_rows(LocalDevice(home), "root", [values, more], 2)
    assert (len(found), type(error).__name__) == (at, "RemoteCommandError")
    assert not list((home / "tmp").iterdir())


def test_outputs_that_are_none(home: Path) -> None:
    app = home / "root/current/bin/edgepack-run"
    text = app.read_text()
    app.write_text(
        text.replace("np.save(files[3], a.sum() - b.sum())", "open(files[3], 'w').write('no')")
    )
    with pytest.raises(MismatchError, match="local: its outputs cannot be read"):
        ask_app_of_rows(LocalDevice(home), "root", rows(2), 2)
    app.write_text(text.replace("np.save(files[3], a.sum() - b.sum())", "open(files[3], 'w')"))
    with pytest.raises(MismatchError, match="local: outputs of 0 rows, not of 2"):
        ask_app_of_rows(LocalDevice(home), "root", rows(2), 2)
    with pytest.raises(NothingThereError, match="there is no other/current/bin/edgepack-run"):
        ask_app_of_rows(LocalDevice(home), "other", rows(2), 2)


def test_how_many_at_once() -> None:
    assert rows_at_once(20) == 256
    assert rows_at_once(1 << 20) == 16
    assert rows_at_once(1 << 30) == 1
