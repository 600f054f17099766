"""`edgepack enroll`: add people to a gallery, by photos of them."""

from __future__ import annotations

import argparse
from pathlib import Path

from edgepack.base.errors import UsageError
from edgepack.cli.console import Console


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("name", metavar="NAME", help="the person's name in results")
    parser.add_argument(
        "photos", nargs="*", type=Path, metavar="PHOTO", help="photos that show only this person"
    )
    parser.add_argument(
        "--project",
        type=Path,
        default=Path("edgepack.toml"),
        metavar="FILE",
        help="project file (default: edgepack.toml)",
    )
    parser.add_argument(
        "--gallery",
        metavar="FILE",
        help="the gallery's file, as in the project file (default: the only gallery)",
    )
    parser.add_argument(
        "--remove", action="store_true", help="remove the person from the gallery instead"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Add, or remove, and say who is in the gallery."""
    from edgepack.flow.gallery import enroll, forget

    if args.remove:
        if args.photos:
            raise UsageError("--remove goes without photos: it removes all of a person's")
        found = forget(args.project, args.name, gallery=args.gallery)
        console.data(
            found.to_dict(), f"{args.name} removed from {found.gallery}: {_people(found.people)}"
        )
        return 0
    found = enroll(args.project, args.name, args.photos, gallery=args.gallery)
    lines = [
        f"{found.name}: {_photos(found.photos)} in {found.gallery}, {found.added} new; "
        f"{_people(found.people)}"
    ]
    if found.nearest is not None:
        lines.append(f"most similar to {found.nearest[0]}: {found.nearest[1]:.4f}")
    console.data(found.to_dict(), "\n".join(lines))
    return 0


def _people(count: int) -> str:
    return "one person" if count == 1 else f"{count} people"


def _photos(count: int) -> str:
    return "one photo" if count == 1 else f"{count} photos"
