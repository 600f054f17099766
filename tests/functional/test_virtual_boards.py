"""Real boards, real logins. Root file systems and the kernel come from the user's own cache."""

from __future__ import annotations

import contextlib
import os
import platform
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import edgepack
from edgepack import virtual
from edgepack.base import paths
from edgepack.boards import get_board
from edgepack.cli import main
from edgepack.virtual import disk, errors, launcher, state
from edgepack.virtual.rootfs import rootfs
from edgepack.virtual.state import VirtualBoard
from tests.boards import own_cache

RequireTool = Callable[..., str]
LIGHT_TOOLS = ("qemu-arm-static", "mmdebstrap", "ssh", "ssh-keygen")


@pytest.fixture(scope="module", autouse=True)
def cache() -> Iterator[Path]:
    """Boards and keys of our own, so that no board of the user's is touched."""
    with own_cache() as folder:
        yield folder


@pytest.fixture(autouse=True)
def tools(require_tool: RequireTool) -> None:
    for name in LIGHT_TOOLS:
        require_tool(name, name.removesuffix("-static"))


def on(
    board: VirtualBoard, command: str, *, login: str = "pi", check: bool = True, data: bytes = b""
) -> str:
    """What `command` prints on the board."""
    ssh = virtual.ssh_command(board)
    ssh[-1] = f"{login}@{board.host}"
    done = subprocess.run(
        [*ssh, command], input=data, capture_output=True, timeout=120, check=False
    )
    if check:
        assert done.returncode == 0, done.stderr.decode()
    return (done.stdout + done.stderr).decode()


def descendants(pid: int) -> set[int]:
    """All processes below `pid`."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            text = (folder / "stat").read_text()
            parents[int(folder.name)] = int(text.rpartition(")")[2].split()[1])
    found = {pid}
    while new := {child for child, parent in parents.items() if parent in found} - found:
        found |= new
    return found


def compile_for_arm(require_tool: RequireTool, folder: Path, code: str) -> bytes:
    """A static ARMv7 program of `code`."""
    gcc = require_tool("arm-linux-gnueabihf-gcc")
    source = folder / "program.c"
    source.write_text(code)
    flags = ("-static", "-O1", "-marm", "-march=armv7ve+vfpv3-d16")
    subprocess.run([gcc, *flags, source, "-o", folder / "program"], check=True)
    return (folder / "program").read_bytes()


@pytest.mark.parametrize(
    ("name", "suite", "machine", "glibc"),
    [
        ("rasp3b", "bullseye", "armv7l", "2.31"),
        ("pynq", "bookworm", "armv7l", "2.36"),
        ("rk3399", "trixie", "aarch64", "2.41"),
    ],
)
def test_a_board_is_what_it_says(name: str, suite: str, machine: str, glibc: str) -> None:
    profile = get_board(name)
    board = virtual.up(profile, suite=suite)
    try:
        assert (board.name, board.kind, board.host) == (name, "light", "127.0.0.1")
        assert on(board, "uname -m; hostname; id -un").split() == [machine, name, "pi"]
        assert on(board, "ldd --version").splitlines()[0].endswith(f" {glibc}")
        info = on(board, "cat /proc/cpuinfo")
        assert info.count("processor\t") == profile.cores
        for line in info.splitlines():
            if line.startswith("Features"):
                assert set(profile.hwcaps) <= set(line.split())
        memory_kb = int(on(board, "cat /proc/meminfo").split()[1])
        assert memory_kb == profile.memory_mb * 1024
        assert on(board, "cat /sys/devices/system/cpu/present") == f"0-{profile.cores - 1}\n"
        tools = ("sh", "sha256sum", "df", "ln", "mv", "tar", "cat", "mkdir", "sync", "getconf")
        assert len(on(board, f"type -P {' '.join(tools)}").split()) == len(tools)
        # Nothing of this machine is there: neither its files nor its network.
        assert "No such file" in on(board, f"ls {state.folder(name)}", check=False)
        assert on(board, "ip -o link | wc -l") == "1\n"
    finally:
        assert virtual.down(name)


def test_a_root_file_system_belongs_to_its_maker(tmp_path: Path) -> None:
    # In a folder that apt's own user can reach, apt would hand parts of it to that user.
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "_cache_dir", tmp_path)
        base = rootfs("bullseye", "armhf")
    assert {path.lstat().st_uid for path in base.rglob("*")} == {os.getuid()}


def test_up_is_idempotent_and_down_leaves_nothing() -> None:
    rasp3b = get_board("rasp3b")
    board = virtual.up(rasp3b)
    assert virtual.up(rasp3b) == board
    assert board in virtual.list_running()
    assert stat.S_IMODE(board.key_file.stat().st_mode) == 0o600
    on(board, "touch kept; nohup sleep 1000 >/dev/null 2>&1 & echo started")
    folder = state.folder(board.name)
    started = {pid: state.start_time(pid) for pid in descendants(board.pid)}
    assert len(started) >= 4
    assert virtual.down(board.name)
    assert not [pid for pid, at in started.items() if state.start_time(pid) == at and at]
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()
    assert not folder.exists()
    assert virtual.list_running() == []
    assert not virtual.down(board.name)
    # The same name has the same host key, but nothing of what was on it.
    again = virtual.up(rasp3b)
    assert again.host_key.split()[1:] == board.host_key.split()[1:]
    assert "kept" not in on(again, "ls")
    virtual.down(again.name)


def test_a_killed_board_is_gone_and_comes_back() -> None:
    rasp3b = get_board("rasp3b")
    board = virtual.up(rasp3b)
    below = {pid: state.start_time(pid) for pid in descendants(board.pid)}
    virtual.cut_power(board)
    again = virtual.up(rasp3b)
    assert again.pid != board.pid
    assert virtual.list_running() == [again]
    assert on(again, "echo alive") == "alive\n"
    assert not [pid for pid, at in below.items() if state.start_time(pid) == at and at]
    virtual.down(again.name)


def test_a_board_whose_files_were_deleted_is_started_anew(cache: Path) -> None:
    rasp3b = get_board("rasp3b")
    board = virtual.up(rasp3b)
    shutil.rmtree(cache / "virtual/keys")
    again = virtual.up(rasp3b)
    assert again.pid != board.pid
    assert state.start_time(board.pid) is None
    assert on(again, "echo alive") == "alive\n"
    virtual.down(again.name)


def test_two_boards_at_once(require_tool: RequireTool, tmp_path: Path) -> None:
    """They differ in CPU: SDIV works on a Cortex-A53 and is an illegal instruction on an A9."""
    divide = compile_for_arm(
        require_tool,
        tmp_path,
        """
        #include <stdio.h>
        int main(int argc, char** argv) {
          int quotient;
          __asm__ volatile("sdiv %0, %1, %2" : "=r"(quotient) : "r"(84), "r"(argc + 1));
          printf("%d\\n", quotient);
        }
        """,
    )
    rasp3b = virtual.up(get_board("rasp3b"))
    pynq = virtual.up(get_board("pynq"))
    second = virtual.up(get_board("pynq"), name="pynq-2")
    try:
        assert virtual.list_running() == [pynq, second, rasp3b]
        assert len({rasp3b.port, pynq.port, second.port}) == 3
        assert len({board.host_key.split()[2] for board in (rasp3b, pynq, second)}) == 3
        command = "exec 2>/dev/null; cat > divide; chmod +x divide; ./divide; echo $?"
        assert on(rasp3b, command, data=divide) == "42\n0\n"
        illegal = 128 + signal.SIGILL
        assert on(pynq, command, data=divide).split()[-1] == str(illegal)
        assert "divide" not in on(second, "ls")
        # A login without a terminal and one with, as pi and as root.
        if os.getuid() == 0:
            assert on(pynq, "id -u; pwd", login="root").split() == ["0", "/root"]
        virtual.down("pynq")
        assert virtual.list_running() == [second, rasp3b]
        assert on(second, "hostname") == "pynq-2\n"
    finally:
        for name in ("rasp3b", "pynq", "pynq-2"):
            virtual.down(name)


def test_a_full_disk_is_full() -> None:
    board = virtual.up(get_board("rasp3b"), disk_mb=64)
    assert board.disk_mb == 64
    text = on(board, "dd if=/dev/zero of=big bs=1M count=100", check=False)
    assert "No space left on device" in text
    assert 40 < int(on(board, "stat -c %s big")) >> 20 <= 64
    on(board, "rm big; echo data > small; sync; cat small")
    virtual.down(board.name)


def test_files_travel_by_sftp_with_posix_rename(require_tool: RequireTool, tmp_path: Path) -> None:
    board = virtual.up(get_board("rasp3b"))
    (tmp_path / "data").write_bytes(os.urandom(3 << 20))
    ssh = virtual.ssh_command(board)
    options = ssh[1 : ssh.index("-p")]
    batch = (
        f"put {tmp_path / 'data'} data.part\nput {tmp_path / 'data'} data\nrename data.part data\n"
    )
    sftp = [require_tool("sftp"), *options, "-P", str(board.port), "-b", "-", ssh[-1]]
    subprocess.run(sftp, input=batch.encode(), check=True, capture_output=True)
    digest = subprocess.run(
        ["sha256sum", tmp_path / "data"], check=True, capture_output=True
    ).stdout.split()[0]
    assert on(board, "sha256sum data").split()[0] == digest.decode()
    assert on(board, "ls") == "data\n"

    # There and back by scp, a folder and a name that scp could take for something else.
    folder = tmp_path / "a b"
    folder.mkdir()
    (folder / "-x:y").write_bytes(b"1")
    assert main(["board", "cp", "rasp3b", str(folder), ":kept"]) == 0
    assert on(board, "ls kept") == "-x:y\n"
    assert main(["board", "cp", "rasp3b", ":data", str(tmp_path / "back")]) == 0
    assert (tmp_path / "back").read_bytes() == (tmp_path / "data").read_bytes()
    assert main(["board", "cp", "rasp3b", "a", "b"]) == 2
    # A plain ssh with nothing but the printed block.
    config = tmp_path / "config"
    config.write_text(virtual.ssh_config(board))
    plain = [require_tool("ssh"), "-F", config, "rasp3b", "uname -m"]
    assert subprocess.run(plain, check=True, capture_output=True).stdout == b"armv7l\n"
    virtual.down(board.name)


def test_an_ordinary_user_needs_nothing_special(require_tool: RequireTool) -> None:
    """Not root, no subordinate ids, an empty home: the board runs all the same."""
    if os.getuid() != 0:
        pytest.skip("this whole file ran as an ordinary user")
    runuser = require_tool("runuser")
    user = pwd.getpwnam("nobody")
    # What the user can read: a copy of the package, a copy of the root file system.
    with tempfile.TemporaryDirectory(prefix="edgepack-user-") as name:
        home = Path(name)
        home.chmod(0o755)
        source = Path(edgepack.__file__).parent
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, home / "code/edgepack", ignore=ignore)
        shutil.copy(paths.data_file("boards.toml"), home / "code")
        own = home / "cache"
        base = rootfs("bullseye", "armhf")
        shutil.copytree(base, own / "rootfs" / base.name, symlinks=True)
        for path in (own, *own.rglob("*")):
            os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)
        script = """
import subprocess, sys
from pathlib import Path
from edgepack import virtual
from edgepack.base import paths
from edgepack.boards import get_board
paths.set_cache_dir(Path(sys.argv[1]))
board = virtual.up(get_board("rasp3b"), kind="light")
command = [*virtual.ssh_command(board), "uname -m; id -un; touch ~/file && ls ~"]
print(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
assert virtual.list_running() == [board]
assert virtual.down(board.name)
assert not (Path(sys.argv[1]) / "virtual/boards/rasp3b").exists()
"""
        python = _python_of_everyone(runuser, user.pw_name)
        done = subprocess.run(
            [runuser, "-u", user.pw_name, "--", python, "-c", script, own],
            env={"PATH": os.environ["PATH"], "HOME": name, "PYTHONPATH": str(home / "code")},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == ["armv7l", "pi", "file"]


def _python_of_everyone(runuser: str, user: str) -> str:
    """This Python, or the system's if `user` may not run it (it can be in root's home)."""
    check = "import sys; sys.exit(sys.version_info < (3, 11))"
    for python in (sys.executable, "/usr/bin/python3"):
        command = [runuser, "-u", user, "--", python, "-c", check]
        if subprocess.run(command, cwd="/", capture_output=True, check=False).returncode == 0:
            return python
    pytest.skip(f"no Python 3.11 that the user {user} may run")


def test_where_namespaces_are_forbidden_light_is_an_error(require_tool: RequireTool) -> None:
    done = _in_forbidding_namespace(
        require_tool,
        """
try:
    virtual.up(get_board("rasp3b"), kind="light")
except virtual.LightBoardError as error:
    print(error)
""",
    )
    assert "did not start" in done
    assert "user namespaces are forbidden here" in done


# Two boots. In the short form a full-system board boots once, in test_flow.py.
@pytest.mark.slow
def test_full_system_board_is_the_way_out(
    require_tool: RequireTool, caplog: pytest.LogCaptureFixture
) -> None:
    """Chosen without being asked; then its power is cut, and it boots from the same disk."""
    for name in ("qemu-system-aarch64", "mke2fs"):
        require_tool(name)
    done = _in_forbidding_namespace(
        require_tool,
        """
board = virtual.up(get_board("pynq"), suite="bullseye", disk_mb=256)
print(board.kind)
""",
    )
    assert done.split()[-1] == "system"
    assert "starting the full-system board instead" in done
    (board,) = virtual.list_running()
    assert (board.kind, board.disk_mb) == ("system", 256)
    assert on(board, "uname -rm; getconf LONG_BIT").split()[1:] == ["armv8l", "32"]
    assert set(get_board("pynq").hwcaps) <= set(on(board, "cat /proc/cpuinfo").split())
    assert on(board, "stat -c %U / /etc /home/pi; nproc").split() == ["root", "root", "pi", "2"]
    on(board, "echo written > kept; sync")
    virtual.cut_power(board)
    again = virtual.up(get_board("pynq"), kind="system", suite="bullseye", disk_mb=256)
    assert again.pid != board.pid
    assert on(again, "cat kept") == "written\n"
    assert "No space" in on(again, "head -c 300M /dev/zero > big", check=False)
    assert virtual.down("pynq")
    assert state.start_time(again.pid) is None
    assert not state.folder("pynq").exists()


def _in_forbidding_namespace(require_tool: RequireTool, body: str) -> str:
    """The output of Python code where no user namespace can be made."""
    script = f"""
import logging, sys
from pathlib import Path
Path("/proc/sys/user/max_user_namespaces").write_text("0")
from edgepack import virtual
from edgepack.base import paths
from edgepack.boards import get_board
logging.basicConfig(stream=sys.stdout)
paths.set_cache_dir(Path(sys.argv[1]))
{body}
"""
    unshare = require_tool("unshare")
    done = subprocess.run(
        [unshare, "--user", "--map-root-user", sys.executable, "-c", script, paths.cache_dir()],
        env={**os.environ, "PYTHONPATH": str(Path(edgepack.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_disks_belong_to_root_whoever_makes_them(
    require_tool: RequireTool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    require_tool("mke2fs")
    debugfs = require_tool("debugfs")
    (tmp_path / "root/a folder").mkdir(parents=True)
    (tmp_path / "root/a folder/file").write_text("x")
    (tmp_path / "root/link").symlink_to("a folder")
    if os.getuid() == 0:
        for path in (tmp_path / "root").rglob("*"):
            os.chown(path, 1234, 1234, follow_symlinks=False)
        monkeypatch.setattr(os, "getuid", lambda: 1234)
    image = tmp_path / "disk.img"
    disk.make_disk(tmp_path / "root", image, size_mb=16)
    assert image.stat().st_size == 16 << 20
    for name in ("/", "/a folder", "/a folder/file", "/link"):
        text = subprocess.run(
            [debugfs, "-R", f'stat "{name}"', image], check=True, capture_output=True, text=True
        ).stdout
        owner = text[text.index("User:") :].split()
        assert (owner[1], owner[3]) == ("0", "0"), name


def test_a_disk_too_small_is_an_error(require_tool: RequireTool, tmp_path: Path) -> None:
    require_tool("mke2fs")
    (tmp_path / "root").mkdir()
    (tmp_path / "root/big").write_bytes(os.urandom(4 << 20))
    with pytest.raises(errors.RootfsError, match="a disk of 2 MB"):
        disk.make_disk(tmp_path / "root", tmp_path / "disk.img", size_mb=2)
    assert not (tmp_path / "disk.img").exists()


def test_the_emulator_of_this_machines_own_architecture_can_be_registered(
    tmp_path: Path, require_tool: RequireTool
) -> None:
    """As 64-bit boards have it on a 64-bit ARM computer."""
    emulator = Path(require_tool(f"qemu-{platform.machine()}-static"))
    header = Path(shutil.which("true") or "").read_bytes()[:20]
    magic = "".join(f"\\x{byte:02x}" for byte in header[:16] + b"\2" + header[17:]).encode()
    mask = launcher._MASK
    copy = launcher.outside_rule(emulator, magic, mask, tmp_path)
    assert launcher.outside_rule(copy, magic, mask, tmp_path / "none") == copy
    script = 'mount -t binfmt_misc none "$1"; printf %s "$2" >"$1/register"; exec true'
    (rules := tmp_path / "rules").mkdir()
    said = {}
    for program in (emulator, copy):
        rule = b":".join((b"", b"own", b"M", b"", magic, mask, str(program).encode(), b"FP"))
        done = subprocess.run(
            [
                *["unshare", "--user", "--map-root-user", "--mount"],
                *["sh", "-ec", script, "sh", rules, rule.decode()],
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if "mount:" in done.stderr:
            pytest.skip(f"a binfmt_misc of one's own is not allowed here: {done.stderr}")
        said[program] = (done.returncode, done.stderr)
    assert said[emulator][0] != 0  # the kernel's own limit
    assert said[copy] == (0, "")
