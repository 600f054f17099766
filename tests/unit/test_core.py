"""errors, paths, process and tables."""

from __future__ import annotations

import getpass
import os
import socket
from pathlib import Path

import pytest

import edgepack
from edgepack.base.errors import (
    EXIT_CODES,
    ConfigError,
    EdgepackError,
    TimeLimitError,
    ToolchainError,
    perhaps,
)
from edgepack.base.paths import atomic_dir, data_file, write_atomic
from edgepack.base.process import run, user_at_host
from edgepack.base.tables import Table, read_json


def test_every_error_class_has_an_exit_code_of_the_table() -> None:
    classes = [EdgepackError]
    for cls in classes:
        classes += cls.__subclasses__()
    # Of this package, and no test's own.
    codes = {cls.exit_code for cls in classes[1:] if cls.__module__.startswith("edgepack.")}
    assert codes == set(EXIT_CODES) - {0, 1, 129, 130, 143}


def test_the_package_lists_its_api() -> None:
    assert dir(edgepack) == sorted(edgepack.NAMES)
    assert all(getattr(edgepack, name) for name in dir(edgepack))


def test_who_runs_this_may_be_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found")

    assert user_at_host() == f"{getpass.getuser()}@{socket.gethostname()}"
    monkeypatch.setattr(getpass, "getuser", nobody)
    assert user_at_host() == f"{os.getuid()}@{socket.gethostname()}"


def test_perhaps_falls_back_to_all_names() -> None:
    assert perhaps("rasp3", ["rasp3b", "pynq"]) == "perhaps you meant 'rasp3b'"
    assert perhaps("raspb3", ["rasp3b", "rasp4b"]) == "perhaps you meant 'rasp3b'"
    assert perhaps("zzz", ["rasp3b", "pynq"]) == "known: pynq, rasp3b"


def test_data_files_are_found_in_a_checkout() -> None:
    for name in ("boards.toml", "toolchains", "tuned", "schemas", "cpp_runtime", "LICENSE"):
        assert data_file(name).exists()


def test_atomic_dir_replaces_only_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "thing"
    with atomic_dir(target) as work:
        (work / "a").write_text("1")
        assert not target.exists()
    with pytest.raises(RuntimeError), atomic_dir(target) as work:
        (work / "b").write_text("2")
        raise RuntimeError
    assert [p.name for p in target.iterdir()] == ["a"]
    with atomic_dir(target) as work:
        (work / "c").write_text("3")
    assert [p.name for p in target.iterdir()] == ["c"]
    assert [p.name for p in tmp_path.iterdir()] == ["thing"]


def test_write_atomic_keeps_the_old_content_when_it_fails(tmp_path: Path) -> None:
    file = tmp_path / "f"
    write_atomic(file, b"old")
    with pytest.raises(TypeError):
        write_atomic(file, "text")  # type: ignore[arg-type]
    assert file.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_run_raises_with_the_last_lines() -> None:
    with pytest.raises(ToolchainError) as caught:
        run(["sh", "-c", "seq 1 30; echo broken >&2; exit 3"], what="the step")
    assert "the step failed with exit code 3" in caught.value.message
    assert "broken" in caught.value.message
    assert "  21\n" not in caught.value.message
    assert "  22\n" in caught.value.message


def test_run_names_a_missing_program_and_a_time_limit() -> None:
    with pytest.raises(ToolchainError, match="program not found: no-such-program"):
        run(["no-such-program"])
    with pytest.raises(TimeLimitError, match=r"longer than 0\.05 s"):
        run(["sleep", "5"], timeout_s=0.05)
    with pytest.raises(TimeLimitError):  # the grandchild holds the pipes open
        run(["sh", "-c", "sleep 60 & wait"], timeout_s=0.05)
    assert run(["false"], check=False).returncode == 1
    assert run(["cat"], input=b"in").stdout == "in"
    assert run(["sh", "-c", "echo $EDGEPACK_TEST"], env={"EDGEPACK_TEST": "x"}).stdout == "x\n"


def test_tables_are_read_strictly(tmp_path: Path) -> None:
    table = Table({"a": 1, "b": [1, 2.5], "c": "x", "d": {}}, file="f.toml", path="top")
    assert table.take("a", float) == 1.0
    assert table.take_list("b", float) == (1.0, 2.5)
    assert table.take("zz", str, "default") == "default"
    with pytest.raises(ConfigError, match=r"f\.toml: top\.c: unknown value 'x'"):
        table.take_choice("c", ("y",))
    with pytest.raises(ConfigError, match=r"top\.d: unknown key"):
        table.finish()
    broken = tmp_path / "x.json"
    broken.write_text("{")
    with pytest.raises(ConfigError, match="not valid JSON"):
        read_json(broken)
    broken.write_text("[]")
    with pytest.raises(ConfigError, match="not a JSON object"):
        read_json(broken)
