"""The instruction counter and the hot loops, on programs whose figures are known."""

from pathlib import Path

import pytest

from bench import arm, mca
from edgepack.boards import get_board
from edgepack.process import run
from tests.support import require_tool

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
    compiler, qemu = require_tool("arm-linux-gnueabihf-gcc"), require_tool("qemu-arm")
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
