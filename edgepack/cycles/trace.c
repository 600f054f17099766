/* A qemu-user plugin that samples the instructions a program executes, and plays its caches.
 *
 *   cc -O2 -fPIC -shared -DPLUGIN_API=1 trace.c -o trace.so
 *   qemu-arm -plugin ./trace.so,out=FILE,mark=113:403,every=100000,length=400,... PROGRAM
 *
 * What is reported lies between the last two system calls whose number is among `mark`: a warm
 * inference. A window of `length` instructions is sampled in every `every`; the caches are played
 * from the first mark on, and nothing slows the program down before it. For programs of one thread.
 *
 * FILE, a line each, fields after the tag:
 *   S NAME VALUE                       sums: instructions, loads, misses, lines written back
 *   B ID PC COUNT MISSES LINES INSNS TEXT   a translated block: how often it ran, how often it missed
 *                                      the first cache, the lines that it read from memory, its
 *                                      instructions, each after a tab
 *   W ID...                            a window: the blocks it ran
 *   G BASE                             what the guest's addresses lie above the machine's
 *   M LINE                             a line of the machine's /proc/self/maps
 *
 * The part of qemu-plugin.h that it needs is declared by hand, for Debian 12 ships no such header. It
 * is the same in interface 1, of qemu 7.2, and interface 2, the oldest that qemu 9 and later take. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

typedef uint64_t qemu_plugin_id_t;
typedef uint32_t qemu_plugin_meminfo_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_info;

typedef void (*translated_t)(qemu_plugin_id_t id, struct qemu_plugin_tb *tb);
typedef void (*executed_t)(unsigned cpu, void *data);
typedef void (*accessed_t)(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *data);
typedef void (*exited_t)(qemu_plugin_id_t id, void *data);
typedef void (*called_t)(qemu_plugin_id_t id, unsigned cpu, int64_t number, uint64_t a1,
                         uint64_t a2, uint64_t a3, uint64_t a4, uint64_t a5, uint64_t a6,
                         uint64_t a7, uint64_t a8);
enum { NO_REGISTERS = 0, READS_AND_WRITES = 3 };

extern void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id, translated_t callback);
extern void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *tb, executed_t callback,
                                                 int flags, void *data);
extern void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *insn, accessed_t callback,
                                             int flags, int which, void *data);
extern void qemu_plugin_register_vcpu_syscall_cb(qemu_plugin_id_t id, called_t callback);
extern void qemu_plugin_register_atexit_cb(qemu_plugin_id_t id, exited_t callback, void *data);
extern void qemu_plugin_reset(qemu_plugin_id_t id, void (*done)(qemu_plugin_id_t id));
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
extern uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *tb);
extern struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb,
                                                        size_t index);
extern char *qemu_plugin_insn_disas(const struct qemu_plugin_insn *insn);
extern void *qemu_plugin_insn_haddr(const struct qemu_plugin_insn *insn);
extern uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *insn);
extern unsigned qemu_plugin_mem_size_shift(qemu_plugin_meminfo_t info);
extern bool qemu_plugin_mem_is_store(qemu_plugin_meminfo_t info);

#ifndef PLUGIN_API
#define PLUGIN_API 1
#endif
EXPORT int qemu_plugin_version = PLUGIN_API;

enum { LINE = 64, MAX_MARKS = 8 };

/* What happened in an interval. */
struct sums {
  uint64_t instructions, loads, stores, l1_misses, l2_misses, l2_written_back;
};

struct block {
  uint64_t pc, instructions;
  uint32_t number;
  char *text;
  /* In the interval under way, whose number `interval` is, and in the one that ended last. */
  unsigned interval;
  uint64_t count, misses, lines, last_count, last_misses, last_lines;
  unsigned last_interval;
};

/* Block numbers of all windows of an interval, each window's after their number. */
struct windows {
  uint32_t *items;
  size_t used, size;
};

/* Least recently used goes first; lines are numbered by address. */
struct cache {
  uint64_t ways, sets, *lines;
  uint8_t *dirty;
};

static char *out_path;
static int64_t marks[MAX_MARKS];
static int mark_count;
static uint64_t every = 100000, length = 400;
static struct cache l1 = {4, 0, NULL, NULL}, l2 = {16, 0, NULL, NULL};
static uint64_t l1_bytes = 32 * 1024, l2_bytes = 512 * 1024;

static struct block **blocks;
static size_t block_count, block_room;
static struct sums sums, last_sums;
static struct windows windows, last_windows;
static unsigned interval = 1, last_interval;
static uint64_t next_window, sampled;
static size_t window_start;
static bool sampling, marked;
static uint64_t guest_base;
static char *maps;

static void *checked(void *memory) {
  if (memory == NULL) {
    perror("trace");
    _exit(1);
  }
  return memory;
}

static void push(struct windows *list, uint32_t item) {
  if (list->used == list->size) {
    list->size = list->size ? 2 * list->size : 4096;
    list->items = checked(realloc(list->items, list->size * sizeof *list->items));
  }
  list->items[list->used++] = item;
}

static void prepare(struct cache *cache, uint64_t bytes) {
  cache->sets = bytes / LINE / cache->ways;
  cache->lines = checked(malloc(cache->sets * cache->ways * sizeof *cache->lines));
  memset(cache->lines, 0xff, cache->sets * cache->ways * sizeof *cache->lines);
  cache->dirty = checked(calloc(cache->sets * cache->ways, 1));
}

/* Whether `line` is in the cache; it is afterwards. `evicted` is a changed line that had to go. */
static bool find(struct cache *cache, uint64_t line, bool store, uint64_t *evicted) {
  uint64_t *lines = cache->lines + line % cache->sets * cache->ways;
  uint8_t *dirty = cache->dirty + line % cache->sets * cache->ways;
  uint64_t at = 0;
  while (at < cache->ways - 1 && lines[at] != line) ++at;
  const bool hit = lines[at] == line;
  const bool changed = store || (hit && dirty[at]);
  *evicted = !hit && dirty[at] ? lines[at] : UINT64_MAX;
  memmove(lines + 1, lines, at * sizeof *lines);
  memmove(dirty + 1, dirty, at);
  lines[0] = line;
  dirty[0] = changed;
  return hit;
}

static void touch(struct block *block, uint64_t line, bool store) {
  uint64_t evicted, evicted2;
  if (find(&l1, line, store, &evicted)) return;
  ++sums.l1_misses;
  ++block->misses;
  if (evicted != UINT64_MAX && !find(&l2, evicted, true, &evicted2) && evicted2 != UINT64_MAX) {
    ++sums.l2_written_back;
  }
  if (find(&l2, line, false, &evicted2)) return;
  ++sums.l2_misses;
  ++block->lines;
  if (evicted2 != UINT64_MAX) ++sums.l2_written_back;
}

static void on_access(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *data) {
  (void)cpu;
  const uint64_t last = address + (1u << qemu_plugin_mem_size_shift(info)) - 1;
  const bool store = qemu_plugin_mem_is_store(info);
  ++*(store ? &sums.stores : &sums.loads);
  touch(data, address / LINE, store);
  if (last / LINE != address / LINE) touch(data, last / LINE, store);
}

static void on_executed(unsigned cpu, void *data) {
  (void)cpu;
  struct block *block = data;
  if (block->interval != interval) {
    if (block->interval == last_interval) {
      block->last_interval = block->interval;
      block->last_count = block->count;
      block->last_misses = block->misses;
      block->last_lines = block->lines;
    }
    block->interval = interval;
    block->count = block->misses = block->lines = 0;
  }
  ++block->count;
  if (!sampling && sums.instructions >= next_window) {
    sampling = true;
    sampled = 0;
    window_start = windows.used;
    push(&windows, 0);
    /* Half of the distance to one and a half, so that no period of the program is met. */
    next_window = sums.instructions + every / 2 + (next_window * 2654435761u >> 7) % every;
  }
  sums.instructions += block->instructions;
  if (sampling) {
    push(&windows, block->number);
    sampled += block->instructions;
    if (sampled >= length) {
      windows.items[window_start] = (uint32_t)(windows.used - window_start - 1);
      sampling = false;
    }
  }
}

static void on_translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb) {
  (void)id;
  struct block *block = checked(calloc(1, sizeof *block));
  size_t size = 0;
  FILE *text = checked(open_memstream(&block->text, &size));
  block->number = (uint32_t)block_count;
  block->pc = qemu_plugin_tb_vaddr(tb);
  block->instructions = qemu_plugin_tb_n_insns(tb);
  for (size_t i = 0; i < block->instructions; ++i) {
    struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
    char *words = qemu_plugin_insn_disas(insn);
    fprintf(text, "\t%s", words != NULL ? words : "?");
    free(words);
    qemu_plugin_register_vcpu_mem_cb(insn, on_access, NO_REGISTERS, READS_AND_WRITES, block);
    guest_base = (uint64_t)(uintptr_t)qemu_plugin_insn_haddr(insn) - qemu_plugin_insn_vaddr(insn);
  }
  fclose(text);
  if (block_count == block_room) {
    block_room = block_room ? 2 * block_room : 4096;
    blocks = checked(realloc(blocks, block_room * sizeof *blocks));
  }
  blocks[block_count++] = block;
  qemu_plugin_register_vcpu_tb_exec_cb(tb, on_executed, NO_REGISTERS, block);
}

static void on_reset(qemu_plugin_id_t id);

/* While the interval's libraries are still there. */
static void read_maps(void) {
  FILE *file = checked(fopen("/proc/self/maps", "r"));
  size_t used = 0, room = 0;
  do {
    room += 65536;
    maps = checked(realloc(maps, room + 1));
    used += fread(maps + used, 1, room - used, file);
  } while (used == room);
  maps[used] = '\0';
  fclose(file);
}

static void on_call(qemu_plugin_id_t id, unsigned cpu, int64_t number, uint64_t a1, uint64_t a2,
                    uint64_t a3, uint64_t a4, uint64_t a5, uint64_t a6, uint64_t a7, uint64_t a8) {
  (void)cpu, (void)a1, (void)a2, (void)a3, (void)a4, (void)a5, (void)a6, (void)a7, (void)a8;
  bool found = false;
  for (int i = 0; i < mark_count; ++i) found = found || marks[i] == number;
  if (!found) return;
  if (!marked) {
    marked = true;
    qemu_plugin_reset(id, on_reset);
    return;
  }
  if (sampling) windows.used = window_start;
  sampling = false;
  last_interval = interval++;
  last_sums = sums;
  memset(&sums, 0, sizeof sums);
  struct windows ended = windows;
  windows = last_windows;
  windows.used = 0;
  last_windows = ended;
  read_maps();
  next_window = every / 2;
}

static void write_sums(FILE *file) {
  const struct sums *s = &last_sums;
  fprintf(file, "S instructions %llu\n", (unsigned long long)s->instructions);
  fprintf(file, "S loads %llu\n", (unsigned long long)s->loads);
  fprintf(file, "S stores %llu\n", (unsigned long long)s->stores);
  fprintf(file, "S l1_misses %llu\n", (unsigned long long)s->l1_misses);
  fprintf(file, "S l2_misses %llu\n", (unsigned long long)s->l2_misses);
  fprintf(file, "S l2_written_back %llu\n", (unsigned long long)s->l2_written_back);
}

static void write_blocks(FILE *file) {
  for (size_t i = 0; i < block_count; ++i) {
    const struct block *b = blocks[i];
    const bool now = b->interval == last_interval, before = b->last_interval == last_interval;
    if (!now && !before) continue;
    fprintf(file, "B %u %llx %llu %llu %llu %llu%s\n", b->number, (unsigned long long)b->pc,
            (unsigned long long)(now ? b->count : b->last_count),
            (unsigned long long)(now ? b->misses : b->last_misses),
            (unsigned long long)(now ? b->lines : b->last_lines),
            (unsigned long long)b->instructions, b->text);
  }
}

static void write_windows(FILE *file) {
  for (size_t at = 0; at < last_windows.used;) {
    fputc('W', file);
    for (size_t left = last_windows.items[at++]; left > 0; --left) {
      fprintf(file, " %u", last_windows.items[at++]);
    }
    fputc('\n', file);
  }
}

static void write_maps(FILE *file) {
  fprintf(file, "G %llx\n", (unsigned long long)guest_base);
  for (char *line = strtok(maps, "\n"); line != NULL; line = strtok(NULL, "\n")) {
    if (strchr(line, '/') != NULL) fprintf(file, "M %s\n", line);
  }
}

static void on_exit_write(qemu_plugin_id_t id, void *data) {
  (void)id;
  (void)data;
  FILE *file = checked(fopen(out_path, "w"));
  write_sums(file);
  write_blocks(file);
  write_windows(file);
  write_maps(file);
  if (ferror(file) || fclose(file) != 0) {
    perror(out_path);
    _exit(1);
  }
}

/* All that was translated before is forgotten, and translated again with callbacks. */
static void on_reset(qemu_plugin_id_t id) {
  qemu_plugin_register_vcpu_tb_trans_cb(id, on_translated);
  qemu_plugin_register_vcpu_syscall_cb(id, on_call);
  qemu_plugin_register_atexit_cb(id, on_exit_write, NULL);
}

static bool is_number(const char *word, const char *name, uint64_t *value) {
  const size_t size = strlen(name);
  if (strncmp(word, name, size) != 0) return false;
  *value = strtoull(word + size, NULL, 10);
  return true;
}

static bool is_option(const char *word) {
  if (strncmp(word, "out=", 4) == 0) return (out_path = strdup(word + 4)) != NULL;
  if (strncmp(word, "mark=", 5) == 0) {
    for (char *at = (char *)word + 4; *at != '\0' && mark_count < MAX_MARKS;) {
      marks[mark_count++] = strtoll(at + 1, &at, 10);
    }
    return true;
  }
  return is_number(word, "every=", &every) || is_number(word, "length=", &length) ||
         is_number(word, "l1=", &l1_bytes) || is_number(word, "l1_ways=", &l1.ways) ||
         is_number(word, "l2=", &l2_bytes) || is_number(word, "l2_ways=", &l2.ways);
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const struct qemu_info *info, int argc,
                               char **argv) {
  (void)info;
  for (int i = 0; i < argc; ++i) {
    if (!is_option(argv[i])) {
      fprintf(stderr, "trace: unknown option: %s\n", argv[i]);
      return 1;
    }
  }
  if (out_path == NULL || mark_count == 0 || every == 0) {
    fputs("trace: out=FILE and mark=NUMBER are needed\n", stderr);
    return 1;
  }
  prepare(&l1, l1_bytes);
  prepare(&l2, l2_bytes);
  next_window = every / 2;
  qemu_plugin_register_vcpu_syscall_cb(id, on_call);
  return 0;
}
