"""What the commands do, as functions: of the same names, with the same results as objects.

`model` is an ONNX or TFLite file. `project` is a project file, whose values all other arguments
override; one of both is given. `preprocess` is a preset's name, a table as in a project file, or a
spec. `settings` are further fields of `Project`: `board`, `labels`, `golden_image`, `shapes` and so
on. Files are `str` or `Path`. `progress` hears of each step: a function of one text, or a
`Progress`. Errors are subclasses of `EdgepackError`.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from edgepack import formats
from edgepack.base.arguments import check_path, speaks_of_arguments
from edgepack.base.errors import UsageError
from edgepack.base.progress import NO_PROGRESS, Progress, make_progress
from edgepack.boards import get_board
from edgepack.bundle.bundle import Bundle
from edgepack.bundle.signing import check_version, note_version, sign_folder
from edgepack.flow.arguments import Preprocess, project_from
from edgepack.flow.deployment import Deployment
from edgepack.flow.job import board_of, make_job, package_job, stage_job
from edgepack.native.wheel_places import Places, wheels_from

if TYPE_CHECKING:
    from edgepack.device import SshOptions
    from edgepack.fleet import Fleet
    from edgepack.flow.check import Checked
    from edgepack.flow.compare import Compared
    from edgepack.flow.evaluate import Evaluation
    from edgepack.flow.evaluate_boxes import BoxEvaluation
    from edgepack.flow.evaluate_rows import RowEvaluation
    from edgepack.flow.evaluate_text import TextEvaluation
    from edgepack.flow.init import Draft
    from edgepack.formats.apt_repository import Repository
    from edgepack.formats.hawkbit import HawkbitPublished, HawkbitStopped
    from edgepack.formats.mender_server import MenderPublished, MenderStopped
    from edgepack.formats.registry import PublishedImages
    from edgepack.formats.rest import Server
    from edgepack.quantization.quantize import Result
    from edgepack.tuning.session import Tuned

Told = Progress | Callable[[str], object]
File = str | Path


@dataclass(frozen=True, kw_only=True)
class PackedBundle:
    """The result of `package`: the bundle, the file to install it from, and how to use the file."""

    bundle: Bundle
    file: Path
    sha256: str
    use: str


@speaks_of_arguments
def init(
    model: File,
    *,
    out: File = "edgepack.toml",
    preset: str | None = None,
    labels: File | None = None,
    image: File | None = None,
    expected: str | int | None = None,
    photos: File | None = None,
    board: str | None = None,
    device: str | None = None,
    overwrite: bool = False,
) -> Draft:
    """Write a project file for a model, from the model's file; its `lines` mark guesses.

    `image` is the smoke test's photo, and `expected` the class that the model must give to it.
    `photos` is a folder with a folder of photos for each class: `init` takes the photo, its
    class and the labels from there, and writes lists for `evaluate`.
    """
    from edgepack.flow.init import draft_project
    from edgepack.flow.photo_folders import draft_with_photos
    from edgepack.flow.project import load_project
    from edgepack.model.sources import local_model

    if board is not None:
        get_board(board)
    own = local_model(model, beside=Path(out).parent)
    options: dict[str, Any] = {"preset": preset, "labels": _path(labels), "overwrite": overwrite}
    options |= {"board": board, "device": device}
    if photos is not None:
        if image is not None or expected is not None:
            raise UsageError("photos goes without image and expected: it finds both")
        draft = draft_with_photos(own, Path(out), Path(photos), **options)
    else:
        options["expected"] = None if expected is None else str(expected)
        draft = draft_project(own, Path(out), image=_path(image), **options)
    draft.write()
    load_project(draft.path)
    return draft


@speaks_of_arguments
def check(
    model: File | None = None,
    images: File | Sequence[File] = (),
    *,
    project: File | None = None,
    preprocess: Preprocess | None = None,
    top: int = 5,
    rows: File | None = None,
    target: str | None = None,
    **settings: Any,
) -> Checked:
    """Run the reference (onnxruntime) on photos, by default the project's own, and return the
    results. Their `check_expected` raises if the expected class was not found, or if the test
    could not fail.

    `rows` is a CSV file for a model of tables, `target` the column with the right answers."""
    from edgepack.flow.check import check_project, check_rows

    known = project_from("check", model, project=project, preprocess=preprocess, settings=settings)
    if rows is not None:
        return check_rows(known, Path(rows), target)
    return check_project(known, _files("images", images), top=top)


@speaks_of_arguments
def evaluate(
    model: File | None = None,
    images: File | None = None,
    *,
    rows: File | None = None,
    target: str | None = None,
    deployed: Deployment | None = None,
    split: str | None = None,
    text: bool = False,
    project: File | None = None,
    preprocess: Preprocess | None = None,
    progress: Told = NO_PROGRESS,
    **settings: Any,
) -> Evaluation | BoxEvaluation | RowEvaluation | TextEvaluation:
    """Measure accuracy on labelled photos: a folder for each class, a CSV file, or a detector's
    data set. For a model that reads text, measure error rates on a folder of photos, each with a
    .txt file. With `text`, a stage's text is evaluated instead of the detector's boxes.

    Instead of photos, `rows` is a CSV file for a model of tables, `target` the column with the
    correct answers; the result is the accuracy for classes, or MAE and RMSE for values. The
    reference on this machine is measured, and `deployed`, if it is given.
    """
    from edgepack.flow.evaluate import evaluate as by_classes
    from edgepack.flow.evaluate_boxes import evaluate_boxes
    from edgepack.flow.evaluate_rows import evaluate_rows
    from edgepack.flow.evaluate_text import evaluate_text, reads_text
    from edgepack.postprocess.boxes import Boxes

    known = project_from(
        "evaluate", model, project=project, preprocess=preprocess, settings=settings
    )
    device = deployed.device if deployed else None
    root = deployed.root if deployed else ""
    told = make_progress(progress)
    if images is not None and rows is not None:
        raise UsageError("images and rows: a model takes photos or rows")
    if (rows is None) != (target is None):
        raise UsageError("rows and target go together")
    reads = rows is None and reads_text(known, asked=text)
    boxes = rows is None and isinstance(known.postprocess, Boxes) and not reads
    if split is not None and not boxes:
        raise UsageError("split: only for a detector", hint="whose boxes [postprocess] describes")
    if rows is not None and target is not None:
        return evaluate_rows(known, Path(rows), target, device=device, root=root, progress=told)
    folder = Path(_given("images", images))
    if reads:
        return evaluate_text(known, folder, device=device, root=root, progress=told)
    if boxes:
        return evaluate_boxes(known, folder, split=split, device=device, root=root, progress=told)
    return by_classes(known, folder, device=device, root=root, progress=told)


@speaks_of_arguments
def quantize(
    model: File | None = None,
    images: File | None = None,
    *,
    out: File | None = None,
    stage: str | None = None,
    judge: File | None = None,
    snr_db: float | None = None,
    budget: float = 0.1,
    project: File | None = None,
    preprocess: Preprocess | None = None,
    progress: Told = NO_PROGRESS,
    **settings: Any,
) -> Result:
    """Convert a float model to 8-bit integers in the file `out`, calibrated on a folder of
    photos.

    It is validated on the photos in the folder `judge`, by default on one in four photos, which
    calibration does not use. `out` is `<model>.int8.onnx` beside the model by default. `snr_db`
    and `budget` (0.1 is 10 % of the work) are as the command's --snr and --budget.
    With `stage`, that stage's model is converted, calibrated on its crops of the photos; without,
    the first of models in a row (the command converts each).
    """
    from edgepack.flow.quantize import quantize_project
    from edgepack.flow.stages import find_stage

    known = project_from(
        "quantize", model, project=project, preprocess=preprocess, settings=settings
    )
    said = known.quantize
    photos = images if images is not None else said.images if said else None
    source = known.model if stage is None else find_stage(known, stage).model
    return quantize_project(
        known,
        Path(_given("images", photos)),
        Path(out) if out is not None else source.with_suffix(".int8.onnx"),
        stage=stage,
        judge=_path(judge) or (said.judge if said else None),
        snr_db=snr_db if snr_db is not None else said.snr_db if said else None,
        budget=budget,
        progress=make_progress(progress),
    )


@speaks_of_arguments
def compare(
    deployed: Deployment,
    model: File | None = None,
    *,
    inputs: Sequence[npt.ArrayLike] = (),
    project: File | None = None,
    preprocess: Preprocess | None = None,
    progress: Told = NO_PROGRESS,
    **settings: Any,
) -> Compared:
    """Compare each layer of a deployed model with the reference; `first` is the first layer that
    diverges.

    Give the same model, board and settings as for the deploy. `inputs` are arrays in the model's
    order, by default the smoke test's.
    """
    from edgepack.flow.compare import compare_layers

    known = project_from(
        "compare", model, project=project, preprocess=preprocess, settings=settings
    )
    return compare_layers(
        make_job(known),
        deployed.device,
        deployed.root,
        inputs=[np.asarray(one) for one in inputs],
        progress=make_progress(progress),
    )


@speaks_of_arguments
def tune(
    model: File | None = None,
    *,
    records: File = "tuning.jsonl",
    stage: str | None = None,
    minutes: int = 10,
    trials: int | None = None,
    emulated: bool = False,
    ssh: SshOptions | None = None,
    project: File | None = None,
    find_links: Places | None = None,
    progress: Told = NO_PROGRESS,
    **settings: Any,
) -> Tuned:
    """Find faster kernels for a model, timed on its `device`, and write them to the file
    `records`.

    `deploy(..., records=[...])` uses them. A virtual board is tuned by estimated cycles, or, as
    a demonstration with `emulated`, by its emulator's times. `find_links` is as for `deploy`.
    With `stage`, that stage's model is tuned; without, the first of models in a row (the command
    tunes each).
    """
    from edgepack.tuning.run import tune_job

    known = project_from("tune", model, project=project, settings=settings)
    with wheels_from(find_links), ExitStack() as stack:
        job = make_job(known)
        return tune_job(
            job if stage is None else stack.enter_context(stage_job(job, stage)),
            Path(records),
            minutes=minutes,
            trials=trials,
            emulated=emulated,
            ssh=ssh,
            progress=make_progress(progress),
        )


@speaks_of_arguments
def package(
    model: File | None = None,
    *,
    out: File = "dist",
    format: str = "tar",
    sign: File | None = None,
    options: formats.Options | None = None,
    project: File | None = None,
    preprocess: Preprocess | None = None,
    find_links: Places | None = None,
    progress: Told = NO_PROGRESS,
    **settings: Any,
) -> PackedBundle:
    """Make a bundle in the folder `out`, and a file to install it from, of the `format` "tar",
    "deb", "oci", "mender", "rauc" or "android-lib". `sign` is a private key; `find_links` is as
    for `deploy`.
    """
    options = options or formats.Options()
    formats.check(format, options)
    known = project_from(
        "package", model, project=project, preprocess=preprocess, settings=settings
    )
    formats.check_board(format, board_of(known))
    with wheels_from(find_links):
        job = make_job(known)
        bundle = package_job(job, Path(out), progress=make_progress(progress))
    if sign is not None:
        check_version(bundle, Path(sign))
        sign_folder(bundle, Path(sign))
        note_version(bundle, Path(sign))
    made = formats.write_package(format, bundle, job.board, Path(out), options)
    return PackedBundle(bundle=bundle, file=made.path, sha256=made.sha256, use=made.use)


@speaks_of_arguments
def publish_apt(
    folder: File,
    *,
    key: str,
    add: File | Sequence[File] = (),
    phase: int | None = None,
    stop: bool = False,
    packages: Sequence[str] = (),
    keep: int | None = None,
    valid_days: int | None = None,
) -> Repository:
    """Put Debian packages of `package` into a repository of static files, and sign its indices.

    `phase` is the percentage of devices that gets the packages, or without any the newest versions;
    `stop` takes these out. Both are for all packages, or for those called `packages`.
    """
    from edgepack.formats import apt_repository

    change = apt_repository.Change(
        key=key,
        add=_files("add", add),
        phase=phase,
        withdraw=stop,
        only=packages,
        keep=keep,
        valid_days=valid_days,
    )
    return apt_repository.publish(Path(folder), change)


@speaks_of_arguments
def publish_oci(
    name: str, bundles: Sequence[Bundle], *, pem_key: File | None = None
) -> PublishedImages:
    """Push an image of each bundle to an OCI registry under one `name`, with skopeo.

    `pem_key` is an EC private key that signs them, in cosign's format.
    """
    from edgepack.formats import registry

    by_board = {bundle.manifest.board: bundle for bundle in bundles}
    if len(by_board) != len(bundles):
        raise UsageError("bundles: two are for one board")
    boards = {board: get_board(board) for board in by_board}
    return registry.publish(by_board, boards, name.removeprefix("oci://"), _path(pem_key))


@speaks_of_arguments
def publish_mender(
    url: str,
    add: File,
    *,
    group: str | None = None,
    all_devices: bool = False,
    phases: Sequence[int] = (),
    phase_hours: float = 24.0,
    token_file: File | None = None,
    ca_file: File | None = None,
) -> MenderPublished:
    """Upload an artifact of `package` to a Mender server, and deploy it to whom is named.

    `phases` are percentages that rise to 100. The token is in a file that only you can read, or in
    $MENDER_TOKEN. What is there already is left alone.
    """
    from edgepack.formats import mender_server

    deployment = None
    if group is not None or all_devices:
        if group is not None and all_devices:
            raise UsageError("group and all_devices do not go together")
        deployment = mender_server.MenderDeployment(
            group=group, phases=_phases(phases), hours=phase_hours
        )
    elif phases:
        raise UsageError("phases: of whom?", hint="group or all_devices")
    artifact = mender_server.read_artifact(Path(add))
    return mender_server.publish(_mender(url, token_file, ca_file), artifact, deployment)


@speaks_of_arguments
def stop_mender(
    url: str,
    add: File,
    *,
    group: str | None = None,
    token_file: File | None = None,
    ca_file: File | None = None,
) -> MenderStopped:
    """Abort the deployment of an artifact to a group, or to all devices, on a Mender server."""
    from edgepack.formats import mender_server

    artifact = mender_server.read_artifact(Path(add))
    return mender_server.stop(_mender(url, token_file, ca_file), artifact, group)


@speaks_of_arguments
def publish_hawkbit(
    url: str,
    add: File,
    *,
    targets: str | None = None,
    phases: Sequence[int] = (),
    success: int = 100,
    max_failed: int = 1,
    user: str | None = None,
    token_file: File | None = None,
    ca_file: File | None = None,
) -> HawkbitPublished:
    """Upload a file of `package` to a hawkBit server, and roll it out to `targets`, a filter.

    The next of the `phases` begins when `success` percent of one have succeeded; at `max_failed`
    percent of failures all pauses. The token, or with `user` the password, is in a file that only
    you can read, or in $HAWKBIT_TOKEN. What is there already is left alone.
    """
    from edgepack.formats import hawkbit

    rollout = None
    if targets is not None:
        for name, value in (("success", success), ("max_failed", max_failed)):
            if not 1 <= value <= 100:
                raise UsageError(f"{name}: {value} is not between 1 and 100")
        rollout = hawkbit.HawkbitRollout(
            targets=targets,
            phases=_phases(phases) or (100,),
            success=success,
            max_failed=max_failed,
        )
    elif phases:
        raise UsageError("phases: of whom?", hint="targets")
    package = hawkbit.read_package(Path(add))
    return hawkbit.publish(_hawkbit(url, user, token_file, ca_file), package, rollout)


@speaks_of_arguments
def stop_hawkbit(
    url: str,
    add: File,
    *,
    user: str | None = None,
    token_file: File | None = None,
    ca_file: File | None = None,
) -> HawkbitStopped:
    """Stop the rollout of a file on a hawkBit server; one that stops none pauses it."""
    from edgepack.formats import hawkbit

    package = hawkbit.read_package(Path(add))
    return hawkbit.stop(_hawkbit(url, user, token_file, ca_file), package)


def _mender(url: str, token_file: File | None, ca_file: File | None) -> Server:
    from edgepack.formats.rest import open_server

    return open_server(
        url, token_file=_path(token_file), variable="MENDER_TOKEN", ca_file=_path(ca_file)
    )


def _hawkbit(url: str, user: str | None, token_file: File | None, ca_file: File | None) -> Server:
    from edgepack.formats.rest import open_server

    return open_server(
        url,
        token_file=_path(token_file),
        variable="HAWKBIT_TOKEN",
        user=user,
        ca_file=_path(ca_file),
    )


def _phases(phases: Sequence[int]) -> tuple[int, ...]:
    """Percentages that rise to 100, if there are any."""
    given = tuple(phases)
    if given and (list(given) != sorted(set(given)) or given[0] < 1 or given[-1] != 100):
        raise UsageError(f"phases: {list(given)} does not rise from at least 1 to 100")
    return given


@contextmanager
def watch_fleet(fleet: Fleet, model: str, *, port: int = 0) -> Iterator[str]:
    """Serve a live page of the rollout of `model` in `fleet`; gives its address.

    Only this machine can open it, with that address. Port 0 is any that is free.
    """
    from edgepack.fleet import make_plan
    from edgepack.fleet.journals import shards_of
    from edgepack.fleet.watch import watch_page
    from edgepack.fleet.watched import Watched

    path = fleet.journal(model)
    watched = Watched(make_plan(fleet.devices, fleet.settings), [path, *shards_of(path)])
    ended = threading.Event()

    def read() -> None:
        watched.read()
        while not ended.wait(0.5):
            watched.read()

    reader = threading.Thread(target=read, daemon=True)
    with watch_page(port, f"{model} to {fleet.name}", watched) as address:
        reader.start()
        try:
            yield address
        finally:
            ended.set()
            reader.join()


def _path(file: File | None) -> Path | None:
    return None if file is None else Path(file)


def _files(name: str, files: object) -> list[Path]:
    """Paths of photos: none, one, or what gives several."""
    alone = (str, bytes, os.PathLike, io.IOBase, np.ndarray, Mapping)
    if files is None:
        return []
    is_list = isinstance(files, Iterable) and not isinstance(files, alone)
    found: list[Any] = list(cast("Iterable[Any]", files)) if is_list else [files]
    for one in found:
        check_path(name, one)
    return [Path(one) for one in found]


def _given(name: str, value: File | None) -> File:
    if value is None:
        raise UsageError(f"{name}: not given", hint="a folder of photos")
    return value
