"""`edgepack service`: what is deployed starts at boot, and stays running."""

from __future__ import annotations

import argparse

from edgepack.cli.console import Console
from edgepack.cli.options import add_device, add_release, open_release
from edgepack.deploy import remote_service
from edgepack.deploy.service_files import cron_line, init_script, systemd_unit

ACTIONS = ("install", "remove", "status", "show")


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "action",
        choices=ACTIONS,
        help="install, remove or query the service; show prints the files that install would write",
    )
    add_release(parser)
    add_device(parser)
    parser.add_argument(
        "--kind",
        choices=remote_service.KINDS,
        default="auto",
        help="what starts the service (default: systemd if it runs on the device, else "
        "an init script, else cron)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Install, remove, ask or print."""
    device, root = open_release(args, console)
    try:
        if args.action == "install":
            done = remote_service.install(device, root, kind=args.kind)
            console.data(
                done,
                f"{done['service']} runs on {device.name} as {done['account']}, and at each boot "
                f"({done['kind']})",
            )
        elif args.action == "remove":
            done = remote_service.remove(device, root)
            console.data(done, f"{done['service']} is stopped and removed on {device.name}")
        elif args.action == "status":
            found = remote_service.status(device, root)
            text = f"{found['service']} on {device.name}: {found['kind'] or 'not installed'}"
            console.data(found, f"{text}\n{found['text']}".strip())
            return 0 if found["running"] else remote_service.NOT_RUNNING
        else:
            _show(args.kind, remote_service.look(device, root), console)
    finally:
        device.close()
    return 0


def _show(kind: str, site: remote_service.Site, console: Console) -> None:
    service = remote_service.need_service(site.service, f"the release in {site.root}")
    kind = site.kind if kind == "auto" else kind
    place = site.place(kind, service)
    text = {
        "systemd": lambda: systemd_unit(place, service),
        "init": lambda: init_script(place, service),
        "cron": lambda: cron_line(place),
    }[kind]()
    console.data({"service": place.title, "text": text}, text.rstrip("\n"))
