"""`edgepack publish mender` and `publish hawkbit`: a package to a server, and who gets it when."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgepack.base.errors import UsageError
from edgepack.cli.console import Console
from edgepack.cli.options import positive

if TYPE_CHECKING:
    from edgepack.formats.rest import NotedRequests, Server

_WHOLE = 100


def add(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Both commands' options."""
    mender = kinds.add_parser(
        "mender",
        help="upload an artifact to a Mender server, and deploy it",
        description="Upload an artifact of `package --format mender`, and deploy it to a group or "
        "to all devices. If you run the command again, it does only what is left.",
    )
    _add_server(mender, "https://hosted.mender.io", "MENDER_TOKEN")
    _add_file(mender, "artifact of `package --format mender`")
    who = mender.add_mutually_exclusive_group()
    who.add_argument(
        "--group", metavar="NAME", help="deploy to this group of devices (default: only upload)"
    )
    who.add_argument(
        "--all-devices", action="store_true", help="deploy to all devices (default: only upload)"
    )
    _add_phases(mender, "phases need one of Mender's paid plans")
    mender.add_argument(
        "--phase-hours",
        type=positive,
        default=24,
        metavar="N",
        help="hours between the beginnings of two phases (default: 24)",
    )
    _add_stop(mender, "abort the deployment of this artifact to --group or --all-devices")
    mender.set_defaults(run=run_mender)

    hawkbit = kinds.add_parser(
        "hawkbit",
        help="upload a package to an Eclipse hawkBit server, and roll it out",
        description="Upload a package into a software module and a distribution set, and roll it "
        "out. If you run the command again, it does only what is left.",
    )
    _add_server(hawkbit, "https://hawkbit.example.org", "HAWKBIT_TOKEN")
    _add_file(hawkbit, "file of `package`, in the format that the client on the devices installs")
    hawkbit.add_argument(
        "--user",
        metavar="NAME",
        help="log in as this user, with the token as the password (default: a bearer token)",
    )
    hawkbit.add_argument(
        "--targets",
        metavar="QUERY",
        help="roll out to the targets of this filter, for example name==cam-* (default: only "
        "upload)",
    )
    _add_phases(hawkbit, "a phase is a group of the rollout")
    hawkbit.add_argument(
        "--success",
        type=positive,
        default=_WHOLE,
        metavar="PERCENT",
        help="share of a group that must succeed before the next group begins (default: 100)",
    )
    hawkbit.add_argument(
        "--max-failed",
        type=positive,
        default=1,
        metavar="PERCENT",
        help="share of failures in a group at which the rollout pauses (default: 1)",
    )
    hawkbit.add_argument(
        "--module-type",
        default="application",
        metavar="KEY",
        help="hawkBit's type of the software module (default: application)",
    )
    hawkbit.add_argument(
        "--set-type",
        default="app",
        metavar="KEY",
        help="hawkBit's type of the distribution set (default: app)",
    )
    _add_stop(hawkbit, "stop the rollout of this package; a server that cannot do that pauses it")
    hawkbit.set_defaults(run=run_hawkbit)


def _add_server(parser: argparse.ArgumentParser, example: str, variable: str) -> None:
    parser.add_argument("url", metavar="URL", help=f"address of the server, for example {example}")
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help=f"file with the token, which only you can read (default: ${variable})",
    )
    parser.add_argument(
        "--ca-file",
        type=Path,
        metavar="FILE",
        help="certificate (PEM) of the server's authority (default: those of this system)",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the requests to a server that has none of it yet, and send nothing",
    )


def _add_file(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--add", type=Path, required=True, metavar="FILE", help=what)


def _add_stop(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--stop", action="store_true", help=f"{what}; devices that have the release keep it"
    )


def _check_stop(args: argparse.Namespace) -> None:
    if args.phases:
        raise UsageError("--phases and --stop do not go together")
    if args.dry_run:
        raise UsageError("--dry-run and --stop do not go together: the server knows what runs")


def _add_phases(parser: argparse.ArgumentParser, note: str) -> None:
    parser.add_argument(
        "--phases",
        type=_phases,
        metavar="P,P,100",
        help=f"percentage of the devices that has the release after each phase, for example "
        f"5,25,100; {note} (default: all devices at once)",
    )


def _phases(text: str) -> list[int]:
    """Argparse type: percentages that rise to 100."""
    words = text.split(",")
    if not all(word.isdecimal() and word.isascii() and len(word) < 4 for word in words):
        raise argparse.ArgumentTypeError(f"{text!r} is not like 5,25,100")
    numbers = [int(word) for word in words]
    if numbers != sorted(set(numbers)) or numbers[0] < 1 or numbers[-1] != _WHOLE:
        raise argparse.ArgumentTypeError(f"{text!r} does not rise from at least 1 to {_WHOLE}")
    return numbers


def run_mender(args: argparse.Namespace, console: Console) -> int:
    """Upload, and deploy to whom is named."""
    from edgepack.formats import mender_server

    if args.stop:
        return _stop_mender(args, console)
    deployment = None
    if args.group is not None or args.all_devices:
        deployment = mender_server.MenderDeployment(
            group=args.group, phases=args.phases or (), hours=args.phase_hours
        )
    elif args.phases:
        raise UsageError("--phases: of whom?", hint="--group NAME or --all-devices")
    artifact = mender_server.read_artifact(args.add)
    server = _server(args, "MENDER_TOKEN")
    done = mender_server.publish(server, artifact, deployment)
    if _noted(server, console):
        return 0
    lines = [f"artifact    {done.name} ({'uploaded' if done.uploaded else 'was there'})"]
    if deployment is not None:
        state = "created" if done.created else "was there"
        lines.append(f"deployment  {done.deployment or 'without an id'} ({state})")
    console.data(
        {
            "artifact": done.name,
            "uploaded": done.uploaded,
            "deployment": done.deployment,
            "created": done.created,
        },
        "\n".join(lines),
    )
    return 0


def _stop_mender(args: argparse.Namespace, console: Console) -> int:
    from edgepack.formats import mender_server

    _check_stop(args)
    if args.group is None and not args.all_devices:
        raise UsageError("--stop: of whom?", hint="--group NAME or --all-devices")
    artifact = mender_server.read_artifact(args.add)
    done = mender_server.stop(_server(args, "MENDER_TOKEN"), artifact, args.group)
    console.data(
        {"artifact": done.artifact, "deployment": done.deployment, "state": done.state},
        f"artifact    {done.artifact}\ndeployment  {done.deployment} ({done.state})",
    )
    return 0


def run_hawkbit(args: argparse.Namespace, console: Console) -> int:
    """Upload, and roll out to whom is named."""
    from dataclasses import replace

    from edgepack.formats import hawkbit

    if args.stop:
        return _stop_hawkbit(args, console)
    for option, value in (("--success", args.success), ("--max-failed", args.max_failed)):
        if value > _WHOLE:
            raise UsageError(f"{option}: {value} is more than {_WHOLE}")
    rollout = None
    if args.targets is not None:
        rollout = hawkbit.HawkbitRollout(
            targets=args.targets,
            phases=args.phases or (_WHOLE,),
            success=args.success,
            max_failed=args.max_failed,
        )
    elif args.phases:
        raise UsageError("--phases: of whom?", hint="--targets QUERY, as name==cam-*")
    package = replace(
        hawkbit.read_package(args.add), module_type=args.module_type, set_type=args.set_type
    )
    server = _server(args, "HAWKBIT_TOKEN", args.user)
    done = hawkbit.publish(server, package, rollout)
    if _noted(server, console):
        return 0
    lines = [
        f"module   {done.name} {done.version} ({'uploaded' if done.uploaded else 'was there'})",
        f"set      {done.distribution_set}",
    ]
    if done.rollout is not None:
        lines.append(f"rollout  {done.rollout} ({done.state})")
    console.data(
        {
            "module": done.name,
            "version": done.version,
            "uploaded": done.uploaded,
            "distribution_set": done.distribution_set,
            "rollout": done.rollout,
            "state": done.state,
        },
        "\n".join(lines),
    )
    return 0


def _stop_hawkbit(args: argparse.Namespace, console: Console) -> int:
    from edgepack.formats import hawkbit

    _check_stop(args)
    package = hawkbit.read_package(args.add)
    done = hawkbit.stop(_server(args, "HAWKBIT_TOKEN", args.user), package)
    console.data(
        {
            "module": done.name,
            "version": done.version,
            "rollout": done.rollout,
            "state": done.state,
        },
        f"module   {done.name} {done.version}\nrollout  {done.rollout} ({done.state})",
    )
    return 0


def _server(
    args: argparse.Namespace, variable: str, user: str | None = None
) -> Server | NotedRequests:
    from edgepack.formats.rest import NotedRequests, check_url, open_server

    if args.dry_run:
        check_url(args.url)
        return NotedRequests()
    return open_server(
        args.url,
        token_file=args.token_file,
        variable=variable,
        user=user,
        ca_file=args.ca_file,
    )


def _noted(server: Server | NotedRequests, console: Console) -> bool:
    """Print the requests of a dry run; whether it was one."""
    from edgepack.formats.rest import NotedRequests

    if not isinstance(server, NotedRequests):
        return False
    lines = []
    for request in server.requests:
        lines.append(f"{request['method']} {request['path']}")
        rest: Any = {key: value for key, value in request.items() if key in ("body", "form")}
        lines += [f"    {name}: {json.dumps(value)}" for name, value in rest.items()]
    console.data({"requests": server.requests}, "\n".join(lines))
    return True
