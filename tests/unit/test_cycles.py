"""The pipeline model of `./dev bench --cycles`, on loops whose cycles its documents give."""

from pathlib import Path

import pytest

from bench.cycles import measure, reorder
from edgepack.base.errors import ToolchainError
from edgepack.cycles import estimate, memories, trace
from edgepack.kernels.pipeline import cores
from edgepack.kernels.pipeline.cores import CORES, PAIRING, Core
from edgepack.kernels.pipeline.instructions import ArmInstruction as Arm
from edgepack.kernels.pipeline.instructions import ArmKind, parse
from edgepack.kernels.pipeline.play import issue_cycles, steady_cycles, steps
from tests.support import require_tool

A53, A55, A9, A7 = (CORES[f"cortex-{name}"] for name in ("a53", "a55", "a9", "a7"))


def program(text: str, arch: str = "aarch64") -> list[Arm]:
    return [parse(line.strip(), arch) for line in text.split(";") if line.strip()]


def per_pass(core: Core, text: str, arch: str = "aarch64") -> float:
    return steady_cycles(program(text, arch), core)


FMLAS = "; ".join(f"fmla v{16 + i}.4s, v8.4s, v9.s[0]" for i in range(12)).split("; ")
# arm-a53-a55-dual-issue.md: one vector load of 64 bits every three multiply-adds, the other half
# by a core register; each line is a cycle.
BALANCED = f"""
ldr d0, [x0];
{FMLAS[0]}; ldr x23, [x0, #8];
{FMLAS[1]}; add x0, x0, #0x10;
{FMLAS[2]};
ldr d1, [x0]; mov v0.d[1], x23;
{FMLAS[3]}; ldr x23, [x0, #8];
{FMLAS[4]}; add x0, x0, #0x10;
{FMLAS[5]};
mov v1.d[1], x23; nop;
{FMLAS[6]};
{FMLAS[7]};
{FMLAS[8]}
"""


@pytest.mark.parametrize(
    ("core", "text", "expected"),
    [
        # ncnn: independent multiply-adds issue in successive cycles.
        (A53, "; ".join(FMLAS), 12),
        # GCC cortex-a53.md: the sum is forwarded after 4 cycles, the product's operands after 8.
        (A53, "fmla v0.4s, v1.4s, v2.4s", 4),
        (A53, "fmla v0.4s, v1.4s, v2.4s; fmla v1.4s, v0.4s, v2.4s", 16),
        # ncnn: core loads and address updates issue beside multiply-adds.
        (A53, f"{FMLAS[0]}; ldr x9, [x0]; {FMLAS[1]}; add x1, x1, #8", 4),
        (A53, BALANCED, 12),
        # ncnn: a vector load has no multiply-add beside it, one of 128 bits for two cycles.
        (A53.given(adder_at=0), f"ldr d0, [x0]; {'; '.join(FMLAS[:4])}", 5),
        (A53.given(adder_at=0), f"ldr q0, [x0]; {'; '.join(FMLAS[:4])}", 6),
        (A53.given(adder_at=0), f"ldp q0, q1, [x0]; {'; '.join(FMLAS[:8])}", 12),
        # ... and none issues four cycles after a multiply-add.
        (A53, f"ldr d0, [x0]; {'; '.join(FMLAS[:3])}", 4),
        (A53, f"ldr q0, [x0]; {'; '.join(FMLAS[:4])}", 10),
        # GCC: a multiply of core registers issues alone, sums wait 4 cycles.
        (A53, "mul x0, x1, x2; add x3, x4, x5", 2),
        (A53, "add x3, x3, #1; add x4, x4, #1", 1),
        (A53, "fadd v0.4s, v0.4s, v1.4s", 4),
        # ncnn and onnxruntime on the A55: 64 bits pair, 128 bits block for two cycles.
        (A55, f"ldr d0, [x0]; {FMLAS[0]}; ldr d1, [x0]; {FMLAS[1]}; {FMLAS[2]}; {FMLAS[3]}", 4),
        (A55, f"ldr q0, [x0]; {'; '.join(FMLAS[:4])}", 6),
        (A55, "fmla v0.4s, v1.4s, v2.4s; fmla v1.4s, v0.4s, v2.4s", 8),
    ],
)
def test_cycles_of_loops_in_64_bit_state(core: Core, text: str, expected: float) -> None:
    assert per_pass(core, text) == expected


VMLAS = "; ".join(f"vmla.f32 q{4 + i}, q0, d2[0]" for i in range(8)).split("; ")


@pytest.mark.parametrize(
    ("core", "text", "expected"),
    [
        # DDI 0409: 128 bits take two cycles; the sum is read at N3 and there at N9.
        (A9, "; ".join(VMLAS), 16),
        (A9, "vmla.f32 d0, d1, d2", 7),
        # GCC cortex-a9.md: a load goes into the second cycle of a multiply-add, not the first.
        (A9, f"vldr d6, [r0]; {VMLAS[0]}; vldr d7, [r0, #8]; {'; '.join(VMLAS[1:4])}", 8),
        (A9, "vldr d6, [r0]; vmla.f32 d8, d0, d1; vmla.f32 d9, d0, d1; vmla.f32 d10, d0, d1"
             "; vmla.f32 d11, d0, d1; vmla.f32 d12, d0, d1; vmla.f32 d13, d0, d1"
             "; vmla.f32 d14, d0, d1", 8),
        (A9, f"{VMLAS[0]}; add r1, r1, #1; {VMLAS[1]}; {VMLAS[2]}; {VMLAS[3]}", 8),
        # GCC cortex-a7.md: nothing issues beside NEON; 4 cycles from sum to sum.
        (A7, "vmla.f32 d0, d1, d2", 4),
        (A7, "; ".join(f"vmla.f32 d{8 + i}, d0, d1; add r{i}, r{i}, #1" for i in range(6)), 12),
        # 32-bit state of the A53: twelve registers are twelve cycles.
        (A53.given(adder_at=0), "vldmia r0, {d0, d1, d2, d3, d4, d5, d6, d7, d8, d9, d10, d11}"
                                f"; {'; '.join(VMLAS[2:6])}", 16),
    ],
)  # fmt: skip
def test_cycles_of_loops_in_32_bit_state(core: Core, text: str, expected: float) -> None:
    assert per_pass(core, text, "armv7") == expected


def test_pairing_changes_only_what_wide_loads_hinder() -> None:
    wide = f"ldr q0, [x0]; {'; '.join(FMLAS[:4])}"
    core = A53.given(adder_at=0)
    assert [per_pass(core.paired(name), wide) for name in PAIRING] == [6, 5, 4]
    beside = "ldr q0, [x0]; add x1, x1, #8; add x2, x2, #8; add x3, x3, #8"
    assert [per_pass(core.paired(name), beside) for name in PAIRING] == [4, 3, 2]
    narrow = "; ".join(FMLAS)
    assert {per_pass(core.paired(name), narrow) for name in PAIRING} == {12}


def test_results_of_a_long_load_come_one_after_the_other() -> None:
    load = "vldmia r0, {d0, d1, d2, d3, d4, d5, d6, d7}"
    first = issue_cycles(steps(program(f"{load}; vadd.f32 d8, d0, d0", "armv7"), A53), A53)
    last = issue_cycles(steps(program(f"{load}; vadd.f32 d8, d7, d7", "armv7"), A53), A53)
    assert last[-1] - last[0] == A53.vector_load_latency.value + 7
    assert first[-1] < last[-1]


@pytest.mark.parametrize(
    ("text", "arch", "expected"),
    [
        ("ldp q0, q1, [x1], #0x20", "aarch64",
         Arm(kind=ArmKind.LOAD, bits=256, vector=True, reads=("x1",), writes=("v0", "v1"),
                     base="x1")),
        ("ld1 {v0.4s, v1.4s, v2.4s}, [x0]", "aarch64",
         Arm(kind=ArmKind.LOAD, bits=384, vector=True, reads=("x0",),
                     writes=("v0", "v1", "v2"))),
        ("stp x29, x30, [sp, #-0x20]!", "aarch64",
         Arm(kind=ArmKind.STORE, bits=128, reads=("sp", "x29", "x30"), base="sp")),
        ("mov v0.d[1], x23", "aarch64",
         Arm(kind=ArmKind.TO_VECTOR, bits=64, vector=True, reads=("x23", "v0"),
                     writes=("v0",))),
        ("fmla v0.4s, v1.4s, v2.s[0]", "aarch64",
         Arm(kind=ArmKind.FMA, bits=128, vector=True, is_float=True, reads=("v1", "v2"),
                     accumulator=("v0",), writes=("v0",))),
        ("b.ne #0x40", "aarch64", Arm(kind=ArmKind.BRANCH, reads=("flags",))),
        ("add x0, x1, x2, lsl #2", "aarch64",
         Arm(kind=ArmKind.SHIFTED, reads=("x1", "x2"), writes=("x0",))),
        ("vmla.f32 q8, q9, d2[0]", "armv7",
         Arm(kind=ArmKind.FMA, bits=128, vector=True, is_float=True,
                     reads=("d18", "d19", "d2"), accumulator=("d16", "d17"),
                     writes=("d16", "d17"))),
        ("vld1.32 {d16, d17}, [r1]!", "armv7",
         Arm(kind=ArmKind.LOAD, bits=128, vector=True, reads=("r1",), writes=("d16", "d17"),
                     base="r1")),
        ("subs fp, fp, #4", "armv7",
         Arm(kind=ArmKind.ALU, reads=("r11",), writes=("r11", "flags"))),
        ("bne #0x40", "armv7", Arm(kind=ArmKind.BRANCH, reads=("flags",))),
        ("pld [r0, #0x100]", "armv7", Arm(kind=ArmKind.PREFETCH, reads=("r0",))),
        ("ldr r0, [r1, r2, lsl #2]", "armv7",
         Arm(kind=ArmKind.LOAD, bits=32, reads=("r1", "r2"), writes=("r0",))),
        ("vtrn.32 d0, d1", "armv7",
         Arm(kind=ArmKind.PERMUTE, bits=128, vector=True, reads=("d0", "d1"),
                     writes=("d0", "d1"))),
    ],
)  # fmt: skip
def test_instructions_are_read(text: str, arch: str, expected: Arm) -> None:
    assert parse(text, arch) == expected


def test_every_number_has_its_document_or_says_that_it_is_a_guess() -> None:
    documents = ("GCC", "LLVM", "NCNN", "ORT", "MPE", "TRM", cores.GUESS)
    for core in CORES.values():
        for name, number in core.numbers():
            assert number.source.startswith(documents), (core.name, name)
            assert number.value not in number.others, (core.name, name)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        # Arm's optimisation guide of the Cortex-A72 (UAN 0016): of 128 bits one multiply-add a
        # cycle, one load, two stores in four; of core registers two sums.
        ([f"fmla v{i}.4s, v30.4s, v31.s[0]" for i in range(16)], 16),
        (["ldr q0, [x0]"], 1),
        (["str q0, [x0]"], 2),
        ([f"add x{i}, x20, x21" for i in range(10)], 5),
        # A branch out of llvm-mca's reach is one within.
        (["add x0, x20, x21", "b.ne #0x5503ac0000"], 1),
    ],
)
def test_cycles_of_a_core_that_reorders(
    texts: list[str], expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # None of these loops needs what only a newer LLVM is right about.
    monkeypatch.setattr(reorder, "_tool", lambda: require_tool("llvm-mca"))
    found = trace.Trace(
        arch="aarch64",
        sums={},
        blocks={1: trace.TracedBlock(pc=0, count=1, misses=0, lines=0, texts=tuple(texts))},
        windows=[[1] * (500 // len(texts))],
        mappings=[],
    )
    costs = reorder.window_costs(found, reorder.DESCRIPTIONS["cortex-a72"])
    ((cycles, instructions, middle),) = costs.samples
    assert middle == 1
    assert cycles / instructions * len(texts) == pytest.approx(expected, rel=0.1)


def test_instructions_that_llvm_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reorder, "_tool", lambda: require_tool("llvm-mca"))
    description = reorder.DESCRIPTIONS["cortex-a72"]

    def costs(unknown: int) -> estimate.Costs:
        texts = ("add x0, x1, x2",) * (1000 - unknown) + ("no x0, x1",) * unknown
        block = trace.TracedBlock(pc=0, count=1, misses=0, lines=0, texts=texts)
        return reorder.window_costs(
            trace.Trace(arch="aarch64", sums={}, blocks={1: block}, windows=[[1]], mappings=[]),
            description,
        )

    ((cycles, instructions, _),) = costs(1).samples
    assert cycles / instructions == pytest.approx(0.5, rel=0.1)
    with pytest.raises(ToolchainError, match="'no x0, x1'"):
        costs(500)


TRACE = """\
S instructions 3000
S loads 10
S stores 5
S l1_misses 100
S l2_misses 40
S l2_written_back 10
B 7 11040 100 60 40 2\tfmla v0.4s, v1.4s, v2.4s\tadd x0, x0, #1
B 9 11080 2800 40 0 1\tadd x1, x1, #1
W 7 7 7 7 7 7 7 7 7 7
W 9 9 9 9 9 9 9 9 9 9
G 1000
M 11000-12000 r-xp 00000000 00:00 1 /lib/kernels.so
"""


def test_a_trace_becomes_cycles_traffic_and_milliseconds(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(TRACE)
    found = trace.read(path, "aarch64")
    assert found.mappings[0].start == 0x10000  # the guest's
    name = trace.namer(found, None, {})
    assert name(0x10040) == "kernels.so"
    assert name(0x99999) == "?"

    def kernel(pc: int) -> str:
        return "sums" if pc == 0x11080 else "products"

    result = estimate.estimate(found, estimate.estimate_pairings(found, A53), kernel)
    # A chain of multiply-adds is 4 cycles for two instructions, one of sums a cycle each.
    assert result.cycles["strict"] == pytest.approx(200 * 2 + 2800, rel=0.01)
    assert result.parts["products"].cycles == pytest.approx(400, rel=0.07)
    assert result.parts["products"].fma_per_cycle == pytest.approx(0.25, rel=0.1)
    assert result.parts["products"].read_bytes == 40 * 64
    assert result.traffic_bytes == 50 * 64
    memory = memories.MEMORIES["rasp3b"]
    best, worst = result.milliseconds(memory, 1e9)
    assert best == pytest.approx(3200e-6, rel=0.01)
    assert worst == pytest.approx((3200 + 100 * 15) * 1e-6 + 3200 / 1.5e9 * 1e3, rel=0.01)
    changed = estimate.estimate(found, estimate.alternatives(found, A53), kernel).cycles
    assert changed["taken_branch=1"] == pytest.approx(3200, rel=0.01)


# A long block that ends its windows, and one that is in one window of ten alone.
COVERED = """\
S instructions 80000
B 1 11040 100 0 0 1\tadd x0, x0, #1
B 2 11080 400 0 0 120{long}
B 3 11100 300 0 0 100{rare}
{windows}
"""


def test_windows_show_every_block_that_matters(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    often, rarely = "W 1 1 1 1 1 1 1 2", "W 3 3 3 3 3"
    path.write_text(
        COVERED.format(
            long="\tfmla v0.4s, v1.4s, v2.4s" * 120,
            rare="\tadd x1, x1, #1" * 100,
            windows="\n".join([often] * 9 + [rarely]),
        )
    )
    found = trace.read(path, "aarch64")
    windows = estimate.cover_blocks(found)
    assert [3] * 5 in windows
    assert len(windows) < 10
    costs = estimate.window_costs(found, A53, windows)
    parts = estimate.parts(found, costs, hex)
    # Block 2 ends each window that it is in: it lasts until its last instruction, at least.
    assert parts["0x11080"].cycles == pytest.approx(400 * 120 * 4, rel=0.02)
    assert parts["0x11100"].cycles == pytest.approx(300 * 100, rel=0.01)


def test_a_qemu_without_plugins_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    qemu = tmp_path / "qemu-aarch64"
    qemu.write_text("#!/bin/sh\necho '-cpu MODEL'\n")
    qemu.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(ToolchainError, match=f"{qemu} takes no plugins"):
        trace.emulator("arm64")


def test_addresses_are_named_by_the_function_before() -> None:
    name = trace.names_from(0x4000, {0x100: "conv_compute_", 0x200: "pool"})
    assert [name(at) for at in (0x4050, 0x4100, 0x41FC, 0x4200)] == ["", "conv", "conv", "pool"]


def test_the_page_leads_with_ours_beside_the_best_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    def stored(strict: int, looser: int, free: int, traffic: int) -> measure.Stored:
        cycles = {"strict": strict * 10**6, "looser": looser * 10**6, "free": free * 10**6}
        return {"cycles": cycles, "others": {}, "traffic_bytes": traffic * 10**6}

    engines = {
        "edgepack": stored(80, 80, 80, 99),
        "ncnn": stored(100, 100, 90, 250),
        "litert": stored(120, 90, 100, 110),
        "tflite": {"failed": "illegal instruction"},
    }
    tables = {"rasp3b-64": {"mobilenetv2": engines, "resnet18": {"edgepack": engines["edgepack"]}}}
    monkeypatch.setattr(measure, "load", lambda: tables)
    assert measure.lead().splitlines()[2:] == [
        "| cortex-a53, 64 bits | mobilenetv2 | 80 / 80 / 80 | 100 / 90 / 90 "
        "| 0.80 / 0.89 / 0.89 | 99 | 110 |"
    ]


def test_cycles_are_under_the_names_of_their_assumptions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are stored by name in the alphabet's order."""
    kernels = {"conv1x1": {"cycles": 45 * 10**6, "multiply_adds": 27 * 10**6, "read_bytes": 10**6}}
    stored: measure.Stored = {
        "instructions": 10**8,
        "cycles": {"free": 70 * 10**6, "looser": 80 * 10**6, "strict": 90 * 10**6},
        "error": 0.01,
        "l1_misses": 0,
        "traffic_bytes": 10**7,
        "others": {},
        "kernels": kernels,
    }
    tables = {"rasp3b-64": {"mobilenetv2": {"edgepack": stored, "ncnn": {**stored, "kernels": {}}}}}
    monkeypatch.setattr(measure, "load", lambda: tables)
    report = measure.report()
    assert "cycles, M: strict, looser, free |" in report
    assert "| mobilenetv2 | edgepack | 100.0 | 90.0 / 80.0 / 70.0 ± 1.0 % | 10 |" in report
    assert "| mobilenetv2 | conv1x1 | 50 % | 0.60 | 1.0 |" in report
