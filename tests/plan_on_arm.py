"""Run a compiled model's plan under qemu-user, in a program that holds nothing else.

The program is in C and reads any plan, written out as numbers. It loads model.so, provides
the three functions kernels may call, runs every parallel loop as some tasks one after the
other, and writes the outputs. With a guard each tensor lies alone between pages that nobody may
touch: at their "end", or at their "start".
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgepack.model.counts import ends_of, in_use

# dlpack.h, DLDataTypeCode
_CODES = {"f": 2, "i": 0, "u": 1, "b": 6}

_PROGRAM = r"""
#include <dlfcn.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct { int32_t type_index; uint32_t zero; union { int64_t i; void* p; } v; } Any;
typedef struct { uint8_t code, bits; uint16_t lanes; } Type;
typedef struct {
  void* data; int32_t device_type, device_id, ndim; Type dtype;
  int64_t* shape; int64_t* strides; uint64_t byte_offset;
} Tensor;
typedef int (*Kernel)(void*, const Any*, int32_t, Any*);
typedef struct { void* sync; int32_t num_task; } Env;
typedef int (*Lambda)(int, Env*, void*);

static int tasks;

void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts, int32_t count) {
  fprintf(stderr, "%s: ", kind);
  for (int i = 0; i < count; ++i) if (parts[i]) fputs(parts[i], stderr);
  fputs("\n", stderr);
}
static int Launch(Lambda run, void* data, int wanted) {
  Env env = {0, tasks};
  (void)wanted;
  for (int i = 0; i < tasks; ++i) if (run(i, &env, data)) return -1;
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
static void Fail(const char* what, const char* name) {
  fprintf(stderr, "%s: %s\n", what, name);
  exit(1);
}
static void Transfer(const char* path, void* data, size_t bytes, int write) {
  FILE* f = fopen(path, write ? "wb" : "rb");
  size_t done = !f ? 0 : write ? fwrite(data, 1, bytes, f) : fread(data, 1, bytes, f);
  if (!f || done != bytes) Fail("cannot read or write", path);
  fclose(f);
}
static int64_t Number(FILE* plan) {
  int64_t value;
  if (fscanf(plan, "%" SCNd64, &value) != 1) Fail("a number is missing", "plan.txt");
  return value;
}
typedef struct {
  char* name;
  Kernel kernel;
  int arity;
  Any* args;
} Call;
typedef struct {
  int first, end, most;
  const uint8_t* goes;
} Block;
static Call* calls;
static Block* blocks;
static int blocks_count;
static void Run(int at, int end, int inner) {
  while (at < end) {
    if (inner == blocks_count || blocks[inner].first > at) {
      Call* call = &calls[at++];
      Any result = {0};
      if (call->kernel(0, call->args, call->arity, &result)) Fail("failed", call->name);
      continue;
    }
    Block* block = &blocks[inner];
    for (int turn = 0; *block->goes && (!turn || block->most > 1); ++turn) {
      if (turn == block->most) Fail("too many turns", "plan.txt");
      Run(block->first, block->end, inner + 1);
    }
    at = block->end;
    while (inner < blocks_count && blocks[inner].first < at) ++inner;
  }
}
typedef struct {
  int in_arena;
  size_t offset, bytes;
  uint8_t* data;
} Place;
static uint8_t* Alone(size_t bytes, int at_end) {
  size_t page = sysconf(_SC_PAGESIZE), size = (bytes + 63) / 64 * 64;
  size_t whole = (size + page - 1) / page * page;
  uint8_t* start = mmap(0, whole + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) Fail("no memory", "for a tensor");
  if (whole) mprotect(start + page, whole, PROT_READ | PROT_WRITE);
  memset(start + page, 0xFF, whole);
  return start + page + (at_end ? whole - size : 0);
}
/* Each tensor apart from all but those that it is a part of. */
static void Spread(Place* places, int count, const uint8_t* params, int at_end) {
  for (int pass = 0; pass < 2; ++pass) {
    for (int i = 0; i < count; ++i) {
      Place *mine = &places[i], *whole = mine;
      for (int k = 0; k < count; ++k) {
        Place* other = &places[k];
        if (other->in_arena == mine->in_arena && other->offset <= mine->offset &&
            other->offset + other->bytes >= mine->offset + mine->bytes &&
            (other->bytes > whole->bytes || (other->bytes == whole->bytes && other < whole))) {
          whole = other;
        }
      }
      if (pass == 0 && whole == mine) {
        mine->data = Alone(mine->bytes, at_end);
        if (!mine->in_arena) memcpy(mine->data, params + mine->offset, mine->bytes);
      }
      if (pass == 1) mine->data = whole->data + (mine->offset - whole->offset);
    }
  }
}
int main(int argc, char** argv) {
  void* library = dlopen("./model.so", RTLD_NOW);
  if (!library) Fail("cannot load", dlerror());
  Fill(library, "__TVMBackendParallelLaunch", (void*)Launch);
  Fill(library, "__TVMBackendAllocWorkspace", (void*)Alloc);
  Fill(library, "__TVMBackendFreeWorkspace", (void*)Free);
  FILE* plan = fopen("plan.txt", "r");
  if (!plan) Fail("cannot open", "plan.txt");
  tasks = Number(plan);
  size_t arena_bytes = Number(plan), params_bytes = Number(plan);
  uint8_t* arena = aligned_alloc(64, (arena_bytes + 127) / 64 * 64);
  uint8_t* params = aligned_alloc(64, (params_bytes + 127) / 64 * 64);
  memset(arena, 0xFF, arena_bytes);
  Transfer("params.bin", params, params_bytes, 0);
  int count = Number(plan);
  Tensor* tensors = calloc(count + 1, sizeof(Tensor));
  Place* places = calloc(count + 1, sizeof(Place));
  for (int i = 0; i < count; ++i) {
    Tensor* t = &tensors[i];
    int code = Number(plan), bits = Number(plan);
    t->device_type = 1;
    t->dtype = (Type){code, bits, 1};
    t->ndim = Number(plan);
    t->shape = calloc(t->ndim + 1, sizeof(int64_t));
    for (int k = 0; k < t->ndim; ++k) t->shape[k] = Number(plan);
    places[i].in_arena = Number(plan);
    places[i].offset = Number(plan);
    places[i].bytes = Number(plan);
    places[i].data = (places[i].in_arena ? arena : params) + places[i].offset;
  }
  if (argc > 1) Spread(places, count, params, !strcmp(argv[1], "end"));
  for (int i = 0; i < count; ++i) tensors[i].data = places[i].data;
  char name[512];
  int inputs = Number(plan);
  for (int i = 0; i < inputs; ++i) {
    int tensor = Number(plan);
    snprintf(name, sizeof name, "in%d", i);
    Transfer(name, tensors[tensor].data, places[tensor].bytes, 0);
  }
  int calls_count = Number(plan);
  calls = calloc(calls_count + 1, sizeof(Call));
  for (int i = 0; i < calls_count; ++i) {
    char symbol[512];
    if (fscanf(plan, "%480s", symbol) != 1) Fail("a kernel is missing", "plan.txt");
    snprintf(name, sizeof name, "__tvm_ffi_%s", symbol);
    calls[i].name = strdup(name);
    calls[i].arity = Number(plan);
    calls[i].args = calloc(calls[i].arity + 1, sizeof(Any));
    // kTVMFFIDLTensorPtr
    for (int k = 0; k < calls[i].arity; ++k) {
      calls[i].args[k] = (Any){7, 0, {.p = &tensors[Number(plan)]}};
    }
    calls[i].kernel = (Kernel)dlsym(library, name);
    if (!calls[i].kernel) Fail("no such kernel", name);
  }
  blocks_count = Number(plan);
  blocks = calloc(blocks_count + 1, sizeof(Block));
  for (int i = 0; i < blocks_count; ++i) {
    blocks[i].first = Number(plan);
    blocks[i].end = Number(plan);
    blocks[i].goes = tensors[Number(plan)].data;
    blocks[i].most = Number(plan);
  }
  Run(0, calls_count, 0);
  int outputs = Number(plan);
  for (int i = 0; i < outputs; ++i) {
    int tensor = Number(plan);
    snprintf(name, sizeof name, "out%d", i);
    Transfer(name, tensors[tensor].data, places[tensor].bytes, 1);
  }
  return 0;
}
"""


def build_program(compiler: str, folder: Path) -> Path:
    """The program that runs any plan, by a C compiler, as `folder`/main."""
    (folder / "main.c").write_text(_PROGRAM)
    subprocess.run(
        [compiler, "-O1", "-w", "-rdynamic", "main.c", "-o", "main", "-ldl"], cwd=folder, check=True
    )
    return folder / "main"


def _plan_text(graph: dict[str, Any], tasks: int) -> str:
    """The plan as the numbers that the program reads, in its order."""
    lines: list[list[object]] = [[tasks, graph["arena_bytes"], graph["params_bytes"]]]
    lines.append([len(graph["tensors"])])
    for tensor in graph["tensors"]:
        dtype, shape = np.dtype(tensor["dtype"]), tensor["shape"]
        place = [int(tensor["storage"] == "arena"), tensor["offset"], tensor["bytes"]]
        lines.append([_CODES[dtype.kind], dtype.itemsize * 8, len(shape), *shape, *place])
    lines.append([len(graph["inputs"]), *graph["inputs"]])
    lines.append([len(graph["calls"])])
    lines += [[call["kernel"], len(call["args"]), *call["args"]] for call in graph["calls"]]
    blocks = graph.get("blocks", [])
    lines.append([len(blocks)])
    lines += [[block[key] for key in ("first", "end", "condition", "most")] for block in blocks]
    ends = ends_of(graph)
    lines.append([len(ends), *ends])
    return "\n".join(" ".join(map(str, line)) for line in lines) + "\n"


def run_plan_on_arm(
    folder: Path,
    inputs: Sequence[np.ndarray],
    *,
    compiler: str,
    qemu: Sequence[str],
    work: Path,
    tasks: int = 2,
    program: Path | None = None,
) -> list[np.ndarray]:
    """Outputs of one run; `compiler` is a cross C compiler, `qemu` the start of a command.

    Parallel loops run as `tasks` tasks. Without qemu and with the machine's own compiler the
    program runs right here. `program` is what `build_program` made, if there is one already.
    """
    prepare(folder, inputs, work, tasks)
    done = run_program([*qemu, program or build_program(compiler, work)], work)
    assert done.returncode == 0, done.stderr
    return outputs_of(folder, work)


def prepare(folder: Path, inputs: Sequence[np.ndarray], work: Path, tasks: int = 2) -> None:
    """Put what the program reads into `work`."""
    graph = json.loads((folder / "graph.json").read_text())
    for number, value in enumerate(inputs):
        value.tofile(work / f"in{number}")
    (work / "plan.txt").write_text(_plan_text(graph, tasks))
    for name in ("model.so", "params.bin"):
        (work / name).write_bytes((folder / name).read_bytes())


def run_program(
    command: Sequence[str | Path], work: Path, timeout_s: float = 600
) -> subprocess.CompletedProcess[str]:
    """How the program ended in `work`."""
    return subprocess.run(
        command, cwd=work, capture_output=True, text=True, timeout=timeout_s, check=False
    )


def outputs_of(folder: Path, work: Path) -> list[np.ndarray]:
    """What the program wrote."""
    graph = json.loads((folder / "graph.json").read_text())
    made = [
        np.fromfile(work / f"out{number}", graph["tensors"][index]["dtype"]).reshape(
            graph["tensors"][index]["shape"]
        )
        for number, index in enumerate(ends_of(graph))
    ]
    return in_use(graph, made)
