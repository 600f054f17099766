"""What devices say of their GPUs and drivers, in the words that are seen in the field."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from edgepack.device.facts import facts, parse_facts, parse_gpu, parse_opencl_drivers
from edgepack.device.nvidia import ARCHS_COMMAND, DRIVER_COMMAND, parse_archs, parse_driver
from tests.support import require_tool

RELEASE = (
    "# R35 (release), REVISION: 4.1, GCID: 33958178, BOARD: t186ref, EABI: aarch64, "
    "DATE: Tue Aug  1 19:57:35 UTC 2023\n"
)
# Of a Jetson Orin NX with JetPack 5, as in nixGL's issue 139.
JETSON_5 = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  35.3.1  Release Build  "
    "(buildbrain@mobile-u64-6289-d7000)  Sun Mar 19 08:09:33 PDT 2023\n"
)
JETSON_6 = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  540.4.0  Release Build  "
    "(buildbrain@mobile-u64-6336-d8000)  Tue Jan  7 17:35:12 PST 2025\n"
)
CARD = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  Release Build  "
    "(dvs-builder@U16-I1-N07-12-3)  Thu Feb 22 01:25:25 UTC 2024\n"
)
SHELLS = [["dash"], ["bash", "--posix"], ["busybox", "sh"], ["mksh"]]


@pytest.mark.parametrize(
    ("text", "release"),
    [
        (RELEASE, "35.4.1"),
        ("# R32 (release), REVISION: 5.1, GCID: 26202423, BOARD: t186ref\n", "32.5.1"),
        ("# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic\n", "36.4.3"),
        ("# R28 (release), REVISION: 2.0", "28.2.0"),
        ("# R36 (release), REVISION: 4", "36.4"),
        ("", ""),
        ("# R35 (release)\n", ""),
        ("# R35 (release), REVISION: x.y, GCID\n", ""),
        ("# R35 (release), REVISION: 4.1.2.3, GCID\n", ""),
        (f"# R{'9' * 5000} (release), REVISION: 1.0,\n", ""),
        (f"# R35 (release), REVISION: {'9' * 5000}.0,\n", ""),
        ("\x00\x7fELF\ufffd\ufffd# R35 (release), REVISION: 4.1,\n", ""),
        ("# R\u0663\u0665 (release), REVISION: 4.1,\n", ""),
        ("head: /etc/nv_tegra_release: No such file or directory\n", ""),
    ],
)
def test_a_release_of_jetson_linux(text: str, release: str) -> None:
    assert parse_driver(text).jetson_linux == release


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (CARD, "535.104.05"),
        (OPEN, "550.54.14"),
        (JETSON_6, "540.4.0"),
        (JETSON_5, ""),  # Jetson Linux's number, not a driver's
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.42  Sat\n", "470.42"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05", "535.104.05"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module\n", ""),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535\n", ""),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05rc1\n", ""),
        (f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {'5' * 5000}.1 \n", ""),
        (f"NVRM version: {'x' * 5000} Kernel Module  535.104.05 \n", ""),
        ("\x00\ufffdNVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05\n", ""),
        ("GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)\n", ""),
        ("", ""),
    ],
)
def test_a_driver_in_the_kernel(text: str, version: str) -> None:
    assert parse_driver(text).version == version
    assert parse_driver(RELEASE + text).jetson_linux == "35.4.1"


@pytest.mark.parametrize(
    ("text", "there"),
    [
        ("/usr/local/cuda-12.2/compat/libcuda.so.1\n", True),
        (CARD + "/usr/local/cuda/compat/libcuda.so.1", True),
        ("/usr/local/cuda-12.2/lib64/libcudart.so.12\n", False),
        ("/usr/local/cuda*/../compat/libcuda.so.1\n", False),
        (RELEASE, False),
    ],
)
def test_the_package_cuda_compat(text: str, there: bool) -> None:
    assert parse_driver(text).has_compat is there


@pytest.mark.parametrize(
    ("text", "archs"),
    [
        ("nvidia,p3768-0000+p3767-0005\nnvidia,p3767-0005\nnvidia,tegra234\n", ("sm_87",)),
        ("nvidia,jetson-xavier\nnvidia,tegra194", ("sm_72",)),
        ("nvidia,tegra186\n", ("sm_62",)),
        ("nvidia,p3450-0000\nnvidia,jetson-nano\nnvidia,tegra210\n", ("sm_53",)),
        ("nvidia,tegra234\n[N/A]\n", ("sm_87",)),
        ("nvidia,tegra234\n8.9\n", ("sm_87", "sm_89")),
        ("nvidia,tegra264\n11.0\n", ("sm_110",)),
        ("8.6\n", ("sm_86",)),
        ("8.6\n7.5\n8.6\n", ("sm_86", "sm_75")),
        ("12.0\r\n", ("sm_120",)),
        ('Field "compute_cap" is not a valid field to query.\n', ()),
        ("No devices were found\n", ()),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", ()),
        ("brcm,bcm2837\nraspberrypi,3-model-b\n", ()),
        ("nvidia,tegra2345\nnvidia,tegra\n", ()),
        ("8\n8.\n.6\n8.66\n-8.6\n8,6\n\u0668.\u0666\n", ()),
        (f"{'8' * 5000}.6\n", ()),
        ("\x00\x01\ufffd8.6", ()),
        ("", ()),
    ],
)
def test_architectures(text: str, archs: tuple[str, ...]) -> None:
    assert parse_archs(text) == archs


def test_a_device_with_more_gpus_than_there_are() -> None:
    assert len(parse_archs("".join(f"{n // 10}.{n % 10}\n" for n in range(100, 900)))) == 16


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("libRusticlOpenCL.so.1\n\n", ("libRusticlOpenCL.so.1",)),
        (
            "/usr/lib/x86_64-linux-gnu/libpocl.so.2.11.0\n\nlibmali.so\n",
            ("libpocl.so.2.11.0", "libmali.so"),
        ),
        ("a; rm -rf /\n$(reboot)\n\x00\ufffd\n" + "x" * 101, ()),
        ("", ()),
    ],
)
def test_drivers_of_opencl(text: str, names: tuple[str, ...]) -> None:
    assert parse_opencl_drivers(text) == names


def test_no_more_drivers_of_opencl_than_there_may_be() -> None:
    assert len(parse_opencl_drivers("\n".join(f"lib{n}.so" for n in range(1000)))) == 16


def test_nodes_for_rendering() -> None:
    answer = "/dev/nvmap\n/dev/dri/renderD128 /dev/dri/renderD129\n/dev/dri/renderD128;reboot\n"
    assert parse_gpu(answer) == {"/dev/nvmap", "/dev/dri/renderD128", "/dev/dri/renderD129"}
    assert parse_gpu("/dev/dri/renderD*\n/dev/dri/card0\n/dev/dri/renderD12345") == frozenset()


def in_shell(shell: list[str], command: str, root: Path) -> str:
    """What a command says whose files are those in `root`, where an empty node is a closed one."""
    require_tool(shell[0])
    for folder in ("/etc/", "/proc/", "/usr/local/cuda", "/dev/"):
        command = command.replace(folder, f"{root}{folder}")
    command = command.replace('[ -r "$n" ] && [ -w "$n" ]', '[ -s "$n" ]')
    done = subprocess.run(
        [*shell, "-c", f"( {command} ) 2>/dev/null"],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": f"{root}/bin:{os.environ['PATH']}"},
    )
    return done.stdout.replace(str(root), "")


def put(root: Path, name: str, content: str = "") -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(content)
    (root / name).chmod(0o755)


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])
def test_commands_find_it_in_every_shell(shell: list[str], tmp_path: Path) -> None:
    assert parse_driver(in_shell(shell, DRIVER_COMMAND, tmp_path)) == parse_driver("")
    put(tmp_path, "bin/nvidia-smi", "#!/bin/sh\necho 8.6; echo 8.9\n")
    assert parse_archs(in_shell(shell, ARCHS_COMMAND, tmp_path)) == ()  # it would load the driver
    put(tmp_path, "etc/nv_tegra_release", RELEASE + "# KERNEL_VARIANT: oot\n")
    put(tmp_path, "proc/driver/nvidia/version", OPEN + "GCC version: gcc 11\n")
    put(tmp_path, "proc/device-tree/compatible", "nvidia,p3768-0000\0nvidia,tegra234\0")
    put(tmp_path, "usr/local/cuda-12.2/compat/libcuda.so.1")
    found = parse_driver(in_shell(shell, DRIVER_COMMAND, tmp_path))
    assert (found.jetson_linux, found.version, found.has_compat) == ("35.4.1", "550.54.14", True)
    assert parse_archs(in_shell(shell, ARCHS_COMMAND, tmp_path)) == ("sm_87", "sm_86", "sm_89")


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])
@pytest.mark.parametrize(
    ("nodes", "closed"),
    [
        ({"renderD128": ""}, {"/dev/dri/renderD128"}),
        ({"renderD128": "", "renderD129": ""}, {"/dev/dri/renderD128", "/dev/dri/renderD129"}),
        ({"renderD128": "", "renderD129": "open"}, set()),
        ({"renderD128": "open", "renderD129": ""}, set()),
        ({"renderD128": "", "../mali0": "open"}, set()),
        ({"renderD128": "", "../mali0": ""}, {"/dev/mali0"}),
        ({}, set()),
    ],
)
def test_nodes_that_count(
    shell: list[str], nodes: dict[str, str], closed: set[str], tmp_path: Path
) -> None:
    (command,) = (fact.command for fact in facts("r") if fact.name == "gpu")
    (tmp_path / "dev/dri").mkdir(parents=True)
    for name, content in nodes.items():
        put(tmp_path, f"dev/dri/{name}", content)
    found = parse_gpu(in_shell(shell, command, tmp_path))
    assert {item for item in found if item.startswith("/dev/")} == closed


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])
def test_files_of_opencl_without_an_end_of_line(shell: list[str], tmp_path: Path) -> None:
    (fact,) = (fact for fact in facts("r") if fact.name == "opencl_drivers")
    assert fact.parse(in_shell(shell, fact.command, tmp_path)) == ()
    put(tmp_path, "etc/OpenCL/vendors/pocl.icd", "/usr/lib/libpocl.so.2")
    put(tmp_path, "etc/OpenCL/vendors/rusticl.icd", "libRusticlOpenCL.so.1\n")
    found = fact.parse(in_shell(shell, fact.command, tmp_path))
    assert found == ("libpocl.so.2", "libRusticlOpenCL.so.1")


def test_all_of_it_is_in_a_devices_facts() -> None:
    answers = {
        "kernel": "Linux 5.10.120-tegra aarch64",
        "cpu": "processor : 0\n",
        "memory": "MemTotal: 100 kB\nMemAvailable: 50 kB\n",
        "disk": "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/x 9 1 8 10% /\n",
        "login": "ann\n/home/ann\norin\n",
        "gpu": "libcuda.so.1\n/dev/nvmap\n/dev/dri/renderD128\n",
        "nvidia_driver": RELEASE + JETSON_5,
        "gpu_archs": "nvidia,tegra234\n",
        "opencl_drivers": "libpocl.so.2\n",
    }
    said = "".join(f"\n@@edgepack:{name}\n{text}" for name, text in answers.items())
    found = parse_facts("orin", "r", said)
    assert (found.jetson_linux, found.nvidia_driver, found.cuda_compat) == ("35.4.1", "", False)
    assert (found.gpu_archs, found.opencl_drivers) == (("sm_87",), ("libpocl.so.2",))
    assert found.gpu_closed == ("/dev/dri/renderD128", "/dev/nvmap")
    assert found.to_dict()["gpu_archs"] == ("sm_87",)
