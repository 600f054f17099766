"""Cycles of one warm inference on a core that issues in order, estimated from what qemu executes.

program under qemu -> trace.c: sampled windows of instructions, and its caches' misses
                   -> trace: what lies between two marks, block by block
                   -> kernels.pipeline: instructions, and the windows' cycles on a core
                   -> estimate: cycles, memory traffic, a range of milliseconds, by kernel

docs/performance.md says what is in an estimate, and what is not.
"""
