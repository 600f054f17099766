"""The action for GitHub, whole: what its steps install, pack and run, in an environment of its own.

Only sudo is another's: here the steps are root's already.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.github_action import run_action
from tests.onnx_models import one_conv

ROOT = Path(__file__).parents[2]


@pytest.mark.slow  # pip fills an environment with all of edgepack, 1.2 GB
@pytest.mark.skipif(os.geteuid() != 0, reason="apt-get installs for root only")
def test_the_action_packs_a_model_and_tests_it(tmp_path: Path) -> None:
    workspace, tools = tmp_path / "workspace", tmp_path / "tools"
    (workspace / "model").mkdir(parents=True)
    (workspace / "dist").mkdir()
    (workspace / "dist/older.tar.gz").touch()
    one_conv(workspace / "model/net.onnx")
    (workspace / "model/edgepack.toml").write_text(
        '[project]\nname = "net"\nmodel = "net.onnx"\nboard = "rasp3b"\n'
    )
    tools.mkdir()
    (tools / "sudo").write_text('#!/bin/sh\nexec "$@"\n')
    (tools / "sudo").chmod(0o755)
    # What actions/setup-python leaves: a Python whose programs come first.
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "python"], check=True)
    path = os.pathsep.join([f"{tmp_path}/python/bin", str(tools), "/usr/sbin:/usr/bin:/sbin:/bin"])
    kept = {key: os.environ[key] for key in os.environ if key.startswith(("PIP_", "SSL_", "HOME"))}
    env = {**kept, "PATH": path, "LANG": "C.UTF-8"}
    try:
        done = run_action(
            ROOT / ".github/actions/edgepack",
            workspace,
            {"project": "model/edgepack.toml"},
            env,
        )
    finally:
        down = [tmp_path / "python/bin/edgepack", "board", "down", "rasp3b"]
        subprocess.run(down, env=env, check=False)
    bundle = workspace / done.outputs["bundle"]
    assert bundle.is_file()
    assert bundle.name.startswith("net-rasp3b-")
    assert "smoke test" in done.log["Smoke test on a virtual board"]
