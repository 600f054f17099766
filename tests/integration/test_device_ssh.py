"""SshDevice against a real OpenSSH server: in, and every way of not getting in."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import paramiko
import pytest

from edgepack.base.errors import ConfigError, ConnectError, RemoteError, UsageError
from edgepack.bundle.manifest import APP, Health
from edgepack.deploy.deploy import DeployOptions, deploy_bundle
from edgepack.deploy.remote_app import RunRequest, ask_app
from edgepack.device import (
    Address,
    AuthError,
    ChangedHostKeyError,
    ConnectionLostError,
    NotStartedError,
    ProxyError,
    RemoteCommandError,
    RemoteTimeout,
    SshOptions,
    UnknownHostKeyError,
    UnreachableError,
)
from edgepack.device.lines import MAX_ERROR_BYTES
from edgepack.device.ssh import SshDevice
from tests.integration import sshd_server
from tests.integration.cutting_proxy import CuttingProxy
from tests.integration.sshd_server import Sshd
from tests.support import require_tool


@pytest.fixture
def options(sshd: Sshd) -> SshOptions:
    return SshOptions(
        use_config=False,
        identity=sshd.key,
        identities_only=True,
        host_keys=(sshd.known_hosts_line,),
    )


def address(sshd: Sshd) -> Address:
    return Address(host="127.0.0.1", port=sshd.port)


@pytest.fixture
def device(sshd: Sshd, options: SshOptions) -> Iterator[SshDevice]:
    device = SshDevice(address(sshd), options=options)
    yield device
    device.close()


def test_commands(device: SshDevice) -> None:
    done = device.run(
        "echo 'it'\"'\"'s'; echo \"$LC_ALL\"; cat; echo error >&2; exit 3", check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "it's\nC\n", "error\n")
    with pytest.raises(RemoteCommandError, match="exit code 1"):
        device.run("false")


def test_much_output_on_both_streams(device: SshDevice) -> None:
    done = device.run("head -c 5000000 /dev/zero >&2; head -c 5000000 /dev/zero")
    # Of the second one the end is kept.
    assert (len(done.stdout), len(done.stderr)) == (5_000_000, MAX_ERROR_BYTES)


def test_talking_to_a_command(device: SshDevice) -> None:
    data = os.urandom(5_000_000)
    stream = device.open(
        "head -c 5000000 | sha256sum; read -r word; echo $word; echo x >&2; exit 3"
    )
    stream.write(data)
    assert stream.read_line().split()[0] == hashlib.sha256(data).hexdigest().encode()
    stream.write(b"hello\n")
    assert stream.read_line(30) == b"hello\n"
    assert stream.read_line() == b""
    done = stream.finish()
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "x\n")


def test_a_command_that_hangs_up_or_is_silent(device: SshDevice) -> None:
    stream = device.open("echo why; exit 1")
    with pytest.raises(BrokenPipeError):
        while True:
            stream.write(bytes(1 << 16))
    assert stream.read_line() == b"why\n"
    assert stream.finish().returncode == 1
    silent = device.open("sleep 30")
    with pytest.raises(ConnectionLostError):
        silent.read_line(0.1)
    silent.close()
    assert device.run("echo still here").stdout == "still here\n"


def test_a_command_that_takes_too_long(device: SshDevice) -> None:
    with pytest.raises(RemoteTimeout):
        device.run("echo begun; sleep 30", timeout_s=0.3)
    assert device.run("echo still here").stdout == "still here\n"


def wait_until(done: Callable[[], bool]) -> None:
    for _ in range(3000):
        if done():
            return
        time.sleep(0.02)
    pytest.fail("it did not come about")


def test_a_benchmark_ends_with_its_link(device: SshDevice, tmp_path: Path) -> None:
    app = tmp_path / "current" / APP
    app.parent.mkdir(parents=True)
    app.write_text(f"#!/bin/sh\necho $$ >{tmp_path}/part && mv {tmp_path}/part {tmp_path}/pid\n"
                   "exec sleep 600\n")  # fmt: skip
    app.chmod(0o755)
    request = RunRequest(golden=True, options=("--bench", "1000000"))

    def ask() -> None:
        with pytest.raises(ConnectionLostError):
            ask_app(device, str(tmp_path), request)

    asking = threading.Thread(target=ask)
    asking.start()
    wait_until((tmp_path / "pid").exists)
    own = Path("/proc", (tmp_path / "pid").read_text().strip())
    assert own.exists()
    device.abort()
    asking.join()
    wait_until(lambda: not own.exists())


@pytest.fixture
def without_sftp(tmp_path: Path) -> Iterator[SshDevice]:
    """To a server that starts an SFTP server which is not there, as dropbear does on OpenWrt."""
    server = sshd_server.start(tmp_path / "ssh", sftp=f"{tmp_path}/missing")
    options = SshOptions(
        use_config=False, identity=server.key, identities_only=True,
        host_keys=(server.known_hosts_line,),
    )  # fmt: skip
    device = SshDevice(address(server), options=options)
    yield device
    device.close()
    server.stop()


@pytest.mark.parametrize("way", ["device", "without_sftp"])
def test_files(way: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    device: SshDevice = request.getfixturevalue(way)
    data = os.urandom(3_000_001)
    source = tmp_path / "source"
    source.write_bytes(data)
    sizes: list[int] = []
    target = f"{tmp_path}/target"
    device.put(source, target, sent=sizes.append)
    assert Path(target).read_bytes() == data
    assert sum(sizes) == len(data)
    os.truncate(target, 1_000_000)
    device.put(source, target, offset=1_000_000)
    assert Path(target).read_bytes() == data
    device.get(target, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == data
    (tmp_path / "empty").touch()
    device.put(tmp_path / "empty", target)
    assert Path(target).read_bytes() == b""
    device.rename(target, f"{tmp_path}/back")
    assert (tmp_path / "back").read_bytes() == b""
    # A link to a folder is replaced; nothing goes into the folder.
    (tmp_path / "link").symlink_to(tmp_path / "a b")
    (tmp_path / "a b").mkdir()
    device.put(tmp_path / "empty", target)
    device.rename(target, f"{tmp_path}/link")
    assert not (tmp_path / "link").is_symlink()
    assert list((tmp_path / "a b").iterdir()) == []
    device.mkdir(f"{tmp_path}/a b/c")
    assert (tmp_path / "a b" / "c").is_dir()
    with pytest.raises(RemoteError, match=r"No such file|nonexistent"):
        device.put(source, f"{tmp_path}/no/folder")
    with pytest.raises(RemoteError, match="No such file"):
        device.get(f"{tmp_path}/missing", tmp_path / "back")
    with pytest.raises(RemoteError, match="No such file"):
        device.rename(f"{tmp_path}/missing", target)


def test_unknown_host_key(sshd: Sshd, options: SshOptions, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    options = replace(options, host_keys=(), known_hosts=known)
    with pytest.raises(UnknownHostKeyError) as unknown:
        SshDevice(address(sshd), options=options)
    assert "SHA256:" in unknown.value.message
    assert "--accept-new-host-key" in str(unknown.value.hint)
    assert unknown.value.exit_code == 6
    assert not known.exists()

    folder = replace(options, accept_new_host_key=True, known_hosts=tmp_path)
    with pytest.raises(UnknownHostKeyError, match="cannot be added"):
        SshDevice(address(sshd), options=folder)

    SshDevice(address(sshd), options=replace(options, accept_new_host_key=True)).close()
    assert known.read_text() == sshd.known_hosts_line + "\n"
    SshDevice(address(sshd), options=options).close()


@pytest.mark.parametrize("kind", ["ed25519", "rsa"])
def test_changed_host_key_is_refused_even_with_accept_new(
    sshd: Sshd, options: SshOptions, tmp_path: Path, kind: str
) -> None:
    known = tmp_path / "known_hosts"
    other = sshd_server.make_key(tmp_path / "other", kind)
    known.write_text(f"[127.0.0.1]:{sshd.port} {sshd_server.public(other)}\n")
    before = known.read_text()
    options = replace(options, host_keys=(), known_hosts=known, accept_new_host_key=True)
    with pytest.raises(ChangedHostKeyError, match=f"{known}:1") as changed:
        SshDevice(address(sshd), options=options)
    assert "ssh-keygen -R" in str(changed.value.hint)
    assert known.read_text() == before


def test_known_key_type_is_asked_for(options: SshOptions, tmp_path: Path) -> None:
    """A server with two host keys of which we know the one it would not offer first."""
    require_tool("sshd", "/usr/sbin/sshd")
    second = sshd_server.make_key(tmp_path / "rsa", "rsa")
    server = sshd_server.start(tmp_path / "two", extra=f"HostKey {second}")
    try:
        line = f"[127.0.0.1]:{server.port} {sshd_server.public(second)}"
        options = replace(options, identity=server.key, host_keys=(line,))
        SshDevice(address(server), options=options).close()
    finally:
        server.stop()


def test_refused_key(sshd: Sshd, options: SshOptions, tmp_path: Path) -> None:
    for kind in ("ed25519", "rsa"):
        wrong = sshd_server.make_key(tmp_path / kind, kind)
        with pytest.raises(AuthError, match=f"refuses {sshd.user}") as refused:
            SshDevice(address(sshd), options=replace(options, identity=wrong))
        assert "ssh-copy-id" in str(refused.value.hint)
        assert refused.value.exit_code == 11


def test_keys_that_cannot_be_used(sshd: Sshd, options: SshOptions, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such key file"):
        SshDevice(address(sshd), options=replace(options, identity=tmp_path / "missing"))
    locked = sshd_server.make_key(tmp_path / "locked", passphrase="secret")
    with pytest.raises(AuthError, match="passphrase") as protected:
        SshDevice(address(sshd), options=replace(options, identity=locked))
    assert "ssh-add" in str(protected.value.hint)
    (tmp_path / "text").write_text("no key\n")
    with pytest.raises(AuthError):
        SshDevice(address(sshd), options=replace(options, identity=tmp_path / "text"))
    with pytest.raises(AuthError):
        SshDevice(address(sshd), options=replace(options, identity=None))


def test_agent(
    sshd: Sshd, options: SshOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_tool("ssh-agent")
    path = tmp_path / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL)
    try:
        while not path.exists():
            assert agent.poll() is None
        monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
        subprocess.run(["ssh-add", "-q", sshd.key], check=True)
        SshDevice(
            address(sshd), options=replace(options, identity=None, identities_only=False)
        ).close()
    finally:
        agent.terminate()
        agent.wait()


def test_unreachable(options: SshOptions) -> None:
    with (
        sshd_server.closed_port() as port,
        pytest.raises(UnreachableError, match="refused") as refused,
    ):
        SshDevice(Address(host="127.0.0.1", port=port), options=options)
    assert refused.value.exit_code == 6
    with pytest.raises(UnreachableError, match=r"board\.invalid:22"):
        SshDevice(Address(host="board.invalid"), options=options)


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", None])
def test_something_else_answers(options: SshOptions, greeting: bytes | None) -> None:
    """A web server, a listener that closes at once, and one that says nothing."""
    held: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            sock, _ = listener.accept()
            held.append(sock)
            if greeting is not None:
                sock.sendall(greeting)
                sock.shutdown(socket.SHUT_RDWR)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(UnreachableError, match=r"cannot be reached: (what answers|no answer)"):
            SshDevice(
                Address(host="127.0.0.1", port=listener.getsockname()[1]),
                options=replace(options, connect_timeout_s=1),
            )
        thread.join()
    held[0].close()


def test_alias_with_a_jump_host(sshd: Sshd, tmp_path: Path) -> None:
    """The device is behind another server; all comes from the configuration."""
    hop = sshd_server.start(tmp_path / "hop")
    known, config = tmp_path / "known_hosts", tmp_path / "config"
    config.write_text(
        f"Host board\n  HostName 127.0.0.1\n  Port {sshd.port}\n  IdentityFile {sshd.key}\n"
        "  ProxyJump hop\n"
        f"Host hop\n  HostName 127.0.0.1\n  Port {hop.port}\n  IdentityFile {hop.key}\n"
        f"Host *\n  IdentitiesOnly yes\n  UserKnownHostsFile {known}\n"
    )
    options = SshOptions(config_file=config)
    try:
        known.write_text(sshd.known_hosts_line + "\n")
        with pytest.raises(UnknownHostKeyError, match=str(hop.port)):  # the hop is checked, too
            SshDevice(Address(host="board"), options=options)
        known.write_text(hop.known_hosts_line + "\n")
        with pytest.raises(UnknownHostKeyError, match=str(sshd.port)):
            SshDevice(Address(host="board"), options=options)
        known.write_text(f"{hop.known_hosts_line}\n{sshd.known_hosts_line}\n")
        device = SshDevice(Address(host="board"), options=options)
        assert device.name == "board"
        assert device.run('echo "$SSH_CONNECTION"').stdout.split()[3] == str(sshd.port)
        device.close()
        assert hop.sessions() == 0  # closing the device closes what is in between
        config.write_text(config.read_text().replace(f"Port {sshd.port}", "Port 1"))
        with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1 cannot be reached from"):
            SshDevice(Address(host="board"), options=options)
    finally:
        hop.stop()


def test_proxy_command(sshd: Sshd, tmp_path: Path) -> None:
    forward = tmp_path / "forward.py"
    forward.write_text(
        "import os, socket, sys, threading\n"
        "sock = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "def back():\n"
        "    while data := sock.recv(65536): os.write(1, data)\n"
        "    os._exit(0)\n"
        "threading.Thread(target=back).start()\n"
        "while data := os.read(0, 65536): sock.sendall(data)\n"
    )
    known, config = tmp_path / "known_hosts", tmp_path / "config"
    known.write_text(sshd.known_hosts_line + "\n")
    config.write_text(
        f"Host board\n  HostName 127.0.0.1\n  Port {sshd.port}\n  IdentityFile {sshd.key}\n"
        f"  UserKnownHostsFile {known}\n  ProxyCommand {sys.executable} {forward} %h %p\n"
    )
    device = SshDevice(Address(host="board"), options=SshOptions(config_file=config))
    assert device.run("echo hello").stdout == "hello\n"
    device.close()
    config.write_text(config.read_text().replace(str(forward), "/nonexistent.py"))
    with pytest.raises(ProxyError, match=r"ended .exit code 2. without an answer") as said:
        SshDevice(
            Address(host="board"), options=SshOptions(config_file=config, connect_timeout_s=1)
        )
    assert "can't open file '/nonexistent.py'" in said.value.message
    assert said.value.exit_code == 11


def test_configurations_that_do_not_work(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such SSH configuration"):
        SshDevice(Address(host="a"), options=SshOptions(config_file=tmp_path / "missing"))
    config = tmp_path / "config"
    config.write_text("Host a\n  ProxyJump b\nHost b\n  ProxyJump a\n")
    with pytest.raises(ConnectError, match="round in circles"):
        SshDevice(Address(host="a"), options=SshOptions(config_file=config))
    config.write_text("Host a\n  ProxyJump a\n")
    with pytest.raises(ConfigError, match="jumphost loop via a"):  # ssh's own words
        SshDevice(Address(host="a"), options=SshOptions(config_file=config))


def test_cut_connection(sshd: Sshd, options: SshOptions, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(4_000_000))
    with CuttingProxy(sshd.port, cut_after=2_000_000) as proxy:
        line = f"[127.0.0.1]:{proxy.port} {sshd_server.public(sshd.host_key)}"
        device = SshDevice(
            Address(host="127.0.0.1", port=proxy.port),
            options=replace(options, host_keys=(line,)),
        )
        with pytest.raises(ConnectionLostError) as lost:
            device.put(source, f"{tmp_path}/target")
        assert lost.value.exit_code == 6
        with pytest.raises(ConnectionLostError):
            device.run("true")
        device.reconnect()
        stream = device.open("cat >/dev/null; echo all")
        with pytest.raises(ConnectionLostError):
            for _ in range(40):
                stream.write(bytes(100_000))
            stream.read_line()
        device.close()
    written = (tmp_path / "target").read_bytes()
    assert len(written) < 4_000_000
    assert source.read_bytes().startswith(written)


def test_server_that_goes_away_during_a_command(options: SshOptions, tmp_path: Path) -> None:
    server = sshd_server.start(tmp_path / "mortal")
    options = replace(options, identity=server.key, host_keys=(server.known_hosts_line,))
    device = SshDevice(address(server), options=options)
    with pytest.raises(ConnectionLostError):
        device.run("kill -9 $(ps -o ppid= -p $PPID) $PPID; sleep 5")
    device.close()
    server.stop()


NOISE = """printf '{ "a": 1 }\\n@@edgepack:kernel\\nWelcome! no newline'; """


@pytest.fixture
def noisy(tmp_path: Path) -> Iterator[Callable[[str], SshDevice]]:
    """A server whose login shell does something of its own first, as a start file may."""
    require_tool("sshd", "/usr/sbin/sshd")
    servers: list[Sshd] = []

    def start(script: str) -> SshDevice:
        login = tmp_path / "login"
        login.write_text(f'#!/bin/sh\n{script}\nexec sh -c "$SSH_ORIGINAL_COMMAND"\n')
        login.chmod(0o755)
        servers.append(sshd_server.start(tmp_path / "ssh", extra=f"ForceCommand {login}"))
        options = SshOptions(
            use_config=False, identity=servers[0].key, identities_only=True,
            host_keys=(servers[0].known_hosts_line,), command_timeout_s=30,
        )  # fmt: skip
        return SshDevice(address(servers[0]), options=options, name="board")

    yield start
    for server in servers:
        server.stop()


def test_a_login_that_prints(noisy: Callable[[str], SshDevice]) -> None:
    device = noisy(NOISE)
    assert device.run("echo '{\"b\": 2}'").stdout == '{"b": 2}\n'
    stream = device.open("read -r word; echo $word; echo more; exit 3")
    stream.write(b"hello\n")
    assert stream.read_line(60) == b"hello\n"
    done = stream.finish()
    assert (done.returncode, done.stdout) == (3, "more\n")
    device.close()


def test_a_login_that_runs_nothing(noisy: Callable[[str], SshDevice]) -> None:
    device = noisy("echo This account is closed.; echo really >&2; exit 1")
    with pytest.raises(NotStartedError, match="board: its login shell does not run commands") as no:
        device.run("echo x")
    assert "  This account is closed.\n  really" in no.value.message
    stream = device.open("echo x")
    assert stream.read_line(60) == b""
    with pytest.raises(NotStartedError, match="exit code 1"):
        stream.finish()
    # It is no lost link: a deploy says so at once.
    bundle: Any = SimpleNamespace(
        manifest=SimpleNamespace(files={}, health=Health()), file=None, signature=b""
    )
    with pytest.raises(NotStartedError, match="This account is closed"):
        deploy_bundle(bundle, device, "r", options=DeployOptions(retries=5))
    device.close()


class SilentServer(paramiko.ServerInterface):
    """Lets everybody in, and never answers what is to be run."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self.over.wait()
        return False


def test_a_server_that_never_answers(tmp_path: Path) -> None:
    key = sshd_server.make_key(tmp_path / "key")
    server, listener = SilentServer(), socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        transport = paramiko.Transport(listener.accept()[0])
        transport.add_server_key(paramiko.Ed25519Key(filename=str(key)))
        transport.start_server(server=server)

    threading.Thread(target=serve, daemon=True).start()
    port = listener.getsockname()[1]
    options = SshOptions(
        use_config=False, identity=key, identities_only=True, command_timeout_s=0.5,
        host_keys=(f"[127.0.0.1]:{port} {sshd_server.public(key)}",),
    )  # fmt: skip
    device = SshDevice(Address(host="127.0.0.1", port=port), options=options)
    with pytest.raises(ConnectError, match="lost"):
        device.run("true")
    server.over.set()
    device.close()
    listener.close()
