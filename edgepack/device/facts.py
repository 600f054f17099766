"""What a device is: one read-only command and one pure parser per fact.

All commands go over in one round trip. They run under dash, bash and busybox.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from edgepack.base.errors import RemoteError
from edgepack.bundle.manifest import DEVICE_TOOL
from edgepack.device.base import Device
from edgepack.device.errors import NOT_OURS, OPEN_TO_ALL
from edgepack.device.nvidia import (
    ARCHS_COMMAND,
    DRIVER_COMMAND,
    NvidiaDriver,
    parse_archs,
    parse_driver,
)

_GLIBC_AND_MUSL = (
    "/lib/ld-linux-armhf.so.3",
    "/lib/ld-linux-aarch64.so.1",
    "/lib64/ld-linux-x86-64.so.2",
    "/lib/ld-linux.so.3",
    "/lib/ld-musl-armhf.so.1",
    "/lib/ld-musl-aarch64.so.1",
    "/lib/ld-musl-x86_64.so.1",
)
_UCLIBC_AND_BIONIC = (
    "/lib/ld-uClibc.so.1",
    "/lib/ld-uClibc.so.0",
    "/lib/ld64-uClibc.so.1",
    "/lib/ld64-uClibc.so.0",
    "/system/bin/linker64",
    "/system/bin/linker",
)
LOADERS = (*_GLIBC_AND_MUSL, *_UCLIBC_AND_BIONIC)
_OTHER_LOADERS = ("/lib/ld[-.]*", "/lib64/ld[-.]*", "/usr/lib/ld[-.]*")
"""Of a C library that is none of these, or does not say what it is."""
_NO_LOADER = "no-loader"

GPU_DRIVERS = ("libcuda.so.1", "libOpenCL.so.1")
_LIBRARY_FOLDERS = (
    *("/lib", "/usr/lib", "/usr/local/lib", "/usr/lib64"),
    *("/usr/lib/*-linux-gnu*", "/usr/lib/*-linux-gnu/tegra", "/usr/lib/*-linux-gnu/nvidia"),
)
# What the drivers of Jetsons, of NVIDIA's cards and of Mali open.
_GPU_NODES = ("/dev/nvhost-gpu", "/dev/nvhost-ctrl-gpu", "/dev/nvmap", "/dev/nvidia0", "/dev/mali0")
# What drivers of Mesa and Intel open. Boards have such nodes for displays, too.
RENDER_NODES = "/dev/dri/renderD"
_MOST_OPENCL_DRIVERS = 16

# A 64-bit kernel lists the AArch64 names only. Every ARMv8-A core that can run 32-bit
# programs has these there (Linux, Documentation/arch/arm64/elf_hwcaps and arm/vfp).
_ARMV8_AS_ARMV7 = frozenset(
    (
        *("half", "thumb", "fastmult", "edsp", "tls", "idiva", "idivt"),
        *("vfp", "vfpv3", "vfpv4", "vfpd32", "neon"),
    )
)
_MARK = "@@edgepack:"


class FactsError(RemoteError):
    """The device did not answer in a way we understand."""


@dataclass(frozen=True, kw_only=True)
class Uname:
    """`uname -s -r -m`."""

    system: str
    release: str
    machine: str


@dataclass(frozen=True, kw_only=True)
class Cpu:
    """/proc/cpuinfo. `features` are those that all cores have; `parts` has one per core."""

    model: str
    features: frozenset[str]
    parts: tuple[str, ...]
    cores: int


@dataclass(frozen=True, kw_only=True)
class Libc:
    """`kind` is "glibc", "musl", "uclibc", "bionic", "none" (there is no loader of any), or
    "unknown"; `version` is e.g. "2.31", or empty."""

    kind: str
    version: str


@dataclass(frozen=True, kw_only=True)
class Memory:
    """/proc/meminfo, in bytes."""

    total_bytes: int
    available_bytes: int


@dataclass(frozen=True, kw_only=True)
class Login:
    """Who we are there."""

    user: str
    home: str
    hostname: str


@dataclass(frozen=True, kw_only=True)
class Tool:
    """The device tool's version, or empty, and the version of the protocol it speaks, or 0."""

    version: str
    protocol: int


@dataclass(frozen=True, kw_only=True)
class DeviceFacts:
    """The properties of a device, as read from it.

    `features` are the names in the Features line (x86: flags) of /proc/cpuinfo; on an ARMv8
    kernel, the ARMv7 names of its 32-bit mode are added. `loaders` are the installed dynamic
    loaders. They show the word size and float ABI of the user space; `machine` is that of the
    kernel. `glibc` is None without glibc. `free_disk_bytes` refers to the file system of the
    root folder. `sha256sum` is the command that prints SHA-256 sums, or empty. `tool` is the
    version of edgepack-device in the root folder, or empty, and `protocol` the version of its
    `receive`. `folder` is the folder that relative paths refer to. `machine_id` is that of
    systemd and D-Bus, or empty. With `noexec`, the root folder's file system cannot run
    programs. `selinux` is "enforcing", "permissive", or empty without SELinux. `gpu_drivers` are
    the installed libraries of `GPU_DRIVERS`, and `gpu_closed` the GPU's device nodes that the
    login may not open; render nodes only if it may open none of them and there is no /dev/mali0.
    `gpu_archs` are the architectures of NVIDIA's GPUs ("sm_87"),
    `nvidia_driver` is the version of their driver, `jetson_linux` a Jetson's release ("35.4.1");
    with `cuda_compat` there is a CUDA that may be newer than the driver's. `opencl_drivers` are the
    libraries that OpenCL's loader is told to load.
    """

    system: str
    kernel: str
    machine: str
    libc: str
    glibc: str | None
    loaders: tuple[str, ...]
    model: str
    features: frozenset[str]
    parts: tuple[str, ...]
    cores: int
    memory_bytes: int
    memory_available_bytes: int
    free_disk_bytes: int
    os: str
    user: str
    home: str
    hostname: str
    sha256sum: str
    tool: str = ""
    protocol: int = 0
    noexec: bool = False
    selinux: str = ""
    gpu_drivers: tuple[str, ...] = ()
    gpu_closed: tuple[str, ...] = ()
    gpu_archs: tuple[str, ...] = ()
    nvidia_driver: str = ""
    jetson_linux: str = ""
    cuda_compat: bool = False
    opencl_drivers: tuple[str, ...] = ()
    folder: str = ""
    machine_id: str = ""

    def to_dict(self) -> dict[str, Any]:
        """For --json."""
        return {**asdict(self), "features": sorted(self.features)}


@dataclass(frozen=True, kw_only=True)
class Fact:
    """`command` prints what `parse` understands."""

    name: str
    command: str
    parse: Callable[[str], Any]


def gather(device: Device, root: str) -> DeviceFacts:
    """Ask `device` for everything in one round trip; `root` is where releases go.

    Raises FactsError if an answer makes no sense, and what `Device.run` raises.
    """
    return parse_facts(device.name, root, device.run(f"{facts_script(root)}\n:").stdout)


def facts_script(root: str) -> str:
    """Shell commands whose output `parse_facts` understands; they leave standard input alone."""
    return "\n".join(
        f"printf '\\n%s\\n' {_MARK}{fact.name}\n( {fact.command} ) 2>/dev/null </dev/null"
        for fact in facts(root)
    )


def parse_facts(device: str, root: str, output: str) -> DeviceFacts:
    """What the device that is called `device` said. Raises FactsError as `gather` does."""
    answers = _split(output)
    found: dict[str, Any] = {}
    for fact in facts(root):
        answer = answers.get(fact.name, "")
        try:
            found[fact.name] = fact.parse(answer)
        except ValueError as error:
            raise FactsError(
                f"{device}: cannot tell its {fact.name}: {error}",
                hint=f"run this there and look: {fact.command}",
            ) from None
    kernel: Uname = found["kernel"]
    cpu: Cpu = found["cpu"]
    libc: Libc = found["libc"]
    memory: Memory = found["memory"]
    login: Login = found["login"]
    nvidia: NvidiaDriver = found["nvidia_driver"]
    return DeviceFacts(
        system=kernel.system,
        kernel=kernel.release,
        machine=kernel.machine,
        libc=libc.kind,
        glibc=libc.version if libc.kind == "glibc" else None,
        loaders=found["loaders"],
        model=found["model"] or cpu.model,
        features=cpu.features,
        parts=cpu.parts,
        cores=cpu.cores,
        memory_bytes=memory.total_bytes,
        memory_available_bytes=memory.available_bytes,
        free_disk_bytes=found["disk"],
        os=found["os"],
        user=login.user,
        home=login.home,
        hostname=login.hostname,
        sha256sum=found["sha256sum"],
        tool=found["tool"].version,
        protocol=found["tool"].protocol,
        noexec=found["noexec"],
        selinux=found["selinux"],
        gpu_drivers=tuple(name for name in GPU_DRIVERS if name in found["gpu"]),
        gpu_closed=tuple(sorted(item for item in found["gpu"] if item.startswith("/dev/"))),
        gpu_archs=found["gpu_archs"],
        nvidia_driver=nvidia.version,
        jetson_linux=nvidia.jetson_linux,
        cuda_compat=nvidia.has_compat,
        opencl_drivers=found["opencl_drivers"],
        folder=found["folder"],
        machine_id=found["machine_id"],
    )


def facts(root: str) -> tuple[Fact, ...]:
    """All facts of a device whose releases go to `root` (relative: to the home folder)."""
    return (
        Fact(name="kernel", command="uname -s -r -m", parse=parse_kernel),
        Fact(name="folder", command="pwd", parse=str.strip),
        Fact(
            name="machine_id",
            command="cat /etc/machine-id || cat /var/lib/dbus/machine-id",
            parse=parse_machine_id,
        ),
        Fact(
            name="loaders",
            command=f'for l in {" ".join(LOADERS)}; do [ -e "$l" ] && echo "$l"; done; :',
            parse=parse_loaders,
        ),
        Fact(
            name="libc",
            # The first that answers. Loaders before glibc 2.33 take --version for a program;
            # getconf and ldd may not be installed; the library itself is a program, too.
            command=(
                f"for l in {' '.join(_GLIBC_AND_MUSL)}; do "
                '[ -x "$l" ] && "$l" --version 2>&1 && exit; done; '
                f'for l in {" ".join(_UCLIBC_AND_BIONIC)}; do [ -e "$l" ] && echo "$l" && exit; '
                "done; "
                "getconf GNU_LIBC_VERSION && exit; ldd --version && exit; "
                'for l in /lib/libc.so.6 /lib/*/libc.so.6; do [ -x "$l" ] && "$l" && exit; done; '
                f'for l in {" ".join(_OTHER_LOADERS)}; do [ -e "$l" ] && echo "$l" && exit; '
                f"done; echo {_NO_LOADER}"
            ),
            parse=parse_libc,
        ),
        Fact(name="cpu", command="cat /proc/cpuinfo", parse=parse_cpuinfo),
        Fact(
            name="model",
            # On Android it is the marketing name that people know.
            command="getprop ro.product.model || "
            "{ [ -r /proc/device-tree/model ] && tr -d '\\000' </proc/device-tree/model; }",
            parse=str.strip,
        ),
        Fact(name="memory", command="cat /proc/meminfo", parse=parse_meminfo),
        Fact(
            name="disk",
            command=(
                f"p={shlex.quote(root)}; "
                'while [ ! -d "$p" ]; do p=$(dirname "$p"); done; df -Pk "$p"'
            ),
            parse=parse_df,
        ),
        Fact(
            name="noexec",
            command=(
                f"p={shlex.quote(root)}; "
                'while [ ! -d "$p" ]; do p=$(dirname "$p"); done; df -Pk "$p"; '
                "echo; cat /proc/mounts"
            ),
            parse=parse_noexec,
        ),
        Fact(
            name="os",
            command="cat /etc/os-release || { v=$(getprop ro.build.version.release) && "
            "echo \"PRETTY_NAME='Android $v'\"; }",
            parse=parse_os_release,
        ),
        Fact(
            name="selinux",
            command="getenforce || cat /sys/fs/selinux/enforce",
            parse=parse_selinux,
        ),
        Fact(
            name="login",
            command='id -un || id -u; echo "$HOME"; uname -n',
            parse=parse_login,
        ),
        Fact(
            name="sha256sum",
            command="command -v sha256sum || { busybox sha256sum /dev/null "
            "&& echo busybox sha256sum; }",
            parse=parse_sha256sum,
        ),
        Fact(
            name="gpu",
            # Where the dynamic linker looks, and where NVIDIA and vendors of phones put drivers.
            command=(
                f"for n in {' '.join(GPU_DRIVERS)}; do for d in {' '.join(_LIBRARY_FOLDERS)}; do "
                '[ -e "$d/$n" ] && echo "$n"; done; '
                f'{{ ldconfig -p || /sbin/ldconfig -p; }} | grep -o "$n"; done; '
                f"for n in {' '.join(_GPU_NODES)}; do "
                '[ -e "$n" ] && { [ -r "$n" ] && [ -w "$n" ] || echo "$n"; }; done; '
                f"c=; [ -e /dev/mali0 ] || for n in {RENDER_NODES}*; do "
                '[ -e "$n" ] || continue; [ -r "$n" ] && [ -w "$n" ] && { c=; break; }; '
                'c="$c $n"; done; echo $c'
            ),
            parse=parse_gpu,
        ),
        Fact(name="nvidia_driver", command=DRIVER_COMMAND, parse=parse_driver),
        Fact(name="gpu_archs", command=ARCHS_COMMAND, parse=parse_archs),
        Fact(
            name="opencl_drivers",
            command='for f in /etc/OpenCL/vendors/*.icd; do cat "$f"; echo; done',
            parse=parse_opencl_drivers,
        ),
        Fact(
            name="tool",
            command=f'r=$({own_folder(root)}) && "$r/{DEVICE_TOOL}" --version',
            parse=parse_tool,
        ),
    )


def own_folder(root: str) -> str:
    """Shell commands that say where `root` is; they fail, and say why, unless it is the login's
    own or root's, and nobody else can write there.

    Nothing in a folder that another account made is run: it may lie where the login's was to be.
    The path has no links, so that nobody can turn one while what is there is used.
    """
    # Without "./", a relative name may be searched in CDPATH.
    path = shlex.quote(root if root.startswith("/") else f"./{root}")
    refuse = f'{{ echo {shlex.quote(root)} "$w" >&2; exit 1; }}'
    return (
        f"cd {path} && {{ set -- $(ls -ldn .); "
        f"case $1 in ????????w*) w='{OPEN_TO_ALL}';; *) w=;; esac; "
        f'[ -O . ] || [ "$3" = 0 ] || w="{NOT_OURS} $3, this is user $(id -u)"; '
        f'[ -z "$w" ] || {refuse}; pwd -P; }}'
    )


def parse_kernel(text: str) -> Uname:
    """`uname -s -r -m`, on one line."""
    words = text.split()
    if len(words) != 3:
        raise ValueError(f"uname said {text!r}")
    return Uname(system=words[0], release=words[1], machine=words[2])


def parse_loaders(text: str) -> tuple[str, ...]:
    """One path per line."""
    return tuple(line for line in text.split() if line in LOADERS)


def parse_libc(text: str) -> Libc:
    """What the loader, getconf, ldd or the library itself says, or that there is no loader.

    musl's loader fails after it has said its version, so that others are asked, too: if
    there is a glibc beside it, that one counts, for it is what our programs need.
    """
    glibc = re.search(
        r"^(?:ld\.so|GNU C Library|ldd) \([^)\n]*\).*?(?:version )?(\d{1,3}\.\d{1,3})\.?(?:\s|$)"
        r"|^glibc (\d{1,3}\.\d{1,3})",
        text,
        re.MULTILINE,
    )
    if glibc:
        return Libc(kind="glibc", version=glibc[1] or glibc[2])
    musl = re.search(r"^musl libc.*\nVersion (\d{1,3}(?:\.\d{1,3}){1,3})", text, re.MULTILINE)
    if musl:
        return Libc(kind="musl", version=musl[1])
    last = text.strip().rpartition("\n")[2]
    if last in _UCLIBC_AND_BIONIC:
        return Libc(kind="uclibc" if "uClibc" in last else "bionic", version="")
    return Libc(kind="none" if last == _NO_LOADER else "unknown", version="")


def parse_cpuinfo(text: str) -> Cpu:
    """ARM of any age and x86. Old ARM kernels give the features once, after all cores."""
    values: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            values.setdefault(key.strip(), []).append(value.strip())
    lists = [
        frozenset(line.split()) for key in ("Features", "flags") for line in values.get(key, [])
    ]
    features = frozenset.intersection(*lists) if lists else frozenset()
    if "asimd" in features:
        features |= _ARMV8_AS_ARMV7
    names = [*values.get("Model", []), *values.get("Hardware", []), *values.get("model name", [])]
    cores = len(values.get("processor", []))
    if cores == 0:
        raise ValueError("/proc/cpuinfo lists no processor")
    return Cpu(
        model=names[0] if names else "",
        features=features,
        parts=tuple(values.get("CPU part", [])),
        cores=cores,
    )


def parse_meminfo(text: str) -> Memory:
    """Kernels before 3.14 have no MemAvailable: MemFree then."""
    sizes = {key: int(kib) * 1024 for key, kib in re.findall(r"^(\w+):\s+(\d+) kB", text, re.M)}
    if "MemTotal" not in sizes:
        raise ValueError("/proc/meminfo has no MemTotal")
    available = sizes.get("MemAvailable", sizes.get("MemFree", 0))
    return Memory(total_bytes=sizes["MemTotal"], available_bytes=available)


def parse_df(text: str) -> int:
    """Bytes available to us: the fourth column of the last line, which busybox may break."""
    match = re.search(r"\s\d+\s+\d+\s+(-?\d+)\s+(?:\d+%|-)\s+/[^\n]*\s*\Z", text)
    if not match:
        raise ValueError(f"df said {text.strip()!r}")
    return max(0, int(match[1])) * 1024


def parse_noexec(text: str) -> bool:
    """df of the folder, an empty line, and /proc/mounts, where a later mount hides an earlier."""
    df, _, mounts = text.partition("\n\n")
    words = df.split()
    options = ""
    for line in mounts.splitlines():
        fields = line.split()
        if words and len(fields) >= 4 and fields[1] == words[-1].replace(" ", "\\040"):
            options = fields[3]
    return "noexec" in options.split(",")


def parse_os_release(text: str) -> str:
    """PRETTY_NAME, or empty."""
    match = re.search(r"^PRETTY_NAME=(.*)$", text, re.MULTILINE)
    try:
        return " ".join(shlex.split(match[1])) if match else ""
    except ValueError:
        return ""


def parse_machine_id(text: str) -> str:
    """32 hexadecimal digits (machine-id(5)), or empty: an image that is not set up yet has none."""
    return text.strip() if re.fullmatch(r"[0-9a-f]{32}", text.strip()) else ""


def parse_selinux(text: str) -> str:
    """`getenforce`'s word, or the kernel's number; a kernel without SELinux says neither."""
    words = {"Enforcing": "enforcing", "1": "enforcing", "Permissive": "permissive"}
    return words.get(text.strip(), "permissive" if text.strip() == "0" else "")


def parse_login(text: str) -> Login:
    """User, home and host name on a line each."""
    lines = text.strip().splitlines()
    if len(lines) != 3:
        raise ValueError(f"id, $HOME and uname said {text!r}")
    return Login(user=lines[0], home=lines[1], hostname=lines[2])


def parse_sha256sum(text: str) -> str:
    """The last line says the command; empty if there is none."""
    lines = text.strip().splitlines()
    if not lines:
        return ""
    return "busybox sha256sum" if lines[-1] == "busybox sha256sum" else "sha256sum"


def parse_gpu(answer: str) -> frozenset[str]:
    """Names of libraries, and device nodes, one on each line; others are left out."""
    known = {*GPU_DRIVERS, *_GPU_NODES}
    render = re.compile(re.escape(RENDER_NODES) + r"[0-9]{1,3}")
    return frozenset(word for word in answer.split() if word in known or render.fullmatch(word))


def parse_opencl_drivers(text: str) -> tuple[str, ...]:
    """Names of libraries, without their folders, one on each line."""
    names = (line.strip().rpartition("/")[2] for line in text.splitlines())
    found = dict.fromkeys(name for name in names if re.fullmatch(r"[\w.+-]{1,100}", name, re.ASCII))
    return tuple(found)[:_MOST_OPENCL_DRIVERS]


def parse_tool(text: str) -> Tool:
    """`edgepack-device 0.1.0 protocol 1`; anything else is no tool of ours."""
    match = re.fullmatch(r"edgepack-device (\S+) protocol (\d+)", text.strip())
    return Tool(version=match[1], protocol=int(match[2])) if match else Tool(version="", protocol=0)


def _split(output: str) -> dict[str, str]:
    """Answers by fact name; what a login script printed before the first mark is dropped."""
    answers = {}
    for part in f"\n{output}".split(f"\n{_MARK}")[1:]:
        name, _, answer = part.partition("\n")
        answers[name.strip()] = answer.removesuffix("\n")
    return answers
