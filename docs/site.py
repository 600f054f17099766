"""A searchable site from the pages of this repository, for `./dev docs`: needs mkdocs-material.

The pages and whatever they link to are copied into a folder as they lie in the repository, so that
links lead where they do there; mkdocs refuses a link or an anchor that leads nowhere.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
SECTIONS = ("guides", "concepts", "reference", "contributing")


def pages(root: Path) -> list[Path]:
    """All that is a page, relative to `root`: at the top, in docs/, and what those link to."""
    files = (*sorted(root.glob("*.md")), *sorted(root.glob("docs/**/*.md")))
    found = [page.relative_to(root) for page in files]
    for page in found:  # which grows
        more = (file for file in linked(root, page) if file.suffix == ".md")
        found += dict.fromkeys(file for file in more if file not in found)
    return found


def linked(root: Path, page: Path) -> Iterator[Path]:
    """The files, relative to `root`, that a page links to; links that lead nowhere are mkdocs's."""
    for target in _LINK.findall((root / page).read_text(encoding="utf-8")):
        if "://" in target:
            continue
        file = (root / page.parent / target).resolve()
        if file.is_file() and file.is_relative_to(root):
            yield file.relative_to(root)


def title(file: Path) -> str:
    """A page's first heading."""
    match = re.search(r"^# (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    return match[1] if match else file.stem


def navigation(root: Path) -> list[dict[str, Any]]:
    """The pages by section, and in each by title."""
    found: dict[str, list[Path]] = {}
    for page in pages(root):
        is_ours = page.parts[0] == "docs" and len(page.parts) == 3
        found.setdefault(page.parts[1] if is_ours else "more", []).append(page)
    found["more"].remove(Path("README.md"))

    def entries(section: str) -> list[dict[str, str]]:
        named = [{title(root / page): page.as_posix()} for page in found.pop(section)]
        return sorted(named, key=lambda entry: next(iter(entry)).casefold())

    nav: list[dict[str, Any]] = [{"Start": "README.md"}]
    nav += [{section.capitalize(): entries(section)} for section in SECTIONS]
    nav.append({"More": entries("more")})
    assert not found, f"docs/ has folders that are in no section: {list(found)}"
    return nav


def config(root: Path, source: Path, out: Path) -> dict[str, Any]:
    """What mkdocs reads. Nothing of the site is loaded from elsewhere: no fonts, no scripts."""
    schemes = (("default", "dark", "slate"), ("slate", "light", "default"))
    palette = [
        {
            "media": f"(prefers-color-scheme: {'light' if scheme == 'default' else 'dark'})",
            "scheme": scheme,
            "toggle": {"icon": "material/brightness-6", "name": f"Switch to {other} mode"},
        }
        for scheme, other, _ in schemes
    ]
    return {
        "site_name": "edgepack",
        "docs_dir": str(source),
        "site_dir": str(out),
        "exclude_docs": "",  # .github is linked to
        "nav": navigation(root),
        "theme": {
            "name": "material",
            "font": False,
            "palette": palette,
            "features": ["navigation.tabs", "navigation.top", "content.code.copy"],
        },
        "plugins": ["search"],
        "markdown_extensions": [
            *("tables", "fenced_code", "sane_lists", "md_in_html"),
            # Anchors as GitHub makes them, of which the links are.
            {"toc": {"permalink": True, "slugify": SLUGIFY}},
        ],
        "validation": {
            "nav": {"omitted_files": "warn", "not_found": "warn"},
            "links": dict.fromkeys(
                ("not_found", "anchors", "absolute_links", "unrecognized_links"), "warn"
            ),
        },
    }


class _Call(str):
    """A Python function that mkdocs is to call, in YAML."""


SLUGIFY = _Call("pymdownx.slugs.slugify")
yaml.SafeDumper.add_representer(
    _Call,
    lambda dumper, name: dumper.represent_mapping(
        f"tag:yaml.org,2002:python/object/apply:{name}", {"kwds": {"case": "lower"}}
    ),
)


def build(root: Path, out: Path) -> int:
    """Build the site of the repository at `root` into `out`; mkdocs's exit status."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        for page in pages(root):
            for file in {page, *linked(root, page)}:
                (source / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(root / file, source / file)
        settings = Path(folder) / "mkdocs.yml"
        settings.write_text(yaml.safe_dump(config(root, source, out), sort_keys=False))
        # Not --quiet: then it would not count its warnings, which are what --strict refuses.
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean", "-f", settings]
        environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
        done = subprocess.run(
            command, env=environment, stderr=subprocess.PIPE, text=True, check=False
        )
    told = [line for line in done.stderr.splitlines() if line and not line.startswith("INFO")]
    print("\n".join(told), end="\n" if told else "", file=sys.stderr)
    return done.returncode


def main() -> int:
    """Build it, or say what is wrong."""
    parser = argparse.ArgumentParser(prog="./dev docs", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build/site", metavar="DIR")
    out = parser.parse_args().out.absolute()
    status = build(ROOT, out)
    if status == 0:
        print(out / "index.html")
    return status


if __name__ == "__main__":
    sys.exit(main())
