"""`edgepack deploy`: from a model, or a bundle made before, to a tested release on a device."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from dataclasses import replace
from pathlib import Path

from edgepack.base.errors import UsageError
from edgepack.base.paths import NotCachedError, default_root, only_cached
from edgepack.boards import Board, get_board
from edgepack.bundle.bundle import Bundle, open_bundle
from edgepack.bundle.signing import sign_folder
from edgepack.cli.console import Console
from edgepack.cli.options import (
    add_device,
    add_job,
    add_release_version,
    add_sign,
    board_files,
    count,
    positive,
    project_of,
    ssh_options,
)
from edgepack.cli.pages import add_html, check_html, deploy_page, save
from edgepack.cli.report import deploy_lines, dry_run_lines
from edgepack.deploy import remote_service
from edgepack.deploy.deploy import DEFAULT_OPTIONS, DeployOptions, deploy_bundle, preview
from edgepack.device import Device
from edgepack.device.patience import parse_rate
from edgepack.flow.deployment import build_bundle, fit_libc, reach_device, root_of
from edgepack.flow.dry_run import look
from edgepack.flow.job import board_of, make_job, package_job
from edgepack.gate.gate import GateError, check_bundle


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_job(parser)
    add_release_version(parser)
    add_sign(parser)
    add_device(parser)
    parser.add_argument(
        "--bundle", type=Path, metavar="PATH", help="deploy this folder or tarball instead"
    )
    parser.add_argument(
        "-n",
        "--dry-run",
        action="store_true",
        help="ask the device and print the plan; nothing is built, and nothing written there",
    )
    add_transfer(parser)
    add_html(parser)
    parser.set_defaults(run=run)


def add_transfer(parser: argparse.ArgumentParser) -> None:
    """How the bundle gets there, and what the device shall take."""
    parser.add_argument(
        "--keep",
        type=positive,
        default=DEFAULT_OPTIONS.keep,
        metavar="N",
        help=f"releases that stay on the device (default: {DEFAULT_OPTIONS.keep})",
    )
    parser.add_argument(
        "--signers",
        type=Path,
        metavar="FILE",
        help="allowed signers, as ssh-keygen(1) has them, to pin on a device that has none yet",
    )
    parser.add_argument(
        "--allow-downgrade",
        action="store_true",
        help="activate a lower version than the device has had, although it has signers pinned",
    )
    parser.add_argument(
        "--limit-rate",
        type=rate,
        metavar="BYTES",
        help="per second, at most, for example 200k or 1M",
    )
    parser.add_argument(
        "--retries",
        type=count,
        default=DEFAULT_OPTIONS.retries,
        metavar="N",
        help="how often a lost link is tried again without progress "
        f"(default: {DEFAULT_OPTIONS.retries})",
    )
    parser.add_argument(
        "--wait",
        type=count,
        default=int(DEFAULT_OPTIONS.wait_s),
        metavar="S",
        help="seconds to wait for another deploy to the same folder "
        f"(default: {DEFAULT_OPTIONS.wait_s:.0f})",
    )
    parser.add_argument(
        "--service",
        action="store_true",
        help="then have it run, now and at each boot, as its [service] table says: see "
        "`edgepack service install`",
    )


def rate(text: str) -> float:
    """The type of --limit-rate."""
    value = parse_rate(text)
    if value is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a rate such as 200k or 1.5M")
    return value


def deploy_options(args: argparse.Namespace) -> DeployOptions:
    """What `add_transfer`'s options say; raises UsageError for a file that is not there."""
    if args.signers is not None and not args.signers.is_file():
        raise UsageError(f"--signers: no such file: {args.signers}")
    return DeployOptions(
        keep=args.keep,
        wait_s=args.wait,
        retries=args.retries,
        answer_s=args.device_timeout,
        limit_bytes_s=args.limit_rate,
        allow_downgrade=args.allow_downgrade,
        signers=args.signers,
    )


def run(args: argparse.Namespace, console: Console) -> int:
    """Deploy and print what was done and what the smoke test gave."""
    options = deploy_options(args)
    check_html(args)
    if args.dry_run and args.bundle is None:
        return _dry_run(args, options, console)
    bundle, board, spec, root = _bundle(args, console)
    if args.service:
        remote_service.need_service(bundle.manifest.service, f"bundle {bundle.manifest.name}")
    device = _connect(args, spec, board, console)
    try:
        if args.dry_run:
            steps = preview(bundle, device, root, options=options)
            lines = steps.lines() + (["service  run it, now and at each boot"] * args.service)
            console.data(steps.to_dict(), _plan_text(bundle, device.name, lines))
            return 0
        report = deploy_bundle(bundle, device, root, options=options, progress=console)
        data, lines = report.to_dict(), deploy_lines(report, bundle.manifest.name)
        if args.service:
            console.step(f"release {report.release} is current; starting it as a service")
            data["service"] = started = remote_service.install(
                device, root, wanted=bundle.manifest.service
            )
            lines.append(
                f"service   {started['service']}, now and at each boot ({started['kind']})"
            )
    finally:
        device.close()
    save(args, console, deploy_page(report, bundle))
    console.data(data, "\n".join(lines))
    return 0


def _dry_run(args: argparse.Namespace, options: DeployOptions, console: Console) -> int:
    """What is known without building; all of the plan if a build before left its parts."""
    project = project_of(args)
    spec = project.need_device()
    root = root_of(project)
    if args.service:
        remote_service.need_service(project.service, f"project {project.name}")
    board = board_of(project)
    device = None if _is_down(spec, board) else _connect(args, spec, board, console)
    try:
        if device is not None:
            project = fit_libc(project, board, device)
        job = make_job(project)
        found = look(job, device, root, device.name if device else f"virtual {job.board.name}")
        if device is not None and found.is_cached and not found.problems:
            with (
                tempfile.TemporaryDirectory(prefix="edgepack-") as folder,
                contextlib.suppress(NotCachedError),  # what it was compared on, before
                only_cached(),
            ):
                bundle = package_job(job, Path(folder), progress=console)
                if args.sign is not None:
                    sign_folder(bundle, args.sign)
                found = replace(found, plan=preview(bundle, device, root, options=options))
    finally:
        if device is not None:
            device.close()
    lines = dry_run_lines(found) + ["service   run it, now and at each boot"] * args.service
    console.data(found.to_dict(), "\n".join([f"{project.name} to {found.device}:", *lines]))
    return GateError.exit_code if found.problems else 0


def _is_down(spec: str, board: Board) -> bool:
    """Whether the device is a virtual board that would have to be started, or even made."""
    if spec != "virtual" or board.is_local:
        return False
    from edgepack.virtual import list_running

    return all(running.name != board.name for running in list_running())


def _bundle(args: argparse.Namespace, console: Console) -> tuple[Bundle, Board, str, str]:
    """The bundle, made or opened, its board, the device's address and the folder there."""
    if args.bundle is None:
        project = project_of(args)
        spec = project.need_device()
        bundle, board = build_bundle(
            project,
            lambda board: _connect(args, spec, board, console),
            sign=args.sign,
            progress=console,
        )
        return bundle, board, spec, root_of(project)
    refuse_job(args)
    if args.device is None:
        raise UsageError("no device given", hint="add --device user@address")
    bundle = open_bundle(args.bundle)
    board = get_board(args.board or bundle.manifest.board, board_files(args))
    check_bundle(bundle, board)
    return bundle, board, args.device, args.root or default_root(bundle.manifest.name)


def refuse_job(args: argparse.Namespace) -> None:
    """Raise UsageError for options that make a bundle, beside --bundle."""
    if args.model is not None or args.project is not None:
        raise UsageError("--bundle goes without a model and without --project")
    made_with = (
        "name",
        "toolchain",
        "static",
        "optimize",
        "precision",
        "shape",
        "set",
        "release_version",
        "verify",
        "compile_memory_mb",
        "compile_cpu_s",
    )
    if any(getattr(args, name) not in (None, []) for name in made_with):
        raise UsageError(
            "--bundle goes without --name, --toolchain, --static, --optimize, --precision, "
            "--shape, --set, --release-version, --verify and --compile-...: it is made"
        )
    if args.sign is not None:
        raise UsageError("--bundle goes without --sign", hint="edgepack sign BUNDLE --key KEY")


def _connect(args: argparse.Namespace, spec: str, board: Board, console: Console) -> Device:
    return reach_device(spec, board, ssh=ssh_options(args), retries=args.retries, progress=console)


def _plan_text(bundle: Bundle, device: str, lines: list[str]) -> str:
    head = f"{bundle.manifest.name}, release {bundle.manifest.release}, to {device}:"
    return "\n".join([head, *lines])
