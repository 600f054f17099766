"""One bundle for each board of a fleet, each made once, in a process of its own.

Compilers take hundreds of megabytes that the operator's process, which may go on for hours,
does not have to keep.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from edgepack.base.apart import Apart, prefix_error
from edgepack.base.errors import EdgepackError, UsageError
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
        )
        bundles[board.name] = open_bundle(_build(order, board.name, progress))
    return bundles


def _build(order: builder.Order, board: str, progress: Progress) -> Path:
    """The bundle's folder, made by a process of its own."""
    try:
        return Apart().call(builder.make, order, progress=progress)
    except EdgepackError as error:
        raise prefix_error(error, f"{board}: ") from None
