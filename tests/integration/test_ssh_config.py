"""What the OpenSSH configuration says of a host: `ssh -G` is right, our own reader as right.

Each case is a tree of files and some hosts. Generated ones are put together from parts that
ssh_config(5) names; `ssh -G` runs within limits, for a `Match exec` may start it again.
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from edgepack.base.errors import ConfigError
from edgepack.device import Address, ssh_config, ssh_reader
from edgepack.device.ssh_config import SshConfig
from tests.support import require_tool

HOSTS = ["pi", "pi.lan", "cam-1", "10.0.0.7", "PI", "shop01.example.org"]
SEED = 41
SHORT, LONG = 250, 3000


def limits() -> None:
    """Of a child: a configuration that starts ssh again ends here."""
    resource.setrlimit(resource.RLIMIT_CPU, (5, 5))
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))


def by_openssh(config: Path, host: str, *words: str) -> ssh_reader.Options | str:
    """What `ssh -G` says, or why it does not."""
    done = subprocess.run(
        [require_tool("ssh"), "-G", "-F", config, *words, host],
        capture_output=True, timeout=20, check=False, stdin=subprocess.DEVNULL, preexec_fn=limits,
    )  # fmt: skip
    said = done.stderr if done.returncode else done.stdout
    text = said.decode("utf-8", "surrogateescape")
    return text if done.returncode else ssh_config.parse(text)


def by_reader(
    config: Path, host: str, user: str | None = None, port: int | None = None
) -> ssh_reader.Options | str:
    """The same by our own reader, with lists on a line, as `ssh -G` prints them."""
    try:
        address = Address(host=host, user=user, port=port)
        found = ssh_config.read([ssh_reader.ConfigFile(path=config)], address)
    except ConfigError as error:
        return error.message
    for key in ("userknownhostsfile", "globalknownhostsfile"):
        found[key] = [" ".join(found[key])]
    return found


def normal(found: ssh_reader.Options) -> ssh_reader.Options:
    """Yes is true, as it was called before OpenSSH 8.7."""
    words = {"yes": "true", "no": "false", "off": "false"}
    flags = ("identitiesonly", "proxyusefdpass", "stricthostkeychecking")
    return {
        key: [words.get(value, value) for value in values] if key in flags else values
        for key, values in found.items()
    }


def hold_equal(config: Path, host: str, user: str | None = None, port: int | None = None) -> bool:
    """Whether both say something, which is then the same; what ssh refuses, the reader refuses."""
    words = [*(["-l", user] if user else []), *(["-p", str(port)] if port else [])]
    right, ours = by_openssh(config, host, *words), by_reader(config, host, user, port)
    if isinstance(right, str):
        assert isinstance(ours, str), f"ssh refuses {config}: {right}; the reader says {ours}"
        return False
    if isinstance(ours, str):
        # Refused by name, with the line: never a guess.
        assert f"{config.parent}/" in ours, ours
        assert any(word in ours for word in ("only ssh does that", "not understood")), ours
        return False
    assert normal(ours) == normal(right), f"{host} in {config}:\n{config.read_bytes()!r}"
    return True


TABLE: dict[str, tuple[str, ...]] = {
    # What stands behind an Include belongs to where that stands, not to the file's last Host.
    "globals behind an Include": ("Include {here}/a\nPort 2201\nUser u", "Host other\n  Port 1"),
    "Include in a Host": ("Host pi*\n  Include {here}/a\nPort 3", "Port 9\nHost cam-1\nUser c"),
    "Include in another Host": ("Host x\n  Include {here}/a\nHost *\nPort 3", "Host *\nPort 9"),
    "Host in an Include ends with it": (
        "Host pi\n  Include {here}/a\n  User inside\n", "Host nobody\n  Port 77\n",
    ),
    "Include of several": ("Include {here}/a {here}/b {here}/none*", "Port 7", "Port 8\nUser z"),
    "Include with quotes": ('Include "{here}/a" \'{here}/b\'', "User q", "Port 6"),
    "Include of itself": ("Include {here}/config",),
    "no space but an equals sign": ("Host=pi\nHostName=10.1.1.1\nPort = 99\nUser  =  me",),
    "quotes and spaces": ('IdentityFile "{here}/a b/key"\nUser "my"\nCertificateFile \'c d\'',),
    "backslashes": ("IdentityFile {here}/a\\ b\\\\c\nUser \"a\\\"b\"",),
    "a quote that does not end": ('IdentityFile "abc',),
    "a quote that does not end, in a command": ("ProxyCommand sh -c 'x",),
    "comments": ("# Port 1\n   # Port 2\nPort 3 # three\nUser a#b",),
    "a command keeps its comment": ("ProxyCommand nc %h %p # not a comment",),
    "known hosts in two places": (
        'UserKnownHostsFile "{here}/k 1" ~/k2\nGlobalKnownHostsFile /dev/null',
    ),
    "negation": ("Host * !pi !cam*\n  Port 5\nHost !pi\n  User never",),
    "question marks and brackets": ("Host p?\n  Port 5\nHost [ab]*\n  Port 6\nHost p[i]\nPort 7",),
    "letters of either size": ("hOsT pi\n  POrT 17\n  UsEr me\nHost PI\n  Port 18",),
    "first counts, keys add up": (
        "IdentityFile a\nIdentityFile b\nIdentityFile a\nPort 1\nPort 2",
    ),
    "Match host after HostName": ("Host pi\n HostName 10.0.0.9\nMatch host 10.0.0.*\n Port 4",),
    "Match originalhost": (
        "Host pi\n HostName x\nMatch originalhost pi\n Port 4\nMatch host pi\nUser n",
    ),
    "Match user": (
        "User bob\nMatch user bob,alice\n Port 4\nMatch user *,!bob\n Port 5",
    ),
    "Match localuser": ("Match localuser root\n Port 4\nMatch !localuser root\n Port 5",),
    "Match all": ("Match all\n Port 4",),
    "Match !all": ("Match !all\n Port 4",),
    "Match all with more": ("Match host pi all\n Port 4",),
    "Match final": (
        "Host pi\n HostName deep.example.org\nMatch final host *.org\n Port 4\n User f",
    ),
    "Match final, Host anew": ("Match final all",),
    "Match final again": (
        "Match final\nUser f\nHost pi\nHostName pi.lan\nHost pi.lan\n Port 44\nIdentityFile z",
    ),
    "Match canonical": ("Match canonical\n Port 4\nMatch !canonical\n Port 5",),
    "Match quoted": ('Match host "pi" user "root"\n Port 4\nMatch host=cam-1\nPort 6',),
    "Match with a comment": ("Match host pi # and more\n Port 4",),
    "Match exec that is not reached": ("Match host nobody exec \"touch {here}/ran\"\n Port 4",),
    "Match exec": ("Match exec true\n Port 4",),
    "Match exec in between": ("Match host pi exec \"test %h = pi\"\n Port 4\nHost *\n Port 5",),
    "Match we do not know": ("Match moonphase full\n Port 4",),
    "Match without a value": ("Match host\n Port 4",),
    "Match without anything": ("Match\n Port 4",),
    "an unknown keyword": ("Frobnicate yes\nPort 4",),
    "an unknown keyword, ignored": ("IgnoreUnknown Frob*,Use\nFrobnicate yes\nPort 4",),
    "ProxyJump": ("ProxyJump u@h:33,[::1]:44,k",),
    "ProxyJump as an address": ("ProxyJump ssh://u@h:33",),
    "ProxyJump none first": ("ProxyJump none\nProxyCommand x",),
    "ProxyJump none with a comment": ("ProxyJump none # c\nProxyCommand x",),
    "ProxyCommand first": ("ProxyCommand x %h\nProxyJump j",),
    "ProxyJump first": ("ProxyJump j\nProxyCommand x %h",),
    "ProxyCommand none": ("ProxyCommand none",),
    "ProxyJump with blanks": ("ProxyJump a, b",),
    "tokens": (
        "HostName %h.example.org\nIdentityFile ~/%h/${{HOME}}\nProxyCommand nc %h %p %r %n",
    ),
    "a token that HostName has not": ("HostName %n.example.org",),
    "addresses in other forms": ("HostName 127.1",),
    "big letters in HostName": ("HostName Board.Example.ORG",),
    "times": ("ConnectTimeout 1m30s",),
    "no time": ("ConnectTimeout soon",),
    "no port": ("Port 99999",),
    "a port with a name": ("Port ssh",),
    "no value": ("Port\n",),
    "too many values": ("Port 1 2",),
    "words that are none": ("StrictHostKeyChecking perhaps",),
    "words that are some": ("StrictHostKeyChecking off\nIdentitiesOnly true\nAddressFamily inet6",),
    "agents": ("IdentityAgent none\nIdentityFile none",),
    "windows": ("Host pi\r\n  Port 44\r\n\tUser me\r\n",),
    "CanonicalizeHostname": ("CanonicalizeHostname yes\nCanonicalDomains lan",),
    "CanonicalizeHostname where it is not": ("Host nobody\nCanonicalizeHostname yes",),
    "CanonicalizeHostname no": ("CanonicalizeHostname no",),
    "a token in an Include": ("Include {here}/%h.conf",),
    "an empty pattern": ('Host "" pi\n Port 3',),
    "another's encoding": ("# \udce4\nHost pi\n  User \udce4",),
}  # fmt: skip


def write(folder: Path, texts: tuple[str, ...]) -> Path:
    """The first of the texts is the configuration, those after it are files a, b, c."""
    for name, text in zip(("config", "a", "b", "c"), texts, strict=False):
        body = text.replace("{here}", str(folder)).replace("{{", "{").replace("}}", "}")
        (folder / name).write_bytes(body.encode("utf-8", "surrogateescape"))
    return folder / "config"


@pytest.mark.parametrize("name", TABLE)
def test_the_reader_says_what_openssh_says(name: str, tmp_path: Path) -> None:
    config = write(tmp_path, TABLE[name])
    for host in HOSTS[:4]:
        hold_equal(config, host)
    hold_equal(config, "pi", user="bob", port=2222)
    assert not (tmp_path / "ran").exists()


def generated(rng: random.Random) -> tuple[str, ...]:
    """A configuration and what it includes."""
    quoted: list[Callable[[str], str]] = [str, str, str, '"{}"'.format, "'{}'".format]

    def option() -> str:
        name = rng.choice(
            ["Port", "User", "HostName", "IdentityFile", "IdentitiesOnly", "ProxyJump",
             "proxycommand", "UserKnownHostsFile", "HostKeyAlias", "StrictHostKeyChecking",
             "IdentityAgent", "CertificateFile", "ConnectTimeout", "AddressFamily",
             "Compression", "ForwardAgent"]
        )  # fmt: skip
        value = {
            "Port": str(rng.randrange(1, 70_000)),
            "User": rng.choice(["pi", "root", "my-user", "ü"]),
            "HostName": rng.choice(["10.0.0.7", "%h.lan", "Board", "pi", "a%%b"]),
            "IdentityFile": rng.choice(["~/.ssh/a", "/a b/c", "%d/%h", "none", "key.pub"]),
            "ProxyJump": rng.choice(["hop", "u@hop:22,hop2", "none", "ssh://x@y:1", "a,,b"]),
            "proxycommand": rng.choice(["none", 'ssh -W %h:%p "a b"', "nc %h %p # x"]),
            "UserKnownHostsFile": rng.choice(["/dev/null", "~/a ~/b", "none"]),
            "StrictHostKeyChecking": rng.choice(["no", "yes", "accept-new", "ask", "maybe"]),
            "IdentityAgent": rng.choice(["none", "$SOME", "SSH_AUTH_SOCK", "~/agent"]),
            "ConnectTimeout": rng.choice(["5", "1m", "none"]),
            "AddressFamily": rng.choice(["inet", "any"]),
            "HostKeyAlias": "Alias-%h", "CertificateFile": "~/c d",
        }.get(name, rng.choice(["yes", "no"]))  # fmt: skip
        if name not in ("ProxyJump", "proxycommand"):
            value = rng.choice(quoted)(value)
        between, after = rng.choice([" ", " ", "=", " = ", "\t"]), rng.choice(["", "", " ", " # c"])
        return f"{name}{between}{value}{after}"

    def scope() -> str:
        pattern = rng.choice(["pi", "*", "p?", "!pi *", "* !cam*", "10.0.0.*", "PI", "cam-1 pi"])
        listed = pattern.replace(" ", ",")
        return rng.choice(
            [f"Host {pattern}", f"Host {pattern}", f"Host={pattern}", f"Match host {listed}",
             f"Match originalhost {listed}", "Match user pi,root", "Match all", "Match final",
             f"Match !host {listed}", "Match localuser root host pi", "Match final host *.lan",
             "Match canonical", "Match exec false", "Match tagged x",
             f"Match host {listed} exec true"]
        )  # fmt: skip

    def text(includes: str) -> str:
        lines = []
        for _ in range(rng.randrange(2, 9)):
            kind = rng.random()
            line = scope() if kind < 0.35 else option()
            if includes and kind > 0.85:
                line = f"Include {{here}}/{rng.choice(includes)}"
            lines.append(rng.choice(["", "", "  ", "\t"]) + line)
        return rng.choice(["\n", "\n", "\r\n", "\n\n"]).join(lines) + rng.choice(["", "\n"])

    return text("abc"), text("bc"), text("c"), text("")


@pytest.mark.parametrize("count", [SHORT, pytest.param(LONG, marks=pytest.mark.slow)])
def test_generated_configurations(count: int, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    both = 0
    for number in range(count):
        folder = tmp_path / str(number)
        folder.mkdir()
        config = write(folder, generated(rng))
        user, port = rng.choice([(None, None), (None, None), ("bob", 2222)])
        both += hold_equal(config, rng.choice(HOSTS), user, port)
    # Not all is refused by one, or by both.
    assert both > count / 4


def test_a_configuration_that_others_may_write(tmp_path: Path) -> None:
    config = write(tmp_path, ("Include {here}/a", "Port 3"))
    (tmp_path / "a").chmod(0o666)
    assert "Bad owner or permissions" in str(by_openssh(config, "pi"))
    assert "others may write it" in str(by_reader(config, "pi"))


def test_what_ssh_refuses_is_said_in_its_words(tmp_path: Path) -> None:
    config = write(tmp_path, ("Port 22\nFrobnicate yes",))
    with pytest.raises(ConfigError, match=r"config: line 2: Bad configuration option: frobnicate"):
        SshConfig(config).lookup(Address(host="pi"))


def test_a_match_exec_is_run_by_ssh(tmp_path: Path) -> None:
    config = write(
        tmp_path, ('Match host pi exec "test -e {here}/at-home"\n  HostName 10.0.0.7\n',)
    )
    assert SshConfig(config).lookup(Address(host="pi")).hostname == "pi"
    (tmp_path / "at-home").touch()
    assert SshConfig(config).lookup(Address(host="pi")).hostname == "10.0.0.7"
    assert SshConfig(config).lookup_quickly(Address(host="pi")).hostname == "10.0.0.7"


def test_a_match_exec_that_starts_ssh_again(tmp_path: Path) -> None:
    config = write(tmp_path, ('Match exec "ssh -G -F {here}/config %h"\n  Port 1\n',))
    with pytest.raises(ConfigError, match="starts more than 100 processes"):
        SshConfig(config).lookup(Address(host="pi"))


@pytest.fixture
def without_ssh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


@pytest.mark.usefixtures("without_ssh")
def test_without_ssh_what_is_not_understood_is_refused(tmp_path: Path) -> None:
    config = write(tmp_path, ("Host pi\n  HostName 10.0.0.7\nMatch exec true\n",))
    with pytest.raises(ConfigError, match=r"config:3: Match exec runs a command"):
        SshConfig(config).lookup(Address(host="pi"))
    config.write_text("Host pi\n  HostName 10.0.0.7\n")
    assert SshConfig(config).lookup(Address(host="pi")).hostname == "10.0.0.7"


def test_an_old_ssh_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "ssh"
    program.write_text("#!/bin/sh\necho 'unknown option -- G' >&2; exit 255\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    config = write(tmp_path, ("Port 77\n",))
    assert SshConfig(config).lookup(Address(host="pi")).port == 77


def test_what_stands_for_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens, variables and home, as ssh_config(5) has them."""
    monkeypatch.setenv("WHERE", str(tmp_path))
    monkeypatch.setenv("HOME", "/nowhere")
    (tmp_path / "k 1").touch()
    config = write(
        tmp_path,
        ('HostName %h.lan\nPort 33\nUser bob\nIdentityFile ${WHERE}/%n-%r-%p\nIdentityFile ~/%u%%\n'
         'UserKnownHostsFile "{here}/k 1" ~/k2\nHostKeyAlias Al\nProxyCommand nc %h %p ${WHERE}\n'
         "IdentityAgent ${WHERE}/agent\n",),
    )  # fmt: skip
    for found in (
        SshConfig(config).lookup(Address(host="pi")),
        SshConfig(config).lookup_quickly(Address(host="pi")),
    ):
        home = ssh_reader.home()
        assert found.identity_files == (
            tmp_path / "pi-bob-33", home / f"{ssh_reader.local_user()}%",
        )  # fmt: skip
        assert found.known_hosts[:2] == (tmp_path / "k 1", home / "k2")
        assert (found.host_key_alias, found.agent) == ("al", f"{tmp_path}/agent")
        # The variables of a command are the shell's.
        assert found.proxy_command == "nc pi.lan 33 ${WHERE}"
    monkeypatch.delenv("WHERE")
    with pytest.raises(ConfigError, match=r"WHERE. has no value"):
        SshConfig(config).lookup(Address(host="pi"))
