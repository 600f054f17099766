"""A model on a device as an object: what notebooks and scripts use.

with edgepack.deploy("m.onnx", board="rasp3b", device="pi@192.168.1.20") as deployed:
    (scores,) = deployed.run("cat.jpg")
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from edgepack.base import page
from edgepack.base.arguments import speaks_of_arguments
from edgepack.base.closing import Closing
from edgepack.base.errors import ConnectError, ModelError, UsageError
from edgepack.base.paths import cache_dir, default_root
from edgepack.base.progress import NO_PROGRESS, Progress, make_progress
from edgepack.base.text import milliseconds
from edgepack.boards import Board, get_board, version_tuple
from edgepack.bundle.bundle import Bundle
from edgepack.bundle.manifest import MANIFEST_NAME, SourceModel, Tensor, parse_manifest
from edgepack.bundle.signing import sign_folder
from edgepack.deploy import remote_tool
from edgepack.deploy.act import deploy_and_start
from edgepack.deploy.answers import SenselessError, Status, Switched
from edgepack.deploy.app_answers import AppAnswer, Bench, Class, Profile, class_bars, emulated_mark
from edgepack.deploy.deploy import Report
from edgepack.deploy.options import DEFAULT_OPTIONS, DeployOptions
from edgepack.deploy.remote_app import TENSORS, RunRequest, ask_app, need_release
from edgepack.deploy.remote_pictures import fetch_pictures
from edgepack.deploy.remote_service import need_service
from edgepack.deploy.remote_tool import Layout
from edgepack.deploy.trial import TrialStatus
from edgepack.device import Device, RemoteTimeout, SshOptions, open_device
from edgepack.device.facts import gather
from edgepack.device.options import COMMAND_TIMEOUT_S
from edgepack.device.patience import Patience
from edgepack.flow.arguments import Preprocess, project_from
from edgepack.flow.job import Job, board_of, make_job, needed_gpu, package_job
from edgepack.flow.photos import is_image, is_photo, save_png
from edgepack.flow.project import Project
from edgepack.flow.session import Session
from edgepack.gate.gate import GateError, needs_opencl, title_of
from edgepack.gate.profile import profile_problems
from edgepack.native.wheel_places import Places, wheels_from

if TYPE_CHECKING:
    from PIL import Image

Array = npt.NDArray[Any]
_ALIVE_S = 20.0


class Outputs(Sequence[Array]):
    """The output arrays of a run, in the order of the model's outputs.

    `names` are the names of the outputs. `top` has the best classes, if the only output is a
    vector of scores. `times_ms` has the time of each step on the device, or on an emulator if
    `emulated` is set.
    """

    def __init__(self, arrays: Sequence[Array], names: Sequence[str], answer: AppAnswer) -> None:
        self._arrays = tuple(arrays)
        self.names: tuple[str, ...] = tuple(names)
        self.top: tuple[Class, ...] = answer.top
        self.times_ms: Mapping[str, float] = answer.times_ms
        self.emulated = answer.emulated

    @overload
    def __getitem__(self, index: int) -> Array: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Array]: ...

    def __getitem__(self, index: int | slice) -> Array | Sequence[Array]:
        return self._arrays[index]

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        named = zip(self.names, self._arrays, strict=True)
        shown = ", ".join(f"{name}: {array.dtype} {array.shape}" for name, array in named)
        best = [f"; best {one.label or one.index} {one.score:.4f}" for one in self.top[:1]]
        return f"<Outputs {shown}{''.join(best)}>"

    def _repr_html_(self) -> str:
        rows = [
            (name, str(array.dtype), str(array.shape))
            for name, array in zip(self.names, self._arrays, strict=True)
        ]
        mark = emulated_mark(self.emulated)
        times = {name: milliseconds(time) + mark for name, time in self.times_ms.items()}
        return page.embed_parts(
            page.table(rows, ("output", "dtype", "shape")), class_bars(self.top), page.facts(times)
        )


class Deployment(Closing):
    """A model that is deployed on a device, as returned by `deploy` and `connect`.

    As a context manager, it closes the connection at the end; the release stays. `device` is the
    connection, `root` the folder on the device, and `report` the deploy's report (None after
    `connect`). `service` describes the service that the deploy started (None without one):
    "service" (its name), "kind", "root" and "account".
    """

    def __init__(
        self,
        device: Device,
        root: str,
        report: Report | None = None,
        service: Mapping[str, Any] | None = None,
    ) -> None:
        self.device = device
        self.root = root
        self.report = report
        self.service = service
        self._model: SourceModel | None = None

    def close(self) -> None:
        """Let go of the connection."""
        self.device.close()

    @overload
    def run(
        self,
        data: list[str] | list[Path] | list[str | Path] | list[Image.Image],
        *,
        color: str | None = ...,
        top: int | None = ...,
        threads: int | None = ...,
        affinity: str | None = ...,
        timeout_s: float | None = ...,
    ) -> list[Outputs]: ...

    @overload
    def run(
        self,
        data: str | Path | Image.Image | npt.ArrayLike | Mapping[str, npt.ArrayLike],
        *,
        color: str | None = ...,
        top: int | None = ...,
        threads: int | None = ...,
        affinity: str | None = ...,
        timeout_s: float | None = ...,
    ) -> Outputs: ...

    def run(
        self,
        data: Any,
        *,
        color: str | None = None,
        top: int | None = None,
        threads: int | None = None,
        affinity: str | None = None,
        timeout_s: float | None = None,
    ) -> Outputs | list[Outputs]:
        """Run the current release on the device, and return its outputs.

        `data` is a photo (a path or a Pillow image), which the release preprocesses; or the
        input itself: an array of its shape (and of its dtype, or one that numpy casts to it as
        "same_kind"), or a .npy or .raw file. A model with several inputs takes a mapping of
        names to arrays. With `color`, an array is a camera's picture: uint8, (height, width, 3)
        for "rgb" and "bgr", (height, width) for "gray". For a list or iterator of photos, `run`
        returns a list. `top` is the number of classes to return (default: 5 if the only output is
        a vector of scores), `threads` is 1 to 64 (default: the cores of the fastest kind), and
        `affinity` is "big", "little", "all", "none" or CPU numbers such as "0,2-3".

        Raises ModelError if an array does not fit its input, UsageError if there is no such photo,
        and what `run_on_device` raises.
        """
        options = _words(top=top, threads=threads, affinity=affinity)
        if isinstance(data, Iterator):  # as of a generator, or of Path.glob
            data = list(data)
        if isinstance(data, list | tuple) and all(is_photo(one, color) for one in data):
            return [self._run(one, color, options, timeout_s) for one in data]
        return self._run(data, color, options, timeout_s)

    def _run(
        self, data: object, color: str | None, options: tuple[str, ...], timeout_s: float | None
    ) -> Outputs:
        model = self._source_model()
        with tempfile.TemporaryDirectory(prefix="edgepack-") as name:
            folder = Path(name)
            outputs = tuple(folder / f"output{i}.npy" for i in range(len(model.outputs)))
            image, inputs = _as_files(data, model.inputs, folder, color)
            answer = ask_app(
                self.device,
                self.root,
                RunRequest(
                    image=image,
                    inputs=inputs,
                    outputs=outputs,
                    options=options,
                    timeout_s=timeout_s,
                ),
            )
            arrays = [_load(path, self.device.name) for path in outputs]
        return Outputs(arrays, [output.name for output in model.outputs], answer)

    def session(
        self,
        *,
        top: int | None = None,
        threads: int | None = None,
        affinity: str | None = None,
        timeout_s: float = COMMAND_TIMEOUT_S,
    ) -> Session:
        """Start the release's app and keep it running, so that many photos need only one loading
        of the model.

            with deployed.session() as session:
                for seen in session.stream(camera, color="bgr"):
                    print(seen.top)

        A session takes only photos, and does not return the output arrays. `timeout_s` limits
        the time of one photo; the other arguments are as for `run`.
        """
        words = _words(top=top, threads=threads, affinity=affinity)
        return Session(self.device, self.root, words, timeout_s=timeout_s)

    def bench(
        self,
        *,
        runs: int = 20,
        warmup: int = 3,
        threads: int | None = None,
        affinity: str | None = None,
    ) -> Bench:
        """Time `runs` runs on the release's test input, after `warmup` runs that are not timed.

        Raises what `run_on_device` raises.
        """
        answer = self._measure(runs, warmup, _words(threads=threads, affinity=affinity))
        if answer.bench is None:
            raise SenselessError(f"{self.device.name}: edgepack-run measured nothing")
        return answer.bench

    def profile(
        self,
        *,
        runs: int = 20,
        warmup: int = 3,
        threads: int | None = None,
        affinity: str | None = None,
    ) -> Profile:
        """Time the runs as `bench` does, layer by layer."""
        words = _words(threads=threads, affinity=affinity)
        answer = self._measure(runs, warmup, (*words, "--profile"))
        if answer.profile is None:
            raise SenselessError(f"{self.device.name}: edgepack-run measured nothing")
        return answer.profile

    def status(self) -> Status:
        """Return the current release, since when and by whom it is current, the result of its
        test, and the source of its model."""
        return remote_tool.status_with_source(self.device, self.root)

    def rollback(self, *, to: str | None = None) -> Switched:
        """Make the previous release, or the release `to`, current again, and test it.

        Raises RemoteError if there is no such release, SmokeTestError if its test fails.
        """
        self._model = None
        return remote_tool.rollback(self.device, self.root, to=to)

    def trial_status(self) -> TrialStatus:
        """Return how the last trial goes, or how it ended: of a release that was deployed with
        `DeployOptions(trial=TrialRules())`.

        This and the other functions about trials raise RemoteError if there is none.
        """
        return remote_tool.trial(self.device, self.root, "status")

    @speaks_of_arguments
    def trial_pictures(self, folder: str | Path) -> list[Path]:
        """Copy the pictures that `keep_disagreements` of the rules kept to `folder`, with both
        answers to each as a .json file beside it, and return their paths."""
        answer = self.trial_status()
        return fetch_pictures(self.device, self.root, answer, Path(folder))

    def stop_trial(self) -> TrialStatus:
        """End the trial without a decision."""
        return remote_tool.trial(self.device, self.root, "stop")

    def activate_trial(self) -> TrialStatus:
        """End the trial, and make its release current, with its test and a way back."""
        self._model = None
        return remote_tool.trial(self.device, self.root, "activate")

    def resume_trial(self) -> TrialStatus:
        """Continue a trial that a reboot has interrupted."""
        return remote_tool.trial(self.device, self.root, "resume")

    def __repr__(self) -> str:
        release = f" release {self.report.release}" if self.report else ""
        return f"<Deployment {self.root}{release} on {self.device.name}>"

    def _repr_html_(self) -> str:
        if self.report is not None:
            return self.report._repr_html_()
        return page.embed_parts(page.facts({"device": self.device.name, "folder": self.root}))

    def _measure(self, runs: int, warmup: int, words: Sequence[str]) -> AppAnswer:
        options = ("--bench", str(runs), "--warmup", str(warmup), *words)
        return ask_app(self.device, self.root, RunRequest(golden=True, options=options))

    def _source_model(self) -> SourceModel:
        """The inputs and outputs of the release that is current, by its manifest."""
        if self._model is None:
            need_release(self.device, Layout.of(self.root).root)
            with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
                file = Path(folder) / MANIFEST_NAME
                self.device.get(f"{Layout.of(self.root).root}/current/{MANIFEST_NAME}", file)
                self._model = parse_manifest(file.read_bytes()).model
        return self._model


@speaks_of_arguments
def deploy(
    model: str | Path | None = None,
    *,
    board: str | None = None,
    device: str | None = None,
    project: str | Path | None = None,
    preprocess: Preprocess | None = None,
    ssh: SshOptions | None = None,
    options: DeployOptions = DEFAULT_OPTIONS,
    sign: str | Path | None = None,
    service: bool = False,
    find_links: Places | None = None,
    progress: Progress | Callable[[str], object] = NO_PROGRESS,
    **settings: Any,
) -> Deployment:
    """Compile a model for a board, install and test it on a device, and stay connected.

    `device` is as for `open_device`: "pi@192.168.1.20", an alias of the OpenSSH configuration,
    "adb:SERIAL", "virtual" or "local". `project` is an edgepack.toml; the other arguments
    override its values. `preprocess` is a preset's name ("torchvision-imagenet"), adapted to the
    model's input as by `edgepack init`, a table as in edgepack.toml, or a spec. Without it, the
    test uses random inputs, and the model takes only arrays. `settings` are further fields of
    `Project`: `name`, `labels`, `golden_image`, `expected_class` (a number, or a label),
    `shapes`, `root` and so on. `sign` is a private key. With `service` the release runs now and
    at each boot, as the project's [service] table says. `find_links` is a folder, or the URL of
    a page, with wheels of programs that edgepack would otherwise build from source, or a list of
    these. `progress` is called at each step: a function of one text, such as `print`, or a
    `Progress`.

    Raises the errors of `load_project`, `make_job`, `package_job`, `open_device` and
    `deploy_bundle`, `OtherModelError` if the release would replace another model, and
    `NoServiceError` for `service` without that table.
    """
    told = make_progress(progress)
    settings |= {"board": board, "device": device}
    known = project_from("deploy", model, project=project, preprocess=preprocess, settings=settings)
    spec = known.need_device()

    if service:
        need_service(known.service, f"project {known.name}")
    connection = Connection(
        lambda profile, opencl: reach_device(
            spec, profile, ssh=ssh, retries=options.retries, opencl=opencl, progress=told
        )
    )
    try:
        key = Path(sign) if sign is not None else None
        with wheels_from(find_links):
            bundle, profile = build_bundle(known, connection, sign=key, progress=told)
        root = root_of(known)
        options = replace(options, new_version=options.new_version or sign is not None)
        remote = connection.to(profile, opencl=needs_opencl(bundle))
        deployed = deploy_and_start(
            bundle, remote, root, options=options, service=service, progress=told
        )
    except BaseException:
        connection.close()
        raise
    return Deployment(remote, root, deployed.report, deployed.service)


@speaks_of_arguments
def connect(
    device: str,
    *,
    name: str | None = None,
    root: str | None = None,
    board: str = "local",
    boards: Sequence[str | Path] = (),
    ssh: SshOptions | None = None,
    progress: Progress | Callable[[str], object] = NO_PROGRESS,
) -> Deployment:
    """Return the `Deployment` of the model called `name`, or in the folder `root`, on a device.

    `board` is only needed for the device "virtual", and `boards` for your own board profiles.
    Raises UsageError without a name and a root, and the errors of `open_device`.
    """
    folder = root or (default_root(name) if name else None)
    if folder is None:
        raise UsageError("which deployed model?", hint="give name or root")
    profile = get_board(board, [Path(file) for file in boards])
    told = make_progress(progress)
    return Deployment(open_device(device, profile, options=ssh, progress=told), folder)


def root_of(project: Project) -> str:
    """The project's folder on a device."""
    return project.root or default_root(project.name)


class Connection:
    """The device of a deploy, which is connected to once, when it is first asked for."""

    def __init__(self, connect: Callable[[Board, bool], Device]) -> None:
        self._connect = connect
        self._device: Device | None = None

    def to(self, board: Board, *, opencl: bool = False) -> Device:
        """The connected device, which is a `board`; a virtual one has a driver of OpenCL if
        `opencl`.

        A link that was lost meanwhile, while a model was compiled for one, is made again.
        """
        if self._device is None:
            self._device = self._connect(board, opencl)
            return self._device
        try:
            self._device.run("true", timeout_s=_ALIVE_S)
        except (ConnectError, RemoteTimeout):
            self._device.reconnect()
        return self._device

    def close(self) -> None:
        """Let go of the device, if there is one."""
        if self._device is not None:
            self._device.close()


def build_bundle(
    project: Project,
    connection: Connection,
    *,
    sign: Path | None = None,
    progress: Progress = NO_PROGRESS,
) -> tuple[Bundle, Board]:
    """The project's bundle, made in the cache, and its board.

    The device is asked before that only if the board leaves open which C library it has, and for
    what runs on a GPU alone: whether its driver is there and takes what will be made. Raises what
    `make_job`, `package_job`, `sign_folder` and connecting raise, and `GateError`.
    """
    board = board_of(project)
    if board.libc == "any" and project.static is None:
        project = fit_libc(project, board, connection.to(board))
    job = make_job(project)
    _check_gpu(job, connection)
    bundle = package_job(job, cache_dir() / "made" / job.board.name, progress=progress)
    if sign is not None:
        sign_folder(bundle, sign)
    return bundle, job.board


def _check_gpu(job: Job, connection: Connection) -> None:
    gpu = needed_gpu(job)
    if gpu is None:
        return
    device = connection.to(job.board, opencl=gpu.api == "opencl")
    facts = gather(device, Layout.of(root_of(job.project)).root)
    glibc = job.toolchain.toolchain.glibc
    if problems := [*profile_problems(job.board, glibc, facts, gpu)]:
        name = f"{job.project.name} for {job.board.name}"
        raise GateError(name, title_of(facts), problems)


def fit_libc(project: Project, board: Board, device: Device) -> Project:
    """With static programs if the board leaves it open and the device has no glibc, or too old."""
    if board.libc != "any" or project.static is not None:
        return project
    glibc = gather(device, root_of(project)).glibc
    if glibc is not None and version_tuple(glibc) >= version_tuple(board.glibc):
        return project
    return replace(project, static=True)


def reach_device(
    spec: str,
    board: Board,
    *,
    ssh: SshOptions | None,
    retries: int,
    opencl: bool = False,
    progress: Progress = NO_PROGRESS,
) -> Device:
    """`open_device`, and again if nobody answered, unless `retries` is 0."""
    # Whoever does not answer twice has the wrong address more often than a bad link.
    patience = Patience(min(retries, 1), progress)
    while True:
        try:
            return open_device(spec, board, options=ssh, opencl=opencl, progress=progress)
        except ConnectError as error:
            patience.after(error, moved=False)


def _words(**options: object) -> tuple[str, ...]:
    """Options of edgepack-run, those that are given."""
    given = [(name, value) for name, value in options.items() if value is not None]
    return tuple(word for name, value in given for word in (f"--{name}", str(value)))


def _as_files(
    data: object, wanted: Sequence[Tensor], folder: Path, color: str | None
) -> tuple[Path | None, tuple[Path, ...]]:
    """The photo, or one file for each of the inputs `wanted`."""
    if isinstance(data, str | Path):
        path = Path(data)
        return (None, (path,)) if path.suffix.lower() in TENSORS else (path, ())
    photo = folder / "photo.png"
    if is_image(data):
        data.save(photo)
        return photo, ()
    if color is not None:
        save_png(data, color, photo)
        return photo, ()
    files = []
    for index, (tensor, array) in enumerate(_matched(data, wanted)):
        files.append(folder / f"input{index}.npy")
        np.save(files[-1], array.astype(tensor.dtype))
    return None, tuple(files)


def _matched(data: object, wanted: Sequence[Tensor]) -> Iterator[tuple[Tensor, Array]]:
    """Each input with its array, which fits."""
    names = [tensor.name for tensor in wanted]
    given = data if isinstance(data, Mapping) else {names[0]: data}
    if given.keys() != set(names):
        raise ModelError(
            f"the model's inputs are {', '.join(names)}; given: {', '.join(map(str, given))}",
            hint="arrays by their names: run({name: array, ...})",
        )
    for tensor in wanted:
        array: Array = np.asarray(given[tensor.name])
        if array.shape != tensor.shape or not np.can_cast(array.dtype, tensor.dtype, "same_kind"):
            is_array = array.dtype.kind in "biufc"
            what = f"the array is {array.dtype} {array.shape}" if is_array else "given is "
            what += "" if is_array else f"{type(given[tensor.name]).__name__}, which is no array"
            raise ModelError(
                f"input '{tensor.name}' is {tensor.dtype} {tensor.shape}, {what}",
                hint="for a photo, give its path, a Pillow image, or pixels and their color: "
                'run(array, color="bgr")',
            )
        yield tensor, array


def _load(path: Path, device: str) -> Array:
    try:
        array: Array = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise SenselessError(f"{device}: edgepack-run: not a .npy file: {error}") from None
    return array
