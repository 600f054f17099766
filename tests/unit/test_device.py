"""Addresses, configuration files, this machine as a device."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgepack.base.errors import RemoteError, UsageError
from edgepack.boards import get_board
from edgepack.device import (
    Address,
    ConnectionLostError,
    LocalDevice,
    RemoteCommandError,
    RemoteTimeout,
    open_device,
)
from edgepack.device.base import RemoteResult
from edgepack.device.errors import DiskFullError, command_error


@pytest.mark.parametrize(
    ("spec", "address"),
    [
        ("board", Address(host="board")),
        ("pi@board", Address(host="board", user="pi")),
        ("pi@10.0.0.1:2222", Address(host="10.0.0.1", user="pi", port=2222)),
        ("pi@[fe80::1]:22", Address(host="fe80::1", user="pi", port=22)),
        ("[fe80::1%eth0]", Address(host="fe80::1%eth0")),
    ],
)
def test_addresses(spec: str, address: Address) -> None:
    assert Address.parse(spec) == address
    assert str(address) == spec


@pytest.mark.parametrize(
    ("spec", "address"),
    [
        ("ssh://pi@board:2222", Address(host="board", user="pi", port=2222)),
        ("ssh://board/", Address(host="board")),
        ("ssh://a%40b@[fe80::1]:22", Address(host="fe80::1", user="a@b", port=22)),
        ("a@b@board", Address(host="board", user="a@b")),
    ],
)
def test_addresses_as_ssh_takes_them(spec: str, address: Address) -> None:
    assert Address.parse(spec) == address


@pytest.mark.parametrize(
    "spec",
    ["", "@board", "pi@", "board:", "board:99999", "board:0", "a b", "-oProxyCommand=x", "fe80::1"],
)
def test_what_is_no_address(spec: str) -> None:
    with pytest.raises(UsageError, match="not a device"):
        Address.parse(spec)


def test_local_is_for_the_local_board_only() -> None:
    with pytest.raises(UsageError, match="rasp3b is not this machine"):
        open_device("local", get_board("rasp3b"))
    assert isinstance(open_device("local", get_board("local")), LocalDevice)


def test_local_commands(tmp_path: Path) -> None:
    device = LocalDevice(tmp_path)
    done = device.run('echo "$PWD"; echo error >&2; exit 3', check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, f"{tmp_path}\n", "error\n")
    with pytest.raises(RemoteCommandError) as failed:
        device.run("for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo line $i; done; false")
    assert "line 3\n" in failed.value.message
    assert "line 2\n" not in failed.value.message
    assert failed.value.exit_code == 7
    with pytest.raises(RemoteTimeout) as late:
        device.run("sleep 1000; true", timeout_s=0.1)
    assert late.value.exit_code == 9
    assert device.run("kill -SEGV $$", check=False).returncode == 139


def test_local_files(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    device = LocalDevice(home)
    source = tmp_path / "source"
    source.write_bytes(b"0123456789")
    sizes: list[int] = []
    device.mkdir("a/b")
    device.put(source, "a/b/file", sent=sizes.append)
    assert sum(sizes) == 10
    (home / "a/b/file").write_bytes(b"01234")
    device.put(source, "a/b/file", offset=5)
    assert (home / "a/b/file").read_bytes() == b"0123456789"
    device.get("a/b/file", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == b"0123456789"
    device.run("ln -s one link; ln -s two link.new")
    device.rename("link.new", "link")
    assert (home / "link").readlink() == Path("two")
    with pytest.raises(RemoteError, match="missing on local: No such file"):
        device.get("missing", tmp_path / "back")
    with pytest.raises(RemoteError):
        device.put(source, "no/folder")


def test_a_full_disk_is_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(DiskFullError) as full:
        LocalDevice(tmp_path).run("cat /etc/passwd >/dev/full")
    assert full.value.exit_code == 7
    assert full.value.hint is not None
    source = tmp_path / "source"
    source.write_bytes(b"x")
    with pytest.raises(DiskFullError):
        LocalDevice(tmp_path).put(source, "/dev/full")


def test_long_commands_are_cut_in_messages() -> None:
    result = RemoteResult(command="x" * 500 + "\nsecond", returncode=1, stdout="", stderr="")
    message = command_error("board", result).message
    assert "second" not in message
    assert len(message) < 200


def test_talking_to_a_local_command(tmp_path: Path) -> None:
    device = LocalDevice(tmp_path)
    stream = device.open(
        'while read -r word; do echo "<$word>"; done; echo late; echo no >&2; exit 4'
    )
    stream.write(b"a\nb c\n")
    assert [stream.read_line(), stream.read_line()] == [b"<a>\n", b"<b c>\n"]
    with pytest.raises(ConnectionLostError, match=r"no answer for 0\.1 s"):
        stream.read_line(0.1)
    done = stream.finish()
    assert (done.returncode, done.stdout, done.stderr) == (4, "late\n", "no\n")


def test_a_command_that_hangs_up(tmp_path: Path) -> None:
    stream = LocalDevice(tmp_path).open("echo why; exec <&-; sleep 0.2; exit 1")
    with pytest.raises(BrokenPipeError):
        while True:
            stream.write(bytes(1 << 16))
    assert stream.read_line() == b"why\n"
    assert stream.read_line() == b""
    assert stream.finish().returncode == 1
