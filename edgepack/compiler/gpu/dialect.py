"""One text for CUDA C and OpenCL C: the words that differ, as macros."""

from __future__ import annotations

import re
from collections.abc import Iterable

CUDA, OPENCL = "cuda", "opencl"

_CUDA = """\
// CUDA C, for NVRTC: no header is read.
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#define INT64 int64_t
#define UINT64 uint64_t
// With OpenCL they are the CPU's.
#define DOUBLES
#define KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)
#define GLOBAL
#define RESTRICT __restrict__
#define SHARED __shared__
#define SHARED_POINTER
#define FUNCTION static __device__ __forceinline__
#define BARRIER() __syncthreads()
#define THREAD ((int)threadIdx.x)
#define GROUP_X ((int)blockIdx.x)
#define GROUP_Y ((int)blockIdx.y)
#define GROUP_Z ((int)blockIdx.z)
#define MULTIPLY_ADD(a, b, c) fmaf(a, b, c)
#define EXP(x) expf(x)
#define LOG(x) logf(x)
#define SIN(x) sinf(x)
#define COS(x) cosf(x)
#define ERF(x) erff(x)
#define TANH(x) tanhf(x)
#define SQRT(x) sqrtf(x)
#define ABS(x) fabsf(x)
#define INFINITE __int_as_float(0x7f800000)
// As math_constants.h of the toolkit, which TVM's text expects.
#define CUDART_INF_F INFINITE
#define CUDART_NAN_F __int_as_float(0x7fffffff)
#define CUDART_INF __longlong_as_double(0x7ff0000000000000LL)
#define CUDART_NAN __longlong_as_double(0xfff8000000000000LL)
#define OVERLOADED
// A number of which the compiler does not know how it was made: no part of another operation.
FUNCTION float fence(float x) {
  asm("" : "+f"(x));
  return x;
}
FUNCTION double fence(double x) {
  asm("" : "+d"(x));
  return x;
}
// Halves are stored only. What was loaded becomes a float32 later: the load is waited for then.
typedef ushort HALF;
typedef ushort HALF_LOADED;
typedef ushort4 HALF4_LOADED;
FUNCTION float half_value(ushort bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
FUNCTION ushort half_bits(float value) {
  ushort bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
FUNCTION float4 half4_value(ushort4 bits) {
  return make_float4(half_value(bits.x), half_value(bits.y), half_value(bits.z),
                     half_value(bits.w));
}
#define HALF_AT(p, i) (p)[i]
#define HALF4_AT(p, i) ((const ushort4*)(p))[i]
#define HALF_VALUE(loaded) half_value(loaded)
#define HALF4_VALUE(loaded) half4_value(loaded)
#define STORE_LOADED(p, i, loaded) ((ushort*)(p))[i] = loaded
#define MMA_MEMORY(threads)
#define MMA(d, a, low, high)                                                 \\
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "                   \\
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"      \\
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                       \\
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(low), "r"(high))
// Float32 of which the last 13 bits are zeros.
FUNCTION uint tf32_bits(float value) {
  uint bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return bits;
}
#define STORE_TF32(p, i, value) (p)[i] = tf32_bits(value)
#define MMA_TF32(d, a, low, high)                                            \\
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "                  \\
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"      \\
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                       \\
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(low), "r"(high))
#define LOAD_HALF(p, i) half_value((p)[i])
#define STORE_HALF(p, i, value) (p)[i] = half_bits(value)
"""

_OPENCL = """\
// OpenCL C 1.2
#define INT64 long
#define UINT64 ulong
#define KERNEL(threads) __kernel __attribute__((reqd_work_group_size(threads, 1, 1))) void
#define GLOBAL __global
#define RESTRICT restrict
#define SHARED __local
#define SHARED_POINTER __local
#define FUNCTION static inline
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE)
#define THREAD ((int)get_local_id(0))
#define GROUP_X ((int)get_group_id(0))
#define GROUP_Y ((int)get_group_id(1))
#define GROUP_Z ((int)get_group_id(2))
#define MULTIPLY_ADD(a, b, c) fma(a, b, c)
#define EXP(x) exp((float)(x))
#define LOG(x) log((float)(x))
#define SIN(x) sin((float)(x))
#define COS(x) cos((float)(x))
#define ERF(x) erf((float)(x))
#define TANH(x) tanh((float)(x))
#define SQRT(x) sqrt((float)(x))
#define ABS(x) fabs((float)(x))
#define INFINITE INFINITY
#define OVERLOADED __attribute__((overloadable))
// A product of its own: only within one expression it could be part of a sum.
FUNCTION float OVERLOADED fence(float x) {
  const float known = x;
  return known;
}
#ifdef cl_khr_fp64
FUNCTION double OVERLOADED fence(double x) {
  const double known = x;
  return known;
}
#endif
// To store halves and to load them needs no extension.
#define HALF half
#define HALF_LOADED float
#define HALF4_LOADED float4
#define HALF_AT(p, i) vload_half(i, p)
#define HALF4_AT(p, i) vload_half4(i, p)
#define HALF_VALUE(loaded) (loaded)
#define HALF4_VALUE(loaded) (loaded)
// What NVIDIA's tensor cores do, thread by thread as their manual has it: no driver of OpenCL
// offers it, but kernels written for them can be tried.
#define STORE_LOADED(p, i, loaded) vstore_half_rte(loaded, i, (__local half*)(p))
#define MMA_MEMORY(threads) __local uint mma_a[threads][4], mma_b[threads][2];
#define MMA_OF(d, a, low, high, depth, product) {                            \\
    vstore4(a, 0, mma_a[THREAD]);                                            \\
    mma_b[THREAD][0] = low;                                                  \\
    mma_b[THREAD][1] = high;                                                 \\
    BARRIER();                                                               \\
    for (int e = 0; e < 4; ++e) {                                            \\
      const int warp_ = THREAD / 32 * 32, row_ = warp_ + THREAD % 32 / 4 * 4;\\
      const int column_ = warp_ + (THREAD % 4 * 2 + e % 2) * 4;              \\
      for (int k_ = 0; k_ < depth; ++k_) d[e] += product;                    \\
    }                                                                        \\
    BARRIER();                                                               \\
  }
#define MMA(d, a, low, high)                                                 \\
  MMA_OF(d, a, low, high, 16,                                                \\
         vload_half((k_ / 8 * 2 + e / 2) * 2 + k_ % 2,                       \\
                    (const __local half*)mma_a[row_ + k_ % 8 / 2]) *         \\
         vload_half(k_ / 8 * 2 + k_ % 2,                                     \\
                    (const __local half*)mma_b[column_ + k_ % 8 / 2]))
#define MMA_TF32(d, a, low, high)                                            \\
  MMA_OF(d, a, low, high, 8,                                                 \\
         as_float(mma_a[row_ + k_ % 4][k_ / 4 * 2 + e / 2]) *                \\
         as_float(mma_b[column_ + k_ % 4][k_ / 4]))
FUNCTION uint tf32_bits(float value) {
  return isnan(value) ? as_uint(value) : (as_uint(value) + 0x1000u) & 0xffffe000u;
}
#define STORE_TF32(p, i, value) (p)[i] = tf32_bits(value)
#define LOAD_HALF(p, i) vload_half(i, p)
#define STORE_HALF(p, i, value) vstore_half_rte(value, i, p)
"""

# Where TVM knows no function of OpenCL's it calls C's of the same meaning.
_OF_C = (
    *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "cos", "cosh", "erf"),
    *("exp", "exp2", "fabs", "floor", "fmod", "log", "log10", "log1p", "log2", "pow", "rint"),
    *("round", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
)
_OPENCL += "".join(f"#define {name}f {name}\n" for name in _OF_C) + "#define nearbyintf rint\n"

# NaN is the result wherever an operand is one, as in ONNX.
_COMMON = """\
FUNCTION float maximum(float a, float b) { return a > b || a != a ? a : b; }
FUNCTION float minimum(float a, float b) { return a < b || a != a ? a : b; }
FUNCTION int min_int(int a, int b) { return a < b ? a : b; }
// What TVM's text calls, of all its types.
#define EXTREMA(type)                                                        \\
  FUNCTION OVERLOADED type larger(type a, type b) { return a > b || a != a ? a : b; } \\
  FUNCTION OVERLOADED type smaller(type a, type b) { return a < b || a != a ? a : b; }
EXTREMA(float)
EXTREMA(int)
EXTREMA(uint)
EXTREMA(INT64)
EXTREMA(UINT64)
#ifdef DOUBLES
EXTREMA(double)
#endif
FUNCTION float sigmoid(float x) { return 1.0f / (1.0f + EXP(-x)); }
FUNCTION float gelu(float x) { return 0.5f * x * (1.0f + ERF(x * 0.70710678f)); }
FUNCTION float gelu_tanh(float x) {
  return 0.5f * x * (1.0f + TANH(0.79788456f * (x + 0.044715f * x * x * x)));
}
"""


def whole_text(api: str, parts: Iterable[str]) -> str:
    """The text of all kernels, each part once, in the words of `api`."""
    head = _CUDA if api == CUDA else _OPENCL
    texts = dict.fromkeys(parts)
    if api == OPENCL:
        texts = dict.fromkeys(map(with_offsets, texts))
    return "\n".join([head, _COMMON, *texts])


_FUNCTION = re.compile(
    r"(?P<head>(?:KERNEL\(\d+\)|__kernel void)\s+\w+)\((?P<arguments>[^()]*)\)\s*(?P<end>[;{])"
)
_ARGUMENT = re.compile(
    r"\s*(?P<const>const )?(?:GLOBAL|__global) (?P<type>\w+)\* "
    r"(?:RESTRICT |restrict )?(?P<name>\w+)\s*"
)


def with_offsets(text: str) -> str:
    """The text of OpenCL functions whose tensors are a buffer and a place in it.

    A buffer has no address that one could add to, and a part of one begins where the device likes.
    """

    def changed(found: re.Match[str]) -> str:
        if found["end"] == ";":
            return ""  # a declaration of what is defined below
        arguments = [_ARGUMENT.fullmatch(item) for item in found["arguments"].split(",")]
        known = [item for item in arguments if item is not None]
        assert len(known) == len(arguments), found["arguments"]
        taken = ", ".join(f"__global uchar* {a['name']}_in, ulong {a['name']}_at" for a in known)
        made = " ".join(
            f"{a['const'] or ''}__global {a['type']}* {a['name']} = "
            f"({a['const'] or ''}__global {a['type']}*)({a['name']}_in + {a['name']}_at);"
            for a in known
        )
        return f"{found['head']}({taken}) {{\n  {made}\n"

    return _FUNCTION.sub(changed, text)
