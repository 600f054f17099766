"""The parts of the kernel library that need no compiler: layouts, tiles, packing, fusion."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import tvm

from edgepack.compiler.layers.fuse import fuse
from edgepack.kernels.layer import (
    Convolution,
    GlobalPooling,
    Layer,
    Pointwise,
    Pooling,
    TransposedConvolution,
)
from edgepack.kernels.rules import convolution, depthwise, pooling, transposed
from edgepack.kernels.tiles import arm, tile
from edgepack.kernels.tiles.cpu import (
    ALDER_LAKE,
    AVX2,
    AVX512,
    CORTEX_A7,
    CORTEX_A9,
    CORTEX_A15,
    CORTEX_A53,
    CORTEX_A53_32,
    CORTEX_A55,
    CORTEX_A72,
    CORTEX_A76,
    CORTEX_A78,
    GRACEMONT,
    HASWELL,
    SAPPHIRE_RAPIDS,
    SKYLAKE_X,
    SSE,
    ZEN1,
    ZEN2,
    ZEN4,
    ZEN5,
    CpuModel,
    cpu_model,
    has_model,
    nearest_model,
)
from edgepack.kernels.tiles.element import FLOAT16, FLOAT32, INT8, Element
from edgepack.kernels.tiles.expression import Operand, Operation, PerChannel, Scalar, Step
from edgepack.kernels.tiles.layout import Blocked, Halo, Image, conv_halo, pack_channels
from edgepack.kernels.tiles.product import Shape, pack_weights
from edgepack.kernels.value import Value

CPUS = (
    ZEN1,
    ZEN2,
    ZEN4,
    ZEN5,
    SKYLAKE_X,
    SAPPHIRE_RAPIDS,
    HASWELL,
    ALDER_LAKE,
    GRACEMONT,
    AVX2,
    SSE,
    CORTEX_A72,
    CORTEX_A76,
    CORTEX_A78,
    CORTEX_A53,
    CORTEX_A55,
    CORTEX_A53_32,
    CORTEX_A7,
    CORTEX_A9,
    CORTEX_A15,
)


# ------------------------------------------------ CPU models

AARCH64, ARMV7 = "aarch64-unknown-linux-gnu", "armv7l-unknown-linux-gnueabihf"
X86 = "x86_64-unknown-linux-gnu"


@pytest.mark.parametrize(
    ("triple", "cpu", "attributes", "features"),
    [
        # Optional in Armv8.2-A; what has which is in each core's technical reference manual.
        (AARCH64, "cortex-a53", [], set()),
        (AARCH64, "cortex-a72", [], set()),
        (AARCH64, "cortex-a55", [], {"dotprod", "fp16"}),
        (AARCH64, "cortex-a76", [], {"dotprod", "fp16"}),
        (AARCH64, "neoverse-v1", [], {"dotprod", "fp16", "i8mm", "sve"}),
        (AARCH64, "cortex-a76", ["-dotprod"], {"fp16"}),
        # It converts half floats, but has no arithmetic on them.
        (ARMV7, "cortex-a9", ["+neon", "+fp16"], set()),
    ],
)
def test_features_are_those_of_the_target(
    triple: str, cpu: str, attributes: list[str], features: set[str]
) -> None:
    target = tvm.target.Target(
        {"kind": "llvm", "mtriple": triple, "mcpu": cpu, "mattr": attributes}
    )
    assert cpu_model(target).features == features


def test_a_cpu_without_a_row_is_told_from_one_with() -> None:
    assert has_model(AARCH64, "cortex-a72")
    assert not nearest_model(AARCH64, "cortex-a72").is_default
    assert not has_model(AARCH64, "cortex-a510")
    assert nearest_model(AARCH64, "cortex-a510").is_default
    # A row for one state is none for the other.
    assert not has_model(ARMV7, "cortex-a76")
    # Told apart by their vectors, too.
    assert has_model("x86_64-linux-gnu", "alderlake")
    assert not has_model("x86_64-linux-gnu", "x86-64-v3")


@pytest.mark.parametrize(
    ("unknown", "rows", "attributes"),
    [
        ((AARCH64, "cortex-x2"), ["cortex-a53", "cortex-a55", "cortex-a76"], []),
        ((ARMV7, "cortex-a17"), ["cortex-a7", "cortex-a15"], []),
        ((X86, "x86-64-v3"), ["haswell", "gracemont", "znver1", "znver3"], []),
        ((X86, "x86-64-v4"), ["znver4", "skylake-avx512", "sapphirerapids"], []),
        # A hypervisor that hides AVX-512: no row is of such a CPU.
        ((X86, "znver4"), ["haswell", "gracemont", "znver2"], ["-avx512f"]),
    ],
)
def test_a_cpu_without_a_row_has_the_slowest_memory_of_its_family(
    unknown: tuple[str, str], rows: list[str], attributes: list[str]
) -> None:
    triple, cpu = unknown

    def model(name: str, features: list[str]) -> CpuModel:
        return cpu_model(
            tvm.target.Target({"kind": "llvm", "mtriple": triple, "mcpu": name, "mattr": features})
        )

    nearest = model(cpu, attributes)
    assert nearest.is_default
    for row in (model(name, []) for name in rows):
        assert not row.is_default
        for figure in ("l2_bytes", "l2_bandwidth", "l3_bytes", "l3_bandwidth", "memory_bandwidth"):
            assert getattr(nearest, figure) <= getattr(row, figure)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"mtriple": "armv7l-unknown-linux-gnueabihf", "mcpu": "cortex-a9"}, "cortex-a9"),
        ({"mtriple": "armv7l-unknown-linux-gnueabihf", "mcpu": "cortex-a53"}, "cortex-a53-32"),
        ({"mtriple": "aarch64-unknown-linux-gnu", "mcpu": "cortex-a53"}, "cortex-a53"),
        ({"mtriple": "aarch64-unknown-linux-gnu", "mcpu": "generic"}, "cortex-a72"),
        ({"mtriple": "armv7l-unknown-linux-gnueabihf", "mcpu": "cortex-a7"}, "cortex-a7"),
        ({"mtriple": "armv7l-unknown-linux-gnueabihf", "mcpu": "cortex-a15"}, "cortex-a15"),
        ({"mtriple": "armv7l-unknown-linux-gnueabihf", "mcpu": "cortex-a55"}, "cortex-a55-32"),
        ({"mtriple": "aarch64-unknown-linux-gnu", "mcpu": "cortex-a55"}, "cortex-a55"),
        ({"mtriple": "aarch64-unknown-linux-gnu", "mcpu": "cortex-a73"}, "cortex-a73"),
        ({"mtriple": "aarch64-unknown-linux-gnu", "mcpu": "cortex-a76"}, "cortex-a76"),
        ({"mtriple": "aarch64-unknown-linux-gnu", "mcpu": "cortex-a78ae"}, "cortex-a78"),
        ({"mtriple": "aarch64-unknown-linux-gnu", "mcpu": "neoverse-n1"}, "neoverse-n1"),
        ({"mtriple": "x86_64-unknown-linux-gnu", "mcpu": "znver4"}, "zen4"),
        ({"mtriple": "x86_64-unknown-linux-gnu", "mcpu": "skylake-avx512"}, "skylake-avx512"),
        ({"mtriple": X86, "mcpu": "cascadelake"}, "skylake-avx512"),
        ({"mtriple": X86, "mcpu": "icelake-server"}, "icelake-server"),
        ({"mtriple": X86, "mcpu": "tigerlake"}, "icelake-client"),
        ({"mtriple": X86, "mcpu": "emeraldrapids"}, "sapphirerapids"),
        ({"mtriple": X86, "mcpu": "graniterapids"}, "avx512"),
        ({"mtriple": X86, "mcpu": "alderlake"}, "alderlake"),
        ({"mtriple": X86, "mcpu": "gracemont"}, "gracemont"),
        ({"mtriple": X86, "mcpu": "skylake"}, "skylake"),
        ({"mtriple": X86, "mcpu": "znver1"}, "zen1"),
        ({"mtriple": X86, "mcpu": "znver2"}, "zen2"),
        ({"mtriple": X86, "mcpu": "znver3"}, "zen3"),
        ({"mtriple": X86, "mcpu": "znver5"}, "zen5"),
        ({"mtriple": "x86_64-unknown-linux-gnu", "mcpu": "haswell"}, "haswell"),
        ({"mtriple": X86, "mcpu": "x86-64-v3"}, "avx2"),
        ({"mtriple": "x86_64-unknown-linux-gnu", "mcpu": "x86-64-v2"}, "sse4.2"),
        # A hypervisor may hide what the CPU's name promises.
        (
            {"mtriple": "x86_64-unknown-linux-gnu", "mcpu": "znver4", "mattr": ["-avx512f"]},
            "avx2",
        ),
    ],
)
def test_a_target_has_the_model_of_its_cpu(config: dict[str, object], expected: str) -> None:
    import tvm

    model = cpu_model(tvm.target.Target({"kind": "llvm", "num-cores": 4, **config}))
    assert model.name == expected
    assert model.cores == 4


@pytest.mark.parametrize(
    ("cpu", "channels", "block"),
    [
        (ZEN4, 64, 16),
        (ZEN4, 24, 8),
        (ZEN4, 3, 4),
        (ZEN4, 1000, 8),
        # Wider vectors that do as many operations a cycle are worth some zeros: 60 or 64 channels.
        (AVX512, 58, 16),
        (AVX512, 24, 8),
        (AVX2, 58, 8),
        (AVX2, 12, 4),
        (replace(AVX512, tight=frozenset({104})), 104, 8),
        (CORTEX_A9, 7, 4),
    ],
)
def test_blocks_are_wide_where_zeros_cost_less(cpu: CpuModel, channels: int, block: int) -> None:
    assert cpu.block(channels, FLOAT32) == block


# ------------------------------------------------ tiles


@pytest.mark.parametrize("cpu", CPUS, ids=lambda cpu: cpu.name)
def test_tiles_fit_the_registers_and_the_layer(cpu: CpuModel) -> None:
    random = np.random.default_rng(0)
    kernel = arm.micro_kernel(cpu, FLOAT32)
    for _ in range(40):
        width, blocks = (int(v) for v in random.integers(1, 60, size=2))
        chosen, *_ = tile.rank(
            width=width,
            rows=7,
            blocks=blocks,
            lanes=cpu.widest(FLOAT32),
            element=FLOAT32,
            reduction=int(random.integers(1, 500)),
            cpu=cpu,
            fits=partial(kernel.fits, registers=cpu.registers) if kernel else None,
        )
        assert chosen.pixels <= width
        assert chosen.vectors <= blocks
        assert chosen.pixels * chosen.vectors < cpu.registers


def test_tile_of_a_wide_layer_is_limited_by_arithmetic_not_by_loads() -> None:
    chosen, *_ = tile.rank(
        width=196, rows=1, blocks=36, lanes=16, reduction=96, element=FLOAT32, cpu=ZEN4
    )
    ideal = 196 * 36 * 96 / ZEN4.rate(FLOAT32, 16)
    assert chosen.cycles < 1.1 * ideal


@pytest.mark.parametrize(
    ("blocks", "columns", "best"),
    # One vector leaves LLVM less room, and so do columns that have inputs in common.
    [(24, 1, (6, 2)), (24, 3, (5, 2)), (1, 1, (13, 1))],
)
def test_tiles_of_sixteen_registers(blocks: int, columns: int, best: tuple[int, int]) -> None:
    chosen, *_ = tile.rank(
        width=6 * 13 * 5,
        rows=1,
        blocks=blocks,
        lanes=8,
        reduction=96,
        element=FLOAT32,
        cpu=AVX2,
        columns=columns,
    )
    assert (chosen.pixels, chosen.vectors) == best


def test_parts_cover_the_whole() -> None:
    assert list(tile.parts(10, 4)) == [(4, 2), (2, 1)]
    assert list(tile.parts(8, 4)) == [(4, 2)]
    assert list(tile.parts(3, 4)) == [(3, 1)]


# ------------------------------------------------ layouts and packing


def test_blocked_shape_has_halo_and_padded_channels() -> None:
    layout = Blocked(
        element=FLOAT32,
        batch=2,
        channels=10,
        height=5,
        width=6,
        block=4,
        halo=Halo(top=1, left=2, bottom=0, right=1),
    )
    assert layout.blocks == 3
    assert layout.shape == (6, 6, 9, 4)
    assert layout.nbytes == 6 * 6 * 9 * 4 * 4


@pytest.mark.parametrize(
    ("element", "lanes", "accumulator"),
    [(FLOAT32, 4, "float32"), (FLOAT16, 8, "float32"), (INT8, 16, "int32")],
    ids=str,
)
def test_a_block_of_any_element_fills_a_vector(
    element: Element, lanes: int, accumulator: str
) -> None:
    block = CORTEX_A72.block(64, element)
    assert block == lanes
    layout = Blocked(element=element, batch=1, channels=33, height=5, width=7, block=block)
    image = Image("image", layout)
    assert image.buffer.dtype == element.name
    # A pixel of a block is one register, and there is no halo.
    assert image.pixel_bytes == 16
    assert image.plane_bytes == 5 * 7 * 16
    assert layout.nbytes == np.zeros(layout.shape, element.name).nbytes
    bias = pack_channels(np.arange(33), layout)
    assert (bias.dtype, len(bias)) == (accumulator, layout.blocks * block)
    # Assembly is written for float32 only.
    assert (arm.isa_of(CORTEX_A72, element) is not None) == (element == FLOAT32)


def test_halo_is_what_the_window_reads_and_no_more() -> None:
    # 3x3, stride 2 on 8x8 with pads 1: the last window ends inside.
    halo = conv_halo(
        size=(8, 8), kernel=(3, 3), stride=(2, 2), dilation=(1, 1), before=(1, 1), out=(4, 4)
    )
    assert halo == Halo(top=1, left=1)
    same = conv_halo(
        size=(8, 8), kernel=(3, 3), stride=(1, 1), dilation=(2, 2), before=(2, 2), out=(8, 8)
    )
    assert same == Halo(top=2, left=2, bottom=2, right=2)


def conv(weight: np.ndarray, groups: int = 1, bias: np.ndarray | None = None) -> Convolution:
    return Convolution(
        weight=weight, bias=bias, stride=(1, 1), before=(0, 0), dilation=(1, 1), groups=groups
    )


def test_weights_are_packed_in_the_order_of_use() -> None:
    weight = np.arange(1 * 6 * 5 * 1 * 2, dtype="float32").reshape(1, 6, 5, 1, 2)
    shape = Shape(
        groups=1,
        in_blocks=2,
        in_block=4,
        last_lanes=1,
        out_blocks=2,
        lanes=4,
        kernel=(1, 2),
        element=FLOAT32,
    )
    packed = pack_weights(weight, shape, vectors=1)
    assert packed.size == 2 * shape.panel(1)
    # Panel 0, block 0, column 0, channel 0; then channel 1; block 1 has one channel per column.
    assert packed[:4].tolist() == weight[0, :4, 0, 0, 0].tolist()
    assert packed[4:8].tolist() == weight[0, :4, 1, 0, 0].tolist()
    assert packed[16:20].tolist() == weight[0, :4, 0, 0, 1].tolist()
    assert packed[32:36].tolist() == weight[0, :4, 4, 0, 0].tolist()
    # Panel 1 has two channels that are there.
    assert packed[40:44].tolist() == [*weight[0, 4:6, 0, 0, 0].tolist(), 0, 0]


def test_weights_of_deep_steps_lie_side_by_side() -> None:
    """As SDOT reads them: four channels of an output in each 32 bits of a vector."""
    weight = np.arange(1 * 6 * 11, dtype="int8").reshape(1, 6, 11, 1, 1)
    image = Blocked(element=INT8, batch=1, channels=11, height=1, width=1, block=8)
    shape = Shape.of(weight, image, replace(image, channels=6, block=4), kr=4)
    # 11 channels are two steps of one block and one, a quarter empty, of another.
    assert shape.reduction == 12
    packed = pack_weights(weight, shape, vectors=1)
    assert packed.dtype == np.int8
    assert packed.size == 2 * shape.panel(1) == shape.weight_bytes
    steps = packed.reshape(2, 3, 4, 4)
    x = np.arange(1, 13, dtype="int32")
    x[11] = 99  # the missing channel
    dots = np.einsum("psok,sk->po", steps.astype("int32"), x.reshape(3, 4)).ravel()
    expected = weight[0, :, :, 0, 0].astype("int32") @ x[:11]
    np.testing.assert_array_equal(dots, [*expected, 0, 0])


def test_a_deeper_step_is_fewer_steps() -> None:
    wide = {"width": 196, "rows": 1, "blocks": 36, "reduction": 96, "cpu": CORTEX_A76}
    shallow = tile.rank(**wide, lanes=4, element=FLOAT32)[0]
    deep = tile.rank(**wide, lanes=4, element=INT8, kr=4)[0]
    # Both instructions start twice per cycle, and the second one does four times as much; what is
    # done once per tile stays.
    assert shallow.cycles / 4 < deep.cycles < shallow.cycles / 3


def test_each_micro_kernel_is_the_first_choice_of_some_cpu() -> None:
    halves = replace(CORTEX_A76, features=frozenset({"fp16"}))
    cpus = (*CPUS, halves)
    chosen = {arm.micro_kernel(cpu, row.element) for cpu in cpus for row in arm.KERNELS}
    assert chosen == {*arm.KERNELS, None}


def test_groups_are_merged_until_blocks_are_whole() -> None:
    # 24 groups of 4 to 2 channels: two groups make 4 outputs.
    weight = np.ones((48, 4, 1, 1), "float32")
    assert convolution.merged_groups(conv(weight, groups=24), in_block=4, out_block=4) == 2
    # Groups of 3 never fill blocks of 4 before all 2 are merged.
    assert convolution.merged_groups(conv(weight[:6, :3], groups=2), in_block=4, out_block=4) == 2


@pytest.mark.parametrize(
    ("cpu", "channels", "multiplied"),
    [
        (SKYLAKE_X, 2, 2),
        (SKYLAKE_X, 8, 8),
        (HASWELL, 4, 4),
        (HASWELL, 8, 8),
        # Two groups of two channels made one: half of the products are with zero.
        (CORTEX_A72, 2, 4),
        (CORTEX_A72, 4, 4),
    ],
)
def test_lanes_multiply_the_channels_of_their_own_group(
    cpu: CpuModel, channels: int, multiplied: int
) -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((96, channels, 3, 3), np.float32)
    operator = conv(weight, groups=96 // channels)
    layout = Blocked(
        element=FLOAT32, batch=1, channels=96, height=7, width=7, block=cpu.block(96, FLOAT32)
    )
    dense, shape = convolution.grouped_weight(operator, layout, layout, cpu)
    assert shape.reduction == 9 * multiplied
    assert pack_weights(dense, shape, 1).size == 96 * 9 * multiplied


def test_depthwise_weights_lie_by_block() -> None:
    weight = np.arange(5 * 4, dtype="float32").reshape(5, 1, 2, 2)
    layout = Blocked(element=FLOAT32, batch=1, channels=5, height=3, width=3, block=4)
    packed = depthwise.pack_weights(weight, layout)
    assert packed.shape == (2, 2, 2, 4)
    assert packed[0, 1, 0].tolist() == weight[:4, 0, 1, 0].tolist()
    assert packed[1, 0, 1].tolist() == [weight[4, 0, 0, 1], 0, 0, 0]


# ------------------------------------------------ pooling


def pool(**changes: object) -> Pooling:
    values: dict[str, object] = {
        "kind": "average",
        "kernel": (3, 3),
        "stride": (1, 1),
        "before": (1, 1),
        "after": (1, 1),
        "dilation": (1, 1),
        "count_padding": False,
    }
    return Pooling(**{**values, **changes})  # type: ignore[arg-type]


def test_border_windows_are_cut_to_the_image() -> None:
    runs = list(pooling._runs(0, pool(), size=5, out=5))
    assert [(run.first, run.count, run.taps, run.divisor) for run in runs] == [
        (0, 1, (1, 2), 2),
        (1, 3, (0, 1, 2), 3),
        (4, 1, (0, 1), 2),
    ]


def test_ceiling_mode_counts_padding_only_as_far_as_it_goes() -> None:
    operator = pool(kernel=(3, 3), stride=(2, 2), before=(0, 0), after=(1, 1), count_padding=True)
    runs = list(pooling._runs(0, operator, size=6, out=3))
    assert [(run.first, run.count, run.divisor) for run in runs] == [(0, 2, 3), (2, 1, 3)]


# ------------------------------------------------ assembly


def code(reduction: arm.Reduction, isa: arm.Isa, **changes: object) -> list[str]:
    values: dict[str, object] = {
        "isa": isa,
        "pixels": 4,
        "vectors": 2,
        "reduction": reduction,
        "finish": (),
        "out_step": 4096,
        "operand_step": 4096,
    }
    text = arm.AssemblyTile(**{**values, **changes}).llvm_ir("tile")  # type: ignore[arg-type]
    body = re.search(r'asm sideeffect "(.*?)"', text)
    assert body
    return body[1].split("\\0A")


ONE_BY_ONE = arm.Convolve(
    blocks=24,
    last_lanes=0,
    kernel=(1, 1),
    pixel_step=16,
    column_step=16,
    row_step=1024,
    plane_step=3136,
)


@pytest.mark.parametrize(
    ("cpu", "pixels", "vectors", "fma", "most"),
    [(CORTEX_A15, 4, 2, "vmla", 1.2), (CORTEX_A72, 7, 3, "fmla", 1.15)],
)
def test_hot_loop_is_arithmetic_and_never_touches_the_stack(
    cpu: CpuModel, pixels: int, vectors: int, fma: str, most: float
) -> None:
    isa = arm.isa_of(cpu, FLOAT32)
    assert isa is not None
    lines = code(ONE_BY_ONE, isa, pixels=pixels, vectors=vectors)
    start, end = lines.index("1:"), next(i for i, line in enumerate(lines) if "1b" in line)
    loop = lines[start + 1 : end + 1]
    arithmetic = [line for line in loop if line.startswith(fma)]
    # Two blocks of four channels per turn.
    assert len(arithmetic) == 2 * 4 * pixels * vectors
    assert len(loop) <= most * len(arithmetic)
    assert not [line for line in lines if "sp" in line.split()]


def test_armv7_takes_lanes_of_low_registers_only() -> None:
    isa = arm.isa_of(CORTEX_A9, FLOAT32)
    assert isa is not None
    kernel = arm.micro_kernel(CORTEX_A9, FLOAT32)
    assert kernel is not None
    assert kernel.fits(4, 2, isa.registers)
    assert not kernel.fits(4, 3, isa.registers)
    assert not kernel.fits(9, 1, isa.registers)
    for line in code(ONE_BY_ONE, isa, pixels=7, vectors=1):
        lane = re.search(r"d(\d+)\[", line)
        assert lane is None or int(lane[1]) < 16


def test_depthwise_loads_each_input_once() -> None:
    isa = arm.isa_of(CORTEX_A15, FLOAT32)
    assert isa is not None
    reduction = arm.Depthwise(kernel=(3, 3), stride=2, row_step=512)
    lines = code(reduction, isa, pixels=5, vectors=1)
    # The first product of each sum is written into it.
    products = [line.split(".")[0] for line in lines if line.startswith(("vmla", "vmul"))]
    assert (products.count("vmul"), products.count("vmla")) == (5, 5 * 8)
    loaded = sum(
        (int(match[2]) - int(match[1]) + 1) // 2
        for line in lines
        if line.startswith("vldmia $1")
        for match in re.finditer(r"d(\d+)-d(\d+)", line)
    )
    assert loaded == 3 * (4 * 2 + 3)


@pytest.mark.parametrize("pixels", [1, 2, 5, 7, 8])
@pytest.mark.parametrize(("cpu", "register"), [(CORTEX_A15, "q"), (CORTEX_A72, "v")])
def test_a_tile_adds_up_its_pixels_once_they_are_stored(
    cpu: CpuModel, register: str, pixels: int
) -> None:
    isa = arm.isa_of(cpu, FLOAT32)
    assert isa is not None
    reduction = arm.Depthwise(kernel=(3, 3), stride=1, row_step=512)
    values = {"pixels": pixels, "vectors": 1}
    plain = code(reduction, isa, **values)
    lines = code(reduction, isa, **values, total_step=64)
    assert len(lines) - len(plain) == pixels  # one addition less, and a store
    assert not [line for line in lines if "sp" in re.findall(r"\w+", line)]
    added, stored = lines[len(plain) : -1], lines[-1]
    # Registers are the names of the pixels they begin with.
    sums: dict[str, list[str]] = {}
    for line in added:
        to, *both = re.findall(rf"{register}(\d+)", line)
        sums[to] = [pixel for name in both for pixel in sums.get(name, [name])]
    first = isa.registers - pixels
    total = sums.get(str(first), [str(first)])
    assert sorted(map(int, total)) == list(range(first, isa.registers))
    assert re.findall(r"d(\d+)-" if register == "q" else r"q(\d+)", stored) == [
        str(2 * first if register == "q" else first)
    ]


@pytest.mark.parametrize("cpu", [CORTEX_A9, CORTEX_A15, CORTEX_A53_32, CORTEX_A53, CORTEX_A72])
def test_rows_of_tiles_need_no_more_core_registers_than_there_are(cpu: CpuModel) -> None:
    isa = arm.isa_of(cpu, FLOAT32)
    assert isa is not None
    tile = arm.AssemblyTile(
        isa=isa,
        pixels=isa.most_depthwise(7),
        vectors=1,
        # No step is one that an instruction can hold.
        reduction=arm.Depthwise(kernel=(7, 7), stride=1, row_step=0x12350),
        finish=(arm.EpilogueStep(name="add"), arm.EpilogueStep(name="maximum")),
        out_step=0,
        operand_step=0,
        total_step=16,
    )
    rows = arm.TileRows(
        tile=tile,
        width=3 * tile.pixels + 1,
        source_step=0x12350,
        target_step=0x23450,
        operand_step=0x34560,
        total_step=0x45670,
    )
    text = rows.llvm_ir("rows")
    # Of 16 one is the program counter, one the stack's, one the frame's. 64-bit code has 31, of
    # which the platform, the frame and LLVM keep some.
    assert text.count("=&r") <= (13 if isa.name == "armv7" else 24)
    body = re.search(r'asm sideeffect "(.*?)"', text)
    assert body
    assert not re.search(r"\bsp\b", body[1])


@pytest.mark.parametrize(("columns", "most"), [(7, 1), (8, 1), (9, 2)])
def test_armv7_loads_no_more_registers_than_an_instruction_can(columns: int, most: int) -> None:
    isa = arm.isa_of(CORTEX_A15, FLOAT32)
    assert isa is not None
    reduction = arm.Depthwise(kernel=(1, columns), stride=1, row_step=0)
    lines = code(reduction, isa, pixels=2, vectors=1)
    loads = [re.search(r"vldmia \$2!, {{?d(\d+)-d(\d+)", line) for line in lines]
    sizes = [int(found[2]) - int(found[1]) + 1 for found in loads if found]
    assert len(sizes) == most
    assert sum(sizes) == 2 * columns
    assert max(sizes) <= 16  # VLDM, ARM Architecture Reference Manual, ARMv7-A, A8.8.332


# ------------------------------------------------ fusion


def value(name: str, *shape: int) -> Value:
    return Value(name=name, shape=shape)


def pointwise(
    name: str, source: Value, output: Value, *arguments: object, operands: tuple[Value, ...] = ()
) -> Layer:
    operation = Operation(name=name, arguments=(Step(index=0), *arguments))  # type: ignore[arg-type]
    return Layer(
        operator=Pointwise(),
        inputs=(source,),
        output=output,
        expression=(operation,),
        operands=operands,
    )


def convolved(source: Value, output: Value) -> Layer:
    return Layer(operator=conv(np.ones((4, 4, 1, 1), "float32")), inputs=(source,), output=output)


def test_bias_scale_and_activation_go_into_the_convolution() -> None:
    x, a, b, c, d = (value(name, 1, 4, 5, 5) for name in "xabcd")
    bias = Layer(
        operator=Pointwise(),
        inputs=(a,),
        output=b,
        expression=(Operation(name="add", arguments=(Step(index=0), PerChannel(index=0))),),
        constants=(np.arange(4, dtype="float32"),),
    )
    scale = pointwise("multiply", b, c, Scalar(value=2.0))
    relu = pointwise("maximum", c, d, Scalar(value=0.0))
    (layer,) = fuse([convolved(x, a), bias, scale, relu], [d])
    assert isinstance(layer.operator, Convolution)
    assert layer.operator.bias is not None
    assert layer.operator.bias.tolist() == [0, 2, 4, 6]
    assert (layer.operator.weight == 2).all()
    assert layer.output is d
    assert [operation.name for operation in layer.expression] == ["maximum"]


def test_the_later_of_two_convolutions_takes_the_sum() -> None:
    x, a, b, c = (value(name, 1, 4, 5, 5) for name in "xabc")
    layers = [
        convolved(x, a),
        convolved(x, b),
        pointwise("add", a, c, Operand(index=0), operands=(b,)),
    ]
    first, second = fuse(layers, [c])
    assert first.output is a
    assert first.expression == ()
    assert second.output is c
    assert [operand is a for operand in second.operands] == [True]


def test_a_bias_behind_another_branch_is_its_own_convolutions() -> None:
    x, a, b, c, d, e, f = (value(name, 1, 4, 5, 5) for name in "xabcdef")
    layers = [
        convolved(x, a),
        convolved(x, b),
        pointwise("add", b, c, Scalar(value=2.0)),
        pointwise("add", a, d, Scalar(value=3.0)),
        pointwise("add", c, e, Operand(index=0), operands=(d,)),
        pointwise("maximum", e, f, Scalar(value=0.0)),
    ]
    first, second = fuse(layers, [f])
    assert isinstance(first.operator, Convolution)
    assert isinstance(second.operator, Convolution)
    biases = [layer.operator.bias for layer in (first, second)]
    assert [None if bias is None else bias.tolist() for bias in biases] == [[3] * 4, [2] * 4]
    assert first.expression == ()
    assert [operation.name for operation in second.expression] == ["add", "maximum"]


def test_a_value_read_elsewhere_is_not_fused_away() -> None:
    x, a, b, c = (value(name, 1, 4, 5, 5) for name in "xabc")
    layers = [
        convolved(x, a),
        pointwise("maximum", a, b, Scalar(value=0.0)),
        pointwise("multiply", a, c, Scalar(value=3.0)),
    ]
    assert len(fuse(layers, [b, c])) == 3
    # As a result of the function it has to be there, too.
    assert len(fuse(layers[:2], [a, b])) == 2


def test_a_value_and_its_gate_become_one_expression() -> None:
    x, a, b, c = (value(name, 1, 4, 5, 5) for name in "xabc")
    layers = [
        convolved(x, a),
        Layer(
            operator=Pointwise(),
            inputs=(a,),
            output=b,
            expression=(Operation(name="sigmoid", arguments=(Step(index=0),)),),
        ),
        pointwise("multiply", a, c, Operand(index=0), operands=(b,)),
    ]
    (layer,) = fuse(layers, [c])
    assert [operation.name for operation in layer.expression] == ["sigmoid", "multiply"]
    assert layer.expression[1].arguments == (Step(index=0), Step(index=1))
    assert layer.operands == ()


# ------------------------------------------------ transposed convolution


@pytest.mark.parametrize(
    ("kernel", "stride", "before", "out"),
    [
        ((3, 4), (2, 2), (1, 1), (12, 13)),
        ((5, 2), (3, 1), (2, 0), (14, 9)),
        ((2, 2), (2, 2), (0, 0), (8, 8)),
    ],
)
def test_phases_make_each_output_of_the_products_that_it_is_defined_by(
    kernel: tuple[int, int], stride: tuple[int, int], before: tuple[int, int], out: tuple[int, int]
) -> None:
    random = np.random.default_rng(0)
    weight, image = random.normal(size=(1, 1, *kernel)), random.normal(size=(6, 7))
    whole = np.zeros((40, 40))
    for i, j in np.ndindex(image.shape):
        y, x = i * stride[0], j * stride[1]
        whole[y : y + kernel[0], x : x + kernel[1]] += image[i, j] * weight[0, 0]
    expected = whole[before[0] :, before[1] :][: out[0], : out[1]]
    operator = TransposedConvolution(
        weight=weight, bias=None, stride=stride, before=before, dilation=(1, 1), groups=1
    )
    made, taps = np.full(out, np.nan), 0
    padded = np.pad(image, 20)
    for phase in transposed.phases(operator, out):
        taps += phase.convolution.weight.size
        part = np.zeros(phase.size)
        for i, j in np.ndindex(phase.convolution.kernel):
            top, left = phase.convolution.before
            down, across = 20 + i - top, 20 + j - left
            window = padded[down : down + phase.size[0], across : across + phase.size[1]]
            part += window * phase.convolution.weight[0, 0, i, j]
        made[phase.first[0] :: stride[0], phase.first[1] :: stride[1]] = part
    np.testing.assert_allclose(made, expected)
    assert taps == weight.size


def test_a_gate_goes_into_the_next_convolution() -> None:
    x, a, b, c = (value(name, 1, 4, 5, 5) for name in "xabc")
    gate = value("gate", 1, 4, 1, 1)
    layers = [
        convolved(x, a),
        Layer(operator=GlobalPooling(kind="average"), inputs=(a,), output=gate),
        pointwise("multiply", a, b, Operand(index=0, pixel=True), operands=(gate,)),
        convolved(b, c),
    ]
    *_, last = fuse(layers, [c])
    assert isinstance(last.operator, Convolution)
    assert last.operator.gated
    assert [item.name for item in last.inputs] == ["a", "gate"]
    # Not if the scaled image is read by others, too.
    kept = fuse(layers, [b, c])
    assert len(kept) == 4
    assert isinstance(kept[3].operator, Convolution)
    assert not kept[3].operator.gated
