"""One bundle for each board of a fleet, each made once, in a process of its own.

Compilers take hundreds of megabytes that the operator's process, which may go on for hours,
does not have to keep.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from edgepack.base.errors import EdgepackError, UsageError
from edgepack.base.paths import cache_dir
from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.boards import Board
from edgepack.bundle.bundle import Bundle, open_bundle
from edgepack.gate.gate import check_bundle

_INTERRUPTED = 130


def open_bundles(
    paths: Iterable[Path], boards: Mapping[str, Board], needed: Iterable[str]
) -> dict[str, Bundle]:
    """The bundles at `paths` by board, checked against it.

    Raises UsageError if two are for one board, are of two models, or if one of the `needed`
    boards has none, and what `open_bundle` and `check_bundle` raise.
    """
    bundles: dict[str, Bundle] = {}
    for path in paths:
        bundle = open_bundle(path)
        board = bundle.manifest.board
        if board in bundles:
            raise UsageError(f"two bundles for {board}: {bundles[board].path} and {path}")
        if board not in boards:
            raise UsageError(f"{path} is for an unknown board: {board}", hint="add --boards FILE")
        check_bundle(bundle, boards[board])
        bundles[board] = bundle
    names = sorted({bundle.manifest.name for bundle in bundles.values()})
    if len(names) > 1:
        raise UsageError(f"bundles of several models: {', '.join(names)}")
    if missing := sorted(set(needed) - bundles.keys()):
        raise UsageError(
            f"no bundle for {', '.join(missing)}", hint="add --bundle PATH for each board"
        )
    return bundles


def build_bundles(
    words: Sequence[str], boards: Sequence[Board], *, progress: Progress = NO_PROGRESS
) -> dict[str, Bundle]:
    """A bundle for each of `boards`, made by `edgepack package` with the options `words`.

    Raises what the first that fails ends with: its message, under the class of its exit code.
    """
    bundles = {}
    for number, board in enumerate(boards, 1):
        progress.step(f"building for {board.name} ({number} of {len(boards)} boards)")
        out = cache_dir() / "made" / board.name
        command = [sys.executable, "-m", "edgepack", "--json", "--cache-dir", str(cache_dir())]
        done = subprocess.run(
            [*command, "package", *words, "--board", board.name, "--out", str(out)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            check=False,
        )
        if done.returncode:
            raise _error(board.name, done.returncode, done.stdout)
        bundles[board.name] = open_bundle(Path(json.loads(done.stdout)["bundle"]))
    return bundles


def _error(board: str, code: int, output: bytes) -> BaseException:
    kinds = {kind.exit_code: kind for kind in reversed(EdgepackError.__subclasses__())}
    if code == _INTERRUPTED:
        return KeyboardInterrupt()
    if code not in kinds:
        return RuntimeError(f"edgepack package for {board} ended with {code}")
    error = json.loads(output)["error"]
    return kinds[code](f"{board}: {error['message']}", hint=error["hint"])
