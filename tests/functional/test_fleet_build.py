"""A fleet of two kinds of boards and a model: one build for each, before anything else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from edgepack.base import paths
from edgepack.bundle.manifest import SIGNATURE_NAME
from tests.boards import own_cache
from tests.integration import sshd_server
from tests.onnx_models import one_conv

ROOT = Path(__file__).parents[2]

# In a process of its own: what it has imported says where the compiler ran.
_DEPLOY = """
import re, sys
from pathlib import Path
from edgepack.cli import main
code = main(sys.argv[1:])
peak = re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]
print(peak, *sorted({"tvm", "onnx", "onnxruntime"} & sys.modules.keys()), file=sys.stderr)
sys.exit(code)
"""


def test_one_build_for_each_board(tmp_path: Path) -> None:
    with own_cache():
        check_builds(tmp_path)


def check_builds(tmp_path: Path) -> None:
    model = one_conv(tmp_path / "tiny.onnx")
    (tmp_path / "fleet.toml").write_text(
        '[groups.a]\ndevices = ["a[0001:5000]"]\nboard = "rasp3b"\n'
        '[groups.b]\ndevices = ["b[0001:5000]"]\nboard = "rasp3b-64"\n'
    )
    key = sshd_server.make_key(tmp_path / "key")
    command = ["fleet", "deploy", "fleet.toml", str(model), "--dry-run", "--json"]
    command += ["--sign", str(key)]
    done = subprocess.run(
        [sys.executable, "-c", _DEPLOY, "--cache-dir", str(paths.cache_dir()), *command],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^==> building for (.*)$", done.stderr, re.MULTILINE) == [
        "rasp3b (1 of 2 boards)",
        "rasp3b-64 (2 of 2 boards)",
    ]
    plan = json.loads(done.stdout)
    assert plan["boards"] == {"rasp3b": 5000, "rasp3b-64": 5000}
    made = [path for path in (paths.cache_dir() / "made").glob("*/tiny-*") if path.is_dir()]
    signed = {path.name.rsplit("-", 1)[0] for path in made if (path / SIGNATURE_NAME).exists()}
    assert signed >= {"tiny-rasp3b", "tiny-rasp3b-64"}
    # The compiler was in other processes: this one stays small.
    peak_kb, *imported = done.stderr.splitlines()[-1].split()
    assert imported == []
    assert int(peak_kb) < 300_000
