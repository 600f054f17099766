"""The README's way in with pip, on whole systems with their own Python, by a user without sudo.

And that each Python, on x86-64 and aarch64, finds all it needs in wheels.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgepack.base.process import run
from edgepack.boards import load_boards
from edgepack.gate.elf import read_elf
from edgepack.virtual import apt, launcher, profile
from tests import wheels
from tests.boards import unpacked
from tests.example import load_build
from tests.support import require_tool

ROOT = Path(__file__).resolve().parents[2]
USER = "tester"
# Debian 12, Ubuntu 24.04, Debian 13 and Debian's testing.
PYTHON = {"bookworm": "3.11", "noble": "3.12", "trixie": "3.13", "forky": "3.14"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="becomes another account"),
]

# Mounts and processes of its own, and no way back to this machine's files.
_ENTER = r"""
mount --make-rprivate /
mount --bind "$1" "$1" && cd "$1"
mount --rbind /dev dev && mount -t proc proc proc && mkdir -p outside
pivot_root . outside && umount -l /outside
exec setpriv --reuid "$2" --regid "$2" --init-groups --inh-caps=-all bash -ec "
    cd; unset \"\${!PYTHON@}\" \"\${!EDGEPACK@}\" \"\${!XDG@}\"; $3"
"""


# The same in a system of another architecture: a user namespace has emulators of its own
# (Linux 6.7), whose registration lives as long as the mount. Maps come from outside.
_MAPPED = r"""
waits=$1; shift
unshare --user sh -ec "$waits" sh "$@" & child=$!
while [ "$(readlink /proc/$child/ns/user)" = "$(readlink /proc/self/ns/user)" ]; do sleep 0.05; done
echo 0 0 65536 >/proc/$child/gid_map; echo 0 0 65536 >/proc/$child/uid_map
wait $child
"""
_WAIT = r"""
until read -r line </proc/self/uid_map; do sleep 0.05; done
exec unshare --mount --pid --fork --kill-child sh -ec "$@"
"""
_ENTER_ARM = r"""
mount --make-rprivate /
mount --bind "$1" "$1" && cd "$1"
mount --rbind /dev dev && mount --rbind /sys sys && mount -t proc proc proc && mkdir -p outside
mount -t binfmt_misc none proc/sys/fs/binfmt_misc
printf %s "$3" >proc/sys/fs/binfmt_misc/register
mount --bind etc/cpuinfo proc/cpuinfo
pivot_root . outside && umount -l /outside
exec setpriv --reuid "$2" --regid "$2" --init-groups --inh-caps=-all bash -ec "
    cd; unset \"\${!PYTHON@}\" \"\${!EDGEPACK@}\" \"\${!XDG@}\"; $4"
"""


def pip_block() -> list[str]:
    """The commands of the README's first block, after pip."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"\*\*With pip\*\*.*?```\npip install .*?\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return [line.partition("#")[0].strip() for line in found[1].splitlines()]


def make_system(suite: str, folder: Path) -> Path:
    """A root file system with what `./dev` would install with apt, and the user."""
    listed = re.search(r'apt_run="([^"]+)"', (ROOT / "dev").read_text(encoding="utf-8"))
    assert listed is not None
    packages = [*listed[1].split(), "mount", "passwd"]
    root = folder / suite
    words = [require_tool("mmdebstrap"), "--variant=apt", f"--include={','.join(packages)}"]
    words += [f"--aptopt={line.rstrip(';')}" for line in apt.settings()]
    if suite == "noble":
        keys = unpacked("ubuntu-keyring", ["ubuntu-keyring"], suite="trixie", arch="amd64")
        words += ["--components=main,universe"]
        words += [f"--keyring={keys}/usr/share/keyrings/ubuntu-archive-keyring.gpg"]
    run([*words, suite, root, apt.known_mirror(suite)], timeout_s=900)
    run(["chroot", root, "useradd", "--create-home", "--shell", "/bin/bash", USER])
    _connect(root)
    return root


def _connect(root: Path) -> None:
    """How this machine reaches its package index."""
    for name in ("resolv.conf", "hosts", "pip.conf", "ssl/certs/ca-certificates.crt"):
        if (Path("/etc") / name).exists():
            (root / "etc" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path("/etc") / name, root / "etc" / name)


def bring(root: Path, tmp_path: Path) -> Path:
    """A folder in the user's home with the wheels, and the example's model."""
    brought = root / "home" / USER / "brought"
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    run([*pip, "-w", brought, ROOT], cwd=tmp_path)
    wheels.make_wheel(wheels.wheel_boards()["arm-linux-gnueabihf"], brought)
    load_build().build(brought / "model")
    return brought


def by_user(root: Path, script: str) -> str:
    """What a script says that the user runs in the system."""
    entered = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", _ENTER, "sh"]
    return _said([*entered, root, USER, script])


def by_arm_user(root: Path, script: str) -> str:
    """The same in a system for 64-bit ARM."""
    emulator = require_tool("qemu-aarch64-static")
    magic, mask = (text.decode() for text in (launcher._MAGIC["aarch64"], launcher._MASK))
    rule = f":arm64:M::{magic}:{mask}:{emulator}:FP"
    entered = ["sh", "-ec", _MAPPED, "sh", _WAIT, _ENTER_ARM, "sh"]
    return _said([*entered, root, USER, rule, script])


def _said(argv: Sequence[str | Path]) -> str:
    settings = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    path = "/usr/bin:/bin:/usr/sbin:/sbin"
    return run(argv, env={"HOME": f"/home/{USER}", "PATH": path, **settings}, timeout_s=3600).stdout


@pytest.mark.parametrize("suite", PYTHON)
def test_from_pip_to_the_photos_class(
    suite: str, tmp_path: Path, require_tool: Callable[..., str]
) -> None:
    require_tool("unshare")
    root = make_system(suite, tmp_path)
    brought = bring(root, tmp_path)
    (brought / "model" / "edgepack.toml").unlink()
    names = {"model.onnx": "mobilenetv2.onnx", "cat.jpg": "chelsea.png"}
    steps = [
        re.sub("|".join(names), lambda found: names[found[0]], step).replace(
            "pi@192.168.1.20", "virtual"
        )
        for step in pip_block()
    ]
    assert [step.split()[1] for step in steps] == ["init", "check", "deploy"]
    run(["chroot", root, "chown", "-R", USER, brought.relative_to(root)], cwd="/")
    said = by_user(
        root,
        "; ".join(
            [
                "python3 -m venv venv",
                "venv/bin/pip install -q brought/*.whl",
                "export PATH=$HOME/venv/bin:$PATH",
                "python --version",
                "id -un",
                "pip list",
                "cd brought/model",
                *steps,
                "edgepack board down rasp3b",
            ]
        ),
    )
    assert f"Python {PYTHON[suite]}." in said
    assert f"\n{USER}\n" in said
    assert not re.search(r"^(ziglang|cmake|ninja) ", said, re.MULTILINE)
    assert "mobilenetv2 on virtual rasp3b: deployed" in said
    # Of `check` here, and of the smoke test there.
    assert len(re.findall(r"^ +0\.[67]\d+ +285", said, re.MULTILINE)) == 2


# What Debian 12 has where its apt is, less apt itself, and what runs the kernels for 32-bit boards.
ARM_PACKAGES = [
    *("bash", "ca-certificates", "coreutils", "grep", "libstdc++6", "python3", "python3-venv"),
    *("mount", "openssh-client", "qemu-user-static", "sed", "util-linux"),
]


def make_arm_system(folder: Path) -> Path:
    """Debian 12 for 64-bit ARM, unpacked, with the user, and a CPU's own /proc/cpuinfo."""
    root = folder / "arm64"
    apt.unpack(ARM_PACKAGES, root, suite="bookworm", arch="arm64")
    board = load_boards()["rasp3b-64"]
    assert board.virtual is not None
    for name, text in {
        "cpuinfo": profile.cpuinfo(board, board.virtual),
        "passwd": f"root:x:0:0::/root:/bin/sh\n{USER}:x:1000:1000::/home/{USER}:/bin/bash\n",
        "group": f"root:x:0:\n{USER}:x:1000:\n",
    }.items():
        (root / "etc" / name).write_text(text)
    _connect(root)
    return root


def save_small(path: Path) -> None:
    """A network of one convolution and one product."""
    rng = np.random.default_rng(3)
    weights = {"kernel": (8, 3, 3, 3), "matrix": (8, 10)}
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["image", "kernel"], ["made"], strides=[2, 2]),
            helper.make_node("Relu", ["made"], ["positive"]),
            helper.make_node("GlobalAveragePool", ["positive"], ["means"]),
            helper.make_node("Flatten", ["means"], ["row"]),
            helper.make_node("MatMul", ["row", "matrix"], ["scores"]),
        ],
        "small",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 32, 32])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 10])],
        [
            numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name)
            for name, shape in weights.items()
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)


def test_on_a_64_bit_arm_computer(tmp_path: Path, require_tool: Callable[..., str]) -> None:
    """pip, and what needs no virtual board; all of it under qemu-user."""
    require_tool("qemu-aarch64-static")
    root = make_arm_system(tmp_path)
    brought = bring(root, tmp_path)
    (brought / "model" / "edgepack.toml").unlink()
    save_small(brought / "small.onnx")
    run(["chown", "-R", "1000:1000", root / "home" / USER])
    said = by_arm_user(
        root,
        "; ".join(
            [
                "uname -m",
                "python3 -m venv venv",
                "venv/bin/pip install -q --no-compile brought/*.whl",
                "export PATH=$HOME/venv/bin:$PATH",
                "edgepack --version",
                "edgepack boards",
                "cd brought/model",
                "edgepack init mobilenetv2.onnx --board rasp3b --image chelsea.png",
                "edgepack check",
                # The whole model takes minutes. Comparing needs an emulator within the emulator,
                # which cannot have a 32-bit program's addresses.
                "edgepack compile ../small.onnx --board rasp3b --out ../compiled",
                "edgepack package ../small.onnx --board rasp3b --no-verify --out ../packed",
            ]
        ),
    )
    assert said.startswith("aarch64\nedgepack ")
    assert re.search(r"^local +.* aarch64-linux-gnu ", said, re.MULTILINE)
    assert re.search(r"^ +0\.[67]\d+ +285", said, re.MULTILINE)
    assert read_elf(brought / "compiled" / "model.so").machine == "ARM"
    # With the programs of the wheels: there is neither a compiler nor CMake.
    (app,) = (brought / "packed").glob("*/bin/edgepack-run")
    assert read_elf(app).machine == "ARM"


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
def test_all_packages_have_wheels(python: str, arch: str, tmp_path: Path) -> None:
    """Of the very versions in the lock; only the index is asked, nothing is downloaded."""
    lock = re.sub(r"\\\n", " ", (ROOT / "requirements.lock").read_text(encoding="utf-8"))
    kept = []
    for line in lock.splitlines():
        # pip would go by the Python that it runs on.
        found = re.fullmatch(r'(\S+) ; python_version < "3\.(\d+)"( .*)', line)
        if found is None:
            kept.append(line)
        elif int(python.partition(".")[2]) < int(found[2]):
            kept.append(found[1] + found[3])
    (tmp_path / "lock").write_text("\n".join(kept) + "\n", encoding="utf-8")
    run(
        [
            *[sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--require-hashes"],
            *["--only-binary=:all:", "--target", tmp_path / "none", "--python-version", python],
            # The oldest glibc of the systems above is Debian 12's.
            *(f"--platform=manylinux_2_{glibc}_{arch}" for glibc in range(17, 37)),
            *[f"--platform=manylinux2014_{arch}", "-r", tmp_path / "lock"],
        ],
        timeout_s=900,
    )
