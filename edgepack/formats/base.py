"""What all formats share: what is asked for, what comes out, the programs that make it."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgepack.base.errors import BundleError, ToolchainError
from edgepack.base.process import run
from edgepack.base.tools import find_tool
from edgepack.boards import Board
from edgepack.bundle.bundle import Bundle

INSTALLER = "install"
SCRIPTS = Path(__file__).parent / "scripts"


class PackageError(ToolchainError):
    """A program that makes a package failed."""


class NoInstallerError(BundleError):
    """The bundle has no installer of its own."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the maker of a package chooses.

    `epoch` (SOURCE_DATE_EPOCH, seconds) is the time of every file in it. `key` and `cert`
    are PEM files that Mender and RAUC sign with. `compatible` is the device's kind in their
    words (Mender's device type, RAUC's compatible); None stands for the board's name.
    """

    epoch: int = 0
    key: Path | None = None
    cert: Path | None = None
    compatible: str | None = None


@dataclass(frozen=True, kw_only=True)
class PackageRequest:
    """A package to be made of `bundle`, which is for `board`, in the folder `out`."""

    bundle: Bundle
    board: Board
    out: Path
    options: Options

    @property
    def device_kind(self) -> str:
        """`compatible`, or the board's name."""
        return self.options.compatible or self.board.name

    def file(self, suffix: str) -> Path:
        """Where the package goes: `<name>-<board>-<release>` and `suffix`."""
        return self.out / f"{self.bundle.manifest.folder_name}{suffix}"


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package that was written. `use` says, in shell words, what to do with it."""

    format: str
    path: Path
    sha256: str
    size_bytes: int
    use: str


def package(kind: str, path: Path, use: str) -> Package:
    """The `Package` for the file `path`."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Package(format=kind, path=path, sha256=digest, size_bytes=path.stat().st_size, use=use)


def script(name: str, values: Mapping[str, str]) -> str:
    """The shell script `name` of this package with each `@KEY@` replaced.

    The values are names and versions that the manifest's checks have left no shell sign in.
    """
    text = (SCRIPTS / name).read_text()
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text


def need_installer(bundle: Bundle) -> None:
    """Raise NoInstallerError unless the bundle can install itself."""
    if INSTALLER not in bundle.manifest.files:
        raise NoInstallerError(
            f"{bundle.path}: no installer in this bundle (schema {bundle.manifest.schema})",
            hint="make it again with this edgepack; --format tar and oci need none",
        )


def plain_modes(folder: Path) -> None:
    """Give all in `folder` the mode 0755 or 0644, whatever the umask was when it was made."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)


def run_tool(
    program: str, arguments: Sequence[str | Path], *, env: Mapping[str, str] | None = None
) -> None:
    """Run a packaging program. Raises ToolMissingError with the apt package, PackageError."""
    run([find_tool(program), *arguments], env=env, error=PackageError, what=program)


@contextlib.contextmanager
def replace_when_done(target: Path) -> Iterator[Path]:
    """A folder beside `target` to work in; the file `target.name` in it becomes `target`."""
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as name:
        yield Path(name)
        made = Path(name) / target.name
        made.chmod(0o644)
        made.replace(target)
