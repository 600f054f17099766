"""Types of a tensor's elements, as far as layouts and kernels care."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Element:
    """`name` is numpy's and TVM's, `bytes` the size, `accumulator` the name of the type that
    arithmetic on such elements is done in, unless a micro-kernel says otherwise."""

    name: str
    bytes: int
    accumulator: str

    def lanes(self, vector_bytes: int) -> int:
        """How many fill a vector."""
        return vector_bytes // self.bytes

    def __str__(self) -> str:
        return self.name


# IEEE 754 binary32: products are added in the type itself (FMLA, VFMADD).
FLOAT32 = Element("float32", 4, "float32")
# IEEE 754 binary16. All AArch64 CPUs, and those of ARMv7 that have the half-precision extension of
# VFPv3, convert it; with Armv8.2-A's FEAT_FP16 they compute in it, too (FMLA of .8h; Arm ARM
# DDI 0487, C7.2).
FLOAT16 = Element("float16", 2, "float32")
# Products of two 8-bit integers are added up in 32 bits by the dot products of Armv8.2-A (SDOT;
# DDI 0487, C7.2), the matrix instructions of FEAT_I8MM (SMMLA) and AVX512-VNNI (VPDPBUSD).
INT8 = Element("int8", 1, "int32")

# Sums of products of these.
INT32 = Element("int32", 4, "int32")

# By name; int8 has no kernels.
ELEMENTS = {element.name: element for element in (FLOAT32, FLOAT16, INT8)}
