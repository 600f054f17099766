"""The short form of `./dev fuzz`: the corpus again, and some seconds of new inputs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgepack.base.errors import ConfigError
from edgepack.postprocess.spec import KINDS, parse_postprocess
from tests import fuzz

SECONDS = 2
"""Each; there are seventeen. `./dev fuzz` takes ten minutes for all."""


@pytest.fixture(scope="module")
def programs() -> dict[str, Path]:
    return fuzz.build()


@pytest.mark.parametrize("target", fuzz.TARGETS)
def test_nothing_breaks_a_reader(target: str, programs: dict[str, Path]) -> None:
    outcome = fuzz.run(target, programs[target], seconds=SECONDS)
    assert not outcome.failed, outcome.failed[-4000:]
    assert outcome.inputs > 10
    assert outcome.executions > outcome.inputs


_HOLDS_MORE_THAN_ALLOWED = """
import sys
from pathlib import Path
from tests import fuzz

held = b"x" * ((fuzz.MEMORY_MB + 64) << 20)
sys.exit(fuzz.run("signature", Path(sys.argv[1]), seconds=1).failed or 0)
"""


def test_only_its_own_memory_counts(
    programs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = programs["signature"]
    words = [sys.executable, "-c", _HOLDS_MORE_THAN_ALLOWED, program]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    monkeypatch.setattr(fuzz, "MEMORY_MB", 8)  # less than any program with a sanitizer takes
    assert fuzz.run("signature", program, seconds=1).failed


def test_the_corpus_has_postprocessing_of_all_kinds(tmp_path: Path) -> None:
    """A key that became mandatory would leave inputs that are refused before anything is tried."""
    fuzz.unpack("postprocess", tmp_path)
    kinds = set()
    for path in tmp_path.iterdir():
        try:
            kinds.add(parse_postprocess(path.read_bytes().split(b"\0")[0]).kind)
        except ConfigError:
            continue  # found by the fuzzer
    assert kinds == set(KINDS)


def test_the_targets_are_watched_by_the_sanitizers(programs: dict[str, Path]) -> None:
    """Else a clean run would say little: each program has their code and knows their options."""
    for program in programs.values():
        done = subprocess.run(
            [program, "-runs=0"],
            env={**os.environ, "ASAN_OPTIONS": "help=1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert "Available flags for AddressSanitizer" in done.stdout + done.stderr
        symbols = program.read_bytes()
        assert b"__ubsan_handle" in symbols
        assert b"__sanitizer_cov" in symbols
