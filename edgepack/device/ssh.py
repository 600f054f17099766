"""A device over SSH: fabric for the configuration and the way there, paramiko for the rest."""

from __future__ import annotations

import contextlib
import functools
import logging
import secrets
import shlex
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import fabric
import paramiko

from edgepack.base.errors import ConfigError, ConnectError, RemoteError
from edgepack.device import known_hosts, shell_files, ssh_config
from edgepack.device.base import RemoteResult, Stream
from edgepack.device.errors import (
    AuthError,
    ChangedHostKeyError,
    ConnectionLostError,
    RemoteTimeout,
    UnknownHostKeyError,
    UnreachableError,
    command_error,
    disk_full,
    not_started,
    timed_out,
)
from edgepack.device.facts import parse_df
from edgepack.device.known_hosts import HostKeyVerdict, KnownHosts
from edgepack.device.lines import LineReader, Tail, deadline_of, left
from edgepack.device.options import Address, SshOptions
from edgepack.device.safe_names import check_host, check_user

log = logging.getLogger(__name__)
# paramiko logs tracebacks of what is raised to us anyhow.
logging.getLogger("paramiko").setLevel(logging.CRITICAL)

# An SFTP write of this size and its header fill one SSH packet. Above 32,675 bytes
# paramiko splits it in two, which costs up to 100 times the speed (paramiko #2438).
_CHUNK = 32_000
# A dead link is noticed after idle + count * interval seconds, or if data stay without an
# answer for that many milliseconds; the kernel alone would wait for a quarter of an hour.
_SILENCE_S = 120
_TCP_OPTIONS = {
    "TCP_KEEPIDLE": 15,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 6,
    "TCP_USER_TIMEOUT": _SILENCE_S * 1000,
}
# What waits in the kernel when a link is cut was sent in vain: megabytes, if it may.
_UNSENT_BYTES = 128 << 10
_TCP_NOTSENT_LOWAT = 25  # Linux; Python has it from 3.12 on
# Key exchange and login take long on a slow board, where TCP does not.
_PATIENCE = 3
_NO_EXIT_STATUS = -1
_SESSION_TRIES = 4
_BROKEN = (paramiko.SSHException, OSError, EOFError)
"""What paramiko raises when the other side is gone."""

_RSA_TYPES = ("rsa-sha2-512", "rsa-sha2-256")


class SshDevice:
    """A machine with an SSH server.

    Files go over SFTP; where the server has none, as dropbear, through shell commands. Connects
    at once; raises a subclass of ConnectError if that fails.
    """

    def __init__(self, address: Address, *, options: SshOptions, name: str | None = None) -> None:
        self.name = name or str(address)
        self._address, self._options = address, options
        self._has_sftp = True
        self._connect()

    def _connect(self) -> None:
        self._sftp: paramiko.SFTPClient | None = None
        self._connection = Route(self._options).connection(self._address)
        try:
            _open(self._connection)
        except BaseException:
            self.close()
            raise

    def run(
        self, command: str, *, timeout_s: float | None = None, check: bool = True
    ) -> RemoteResult:
        """See `Device.run`. After a time-out the command may go on there until it next writes."""
        log.debug("%s: run %s", self.name, command)
        stream = self._start(command, timeout_s)
        try:
            result = stream.finish()
        finally:
            stream.close()
        if check and result.returncode != 0:
            raise command_error(self.name, result)
        return result

    def open(self, command: str) -> Stream:
        """See `Device.open`."""
        log.debug("%s: open %s", self.name, command)
        return self._start(command, None)

    def _start(self, command: str, timeout_s: float | None) -> _SshStream:
        limit = self._options.command_timeout_s if timeout_s is None else timeout_s
        # Not Connection.run: it connects anew by itself, and gives status -1 for a lost link.
        if not self._connection.is_connected:
            raise self._lost("the connection is closed")
        mark = f"edgepack-{secrets.token_hex(8)}"
        line = shell_line(f"set --; echo; echo {mark}\n{command}")
        # paramiko would wait for the answer to it for ever.
        patience_s = _SILENCE_S if limit is None else min(limit, _SILENCE_S)
        deadline = deadline_of(patience_s)
        for more in reversed(range(_SESSION_TRIES)):
            try:
                channel: paramiko.Channel = self._connection.create_session()
                with _watch(channel, patience_s):
                    channel.exec_command(line)
                break
            except _BROKEN as error:
                # dropbear closes a session that has just been opened if the program of another one
                # ends at that moment: nothing was started in it.
                if not (more and self._connection.is_connected and left(deadline)):
                    raise self._lost(error) from None
                log.debug("%s: a session was closed at once: %s", self.name, error)
        return _SshStream(self, command, channel, mark=mark, timeout_s=limit, lost=self._lost)

    def put(
        self,
        local: Path,
        remote: str,
        *,
        offset: int = 0,
        sent: Callable[[int], None] | None = None,
    ) -> None:
        """See `Device.put`. Many writes are under way at any time."""
        log.debug("%s: put %s to %s from byte %d", self.name, local, remote, offset)
        size = local.stat().st_size
        try:
            files = self._files()
            if files is None:
                start = functools.partial(self._start, timeout_s=None)
                shell_files.put(self.name, start, local, remote, offset=offset, sent=sent)
                return
            with (
                local.open("rb") as source,
                files.open(remote, "r+b" if offset else "wb") as file,
            ):
                source.seek(offset)
                file.seek(offset)
                file.set_pipelined(True)
                while chunk := source.read(_CHUNK):
                    # paramiko drops the answers that are still due when a file is closed,
                    # "disk full" among them; a write that is not pipelined waits for all.
                    if source.tell() >= size:
                        file.set_pipelined(False)
                    file.write(chunk)
                    if sent:
                        sent(len(chunk))
        except _BROKEN as error:
            raise self._file_error(error, remote, needed=size) from None

    def get(self, remote: str, local: Path) -> None:
        """See `Device.get`."""
        log.debug("%s: get %s to %s", self.name, remote, local)
        try:
            files = self._files()
            if files is None:
                start = functools.partial(self._start, timeout_s=None)
                shell_files.get(self.name, start, remote, local)
                return
            # Not SFTPClient.get, which takes whatever size the other side says.
            with files.open(remote, "rb") as file, local.open("wb") as target:
                size = file.stat().st_size or 0
                shell_files.check_size(self.name, remote, size)
                file.prefetch(size, 64)
                while size > 0 and (piece := file.read(min(size, _CHUNK))):
                    target.write(piece)
                    size -= len(piece)
        except _BROKEN as error:
            raise self._file_error(error, remote) from None

    def rename(self, old: str, new: str) -> None:
        """See `Device.rename`."""
        log.debug("%s: rename %s to %s", self.name, old, new)
        try:
            files = self._files()
            if files is None:
                done = self.run(shell_files.rename_command(old, new), check=False)
                shell_files.check(self.name, done, new)
            else:
                files.posix_rename(old, new)
        except _BROKEN as error:
            raise self._file_error(error, new) from None

    def mkdir(self, path: str) -> None:
        """See `Device.mkdir`."""
        self.run(f"mkdir -p -- {shlex.quote(path)}")

    def reconnect(self) -> None:
        """See `Device.reconnect`."""
        self.close()
        self._connect()

    def close(self) -> None:
        """See `Device.close`."""
        connection = self._connection
        while connection:
            with contextlib.suppress(*_BROKEN):  # it may want to say good-bye
                connection.close()
            # A connection that broke off is not "connected", but its thread may linger.
            connection.client.close()
            gateway = connection.gateway
            connection = gateway if isinstance(gateway, fabric.Connection) else None

    def _files(self) -> paramiko.SFTPClient | None:
        """What talks SFTP; None if the server there does not."""
        if self._sftp is None and self._has_sftp:
            if not self._connection.is_connected:
                raise self._lost("the connection is closed")
            try:
                with _watch(self._connection.client, _SILENCE_S):
                    self._sftp = self._connection.sftp()
            except (*_BROKEN, paramiko.SFTPError) as error:
                if not self._connection.is_connected:
                    raise self._lost(error) from None
                log.debug("%s: its SSH server has no SFTP: %s", self.name, error)
                self._has_sftp = False
                return None
            channel = self._sftp.get_channel()
            assert channel is not None
            channel.settimeout(_SILENCE_S)
        return self._sftp

    def _file_error(
        self, error: Exception, path: str, *, needed: int = 0
    ) -> RemoteError | ConnectionLostError:
        channel = self._sftp.get_channel() if self._sftp else None
        gone = channel is None or channel.closed or not self._connection.is_connected
        if gone or isinstance(error, TimeoutError | EOFError | paramiko.SSHException):
            return self._lost(error)
        if isinstance(error, OSError) and error.errno is None and self._is_full(path, needed):
            # SFTP has no code for ENOSPC: its server says "Failure".
            return disk_full(self.name, f"  {path}: {error}")
        return RemoteError(f"{path} on {self.name}: {error}")

    def _is_full(self, path: str, needed: int) -> bool:
        folder = shlex.quote(path.rpartition("/")[0] or ".")
        done = self.run(f"df -Pk {folder}", check=False)
        try:
            return parse_df(done.stdout) < needed
        except ValueError:
            return False

    def _lost(self, reason: object) -> ConnectionLostError:
        return ConnectionLostError(
            f"connection to {self.name} lost: {str(reason) or type(reason).__name__}",
            hint="run the command again; an upload goes on where it stopped",
        )


class _SshStream:
    """See `Stream`."""

    def __init__(
        self,
        device: SshDevice,
        command: str,
        channel: paramiko.Channel,
        *,
        mark: str,
        timeout_s: float | None,
        lost: Callable[[object], ConnectionLostError],
    ) -> None:
        self._name, self._command, self._timeout_s = device.name, command, timeout_s
        self._channel = channel
        self._lost = lost
        transport = channel.get_transport()
        assert transport is not None  # the channel was opened through it
        self._transport = transport
        self._lines = LineReader(self._receive, device.name, mark=mark.encode())
        # Errors that nobody reads would fill the window, and stop the command.
        self._errors = Tail()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def write(self, data: bytes) -> None:
        """See `Stream.write`."""
        try:
            for start in range(0, len(data), _CHUNK):
                self._channel.settimeout(_SILENCE_S)
                self._channel.sendall(data[start : start + _CHUNK])
        except _BROKEN as error:
            if self._channel.closed and self._channel.exit_status != _NO_EXIT_STATUS:
                raise BrokenPipeError from None
            raise self._lost(error) from None

    def read_line(self, timeout_s: float | None = None) -> bytes:
        """See `Stream.read_line`."""
        try:
            return self._lines.read_line(timeout_s)
        except TimeoutError as error:
            raise self._lost(error) from None

    def read_piece(self, timeout_s: float) -> bytes:
        """What comes next, as it comes; empty at the end. Raises ConnectionLostError."""
        try:
            return self._lines.read_piece(timeout_s)
        except TimeoutError as error:
            raise self._lost(error) from None

    def finish(self) -> RemoteResult:
        """See `Stream.finish`."""
        deadline = deadline_of(self._timeout_s)
        with contextlib.suppress(*_BROKEN):
            self._channel.shutdown_write()
        try:
            output = self._lines.read_all(left(deadline))
        except TimeoutError:
            raise self._late() from None
        self._listener.join(left(deadline))
        if not self._channel.status_event.wait(left(deadline)):
            raise self._late()
        status = self._channel.recv_exit_status()
        self.close()
        if status == _NO_EXIT_STATUS:
            raise self._lost("no exit status came")
        result = RemoteResult(
            command=self._command,
            returncode=status,
            stdout=output.decode(errors="replace"),
            stderr=self._errors.text(),
        )
        if not self._lines.begun:
            raise not_started(self._name, result)
        return result

    def close(self) -> None:
        """See `Stream.close`."""
        with contextlib.suppress(*_BROKEN):
            self._channel.close()

    def _late(self) -> RemoteTimeout:
        return timed_out(self._name, self._command, self._timeout_s)

    def _listen(self) -> None:
        # The time-out is that of whoever else waits for the channel.
        while True:
            with contextlib.suppress(TimeoutError):
                data = self._channel.recv_stderr(1 << 16)
                if not data:
                    return
                self._errors.add(data)

    def _receive(self, timeout_s: float | None) -> bytes:
        try:
            self._channel.settimeout(timeout_s)
            data: bytes = self._channel.recv(1 << 16)
        except TimeoutError:
            raise
        except _BROKEN as error:
            raise self._lost(error) from None
        if not data and not self._transport.is_active():
            raise self._lost("it was cut")
        return data


def shell_line(command: str) -> str:
    """What a login shell of any kind makes `sh` run `command` of: csh, fish and all.

    csh takes no newline in quotes, and `!` for history even there; fish takes a backslash in
    quotes for its own: those go over as octal numbers, which printf makes characters of.
    """
    octal = {ord(letter): f"\\0{ord(letter):03o}" for letter in "\n'!\\"}
    return f"exec env LC_ALL=C sh -c 'eval \"$(printf %b \"$1\")\"' sh '{command.translate(octal)}'"


@contextlib.contextmanager
def _watch(it: paramiko.Channel | paramiko.SSHClient, timeout_s: float) -> Iterator[None]:
    """Close `it` if what is done with it takes longer: for waits of paramiko without an end."""

    def close() -> None:
        # The connection may have gone before, or go at this moment: then there is nothing to close.
        with contextlib.suppress(EOFError, OSError, paramiko.SSHException):
            it.close()

    timer = threading.Timer(timeout_s, close)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Route:
    """Makes the connection to a device and those to the hosts in between.

    fabric would accept any host key, on the way too: `client.connect` is given a
    transport and a policy that ask `KnownHosts` instead.
    """

    def __init__(self, options: SshOptions) -> None:
        self._options = options
        files = [Path.home() / ".ssh/config", Path("/etc/ssh/ssh_config")]
        if options.config_file:
            files = [options.config_file]
            if not options.config_file.is_file():
                raise ConfigError(f"no such SSH configuration: {options.config_file}")
        self._ssh_config = ssh_config.load(files if options.use_config else [])

    def _lookup(self, address: Address) -> paramiko.SSHConfigDict:
        """What the configuration says of `address`; ConfigError for names that are none."""
        found = self._ssh_config.lookup(address.host)
        where = f"the OpenSSH configuration of {address.host}"
        check_host(found["hostname"], f"{where}: HostName")
        if "user" in found:
            check_user(found["user"], f"{where}: User")
        return found

    def destination(self, address: Address, jump: tuple[str, ...]) -> tuple[str, int, str]:
        """Where a connection to `address` ends: the host's own name, its port, and the way."""
        lookup = self._lookup(address)
        port = address.port or int(lookup.get("port", paramiko.config.SSH_PORT))
        way = ",".join(jump) or lookup.get("proxyjump", "none")
        if way.lower() == "none":
            way = lookup.get("proxycommand", "none")
        return lookup["hostname"].lower().removesuffix("."), port, way

    def connection(self, address: Address, via: tuple[str, ...] = ()) -> fabric.Connection:
        """A connection that is not open yet; `via` are the hosts that led here."""
        options = self._options
        if address.host in via:
            raise ConnectError(f"ProxyJump goes round in circles at {address.host}")
        lookup = self._lookup(address)
        identities = [str(options.identity)] if options.identity else []
        identities += [path for path in lookup.get("identityfile", []) if Path(path).is_file()]
        if options.identity and not options.identity.is_file():
            raise AuthError(f"no such key file: {options.identity}")
        only = options.identities_only or lookup.get("identitiesonly", "no").lower() == "yes"
        connection = fabric.Connection(
            address.host,
            user=address.user,
            port=address.port,
            # Lazy: no ~/.fabric.py and the like.
            config=fabric.Config(lazy=True, ssh_config=self._ssh_config),
            gateway=self._gateway(address, lookup, via),
            connect_timeout=options.connect_timeout_s,
        )
        host_keys = _HostKeys(connection, options, alias=lookup.get("hostkeyalias"))
        connection.client.set_missing_host_key_policy(host_keys)
        connection.connect_kwargs = {
            "key_filename": list(dict.fromkeys(identities)),
            "allow_agent": not only,
            "look_for_keys": not (only and identities),
            "transport_factory": host_keys.transport,
            **dict.fromkeys(
                ("banner_timeout", "auth_timeout", "channel_timeout"),
                options.connect_timeout_s * _PATIENCE,
            ),
        }
        return connection

    def _gateway(
        self, address: Address, lookup: paramiko.SSHConfigDict, via: tuple[str, ...]
    ) -> fabric.Connection | str | bool:
        jump = lookup.get("proxyjump", "none")
        if self._options.jump and not via:
            jump = ",".join(self._options.jump)
        if jump.lower() != "none":
            # a,b: first to a, from there to b, from there to the device.
            first, *rest = jump.split(",")
            gateway = self.connection(Address.parse(first.strip()), (*via, address.host))
            for hop in rest:
                following = self.connection(Address.parse(hop.strip()), (*via, address.host))
                following.gateway = gateway
                gateway = following
            return gateway
        command: str = lookup.get("proxycommand", "none")
        # False, unlike None, keeps fabric from looking for itself.
        return command if command.lower() != "none" else False


class _HostKeys(paramiko.MissingHostKeyPolicy):
    """Is asked about every host key, since paramiko itself is given no known_hosts."""

    def __init__(
        self, connection: fabric.Connection, options: SshOptions, *, alias: str | None
    ) -> None:
        self._where = f"{connection.host}:{connection.port}"
        self._host = alias or known_hosts.host_name(connection.host, connection.port)
        self._accept_new = options.accept_new_host_key
        if options.known_hosts:
            files = [options.known_hosts]
        else:
            names = connection.ssh_config.get("userknownhostsfile", "~/.ssh/known_hosts").split()
            files = [Path(name).expanduser() for name in names]
        self._file = files[0]
        self._known = (
            KnownHosts.of_lines(options.host_keys)
            if options.host_keys
            else KnownHosts.load([*files, Path("/etc/ssh/ssh_known_hosts")])
        )

    def transport(self, sock: socket.socket, **kwargs: object) -> paramiko.Transport:
        """A transport that asks for the key types we know the host by first."""
        if isinstance(sock, socket.socket):  # else a channel of the host before
            # Else each of a command's three short messages waits for a delayed ACK.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _TCP_OPTIONS.items():
                if hasattr(socket, name):  # Linux names; macOS lacks some
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            if sys.platform == "linux":
                sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        transport = paramiko.Transport(sock, **kwargs)  # type: ignore[arg-type]
        types: list[str] = []
        for name in self._known.key_types(self._host):
            types += _RSA_TYPES if name == "ssh-rsa" else (name,)
        security = transport.get_security_options()
        offered = tuple(security.key_types)
        first = [name for name in types if name in offered]
        security.key_types = (*first, *(name for name in offered if name not in first))
        # One pass over the data instead of two, for cipher and MAC.
        gcm = [name for name in security.ciphers if "gcm" in name]
        security.ciphers = (*gcm, *(name for name in security.ciphers if name not in gcm))
        return transport

    def missing_host_key(
        self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey
    ) -> None:
        """Return if the key is good, raise if not."""
        blob = key.asbytes()
        kind, print_ = key.get_name(), known_hosts.fingerprint(blob)
        verdict, origin = self._known.check(self._host, kind, blob)
        match verdict:
            case HostKeyVerdict.KNOWN:
                return
            case HostKeyVerdict.UNKNOWN if self._accept_new:
                log.info("adding the %s key %s of %s to %s", kind, print_, self._where, self._file)
                try:
                    known_hosts.append(self._file, self._host, kind, blob)
                except OSError as error:
                    raise UnknownHostKeyError(
                        f"host key of {self._where} cannot be added to {self._file}: "
                        f"{error.strerror}",
                        hint="use another file with --known-hosts FILE",
                    ) from None
            case HostKeyVerdict.UNKNOWN:
                raise UnknownHostKeyError(
                    f"host key of {self._where} is not known: {kind} {print_}",
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


def _open(connection: fabric.Connection) -> None:
    """Open `connection`, the hosts on the way to it first, and say which of them fails how."""
    if isinstance(connection.gateway, fabric.Connection):
        _open(connection.gateway)
    where = f"{connection.host}:{connection.port}"
    log.debug("connect to %s as %s", where, connection.user)
    try:
        connection.open()
    except paramiko.PasswordRequiredException:
        raise AuthError(
            f"{where}: a key is protected by a passphrase",
            hint="unlock it first: eval $(ssh-agent); ssh-add",
        ) from None
    except paramiko.AuthenticationException as error:
        raise _refused(connection, error) from None
    except paramiko.ChannelException as error:
        raise UnreachableError(
            f"{where} cannot be reached from {connection.gateway.host}: {error.text}"
        ) from None
    except _BROKEN as error:
        transport = connection.client.get_transport()
        if transport is not None and transport.is_active() and transport.initial_kex_done:
            # A key file that cannot be read, or no key at all.
            raise _refused(connection, error) from None
        raise UnreachableError(
            f"{where} cannot be reached: {_reason(error)}",
            hint="is the device on, its address right, and `ssh` to it possible?",
        ) from None


def _reason(error: Exception) -> str:
    if isinstance(error, paramiko.SSHException) and "protocol banner" in str(error):
        return "what answers is not an SSH server"
    if isinstance(error, paramiko.ssh_exception.NoValidConnectionsError):
        error = next(iter(error.errors.values()))
    # paramiko goes on after a time-out of the key exchange, and stumbles over this.
    if isinstance(error, TimeoutError) or str(error) == "No existing session":
        return "no answer in time"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _refused(connection: fabric.Connection, reason: object) -> AuthError:
    return AuthError(
        f"{connection.host}:{connection.port} refuses {connection.user}: {str(reason).rstrip('.')}",
        hint=f"put your key there: ssh-copy-id -p {connection.port} "
        f"{connection.user}@{connection.host}; or name another one with --identity",
    )
