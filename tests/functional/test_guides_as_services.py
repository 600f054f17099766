"""Every argument of the app that a guide names, as a service: the guides' own commands.

Between real accounts, as an init script starts them; of systemd's unit what its own tools say.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from edgepack.base.errors import ConfigError
from edgepack.base.paths import data_file
from edgepack.base.tables import Table
from edgepack.bundle.service import Service, access, take_service
from edgepack.bundle.service_access import LISTENS, OTHERS, READS, TOUCHES, WRITES, options_of
from edgepack.deploy.service_files import Place, init_script, supervisor_words, systemd_unit
from tests.device_tool import host_tool
from tests.means import means_app
from tests.support import require_tool

GUIDES = Path(__file__).parents[2] / "docs/guides"
OWNER, APP = "daemon", "nobody"
OPTIONS_CC = data_file("cpp_runtime") / "app/edgepack-run/options.cc"
# Of a single run, which ends: no service does that again and again.
ONCE = {"--image", "--draw", "--mask", "--postprocess", "--input", "--output", "--golden", "--json"}


def app_options() -> tuple[set[str], set[str]]:
    """The app's options without a value, and those with one."""
    text = OPTIONS_CC.read_text()
    switches, values = text.split("table.switches")[1].split("table.values")
    values = values.split("ReadCommandLine")[0]
    return set(re.findall(r'\{"(--[a-z-]+)"', switches)), set(
        re.findall(r'\{"(--[a-z-]+)"', values)
    )


def guide_commands() -> list[tuple[str, ...]]:
    """The arguments of each edgepack-run and of each [service] table that a guide shows."""
    found = []
    for guide in sorted(GUIDES.glob("*.md")):
        text = guide.read_text()
        for args in re.findall(r"^args = (\[.*\])$", text, re.MULTILINE):
            found.append(tuple(re.findall(r'"([^"]*)"', args)))
        for line in re.findall(r"edgepack-run (--[^`\n]+)", text):
            found.append(tuple(shlex.split(line, comments=True)))
        for words in re.findall(r"`(--[a-z-]+ [^`\n]+)`", text):
            if words.split()[0] in READS | WRITES | LISTENS | {"--frames"}:
                found.append(tuple(shlex.split(words)))
    return list(dict.fromkeys(found))


def as_services() -> list[tuple[str, ...]]:
    """Those that are no single run, with a pipe where they read the standard input."""
    services = (as_service(command) for command in guide_commands())
    return list(dict.fromkeys(args for args in services if args is not None))


def as_service(command: tuple[str, ...]) -> tuple[str, ...] | None:
    """None for a single run, and for one with a word for whatever stands there."""
    options = dict(options_of(command))
    if options.keys() & ONCE or None in (options.get(name, "") for name in READS | LISTENS):
        return None
    if re.search(r"\b(FOLDER|FILE|PATH|NAME|ADDRESS|SIZE|N)\b", " ".join(command)):
        return None
    if options.get("--images") == "-" or ("--from" in options and "--frames" not in options):
        return None
    # A file of the shell's folder is one of root's in a service.
    if "--token-file" in options:
        command = tuple("/etc/edgepack/token" if word == "token" else word for word in command)
    if not options.keys() & {"--images", "--watch", "--frames", "--camera", "--serve"}:
        return ("--camera", "/dev/video0", *command)
    if "--frames" in options and not {"--from", "--camera"} & options.keys():
        return (*command, "--from", "/run/camera/frames", "--at-end", "wait")
    return command


def test_every_option_of_the_app_is_known_to_services() -> None:
    _, values = app_options()
    groups = (READS, WRITES, LISTENS, TOUCHES, OTHERS)
    assert values == frozenset().union(*groups)
    for group in groups:
        assert sum(bool(group & other) for other in groups) == 1


def test_the_guides_name_all_live_sources() -> None:
    named = {option for command in as_services() for option, _ in options_of(command)}
    assert named >= {"--images", "--frames", "--from", "--camera", "--watch", "--results"}
    assert named >= {"--serve", "--queue", "--at-end", "--newest", "--size"}
    assert len(as_services()) >= 10


@pytest.mark.parametrize("args", as_services(), ids=" ".join)
def test_systemd_and_sh_take_what_is_written(args: tuple[str, ...], tmp_path: Path) -> None:
    service = take_service(Table({"service": {"args": list(args)}}, file="edgepack.toml"))
    assert service is not None
    tool = tmp_path / "edgepack-device"
    shutil.copy("/bin/true", tool)
    place = Place(name="x", root=str(tmp_path), owner="root", tool=str(tool), account="daemon")
    unit = tmp_path / place.unit
    unit.write_text(systemd_unit(place, service))
    words = [require_tool("systemd-analyze"), "verify", "--recursive-errors=no", unit]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert place.title not in done.stderr, done.stderr
    script = tmp_path / "script"
    script.write_text(init_script(place, service))
    subprocess.run([require_tool("dash"), "-n", script], check=True)


@pytest.mark.parametrize("args", [("--frames", "mjpeg"), ("--images", "-"), ("--watch", "photos")])
def test_what_no_service_can_do_is_refused(args: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"service\.args: "):
        take_service(Table({"service": {"args": list(args)}}, file="edgepack.toml"))


class Rig:
    """A release with the app in a folder of its owner's, and the paths of the guides below it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root, self.log = folder, folder / "login/means", folder / "log"
        self.tool = folder / "edgepack-device"
        shutil.copy(host_tool(), self.tool)
        (folder / "made").mkdir()
        app = means_app(folder / "made")
        self.root.parent.mkdir(parents=True, mode=0o755)
        shutil.chown(self.root.parent, OWNER)
        subprocess.run(["chmod", "-R", "go+rX", folder], check=True)
        words = [self.tool, "install", app.parents[1], "--root", self.root]
        subprocess.run(words, user=OWNER, group=OWNER, check=True, cwd="/", capture_output=True)
        self.run = Path(tempfile.mkdtemp(prefix="edgepack-", dir="/run"))
        self.run.chmod(0o755)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = str(free.getsockname()[1])

    def here(self, word: str) -> str:
        """A guide's word with its paths in this rig."""
        prefix, colon, path = word.partition(":") if word.startswith("unix:") else ("", "", word)
        if path.startswith("/run/"):
            path = f"{self.run}{path.removeprefix('/run')}"
        elif path.startswith("/"):
            path = f"{self.folder}{path}"
        return f"{prefix}{colon}{path}".replace("8080", self.port)

    @contextlib.contextmanager
    def service(self, args: tuple[str, ...]) -> Iterator[Service]:
        """It runs, with what an init script tells the supervisor, and makes for it."""
        service = Service(args=args)
        touched = access(service)
        for path in (*touched.writes, *(f"/run/{name}" for name in touched.runtime)):
            Path(path).mkdir(parents=True, exist_ok=True)
            shutil.chown(path, APP)
        place = Place(name="means", root=str(self.root), owner=OWNER, tool="", account=APP)
        command = [self.tool, "run", "--supervise", "--root", self.root, "--log", self.log]
        self.log.unlink(missing_ok=True)
        with subprocess.Popen(
            [*command, *supervisor_words(place, service), "--", *args], cwd="/"
        ) as process:
            try:
                yield service
            finally:
                process.terminate()
                process.wait(30)

    def until(self, text: str) -> str:
        """The log, once it says that."""
        end = time.monotonic() + 60
        while text not in (said := self.log.read_text() if self.log.exists() else ""):
            assert time.monotonic() < end, f"{text!r} is not in {said}"
            time.sleep(0.1)
        return said


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    if os.geteuid() != 0:
        pytest.skip("becomes other accounts")
    # Not pytest's own folder, which other accounts cannot enter.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        rig = Rig(Path(name))
        yield rig
        shutil.rmtree(rig.run)


def picture(suffix: str) -> bytes:
    return cv2.imencode(suffix, np.full((8, 32, 3), 50, np.uint8))[1].tobytes()


def give(path: Path, data: bytes) -> None:
    """A photo is written under another name, then moved."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}")
    part.write_bytes(data)
    part.rename(path)


def frame_of(args: tuple[str, ...]) -> bytes:
    options = dict(options_of(args))
    if options["--frames"] == "mjpeg":
        return picture(".jpg")
    width, height = map(int, (options["--size"] or "").split("x"))
    return bytes(width * height * {"gray": 1, "yuyv": 2}.get(options["--frames"] or "", 3))


@pytest.mark.parametrize("args", as_services(), ids=" ".join)
def test_a_guides_command_works_as_a_service(args: tuple[str, ...], rig: Rig) -> None:
    options = dict(options_of(args))
    mine = tuple(rig.here(word) for word in args)
    if "--images" in options:
        give(Path(rig.here("/photos/a.jpg")), picture(".jpg"))
        give(Path(rig.here("/photos/2026-01/b.jpg")), picture(".jpg"))
        with rig.service(mine):
            rig.until('"means"')
    elif "--watch" in options:
        folder = Path(rig.here(options["--watch"] or ""))
        folder.mkdir(parents=True, exist_ok=True)
        with rig.service(mine):
            rig.until("starting release")
            results = Path(rig.here(options["--results"])) if options.get("--results") else rig.log
            for number in range(600):
                give(folder / f"{number}.png", picture(".png"))
                if results.exists() and '"means"' in results.read_text():
                    break
                time.sleep(0.1)
            assert '"means"' in results.read_text()
    elif "--from" in options:
        pipe = Path(rig.here(options["--from"] or ""))
        pipe.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkfifo(pipe, 0o644)
        with rig.service(mine), pipe.open("wb", buffering=0) as writer:
            writer.write(frame_of(args))
            rig.until('"means"')
    elif "--serve" in options:
        where = rig.here(options["--serve"] or "")
        head = f"GET /v2/health/ready HTTP/1.1\r\nHost: {options.get('--host', 'localhost')}\r\n"
        if "--token-file" in options:
            token = Path(rig.here(options["--token-file"] or ""))
            token.parent.mkdir(parents=True, exist_ok=True)
            token.write_text("x" * 32)
            token.chmod(0o600)
            shutil.chown(token, APP)
            head += f"Authorization: Bearer {'x' * 32}\r\n"
        with rig.service(mine):
            rig.until("serving means on ")
            if where.startswith("unix:"):
                client = socket.socket(socket.AF_UNIX)
                client.connect(where.removeprefix("unix:"))
            else:
                host, _, port = where.rpartition(":")
                client = socket.create_connection(("127.0.0.1" if host else "localhost", int(port)))
            with client:
                client.sendall(f"{head}\r\n".encode())
                assert client.recv(4096).startswith(b"HTTP/1.1 200")
    else:
        assert "--camera" in options
        # A node that is opened for real, as udev makes a camera's; its driver is no camera's.
        node = Path(rig.here("/dev/video0"))
        node.parent.mkdir(exist_ok=True)
        if not node.exists():
            subprocess.run(["mknod", "-m", "660", node, "c", "1", "5"], check=True)
        shutil.chown(node, "root", "video")
        service = Service(args=args)
        assert access(service).groups == ("video",)
        place = Place(name="means", root=str(rig.root), owner=OWNER, tool="", account=APP)
        group = ["--group", "video", "--user", APP, "--owner", OWNER]
        assert set(group) <= set(supervisor_words(place, service))
        command = [rig.tool, "run", "--supervise", "--root", rig.root, "--log", rig.log, *group]
        rig.log.unlink(missing_ok=True)
        with subprocess.Popen([*command, "--", *mine], cwd="/") as process:
            try:
                rig.until("is no video device")
            finally:
                process.terminate()
                process.wait(30)


def test_what_a_service_tells_has_its_restarts(rig: Rig) -> None:
    """The app is killed; the next one says so in its file, which the owner's tool reads."""
    words = ("--watch", "/var/lib/told", "--metrics", "/run/told/metrics.prom")
    args = tuple(rig.here(word) for word in words)
    Path(args[1]).mkdir(parents=True, exist_ok=True)
    file = Path(args[3])
    file.unlink(missing_ok=True)

    def until(text: str) -> str:
        end = time.monotonic() + 60
        while text not in (said := file.read_text() if file.exists() else ""):
            assert time.monotonic() < end, said + rig.log.read_text()
            time.sleep(0.05)
        return said

    with rig.service(args):
        assert 'edgepack_app_info{model="means"' in until("edgepack_app_restarts_total 0\n")
        (process,) = (
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdecimal() and _words_of(entry)[1:] == [word.encode() for word in args]
        )
        os.kill(process, signal.SIGKILL)
        until("edgepack_app_restarts_total 1\n")
        command = [rig.tool, "metrics", "--root", rig.root, "--app", file]
        done = subprocess.run(
            command, user=OWNER, group=OWNER, check=True, cwd="/", capture_output=True, text=True
        )
    assert '\nedgepack_app_restarts_total{model="means"} 1\n' in done.stdout
    assert 'edgepack_device_app_up{model="means"} 1\n' in done.stdout


def _words_of(process: Path) -> list[bytes]:
    """Its command line; none if it is gone, or the supervisor's, which has these words, too."""
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")[:-1]
    except OSError:
        return []
    return words if words and words[0].endswith(b"/edgepack-run") else []
