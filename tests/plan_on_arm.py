"""Run a compiled model's plan under qemu-user, in a program that holds nothing else.

The program is written in C from graph.json. It loads model.so, provides the
three functions kernels may call, runs every parallel loop as some tasks one
after the other, and writes the outputs.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edgepack.model.counts import ends_of, in_use

# dlpack.h, DLDataTypeCode
_CODES = {"f": 2, "i": 0, "u": 1, "b": 6}

_PROGRAM = r"""
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { int32_t type_index; uint32_t zero; union { int64_t i; void* p; } v; } Any;
typedef struct { uint8_t code, bits; uint16_t lanes; } Type;
typedef struct {
  void* data; int32_t device_type, device_id, ndim; Type dtype;
  int64_t* shape; int64_t* strides; uint64_t byte_offset;
} Tensor;
typedef int (*Kernel)(void*, const Any*, int32_t, Any*);
typedef struct { void* sync; int32_t num_task; } Env;
typedef int (*Lambda)(int, Env*, void*);

void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts, int32_t count) {
  fprintf(stderr, "%s: ", kind);
  for (int i = 0; i < count; ++i) if (parts[i]) fputs(parts[i], stderr);
  fputs("\n", stderr);
}
static int Launch(Lambda run, void* data, int tasks) {
  Env env = {0, @TASKS@};
  (void)tasks;
  for (int i = 0; i < @TASKS@; ++i) if (run(i, &env, data)) return -1;
  return 0;
}
static void* Alloc(int type, int id, uint64_t bytes, int code, int bits) {
  (void)type; (void)id; (void)code; (void)bits;
  return aligned_alloc(64, (bytes + 63) / 64 * 64);
}
static int Free(int type, int id, void* p) { (void)type; (void)id; free(p); return 0; }
static void Fill(void* library, const char* name, void* value) {
  void** slot = (void**)dlsym(library, name);
  if (slot) *slot = value;
}
static void Read(const char* path, void* data, size_t bytes) {
  FILE* f = fopen(path, "rb");
  if (!f || fread(data, 1, bytes, f) != bytes) {
    fprintf(stderr, "cannot read %s\n", path);
    exit(1);
  }
  fclose(f);
}
int main(void) {
  void* library = dlopen("./model.so", RTLD_NOW);
  if (!library) { fprintf(stderr, "%s\n", dlerror()); return 1; }
  Fill(library, "__TVMBackendParallelLaunch", (void*)Launch);
  Fill(library, "__TVMBackendAllocWorkspace", (void*)Alloc);
  Fill(library, "__TVMBackendFreeWorkspace", (void*)Free);
  uint8_t* arena = aligned_alloc(64, @ARENA@ + 64);
  uint8_t* params = aligned_alloc(64, @PARAMS@ + 64);
  memset(arena, 0xFF, @ARENA@);
  Read("params.bin", params, @PARAMS@);
  static int64_t shapes[][8] = {@SHAPES@};
  static Tensor tensors[] = {@TENSORS@};
@INPUTS@
@CALLS@
@OUTPUTS@
  return 0;
}
"""

_CALL = """  {{
    Any args[] = {{{args}}}, result = {{0}};
    Kernel kernel = (Kernel)dlsym(library, "__tvm_ffi_{kernel}");
    if (!kernel || kernel(0, args, {count}, &result)) {{
      fprintf(stderr, "{kernel} failed\\n");
      return 1;
    }}
  }}"""


def run_plan_on_arm(
    folder: Path,
    inputs: Sequence[np.ndarray],
    *,
    compiler: str,
    qemu: Sequence[str],
    work: Path,
    tasks: int = 2,
) -> list[np.ndarray]:
    """Outputs of one run; `compiler` is a cross C compiler, `qemu` the start of a command.

    Parallel loops run as `tasks` tasks. Without qemu and with the machine's own compiler the
    program runs right here.
    """
    graph = json.loads((folder / "graph.json").read_text())
    tensors, shapes = [], []
    for index, tensor in enumerate(graph["tensors"]):
        dtype = np.dtype(tensor["dtype"])
        shapes.append("{" + ", ".join(map(str, tensor["shape"] or [1])) + "}")
        tensors.append(
            f"{{0, 1, 0, {len(tensor['shape'])}, "
            f"{{{_CODES[dtype.kind]}, {dtype.itemsize * 8}, 1}}, shapes[{index}], 0, 0}}"
        )
    places = [
        f"  tensors[{i}].data = {t['storage']} + {t['offset']};"
        for i, t in enumerate(graph["tensors"])
    ]
    reads, writes = [], []
    for number, (index, value) in enumerate(zip(graph["inputs"], inputs, strict=True)):
        value.tofile(work / f"in{number}")
        reads.append(f'  Read("in{number}", tensors[{index}].data, {value.nbytes});')
    ends = ends_of(graph)
    for number, index in enumerate(ends):
        size = graph["tensors"][index]["bytes"]
        writes.append(
            f'  {{ FILE* f = fopen("out{number}", "wb"); '
            f"fwrite(tensors[{index}].data, 1, {size}, f); fclose(f); }}"
        )
    calls = [
        _CALL.format(
            kernel=call["kernel"],
            count=len(call["args"]),
            # kTVMFFIDLTensorPtr
            args=", ".join(f"{{7, 0, {{.p = &tensors[{arg}]}}}}" for arg in call["args"]),
        )
        for call in graph["calls"]
    ]
    program = _PROGRAM
    for key, value in {
        "@TASKS@": str(tasks),
        "@ARENA@": str(graph["arena_bytes"]),
        "@PARAMS@": str(graph["params_bytes"]),
        "@SHAPES@": ", ".join(shapes),
        "@TENSORS@": ", ".join(tensors),
        "@INPUTS@": "\n".join(places + reads),
        "@CALLS@": "\n".join(calls),
        "@OUTPUTS@": "\n".join(writes),
    }.items():
        program = program.replace(key, value)
    (work / "main.c").write_text(program)
    for name in ("model.so", "params.bin"):
        (work / name).write_bytes((folder / name).read_bytes())
    subprocess.run(
        [compiler, "-O1", "-w", "-rdynamic", "main.c", "-o", "main", "-ldl"], cwd=work, check=True
    )
    done = subprocess.run(
        [*qemu, "./main"], cwd=work, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    made = [
        np.fromfile(work / f"out{number}", graph["tensors"][index]["dtype"]).reshape(
            graph["tensors"][index]["shape"]
        )
        for number, index in enumerate(ends)
    ]
    return in_use(graph, made)
