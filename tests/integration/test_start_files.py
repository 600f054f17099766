"""Logins whose shell's start files go elsewhere, print, and have errors: real shells read them.

sshd gives each command to a login script, which starts the shell with a home folder of its own.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgepack.base.errors import UsageError
from edgepack.deploy.deploy import deploy_bundle
from edgepack.deploy.remote_tool import Layout, status
from edgepack.device import NotStartedError, SshOptions
from edgepack.device.options import Address
from edgepack.device.ssh import SshDevice
from tests.boards import unpacked
from tests.fake_app import fake_bundle
from tests.integration import sshd_server
from tests.integration.sshd_server import Sshd

ELSEWHERE = "cd /tmp\n"
# Shell: its start file, and what it may hold. Each has to be read, or the test tells nothing.
FILES: dict[str, tuple[str, dict[str, str]]] = {
    "bash": (
        ".bashrc",
        {
            "elsewhere": ELSEWHERE,
            "noise": "echo hello; echo there >&2\nprintf 'no end of line'\ncd /\n",
            "errors": "no-such-command\nif then\n",
            "unset": "set -u\ncd /tmp\nCDPATH=/tmp:/\nexport CDPATH\n",
            "no home": "cd /usr; export OLDPWD=/etc\n",
        },
    ),
    "csh": (
        ".cshrc",
        {
            "elsewhere": ELSEWHERE,
            "errors": "cd /tmp\nset x = $undefined_variable\n",
            "syntax": "cd /tmp\nif (\n",
            "missing": "source /nonexistent\necho hello\ncd /tmp\n",
        },
    ),
    "tcsh": (
        ".tcshrc",
        {"elsewhere": ELSEWHERE, "errors": "cd /tmp\nset x = $undefined_variable\n"},
    ),
    "fish": (
        ".config/fish/config.fish",
        {
            "elsewhere": ELSEWHERE,
            "errors": "cd /tmp\nno-such-command\nset -x\n",
            "syntax": "cd /tmp\nif\n",
            "noise": "echo hello; echo there >&2; cd /\n",
        },
    ),
    "zsh": (
        ".zshenv",
        {"elsewhere": ELSEWHERE, "errors": "cd /tmp\nno-such-command\nsetopt nomatch; ls /x*\n"},
    ),
}
CASES = [
    pytest.param(shell, name, marks=[pytest.mark.slow] * (shell in ("fish", "zsh")))
    for shell, (_, texts) in FILES.items()
    for name in texts
]


def program(shell: str) -> tuple[str, str]:
    """The shell, and what its environment needs."""
    if shell in ("bash", "csh", "tcsh"):
        found = shutil.which(shell)
        if found is None:
            pytest.skip(f"there is no {shell}")
        return found, ""
    root = unpacked("shells", ["fish", "zsh"], suite="bookworm", arch="amd64")
    libraries = ":".join(f"{root}/{name}/x86_64-linux-gnu" for name in ("usr/lib", "lib"))
    folder = "bin" if shell == "zsh" else "usr/bin"
    return f"{root}/{folder}/{shell}", f"LD_LIBRARY_PATH={libraries}"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "my home").mkdir()
    return tmp_path / "my home"


@pytest.fixture
def login(tmp_path: Path, home: Path) -> Iterator[Callable[[str, str], SshDevice]]:
    """Connects to a server that runs commands by this shell, with this text as its start file."""
    servers: list[Sshd] = []
    devices: list[SshDevice] = []

    def connect(shell: str, text: str, home: Path = home) -> SshDevice:
        binary, environment = program(shell)
        if home.exists():
            file = home / FILES[shell][0]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"echo read >>'{tmp_path}/read'\n{text}")
        script = tmp_path / "login"
        # bash reads .bashrc for who comes by the network; SHLVL tells it that nobody was before.
        script.write_text(
            f"#!/bin/sh\nunset SHLVL\nHOME='{home}' exec env {environment} {binary} -c "
            '"$SSH_ORIGINAL_COMMAND"\n'
        )
        script.chmod(0o755)
        servers.append(sshd_server.start(tmp_path / "ssh", extra=f"ForceCommand {script}"))
        options = SshOptions(
            use_config=False, identity=servers[0].key, identities_only=True,
            host_keys=(servers[0].known_hosts_line,), command_timeout_s=60,
        )  # fmt: skip
        device = SshDevice(
            Address(host="127.0.0.1", port=servers[0].port), options=options, name="board"
        )
        devices.append(device)
        return device

    yield connect
    for device in devices:
        device.close()
    for server in servers:
        server.stop()


@pytest.mark.parametrize(("shell", "name"), CASES)
def test_commands_begin_at_home(
    shell: str, name: str, login: Callable[[str, str], SshDevice], home: Path, tmp_path: Path
) -> None:
    device = login(shell, FILES[shell][1][name])
    said = device.run("pwd; printf '%s\n' \"it's $(echo all) there\" '!' 'a\\b'").stdout
    assert said == f"{home}\nit's all there\n!\na\\b\n"
    assert (tmp_path / "read").exists(), "the start file was not read"
    (tmp_path / "source").write_bytes(os.urandom(1000))
    device.mkdir("a b")
    device.put(tmp_path / "source", "a b/file")
    assert (home / "a b" / "file").read_bytes() == (tmp_path / "source").read_bytes()
    stream = device.open("cat >x; pwd")
    stream.write(b"12345")
    assert stream.finish().stdout == f"{home}\n"
    assert (home / "x").read_bytes() == b"12345"


@pytest.mark.parametrize(
    ("shell", "name"),
    [
        ("bash", "elsewhere"),
        ("csh", "errors"),
        pytest.param("fish", "errors", marks=pytest.mark.slow),
        pytest.param("fish", "syntax", marks=pytest.mark.slow),
    ],
)
def test_a_deploy_goes_where_it_says(
    shell: str, name: str, login: Callable[[str, str], SshDevice], home: Path, tmp_path: Path
) -> None:
    device = login(shell, FILES[shell][1][name])
    bundle = fake_bundle(tmp_path / "bundle", weights=b"weights")
    report = deploy_bundle(bundle, device, "~//edgepack/m")
    assert report.facts.folder == str(home)
    assert (home / "edgepack" / "m" / "current").is_symlink()
    current = status(device, "edgepack/m").current
    assert current is not None
    assert current.release == bundle.manifest.release


def test_a_login_without_a_home(login: Callable[..., SshDevice], tmp_path: Path) -> None:
    device = login("bash", "", tmp_path / "nowhere")
    assert device.run("pwd").stdout == "/\n"
    bundle = fake_bundle(tmp_path / "bundle", weights=b"weights")
    with pytest.raises(UsageError, match=f"there is no home folder: {tmp_path}/nowhere"):
        deploy_bundle(bundle, device, "edgepack/m")
    assert not Path("/edgepack/m").exists()
    report = deploy_bundle(bundle, device, f"{tmp_path}/absolute")
    assert report.outcome == "deployed"


def test_a_login_that_ends_in_its_start_file(login: Callable[[str, str], SshDevice]) -> None:
    device = login("bash", "echo no room; exit 3\n")
    with pytest.raises(NotStartedError, match="exit code 3"):
        device.run("true")


@pytest.mark.parametrize("root", ["$HOME/x", "~pi/x", "~", "~/", "/", "-x", "a\nb", "", "a/$USER"])
def test_folders_that_a_shell_would_read_otherwise(root: str) -> None:
    with pytest.raises(UsageError, match="not a folder for releases"):
        Layout.of(root)


@pytest.mark.parametrize(
    ("root", "folder"),
    [("~/x", "x"), ("~//etc", "etc"), ("/opt/x/", "/opt/x"), ("a b/ü", "a b/ü"), ("./~x", "./~x")],
)
def test_folders_that_are_what_they_say(root: str, folder: str) -> None:
    assert Layout.of(root).root == folder
