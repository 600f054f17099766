"""The instruction counter and the hot loops, on programs whose figures are known."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from bench import arm, camera, mca
from bench.peers import Emulator
from edgepack.base.process import run
from edgepack.base.progress import NO_PROGRESS
from edgepack.boards import get_board
from edgepack.compiler import compile_model
from edgepack.cycles import trace
from edgepack.cycles.memories import MEMORIES
from edgepack.frontend.precision import Precision
from edgepack.model import ModelSpec
from edgepack.native.toolchain import select
from tests.example import load_build
from tests.onnx_models import Builder
from tests.support import require_plugins, require_tool
from tests.targets import save_cases

# The loop is two instructions: subs, bne.
COUNTED = """
#include <stdlib.h>
int main(int argc, char **argv) {
  (void)argc;
  int n = 1000 * atoi(argv[1]);
  __asm__ volatile("1: subs %0, %0, #1\\n bne 1b" : "+r"(n) : : "cc");
  return 0;
}
"""
HOT = """
#include <arm_neon.h>
float32x4_t sum(const float *x, int n) {
  float32x4_t total = vdupq_n_f32(0);
  for (int i = 0; i < n; ++i) total = vaddq_f32(total, vld1q_f32(x + 4 * i));
  return total;
}
"""


def test_instructions_are_counted_exactly(tmp_path: Path) -> None:
    compiler, qemu = require_tool("arm-linux-gnueabihf-gcc"), require_plugins("qemu-arm")
    source, program = tmp_path / "counted.c", tmp_path / "counted"
    source.write_text(COUNTED)
    run([compiler, "-O2", "-marm", "-static", source, "-o", program])

    def count(thousands: int) -> int:
        out = tmp_path / "count"
        plugin = f"{arm.build_plugin()},out={out}"
        run([qemu, "-plugin", plugin, program, str(thousands)])
        return int(out.read_text())

    # "2" and "4" are equally long, so that start and parsing cost the same.
    assert arm.difference(count, 2) == 2000


def test_a_camera_s_photo_takes_few_instructions(tmp_path: Path) -> None:
    """A JPEG of 12 megapixels with grain, to a tensor at 1/8 of its size, on ARMv7."""
    require_plugins("qemu-arm")
    board = get_board("rasp3b")
    chelsea = Image.open(load_build().fetch() / "chelsea.png").convert("RGB")
    large = np.asarray(ImageOps.fit(chelsea, camera.SIZE, Image.Resampling.BICUBIC), np.int16)
    grain = np.random.RandomState(3).normal(0, 5, large.shape[:2])[..., None]
    photo = tmp_path / "photo.jpg"
    noisy = Image.fromarray(np.clip(large + grain, 0, 255).astype(np.uint8))
    noisy.save(photo, quality=85, subsampling="4:2:0")
    assert photo.stat().st_size > 2_000_000
    root = Path(f"/usr/{board.triple}")  # Debian's, of the cross compiler
    count, tensor = camera.count_ours(Emulator(board=board, root=root), photo, NO_PROGRESS)
    assert tensor.shape == (1, 3, 224, 224)
    assert count <= 90_000_000


def test_the_hot_loop_of_a_library(tmp_path: Path) -> None:
    require_tool("llvm-mca")
    require_tool("llvm-objdump")
    compiler = require_tool("aarch64-linux-gnu-gcc")
    source, library = tmp_path / "hot.c", tmp_path / "hot.so"
    source.write_text(HOT)
    run([compiler, "-O2", "-fno-unroll-loops", "-shared", "-fPIC", source, "-o", library])
    (hottest,) = mca.analyse(library, get_board("rasp4b-64")).values()
    assert hottest.flop == 4  # one add of four lanes
    assert hottest.stack == 0
    # Each add waits for the one before it: five cycles on this core.
    assert hottest.cycles == pytest.approx(5, rel=0.05)


@pytest.mark.parametrize("name", ["pynq", "rasp3b", "rasp3b-64", "rasp4b-64"])
def test_our_loops_of_arithmetic_leave_the_stack_alone(tmp_path: Path, name: str) -> None:
    """Shapes where LLVM, left alone, keeps addresses or sums on the stack."""
    require_tool("llvm-mca")
    require_tool("llvm-objdump")
    net = Builder(seed=4)

    def depthwise(data: str, channels: int, size: int, stride: int = 1) -> str:
        return net.conv(data, channels, channels, size, group=channels, strides=[stride] * 2)

    narrow = net.op("Relu", net.conv("text", 8, 24, 1))
    swish = net.op("HardSwish", depthwise("middle", 40, 5))
    cases = {
        "3x3 of a wide row": net.op("Clip", depthwise(narrow, 24, 3)),
        "1x1 of few channels": net.op("HardSwish", depthwise(net.conv("text", 8, 32, 1), 32, 3)),
        "5x5 with its mean": net.op("GlobalAveragePool", swish),
        "3x3 strided": depthwise("middle", 40, 3, 2),
        "mean by itself": net.op("GlobalAveragePool", net.conv("last", 64, 64, 3)),
    }
    shapes = {"text": (1, 8, 12, 96), "middle": (1, 40, 14, 14), "last": (1, 64, 7, 7)}
    path = save_cases(tmp_path / "model.onnx", net, shapes, cases)
    board = get_board(name)
    out, toolchain = tmp_path / "out", select(board).toolchain
    # What nothing bounds has no large tiles of Winograd's.
    precision = Precision(bounded=frozenset(shapes))
    compiled = compile_model(ModelSpec(path=path), board, toolchain, out, precision=precision)
    hottest = mca.analyse(compiled.library, board)
    families = {mca.family(function) for function in hottest}
    assert {"conv1x1", "depthwise3x3", "depthwise5x5", "mean"} <= families
    # Of thousands of operations, as of a whole tile of Winograd's products, two addresses from the
    # stack are nothing.
    many = {name: loop.stack for name, loop in hottest.items() if 1000 * loop.stack > loop.flop}
    assert many == {}


# Between the first two readings of the clock 64 KiB and then 16 are read, and between the next two,
# twice, 64 KiB line by line; there is room for 32 KiB in the first cache.
TRACED = """
#include <sys/syscall.h>
#include <unistd.h>
static char data[65536] __attribute__((aligned(65536)));
static long time_[4];
static int lines(int count) {
  int sum = 0;
  for (int i = 0; i < count; ++i) sum += *(volatile char *)&data[64 * i];
  return sum;
}
int main(void) {
  int sum = 0;
  syscall(SYS_clock_gettime, 1, time_);
  sum += lines(1024) + lines(256);
  syscall(SYS_clock_gettime, 1, time_);
  sum += lines(1024) + lines(1024);
  syscall(SYS_clock_gettime, 1, time_);
  return sum;
}
"""


def test_a_trace_is_of_what_lies_between_two_marks(tmp_path: Path) -> None:
    compiler, qemu = require_tool("aarch64-linux-gnu-gcc"), require_plugins("qemu-aarch64")
    source, program, out = tmp_path / "traced.c", tmp_path / "traced", tmp_path / "trace"
    source.write_text(TRACED)
    run([compiler, "-O1", "-static", source, "-o", program])
    plugin = trace.build_plugin(Path(qemu))
    options = trace.options(out, trace.CLOCK["aarch64"], MEMORIES["rasp3b"], every=1000)
    run([qemu, "-plugin", f"{plugin},{options}", program])
    found = trace.read(out, "aarch64")
    # The first 256 lines are there from before. The least recently used go first, so that every
    # other line has gone when it is read again, but none from the second cache.
    assert found.sums["l1_misses"] == pytest.approx(2048 - 256, abs=10)
    assert found.sums["l2_misses"] < 10
    # The loop, whatever the compiler makes of it, runs 2048 times.
    loop = max(found.blocks.values(), key=lambda block: block.instructions)
    assert loop.count == pytest.approx(2048, abs=4)
    assert any(text.startswith("ldr") for text in loop.texts)
    assert trace.namer(found, program, {})(loop.pc) == "traced"
    assert found.instructions == sum(block.instructions for block in found.blocks.values())
    assert 4 <= len(found.windows) <= 12
    assert all(number in found.blocks for window in found.windows for number in window)
