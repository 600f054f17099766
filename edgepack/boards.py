"""Board profiles: boards.toml, a user's additions to it, and the checks on both."""

from __future__ import annotations

import functools
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgepack import cpus
from edgepack.base.errors import ConfigError, perhaps
from edgepack.base.paths import data_file
from edgepack.base.tables import Table, read_toml
from edgepack.gpus import Gpu, read_gpu

TOOLCHAINS = ("zig", "gnu")
SUITES = ("bullseye", "bookworm", "trixie", "none")
LIBCS = ("glibc", "none", "any")


@dataclass(frozen=True, kw_only=True)
class Triple:
    """What all boards of one GNU triple share."""

    name: str
    llvm_triple: str
    float_abi: str
    debian_arch: str
    loader: str
    runtime_flags: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Cores of one kind; a big.LITTLE board has several clusters."""

    cpu: str
    cores: int
    max_mhz: int


@dataclass(frozen=True, kw_only=True)
class VirtualProfile:
    """How the virtual board imitates the real one.

    `qemu_cpu` is a qemu-user CPU name; `model` and `part` are what /proc/cpuinfo
    says; `suite` is the Debian release of its root file system, "none" for one without any library.
    """

    suite: str
    qemu_cpu: str
    model: str
    part: str


@dataclass(frozen=True, kw_only=True)
class Board:
    """A board profile.

    `clusters` has the fastest cores first. `libc` is "glibc", "none" (programs for it are static
    and need no C library), or "any" (whatever the device has). `glibc` is the floor, e.g.
    "2.31", or empty if `libc` is "none". `cpu` "native" (board `local`) stands for the CPU of
    this machine. `hwcaps` are names in the Features line of /proc/cpuinfo. `has` are the
    instruction families (names of `edgepack.cpus.FAMILIES`) that all cores have. `origin` is the
    last file that changed the profile. `gpu` is None if edgepack cannot make kernels for the
    board's GPU, or if there is none.
    """

    name: str
    title: str
    target: Triple
    cpu: str
    features: tuple[str, ...]
    clusters: tuple[Cluster, ...]
    memory_mb: int
    libc: str
    glibc: str
    os: str
    hwcaps: tuple[str, ...]
    has: tuple[str, ...]
    toolchain: str
    virtual: VirtualProfile | None
    origin: str
    gpu: Gpu | None = None

    @property
    def triple(self) -> str:
        """The GNU triple, e.g. "arm-linux-gnueabihf"."""
        return self.target.name

    @property
    def llvm_triple(self) -> str:
        """LLVM's spelling of the triple, e.g. "armv7l-linux-gnueabihf"."""
        return self.target.llvm_triple

    @property
    def float_abi(self) -> str:
        """ "hard" on 32-bit ARM, else empty."""
        return self.target.float_abi

    @property
    def debian_arch(self) -> str:
        """Debian's name of the architecture, e.g. "armhf"."""
        return self.target.debian_arch

    @property
    def runtime_flags(self) -> Mapping[str, tuple[str, ...]]:
        """Code generation flags of the runtime build, per toolchain kind."""
        return self.target.runtime_flags

    @property
    def forbidden(self) -> tuple[str, ...]:
        """The instruction families that a core lacks."""
        return tuple(name for name in cpus.families_of(self.triple) if name not in self.has)

    @property
    def cores(self) -> int:
        """The number of cores in all clusters."""
        return sum(cluster.cores for cluster in self.clusters)

    @property
    def is_static(self) -> bool:
        """Whether programs are linked statically, together with the kernels."""
        return self.libc == "none"

    def without_libc(self) -> Board:
        """Return this board as if it had no C library."""
        return replace(self, libc="none", glibc="")

    @property
    def is_local(self) -> bool:
        """Whether the board is the machine that edgepack runs on."""
        return self.name == "local"

    def to_dict(self) -> dict[str, Any]:
        """Return the values for `edgepack boards --json`."""
        return {
            "name": self.name,
            "title": self.title,
            "triple": self.triple,
            "cpu": self.cpu,
            "features": list(self.features),
            "float_abi": self.float_abi,
            "clusters": [vars(cluster) for cluster in self.clusters],
            "memory_mb": self.memory_mb,
            "libc": self.libc,
            "glibc": self.glibc,
            "os": self.os,
            "hwcaps": list(self.hwcaps),
            "has": list(self.has),
            "toolchain": self.toolchain,
            "virtual": vars(self.virtual) if self.virtual else None,
            "gpu": vars(self.gpu) if self.gpu else None,
            "origin": self.origin,
        }


def version_tuple(version: str) -> tuple[int, ...]:
    """ "2.31" as (2, 31), so that 2.4 < 2.31."""
    return tuple(int(part) for part in version.split("."))


def load_boards(extra: Sequence[str | Path] = ()) -> dict[str, Board]:
    """Return all boards: edgepack's, extended and overridden by each file of `extra`.

    A user's table needs only the keys that it changes in an existing board, or in the board
    named by `base`. Raises ConfigError.
    """
    profiles = _Profiles(extra)
    return {name: profiles.board(name) for name in profiles.tables}


def get_board(name: str, extra: Sequence[str | Path] = ()) -> Board:
    """Return the board called `name`; without one, raises ConfigError with the nearest name.

    Of edgepack's boards only this one is read, of those in `extra` all."""
    profiles = _Profiles(extra)
    if name not in profiles.tables:
        raise ConfigError(f"unknown board: {name}", hint=perhaps(name, profiles.tables))
    return profiles.board(name)


class _Profiles:
    """The tables of all boards: edgepack's own, and those in each file of `extra`."""

    def __init__(self, extra: Sequence[str | Path]) -> None:
        self._builtin = data_file("boards.toml")
        values = _builtin_tables(self._builtin, self._builtin.stat().st_mtime_ns)
        self._triples = {
            name: _read_triple(name, Table(table, file=self._builtin, path=f"triples.{name}"))
            for name, table in values["triples"].items()
        }
        self.tables: dict[str, dict[str, Any]] = dict(values["boards"])
        if platform.system() != "Linux":
            del self.tables["local"]  # programs and kernels are made for Linux only
        self._own: dict[str, Board] = {}
        for file in map(Path, extra):
            self._read_file(file)

    def board(self, name: str) -> Board:
        """One of them."""
        if name in self._own:
            return self._own[name]
        return _read_board(name, self.tables[name], self._triples, file=self._builtin)

    def _read_file(self, file: Path) -> None:
        root = Table(read_toml(file), file=file)
        own: dict[str, Any] = root.take("boards", dict)
        root.finish()
        for name in own:
            table: dict[str, Any] = Table(own, file=file, path="boards").take(name, dict)
            base = Table(table, file=file, path=f"boards.{name}").take("base", str, name)
            table = {key: value for key, value in table.items() if key != "base"}
            if base not in self.tables and base != name:
                raise ConfigError(
                    f"{file}: boards.{name}.base: unknown board {base!r}",
                    hint=perhaps(base, self.tables),
                )
            merged = {**self.tables.get(base, {}), **table}
            if not table.keys().isdisjoint(("cpu", "clusters", "triple")):
                for key in {"has", "hwcaps"} - table.keys():
                    merged.pop(key, None)  # that of another CPU
            if table.get("libc") == "none" and "glibc" not in table:
                merged.pop("glibc", None)
            self.tables[name] = merged
            self._own[name] = _read_board(name, merged, self._triples, file=file)


@functools.cache
def _builtin_tables(file: Path, _changed_ns: int) -> dict[str, Any]:
    """What is in edgepack's own file; nobody writes into it."""
    return read_toml(file)


def _read_triple(name: str, table: Table) -> Triple:
    flags = table.take_table("runtime_flags")
    assert flags is not None
    triple = Triple(
        name=name,
        llvm_triple=table.take("llvm_triple", str),
        float_abi=table.take("float_abi", str),
        debian_arch=table.take("debian_arch", str),
        loader=table.take("loader", str),
        runtime_flags={kind: flags.take_list(kind, str) for kind in TOOLCHAINS},
    )
    flags.finish()
    table.finish()
    return triple


def _read_board(
    name: str, values: Mapping[str, Any], triples: Mapping[str, Triple], *, file: Path
) -> Board:
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name):
        raise ConfigError(
            f"{file}: boards: bad name {name!r}", hint="use a-z, 0-9, dot, dash and underscore"
        )
    table = Table(values, file=file, path=f"boards.{name}")
    triple = table.take("triple", str)
    if triple == "local":
        triple = f"{platform.machine()}-linux-gnu"
    if triple not in triples:
        raise table.fail("triple", f"unknown triple {triple!r}", hint=perhaps(triple, triples))
    libc, glibc = _read_libc(table)
    clusters = tuple(
        _read_cluster(table, index, item)
        for index, item in enumerate(table.take_list("clusters", dict))
    )
    memory_mb = table.take("memory_mb", int)
    if name == "local":
        clusters = clusters or (
            Cluster(cpu="native", cores=len(os.sched_getaffinity(0)), max_mhz=0),
        )
        memory_mb = memory_mb or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    if not clusters or memory_mb <= 0:
        raise table.fail("clusters" if not clusters else "memory_mb", "must not be empty")
    cpu = table.take("cpu", str)
    features = table.take_list("features", str, ())
    if file != data_file("boards.toml"):
        _check_names(table, triples[triple], cpu, clusters, features)
    names = [cpu, *(item.cpu for item in clusters)]
    has = _read_has(table, triples[triple], features, names)
    # Of this machine's own CPU nothing is asked: kernels are made for it.
    hwcaps = () if "native" in names else cpus.hwcaps_of(triple, has)
    board = Board(
        name=name,
        title=table.take("title", str),
        target=triples[triple],
        cpu=cpu,
        features=features,
        clusters=tuple(sorted(clusters, key=lambda cluster: -cluster.max_mhz)),
        memory_mb=memory_mb,
        libc=libc,
        glibc=glibc,
        os=table.take("os", str),
        hwcaps=table.take_list("hwcaps", str, hwcaps),
        has=has,
        toolchain=table.take_choice("toolchain", TOOLCHAINS, "zig"),
        virtual=_read_virtual(table),
        origin=str(file),
        gpu=_read_gpu(table),
    )
    table.finish()
    return board


def _read_libc(table: Table) -> tuple[str, str]:
    """The kind of C library, and glibc's version."""
    libc = table.take_choice("libc", LIBCS, "glibc")
    if libc == "none":
        if table.has("glibc"):
            raise table.fail("glibc", 'a board of libc = "none" has none', hint="leave one out")
        return libc, ""
    glibc = table.take("glibc", str)
    if glibc == "local":
        glibc = platform.libc_ver()[1]
    if not re.fullmatch(r"2\.\d+", glibc):
        raise table.fail("glibc", f"{glibc!r} is not a glibc version", hint='for example "2.31"')
    return libc, glibc


def _read_cluster(table: Table, index: int, values: Mapping[str, Any]) -> Cluster:
    item = Table(values, file=table.file, path=table.name(f"clusters[{index}]"))
    cluster = Cluster(
        cpu=item.take("cpu", str), cores=item.take("cores", int), max_mhz=item.take("max_mhz", int)
    )
    if cluster.cores <= 0:
        raise item.fail("cores", f"{cluster.cores} is not a number of cores")
    item.finish()
    return cluster


def _read_virtual(table: Table) -> VirtualProfile | None:
    item = table.take_table("virtual", required=False)
    if item is None:
        return None
    profile = VirtualProfile(
        suite=item.take_choice("suite", SUITES),
        qemu_cpu=item.take("qemu_cpu", str),
        model=item.take("model", str, ""),
        part=item.take("part", str),
    )
    item.finish()
    return profile


def _read_gpu(table: Table) -> Gpu | None:
    item = table.take_table("gpu", required=False)
    return read_gpu(item) if item is not None else None


def _read_has(
    table: Table, target: Triple, features: Sequence[str], names: Sequence[str]
) -> tuple[str, ...]:
    """The instruction families of all the CPUs `names`, in the order of `cpus.FAMILIES`.

    What `has` says, or what LLVM knows of the CPUs without what `features` takes away; with what
    `features` adds to either.
    """
    families = cpus.families_of(target.name)
    if table.has("has"):
        own = set(table.take_list("has", str))
        for name in own - families.keys():
            raise table.fail(
                "has", f"unknown instruction family {name!r}", hint=perhaps(name, families)
            )
    elif "native" in names:
        own = set(families)
    else:
        table.take_list("has", str, ())  # a known key, which is not there
        own = {
            name
            for name, family in families.items()
            if all(family.feature in cpus.cpu_features(target.llvm_triple, cpu) for cpu in names)
            and f"-{family.feature}" not in features
        }
    own |= {name for name, family in families.items() if f"+{family.feature}" in features}
    return tuple(name for name in families if name in own)


def _check_names(
    table: Table, target: Triple, cpu: str, clusters: Sequence[Cluster], features: Sequence[str]
) -> None:
    """LLVM only warns about a name it does not know, and then compiles for another CPU."""
    known = cpus.cpu_names(target.llvm_triple)
    for key, name in [("cpu", cpu), *(("clusters: cpu", cluster.cpu) for cluster in clusters)]:
        if name not in known and name != "native":
            raise table.fail(
                key, f"LLVM has no CPU {name!r} for {target.llvm_triple}", hint=perhaps(name, known)
            )
    names = cpus.feature_names(target.llvm_triple)
    for feature in features:
        if feature[:1] not in "+-" or feature[1:] not in names:
            raise table.fail(
                "features",
                f"LLVM has no feature {feature!r} for {target.llvm_triple}",
                hint=perhaps(feature.lstrip("+-"), names) + "; write it as +name or -name",
            )
