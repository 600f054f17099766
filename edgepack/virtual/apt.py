"""Foreign Debian packages, unpacked into a folder without root and without touching the system."""

from __future__ import annotations

import fnmatch
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from edgepack.base.process import last_lines, run
from edgepack.base.tools import apt, explain_missing, find_tool, install
from edgepack.virtual.errors import MirrorChangingError, RootfsError

# Names under which Debian's own archive lists its releases; third parties add a suffix or
# a word of their own ("bookworm-pgdg", "stable/experimental").
_RELEASES = (
    *("bullseye", "bookworm", "trixie", "forky", "sid"),
    *("oldoldstable", "oldstable", "stable", "testing", "unstable"),
)
_KEYRINGS = (
    Path("/usr/share/keyrings/debian-archive-keyring.gpg"),
    Path("/usr/share/keyrings/debian-archive-keyring.pgp"),
)
_HELPER = Path("/usr/lib/apt/apt-helper")
# Settings of the machine that decide whether its mirror can be reached at all.
_INHERITED = ("Acquire::http", "Acquire::https", "Acquire::Check-")
_TIMEOUT_S = 900
# What apt's own account writes to.
_OF_APT = ("var/cache/apt", "var/lib/apt")
# apt's words where a file is not the one that the signed Release file names.
_CHANGING = "Mirror sync in progress?"


def unpack(
    packages: Sequence[str], folder: Path, *, suite: str, arch: str, exclude: Sequence[str] = ()
) -> None:
    """Unpack `packages` of a Debian `suite` and all they depend on into `folder`.

    Nothing is configured and no maintainer script runs, so the architecture does not
    matter and an ordinary user can do it, with or without user namespaces. `exclude`
    are path patterns left out, e.g. "/usr/share/doc/*". Raises RootfsError,
    MirrorChangingError, ToolMissingError.
    """
    keyring = _keyring()
    argv = [
        *_mmdebstrap(keyring),
        f"--architectures={arch}",
        f"--include={','.join(packages)}",
        '--aptopt=Acquire::Retries "3"',
        # The security archive's index of an old release is at times out of step, which
        # is an error to apt; a board to test on does not need it.
        '--setup-hook=sed -i -e /security/d "$1"/etc/apt/sources.list',
        *(f"--aptopt={line.rstrip(';')}" for line in settings()),
        suite,
        folder,
    ]
    # Without a mirror mmdebstrap takes the one it knows for a suite of Debian's.
    if url := mirror():
        argv.append(f"deb [signed-by={keyring}] {url} {suite} main")
    try:
        run(
            argv,
            timeout_s=_TIMEOUT_S,
            error=RootfsError,
            what=f"fetching {suite} packages for {arch}",
        )
    except RootfsError as error:
        if _CHANGING not in error.message:
            raise
        raise MirrorChangingError(
            error.message, hint="the mirror is being updated: try again in an hour"
        ) from None
    # Not by dpkg's path-exclude: for that mmdebstrap starts a Python for each package.
    remove(folder, exclude)
    if os.geteuid() == 0:
        _take_from_apt(folder)


def _take_from_apt(folder: Path) -> None:
    """Make root the owner of what apt's account has written below `folder`: for root apt downloads
    as that account, where it reaches the folder."""
    tops = tuple(str(folder / top) for top in _OF_APT)
    for parent, folders, files in os.walk(folder):  # which does not follow links
        if parent.startswith(tops):
            for name in [*folders, *files]:
                os.chown(Path(parent, name), 0, 0, follow_symlinks=False)


def download(path: str, target: Path, *, suite: str, sha256: str) -> None:
    """Write the file at `path` of a Debian mirror that has `suite` ("pool/main/...") to `target`.

    By apt's own downloader, so that the machine's proxies and settings hold. Raises RootfsError
    if it cannot be had or has another hash, ToolMissingError.
    """
    if not _HELPER.exists():
        raise explain_missing(f"apt's downloader ({_HELPER})", install("apt-get"))
    url = mirror() or known_mirror(suite)
    run(
        [_HELPER, "download-file", f"{url.rstrip('/')}/{path}", target, f"SHA256:{sha256}"],
        timeout_s=_TIMEOUT_S,
        error=RootfsError,
        what=f"fetching {path}",
    )


def remove(folder: Path, patterns: Sequence[str]) -> None:
    """Remove what below `folder` matches one of `patterns`, in which * stands for any text."""
    top = str(folder)
    unwanted = re.compile("|".join(map(fnmatch.translate, patterns)) or "(?!)")
    for parent, folders, files in os.walk(folder):  # which does not follow links
        for name in [*folders, *files]:
            path = Path(parent, name)
            if not unwanted.match(f"{parent[len(top) :]}/{name}"):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
                folders.remove(name)
            else:
                path.unlink()


def mirror() -> str | None:
    """The Debian mirror of this machine's apt configuration, None if it has none."""
    fields = "$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(ORIGIN)"
    listing = run(
        [find_tool("apt-get"), "indextargets", "--format", fields, "Created-By: Packages"],
        error=RootfsError,
    ).stdout
    return choose_mirror(listing, on_debian=_on_debian())


def known_mirror(suite: str) -> str:
    """The mirror that mmdebstrap itself knows for a suite of Debian's, as `unpack` takes it on
    a machine of another distribution. Raises RootfsError, ToolMissingError."""
    with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
        done = run(
            [
                *_mmdebstrap(_keyring()),
                # Then it has made the list, and asked nobody.
                '--setup-hook=cat "$1"/etc/apt/sources.list; exit 1',
                suite,
                Path(folder) / "root",
            ],
            check=False,
            error=RootfsError,
        )
    found = re.search(rf"^deb (?:\[[^\]]*\] )?(http\S+) {suite} ", done.stdout + done.stderr, re.M)
    if found is None:
        raise RootfsError(
            f"neither apt nor mmdebstrap of this machine knows a Debian mirror with {suite}\n"
            f"{last_lines(done.stderr)}",
            hint="add one to /etc/apt/sources.list.d, with its keys (debian-archive-keyring)",
        )
    return found[1]


def _keyring() -> Path:
    found = next((path for path in _KEYRINGS if path.exists()), None)
    if found is None:
        raise explain_missing(
            f"the keys of Debian's archive ({_KEYRINGS[0]})", apt("debian-archive-keyring")
        )
    return found


def _mmdebstrap(keyring: Path) -> list[str | Path]:
    return [
        find_tool("mmdebstrap"),
        # For the `extract` variant this only means: no chroot, hence no privileges. The
        # check is about maintainer scripts meeting the machine itself, and none runs.
        "--mode=chrootless",
        "--skip=check/chrootless",
        "--variant=extract",
        "--format=directory",
        "--components=main",
        f"--keyring={keyring}",
    ]


def choose_mirror(listing: str, *, on_debian: bool) -> str | None:
    """The first of apt's index targets that is Debian's main archive.

    `listing` has lines "uri|release|component|origin". Before the first `apt-get
    update` apt does not know an origin and leaves the word "$(ORIGIN)": such a line is
    trusted only `on_debian`, since Ubuntu or a vendor may use the same release names.
    """
    for line in listing.splitlines():
        url, release, component, origin = line.split("|")
        known = origin == "Debian" or (origin.startswith("$(") and on_debian)
        if known and release in _RELEASES and component == "main" and url.startswith("http"):
            return url
    return None


def _on_debian() -> bool:
    try:
        return platform.freedesktop_os_release().get("ID") == "debian"
    except OSError:
        return False


def settings() -> list[str]:
    """What this machine's apt is told of proxies, certificates and how old a mirror may be."""
    dump = run([find_tool("apt-config"), "dump"], error=RootfsError).stdout
    return [line for line in dump.splitlines() if line.startswith(_INHERITED)]
