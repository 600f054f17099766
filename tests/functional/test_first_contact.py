"""The README's way in with pip, on whole systems with their own Python, by a user without sudo.

And that each Python, on x86-64 and aarch64, finds all it needs in wheels.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edgepack.base.process import run
from edgepack.virtual import apt
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
    # How this machine reaches its package index.
    for name in ("resolv.conf", "hosts", "pip.conf", "ssl/certs/ca-certificates.crt"):
        if (Path("/etc") / name).exists():
            shutil.copy(Path("/etc") / name, root / "etc" / name)
    return root


def by_user(root: Path, script: str) -> str:
    """What a script says that the user runs in the system."""
    settings = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    done = run(
        [
            *["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec"],
            _ENTER,
            "sh",
            root,
            USER,
            script,
        ],
        env={"HOME": f"/home/{USER}", "PATH": "/usr/bin:/bin:/usr/sbin:/sbin", **settings},
        timeout_s=1800,
    )
    return done.stdout


@pytest.mark.parametrize("suite", PYTHON)
def test_from_pip_to_the_photos_class(
    suite: str, tmp_path: Path, require_tool: Callable[..., str]
) -> None:
    require_tool("unshare")
    root = make_system(suite, tmp_path)
    brought = root / "home" / USER / "brought"
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    run([*pip, "-w", brought, ROOT], cwd=tmp_path)
    wheels.make_wheel(wheels.wheel_boards()["arm-linux-gnueabihf"], brought)
    load_build().build(brought / "model")
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
