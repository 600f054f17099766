"""What happens to a board in the field. After each, the service has to run what is current."""

from __future__ import annotations

import contextlib
import struct
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from edgepack.base.errors import ConnectError, EdgepackError, RemoteError
from edgepack.deploy import remote_tool
from edgepack.deploy.remote_tool import RefusedBundleError
from edgepack.deploy.repair import repair
from edgepack.device.errors import DiskFullError
from tests.soak.life import ROOT, Life, SoakError
from tests.soak.releases import PHOTOS

# Past the end of the signer's key; and a clock that has lost its battery. Of a board with a 32-bit
# userland no later year than 2038.
_LEAPS_S = (11 * 365 * 86400, -20 * 365 * 86400)
_CUT_S = 15.0


def update(life: Life) -> None:
    """A new release."""
    life.deploy(life.next())


def lost_link(life: Life) -> None:
    """A deploy over connections that are cut, each after as many bytes; then over a whole one."""
    version = life.next()
    with (
        contextlib.suppress(ConnectError),
        life.bad_link(life.rng.randrange(8_000, 60_000)) as device,
    ):
        life.deploy(version, device=device, retries=2)
    life.deploy(version)


def roll_back(life: Life) -> None:
    """To the release before."""
    remote_tool.rollback(life.pi, ROOT)


def power_cut(life: Life) -> None:
    """While nothing is under way."""
    life.cut_power()


def power_cut_in_update(life: Life) -> None:
    """At some moment of a deploy; the next boot runs the old or the new release."""
    old = life.current()
    version = life.next()
    new = life.releases.version(version).manifest.release
    timer = threading.Timer(life.rng.uniform(0, _CUT_S), life.end_power)
    timer.start()
    with contextlib.suppress(ConnectError, RemoteError):
        life.deploy(version, retries=0)
    timer.join()
    life.boot_again()
    if life.current() not in (old, new):
        raise SoakError(f"{life.current()} is current, neither {old} nor {new}")
    life.settle()
    life.deploy(version)


def reboot(life: Life) -> None:
    """As an operator says it."""
    life.reboot()


def full_disk(life: Life) -> None:
    """A deploy is refused; as soon as there is space, all goes on."""
    with _filled(life):
        _refused(life)
    life.settle()
    life.deploy(life.newest)


def full_disk_at_boot(life: Life) -> None:
    """The power is cut with the disk full, and it is freed only later."""
    with _filled(life):
        life.root.run("sync")
        life.cut_power()
    life.settle()


def _refused(life: Life) -> None:
    try:
        life.deploy(life.next())
    except DiskFullError:
        return
    raise SoakError("a release went on a full disk")


@contextlib.contextmanager
def _filled(life: Life) -> Iterator[None]:
    life.pi.run("dd if=/dev/zero of=fill bs=64k status=none; dd if=/dev/zero of=fill2 bs=512 "
                "status=none", check=False)  # fmt: skip
    try:
        yield
    finally:
        life.pi.run("rm -f fill fill2")


def rotten_file(life: Life) -> None:
    """One file of the releases, whichever; then what the guide says: repair, and deploy again."""
    names = life.pi.run(f"cd {ROOT} && find bin releases state store trust -type f").stdout.split()
    path = f"{ROOT}/{life.rng.choice(sorted(names))}"
    life.pi.run(
        f"chmod u+w {path} && "
        + life.rng.choice(
            (
                f": >{path}",
                f"truncate -s 50% {path} 2>/dev/null || : >{path}",
                f"printf rotten | dd of={path} conv=notrunc status=none",
                f"rm {path}",
            )
        )
    )
    with contextlib.suppress(EdgepackError):
        repair(life.pi, ROOT)
    signers = life.releases.signers.read_bytes()
    remote_tool.set_signers(life.pi, ROOT, signers)
    life.deploy(life.next())
    # What a release that is no longer current has lost comes back with its bundle or goes.
    problems = life.tool("status")["problems"]
    if problems:
        raise SoakError(f"{path} was damaged, repaired, and is still: {problems}")


def clock_leaps(life: Life) -> None:
    """Far ahead or back, and right again: no key ends for it, and no service."""
    leap = life.rng.choice(_LEAPS_S)
    move = "date -s @$(($(date +%s) + {})) >/dev/null"
    life.root.run(move.format(leap))
    try:
        life.settle()
        with contextlib.suppress(RefusedBundleError):
            life.deploy(life.next())
    finally:
        life.root.run(move.format(-leap))
    life.deploy(life.newest)


def poison_photos(life: Life) -> None:
    """Each regular file gets its line with an error; what is no file is left alone."""
    life.root.run(
        f"cd {PHOTOS} && mkdir folder.png && mkfifo pipe.jpg && ln -s /nowhere link.png && "
        "ln -s /dev/zero zero.png"
    )
    with TemporaryDirectory() as name:
        for file, data in _POISON.items():
            path = Path(name) / file
            path.write_bytes(data)
            answer = life.show(path)
            if "error" not in answer:
                raise SoakError(f"{file}: {answer}")
    life.root.run(f"cd {PHOTOS} && rm -r folder.png pipe.jpg link.png zero.png")


def _png(width: int, height: int, rows: bytes) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    )  # fmt: skip


_POISON: Mapping[str, bytes] = {
    "bomb.png": _png(12_000, 12_000, zlib.compress(bytes(4_000_000), 9)),
    "cut.png": _png(32, 24, zlib.compress(bytes(24 * 97), 9))[:60],
    "empty.jpg": b"",
    "text.png": b"not a photo\n" * 100,
    "magic.jpg": b"\xff\xd8\xff\xe0" + bytes(range(256)) * 8,
    "claims.png": _png(2**31 - 1, 2**31 - 1, b""),
}


def app_killed(life: Life) -> None:
    """By a signal, as the kernel does it that has no memory left."""
    _signal(life, "KILL")


def app_hangs(life: Life) -> None:
    """It gives no sign, and is killed for it."""
    _signal(life, "STOP")


def _signal(life: Life, name: str) -> None:
    app = life.app()
    assert app is not None
    life.root.run(f"kill -{name} {app[0]}")
    life.until_another(app)


def supervisor_killed(life: Life) -> None:
    """And the app with it: both are started again."""
    app = life.app()
    assert app is not None
    life.root.run(f"kill -9 $(ps -o ppid= -p {app[0]})")
    life.until_another(app)


def all_killed(life: Life) -> None:
    """What a power cut ends on a board that loses nothing by it; somebody starts it again."""
    life.root.run("pkill -9 -f '[e]dgepack-(run|device) '", check=False)
    life.wait_for(lambda: life.app() is None, "the end of the app")
    life.service("start")


EVERYWHERE: Mapping[str, Callable[[Life], None]] = {
    "update": update,
    "roll-back": roll_back,
    "lost link": lost_link,
    "full disk": full_disk,
    "rotten file": rotten_file,
    "poison photos": poison_photos,
    "app killed": app_killed,
    "app hangs": app_hangs,
    "supervisor killed": supervisor_killed,
}
ON_SYSTEMS: Mapping[str, Callable[[Life], None]] = {
    "power cut": power_cut,
    "power cut in an update": power_cut_in_update,
    "full disk at boot": full_disk_at_boot,
    "reboot": reboot,
    "clock leaps": clock_leaps,
}


def events(kind: str) -> Mapping[str, Callable[[Life], None]]:
    """What may happen to a board of that kind, by name."""
    if kind == "light":
        return {**EVERYWHERE, "all killed": all_killed}
    return {**EVERYWHERE, **ON_SYSTEMS}
