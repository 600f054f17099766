"""What plain `ssh` reaches is reached; a device that refuses is told from one that is off.

Each way is tried by OpenSSH's own client first, with the same configuration: it is the reference.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import paramiko
import pytest
from paramiko.common import AUTH_SUCCESSFUL, OPEN_SUCCEEDED

from edgepack.base.errors import RefusedError
from edgepack.device import (
    Address,
    AuthError,
    ChangedHostKeyError,
    ProxyError,
    SshOptions,
    UnknownHostKeyError,
    UnreachableError,
)
from edgepack.device.ssh import SshDevice
from tests.integration import sshd_server
from tests.integration.sshd_server import Sshd, make_key, public
from tests.support import require_tool

FORWARD = """import os, socket, sys, threading
sock = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def back():
    while data := sock.recv(65536): os.write(1, data)
    os._exit(0)
threading.Thread(target=back).start()
while data := os.read(0, 65536): sock.sendall(data)
"""
PASS = """import socket, sys
sock = socket.create_connection((sys.argv[1], int(sys.argv[2])))
socket.send_fds(socket.socket(fileno=1), [b"x"], [sock.fileno()])
"""


@dataclass
class Site:
    """A folder with a configuration, a server, and an agent of `SSH_AUTH_SOCK`."""

    folder: Path
    sshd: Sshd
    known: Path

    def configure(self, text: str) -> Path:
        config = self.folder / "config"
        common = (
            f"Host board\n  HostName 127.0.0.1\n  Port {self.sshd.port}\n"
            f"Host *\n  UserKnownHostsFile {self.known}\n  GlobalKnownHostsFile /dev/null\n"
        )
        config.write_text(f"{text}\n{common}")
        return config

    def hold_reached(self, text: str, host: str = "board") -> None:
        """Both get there: ssh, and we."""
        config = self.configure(text)
        ssh = ["ssh", "-F", config, "-o", "BatchMode=yes", host, "echo there"]
        done = subprocess.run(
            ssh, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.stdout == "there\n", done.stderr
        device = SshDevice(Address.parse(host), options=SshOptions(config_file=config))
        assert device.run("echo there").stdout == "there\n"
        device.close()

    def refused(self, text: str, **options: object) -> RefusedError:
        config = self.configure(text)
        with pytest.raises(RefusedError) as refused:
            SshDevice(
                Address(host="board"),
                options=replace(SshOptions(config_file=config), **options),  # type: ignore[arg-type]
            )
        assert refused.value.exit_code == 11
        return refused.value


@pytest.fixture
def site(sshd: Sshd, tmp_path: Path) -> Site:
    require_tool("ssh")
    known = tmp_path / "known_hosts"
    known.write_text(sshd.known_hosts_line + "\n")
    return Site(tmp_path, sshd, known)


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """Adds a key to an agent of its own."""
    path = tmp_path / "agent"
    process = subprocess.Popen(
        [require_tool("ssh-agent"), "-D", "-a", path], stdout=subprocess.DEVNULL
    )
    while not path.exists():
        assert process.poll() is None
    monkeypatch.setenv("SSH_AUTH_SOCK", str(path))

    def add(key: Path) -> None:
        subprocess.run(["ssh-add", "-q", key], check=True, stdin=subprocess.DEVNULL)

    yield add
    process.terminate()
    process.wait()


def bare_public(site: Site) -> Path:
    """The .pub of the right key, where the private one is not beside it."""
    path = site.folder / "board.pub"
    path.write_text(Path(f"{site.sshd.key}.pub").read_text())
    return path


def fill(site: Site, agent: Callable[[Path], None], count: int) -> None:
    """An agent with many keys, the right one last."""
    for number in range(count - 1):
        agent(make_key(site.folder / f"key{number}"))
    agent(site.sshd.key)


def test_a_key_in_the_agent_named_by_its_pub(site: Site, agent: Callable[[Path], None]) -> None:
    agent(site.sshd.key)
    site.hold_reached(f"IdentitiesOnly yes\nIdentityFile {bare_public(site)}")


@pytest.mark.parametrize("only", ["yes", "no"])
def test_eight_keys_in_the_agent(site: Site, agent: Callable[[Path], None], only: str) -> None:
    fill(site, agent, 8)
    site.hold_reached(f"IdentitiesOnly {only}\nIdentityFile {bare_public(site)}")
    # By our own option as well.
    config = site.configure(f"IdentitiesOnly {only}")
    options = SshOptions(config_file=config, identity=bare_public(site))
    SshDevice(Address(host="board"), options=options).close()


def test_a_locked_key_that_the_agent_has(site: Site, agent: Callable[[Path], None]) -> None:
    """The file's own public half says which of the agent's it is."""
    locked = site.folder / "locked"
    locked.write_bytes(site.sshd.key.read_bytes())
    locked.chmod(0o600)
    agent(locked)
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", locked], check=True)
    site.hold_reached(f"IdentitiesOnly yes\nIdentityFile {locked}")


def test_an_agent_by_its_name(
    site: Site, agent: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent(site.sshd.key)
    monkeypatch.setenv("MY_AGENT", os.environ["SSH_AUTH_SOCK"])
    monkeypatch.delenv("SSH_AUTH_SOCK")
    text = f"IdentitiesOnly yes\nIdentityFile {bare_public(site)}\nIdentityAgent "
    site.hold_reached(text + "$MY_AGENT")
    site.hold_reached(text + f'"{site.folder}/agent"')
    assert "not in the agent" in site.refused(text + "none").message


@pytest.mark.parametrize("kind", ["file", "agent", "named"])
def test_a_certificate(
    site: Site, agent: Callable[[Path], None], tmp_path: Path, kind: str
) -> None:
    """A server that knows a CA, and no key."""
    authority, key = make_key(tmp_path / "ca"), make_key(tmp_path / "mine", "rsa")
    subprocess.run(
        ["ssh-keygen", "-q", "-s", authority, "-I", "me", "-n", site.sshd.user, f"{key}.pub"],
        check=True,
    )
    server = sshd_server.start(tmp_path / "certified", extra=f"TrustedUserCAKeys {authority}.pub")
    try:
        (tmp_path / "certified" / "authorized").write_text("")
        site = replace(site, sshd=server)
        site.known.write_text(server.known_hosts_line + "\n")
        if kind == "agent":
            agent(key)  # and with it the certificate
            key.unlink()
            text = ""
        elif kind == "named":
            certificate = (tmp_path / "mine-cert.pub").rename(tmp_path / "elsewhere.pub")
            text = f"IdentityFile {key}\nCertificateFile {certificate}"
        else:
            text = f"IdentityFile {key}"
        site.hold_reached(text)
    finally:
        server.stop()


def test_globals_behind_an_include(site: Site) -> None:
    (site.folder / "more").write_text("Host other\n  Port 1\n")
    site.hold_reached(f"Include {site.folder}/more\nIdentityFile {site.sshd.key}")


def test_a_match_exec(site: Site) -> None:
    site.hold_reached(
        f'Match host board exec "test %h = board"\n  IdentityFile {site.sshd.key}\n'
        "Match exec false\n  Port 1\n"
    )


def test_names_with_blanks_and_tokens(site: Site) -> None:
    (site.folder / "a b").mkdir()
    key = site.folder / "a b" / f"board-{site.sshd.port}"
    key.write_bytes(site.sshd.key.read_bytes())
    key.chmod(0o600)
    known = site.known.rename(site.folder / "a b" / "known hosts")
    site.hold_reached(
        f'IdentityFile "{site.folder}/a b/%n-%p"\nUserKnownHostsFile "{known}" /dev/null'
    )


def test_jumps_as_addresses(site: Site, tmp_path: Path) -> None:
    hop = sshd_server.start(tmp_path / "hop")
    try:
        with site.known.open("a") as file:
            file.write(hop.known_hosts_line + "\n")
        key = f"IdentityFile {site.sshd.key}\nIdentityFile {hop.key}"
        site.hold_reached(
            f"Host board\nProxyJump ssh://{hop.user}@127.0.0.1:{hop.port}\nHost *\n{key}"
        )
        # Its own name, at another port, is no circle.
        config = site.configure(key)
        options = SshOptions(config_file=config, jump=(f"ssh://127.0.0.1:{hop.port}",))
        address = Address.parse(f"ssh://{site.sshd.user}@127.0.0.1:{site.sshd.port}")
        SshDevice(address, options=options).close()
    finally:
        hop.stop()


def test_a_jump_host_that_forwards_nothing(site: Site, tmp_path: Path) -> None:
    hop = sshd_server.start(tmp_path / "hop", extra="AllowTcpForwarding no")
    try:
        with site.known.open("a") as file:
            file.write(hop.known_hosts_line + "\n")
        error = site.refused(
            f"Host board\nProxyJump 127.0.0.1:{hop.port}\nHost *\nIdentityFile {hop.key}"
        )
        assert "forwards no connections" in error.message
    finally:
        hop.stop()


def test_commands_that_only_a_shell_understands(site: Site) -> None:
    forward = site.folder / "forward it.py"
    forward.write_text(FORWARD)
    key = f"IdentityFile {site.sshd.key}"
    site.hold_reached(
        f'{key}\nProxyCommand PYTHONUTF8=1 "{sys.executable}" "{forward}" %h %p 2>/dev/null'
        .replace("PYTHONUTF8=1", "env PYTHONUTF8=1")
    )  # fmt: skip
    passed = site.folder / "pass.py"
    passed.write_text(PASS)
    site.hold_reached(f"{key}\nProxyUseFdpass yes\nProxyCommand {sys.executable} {passed} %h %p")


def test_known_hosts_as_ssh_understands_them(site: Site) -> None:
    key = f"IdentityFile {site.sshd.key}"
    line = public(site.sshd.host_key)
    # By the name without the port, by an alias, by a command.
    site.known.write_text(f"127.0.0.1 {line}\n")
    site.hold_reached(key)
    site.known.write_text(f"alias {line}\n")
    site.hold_reached(f"{key}\nHostKeyAlias ALIAS")
    site.known.write_text("")
    (site.folder / "keys").write_text(f"[127.0.0.1]:{site.sshd.port} {line}\n")
    site.hold_reached(f"{key}\nKnownHostsCommand /bin/cat {site.folder}/keys")
    # A first contact that the user has allowed; a key that has changed is refused all the same.
    site.hold_reached(f"{key}\nStrictHostKeyChecking no\nUserKnownHostsFile /dev/null")
    config = site.configure(f"{key}\nStrictHostKeyChecking accept-new")
    SshDevice(Address(host="board"), options=SshOptions(config_file=config)).close()
    assert site.known.read_text() == site.sshd.known_hosts_line + "\n"
    other = public(make_key(site.folder / "other"))
    site.known.write_text(f"[127.0.0.1]:{site.sshd.port} {other}\n")
    with pytest.raises(ChangedHostKeyError):
        SshDevice(Address(host="board"), options=SshOptions(config_file=config))
    site.known.write_text("")
    config = site.configure(f"{key}\nStrictHostKeyChecking yes")
    with pytest.raises(UnknownHostKeyError):
        SshDevice(Address(host="board"), options=SshOptions(config_file=config))


def test_addresses_of_one_family(site: Site) -> None:
    key = f"IdentityFile {site.sshd.key}"
    site.known.write_text(f"[localhost]:{site.sshd.port} {public(site.sshd.host_key)}\n")
    site.hold_reached(
        f"{key}\nHost board\nHostName localhost\nAddressFamily inet\nBindAddress 127.0.0.2"
    )


HERE = "127.0.0.1"
CERTIFICATES: dict[str, tuple[str, list[str], str]] = {
    # The kind of the authority, what ssh-keygen is told, and what is wrong with it.
    "ed25519": ("ed25519", ["-h", "-n", f"other,{HERE}"], ""),
    "rsa": ("rsa", ["-h", "-n", HERE], ""),
    "ecdsa": ("ecdsa", ["-h", "-n", HERE, "-V", "-1d:+1d"], ""),
    "of nobody": ("ed25519", ["-h"], ""),
    "of a user": ("ed25519", ["-n", HERE], "it is of a user, not of a host"),
    "of others": ("ed25519", ["-h", "-n", "a,b"], "it is of a, b, not of 127.0.0.1"),
    "a pattern": ("ed25519", ["-h", "-n", "127.*"], r"it is of 127\.\*, not of"),
    "a port": ("ed25519", ["-h", "-n", f"[{HERE}]:22"], "not of 127.0.0.1"),
    "old": ("ed25519", ["-h", "-V", "20200101Z:20210101Z"], "it was valid until 2021-01-01 00:00"),
    "early": ("ed25519", ["-h", "-V", "20990101Z:20991231Z"], "not valid before 2099-01-01 00:00"),
    "SHA-1": ("rsa", ["-h", "-t", "ssh-rsa"], "signed with SHA-1"),
    "an option": ("ed25519", ["-h", "-O", "critical:x@y=z"], "critical options"),
}


def certified(
    folder: Path, kind: str, words: list[str], host_key_kind: str = "ed25519"
) -> tuple[Sshd, Path]:
    """A server whose host key an authority has signed, and the authority."""
    authority = make_key(folder / "authority", kind)
    certificate = folder / "server" / "host-cert.pub"
    # The key is there before the server reads what its configuration names.
    server = sshd_server.start(folder / "server", host_key_kind=host_key_kind)
    server.stop()
    signed = ["ssh-keygen", "-q", "-s", authority, "-I", "it", *words, f"{server.host_key}.pub"]
    subprocess.run(signed, check=True)
    with (server.folder / "config").open("a") as file:
        file.write(f"\nHostCertificate {certificate}\n")
    again = sshd_server._listening(server.folder)
    assert again is not None
    server.process = again
    return server, authority


def ssh_gets_in(site: Site, config: Path) -> bool:
    done = subprocess.run(
        ["ssh", "-F", config, "-o", "BatchMode=yes", "board", "echo there"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.stdout == "there\n"


@pytest.mark.parametrize("name", CERTIFICATES)
def test_host_certificates(site: Site, tmp_path: Path, name: str) -> None:
    """`@cert-authority` in known_hosts: good for ssh is good for us, and nothing else is."""
    kind, words, flaw = CERTIFICATES[name]
    server, authority = certified(tmp_path, kind, words)
    site = replace(site, sshd=server)
    try:
        site.known.write_text(f"@cert-authority * {public(authority)}\n")
        text = f"IdentityFile {server.key}"
        if not flaw:
            site.hold_reached(text)
            return
        config = site.configure(text)
        assert not ssh_gets_in(site, config)
        with pytest.raises(UnknownHostKeyError, match=f"its certificate does not count: .*{flaw}"):
            SshDevice(Address(host="board"), options=SshOptions(config_file=config))
        # It is a plain key all the same, which may be known.
        with site.known.open("a") as file:
            file.write(server.known_hosts_line + "\n")
        site.hold_reached(text)
    finally:
        server.stop()


@pytest.mark.parametrize(
    "host_key_kind",
    [*(pytest.param(kind, marks=pytest.mark.slow) for kind in ("rsa", "ecdsa")), "ed25519"],
)
def test_which_authority_is_whose(site: Site, tmp_path: Path, host_key_kind: str) -> None:
    server, authority = certified(
        tmp_path, "ed25519", ["-h", "-n", "board,127.0.0.1"], host_key_kind
    )
    site = replace(site, sshd=server)
    other, key = public(make_key(tmp_path / "other")), f"IdentityFile {server.key}"
    trusted, port = public(authority), server.port
    try:
        for line in (
            f"@cert-authority 127.0.0.1 {trusted}",
            f"@cert-authority [127.0.0.1]:{port} {trusted}",
            # What it had before is no matter.
            f"[127.0.0.1]:{port} {other}\n@cert-authority * {trusted}",
            f"@cert-authority * {other}\n{server.known_hosts_line}",
        ):
            site.known.write_text(f"{line}\n")
            site.hold_reached(key)
        site.known.write_text(f"@cert-authority board {trusted}\n")
        site.hold_reached(f"{key}\nHostKeyAlias board")
        (tmp_path / "keys").write_text(f"@cert-authority * {trusted}\n")
        site.known.write_text("")
        site.hold_reached(f"{key}\nKnownHostsCommand /bin/cat {tmp_path}/keys")
        config = site.configure(key)
        for lines, refusal in (
            (f"@cert-authority elsewhere {trusted}", UnknownHostKeyError),
            (f"@cert-authority * {other}", UnknownHostKeyError),
            (f"* {trusted}", ChangedHostKeyError),
            (f"@cert-authority * {trusted}\n@revoked * {trusted}", ChangedHostKeyError),
            (
                f"@cert-authority * {trusted}\n@revoked * {public(server.host_key)}",
                ChangedHostKeyError,
            ),
        ):
            site.known.write_text(f"{lines}\n")
            assert not ssh_gets_in(site, config)
            with pytest.raises(refusal):
                SshDevice(Address(host="board"), options=SshOptions(config_file=config))
    finally:
        server.stop()


class Open(paramiko.ServerInterface):
    """Lets everybody in who asks for nothing but that, as boards with an empty password do."""

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_none(self, username: str) -> int:
        return AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return OPEN_SUCCEEDED


def test_a_device_that_asks_for_nothing(tmp_path: Path) -> None:
    key, listener = make_key(tmp_path / "key"), socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        transport = paramiko.Transport(listener.accept()[0])
        transport.add_server_key(paramiko.Ed25519Key(filename=str(key)))
        transport.start_server(server=Open())

    threading.Thread(target=serve, daemon=True).start()
    port = listener.getsockname()[1]
    options = SshOptions(
        use_config=False, identities_only=True, host_keys=(f"[127.0.0.1]:{port} {public(key)}",)
    )
    SshDevice(Address(host="127.0.0.1", port=port), options=options).close()
    listener.close()


# A device that answers, and refuses.


@pytest.mark.parametrize(
    ("second", "asked"), [("password", "password"), ("keyboard-interactive", "Password")]
)
def test_two_factors(site: Site, tmp_path: Path, second: str, asked: str) -> None:
    if second == "keyboard-interactive" and not Path("/etc/pam.d/sshd").exists():
        pytest.skip("there is no PAM for sshd")
    server = sshd_server.start(tmp_path / "strict", before=(
        f"AuthenticationMethods publickey,{second}\nUsePAM yes\nPasswordAuthentication yes\n"
        "KbdInteractiveAuthentication yes\n"
    ))  # fmt: skip
    try:
        site = replace(site, sshd=server)
        site.known.write_text(server.known_hosts_line + "\n")
        error = site.refused(f"IdentityFile {server.key}")
    finally:
        server.stop()
    assert f"takes the key of {server.user}, and then asks for more: {second}" in error.message
    assert asked in error.message
    assert "AuthenticationMethods publickey" in str(error.hint)
    assert "ssh-copy-id" not in str(error.hint)


def test_no_keys_at_all(site: Site, tmp_path: Path) -> None:
    server = sshd_server.start(
        tmp_path / "words", before="PubkeyAuthentication no\nPasswordAuthentication yes\n"
    )
    try:
        site.known.write_text(server.known_hosts_line + "\n")
        error = replace(site, sshd=server).refused(f"IdentityFile {server.key}")
    finally:
        server.stop()
    assert "takes no keys" in error.message
    assert "password" in error.message


def test_too_many_keys(site: Site, agent: Callable[[Path], None]) -> None:
    fill(site, agent, 8)
    error = site.refused("")
    assert isinstance(error, AuthError)
    assert "Too many authentication failures" in error.message
    assert "after 6 keys" in error.message or "after 7 keys" in error.message
    assert "IdentitiesOnly yes" in str(error.hint)


@pytest.mark.parametrize("command", ["missing-program -x %h", "/etc/passwd"])
def test_a_proxy_command_that_cannot_start(site: Site, command: str) -> None:
    error = site.refused(f"ProxyCommand {command}")
    assert isinstance(error, ProxyError)
    name = command.partition(" ")[0]
    assert f"its ProxyCommand {name} " in error.message
    assert "is not there" in error.message or "cannot be executed" in error.message
    assert error.is_lasting


def test_a_proxy_command_that_says_why(site: Site) -> None:
    error = site.refused("ProxyCommand echo 'bastion: token expired' >&2; exit 9")
    assert "its ProxyCommand echo" in error.message
    assert "bastion: token expired" in error.message
    assert isinstance(error, ProxyError)
    assert not error.is_lasting


def test_a_proxy_command_that_starts_itself(site: Site) -> None:
    """`Host *` applies to the host on the way, too."""
    error = site.refused(f"ProxyCommand ssh -F {site.folder}/config -W %h:%p jump")
    assert "starts itself again and again" in error.message


def test_no_common_algorithm(site: Site, tmp_path: Path) -> None:
    server = sshd_server.start(tmp_path / "old", extra="KexAlgorithms diffie-hellman-group14-sha1")
    try:
        site.known.write_text(server.known_hosts_line + "\n")
        error = replace(site, sshd=server).refused(f"IdentityFile {server.key}")
    finally:
        server.stop()
    assert "no common way to talk" in error.message


def test_logins_at_a_time(site: Site, tmp_path: Path) -> None:
    """MaxStartups drops whoever comes too early: each comes back at another moment."""
    server = sshd_server.start(tmp_path / "few", extra="MaxStartups 2")
    site.known.write_text(server.known_hosts_line + "\n")
    config = replace(site, sshd=server).configure(f"IdentityFile {server.key}")
    failed: list[Exception] = []

    def connect() -> None:
        try:
            device = SshDevice(Address(host="board"), options=SshOptions(config_file=config))
            device.run("true")
            device.close()
        except Exception as error:
            failed.append(error)

    # Two that never log in, for a while.
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(2)]
    threads = [threading.Thread(target=connect) for _ in range(4)]
    for thread in threads:
        thread.start()
    log = server.folder / "log"
    while b"past MaxStartups" not in log.read_bytes():
        threads[0].join(0.05)
    for sock in idle:
        sock.close()
    for thread in threads:
        thread.join()
    server.stop()
    assert failed == []


def test_one_that_is_off_is_no_refusal(site: Site) -> None:
    with sshd_server.closed_port() as port:
        config = site.configure(f"Port {port}")
        with pytest.raises(UnreachableError) as off:
            SshDevice(Address(host="board"), options=SshOptions(config_file=config))
    assert off.value.exit_code == 6
