"""Cycles of one warm inference, estimated: `./dev bench --cycles`, see docs/performance.md.

program under qemu -> trace.c: sampled windows of instructions, and its caches' misses
                   -> trace: what lies between two marks, block by block
                   -> instructions: what each reads, writes and needs
                   -> pipeline, with a core of `cores`: cycles of the windows
                   -> estimate: cycles, memory traffic, a range of milliseconds, by kernel
"""
