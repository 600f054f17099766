"""What a service may touch: what its arguments name, and nothing else.

The options are those of edgepack-run (cpp_runtime/app/edgepack-run/options.cc). Every starter of
services reads here which devices, groups, folders, sockets and ports they need.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from edgepack.base.errors import ConfigError

READS = frozenset(
    [
        "--watch",
        "--images",
        "--from",
        "--camera",
        "--bundle",
        "--image",
        "--input",
        "--expected",
        "--postprocess",
        "--token-file",
    ]
)
"""Options with a path that is read."""
WRITES = frozenset(
    [
        "--results",
        "--metrics",
        "--out",
        "--draw",
        "--mask",
        "--output",
        "--save-resized",
        "--save-tensor",
        "--save-crops",
        "--dump",
    ]
)
"""Options with a file that is written: its folder is, for files beside it come and go."""
LISTENS = frozenset(("--serve", "--preview"))
"""Options with an address that others connect to."""
OTHERS = frozenset(
    [
        "--frames",
        "--host",
        "--fps",
        "--track",
        "--size",
        "--at-end",
        "--rotate",
        "--keep",
        "--queue",
        "--top",
        "--bench",
        "--warmup",
        "--threads",
        "--affinity",
        "--tolerance",
        "--gpu-limit",
    ]
)
"""Options with a value that is of no file."""

TOUCHES = frozenset(["--sinks"])
"""Options with something that sinks and actions touch: "connect=HOST", "write=FOLDER" and so on."""

_PRIVILEGED = 1024
_RUN = re.compile(r"/run/([A-Za-z0-9._+@-]+(?:/[A-Za-z0-9._+@-]+)*)")
_TEMPORARY = ("/tmp", "/var/tmp")  # noqa: S108 - names, nothing is made there
_CREDENTIAL = re.compile(r"[A-Za-z0-9_-]{1,80}")
_WILDCARDS = re.compile(r"[*?\[]")


@dataclass(frozen=True, kw_only=True)
class DeviceClass:
    """Devices of one kind: their names in /dev, the group that Debian's udev rules give them to,
    and their major number, of the kernel's admin-guide/devices.txt."""

    names: re.Pattern[str]
    group: str
    major: int


_CLASSES = (
    DeviceClass(names=re.compile(r"video\d+|v4l/.+"), group="video", major=81),
    DeviceClass(names=re.compile(r"ttyUSB\d+"), group="dialout", major=188),
    DeviceClass(names=re.compile(r"ttyACM\d+"), group="dialout", major=166),
    DeviceClass(names=re.compile(r"ttyAMA\d+|ttySC\d+|ttymxc\d+"), group="dialout", major=204),
    DeviceClass(names=re.compile(r"fb\d+"), group="video", major=29),
)
# A number of their own only with others that are not theirs: consoles, or whatever came first.
_GROUPS = (
    (re.compile(r"ttyS\d+|serial/.+|serial\d+"), "dialout"),
    (re.compile(r"gpiochip\d+"), "gpio"),
)


@dataclass(frozen=True, kw_only=True)
class Access:
    """What a service touches.

    `devices` are opened, `reads` are paths that are read, `writes` folders that are written;
    `runtime` are those below /run, by the part after it: a start of the system empties it, so they
    are made at each start of the service. `ports` are bound, on this machine alone ("loopback") or
    for "any"; `network` is who gets in at all, None nobody. `connects` are addresses that it
    connects to, "any" where one has a name; `secrets` files with a password each, by the name of
    systemd's credential.
    """

    devices: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    runtime: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    network: str | None = None
    connects: tuple[str, ...] = ()
    secrets: tuple[tuple[str, str], ...] = ()

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups that the devices belong to, where Debian's names are used."""
        found = {device: _class_of(device) for device in self.devices}
        named = [one.group for one in found.values() if one is not None]
        for device in self.devices:
            named += [
                group for names, group in _GROUPS if names.fullmatch(device.removeprefix("/dev/"))
            ]
        return tuple(sorted(set(named)))

    @property
    def device_rules(self) -> tuple[str, ...]:
        """The devices as systemd's `DeviceAllow=` has them.

        A kind of device rather than one: what is plugged in again may get another number, and
        what is not there yet has none.
        """
        found = ((device, _class_of(device)) for device in self.devices)
        rules = [f"char-{kind.major}" if kind else device for device, kind in found]
        return tuple(dict.fromkeys(rules))

    @property
    def mounts(self) -> tuple[str, ...]:
        """Paths whose file systems have to be there."""
        return tuple(
            path
            for path in dict.fromkeys((*self.reads, *self.writes))
            if not _is_below(path, ("/dev", "/run"))
        )

    @property
    def shares_tmp(self) -> bool:
        """Whether it needs the /tmp that others see."""
        return any(_is_below(path, _TEMPORARY) for path in (*self.reads, *self.writes))

    @property
    def binds_low_ports(self) -> bool:
        """Whether it needs the right to ports that are root's."""
        return any(0 < port < _PRIVILEGED for port in self.ports)


def _is_below(path: str, folders: tuple[str, ...]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def _class_of(device: str) -> DeviceClass | None:
    name = device.removeprefix("/dev/")
    return next((one for one in _CLASSES if one.names.fullmatch(name)), None)


def options_of(args: tuple[str, ...]) -> Iterator[tuple[str, str | None]]:
    """Each option with its value, None if it has none; as edgepack-run reads its arguments."""
    words = iter(args)
    for word in words:
        name, attached, value = word.partition("=")
        if attached:
            yield name, value
        elif name in READS | WRITES | LISTENS | OTHERS | TOUCHES:
            yield name, next(words, None)
        else:
            yield name, None


def access_of(args: tuple[str, ...], writable: tuple[str, ...] = ()) -> Access:
    """What a service with these arguments touches, the folders `writable` among it.

    Raises ConfigError for what no service can do: read the standard input, or find a path
    without a folder to begin at.
    """
    _need_a_source(args)
    devices: list[str] = []
    reads: list[str] = []
    writes = [*writable]
    runtime: list[str] = []
    ports: list[int] = []
    sinks = _touched_by_sinks(args)
    devices += sinks["device"]
    reads += sinks["read"]
    for folder in sinks["write"]:
        _add_folder(folder, writes, runtime)
    network = None
    for option, value in options_of(args):
        if value is None:
            continue
        if option in LISTENS and not value.startswith("unix:"):
            who, port = _address(value)
            network = "any" if "any" in (network, who) else who
            ports.append(port)
        elif option in LISTENS:
            _add_folder(_folder(option, value.removeprefix("unix:")), writes, runtime)
        elif option == "--out" and value.startswith("unix:"):
            reads.append(_absolute(option, value.removeprefix("unix:")))
        elif option in WRITES:
            file = value.split(":", 2)[-1] if option == "--dump" else value
            _add_folder(_folder(option, file), writes, runtime)
        elif option in READS:
            path = _source(option, value)
            (devices if path.startswith("/dev/") else reads).append(path)
    return Access(
        devices=tuple(dict.fromkeys(devices)),
        reads=tuple(dict.fromkeys(reads)),
        writes=tuple(dict.fromkeys(writes)),
        runtime=tuple(dict.fromkeys(runtime)),
        ports=tuple(ports),
        network=network,
        connects=tuple(dict.fromkeys(sinks["connect"])),
        secrets=tuple(
            (name, path) for name, _, path in (one.partition(":") for one in sinks["secret"])
        ),
    )


def _touched_by_sinks(args: tuple[str, ...]) -> dict[str, list[str]]:
    """What the arguments of `TOUCHES` name, by its kind."""
    kinds: dict[str, Callable[[str], str]] = {
        "connect": _peer,
        "write": lambda path: _folder("--sinks", f"{path}/x"),
        "read": lambda path: _absolute("--sinks", path),
        "device": lambda path: _absolute("--sinks", path),
        "secret": _secret,
    }
    found: dict[str, list[str]] = {kind: [] for kind in kinds}
    for option, value in options_of(args):
        if option not in TOUCHES or value == "none":
            continue
        kind, _, what = (value or "").partition("=")
        if kind not in kinds:
            raise ConfigError(f"[service] args: {option}: unknown value {value!r}")
        found[kind].append(kinds[kind](what))
    return found


def _secret(text: str) -> str:
    name, _, path = text.partition(":")
    if not _CREDENTIAL.fullmatch(name):
        raise ConfigError(f"[service] args: --sinks: {text!r} has no name")
    return f"{name}:{_absolute('--sinks', path)}"


def _peer(text: str) -> str:
    """An address, or "any"."""
    if text == "any":
        return text
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise ConfigError(f"[service] args: --sinks: {text!r} is no address") from None


def _need_a_source(args: tuple[str, ...]) -> None:
    options = dict(options_of(args))
    if options.get("--images") == "-" or (
        "--frames" in options and not {"--from", "--camera"} & options.keys()
    ):
        raise ConfigError(
            "[service] args: a service has no standard input",
            hint="have the program before write to a named pipe: "
            '"--from", "/run/camera/frames", "--at-end", "wait"',
        )


def _source(option: str, value: str) -> str:
    """The path that is read: of a pattern the folder that it begins in."""
    path = _absolute(option, value)
    found = _WILDCARDS.search(path) if option == "--images" else None
    return path if found is None else path[: found.start()].rpartition("/")[0] or "/"


def _absolute(option: str, path: str) -> str:
    if not path.startswith("/"):
        raise ConfigError(
            f"[service] args: {option}: {path!r} is not an absolute path",
            hint="a service starts in no folder of its own",
        )
    # As systemd's directives want it.
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ConfigError(f"[service] args: {option}: {path!r} has .. in it")
    return "/" + "/".join(parts)


def _folder(option: str, file: str) -> str:
    folder = _absolute(option, file).rpartition("/")[0]
    if folder in ("", "/run", "/dev", "/etc", "/var", "/home"):
        raise ConfigError(
            f"[service] args: {option}: {file!r} is in {folder or '/'}, which a service must not "
            "write to",
            hint=f"give it a folder: {folder}/NAME/{file.rpartition('/')[2]}",
        )
    return folder


def _add_folder(folder: str, writes: list[str], runtime: list[str]) -> None:
    if found := _RUN.fullmatch(folder):
        runtime.append(found[1])
    else:
        writes.append(folder)


def _address(text: str) -> tuple[str, int]:
    """Who gets in, and the port, of PORT, HOST:PORT or [HOST]:PORT."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if colon else "127.0.0.1"
    if not port.isdecimal() or not port.isascii() or int(port) > 65535:
        return "any", 0  # the app says what is wrong
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    return "loopback" if loopback else "any", int(port)
