"""`edgepack publish`: packages into a repository that devices update themselves from."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgepack.base.errors import UsageError
from edgepack.cli import publish_servers
from edgepack.cli.console import Console
from edgepack.cli.options import add_common, board_files, check_writable, positive

if TYPE_CHECKING:
    from edgepack.boards import Board
    from edgepack.bundle.bundle import Bundle


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    apt = kinds.add_parser(
        "apt",
        help="write Debian packages and indices for apt into a folder",
        description="Put Debian packages into a folder that any web server or bucket can serve "
        "to apt, or change the share of devices that gets the newest versions.",
    )
    apt.add_argument(
        "folder", type=Path, metavar="DIR", help="repository folder, created if it does not exist"
    )
    apt.add_argument(
        "--add",
        nargs="+",
        type=Path,
        default=[],
        metavar="FILE",
        help="packages from `package --format deb`",
    )
    apt.add_argument("--key", required=True, help="gpg's name of the key that signs the indices")
    apt.add_argument(
        "--phase",
        type=positive,
        metavar="PERCENT",
        help="share of the devices that gets the new packages (default: 100), or, "
        "without --add, the newest versions",
    )
    apt.add_argument(
        "--stop",
        action="store_true",
        help="withdraw the newest versions; devices that have them keep them",
    )
    apt.add_argument(
        "--package",
        action="append",
        default=[],
        metavar="NAME",
        help="apply --phase and --stop to this package only (default: all packages)",
    )
    apt.add_argument(
        "--keep",
        type=positive,
        metavar="N",
        help="number of versions of each package to keep (default: all)",
    )
    apt.add_argument(
        "--valid-days",
        type=positive,
        metavar="N",
        help="number of days after which apt refuses the indices, unless you run the "
        "command again (default: no limit)",
    )
    apt.set_defaults(run=run_apt)
    model = kinds.add_parser(
        "model",
        help="push a model and its project file to an OCI registry",
        description="Push a model, its project file and the files that it names to a registry, "
        "with skopeo. `edgepack deploy oci://...` can then use them.",
    )
    model.add_argument("name", metavar="oci://REGISTRY/NAME[:TAG]")
    model.add_argument(
        "--project", type=Path, metavar="FILE", help="project file (default: edgepack.toml)"
    )
    model.set_defaults(run=run_model)
    images = kinds.add_parser(
        "oci",
        help="push images for all boards under one name to an OCI registry",
        description="Push an image for each board to a registry under one name, with skopeo. "
        "podman and docker pull the image for their platform. Layers that the "
        "registry has are not sent again.",
    )
    images.add_argument("name", metavar="oci://REGISTRY/NAME[:TAG]")
    images.add_argument(
        "--project", type=Path, metavar="FILE", help="project file (default: edgepack.toml)"
    )
    images.add_argument(
        "--board",
        action="append",
        default=[],
        metavar="NAME",
        help="also make an image for this board (repeatable; default: the project's board)",
    )
    images.add_argument(
        "--bundle",
        action="append",
        default=[],
        type=Path,
        metavar="DIR",
        help="use a bundle from `package` instead of the project (repeatable)",
    )
    images.add_argument(
        "--pem-key",
        type=Path,
        metavar="FILE",
        help="EC private key (P-256) that signs the index and the images, in cosign's format",
    )
    images.add_argument(
        "--quadlet",
        type=Path,
        metavar="DIR",
        help="also write a podman unit into this folder: with it, the device follows the "
        "name, and returns to the old release if a new one fails its smoke test",
    )
    images.set_defaults(run=run_oci)
    publish_servers.add(kinds)
    for kind in kinds.choices.values():
        add_common(kind)


def run_model(args: argparse.Namespace, console: Console) -> int:
    """Push what the project file names; print the address by digest."""
    from edgepack.flow.project import PROJECT_FILE, files_of
    from edgepack.model.sources import oci

    file = args.project or Path(PROJECT_FILE)
    scheme, _, name = args.name.partition("://")
    if scheme != "oci":
        raise UsageError(f"{args.name}: not an address of a registry", hint=oci.HINT)
    files = files_of(file)
    folder = file.absolute().parent
    address = oci.push(folder, files, name)
    named = [str(one.relative_to(folder)) for one in files]
    console.data({"address": address, "files": named}, "\n".join([*named, f"in       {address}"]))
    return 0


def run_oci(args: argparse.Namespace, console: Console) -> int:
    """Make the bundles if none are named, push their images, and write the unit."""
    from edgepack.formats import quadlet, registry
    from edgepack.model.sources import oci

    scheme, _, name = args.name.partition("://")
    if scheme != "oci":
        raise UsageError(f"{args.name}: not an address of a registry", hint=oci.HINT)
    if args.quadlet is not None:
        check_writable(args.quadlet, "--quadlet")
    bundles, boards = _bundles(args, name, console)
    unit, text = None, ""
    if args.quadlet is not None:
        image = oci.RegistryName.parse(name).at().removeprefix("docker://")
        text = quadlet.unit([bundle.manifest for bundle in bundles.values()], image)
        first = next(iter(bundles.values()))
        unit = args.quadlet / quadlet.file_name(first.manifest)
    published = registry.publish(bundles, boards, name, args.pem_key)
    if unit is not None:
        args.quadlet.mkdir(parents=True, exist_ok=True)
        unit.write_text(text)
    rows = [
        {
            "board": board,
            "platform": published.platforms[board],
            "release": bundles[board].manifest.release,
            "image": image,
        }
        for board, image in published.images.items()
    ]
    width = max(len(board) for board in bundles)
    lines = [
        f"{row['board']:<{width}}  {row['platform']}  {row['release']}  {row['image']}"
        for row in rows
    ]
    if unit is not None:
        lines.append(f"unit     {unit}")
    lines.append(f"signed   {'yes' if published.signed else 'no: --pem-key signs'}")
    lines.append(f"in       {published.address}")
    console.data(
        {
            "address": published.address,
            "images": rows,
            "signed": published.signed,
            "quadlet": None if unit is None else str(unit),
        },
        "\n".join(lines),
    )
    return 0


def _bundles(
    args: argparse.Namespace, name: str, console: Console
) -> tuple[dict[str, Bundle], dict[str, Board]]:
    """Those that are named, or the project's for each board."""
    from edgepack.boards import load_boards
    from edgepack.fleet.build import build_bundles, open_bundles
    from edgepack.flow.job import board_of
    from edgepack.flow.project import PROJECT_FILE, load_project
    from edgepack.formats import registry

    if args.bundle:
        if args.board or args.project:
            raise UsageError("--bundle: a bundle names its board; leave out --board and --project")
        boards = load_boards(board_files(args))
        bundles = open_bundles(args.bundle, boards, [])
        registry.check([boards[board] for board in bundles], name, args.pem_key)
        return bundles, boards
    project = load_project(args.project or Path(PROJECT_FILE))
    project = replace(project, boards=(*project.boards, *board_files(args)))
    names = dict.fromkeys(args.board or [project.need_board()])
    boards = {board: board_of(replace(project, board=board)) for board in names}
    registry.check(list(boards.values()), name, args.pem_key)
    return build_bundles(project, list(boards.values()), progress=console), boards


def run_apt(args: argparse.Namespace, console: Console) -> int:
    """Change the repository and show what is in it."""
    from edgepack.formats import apt_repository

    repository = apt_repository.publish(
        args.folder,
        apt_repository.Change(
            key=args.key,
            add=args.add,
            phase=args.phase,
            withdraw=args.stop,
            only=args.package,
            keep=args.keep,
            valid_days=args.valid_days,
        ),
    )
    rows = [
        {
            "package": item.package,
            "version": item.number,
            "release": item.release,
            "architecture": item.architecture,
            "phase": item.phase,
            "file": item.file,
        }
        for item in repository.packages
    ]
    width = max((len(item.package) for item in repository.packages), default=0)
    lines = [
        f"{item.package:<{width}}  {item.number:>6}  {item.release}  {item.architecture:<6}"
        f"  {item.phase:>3} % of the devices"
        for item in repository.packages
    ]
    lines += [f"taken out: {item.package} {item.version}" for item in repository.withdrawn]
    lines.append(
        f"next     serve {args.folder}; on the devices {apt_repository.KEYRING} is the key"
    )
    withdrawn = [f"{item.package} {item.version}" for item in repository.withdrawn]
    console.data({"packages": rows, "withdrawn": withdrawn}, "\n".join(lines))
    return 0
