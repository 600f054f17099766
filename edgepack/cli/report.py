"""`edgepack report`: one page over all pages of a project."""

from __future__ import annotations

import argparse
from pathlib import Path

from edgepack.base import page
from edgepack.cli.console import Console
from edgepack.cli.options import check_writable, project_file
from edgepack.cli.pages.whole import KINDS, NoPageError, find_pages, read_page, whole_page


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "pages",
        nargs="*",
        type=Path,
        metavar="PAGE",
        help="pages written by --html, or folders with such pages (default: the project's folder)",
    )
    parser.add_argument(
        "--project", type=Path, metavar="FILE", help="project file (default: edgepack.toml)"
    )
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="FILE",
        help="file to write (default: report.html in the project's folder)",
    )
    parser.set_defaults(run=run, model=None)


def run(args: argparse.Namespace, console: Console) -> int:
    """Write the page."""
    from edgepack.flow.project import load_project

    file = project_file(args)
    folder = file.parent if file is not None else Path()
    out: Path = args.out or folder / "report.html"
    check_writable(out.parent, "--out")
    found = []
    for path in args.pages or [folder]:
        found += find_pages(path) if path.is_dir() else [read_page(path)]
    if not found:
        where = ", ".join(map(str, args.pages or [folder]))
        raise NoPageError(
            f"no pages that edgepack wrote in {where}",
            hint="`edgepack check --html check.html` writes one; so do " + ", ".join(KINDS[1:]),
        )
    project = load_project(file) if file is not None else None
    said = (
        {}
        if project is None
        else {"project": project.name, "model": project.model.name, "board": project.board}
    )
    title = f"{project.name}: report" if project is not None else "Report"
    page.write_page(out, whole_page(found, title, said))
    console.data(
        {
            "path": str(out),
            "pages": [{"file": str(one.file), "kind": one.kind, "at": one.at} for one in found],
        },
        f"{out}: {', '.join(one.kind for one in found)}",
    )
    return 0
