/* Runs a compiled model's plan: what `edgepack` starts under an emulator, for one architecture.
 *
 *   plan_runner LIBRARY PARAMS PLAN TASKS CASES
 *
 * It is static, and so needs nothing of a device's system: it maps the kernel library by itself,
 * which asks for no more than memory functions, some of libm and an error function of tvm-ffi. PLAN
 * is graph.json as numbers (edgepack/native/emulate.py writes it). Case n's inputs are read from
 * in<n>.0, in<n>.1 ..., its outputs written to out<n>.0 ... Parallel loops run as TASKS tasks, one
 * after the other. Where the library lies is printed, for a plugin of the emulator that traces; right
 * before and after each case's kernels getppid is called, as a mark for it.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <inttypes.h>
#include <link.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* tvm-ffi's TVMFFIAny, dlpack's DLDataType and DLTensor, TVM's parallel environment. */
typedef struct {
  int32_t type;
  uint32_t zero;
  union {
    int64_t number;
    void* pointer;
  } value;
} Any;
typedef struct {
  uint8_t code, bits;
  uint16_t lanes;
} Type;
typedef struct {
  void* data;
  int32_t device_type, device_id, dimensions;
  Type type;
  int64_t* shape;
  int64_t* strides;
  uint64_t offset;
} Tensor;
typedef struct {
  void* sync;
  int32_t tasks;
} Environment;
typedef int (*Kernel)(void*, const Any*, int32_t, Any*);
typedef int (*Task)(int, Environment*, void*);
enum { kTensor = 7, kCpu = 1 };

static int g_tasks;

static void Die(const char* what, const char* which) {
  fprintf(stderr, "%s: %s\n", what, which);
  exit(3);
}

/* ---- what kernels call */

static void SetError(const char* kind, const char** parts, int32_t count) {
  fprintf(stderr, "%s: ", kind);
  for (int32_t i = 0; i < count; ++i) {
    if (parts[i] != NULL) fputs(parts[i], stderr);
  }
  fputs("\n", stderr);
}

static int Launch(Task run, void* data, int tasks) {
  (void)tasks;
  Environment environment = {NULL, g_tasks};
  for (int i = 0; i < g_tasks; ++i) {
    if (run(i, &environment, data) != 0) return -1;
  }
  return 0;
}

static void* Allocate(int type, int id, uint64_t bytes, int code, int bits) {
  (void)type, (void)id, (void)code, (void)bits;
  return aligned_alloc(64, (bytes + 63) / 64 * 64);
}

static int Release(int type, int id, void* memory) {
  (void)type, (void)id;
  free(memory);
  return 0;
}

typedef struct {
  const char* name;
  void* address;
} Symbol;

static const Symbol kGiven[] = {
    {"TVMFFIErrorSetRaisedFromCStrParts", (void*)SetError},
    {"memset", (void*)memset},
    {"memcpy", (void*)memcpy},
    {"memmove", (void*)memmove},
    {"exp", (void*)exp},
    {"expf", (void*)expf},
    {"log", (void*)log},
    {"logf", (void*)logf},
    {"pow", (void*)pow},
    {"powf", (void*)powf},
    {"tanh", (void*)tanh},
    {"tanhf", (void*)tanhf},
    {"erf", (void*)erf},
    {"erff", (void*)erff},
    {"fmod", (void*)fmod},
    {"fmodf", (void*)fmodf},
    {"sin", (void*)sin},
    {"sinf", (void*)sinf},
    {"cos", (void*)cos},
    {"cosf", (void*)cosf},
    {"tan", (void*)tan},
    {"tanf", (void*)tanf},
    {"asin", (void*)asin},
    {"asinf", (void*)asinf},
    {"acos", (void*)acos},
    {"acosf", (void*)acosf},
    {"atan", (void*)atan},
    {"atanf", (void*)atanf},
    {"atan2", (void*)atan2},
    {"atan2f", (void*)atan2f},
    {"sinh", (void*)sinh},
    {"sinhf", (void*)sinhf},
    {"cosh", (void*)cosh},
    {"coshf", (void*)coshf},
    {"asinh", (void*)asinh},
    {"asinhf", (void*)asinhf},
    {"acosh", (void*)acosh},
    {"acoshf", (void*)acoshf},
    {"atanh", (void*)atanh},
    {"atanhf", (void*)atanhf},
    {"floor", (void*)floor},
    {"floorf", (void*)floorf},
    {"ceil", (void*)ceil},
    {"ceilf", (void*)ceilf},
    {"round", (void*)round},
    {"roundf", (void*)roundf},
    {"nearbyint", (void*)nearbyint},
    {"nearbyintf", (void*)nearbyintf},
    {"rint", (void*)rint},
    {"rintf", (void*)rintf},
    {"trunc", (void*)trunc},
    {"truncf", (void*)truncf},
    {"fma", (void*)fma},
    {"fmaf", (void*)fmaf},
    {"exp2", (void*)exp2},
    {"exp2f", (void*)exp2f},
    {"log2", (void*)log2},
    {"log2f", (void*)log2f},
    {"log10", (void*)log10},
    {"log10f", (void*)log10f},
    {"log1p", (void*)log1p},
    {"log1pf", (void*)log1pf},
    {"expm1", (void*)expm1},
    {"expm1f", (void*)expm1f},
    {"sqrt", (void*)sqrt},
    {"sqrtf", (void*)sqrtf},
};

/* ---- the kernel library */

typedef struct {
  char* base;
  const ElfW(Sym) * symbols;
  const char* names;
  size_t count;
} Library;

static char* ReadAll(const char* path, size_t* size) {
  FILE* file = fopen(path, "rb");
  if (file == NULL || fseek(file, 0, SEEK_END) != 0) Die("cannot read", path);
  const long end = ftell(file);
  rewind(file);
  char* data = end < 0 ? NULL : aligned_alloc(64, ((size_t)end + 64) / 64 * 64);
  if (data == NULL || fread(data, 1, (size_t)end, file) != (size_t)end) Die("cannot read", path);
  fclose(file);
  *size = (size_t)end;
  return data;
}

static void* Find(const Library* library, const char* name) {
  for (size_t i = 0; i < library->count; ++i) {
    const ElfW(Sym)* symbol = &library->symbols[i];
    if (symbol->st_shndx != SHN_UNDEF && strcmp(library->names + symbol->st_name, name) == 0) {
      return library->base + symbol->st_value;
    }
  }
  return NULL;
}

static void* Resolve(const Library* library, size_t index) {
  const ElfW(Sym)* symbol = &library->symbols[index];
  const char* name = library->names + symbol->st_name;
  if (symbol->st_shndx != SHN_UNDEF) return library->base + symbol->st_value;
  for (size_t i = 0; i < sizeof kGiven / sizeof kGiven[0]; ++i) {
    if (strcmp(kGiven[i].name, name) == 0) return kGiven[i].address;
  }
  if (ELF32_ST_BIND(symbol->st_info) == STB_WEAK) return NULL;
  Die("no such function", name);
  return NULL;
}

/* The entries of one relocation table; `added` says whether they hold their addend (Elf_Rela). */
static void Relocate(const Library* library, const char* table, size_t bytes, int added) {
  const size_t size = added ? sizeof(ElfW(Rela)) : sizeof(ElfW(Rel));
  for (size_t at = 0; at + size <= bytes; at += size) {
    const ElfW(Rela)* entry = (const void*)(table + at);
    uintptr_t* place = (uintptr_t*)(library->base + entry->r_offset);
    const uintptr_t addend = added ? (uintptr_t)entry->r_addend : *place;
#ifdef __aarch64__
    const size_t index = ELF64_R_SYM(entry->r_info), type = ELF64_R_TYPE(entry->r_info);
    const int relative = type == R_AARCH64_RELATIVE, absolute = type == R_AARCH64_ABS64;
    const int slot = type == R_AARCH64_GLOB_DAT || type == R_AARCH64_JUMP_SLOT;
#else
    const size_t index = ELF32_R_SYM(entry->r_info), type = ELF32_R_TYPE(entry->r_info);
    const int relative = type == R_ARM_RELATIVE, absolute = type == R_ARM_ABS32;
    const int slot = type == R_ARM_GLOB_DAT || type == R_ARM_JUMP_SLOT;
#endif
    if (relative) {
      *place = (uintptr_t)library->base + addend;
    } else if (absolute) {
      *place = (uintptr_t)Resolve(library, index) + addend;
    } else if (slot) {
      *place = (uintptr_t)Resolve(library, index);
    } else {
      Die("a relocation that is not known, in", library->names);
    }
  }
}

static Library Load(const char* path) {
  size_t size = 0;
  const char* file = ReadAll(path, &size);
  const ElfW(Ehdr)* header = (const void*)file;
  const ElfW(Phdr)* segments = (const void*)(file + header->e_phoff);
  size_t end = 0;
  for (int i = 0; i < header->e_phnum; ++i) {
    const size_t last = segments[i].p_vaddr + segments[i].p_memsz;
    if (segments[i].p_type == PT_LOAD && last > end) end = last;
  }
  Library library = {0};
  library.base =
      mmap(NULL, end, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (library.base == MAP_FAILED) Die("no memory for", path);
  const ElfW(Dyn)* dynamic = NULL;
  for (int i = 0; i < header->e_phnum; ++i) {
    char* to = library.base + segments[i].p_vaddr;
    if (segments[i].p_type == PT_LOAD) {
      memcpy(to, file + segments[i].p_offset, segments[i].p_filesz);
    } else if (segments[i].p_type == PT_DYNAMIC) {
      dynamic = (const void*)to;
    }
  }
  __builtin___clear_cache(library.base, library.base + end);
  if (dynamic == NULL) Die("no dynamic section in", path);
  size_t values[DT_JMPREL + 1] = {0};
  for (; dynamic->d_tag != DT_NULL; ++dynamic) {
    if (dynamic->d_tag <= DT_JMPREL) values[dynamic->d_tag] = dynamic->d_un.d_val;
  }
  library.symbols = (const void*)(library.base + values[DT_SYMTAB]);
  library.names = library.base + values[DT_STRTAB];
  /* The second word of DT_HASH is the number of symbols. */
  if (values[DT_HASH] == 0) Die("no DT_HASH in", path);
  library.count = ((const uint32_t*)(library.base + values[DT_HASH]))[1];
  if (values[DT_REL] != 0) {
    Relocate(&library, library.base + values[DT_REL], values[DT_RELSZ], 0);
  }
  if (values[DT_RELA] != 0) {
    Relocate(&library, library.base + values[DT_RELA], values[DT_RELASZ], 1);
  }
  if (values[DT_JMPREL] != 0) {
    Relocate(&library, library.base + values[DT_JMPREL], values[DT_PLTRELSZ],
             values[DT_PLTREL] == DT_RELA);
  }
  return library;
}

static void Fill(const Library* library, const char* name, void* value) {
  void** slot = Find(library, name);
  if (slot != NULL) *slot = value;
}

/* ---- the plan */

static int64_t Number(FILE* plan) {
  int64_t value = 0;
  if (fscanf(plan, "%" SCNd64, &value) != 1) Die("cannot read", "the plan");
  return value;
}

static void Move(const char* kind, int number, int index, const Tensor* tensor, size_t bytes) {
  char name[64];
  snprintf(name, sizeof name, "%s%d.%d", kind, number, index);
  const int reads = strcmp(kind, "in") == 0;
  FILE* file = fopen(name, reads ? "rb" : "wb");
  if (file == NULL) Die("cannot open", name);
  const size_t moved =
      reads ? fread(tensor->data, 1, bytes, file) : fwrite(tensor->data, 1, bytes, file);
  if (moved != bytes || fclose(file) != 0) Die("too short", name);
}

typedef struct {
  Kernel kernel;
  char name[1024];
  int count;
  Any* arguments;
} Call;

/* Calls that are done as long as a truth value is true, at most so often; by their first call,
 * outer ones first. */
typedef struct {
  int first, end;
  int64_t most;
  const unsigned char* goes;
} Block;

static const Call* g_calls;
static const Block* g_blocks;
static int g_blocks_count;

/* `inner` is the first block from call `at` on. */
static void Do(int at, int end, int inner) {
  while (at < end) {
    if (inner == g_blocks_count || g_blocks[inner].first > at) {
      Any result = {0};
      const Call* call = &g_calls[at++];
      if (call->kernel(NULL, call->arguments, call->count, &result) != 0) Die("failed", call->name);
      continue;
    }
    const Block* block = &g_blocks[inner];
    for (int64_t turn = 0; *block->goes != 0 && (turn == 0 || block->most > 1); ++turn) {
      if (turn == block->most) Die("too many turns", g_calls[block->first].name);
      Do(block->first, block->end, inner + 1);
    }
    at = block->end;
    while (inner < g_blocks_count && g_blocks[inner].first < at) ++inner;
  }
}

int main(int argc, char** argv) {
  if (argc != 6) Die("usage", "plan_runner LIBRARY PARAMS PLAN TASKS CASES");
  const Library library = Load(argv[1]);
  printf("%p\n", (void*)library.base);
  size_t params_bytes = 0;
  char* params = ReadAll(argv[2], &params_bytes);
  FILE* plan = fopen(argv[3], "r");
  if (plan == NULL) Die("cannot read", argv[3]);
  g_tasks = atoi(argv[4]);
  const int cases = atoi(argv[5]);
  Fill(&library, "__TVMBackendParallelLaunch", (void*)Launch);
  Fill(&library, "__TVMBackendAllocWorkspace", (void*)Allocate);
  Fill(&library, "__TVMBackendFreeWorkspace", (void*)Release);

  const size_t arena_bytes = (size_t)Number(plan);
  char* arena = aligned_alloc(64, (arena_bytes + 64) / 64 * 64);
  const int tensors_count = (int)Number(plan);
  Tensor* tensors = calloc((size_t)tensors_count, sizeof *tensors);
  size_t* sizes = calloc((size_t)tensors_count, sizeof *sizes);
  if (arena == NULL || tensors == NULL || sizes == NULL) Die("no memory for", "the tensors");
  for (int i = 0; i < tensors_count; ++i) {
    const int is_param = (int)Number(plan);
    tensors[i].data = (is_param ? params : arena) + Number(plan);
    sizes[i] = (size_t)Number(plan);
    tensors[i].device_type = kCpu;
    tensors[i].type = (Type){(uint8_t)Number(plan), 0, 1};
    tensors[i].type.bits = (uint8_t)Number(plan);
    tensors[i].dimensions = (int32_t)Number(plan);
    tensors[i].shape = calloc((size_t)tensors[i].dimensions + 1, sizeof(int64_t));
    for (int d = 0; d < tensors[i].dimensions; ++d) tensors[i].shape[d] = Number(plan);
  }
  int* ends[2];
  int ends_count[2];
  for (int side = 0; side < 2; ++side) {
    ends_count[side] = (int)Number(plan);
    ends[side] = calloc((size_t)ends_count[side] + 1, sizeof(int));
    for (int i = 0; i < ends_count[side]; ++i) ends[side][i] = (int)Number(plan);
  }
  const int calls_count = (int)Number(plan);
  Call* calls = calloc((size_t)calls_count + 1, sizeof *calls);
  for (int i = 0; i < calls_count; ++i) {
    char symbol[1100];
    if (fscanf(plan, "%1023s", calls[i].name) != 1) Die("cannot read", "the plan");
    snprintf(symbol, sizeof symbol, "__tvm_ffi_%s", calls[i].name);
    calls[i].kernel = (Kernel)Find(&library, symbol);
    if (calls[i].kernel == NULL) Die("no such kernel", calls[i].name);
    calls[i].count = (int)Number(plan);
    calls[i].arguments = calloc((size_t)calls[i].count + 1, sizeof(Any));
    for (int a = 0; a < calls[i].count; ++a) {
      calls[i].arguments[a].type = kTensor;
      calls[i].arguments[a].value.pointer = &tensors[Number(plan)];
    }
  }
  g_calls = calls;
  g_blocks_count = (int)Number(plan);
  Block* blocks = calloc((size_t)g_blocks_count + 1, sizeof *blocks);
  for (int i = 0; i < g_blocks_count; ++i) {
    blocks[i].first = (int)Number(plan);
    blocks[i].end = (int)Number(plan);
    blocks[i].goes = tensors[Number(plan)].data;
    blocks[i].most = Number(plan);
  }
  g_blocks = blocks;
  fclose(plan);

  for (int number = 0; number < cases; ++number) {
    /* Bytes that are read before they were written show up as NaN. */
    memset(arena, 0xFF, arena_bytes);
    for (int i = 0; i < ends_count[0]; ++i) {
      Move("in", number, i, &tensors[ends[0][i]], sizes[ends[0][i]]);
    }
    getppid();
    Do(0, calls_count, 0);
    getppid();
    for (int i = 0; i < ends_count[1]; ++i) {
      Move("out", number, i, &tensors[ends[1][i]], sizes[ends[1][i]]);
    }
  }
  return 0;
}
