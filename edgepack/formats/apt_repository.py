"""A repository for apt in a folder of static files, which any web server or bucket serves.

Layout and fields are those of wiki.debian.org/DebianRepository/Format: packages of all boards lie
in `pool/`, and `dists/stable/` has an index for each architecture and the signed `InRelease`.
apt-ftparchive makes the indices, gpg signs them. `Phased-Update-Percentage` makes apt (from 2.1.16
on) offer a version to a share of the devices, drawn from their machine-id and the version.

Who reads it by HTTP at any moment sees the repository before or after: packages come first, indices
lie under their hashes as well (`Acquire-By-Hash`), and `InRelease` is replaced last.
"""

from __future__ import annotations

import contextlib
import hashlib
import lzma
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgepack.base.errors import UsageError
from edgepack.base.paths import locked
from edgepack.base.process import run
from edgepack.base.tools import find_tool
from edgepack.boards import load_boards
from edgepack.formats.base import PackageError, replace_when_done

SUITE, COMPONENT = "stable", "main"
ORIGIN = "edgepack"
KEYRING = "edgepack-archive-keyring.asc"
"""The key's public part, in the repository's folder: for `Signed-By` on the devices."""
WHOLE = 100
PROGRAMS = ("apt-ftparchive", "dpkg-deb", "gpg")

# What `deb.write` names its packages, and makes their versions of: a number that orders, and the
# release's id.
_NAME = re.compile(r"edgepack-[a-z0-9][a-z0-9.+-]{0,200}")
_VERSION = re.compile(r"(\d{1,18})\+([0-9a-f]{12})")
# A line of `Release`: the hash, the size and the name of an index.
_INDEX = re.compile(rf"^ ([0-9a-f]{{64}}) +\d+ ({COMPONENT}/binary-[a-z0-9]+/Packages)$", re.M)
_FIELDS = ("Package", "Version", "Architecture")
# Devices that read the index before the last one still fetch what it names.
_KEPT_INDICES_S = 7 * 24 * 3600


@dataclass(frozen=True, kw_only=True, order=True)
class Published:
    """A version of a package in the repository; `phase` is the percentage of devices that apt
    offers it to."""

    package: str
    number: int
    release: str
    architecture: str
    phase: int = WHOLE

    @property
    def version(self) -> str:
        """As apt has it."""
        return f"{self.number}+{self.release}"

    @property
    def file(self) -> str:
        """Below the repository's folder."""
        name = f"{self.package}_{self.version}_{self.architecture}.deb"
        return f"pool/{COMPONENT}/{self.package}/{name}"

    @property
    def line(self) -> tuple[str, str]:
        """What has versions of its own."""
        return self.package, self.architecture


@dataclass(frozen=True, kw_only=True)
class Change:
    """What is to be done with a repository.

    `add` are packages that `package --format deb` made. `phase` is the percentage of devices for
    them; without any, for the newest version of each package, or of those called `only`.
    `withdraw` removes that version instead. `key` is gpg's name of the key that signs. Of each
    package the newest `keep` versions are kept, None for all. Indices are valid for `valid_days`,
    None for ever.
    """

    key: str
    add: Sequence[Path] = ()
    phase: int | None = None
    withdraw: bool = False
    only: Sequence[str] = ()
    keep: int | None = None
    valid_days: int | None = None


@dataclass(frozen=True, kw_only=True)
class Repository:
    """What a repository offers now, newest versions first, and what was taken out."""

    packages: tuple[Published, ...]
    withdrawn: tuple[Published, ...]


def publish(folder: Path, change: Change) -> Repository:
    """Do what `change` says with the repository in `folder`, which is made if there is none.

    Raises UsageError for a file that is no package of edgepack's, a version that is not above those
    that are there, or names of packages that are not; PackageError if a program fails, and then the
    repository is as it was; ToolMissingError.
    """
    for program in PROGRAMS:
        find_tool(program)
    _check(change)
    with locked(folder / ".publish"):
        before = _read(folder)
        added = [_read_package(path) for path in change.add]
        _check_versions(before, added)
        now = _phased({*before, *added}, added, change)
        newest = set(_newest(now, change.only))
        gone = newest if change.withdraw else set()
        now -= gone
        kept = _kept(now, change.keep)
        listed = {item.file for item in before}
        for path, item in zip(change.add, added, strict=True):
            _put(path, folder / item.file, is_listed=item.file in listed)
        _write(folder, kept, change)
        for item in {*before, *added} - {replace(one, phase=WHOLE) for one in kept}:
            _remove(folder, item, kept)
    return Repository(
        packages=tuple(sorted(kept, reverse=True)), withdrawn=tuple(sorted(gone, reverse=True))
    )


def _check(change: Change) -> None:
    if change.phase is not None and not 0 < change.phase <= WHOLE:
        # apt compares a number from 0 to 100 with the percentage: 0 lets 1 of 101 devices through.
        raise UsageError(
            f"--phase: {change.phase} is not between 1 and {WHOLE}",
            hint="--stop offers the newest version to no device any more",
        )
    if change.withdraw and (change.add or change.phase is not None):
        raise UsageError("--stop takes neither packages nor --phase")


# ---------------------------------------------------------------- what is there


def _read(folder: Path) -> set[Published]:
    """What devices are offered, with phases; nothing if there is no repository yet.

    That is what `InRelease` names: of a change that was cut, newer indices may lie beside them.
    """
    dist = folder / "dists" / SUITE
    if not (dist / "InRelease").exists():
        return set()
    found = set()
    for digest, name in _INDEX.findall((dist / "InRelease").read_text(errors="replace")):
        index = dist / Path(name).parent / "by-hash" / "SHA256" / digest
        if not index.is_file():
            raise UsageError(
                f"{index}: no such file, and InRelease names it",
                hint="bring back the folder as it was published",
            )
        for fields in _stanzas(index.read_text(errors="replace"), str(index)):
            text = fields.get("Phased-Update-Percentage", str(WHOLE))
            if not text.isdecimal() or not int(text) <= WHOLE:
                raise UsageError(f"{index}: Phased-Update-Percentage: {text[:40]!r}")
            found.add(replace(_published(fields, str(index)), phase=int(text)))
    return found


def _read_package(path: Path) -> Published:
    """The name, version and architecture that the package says it has."""
    if not path.is_file():
        raise UsageError(f"no such file: {path}")
    done = run([find_tool("dpkg-deb"), "--field", path, *_FIELDS], check=False)
    if done.returncode != 0:
        raise UsageError(
            f"{path}: not a Debian package", hint="`edgepack package --format deb` makes one"
        )
    (fields,) = _stanzas(done.stdout, str(path))
    item = _published(fields, str(path))
    if item.number == 0:
        raise UsageError(
            f"{path}: version 0: apt cannot tell which of two releases is the newer one",
            hint="set `version` in edgepack.toml, or --release-version, and raise it each time",
        )
    return item


def _stanzas(text: str, where: str) -> Iterator[dict[str, str]]:
    """The fields of each paragraph of deb822(5), those that go on in further lines cut short."""
    for paragraph in text.split("\n\n"):
        if lines := [line for line in paragraph.splitlines() if line.strip()]:
            heads = [line for line in lines if not line[0].isspace()]
            if any(":" not in line for line in heads):
                raise UsageError(f"{where}: not a list of packages")
            pairs = (line.partition(":") for line in heads)
            yield {name: value.strip() for name, _, value in pairs}


def _published(fields: Mapping[str, str], where: str) -> Published:
    name, version, architecture = (fields.get(key, "") for key in _FIELDS)
    numbers = _VERSION.fullmatch(version)
    if not _NAME.fullmatch(name) or numbers is None or architecture not in architectures():
        raise UsageError(
            f"{where}: {name[:80]!r} {version[:80]!r} ({architecture[:20]!r}) is no package of "
            "edgepack's",
            hint="`edgepack package --format deb` makes one",
        )
    return Published(
        package=name, number=int(numbers[1]), release=numbers[2], architecture=architecture
    )


def architectures() -> tuple[str, ...]:
    """Debian's names of the architectures that board profiles have."""
    return tuple(sorted({board.debian_arch for board in load_boards().values()}))


def _check_versions(before: set[Published], added: Sequence[Published]) -> None:
    for at, item in enumerate(added):
        for other in (*before, *added[:at]):
            same = (other.number, other.release) == (item.number, item.release)
            if other.line == item.line and other.number >= item.number and not same:
                raise UsageError(
                    f"{item.package}: version {item.number} (release {item.release}) is not above "
                    f"version {other.number} (release {other.release}), which is published",
                    hint="raise `version` in edgepack.toml",
                )


# ---------------------------------------------------------------- what is to be there


def _newest(items: set[Published], only: Sequence[str]) -> list[Published]:
    """The newest version of each package, or of those called `only`."""
    names = {item.package for item in items}
    for name in only:
        if name not in names:
            raise UsageError(
                f"--package: {name!r} is not in the repository",
                hint=f"there are {', '.join(sorted(names))}" if names else "it is empty",
            )
    lines: dict[tuple[str, str], Published] = {}
    for item in sorted(items):
        if not only or item.package in only:
            lines[item.line] = item
    return list(lines.values())


def _phased(items: set[Published], added: Sequence[Published], change: Change) -> set[Published]:
    """`items` with the phase of those that it is for."""
    if change.phase is None and not added:
        return items
    fresh = {replace(item, phase=WHOLE) for item in added}
    # What is added a second time is there with the phase that it has.
    items = {item for item in items if replace(item, phase=WHOLE) not in fresh} | fresh
    meant = fresh or set(_newest(items, change.only))
    phase = WHOLE if change.phase is None else change.phase
    return (items - meant) | {replace(item, phase=phase) for item in meant}


def _kept(items: set[Published], keep: int | None) -> set[Published]:
    lines: dict[tuple[str, str], list[Published]] = {}
    for item in sorted(items, reverse=True):
        lines.setdefault(item.line, []).append(item)
    return {item for versions in lines.values() for item in versions[:keep]}


# ---------------------------------------------------------------- files


def _put(source: Path, target: Path, *, is_listed: bool) -> None:
    """Copy a package into the pool. Raises UsageError if another of that name is listed: devices
    may have it."""
    if is_listed and target.exists() and target.read_bytes() != source.read_bytes():
        raise UsageError(
            f"{target.name} is published, and {source} has other bytes",
            hint="raise `version` in edgepack.toml",
        )
    _copy(source, target)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with replace_when_done(target) as work:
        shutil.copyfile(source, work / target.name)


def _remove(folder: Path, item: Published, kept: set[Published]) -> None:
    if item.file not in {one.file for one in kept}:
        (folder / item.file).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # others are in it
            (folder / item.file).parent.rmdir()


def _write(folder: Path, kept: set[Published], change: Change) -> None:
    """All indices and their signatures, the one that names all others last."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".publish-") as name:
        work = Path(name)
        dist = work / "dists" / SUITE
        for architecture, text in _indices(folder, kept).items():
            index = dist / COMPONENT / f"binary-{architecture}" / "Packages"
            index.parent.mkdir(parents=True)
            index.write_bytes(text.encode())
            index.with_suffix(".xz").write_bytes(lzma.compress(text.encode()))
        release = _release(dist, change.valid_days)
        (dist / "Release").write_text(release)
        gpg: list[str | Path] = [find_tool("gpg"), "--batch", "--yes", "--local-user", change.key]
        for words, made in (
            (["--clearsign"], "InRelease"),
            (["--detach-sign", "-a"], "Release.gpg"),
        ):
            run(
                [*gpg, "--digest-algo", "SHA512", *words, "-o", dist / made, dist / "Release"],
                error=PackageError,
                what="gpg",
            )
        run([*gpg, "-a", "-o", work / KEYRING, "--export", change.key], error=PackageError)
        _bring(work, folder)
    _forget_indices(folder)
    for part in ("dists", "pool"):  # a web server's account reads it, whatever the umask is here
        for path in (folder / part, *(folder / part).rglob("*")):
            if path.is_dir():
                path.chmod(0o755)


def _indices(folder: Path, kept: set[Published]) -> dict[str, str]:
    """The text of each architecture's index."""
    texts: dict[str, list[tuple[Published, str]]] = {name: [] for name in architectures()}
    if kept:
        done = run(
            [find_tool("apt-ftparchive"), "packages", "pool"], cwd=folder, error=PackageError
        )
        items = {item.file: item for item in kept}
        for paragraph in done.stdout.strip().split("\n\n"):
            (fields,) = _stanzas(paragraph, "apt-ftparchive")
            if item := items.pop(fields.get("Filename", ""), None):
                phase = f"\nPhased-Update-Percentage: {item.phase}" if item.phase != WHOLE else ""
                texts[item.architecture].append((item, paragraph + phase))
        if items:
            raise UsageError(
                f"{folder}: listed, and not there: {', '.join(sorted(items))}",
                hint="bring the file back, or publish a newer version to another folder",
            )
    return {
        name: "".join(f"{paragraph}\n\n" for _, paragraph in sorted(texts[name])) for name in texts
    }


def _release(dist: Path, valid_days: int | None) -> str:
    """The text of `Release`: hashes of the indices in `dist`."""
    values = {
        "Origin": ORIGIN,
        "Label": ORIGIN,
        "Suite": SUITE,
        "Codename": SUITE,
        "Components": COMPONENT,
        "Architectures": " ".join(architectures()),
        "Description": "Models and the programs that run them",
    }
    if valid_days is not None:
        values["ValidTime"] = str(valid_days * 24 * 3600)
    # apt asks for an index by the strongest hash that is listed, and by-hash/ has this one alone.
    values |= dict.fromkeys(("MD5", "SHA1", "SHA512"), "false")
    words = [f"-oAPT::FTPArchive::Release::{name}={value}" for name, value in values.items()]
    done = run([find_tool("apt-ftparchive"), *words, "release", dist], error=PackageError)
    return f"Acquire-By-Hash: yes\n{done.stdout}"


def _bring(work: Path, folder: Path) -> None:
    """What was made in `work` to its place, in the order in which a reader may see it."""
    dist = Path("dists") / SUITE
    indices = sorted(path for path in (work / dist / COMPONENT).rglob("*") if path.is_file())
    for path in indices:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        name = path.relative_to(work).parent / "by-hash" / "SHA256" / digest
        _copy(path, folder / name)
    last = [
        work / KEYRING,
        *(work / dist / name for name in ("Release", "Release.gpg", "InRelease")),
    ]
    _let_its_second_pass(folder / dist / "InRelease")
    for path in (*indices, *last):
        _copy(path, folder / path.relative_to(work))


def _let_its_second_pass(release: Path) -> None:
    """Wait until a file written now has a later time in HTTP than the one that is there.

    `Last-Modified` has whole seconds (RFC 9110, 8.8.2.1): a device that read the file before would
    be told "not modified" until the change after this one.
    """
    with contextlib.suppress(FileNotFoundError):
        written = release.stat().st_mtime
        now = time.time()
        if int(written) == int(now):
            # Times of files may be a tick of the kernel behind the clock.
            time.sleep(int(now) + 1.01 - now)


def _forget_indices(folder: Path) -> None:
    """Remove indices under their hashes that no reader asks for any more."""
    old = time.time() - _KEPT_INDICES_S
    for index in folder.glob(f"dists/{SUITE}/{COMPONENT}/binary-*"):
        present = {
            hashlib.sha256(path.read_bytes()).hexdigest() for path in index.glob("Packages*")
        }
        for path in index.glob("by-hash/SHA256/*"):
            if path.name not in present and path.stat().st_mtime < old:
                path.unlink()
