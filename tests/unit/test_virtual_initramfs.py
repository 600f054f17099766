from __future__ import annotations

import gzip
import stat
from pathlib import Path

import pytest

from edgepack.virtual import initramfs
from edgepack.virtual.errors import RootfsError
from edgepack.virtual.files import BoardFile
from edgepack.virtual.kernel import GuestKernel, load_order


def read_cpio(data: bytes) -> dict[str, tuple[int, int, bytes]]:
    """Mode, owner and content of each member of a "newc" archive."""
    members: dict[str, tuple[int, int, bytes]] = {}
    at = 0
    while True:
        assert data[at : at + 6] == b"070701"
        fields = [int(data[at + 6 + 8 * i : at + 14 + 8 * i], 16) for i in range(13)]
        mode, uid, gid, size, name_size = (fields[i] for i in (1, 2, 3, 6, 11))
        assert uid == gid
        name = data[at + 110 : at + 110 + name_size - 1].decode()
        at = (at + 110 + name_size + 3) // 4 * 4
        if name == "TRAILER!!!":
            return members
        members[name] = (mode, uid, data[at : at + size])
        at = (at + size + 3) // 4 * 4


@pytest.fixture
def kernel(tmp_path: Path) -> GuestKernel:
    modules = [tmp_path / "one.ko", tmp_path / "two.ko"]
    for path in (*modules, tmp_path / "busybox"):
        path.write_bytes(path.name.encode())
    return GuestKernel(
        image=tmp_path / "vmlinuz", busybox=tmp_path / "busybox", modules=tuple(modules)
    )


def test_archive(kernel: GuestKernel) -> None:
    files = [
        BoardFile(path="/etc/hostname", data=b"pynq\n"),
        BoardFile(path="/root/.ssh/authorized_keys", data=b"key\n", mode=0o600),
        BoardFile(path="/home/pi/.ssh/authorized_keys", data=b"key\n", mode=0o600, owner="pi"),
    ]
    members = read_cpio(gzip.decompress(initramfs.build(kernel, files)))
    assert members["init"][0] == stat.S_IFREG | 0o755
    assert members["order"][2] == b"one.ko\ntwo.ko\n"
    assert members["modules/two.ko"][2] == b"two.ko"
    assert members["files/etc/hostname"] == (stat.S_IFREG | 0o644, 0, b"pynq\n")
    assert members["files/root/.ssh"] == (stat.S_IFDIR | 0o700, 0, b"")
    assert members["files/root/.ssh/authorized_keys"][:2] == (stat.S_IFREG | 0o600, 0)
    assert members["files/home"] == (stat.S_IFDIR | 0o755, 0, b"")
    assert members["files/home/pi"] == (stat.S_IFDIR | 0o755, 1000, b"")
    assert members["files/home/pi/.ssh"] == (stat.S_IFDIR | 0o700, 1000, b"")
    assert members["files/home/pi/.ssh/authorized_keys"][1] == 1000


def test_every_folder_comes_before_what_is_in_it(kernel: GuestKernel) -> None:
    file = BoardFile(path="/a/b/c/d", data=b"")
    names = list(read_cpio(gzip.decompress(initramfs.build(kernel, [file]))))
    for index, name in enumerate(names):
        parent = str(Path(name).parent)
        assert parent == "." or parent in names[:index]


def test_equal_input_gives_equal_bytes(kernel: GuestKernel) -> None:
    assert initramfs.build(kernel, []) == initramfs.build(kernel, [])


def modules(tmp_path: Path, **depends: str) -> dict[str, Path]:
    files = {}
    for name, needed in depends.items():
        files[name] = tmp_path / f"{name}.ko"
        files[name].write_bytes(b"\x7fELF\0license=GPL\0depends=" + needed.encode() + b"\0x=y\0")
    return files


def test_modules_are_loaded_after_what_they_need(tmp_path: Path) -> None:
    files = modules(tmp_path, virtio="", virtio_ring="virtio", virtio_net="virtio-ring,failover")
    files |= modules(tmp_path, failover="", unused="")
    order = load_order(("virtio-net", "virtio_ring"), files)
    assert [path.stem for path in order] == ["virtio", "virtio_ring", "failover", "virtio_net"]


def test_a_missing_module_is_named(tmp_path: Path) -> None:
    with pytest.raises(RootfsError, match="virtio_ring"):
        load_order(("virtio_net",), modules(tmp_path, virtio_net="virtio_ring"))
