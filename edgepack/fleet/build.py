"""One bundle for each board of a fleet, each made once, in a process of its own.

Compilers take hundreds of megabytes that the operator's process, which may go on for hours,
does not have to keep.
"""

from __future__ import annotations

import contextlib
import json
import logging
import pickle
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgepack.base.errors import UsageError
from edgepack.base.paths import cache_dir
from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.boards import Board
from edgepack.bundle.bundle import Bundle, open_bundle
from edgepack.fleet import builder
from edgepack.flow.project import Project
from edgepack.gate.gate import check_bundle


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
    project: Project,
    boards: Sequence[Board],
    *,
    key: Path | None = None,
    progress: Progress = NO_PROGRESS,
) -> dict[str, Bundle]:
    """A bundle of `project` for each of `boards`, signed with `key` if there is one.

    Raises what the first that fails raises, of its own class or the nearest that is known
    here, with the board's name before its message.
    """
    bundles = {}
    for number, board in enumerate(boards, 1):
        progress.step(f"building for {board.name} ({number} of {len(boards)} boards)")
        order = builder.Order(
            project=replace(project, board=board.name),
            out=cache_dir() / "made" / board.name,
            key=key,
            cache=cache_dir(),
        )
        bundles[board.name] = open_bundle(_build(order, board.name, progress))
    return bundles


def _build(order: builder.Order, board: str, progress: Progress) -> Path:
    """The bundle's folder, made by a process of its own."""
    end: dict[str, Any] = {}
    with subprocess.Popen(
        [sys.executable, "-m", builder.__name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        with contextlib.suppress(BrokenPipeError), child.stdin:
            child.stdin.write(pickle.dumps(order))
        for line in child.stdout:
            message = json.loads(line)
            if "step" in message:
                progress.step(message["step"])
            elif "log" in message:
                name, level, text = message["log"]
                logging.getLogger(name).log(level, "%s", text)
            else:
                end = message
    if "error" in end:
        raise builder.error_of(end["error"], f"{board}: ")
    if child.returncode == builder.INTERRUPTED:
        raise KeyboardInterrupt
    if child.returncode or "bundle" not in end:
        raise RuntimeError(f"building for {board} ended with {child.returncode}")
    return Path(end["bundle"])
