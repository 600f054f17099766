from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from pathlib import Path

import pytest

from edgepack.bundle.tarball import ArchiveError, UnsafeArchiveError, unpack_tar_gz, write_tar_gz


def member(name: str, data: bytes = b"", **fields: object) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    return info.tobuf(tarfile.GNU_FORMAT) + data + b"\0" * (-len(data) % 512)


def archive(tmp_path: Path, *members: bytes, end: bytes = b"\0" * 1024) -> Path:
    path = tmp_path / "x.tar.gz"
    path.write_bytes(gzip.compress(b"".join(members) + end))
    return path


GOOD = member("top/manifest.json", b"{}")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    path = tmp_path / "deep" / "out"
    path.mkdir(parents=True)
    return path


def outside(out: Path) -> list[str]:
    """What is beside `out`, where an attack would leave something."""
    return sorted(str(path) for path in out.parent.iterdir() if path != out)


def test_plain_files_and_folders(tmp_path: Path, out: Path) -> None:
    path = archive(
        tmp_path,
        member("top/", type=tarfile.DIRTYPE, mode=0o700),
        GOOD,
        member("top/bin/app", b"x" * 700, mode=0o4711, uid=7, mtime=5),
        member("top/empty"),
    )
    top = unpack_tar_gz(path, out)
    assert top == out / "top"
    assert (top / "bin/app").read_bytes() == b"x" * 700
    assert (top / "bin/app").stat().st_mode & 0o7777 == 0o755
    assert (top / "manifest.json").stat().st_mode & 0o7777 == 0o644
    assert (top / "empty").read_bytes() == b""


@pytest.mark.parametrize(
    ("attack", "message"),
    [(member("../evil", b"x"), "'../evil' is not a safe relative path"),
     (member("top/../../evil", b"x"), "not a safe relative path"),
     (member("/tmp/evil", b"x"), "'/tmp/evil' is not a safe relative path"),
     (member("top/./evil", b"x"), "not a safe relative path"),
     (member("top\\..\\evil", b"x"), "not a safe relative path"),
     (member("top/C:evil", b"x"), "not a safe relative path"),
     (member("top/-rf", b"x"), "not a safe relative path"),
     (member("top/new\nline", b"x"), "not a safe relative path"),
     (member("other/file", b"x"), "outside its top folder 'top'"),
     (member("top", b"x"), "outside its top folder 'top'"),
     (member("top/l", type=tarfile.SYMTYPE, linkname="/etc"), "'top/l' is a symbolic link"),
     (member("top/l", type=tarfile.LNKTYPE, linkname="/etc/passwd"), "is a hard link"),
     (member("top/d", type=tarfile.CHRTYPE, devmajor=1, devminor=3), "is a character device"),
     (member("top/d", type=tarfile.BLKTYPE, devmajor=8), "is a block device"),
     (member("top/p", type=tarfile.FIFOTYPE), "is a named pipe"),
     (member("top/s", type=tarfile.GNUTYPE_SPARSE), "of tar type"),
     (member("top/c", b"x", type=tarfile.CONTTYPE), "of tar type"),
     (member("top/x", b"30 path=../../../evil\n", type=tarfile.XHDTYPE), "of tar type"),
     (member("././@LongLink", b"../evil\0", type=tarfile.GNUTYPE_LONGNAME), "of tar type"),
     (GOOD, "'top/manifest.json' is there twice"),
     (member("top/manifest.json/x", b"x"), "is a file and a folder"),
     (member("top/manifest.json/", type=tarfile.DIRTYPE), "there twice"),
     (member("top/a/b", b"x") + member("top/a", b"x"), "is a file and a folder"),
     (member("top/f/", b"x" * 9, type=tarfile.DIRTYPE), "impossible size")],
)  # fmt: skip
def test_attacks(tmp_path: Path, out: Path, attack: bytes, message: str) -> None:
    with pytest.raises(UnsafeArchiveError, match=message.replace("\\", "\\\\")):
        unpack_tar_gz(archive(tmp_path, GOOD, attack), out)
    assert outside(out) == []


def test_a_link_cannot_be_written_through(tmp_path: Path, out: Path) -> None:
    link = member("top/l", type=tarfile.SYMTYPE, linkname="../..")
    with pytest.raises(UnsafeArchiveError, match="symbolic link"):
        unpack_tar_gz(archive(tmp_path, GOOD, link, member("top/l/evil", b"x")), out)
    assert outside(out) == []


def test_a_negative_size_is_refused(tmp_path: Path, out: Path) -> None:
    info = tarfile.TarInfo("top/x")
    info.size = -512
    with pytest.raises(UnsafeArchiveError, match="impossible size"):
        unpack_tar_gz(archive(tmp_path, GOOD, info.tobuf(tarfile.GNU_FORMAT)), out)


def test_limits(tmp_path: Path, out: Path) -> None:
    many = [member(f"top/{i}") for i in range(20)]
    with pytest.raises(UnsafeArchiveError, match="more than 10 members"):
        unpack_tar_gz(archive(tmp_path, *many), out, max_members=10)


@pytest.mark.parametrize("honest", [True, False])
def test_a_bomb_stops_at_the_limit(tmp_path: Path, out: Path, honest: bool) -> None:
    if honest:  # says its size
        path = archive(tmp_path, GOOD, member("top/bomb", bytes(4 << 20)))
    else:  # hides it after the end
        path = archive(tmp_path, GOOD, end=b"\0" * 1024 + bytes(4 << 20))
    assert path.stat().st_size < 10_000
    with pytest.raises(UnsafeArchiveError, match="more than 1048576 bytes"):
        unpack_tar_gz(path, out, max_bytes=1 << 20)
    assert sum(file.stat().st_size for file in out.rglob("*") if file.is_file()) <= 1 << 20


@pytest.mark.parametrize("keep", [0, 1, 10, 40, -20, -9, -1])
def test_a_truncated_archive_is_no_archive(tmp_path: Path, out: Path, keep: int) -> None:
    path = archive(tmp_path, GOOD, member("top/random", zlib.compress(bytes(range(256)) * 9)))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ArchiveError, match=r"x.tar.gz"):
        unpack_tar_gz(path, out)


def test_without_the_end_mark_it_is_truncated(tmp_path: Path, out: Path) -> None:
    with pytest.raises(ArchiveError, match="too early"):
        unpack_tar_gz(archive(tmp_path, GOOD, end=b""), out)


def test_a_wrong_checksum_is_noticed(tmp_path: Path, out: Path) -> None:
    path = archive(tmp_path, GOOD)
    data = bytearray(path.read_bytes())
    data[-8] ^= 1
    path.write_bytes(data)
    with pytest.raises(ArchiveError, match="CRC"):
        unpack_tar_gz(path, out)


@pytest.mark.parametrize("content", [b"", b"hello" * 200, GOOD[:100] + b"x" + GOOD[101:]])
def test_no_tar_inside(tmp_path: Path, out: Path, content: bytes) -> None:
    with pytest.raises(ArchiveError):
        unpack_tar_gz(archive(tmp_path, content), out)


def test_an_empty_archive(tmp_path: Path, out: Path) -> None:
    with pytest.raises(ArchiveError, match="empty"):
        unpack_tar_gz(archive(tmp_path), out)


@pytest.mark.parametrize("size", [0, 1, 511, 512, 0xFFFF - 512, 0xFFFF, 200_000, (1 << 20) + 3])
def test_what_is_written_is_a_gzip_and_a_tar(tmp_path: Path, size: int) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(i % 251 for i in range(size)))
    path = tmp_path / "out.tar.gz"
    write_tar_gz(path, "top", [("bin/app", source, 0o755)], mtime=7)
    data = path.read_bytes()
    assert data[:10] == b"\x1f\x8b\x08\0\0\0\0\0\0\xff"  # no name, no time
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(data))) as tar:
        [info] = tar.getmembers()
        assert (info.name, info.mode, info.mtime) == ("top/bin/app", 0o755, 7)
        assert (info.uid, info.gid, info.uname, info.gname) == (0, 0, "", "")
        file = tar.extractfile(info)
        assert file is not None
        assert file.read() == source.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o644


def test_the_bytes_are_fixed(tmp_path: Path) -> None:
    """A golden hash: another Python, zlib or platform must give the same."""
    source = tmp_path / "source"
    source.write_bytes(b"edgepack" * 20_000)
    digest = write_tar_gz(tmp_path / "x.tar.gz", "top", [("a", source, 0o644)])
    assert digest == "5de011e8da774722bd32686cfd0c772759a2849cd842f8d8e71dab57ca1523b8"


def test_nothing_is_left_of_an_archive_that_failed(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_tar_gz(tmp_path / "x.tar.gz", "top", [("a", tmp_path / "nowhere", 0o644)])
    assert list(tmp_path.iterdir()) == []
