from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from edgepack.base import tools
from edgepack.virtual import apt
from edgepack.virtual.apt import choose_mirror
from edgepack.virtual.errors import MirrorChangingError, RootfsError
from tests.support import require_tool

URL = "http://mirror.invalid/debian/"


@pytest.mark.parametrize(
    ("listing", "on_debian", "expected"),
    [
        (f"{URL}|bookworm|main|Debian", True, URL),
        (f"{URL}|bookworm|main|Debian", False, URL),
        # Before the first `apt-get update` the origin is not known.
        (f"{URL}|trixie|main|$(ORIGIN)", True, URL),
        (f"{URL}|trixie|main|$(ORIGIN)", False, None),
        ("http://mirror.invalid/ubuntu/|noble|main|Ubuntu", False, None),
        ("http://mirror.invalid/raspbian/|bookworm|main|Raspbian", False, None),
        # Only the main archive holds all suites.
        (f"{URL}|bookworm-security|main|Debian", True, None),
        (f"{URL}|bookworm|contrib|Debian", True, None),
        ("https://vendor.invalid/|bookworm|stable|Vendor", True, None),
        ("cdrom://[Debian]/|bookworm|main|Debian", True, None),
        ("", True, None),
        (f"https://vendor.invalid/|stable|main|Vendor\n{URL}|sid|main|Debian", False, URL),
    ],
)
def test_choose_mirror(listing: str, on_debian: bool, expected: str | None) -> None:
    assert choose_mirror(listing, on_debian=on_debian) == expected


def test_missing_keys_name_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apt, "_KEYRINGS", (Path("/nonexistent/keys.gpg"),))
    with pytest.raises(tools.ToolMissingError) as caught:
        apt.unpack(["bash"], Path("/nonexistent"), suite="bookworm", arch="armhf")
    assert "apt-get install debian-archive-keyring" in str(caught.value)


@pytest.mark.parametrize(
    ("says", "error"),
    [
        ("File has unexpected size (9 != 8). Mirror sync in progress?", MirrorChangingError),
        ("Could not resolve 'mirror.invalid'", RootfsError),
    ],
)
def test_a_mirror_that_changes_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, error: type[RootfsError]
) -> None:
    """A script stands for mmdebstrap, with apt's words: no mirror changes on command."""
    program = tmp_path / "mmdebstrap"
    program.write_text(f'#!/bin/sh\necho "E: Failed to fetch Packages.xz  {says}" >&2\nexit 25\n')
    program.chmod(0o755)
    keys = tmp_path / "keys.gpg"
    keys.touch()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(apt, "_KEYRINGS", (keys,))
    monkeypatch.setattr(apt, "mirror", lambda: None)
    with pytest.raises(RootfsError) as caught:
        apt.unpack(["bash"], tmp_path / "root", suite="bookworm", arch="armhf")
    assert type(caught.value) is error
    assert says in str(caught.value)


def test_what_matches_a_pattern_is_removed_and_nothing_behind_a_link(tmp_path: Path) -> None:
    """`*` goes beyond slashes, as in dpkg.cfg(5)'s path-exclude."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    for name in ("usr/share/doc/a/copyright", "usr/lib/arm/perl/5/x.pm", "usr/lib/perl.so"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")
    (outside / "perl").mkdir(parents=True)
    (outside / "perl" / "kept").write_text("x")
    (root / "usr/lib/link").symlink_to(outside)
    (root / "usr/lib/arm/perl/dangling").symlink_to("/nowhere")
    apt.remove(root, ("/usr/share/doc/*", "/usr/lib/*/perl/*"))
    left = sorted(str(p.relative_to(root)) for p in root.rglob("*") if not p.is_dir())
    assert left == ["usr/lib/perl.so"]
    assert (root / "usr/lib/link").is_symlink()
    assert (outside / "perl" / "kept").exists()


def test_without_a_mirror_of_its_own_sources_come_from_where_mmdebstrap_looks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As on Ubuntu: its apt knows no Debian, mmdebstrap does."""
    require_tool("mmdebstrap")
    asked = tmp_path / "asked"
    helper = tmp_path / "helper"
    helper.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{asked}\n')
    helper.chmod(0o755)
    monkeypatch.setattr(apt, "mirror", lambda: None)
    monkeypatch.setattr(apt, "_HELPER", helper)
    apt.download("pool/x.tar", tmp_path / "x.tar", suite="bookworm", sha256="ab")
    verb, url, target, digest = asked.read_text().split()
    assert (verb, target, digest) == ("download-file", str(tmp_path / "x.tar"), "SHA256:ab")
    assert re.fullmatch(r"https?://[^/]+/debian/pool/x\.tar", url)
    monkeypatch.setattr(apt, "find_tool", lambda _: require_tool("false"))
    with pytest.raises(RootfsError, match=r"neither apt nor mmdebstrap .* mirror with bookworm"):
        apt.known_mirror("bookworm")
