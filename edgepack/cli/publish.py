"""`edgepack publish`: packages into a repository that devices update themselves from."""

from __future__ import annotations

import argparse
from pathlib import Path

from edgepack.base.errors import UsageError
from edgepack.cli.console import Console
from edgepack.cli.options import add_common, positive


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    apt = kinds.add_parser(
        "apt",
        help="a folder of static files for apt",
        description="Put Debian packages into a folder that any web server or bucket serves to "
        "apt, or change which share of the devices gets the newest versions.",
    )
    apt.add_argument("folder", type=Path, metavar="DIR", help="made if it is not there")
    apt.add_argument(
        "--add",
        nargs="+",
        type=Path,
        default=[],
        metavar="FILE",
        help="packages that `package --format deb` made",
    )
    apt.add_argument("--key", required=True, help="gpg's name of the key that signs the indices")
    apt.add_argument(
        "--phase",
        type=positive,
        metavar="PERCENT",
        help="of the devices that the packages are offered to (default: 100); without packages: "
        "that the newest versions are offered to",
    )
    apt.add_argument(
        "--stop",
        action="store_true",
        help="take the newest versions out; devices that have them keep them",
    )
    apt.add_argument(
        "--package",
        action="append",
        default=[],
        metavar="NAME",
        help="what --phase and --stop are for (default: all packages)",
    )
    apt.add_argument(
        "--keep",
        type=positive,
        metavar="N",
        help="versions of each package (default: all)",
    )
    apt.add_argument(
        "--valid-days",
        type=positive,
        metavar="N",
        help="apt refuses the indices after that time; run the command again before it ends "
        "(default: they are valid for ever)",
    )
    apt.set_defaults(run=run_apt)
    model = kinds.add_parser(
        "model",
        help="a model and its project file into an OCI registry",
        description="Put a model, its project file and what that names into a registry, by skopeo: "
        "`edgepack deploy oci://...` takes them from there.",
    )
    model.add_argument("name", metavar="oci://REGISTRY/NAME[:TAG]")
    model.add_argument("--project", type=Path, metavar="FILE", help="default: edgepack.toml")
    model.set_defaults(run=run_model)
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
