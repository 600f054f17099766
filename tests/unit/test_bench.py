"""The benchmark's own arithmetic and parsers: bench/{results,mca,network,host,arm}.py."""

import re
import sys
from importlib.metadata import packages_distributions
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnxruntime
import pytest

import bench
from bench import (
    accuracy,
    arm,
    avx2,
    bits,
    camera,
    charts,
    compiling,
    host,
    mca,
    memory,
    ops,
    results,
)
from bench.kinds import KINDS
from bench.models import BenchModel
from bench.network import Network, tokens_of
from bench.ours import NAME
from bench.results import Figure
from bench.wide import WIDE
from edgepack.base.errors import MismatchError
from edgepack.base.process import run
from edgepack.boards import get_board
from tests.support import require_tool

TITLES = {"a": "A 1.0", "b": "B 2.0"}


def test_ratio_is_ours_over_the_best_peers() -> None:
    figures = {"edgepack": Figure(value=6), "a": Figure(value=8), "b": Figure(value=12)}
    assert results.ratio(figures) == 0.75
    assert results.ratio({"edgepack": Figure(value=6), "a": Figure(failed="fails")}) is None
    assert results.ratio({"a": Figure(value=6)}) is None


def test_geometric_mean() -> None:
    assert results.geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
    assert results.geometric_mean([]) is None


def test_table_marks_the_best_peer_and_says_what_fails() -> None:
    rows = {
        "m1": {"edgepack": Figure(value=6e6), "a": Figure(value=8e6), "b": Figure(failed="fails")},
        "m2": {"a": Figure(value=2e6)},
    }
    assert results.table(rows, ["a", "b"], TITLES, scale=1e6, digits=1).splitlines() == [
        "| model | edgepack | A 1.0 | B 2.0 | ratio |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| m1 | 6.0 | **8.0** | fails | 0.75 |",
        "| m2 | - | **2.0** | - | - |",
        "| geometric mean of 1 |  |  |  | 0.75 |",
    ]


def test_a_table_of_both_settings_compares_each_with_the_peers_and_with_the_other() -> None:
    rows = {
        "m1": {
            "edgepack": Figure(value=6),
            "edgepack-default": Figure(value=5),
            "a": Figure(value=8),
        },
        "m2": {"edgepack": Figure(value=2), "a": Figure(value=4)},
        "m3": {"edgepack-default": Figure(value=2), "a": Figure(value=4)},
    }
    assert results.table(rows, ["a"], TITLES, scale=1, digits=1).splitlines() == [
        "| model | edgepack, speed | edgepack, default | A 1.0 | speed / best peer "
        "| default / best peer | speed / default |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| m1 | 6.0 | 5.0 | **8.0** | 0.75 | 0.62 | 1.20 |",
        "| m2 | 2.0 | - | **4.0** | 0.50 | - | - |",
        "| m3 | - | 2.0 | **4.0** | - | 0.50 | - |",
        "| geometric mean of 2 |  |  |  | 0.61 | 0.56 | 1.20 |",
    ]


def test_bits_have_rows_for_kinds_and_a_table_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    monkeypatch.setattr(results, "bench_dir", lambda: tmp_path)
    counted = {
        "mobilenetv2, float16": {NAME: Figure(value=45e6), "ncnn-half": Figure(value=5e7)},
        "mobilenetv2, int8": {NAME: Figure(value=4e7), "onnxruntime": Figure(value=6e7)},
    }
    peers = {"openvino-vnni": Figure(value=5.0), "openvino": Figure(value=2.0)}
    timed = {"resnet18": {NAME: Figure(value=4.0), **peers}}
    results.store("bits", {"rasp5b": counted, "local": timed})
    text = bits.report()
    assert "**aarch64-linux-gnu, cortex-a76** (board rasp5b), M instructions" in text
    assert "| mobilenetv2, float16 | 45.0 | - | **50.0** | 0.90 |" in text
    assert "| mobilenetv2, int8 | 40.0 | **60.0** | - | 0.67 |" in text
    # Half precision only where a CPU computes in it.
    assert bits.peers_of(get_board("rasp4b-64")) == ["onnxruntime"]
    assert bits.peers_of(get_board("pynq")) == []
    assert "| resnet18 | 4.00 | - | **5.00** | 0.80 |" in text
    assert "| resnet18 | 4.00 | **2.00** | 2.00 |" in text


def test_photos_have_rows_by_size_and_are_judged_by_the_peer_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    monkeypatch.setattr(results, "bench_dir", lambda: tmp_path)
    large = {
        NAME: Figure(value=9e7),
        camera.WHOLE: Figure(value=6e8),
        camera.PEER: Figure(value=2e8),
    }
    small = {
        NAME: Figure(value=5e7),
        camera.WHOLE: Figure(value=4e7),
        camera.PEER: Figure(value=1e8),
    }
    results.store("camera", {"rasp3b": {"a-85, 10.5 MB": large, "b-92, 1.1 MB": small}})
    results.store("camera", {"local": {"a-85, 10.5 MB": {**small, NAME: Figure(value=2e8)}}})
    assert camera.report().splitlines() == [
        "**arm-linux-gnueabihf**, M instructions",
        "",
        "| photo | edgepack, whole photo | edgepack | Pillow, draft mode | ratio |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| b-92, 1.1 MB | 40.0 | 50.0 | 100.0 | 0.50 |",
        "| a-85, 10.5 MB | 600.0 | 90.0 | 200.0 | 0.45 |",
        "| geometric mean of 2 |  |  |  | 0.47 |",
        "",
        "**this machine, median CPU time, ms**",
        "",
        "| photo | edgepack | Pillow, draft mode | ratio |",
        "| --- | ---: | ---: | ---: |",
        "| a-85, 10.5 MB | 200000000.0 | 100000000.0 | 2.00 |",
        "| geometric mean of 1 |  |  | 2.00 |",
    ]


def test_it_starts_without_what_only_tests_need() -> None:
    """`./dev bench` installs requirements.lock, not that of the tests."""
    root = Path(bench.__file__).parent.parent
    needed, all_of_them = (
        {line.split("==")[0] for line in (root / name).read_text().splitlines() if "==" in line}
        for name in ("requirements.lock", "requirements-dev.lock")
    )
    modules = [
        module
        for module, packages in packages_distributions().items()
        if {name.lower().replace("_", "-") for name in packages} <= all_of_them - needed
    ]
    assert "PIL" in modules
    hidden = f"import sys; sys.modules.update(dict.fromkeys({modules!r})); import bench.__main__"
    run([sys.executable, "-c", hidden], cwd=root)


def test_results_are_kept_until_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    monkeypatch.setattr(results, "bench_dir", lambda: tmp_path)
    results.store("arm", {"board": {"m": {"a": Figure(value=1), "b": Figure(value=2)}}})
    results.store("arm", {"board": {"m": {"a": Figure(failed="fails")}}})
    assert results.load("arm") == {
        "board": {"m": {"a": Figure(failed="fails"), "b": Figure(value=2)}}
    }
    assert results.load("none") == {}


def test_section_of_a_document_is_replaced(tmp_path: Path) -> None:
    document = tmp_path / "doc.md"
    document.write_text("before\n<!-- x -->\nold\n<!-- /x -->\nafter\n")
    results.write_section("x", "new", document)
    assert document.read_text() == "before\n<!-- x -->\n\nnew\n\n<!-- /x -->\nafter\n"
    with pytest.raises(ValueError, match="no section y"):
        results.write_section("y", "new", document)


def test_outputs_beyond_the_tolerance_are_refused() -> None:
    reference = np.array([[1.0, -2.0]], np.float32)
    near = np.array([1.0, -2.0001], np.float32)
    assert results.largest_error([near], [reference], 1e-4) == pytest.approx(5e-5, rel=1e-2)
    with pytest.raises(MismatchError, match="differ by"):
        results.largest_error([near + 1], [reference], 1e-4)


def test_every_board_of_the_tables_is_an_arm_one() -> None:
    assert {get_board(name).debian_arch for name in arm.BOARDS} == {"armhf", "arm64"}


def test_difference_takes_away_what_does_not_depend_on_the_number_of_runs() -> None:
    assert arm.difference(lambda runs: 1000 + 7 * runs) == 7


def test_difference_is_that_of_many_runs_where_the_second_one_does_less() -> None:
    """onnxruntime's second inference of an LSTM on ARM, and those from the 21st on."""
    counts = {1: 5_000_000, 2: 9_400_000}
    asked: list[int] = []

    def count(runs: int) -> int:
        asked.append(runs)
        return counts.get(runs, 9_800_000 * runs)

    assert arm.difference(count) == 9_800_000
    assert 10 <= max(asked) <= 60
    asked.clear()
    assert arm.difference(lambda runs: asked.append(runs) or 200_000_000 * runs) == 200_000_000
    assert asked == [1, 2]


@pytest.mark.parametrize(
    ("instruction", "flop"),
    [
        ("fmla v0.4s, v1.4s, v2.s[0]", 8),
        ("fadd v0.2s, v1.2s, v2.2s", 2),
        ("fmla v0.8h, v1.8h, v2.8h", 0),
        ("vmla.f32 q8, q9, d2[0]", 8),
        ("vfma.f32 d8, d9, d2", 4),
        ("vmul.f32 q8, q9, q2", 4),
        ("vmul.i32 q8, q9, q2", 0),
        ("vadd.f32 s0, s1, s2", 0),
        ("ldr q0, [x0], #16", 0),
    ],
)
def test_floating_point_operations(instruction: str, flop: int) -> None:
    assert mca.operations(instruction) == flop


# Addresses are those of a nest: the outer loop from 4, the inner one from 8.
DISASSEMBLY = """
00000000 <$a>:
       0: add\tr11, sp, #8
       4: mov\tr0, #0
       8: vldmia\tr5!, {d0, d1, d2, d3}
       c: vmla.f32\tq8, q1, d0[0]    @ a comment
      10: vldr\td4, [r11, #-16]
      14: subs\tr0, r0, #1
      18: bne\t0x8 <kernel+0x8>
      1c: bgt\t0x4 <kernel+0x4>
      20: bx\tlr

00000040 <other>:
      40: bl\t0x0 <kernel>
      44: b\t0x40 <other>
"""


def test_innermost_loops_without_calls() -> None:
    (loop,) = mca.loops(DISASSEMBLY, {0x0: "kernel", 0x40: "other"})
    assert loop.function == "kernel"
    assert loop.instructions == (
        "vldmia r5!, {d0, d1, d2, d3}",
        "vmla.f32 q8, q1, d0[0]",
        "vldr d4, [r11, #-16]",
        "subs r0, r0, #1",
    )
    assert loop.flop == 8
    assert loop.stack_references == 1  # r11 is this function's frame pointer


def test_loads_of_many_registers_are_split_for_llvm_mca() -> None:
    assert mca.simplified("vldmia r5!, {d0, d1, d2, d3}") == [
        "vld1.64 {d0, d1}, [r5]!",
        "vld1.64 {d2, d3}, [r5]!",
    ]
    assert mca.simplified("vstmia r5, {d8}") == ["vst1.64 {d8}, [r5]"]
    assert mca.simplified("fmla v0.4s, v1.4s, v2.s[0]") == ["fmla v0.4s, v1.4s, v2.s[0]"]


def test_random_network_is_the_same_every_time_and_keeps_its_scale() -> None:
    def make() -> bytes:
        net = Network("tiny", size=16)
        x = net.relu(net.conv(net.input, "stem", 8, kernel=3, stride=2))
        for index in range(20):
            x = net.relu(net.conv(x, f"{index}", 8, kernel=3))
        gated = net.squeeze_excite(net.hardswish(x), "se", 4)
        return net.finish(net.dense(net.pool(gated), "fc", 10)).SerializeToString(
            deterministic=True
        )

    model = make()
    assert model == make()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    x = np.random.RandomState(0).standard_normal((1, 3, 16, 16)).astype(np.float32)
    (logits,) = session.run(None, {"input": x})
    assert logits.shape == (1, 10)
    assert 1e-3 < np.abs(logits).max() < 1e3


@pytest.mark.parametrize("name", ["keywords-conv1d", "tcn", "text-48x320", "yolov8n-320", *KINDS])
def test_networks_of_every_kind_keep_their_scale(name: str) -> None:
    """Weights of a wrong scale give zeros, infinities or numbers that take longer."""
    model = {**WIDE, **KINDS}[name]()
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (taken,) = session.get_inputs()
    x = np.random.RandomState(0).standard_normal(taken.shape).astype(np.float32)
    for output in session.run(None, {taken.name: x}):
        assert np.isfinite(output).all()
        assert np.std(output) > 1e-2 * np.abs(output).mean()


def test_tokens_are_integers_of_the_vocabulary(tmp_path: Path) -> None:
    net = Network("words", shape=(1, 300), tokens=7)
    model = net.finish(net.embed(net.input, "table", 4))
    assert tokens_of(model) == 7
    described = BenchModel(
        name="words",
        path=tmp_path,
        input="input",
        shape=(1, 300),
        weights="random",
        tokens=tokens_of(model),
    )
    tokens = described.sample()
    assert tokens.dtype == np.int32
    assert set(tokens.ravel()) == set(range(7))


def test_a_held_library_says_that_the_system_keeps_no_registers_of_avx512() -> None:
    xor, move, other = b"\x31\xc9", b"\x48\x89\xd5", b"\x83\xe0\x0f"
    asks, al_is_7 = b"\x0f\x01\xd0", b"\xb0\x07\x90"
    assert avx2.without_avx512(xor + asks + b"\x31") == xor + al_is_7 + b"\x31"
    assert avx2.without_avx512(move + asks) == move + al_is_7
    # and eax, 15; add eax, edx
    assert avx2.without_avx512(other + asks[1:]) == other + asks[1:]


def test_the_two_largest_neighbours_of_a_network() -> None:
    net = Network("small", size=8)
    x = net.relu(net.conv(net.input, "wide", 16, kernel=3))
    model = net.finish(net.conv(x, "narrow", 4, kernel=3))
    # The relu's tensors are larger, and may be the same; weights are no neighbours.
    assert compiling.neighbours(model) == 4 * 8 * 8 * (16 + 4)


def test_what_is_alive_at_once_in_a_network_of_branches() -> None:
    """The shortcut lies beside what a convolution reads and writes; sums and views take nothing."""
    net = Network("branches", size=8)
    shortcut = net.relu(net.conv(net.input, "first", 16, kernel=3))
    x = net.relu(net.conv(shortcut, "second", 16, kernel=3))
    x = net.plus(net.conv(x, "third", 16, kernel=3), shortcut)
    model = net.finish(net.reshape(x, 1, 16 * 8 * 8))
    assert compiling.alive(model) == 4 * 8 * 8 * 3 * 16
    assert compiling.neighbours(model) == 4 * 8 * 8 * 2 * 16
    # The input is alive to its last reader, an operand that is read later is not written over.
    net = Network("late", size=8)
    kept = net.conv(net.input, "conv", 8)
    x = net.concat(net.relu(kept), kept, net.input)
    assert compiling.alive(net.finish(x)) == 4 * 8 * 8 * (3 + 8 + 8 + 19)


def test_worker_process_answers_and_says_why_it_ended(tmp_path: Path) -> None:
    script = tmp_path / "fake.py"
    script.write_text(
        "import json, sys\n"
        "print('a line of the engine itself', flush=True)\n"
        "for line in sys.stdin:\n"
        "    if line == '3\\n': sys.exit('out of order')\n"
        "    n = int(line)\n"
        "    print(json.dumps({'cpu_ms': [1.0] * n, 'wall_ms': [2.0] * n}), flush=True)\n"
    )
    with host.worker([sys.executable, script]) as run:
        assert run(2) == host.Times(cpu_ms=(1.0, 1.0), wall_ms=(2.0, 2.0))
        with pytest.raises(host.EngineError, match="out of order"):
            run(3)


def test_stored_results_are_readable() -> None:
    """bench/results is written by the benchmark and read for docs/performance.md."""
    stored = {path.stem for path in results.RESULTS.glob("*.json")}
    expected = {"accuracy", "arm", "bits", "camera", "compile", "cycles", "host", "mca", "ops"}
    assert stored == expected
    for name in stored - {"accuracy", "cycles", "mca"}:
        assert results.load(name)
    assert "| edgepack | " in accuracy.report()
    for board in mca.BOARDS:
        assert f"(board {board})" in mca.report()


def test_operator_cases_are_read_and_are_valid_models() -> None:
    text = "# a comment\n\n== copies\npad, [1]: float[1,2] x, int64[4] p = {0,0,0,1}\n"
    (case,) = ops.read_cases(text + "    y = Pad(x, p)\n")
    assert (case.family, case.name) == ("copies", "pad, [1]")
    model = case.model()
    assert [value.name for value in model.graph.input] == ["x"]
    assert [dim.dim_value for dim in model.graph.output[0].type.tensor_type.shape.dim] == [1, 3]
    for case in ops.read_cases(ops.CASES.read_text()):
        assert case.model().graph.output[0].name == "y"


def test_an_operator_is_measured_on_both_sides() -> None:
    case = ops.Case(family="f", name="n", inputs="float[4,8] x, float[8] b", nodes="y = Add(x, b)")
    figures = ops.compare(case, rounds=1)
    assert set(figures) == {"edgepack", "onnxruntime"}
    assert all(figure.value is not None and figure.error == 0.0 for figure in figures.values())


@pytest.mark.parametrize(
    ("function", "family"),
    [
        ("conv1x1_64_32_7x7", "conv1x1"),
        ("max_pool3x3_64_56x56_s2", "max_pool3x3"),
        ("winograd4_64_64_56x56_v2", "winograd4"),
        ("pack_1x3x224x224", "pack"),
        ("softmax", "softmax"),
    ],
)
def test_families_are_names_without_sizes(function: str, family: str) -> None:
    assert mca.family(function) == family


def test_a_family_shows_its_middle_and_its_worst() -> None:
    def loop(flop: int, cycles: float | None, stack: int = 0) -> mca.Hottest:
        return mca.Hottest(flop=flop, instructions=10, stack=stack, cycles=cycles)

    text = mca.table(
        [
            ("conv1x1_8_8_7x7", loop(60, 10)),
            ("conv1x1_8_4_7x7", loop(80, 10, stack=2)),
            ("conv1x1_4_4_7x7", loop(70, 10, stack=1)),
            ("mean_4_7x7", loop(20, None)),
        ]
    )
    assert text.splitlines()[2:] == [
        "| conv1x1 | 3 | 3 | 7.00 (6.00) | 7.00 (6.00) |",
        "| mean | 1 | 0 | 2.00 (2.00) | - |",
    ]


def test_a_chart_has_a_bar_for_each_model_as_long_as_its_ratio() -> None:
    rows = {
        "half": {NAME: Figure(value=1.0), "ncnn": Figure(value=2.0), "litert": Figure(value=3.0)},
        "double": {NAME: Figure(value=4.0), "ncnn": Figure(failed="no"), "litert": Figure(value=2)},
        "alone": {NAME: Figure(value=4.0)},
    }
    tree = ElementTree.fromstring(charts.chart("<CPU>", rows))
    bars = [float(bar.get("width", 0)) for bar in tree.iter("{http://www.w3.org/2000/svg}rect")]
    assert bars[1] == pytest.approx(4 * bars[0], abs=0.2)
    said = " ".join(text.text or "" for text in tree.iter("{http://www.w3.org/2000/svg}text"))
    assert "0.50 of ncnn" in said
    assert "2.00 of LiteRT" in said
    assert "geometric mean 1.00" in said
    assert "alone" not in said


def test_a_range_is_a_bar_and_a_pale_one_behind_it() -> None:
    bars = [
        charts.Bar(label="open", low=0.5, high=1.5, peer="ncnn"),
        charts.Bar(label="sure", low=0.75, high=0.75, peer="LiteRT"),
    ]
    tree = ElementTree.fromstring(charts.draw("cycles", "a note", bars))
    rects = list(tree.iter("{http://www.w3.org/2000/svg}rect"))
    assert [rect.get("class") for rect in rects] == [None, "worse open", None]
    low, pale, sure = (float(rect.get("width", 0)) for rect in rects)
    assert pale == pytest.approx(2 * low, abs=0.2)
    assert sure == pytest.approx(1.5 * low, abs=0.2)
    said = [text.text for text in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert {"0.50 to 1.50 of ncnn", "0.75 of LiteRT"} <= set(said)


def test_performance_leads_with_all_charts() -> None:
    before = results.DOCS.read_text(encoding="utf-8").partition("\n## ")[0]
    shown = re.findall(r"!\[[^]]+\]\(charts/([^)]+)\)", before)
    assert sorted(shown) == sorted(charts.charts())
    assert len(shown) >= 3


def test_the_charts_are_of_the_results() -> None:
    for file, text in charts.charts().items():
        assert (charts.FOLDER / file).read_text() == text, "run python -m bench --report --docs"


def test_caches_and_their_bandwidth_become_a_row(tmp_path: Path) -> None:
    for number, (level, kind, size) in enumerate(
        [(1, "Data", "48K"), (1, "Instruction", "32K"), (2, "Unified", "2M"), (3, "Unified", "60M")]
    ):
        folder = tmp_path / f"index{number}"
        folder.mkdir()
        for name, value in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(f"{value}\n")
    sizes = memory.cache_sizes(tmp_path)
    assert sizes == {1: 48 << 10, 2: 2 << 20, 3: 60 << 20}
    found = {
        level: memory.Reading(ghz=3.0, bytes_per_cycle=rate, products_per_cycle=2.0)
        for level, rate in ((1, 120.0), (2, 48.04), (3, 8.0))
    }
    beyond = memory.Reading(ghz=3.0, bytes_per_cycle=2.96, products_per_cycle=2.0)
    figures = eval(f"dict({memory.row(sizes, found, beyond)})", {"KIB": 1024})
    assert figures == {
        "l1_bytes": 48 << 10,
        "l2_bytes": 2 << 20,
        "l2_bandwidth": 48.0,
        "l3_bytes": 60 << 20,
        "l3_bandwidth": 8.0,
        "memory_bandwidth": 3.0,
    }
    # Many boards' kernels say nothing of caches.
    with pytest.raises(memory.MemoryBenchError, match="caches") as caught:
        memory.cache_sizes(tmp_path / "none")
    assert "memory.c" in str(caught.value.hint)


def test_bandwidth_is_measured_on_this_machine() -> None:
    require_tool("cc")
    found = memory.measure(memory.build(), 1 << 14, 2)
    assert min(found.ghz, found.bytes_per_cycle, found.products_per_cycle) > 0
