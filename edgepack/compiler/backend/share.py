"""Which values share bytes: states and results of loops with what follows them, results with
arguments that nobody reads any more."""

from __future__ import annotations

from collections.abc import Sequence

from edgepack.compiler.backend.draft import PlanDraft


def put_results(
    draft: PlanDraft, made: Sequence[int], targets: Sequence[int], *, unread: bool = False
) -> None:
    """Let the results of a turn be where the next one, or what follows, finds them.

    A result is computed right there if what was there is not read after that; `unread` if
    there is nothing to be read.
    """
    roots = [draft.root_of(index) for index in targets]
    read = {draft.root_of(index) for index in made}
    held: list[tuple[int, int]] = []
    for index, target, root in zip(made, targets, roots, strict=True):
        source = draft.root_of(index)
        if source == root:
            continue
        if source in roots:
            # Another state as it was before this turn, and that one may be overwritten first.
            held.append((draft.copy(index), target))
        elif root in read or not _takes_place(draft, index, root, unread=unread):
            held.append((index, target))
        read.add(source)
    for index, target in held:
        draft.copy(index, target)


def reuse_arguments(draft: PlanDraft) -> None:
    """Let results take the place of an argument that nobody reads any more."""
    for now, call in enumerate(draft.calls):
        for read, written in draft.kernels[call.kernel].facts.in_place:
            if _may_replace(draft, now, read, written):
                draft.move(call.args[written], draft.root_of(call.args[read]))


def _takes_place(draft: PlanDraft, index: int, root: int, *, unread: bool) -> bool:
    """Let a value be computed where `root` is, if nobody reads that from then on."""
    source, target = draft.values[draft.root_of(index)], draft.values[root]
    free = (
        source.data is None
        and not source.fixed
        and source.nbytes == draft.values[index].nbytes == target.nbytes
        and source.first >= target.first
        and (unread or source.first > target.last or _replaces(draft, source.root, root))
    )
    if free:
        draft.move(draft.root_of(index), root)
    return free


def _replaces(draft: PlanDraft, source: int, target: int) -> bool:
    """Whether the call that makes `source` may make it where `target` is."""
    now = draft.values[source].first
    call = draft.calls[now]
    return any(
        call.args[written] == source
        and draft.root_of(call.args[read]) == target
        and _may_replace(draft, now, read, written)
        for read, written in draft.kernels[call.kernel].facts.in_place
    )


def _may_replace(draft: PlanDraft, now: int, read: int, written: int) -> bool:
    """Whether a result of call `now` may lie where an argument is: nobody else reads that, then
    or later. Both by their numbers among the arguments."""
    call = draft.calls[now]
    result, argument = call.args[written], draft.values[call.args[read]]
    old = draft.values[argument.root]
    readers = [arg for arg in call.args if draft.root_of(arg) == argument.root]
    return (
        draft.root_of(result) == result
        and len(readers) == 1
        and old.data is None
        and old.last == now
        and old.nbytes == argument.nbytes == draft.values[result].nbytes
    )
