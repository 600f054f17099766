"""Whether what is about to be replaced is another model, which happens to have the same name."""

from __future__ import annotations

from collections.abc import Sequence

from edgepack.base.errors import BundleError, ConnectError, UsageError
from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.base.text import one_line, shorten
from edgepack.bundle.bundle import LABELS, Bundle
from edgepack.bundle.manifest import MANIFEST_NAME, Manifest, Tensor, parse_manifest
from edgepack.deploy.remote_tool import Layout
from edgepack.device.base import Device
from edgepack.device.limit import limited
from edgepack.device.options import COMMAND_TIMEOUT_S
from edgepack.device.patience import Patience

_MOST_LETTERS = 200


class OtherModelError(UsageError):
    """The current release is of a model with other inputs, outputs or labels."""


def check_same_model(
    device: Device,
    root: str,
    bundle: Bundle,
    *,
    retries: int = 0,
    limit_s: float = COMMAND_TIMEOUT_S,
    progress: Progress = NO_PROGRESS,
) -> None:
    """Raise `OtherModelError` if the release that is current below `root` is of another model.

    A model that was trained again has the same inputs, outputs and labels: it is no other. What
    cannot be read is left to the deploy. A lost link is tried again `retries` times; then the
    ConnectError is raised. Raises TooSlowError if an answer takes longer than `limit_s`.
    """
    command = Layout.of(root).enter(f"cat current/{MANIFEST_NAME}")
    patience = Patience(retries, progress)
    lost = False
    while True:
        try:
            with limited(device, limit_s, "looking at what is there"):
                if lost:
                    device.reconnect()
                done = device.run(command, check=False)
            break
        except ConnectError as error:
            lost = True
            patience.after(error, moved=False)
    if done.returncode != 0:
        return
    try:
        there = parse_manifest(done.stdout.encode(errors="surrogateescape"))
    except BundleError:
        return
    if (problem := _difference(there, bundle.manifest)) is None:
        return
    raise OtherModelError(
        f"{device.name}: in {root} is another model, {there.model.file}: {problem}",
        hint="give this one a name of its own (--name, or name in [project]), or --replace it",
    )


def _difference(there: Manifest, own: Manifest) -> str | None:
    """What differs; None if nothing does."""
    if there.model.sha256 == own.model.sha256:
        return None
    for what, one, other in (
        ("inputs", there.model.inputs, own.model.inputs),
        ("outputs", there.model.outputs, own.model.outputs),
    ):
        if _signature(one) != _signature(other):
            return f"its {what} are {_text(one)}, those of {own.model.file} {_text(other)}"
    labels = [
        manifest.files[LABELS].sha256 for manifest in (there, own) if LABELS in manifest.files
    ]
    return "its labels are others" if len(set(labels)) > 1 else None


def _signature(tensors: Sequence[Tensor]) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(one.name, one.dtype, tuple(one.shape)) for one in tensors]


def _text(tensors: Sequence[Tensor]) -> str:
    named = (f"'{one.name}' {one.dtype} {tuple(one.shape)}" for one in tensors)
    return shorten(one_line(", ".join(named)), _MOST_LETTERS)
