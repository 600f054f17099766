"""What OpenSSH's configuration says of a host.

`ssh -G` is the authority. Where there is no OpenSSH client, `edgepack.device.ssh_reader` reads the
files; `tests/integration/test_ssh_config.py` holds that both say the same.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgepack.base import text
from edgepack.base.errors import ConfigError, UsageError
from edgepack.base.process import last_lines
from edgepack.device import ssh_reader
from edgepack.device.options import Address
from edgepack.device.process_group import LimitedError, run_limited
from edgepack.device.ssh_reader import ConfigFile, Options

_TOKEN = re.compile(r"%(.?)|\$\{([^}]*)\}")
_NONE = "none"
_AGENT_VARIABLE = "SSH_AUTH_SOCK"
_VARIABLE = re.compile(r"\$[A-Za-z_]\w*")
_ASK_S = 20.0
"""For `ssh -G`: a `Match exec` may ask the network."""

_TOO_OLD = re.compile(r"(illegal|unknown|invalid) option.*\bG\b")


@dataclass(frozen=True, kw_only=True)
class HostConfig:
    """What is known of a host, all of it expanded.

    `agent` is the socket of an agent, None if none is to be asked. Of `proxy_jump` the hops come in
    order. `accept_new`: a host key that is seen for the first time is taken. `connect_timeout_s` is
    0 if there is none.
    """

    hostname: str
    user: str
    port: int
    identity_files: tuple[Path, ...]
    certificate_files: tuple[Path, ...]
    identities_only: bool
    agent: str | None
    proxy_jump: tuple[str, ...]
    proxy_command: str
    proxy_passes_socket: bool
    host_key_alias: str | None
    known_hosts: tuple[Path, ...]
    known_hosts_command: str
    accept_new: bool
    family: socket.AddressFamily
    bind_address: str
    bind_interface: str
    connect_timeout_s: int


class SshConfig:
    """The user's configuration: the file `only`, or else the usual ones; with `use` off, none."""

    def __init__(self, only: Path | None = None, *, use: bool = True) -> None:
        if only is not None and use and not only.is_file():
            raise ConfigError(f"no such SSH configuration: {only}")
        self._only = only
        self._use = use
        self._program = shutil.which("ssh") if use else None
        user_file = ConfigFile(path=ssh_reader.home() / ".ssh/config", guarded=True)
        system_file = ConfigFile(path=Path("/etc/ssh/ssh_config"), system=True)
        self._sources = (
            () if not use else (ConfigFile(path=only),) if only else (user_file, system_file)
        )

    def lookup(self, address: Address) -> HostConfig:
        """What is known of `address`. Raises ConfigError."""
        read = None
        try:
            read = self._read(address)
        except ConfigError:
            if self._program is None:
                raise
        if self._program is None:
            return _expanded(read or {}, address)
        said = _ask(self._program, self._only, address)
        return _expanded(
            _disambiguated(said, read) if said is not None else self._read(address), address
        )

    def lookup_quickly(self, address: Address) -> HostConfig:
        """The same, without starting a process for what is understood here."""
        try:
            return _expanded(self._read(address), address)
        except ConfigError:
            return self.lookup(address)

    def _read(self, address: Address) -> Options:
        return read(self._sources, address)


def read(sources: Sequence[ConfigFile], address: Address) -> Options:
    """What `ssh_reader` says of `address`, as far expanded as `ssh -G` does it."""
    options = ssh_reader.read(sources, address.host, user=address.user, port=address.port)
    tokens = _tokens({key: values[0] for key, values in options.items() if values}, address)
    key = "userknownhostsfile"
    options[key] = [str(ssh_reader.tilde(_expand(name, tokens, key))) for name in options[key]]
    for key in options.keys() & {"identityagent"}:
        options[key] = [_expanded_agent(options[key][0], tokens)]
    for key in options.keys() & {"hostkeyalias"}:
        options[key] = [options[key][0].lower()]
    return options


def _ask(program: str, only: Path | None, address: Address) -> Options | None:
    """What `ssh -G` says of `address`; None if it is too old to say it."""
    words = [program, "-G"]
    words += ["-F", str(only)] if only else []
    words += ["-p", str(address.port)] if address.port else []
    words += ["-l", address.user] if address.user else []
    try:
        done = run_limited([*words, "--", address.host], timeout_s=_ASK_S)
    except LimitedError as error:
        raise ConfigError(
            f"`ssh -G {address.host}` {error}",
            hint="a `Match exec` of the OpenSSH configuration takes long, or starts ssh again",
        ) from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace")
        if _TOO_OLD.search(said):
            return None
        raise ConfigError(
            f"ssh does not take its configuration for {address.host}\n"
            f"{last_lines(text.printable(said))}",
            hint=f"`ssh -G {address.host}` says the same; or another one with --ssh-config FILE",
        )
    return parse(done.stdout.decode("utf-8", "surrogateescape"))


def parse(said: str) -> Options:
    """What `ssh -G` printed, of all `ssh_reader.KEYWORDS`."""
    options: Options = {}
    for line in said.split("\n"):
        key, _, value = line.partition(" ")
        if key in ssh_reader.KEYWORDS:
            options.setdefault(key, []).append(value)
    return options


def _disambiguated(said: Options, read: Options | None) -> Options:
    """`said`, with its lists of files as names: `ssh -G` writes them without quotes."""
    result = dict(said)
    for key in ("userknownhostsfile", "globalknownhostsfile"):
        line = said.get(key, [""])[0]
        own = (read or {}).get(key, [])
        result[key] = own if " ".join(own) == line else _split_names(line)
    return result


def _split_names(line: str) -> list[str]:
    """The names in a line: as many words as name a file that is there, else one."""
    words, names = line.split(" "), []
    while words:
        count = next((n for n in range(len(words), 1, -1) if Path(" ".join(words[:n])).exists()), 1)
        names.append(" ".join(words[:count]))
        words = words[count:]
    return [name for name in names if name]


def _expanded(options: Options, address: Address) -> HostConfig:
    first = {key: values[0] for key, values in options.items() if values}
    tokens = _tokens(first, address)

    def files(key: str) -> tuple[Path, ...]:
        names = [name for name in options.get(key, []) if name.lower() != _NONE]
        return tuple(ssh_reader.tilde(_expand(name, tokens, key)) for name in names)

    known_hosts = [
        Path(name)
        for key in ("userknownhostsfile", "globalknownhostsfile")
        for name in options.get(key, [])
        if name.lower() != _NONE
    ]
    jump = first.get("proxyjump", "")
    timeout = first.get("connecttimeout", _NONE)
    families = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}
    return HostConfig(
        hostname=first["hostname"],
        user=first["user"],
        port=int(first["port"]),
        identity_files=files("identityfile"),
        certificate_files=files("certificatefile"),
        identities_only=first.get("identitiesonly", "no") in ("yes", "true"),
        agent=_agent(first.get("identityagent", _AGENT_VARIABLE)),
        proxy_jump=tuple(_expand(hop, tokens, "ProxyJump") for hop in jump.split(",") if hop),
        # The shell has the variables of the environment.
        proxy_command=_expand(first.get("proxycommand", ""), tokens, "ProxyCommand", env=False),
        proxy_passes_socket=first.get("proxyusefdpass", "no") in ("yes", "true"),
        host_key_alias=first.get("hostkeyalias"),
        known_hosts=tuple(known_hosts),
        known_hosts_command=first.get("knownhostscommand", ""),
        accept_new=first.get("stricthostkeychecking") in ("accept-new", "false", "no", "off"),
        family=families.get(first.get("addressfamily", ""), socket.AF_UNSPEC),
        bind_address=first.get("bindaddress", ""),
        bind_interface=first.get("bindinterface", ""),
        connect_timeout_s=0 if timeout == _NONE else int(timeout),
    )


def _tokens(first: Mapping[str, str], address: Address) -> dict[str, str]:
    """ssh_config(5), TOKENS."""
    host, user, port = first["hostname"], first["user"], first["port"]
    here, jump = socket.gethostname(), first.get("proxyjump", "")
    names = f"{here}{host}{port}{user}".encode(errors="surrogateescape")
    connection = hashlib.sha1(names, usedforsecurity=False).hexdigest()
    return {
        "%": "%", "C": connection, "d": str(ssh_reader.home()), "h": host, "i": str(os.getuid()),
        "j": jump, "k": first.get("hostkeyalias", address.host), "L": here.partition(".")[0],
        "l": here, "n": address.host, "p": port, "r": user, "u": ssh_reader.local_user(),
    }  # fmt: skip


def _expand(value: str, tokens: Mapping[str, str], key: str, *, env: bool = True) -> str:
    def one(found: re.Match[str]) -> str:
        if found[2] is not None:
            if not env:
                return found[0]
            if found[2] not in os.environ:
                raise ConfigError(f"{key} {value}: there is no ${found[2]} in the environment")
            return os.environ[found[2]]
        if found[1] not in tokens:
            raise ConfigError(f"{key} {value}: %{found[1]} has no meaning there")
        return tokens[found[1]]

    return _TOKEN.sub(one, value)


def _expanded_agent(value: str, tokens: Mapping[str, str]) -> str:
    if value.lower() == _NONE or value == _AGENT_VARIABLE or _VARIABLE.fullmatch(value):
        return value
    return str(ssh_reader.tilde(_expand(value, tokens, "IdentityAgent")))


def _agent(value: str) -> str | None:
    """The socket that an IdentityAgent names, be it by a variable."""
    if value.lower() == _NONE:
        return None
    if value == _AGENT_VARIABLE or _VARIABLE.fullmatch(value):
        return os.environ.get(value.removeprefix("$")) or None
    return value


def hop_address(hop: str) -> Address:
    """A hop of ProxyJump. Raises ConfigError."""
    try:
        return Address.parse(hop)
    except UsageError as error:
        raise ConfigError(f"ProxyJump {hop!r}: not a host", hint=error.hint) from None


def known_hosts_words(config: HostConfig, address: Address, extra: Mapping[str, str]) -> list[str]:
    """The words of a KnownHostsCommand, of which `extra` are the tokens that only it has."""
    first = {"hostname": config.hostname, "user": config.user, "port": str(config.port)}
    if config.host_key_alias:
        first["hostkeyalias"] = config.host_key_alias
    tokens = {**_tokens(first, address), **extra}
    words = shlex.split(config.known_hosts_command)
    return [_expand(word, tokens, "KnownHostsCommand") for word in words]
