"""Tuning, end to end: ways to make kernels, all right, and a device whose tuner is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgepack.base.apart import Limits
from edgepack.boards import get_board
from edgepack.bundle.bundle import TUNING, VERIFIED
from edgepack.cli import main
from edgepack.compiler import cpu_key
from edgepack.compiler.limited import within
from edgepack.compiler.settings import CompileSettings
from edgepack.compiler.variants import compile_variants, survey_kernels
from edgepack.deploy.ab_timing import ROUNDS
from edgepack.flow import records
from edgepack.flow.job import make_job
from edgepack.flow.optimize import GROWTH
from edgepack.flow.project import load_project
from edgepack.flow.records import RecordFile, Trial
from edgepack.kernels.choices import PANEL, PANELS, WIDE, Way, maker
from edgepack.model import ModelSpec
from edgepack.native.toolchain import select
from edgepack.tuning import rounds
from edgepack.tuning.estimated import CycleTimer
from tests.boards import own_cache
from tests.onnx_models import Builder
from tests.plan_runner import run_plan
from tests.schemas import check_output
from tests.support import require_plugins
from tests.targets import save_cases, wrong_outputs

LIMITS = Limits(memory_mb=4096, cpu_s=600)
IMAGE = (1, 16, 20, 20)


def network(path: Path) -> Path:
    """A kernel of each rule that can be tuned, one of them at least twice, on any CPU: what is
    between others of its kind."""
    net = Builder(seed=3)
    start = net.op("Relu", net.conv("image", 16, 32, 1))
    for _ in range(3):
        start = net.op("Relu", net.conv(start, 32, 32, 3))
    start = net.op("Relu", net.conv(start, 32, 32, 3, group=32))
    gate = net.op("Sigmoid", net.conv(net.op("GlobalAveragePool", start), 32, 32, 1))
    end = net.conv(net.op("Mul", start, gate), 32, 32, 1)
    end = net.op("Reshape", end, net.const([1, 32, 400], "int64"))
    far = {"kernel_shape": [3], "dilations": [9], "pads": [18, 0]}
    end = net.op("Conv", end, net.weight(24, 32, 3), **far)
    return save_cases(path, net, {"image": IMAGE}, {"scores": net.op("GlobalAveragePool", end)})


def small(path: Path) -> Path:
    """Two kernels."""
    net = Builder(seed=3)
    end = net.conv(net.op("Relu", net.conv("image", 16, 16, 1)), 16, 16, 3)
    return save_cases(path, net, {"image": IMAGE}, {"scores": net.op("GlobalAveragePool", end)})


TOKENS, HEADS, WIDTH = 41, 3, 48


def transformer(path: Path) -> Path:
    """A kernel of each rule of plain tensors that can be tuned, two of them twice."""
    net = Builder(seed=4)

    def heads(value: str, order: list[int], count: int = TOKENS) -> str:
        parts = net.const([1, count, HEADS, WIDTH // HEADS], "int64")
        return net.op("Transpose", net.op("Reshape", value, parts), perm=order)

    def attention(queries: str, keys: str, values: str, count: int) -> str:
        scores = net.op("Mul", net.op("MatMul", queries, keys), net.const(0.25, "float32"))
        found = net.op("MatMul", net.op("Softmax", scores, axis=-1), values)
        found = net.op("Transpose", found, perm=[0, 2, 1, 3])
        return net.op("Reshape", found, net.const([1, count, WIDTH], "int64"))

    value = net.op("LayerNormalization", "tokens", net.weight(WIDTH), net.weight(WIDTH), axis=-1)
    q, k, v = (net.op("MatMul", value, net.weight(WIDTH, WIDTH)) for _ in range(3))
    keys, values = heads(k, [0, 2, 3, 1]), heads(v, [0, 2, 1, 3])
    value = net.op("Add", attention(heads(q, [0, 2, 1, 3]), keys, values, TOKENS), "tokens")
    mean = net.op("ReduceMean", net.op("Mul", value, value), axes=[-1])
    root = net.op("Sqrt", net.op("Add", mean, net.const(1e-5, "float32")))
    value = net.op("Mul", net.op("Div", value, root), net.weight(WIDTH))
    for _ in range(2):
        value = net.op("Relu", net.op("MatMul", value, net.weight(WIDTH, WIDTH)))
    wide = net.op("Softmax", net.op("MatMul", value, net.weight(WIDTH, 301)), axis=-1)
    last = net.op("MatMul", "query", net.weight(WIDTH, WIDTH))
    keys = net.op("Transpose", "keys", perm=[0, 1, 3, 2])
    step = attention(heads(last, [0, 2, 1, 3], 1), keys, "values", 1)
    cache = (1, HEADS, 37, WIDTH // HEADS)
    return save_cases(
        path,
        net,
        {"tokens": (1, TOKENS, WIDTH), "query": (1, 1, WIDTH), "keys": cache, "values": cache},
        {"wide": wide, "step": step},
    )


@pytest.mark.parametrize(
    ("make", "rules"),
    [
        (network, {"conv", "depthwise", "dilated", "gated", "winograd"}),
        (transformer, {"attention", "norm", "product", "softmax"}),
    ],
)
def test_all_ways_to_make_a_kernel_are_right(
    tmp_path: Path, make: Callable[[Path], Path], rules: set[str]
) -> None:
    """The first few of each kernel, all on one library, against onnxruntime."""
    path = make(tmp_path / "m.onnx")
    board = get_board("local")
    spec = ModelSpec(path=path)
    tunables = within(path, LIMITS, survey_kernels, spec, board)
    found = {way.choice.rule for one in tunables for way in (one.default, *one.others)}
    assert found == rules
    assert max(len(one.layers) for one in tunables) >= 2
    for one in tunables:
        assert one.default not in one.others
        assert len({way.choice for way in one.others}) == len(one.others)
    count = 5
    variants = [
        {one.signature: one.others[i].choice for one in tunables if i < len(one.others)}
        for i in range(count)
    ]
    # What cannot be made so is made as the cost model says.
    absurd = {"pixels": 999, "vectors": 99, "rows": 999}
    variants.append(
        {one.signature: Way(rule=one.default.choice.rule, **absurd) for one in tunables}
    )
    toolchain, out = select(board, "gnu").toolchain, tmp_path / "out"
    made = within(path, LIMITS, compile_variants, spec, board, toolchain, out, variants)
    random = np.random.default_rng(0)
    inputs = [
        random.normal(size=[dim.dim_value for dim in given.type.tensor_type.shape.dim]).astype(
            "float32"
        )
        for given in onnx.load(path).graph.input
    ]
    tiles = set()
    for number, (graph, layers) in enumerate(zip(made.graphs, made.layers, strict=True)):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, source in (
            ("graph.json", graph),
            ("model.so", made.library),
            ("params.bin", made.params),
        ):
            (folder / name).symlink_to(source)
        assert wrong_outputs(path, inputs, run_plan(folder, inputs, runs=2)) == []
        tiles |= {(layer.signature, layer.rule, layer.tile) for layer in layers if layer.signature}
    # Each variant is another one, and what they have in common is there once.
    assert len(tiles) > 3 * len(tunables)
    called = {
        call["kernel"] for graph in made.graphs for call in json.loads(graph.read_text())["calls"]
    }
    assert len(called) < sum(len(layers) for layers in made.layers) * 0.8


# ------------------------------------------------ on this machine as a device


@pytest.fixture(scope="module", autouse=True)
def _cache() -> Iterator[None]:
    with own_cache():
        yield


PROJECT = """
[project]
name = "tiny"
model = "tiny.onnx"
board = "local"
device = "local"
"""
# Ends itself by a signal once so many records are written.
SESSION = """
import os, sys
from pathlib import Path
from edgepack.base import paths
from edgepack.cli import main
from edgepack.flow import records
from edgepack.flow.optimize import GROWTH
left, how = int(sys.argv[1]), int(sys.argv[2])
append = records.RecordFile.append
def counted(self, new):
    global left
    append(self, new)
    left -= 1
    if left == 0:
        os.kill(os.getpid(), how)
records.RecordFile.append = counted
sys.exit(main(sys.argv[3:]))
"""


def start(folder: Path, trials: int, *, after: int = 0, how: int = 0) -> subprocess.Popen[bytes]:
    """`edgepack tune` in a process of its own."""
    from edgepack.base.paths import cache_dir

    words = ["tune", "--trials", str(trials), "--json", "--cache-dir", str(cache_dir())]
    argv = [sys.executable, "-c", SESSION, str(after), str(int(how)), *words]
    with (folder / "out.json").open("wb") as out, (folder / "err.txt").open("wb") as err:
        env = {**os.environ, "HOME": str(folder)}
        return subprocess.Popen(argv, cwd=folder, env=env, stdout=out, stderr=err)


def tune(folder: Path, trials: int, *, after: int = 0, how: int = 0) -> int:
    """The exit code of such a process."""
    return start(folder, trials, after=after, how=how).wait()


def keys_in(file: RecordFile) -> list[object]:
    return [record.key for record in file.read() if isinstance(record, Trial)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of its own, in the folder that is current, and the device's home."""
    small(tmp_path / "tiny.onnx")
    (tmp_path / "edgepack.toml").write_text(PROJECT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.slow
def test_a_session_that_is_killed_goes_on(folder: Path) -> None:
    """By SIGINT and by SIGKILL, at chosen records; test_tuning_session.py has all moments."""
    file = RecordFile(folder / "tuning.jsonl")

    def keys() -> list[object]:
        return keys_in(file)

    assert tune(folder, 6, after=2, how=signal.SIGINT) == 130
    assert len(keys()) == 2
    assert not list(folder.rglob(".tuning*"))
    assert tune(folder, 6, after=3, how=signal.SIGKILL) == -signal.SIGKILL
    assert len(keys()) == 5
    assert tune(folder, 3) == 0, (folder / "err.txt").read_text()
    assert len(keys()) == len(set(keys())) == 8
    assert not list(folder.rglob(".tuning*"))
    said = json.loads((folder / "out.json").read_text())
    assert (said["trials"], said["known"]) == (3, 5)


@pytest.mark.slow
def test_twenty_sessions_that_are_cut_off(folder: Path) -> None:
    """At random moments, by what may end one: what was measured stays, no trial is made twice."""
    file = RecordFile(folder / "tuning.jsonl")
    random = np.random.default_rng(17)
    cut, known = 0, list[object]()
    while cut < 20:
        session = start(folder, 2)
        try:
            session.wait(random.uniform(0.5, 12.0))
        except subprocess.TimeoutExpired:
            cut += 1
            signals = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
            session.send_signal(signals[random.integers(len(signals))])
            session.wait()
        else:
            assert session.returncode == 0, (folder / "err.txt").read_text()
        found = keys_in(file)
        assert found[: len(known)] == known
        assert len(found) == len(set(found))
        known = found
    assert tune(folder, 100) == 0, (folder / "err.txt").read_text()
    said = json.loads((folder / "out.json").read_text())
    assert (said["known"], said["left"]) == (len(known), 0)
    found = keys_in(file)
    assert len(found) == len(set(found)) == said["known"] + said["trials"]
    assert len(known) > 2
    assert not list(folder.rglob(".tuning*"))


# A Raspberry Pi's, which is held back at the ends of the first two blocks; the two answers before
# are of what tells how often to run. Bit 16: it once was, and is no more.
VCGENCMD = """#!/bin/sh
echo >>"$HOME/asked"
case $(wc -l <"$HOME/asked") in 4|6) echo throttled=0x10005;; *) echo throttled=0x10000;; esac
"""


def test_what_was_tuned_is_compiled_deployed_and_compared(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = folder / "tools"
    tools.mkdir()
    (tools / "vcgencmd").write_text(VCGENCMD)
    (tools / "vcgencmd").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setattr(rounds, "_REST_S", 0.0)
    file = RecordFile(folder / "tuning.jsonl")
    with file.session() as first, RecordFile(folder / "others.jsonl").session() as other:
        assert first != other
        assert main(["tune", "--trials", "2", "--json"]) == 2
        assert "another session writes there" in capsys.readouterr().err
    assert main(["tune", "--trials", "2", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    check_output("tune", said)
    # What was measured while it was held back does not count.
    assert said["repeated_blocks"] == 2
    assert all("not throttled" in one for one in said["conditions"])
    assert (said["trials"], said["known"], said["wrong"]) == (2, 0, 0)
    assert not list(folder.rglob(".tuning*"))

    # What wins is a matter of the machine: one trial is made to have won.
    trial = next(record for record in file.read() if isinstance(record, Trial))
    won = {**json.loads(trial.to_json()), "ratio": 0.5, "low": 0.499, "high": 0.501}
    file.path.write_text(json.dumps(won, sort_keys=True) + "\n")

    def compiled(*words: str) -> tuple[dict[str, str], bytes]:
        assert main(["compile", "--explain", "--json", "-o", "out", *words]) == 0
        tuned: dict[str, str] = json.loads(capsys.readouterr().out)["tuned"]
        return tuned, (folder / "out" / "model.so").read_bytes()

    tuned, untuned = compiled(), compiled("--no-records")
    assert (tuned[0], untuned[0]) == ({trial.kernel: str(trial.choice)}, {})
    assert tuned[1] != untuned[1]
    assert compiled("--records", "tuning.jsonl") == tuned  # same records, same bytes
    # Where a project has none, those that come with edgepack for the board.
    monkeypatch.setattr(records, "data_file", lambda name: folder / name)
    (folder / "tuned").mkdir()
    shipped = file.path.rename(folder / "tuned" / "local.jsonl")
    assert (compiled(), compiled("--no-records")) == (tuned, untuned)
    shipped.rename(file.path)

    # Both as releases on one device, in turns.
    releases = []
    for words in (["--no-records"], []):
        assert main(["deploy", "--json", "--no-verify", *words]) == 0
        releases.append(json.loads(capsys.readouterr().out)["release"])
    root = folder / "edgepack" / "tiny" / "releases"
    assert not (root / releases[0] / TUNING).exists()
    assert (root / releases[1] / TUNING).read_text() == file.path.read_text()
    assert main(["bench", "--json", "-n", "2", "--warmup", "1", "--compare", *releases]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [found["a"], found["b"]] == releases
    assert (len(found["a_ms"]), len(found["b_ms"])) == (ROUNDS, ROUNDS)
    assert 0 < found["low"] <= found["ratio"] <= found["high"]


def test_a_virtual_board_is_tuned_by_estimated_cycles(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require_plugins("qemu-aarch64")
    (folder / "edgepack.toml").write_text(
        PROJECT.replace('"local"', '"rasp3b-64"', 1).replace('"local"', '"virtual"')
    )
    assert main(["tune", "--trials", "3", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    check_output("tune", said)
    assert said["cpu"].endswith(" estimated")
    assert (said["trials"], said["wrong"]) == (3, 0)
    file = RecordFile(folder / "tuning.jsonl")
    trials = [record for record in file.read() if isinstance(record, Trial)]
    assert len(trials) == 3
    assert {trial.cpu for trial in trials} == {said["cpu"]}

    # One is made to have won; the release is made by it, and its outputs are checked.
    won = {**json.loads(trials[0].to_json()), "ratio": 0.5, "low": 0.499, "high": 0.501}
    file.path.write_text(json.dumps(won, sort_keys=True) + "\n")
    assert main(["package", "-o", "out"]) == 0
    (bundle,) = (path.parent for path in (folder / "out").rglob(TUNING))
    assert (bundle / TUNING).read_text() == file.path.read_text()
    assert json.loads((bundle / VERIFIED).read_text())["emulated"]


def test_estimated_cycles_tell_a_bad_tile(folder: Path) -> None:
    """One pixel by one vector: its loads are as many as its multiply-adds. And wide loads, which
    no multiply-add may issue beside if the documents are right."""
    require_plugins("qemu-arm")
    flags = {"model": folder / "tiny.onnx", "board": "rasp3b", "verify": False}
    job = make_job(load_project(None, flags))
    kernels = within(job.spec.path, LIMITS, survey_kernels, job.spec, job.board)
    changed, kept = sorted(kernels, key=lambda one: one.default.cycles)
    small = replace(changed.default.choice, pixels=1, vectors=1)
    wide = next(way.choice for way in changed.others if way.choice.loads == WIDE)
    fetched = replace(changed.default.choice, order=PANELS, fetch=PANEL)
    ways = [{changed.signature: way} for way in (small, wide, fetched)]
    found = CycleTimer(job).measure(ways, blocks=1)
    assert not found.wrong
    assert all(changed.signature not in same for same in found.same)
    strict = found.blocks[0].variants
    before = found.blocks[0].untuned[0].kernels_ms
    assert strict[0].kernels_ms[changed.signature] > 1.3 * before[changed.signature]
    assert strict[1].kernels_ms[changed.signature] > 1.02 * before[changed.signature]
    for block in found.blocks:
        before = block.untuned[0].kernels_ms
        for after in block.variants:
            assert after.kernels_ms[kept.signature] == pytest.approx(
                before[kept.signature], rel=0.02
            )


@pytest.mark.slow
def test_figures_are_fitted_to_records(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a machine on which every kernel is the faster, the slower the cost model says it is."""
    other = network(folder / "other.onnx")
    board = get_board("local")
    trials = []
    for path in (folder / "tiny.onnx", other):
        spec, growth = ModelSpec(path=path), GROWTH["balance"]
        settings = CompileSettings(growth=growth)
        for one in within(path, LIMITS, survey_kernels, spec, board, settings=settings):
            for way in one.others:
                ratio = one.default.cycles / way.cycles
                trials.append(
                    Trial(
                        cpu=cpu_key(board),
                        compiler=maker(),
                        kernel=one.signature,
                        choice=way.choice,
                        low=ratio * 0.9999,
                        high=ratio * 1.0001,
                        ratio=ratio,
                        ms=1.0,
                        default_ms=1.0,
                        blocks=16,
                    )
                )
    RecordFile(folder / "tuning.jsonl").append(trials)
    assert main(["tune", "--json", "--fit", "other.onnx"]) == 0
    said = json.loads(capsys.readouterr().out)
    # All but ties are in the wrong order, and no figures turn a model round.
    assert said["before"] < 0.1
    assert said["fitted_before"] < 0.1
    assert said["fitted_pairs"] > said["pairs"] > 0
    assert said["proposed"] == (said["after"] > said["before"])
    assert {one["name"] for one in said["figures"]} >= {"memory_bandwidth", "l2_bandwidth"}


def test_what_cannot_be_fitted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--fit", "tiny.onnx"]) == 2
    assert "is the model to judge by" in capsys.readouterr().err
    network(folder / "other.onnx")
    assert main(["tune", "--fit", "other.onnx"]) == 2
    assert "no records of this CPU" in capsys.readouterr().err


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = small(tmp_path / "m.onnx")
    file = tmp_path / "r.jsonl"
    words = ["tune", str(path), "--board", "rasp4b", "--device", "virtual"]
    assert main([*words, "--records", str(file)]) == 2
    said = capsys.readouterr().err
    assert "no cycles can be estimated for rasp4b" in said
    assert "not of cortex-a72" in said
    assert not file.exists()
    assert main([*words, "--no-records"]) == 2
    assert "--no-records" in capsys.readouterr().err
    file.write_text('{"kind": "trial"}\n')
    assert main([*words[:-4], "--board", "local", "--device", "local", "--records", str(file)]) == 2
    assert f"{file}: line 1: cpu: missing" in capsys.readouterr().err
