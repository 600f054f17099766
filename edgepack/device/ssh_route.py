"""The way to a device over SSH: the hosts or the command in between, host keys, the login.

What plain `ssh` reaches is reached: `edgepack.device.ssh_config` says how.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import secrets
import shlex
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path

import paramiko
from paramiko.ssh_exception import IncompatiblePeer

from edgepack.base import text
from edgepack.base.errors import ConfigError, ConnectError, RefusedError, UsageError
from edgepack.device import host_certificate, known_hosts
from edgepack.device.errors import (
    ChangedHostKeyError,
    OtherDeviceError,
    UnknownHostKeyError,
    UnreachableError,
)
from edgepack.device.host_certificate import BadCertificateError, HostCertificate
from edgepack.device.known_hosts import HostKeyVerdict, KnownHosts
from edgepack.device.options import Address, SshOptions
from edgepack.device.process_group import LimitedError, run_limited
from edgepack.device.safe_names import check_host, check_user
from edgepack.device.ssh_config import HostConfig, SshConfig, hop_address, known_hosts_words
from edgepack.device.ssh_login import KeyLogin, Wish
from edgepack.device.ssh_proxy import ProxyCommand

log = logging.getLogger(__name__)
# paramiko logs tracebacks of what is raised to us anyhow.
logging.getLogger("paramiko").setLevel(logging.CRITICAL)

# A dead link is noticed after idle + count * interval seconds, or if data stay without an
# answer for that many milliseconds; the kernel alone would wait for a quarter of an hour.
SILENCE_S = 120
_TCP_OPTIONS = {
    "TCP_KEEPIDLE": 15,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 6,
    "TCP_USER_TIMEOUT": SILENCE_S * 1000,
}
# What waits in the kernel when a link is cut was sent in vain: megabytes, if it may.
_UNSENT_BYTES = 128 << 10
_TCP_NOTSENT_LOWAT = 25  # Linux; Python has it from 3.12 on
# Key exchange and login take long on a slow board, where TCP does not.
_PATIENCE = 3
BROKEN = (paramiko.SSHException, OSError, EOFError)
"""What paramiko raises when the other side is gone."""

_RSA_TYPES = ("rsa-sha2-512", "rsa-sha2-256")
_MAX_HOPS = 16
_TRIES = 5
_FIRST_PAUSE_S = 0.5
_ASK_S = 20.0
_NO_FORWARDING = 1  # RFC 4254, 5.1: SSH_OPEN_ADMINISTRATIVELY_PROHIBITED


class Route:
    """Makes the connection to a device and those to the hosts in between."""

    def __init__(self, options: SshOptions) -> None:
        self._options = options
        self._ssh_config = SshConfig(options.config_file, use=options.use_config)

    def destination(self, address: Address, jump: tuple[str, ...]) -> tuple[str, int, str]:
        """Where a connection to `address` ends: the host's own name, its port, and the way."""
        found = _checked(self._ssh_config.lookup_quickly(address), address)
        way = ",".join(jump or found.proxy_jump)
        if not way or way.lower() == "none":
            way = found.proxy_command
        return found.hostname.lower().removesuffix("."), found.port, way

    def connection(self, address: Address, via: tuple[tuple[str, int, str], ...] = ()) -> Link:
        """A connection that is not open yet; `via` are the hosts that it leads to."""
        options = self._options
        config = _checked(self._ssh_config.lookup(address), address)
        if options.identity and not options.identity.is_file():
            raise UsageError(f"no such key file: {options.identity}", hint="--identity FILE")
        end = (config.hostname, config.port, config.user)
        if end in via or len(via) >= _MAX_HOPS:
            raise ConnectError(f"ProxyJump goes round in circles at {address.host}")
        jump = config.proxy_jump
        if options.jump and not via:
            jump = options.jump
        if jump and jump[0].lower() != "none":
            config = replace(config, proxy_command="")
        else:
            jump = ()
        # a,b: first to a, from there to b, from there to the device.
        gateway: Link | None = None
        for hop in jump:
            following = self.connection(hop_address(hop.strip()), (*via, end))
            if gateway is not None:
                following.gateway = gateway
            gateway = following
        return Link(config, options, gateway, name=address.host)


def _checked(found: HostConfig, address: Address) -> HostConfig:
    """`found`, of `address`; ConfigError for names that are none."""
    where = f"the OpenSSH configuration of {address.host}"
    check_host(found.hostname, f"{where}: HostName")
    check_user(found.user, f"{where}: User")
    return found


class Link:
    """An SSH connection, through that to `gateway` if there is one; `open` makes it."""

    def __init__(
        self, config: HostConfig, options: SshOptions, gateway: Link | None, *, name: str
    ) -> None:
        self.config, self.gateway = config, gateway
        self.where = f"{config.hostname}:{config.port}"
        self._options, self._name = options, name
        self._timeout_s = max(options.connect_timeout_s, config.connect_timeout_s)
        self._host_keys = HostKeys(config, options, where=self.where, name=name)
        self.host_key = ""
        """Its kind and fingerprint, once it has been found good."""
        self.expected = ""
        """The host key that this host had before, if it has to have it again."""
        self._proxy: ProxyCommand | None = None
        self._transport: _Transport | None = None

    @property
    def transport(self) -> paramiko.Transport:
        """That of the open connection."""
        if self._transport is None:
            raise EOFError
        return self._transport

    @property
    def is_connected(self) -> bool:
        """Whether the other side is still there, as far as is known."""
        return self._transport is not None and self._transport.is_active()

    def open_session(self) -> paramiko.Channel:
        """A new session on it."""
        return self.transport.open_session()

    def open_sftp(self) -> paramiko.SFTPClient:
        """A new SFTP session on it."""
        client = paramiko.SFTPClient.from_transport(self.transport)
        assert client is not None  # only a channel that is None gives None
        return client

    def open(self) -> None:
        """Connect: the hosts on the way first; raises which of them fails how."""
        if self.gateway is not None:
            self.gateway.open()
        log.debug("connect to %s as %s", self.where, self.config.user)
        deadline = time.monotonic() + self._timeout_s * _PATIENCE
        for more in reversed(range(_TRIES)):
            try:
                self._open()
                return
            except _BusyError as error:
                # As many as connect at once: each at another moment.
                scatter = 0.5 + secrets.randbelow(1000) / 1000
                pause = _FIRST_PAUSE_S * 2.0 ** (_TRIES - 1 - more) * scatter
                self._hang_up()
                if not more or time.monotonic() + pause > deadline:
                    raise UnreachableError(error.message, hint=error.hint) from None
                log.debug("%s; trying again in %.1f s", error.message, pause)
                time.sleep(pause)

    def close(self) -> None:
        """Hang up, and with it the hosts on the way."""
        self._hang_up()
        if self.gateway is not None:
            self.gateway.close()

    def _hang_up(self) -> None:
        # A connection that broke off may have a thread that lingers.
        if self._transport is not None:
            with contextlib.suppress(*BROKEN):  # it may want to say good-bye
                self._transport.close()
        if self._proxy is not None:
            self._proxy.close()

    def _open(self) -> None:
        try:
            self._start(self._socket())
        except BROKEN as error:
            raise self._failure(error) from None

    def _start(self, sock: socket.socket | paramiko.Channel) -> None:
        self._transport = transport = _Transport(sock)  # type: ignore[arg-type]
        patience_s = self._timeout_s * _PATIENCE
        transport.banner_timeout = transport.auth_timeout = transport.channel_timeout = patience_s
        self._host_keys.prefer(transport)
        transport.start_client(timeout=patience_s)
        if not transport.initial_kex_done:
            raise TimeoutError
        if self._proxy is not None:
            self._proxy.begun()
        key = transport.get_remote_server_key()
        self._host_keys.check(key)
        host_key = f"{key.get_name()} {known_hosts.fingerprint(key.asbytes())}"
        # Whatever known_hosts says, or does not remember: it may be /dev/null.
        if self.expected and host_key != self.expected:
            raise OtherDeviceError(
                f"another device answers at {self.where}: its host key is {host_key}, and was "
                f"{self.expected} a moment ago",
                hint="somebody may be listening in, or the address went to another device; "
                "nothing was sent there",
            )
        self.host_key = host_key
        self._login().authenticate(transport)

    def _login(self) -> KeyLogin:
        options, config = self._options, self.config
        first = (options.identity,) if options.identity else ()
        # Only what was named: without a configuration the files are OpenSSH's own choice.
        named = options.identities_only and (options.identity or not options.use_config)
        return KeyLogin(
            Wish(
                user=config.user,
                where=self.where,
                host=config.hostname,
                port=config.port,
                first=first,
                files=() if named else config.identity_files,
                certificates=config.certificate_files,
                agent=config.agent,
                only_files=options.identities_only or config.identities_only,
            )
        )

    def _socket(self) -> socket.socket | paramiko.Channel:
        config = self.config
        if self.gateway is not None:
            return self.gateway.transport.open_channel(
                "direct-tcpip", (config.hostname, config.port), ("", 0), timeout=self._timeout_s
            )
        if config.proxy_command:
            self._proxy = ProxyCommand(
                config.proxy_command,
                passes_socket=config.proxy_passes_socket,
                timeout_s=self._timeout_s * _PATIENCE,
            )
            return self._proxy.socket
        return _connected(config, self._timeout_s)

    def _failure(self, error: Exception) -> ConnectError:
        """What paramiko's `error` means, by what was seen until then."""
        if self._proxy is not None and (failure := self._proxy.failure(self.where)):
            return failure
        if isinstance(error, paramiko.ChannelException) and self.gateway is not None:
            return self._not_forwarded(error, self.gateway)
        if isinstance(error, IncompatiblePeer):
            return RefusedError(
                f"{self.where}: no common way to talk: {text.one_line(error)}",
                hint="its SSH server is too old, or allows too little: see Ciphers, KexAlgorithms "
                "and HostKeyAlgorithms in its sshd_config",
            )
        transport = self._transport
        if transport is not None and transport.goodbye:
            return RefusedError(
                f"{self.where} hangs up: {transport.goodbye}",
                hint="its sshd's log says why (journalctl -u ssh)",
            )
        if transport is None or isinstance(error, TimeoutError) or transport.remote_version:
            return self._unreachable(_reason(error))
        return self._no_greeting(transport)

    def _not_forwarded(self, error: paramiko.ChannelException, gateway: Link) -> ConnectError:
        through = f"{self.where} cannot be reached from {gateway.config.hostname}"
        if error.code == _NO_FORWARDING:
            return RefusedError(
                f"{through}: that host forwards no connections: {text.one_line(error.text)}",
                hint="`AllowTcpForwarding yes` in its sshd_config",
            )
        return UnreachableError(f"{through}: {text.one_line(error.text)}")

    def _no_greeting(self, transport: _Transport) -> ConnectError:
        """The error for what does not speak SSH, or is not in the mood to."""
        said = text.one_line(" ".join(transport.greeting))
        if not said and transport.is_cut:
            return _BusyError(
                f"{self.where} cannot be reached: what answers is not an SSH server, or has too "
                "many logins at a time: it hangs up",
                hint="is it an SSH server? MaxStartups and the firewall there limit logins",
            )
        if "MaxStartups" in said:
            return _BusyError(
                f"{self.where} cannot be reached: {said}",
                hint="fewer at a time with --parallel, or a larger MaxStartups in its sshd_config",
            )
        if "Not allowed at this time" in said:
            return RefusedError(
                f"{self.where} refuses this address: {said}",
                hint="PerSourcePenalties in its sshd_config: wait some minutes",
            )
        if not transport.is_cut and not said:
            return self._unreachable("no answer in time")
        says = f": {said}" if said else ""
        return self._unreachable(f"what answers is not an SSH server{says}")

    def _unreachable(self, reason: str) -> UnreachableError:
        return UnreachableError(
            f"{self.where} cannot be reached: {reason}",
            hint="is the device on, its address right, and `ssh` to it possible?",
        )


class _BusyError(ConnectError):
    """It may be in the mood a moment later."""


class _Transport(paramiko.Transport):
    """paramiko's, which remembers what the other side says when it hangs up."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.goodbye = ""
        self.greeting: list[str] = []
        self.is_cut = False
        """Whether it hung up before it said who it is."""

    @property
    def preferred_keys(self) -> tuple[str, ...]:
        """In the order that was set; paramiko has certificates last in any case."""
        return tuple(self._preferred_keys)  # type: ignore[attr-defined]

    def _check_banner(self) -> None:
        read = self.packetizer.readline

        def remember(timeout: float) -> str:
            try:
                line: str = read(timeout)
            except EOFError:
                self.is_cut = True
                raise
            if not line.startswith("SSH-"):
                self.greeting.append(line)
            return line

        self.packetizer.readline = remember  # type: ignore[method-assign]
        try:
            super()._check_banner()  # type: ignore[misc]
        finally:
            self.packetizer.readline = read  # type: ignore[method-assign]

    def _parse_disconnect(self, message: paramiko.Message) -> None:
        message.get_int()
        self.goodbye = text.one_line(message.get_text())


def _connected(config: HostConfig, timeout_s: float) -> socket.socket:
    """A TCP connection to the first of the host's addresses that takes one."""
    last: OSError = OSError("it has no address")
    for family, kind, protocol, _, place in socket.getaddrinfo(
        config.hostname, config.port, config.family, socket.SOCK_STREAM
    ):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(timeout_s)
            if config.bind_interface:
                sock.setsockopt(
                    socket.SOL_SOCKET, socket.SO_BINDTODEVICE, config.bind_interface.encode()
                )
            if config.bind_address:
                sock.bind((config.bind_address, 0))
            sock.connect(place)
            _tune(sock)
            return sock
        except OSError as error:
            last = error
            sock.close()
    raise last


def _tune(sock: socket.socket) -> None:
    # Else each of a command's three short messages waits for a delayed ACK.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _TCP_OPTIONS.items():
        if hasattr(socket, name):  # Linux names; macOS lacks some
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    if sys.platform == "linux":
        sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, _UNSENT_BYTES)


def _reason(error: Exception) -> str:
    # paramiko goes on after a time-out of the key exchange, and stumbles over this.
    if (
        isinstance(error, TimeoutError)
        or "timeout" in str(error)
        or "No existing session" in str(error)
    ):
        return "no answer in time"
    if isinstance(error, EOFError):
        return "it hangs up"
    return text.one_line(getattr(error, "strerror", None) or str(error) or type(error).__name__)


class HostKeys:
    """Whether a host's key is the one it is known by."""

    def __init__(self, config: HostConfig, options: SshOptions, *, where: str, name: str) -> None:
        self._where, self._config, self._name = where, config, name
        self._host = config.host_key_alias or known_hosts.host_name(config.hostname, config.port)
        # A certificate is of a name, whatever the port.
        self._certified = config.host_key_alias or config.hostname.lower()
        self._accept_new = options.accept_new_host_key or (
            config.accept_new and not options.host_keys
        )
        files = config.known_hosts
        if options.known_hosts:
            files = (options.known_hosts, Path("/etc/ssh/ssh_known_hosts"))
        self._file = files[0] if files else Path("/dev/null")
        self._known = (
            KnownHosts.of_lines(options.host_keys) if options.host_keys else KnownHosts.load(files)
        )
        self._asks = bool(config.known_hosts_command) and not options.host_keys
        self._flaw = ""
        """What is wrong with the host's certificate."""

    def prefer(self, transport: paramiko.Transport) -> None:
        """Have it ask for the key types we know the host by first."""
        types: list[str] = []
        for name in self._known.key_types(self._host):
            types += _RSA_TYPES if name == "ssh-rsa" else (name,)
        security = transport.get_security_options()
        offered = tuple(security.key_types)
        first = [name for name in types if name in offered]
        plain = (*first, *(name for name in offered if name not in first))
        # A certificate has the plain key in it; only a plain key may be one that is known.
        certified = tuple(f"{name}{host_certificate.SUFFIX}" for name in plain)
        ask = self._asks or self._known.has_authorities(self._host)
        security.key_types = (*certified, *plain) if ask else (*plain, *certified)
        # One pass over the data instead of two, for cipher and MAC.
        gcm = [name for name in security.ciphers if "gcm" in name]
        security.ciphers = (*gcm, *(name for name in security.ciphers if name not in gcm))

    def check(self, key: paramiko.PKey) -> None:
        """Return if the key is good, raise if not."""
        blob = key.asbytes()
        kind, print_ = key.get_name(), known_hosts.fingerprint(blob)
        certificate = host_certificate.certificate_of(key)
        verdict, origin = self._verdict(self._known, key, certificate)
        if verdict is HostKeyVerdict.UNKNOWN and self._asks:
            verdict, origin = self._verdict(self._ask(kind, blob), key, certificate)
        match verdict:
            case HostKeyVerdict.KNOWN:
                return
            case HostKeyVerdict.UNKNOWN if self._accept_new:
                self._add(kind, blob)
            case HostKeyVerdict.UNKNOWN:
                why = f"; its certificate does not count: {self._flaw}" if self._flaw else ""
                raise UnknownHostKeyError(
                    f"host key of {self._where} is not known: {kind} {print_}{why}",
                    hint="compare it with what `ssh-keygen -lf /etc/ssh/ssh_host_*_key.pub` says "
                    "on the device, then use --accept-new-host-key once",
                )
            case HostKeyVerdict.REVOKED:
                raise ChangedHostKeyError(
                    f"host key of {self._where} is revoked by {origin}: {kind} {print_}",
                    hint="the device must get a new host key",
                )
            case HostKeyVerdict.CHANGED:
                raise ChangedHostKeyError(
                    f"host key of {self._where} is not the one in {origin}: {kind} {print_}",
                    hint="somebody may be listening in, or the device was set up anew; if it "
                    f"was, remove the old key: ssh-keygen -R {shlex.quote(self._host)}",
                )

    def _verdict(
        self, known: KnownHosts, key: paramiko.PKey, certificate: HostCertificate | None
    ) -> tuple[HostKeyVerdict, str]:
        """What `known` says: a certificate that holds is enough, one that does not is a plain key,
        as for OpenSSH's client."""
        blob = key.asbytes()
        line = certificate and known.authority(self._host, certificate.authority)
        if certificate is not None and line:
            for one in (certificate.authority, blob):
                if revoked := known.revoked(self._host, one):
                    return HostKeyVerdict.REVOKED, revoked
            try:
                certificate.check(self._certified)
                return HostKeyVerdict.KNOWN, line
            except BadCertificateError as error:
                self._flaw = str(error)
        return known.check(self._host, key.get_name(), blob)

    def _add(self, kind: str, blob: bytes) -> None:
        print_ = known_hosts.fingerprint(blob)
        log.info("adding the %s key %s of %s to %s", kind, print_, self._where, self._file)
        try:
            known_hosts.append(self._file, self._host, kind, blob)
        except OSError as error:
            raise UnknownHostKeyError(
                f"host key of {self._where} cannot be added to {self._file}: {error.strerror}",
                hint="use another file with --known-hosts FILE",
            ) from None

    def _ask(self, kind: str, blob: bytes) -> KnownHosts:
        """What the KnownHostsCommand says of the host."""
        extra = {
            "H": self._host, "I": "HOSTNAME", "t": kind, "f": known_hosts.fingerprint(blob),
            "K": base64.b64encode(blob).decode(),
        }  # fmt: skip
        words = known_hosts_words(self._config, Address(host=self._name), extra)
        try:
            done = run_limited(words, timeout_s=_ASK_S)
        except (LimitedError, OSError) as error:
            raise ConfigError(f"KnownHostsCommand {words[0]}: {error}") from None
        if done.returncode != 0:
            raise ConfigError(f"KnownHostsCommand {words[0]} failed: {text.one_line(done.stderr)}")
        return KnownHosts.of_lines(done.stdout.decode(errors="replace").splitlines())
