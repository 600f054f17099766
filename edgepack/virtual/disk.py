"""Disks of full-system boards: ext4 images made from a folder without root."""

from __future__ import annotations

import os
from pathlib import Path

from edgepack.base.process import run
from edgepack.base.tools import find_tool
from edgepack.virtual.errors import RootfsError


def make_disk(root: Path, image: Path, *, size_mb: int) -> None:
    """Write the folder `root` to a new ext4 file system in `image`; all files become root's.

    The file is sparse. Raises RootfsError (e.g. if `root` does not fit), ToolMissingError.
    """
    work = image.with_suffix(".part")
    work.unlink(missing_ok=True)
    lazy = "root_owner=0:0,lazy_itable_init=1,lazy_journal_init=1"
    # 4096-byte blocks at every size and none kept for root: "disk full" comes when it is full.
    options = ("-q", "-t", "ext4", "-b", "4096", "-m", "0", "-E", lazy, "-L", "board", "-d", root)
    run(
        [find_tool("mke2fs"), *options, work, f"{size_mb}M"],
        error=RootfsError,
        what=f"making a disk of {size_mb} MB",
    )
    if os.getuid() != 0:
        _give_to_root(root, work)
    work.rename(image)


def _give_to_root(root: Path, image: Path) -> None:
    """mke2fs copies the owner of each file, here an ordinary user: set both ids to 0."""
    commands = []
    for folder, folders, files in os.walk(root):
        inside = Path("/") / Path(folder).relative_to(root)
        for name in (*folders, *files):
            commands += [f'set_inode_field "{inside / name}" {field} 0' for field in ("uid", "gid")]
    run(
        [find_tool("debugfs"), "-w", "-f", "-", image],
        input="\n".join(commands).encode(),
        error=RootfsError,
        what="setting owners on a disk",
    )
