"""What `edgepack deploy` does; its options are in `edgepack.cli.deploy`."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from edgepack.base.errors import EdgepackError, UsageError
from edgepack.base.paths import NotCachedError, default_root, only_cached
from edgepack.boards import Board, get_board
from edgepack.bundle.bundle import Bundle, open_bundle
from edgepack.bundle.signing import sign_folder
from edgepack.cli.console import Console
from edgepack.cli.options import board_files, project_of, ssh_options
from edgepack.cli.pages import check_html, save
from edgepack.cli.pages.deploy import deploy_page
from edgepack.cli.result_lines import deploy_lines, dry_run_lines
from edgepack.cli.transfer import deploy_options, refuse_job
from edgepack.cli.trial_options import trial_rules
from edgepack.deploy import remote_service, remote_tool
from edgepack.deploy.act import deploy_and_start, need_service_of
from edgepack.deploy.answers import Status
from edgepack.deploy.deploy import preview
from edgepack.deploy.options import DeployOptions
from edgepack.deploy.other_model import check_same_model
from edgepack.device import Device
from edgepack.flow.deployment import Connection, build_bundle, fit_libc, reach_device, root_of
from edgepack.flow.dry_run import look
from edgepack.flow.job import board_of, make_job, package_job
from edgepack.gate.gate import GateError, check_bundle, needs_opencl


def run_deploy(args: argparse.Namespace, console: Console) -> int:
    """Deploy and print what was done and what the smoke test gave."""
    options = replace(deploy_options(args), trial=trial_rules(args))
    check_html(args)
    if args.dry_run and args.bundle is None:
        return _dry_run(args, options, console)
    spec, make = _what(args, console)
    with contextlib.closing(Connection(partial(_connect, args, spec, console))) as connection:
        bundle, board, root = make(connection)
        if args.service:
            need_service_of(bundle)
        device = connection.to(board, opencl=needs_opencl(bundle))
        if args.dry_run:
            if not options.replace_model:
                check_same_model(device, root, bundle, retries=options.retries, progress=console)
            steps = preview(bundle, device, root, options=options)
            lines = steps.lines() + (["service  run it, now and at each boot"] * args.service)
            console.data(steps.to_dict(), _plan_text(bundle, device.name, lines))
            return 0
        done = deploy_and_start(
            bundle, device, root, options=options, service=args.service, progress=console
        )
        there = _status_for_page(device, root) if args.html else None
    data, lines = done.report.to_dict(), deploy_lines(done.report, bundle.manifest.name)
    if options.trial:
        lines.append("trial     `edgepack trial status` shows how it goes; the device decides")
    if done.service is not None:
        data["service"] = started = dict(done.service)
        lines.append(f"service   {started['service']}, now and at each boot ({started['kind']})")
    save(args, console, deploy_page(done.report, bundle, there))
    console.data(data, "\n".join(lines))
    return 0


def _status_for_page(device: Device, root: str) -> Status | None:
    """What is there now and was before; None if the device does not say: it is deployed all the
    same.
    """
    with contextlib.suppress(EdgepackError):
        return remote_tool.status(device, root)
    return None


def _dry_run(args: argparse.Namespace, options: DeployOptions, console: Console) -> int:
    """What is known without building; all of the plan if a build before left its parts."""
    project = project_of(args)
    spec = project.need_device()
    root = root_of(project)
    if args.service:
        remote_service.need_service(project.service, f"project {project.name}")
    board = board_of(project)
    device = None if _is_down(spec, board) else _connect(args, spec, console, board)
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


def _what(
    args: argparse.Namespace, console: Console
) -> tuple[str, Callable[[Connection], tuple[Bundle, Board, str]]]:
    """The device's address, and what gives the bundle, its board and the folder there."""
    if args.bundle is None:
        project = project_of(args)

        def build(connection: Connection) -> tuple[Bundle, Board, str]:
            bundle, board = build_bundle(project, connection, sign=args.sign, progress=console)
            return bundle, board, root_of(project)

        return project.need_device(), build
    refuse_job(args)
    if args.device is None:
        raise UsageError("no device given", hint="add --device user@address")

    def open_it(_: Connection) -> tuple[Bundle, Board, str]:
        bundle = open_bundle(args.bundle)
        board = get_board(args.board or bundle.manifest.board, board_files(args))
        check_bundle(bundle, board)
        return bundle, board, args.root or default_root(bundle.manifest.name)

    return args.device, open_it


def _connect(
    args: argparse.Namespace, spec: str, console: Console, board: Board, opencl: bool = False
) -> Device:
    ssh = ssh_options(args)
    return reach_device(spec, board, ssh=ssh, retries=args.retries, opencl=opencl, progress=console)


def _plan_text(bundle: Bundle, device: str, lines: list[str]) -> str:
    head = f"{bundle.manifest.name}, release {bundle.manifest.release}, to {device}:"
    return "\n".join([head, *lines])
