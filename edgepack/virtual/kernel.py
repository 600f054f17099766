"""The kernel of full-system boards: Debian's for arm64, with the few modules it boots by."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from edgepack.base.paths import atomic_dir, cache_dir, locked
from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.virtual import apt
from edgepack.virtual.errors import RootfsError

# Cloud kernels are Debian's smallest: ext4 built in, drivers for virtual machines only.
_SUITE = "bookworm"
_PACKAGES = ("linux-image-cloud-arm64", "busybox-static")
_MODULES = ("virtio_pci", "virtio_blk", "virtio_net", "virtio-rng")
_UNWANTED = ("/etc/*", "/usr/*", "/var/*")


@dataclass(frozen=True, kw_only=True)
class GuestKernel:
    """A kernel image, a static busybox, and modules in the order to load them."""

    image: Path
    busybox: Path
    modules: tuple[Path, ...]


def kernel(*, progress: Progress = NO_PROGRESS) -> GuestKernel:
    """The kernel for full-system boards, fetched once (about 10 s, 30 MB) and then cached.

    Raises RootfsError, ToolMissingError.
    """
    recipe = json.dumps([_SUITE, _PACKAGES, _MODULES])
    digest = hashlib.sha256(recipe.encode()).hexdigest()[:12]
    folder = cache_dir() / "kernel" / f"{_SUITE}-arm64-{digest}"
    with locked(folder):
        if not folder.exists():
            progress.step("fetching the kernel of full-system boards")
            with atomic_dir(folder) as work:
                _fetch(work)
    names = json.loads((folder / "modules.json").read_text())
    return GuestKernel(
        image=folder / "vmlinuz",
        busybox=folder / "busybox",
        modules=tuple(folder / name for name in names),
    )


def _fetch(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        tree = Path(name)
        apt.unpack(_PACKAGES, tree, suite=_SUITE, arch="arm64", exclude=_UNWANTED)
        images = list(tree.glob("boot/vmlinuz-*"))
        if len(images) != 1:
            raise RootfsError(f"{_PACKAGES[0]} of {_SUITE} holds {len(images)} kernels, not one")
        shutil.copy(images[0], folder / "vmlinuz")
        shutil.copy(tree / "bin/busybox", folder / "busybox")
        files = {_plain(path.stem): path for path in tree.glob("lib/modules/*/kernel/**/*.ko")}
        order = load_order(_MODULES, files)
        for path in order:
            shutil.copy(path, folder)
    (folder / "modules.json").write_text(json.dumps([path.name for path in order]))


def load_order(wanted: tuple[str, ...], files: dict[str, Path]) -> list[Path]:
    """The files of `wanted` modules and all they depend on, each after those it needs.

    `files` are all modules by name, with "-" as "_". Raises RootfsError for a missing one.
    """
    order: dict[str, Path] = {}

    def add(name: str) -> None:
        if name in order:
            return
        if name not in files:
            raise RootfsError(f"kernel module {name} is missing from {_PACKAGES[0]}")
        # The .modinfo section: strings "key=value", each ended by a zero byte.
        depends = re.search(rb"\0depends=([^\0]*)\0", files[name].read_bytes())
        for other in depends[1].decode().split(",") if depends else ():
            if other:
                add(_plain(other))
        order[name] = files[name]

    for name in wanted:
        add(_plain(name))
    return list(order.values())


def _plain(module: str) -> str:
    return module.replace("-", "_")
