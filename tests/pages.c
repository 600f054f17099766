/* A qemu-user plugin for 32-bit guests: counts instructions, and the pages of 4 KB that a program
 * touches. At its end it writes to the file that out= names: instructions, pages, pages written.
 *
 * The part of qemu-plugin.h that it needs (plugin interface 1, of qemu 7.2) is declared by hand,
 * for Debian ships no such header. */
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
enum { NO_REGISTERS = 0, READS_AND_WRITES = 3 };

extern void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id, translated_t callback);
extern void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *tb, executed_t callback,
                                                 int flags, void *data);
extern void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *insn, accessed_t callback,
                                             int flags, int which, void *data);
extern void qemu_plugin_register_atexit_cb(qemu_plugin_id_t id, exited_t callback, void *data);
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
extern struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb,
                                                        size_t index);
extern uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *insn);
extern unsigned qemu_plugin_mem_size_shift(qemu_plugin_meminfo_t info);
extern bool qemu_plugin_mem_is_store(qemu_plugin_meminfo_t info);

EXPORT int qemu_plugin_version = 1;

enum { PAGES = 1 << 20, TOUCHED = 1, WRITTEN = 2 };

struct block {
  uint64_t first, last, instructions;
};

static uint8_t pages[PAGES];
static uint64_t executed;
static char *out_path;

static void touch(uint64_t address, int how) { pages[address / 4096 % PAGES] |= how; }

static void on_access(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *data) {
  (void)cpu;
  (void)data;
  const int how = qemu_plugin_mem_is_store(info) ? TOUCHED | WRITTEN : TOUCHED;
  touch(address, how);
  touch(address + (1U << qemu_plugin_mem_size_shift(info)) - 1, how);
}

static void on_executed(unsigned cpu, void *data) {
  (void)cpu;
  const struct block *const block = data;
  touch(block->first, TOUCHED);
  touch(block->last, TOUCHED);
  executed += block->instructions;
}

/* Blocks stay until the end. */
static void on_translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb) {
  (void)id;
  const size_t count = qemu_plugin_tb_n_insns(tb);
  struct block *const block = malloc(sizeof *block);
  if (block == NULL) _exit(1);
  block->instructions = count;
  block->first = qemu_plugin_insn_vaddr(qemu_plugin_tb_get_insn(tb, 0));
  block->last = qemu_plugin_insn_vaddr(qemu_plugin_tb_get_insn(tb, count - 1));
  qemu_plugin_register_vcpu_tb_exec_cb(tb, on_executed, NO_REGISTERS, block);
  for (size_t i = 0; i < count; ++i) {
    qemu_plugin_register_vcpu_mem_cb(qemu_plugin_tb_get_insn(tb, i), on_access, NO_REGISTERS,
                                     READS_AND_WRITES, NULL);
  }
}

static void on_exit_write(qemu_plugin_id_t id, void *data) {
  (void)id;
  (void)data;
  int touched = 0, written = 0;
  for (size_t i = 0; i < PAGES; ++i) {
    touched += pages[i] != 0;
    written += (pages[i] & WRITTEN) != 0;
  }
  FILE *file = fopen(out_path, "w");
  if (file == NULL ||
      fprintf(file, "%llu %d %d\n", (unsigned long long)executed, touched, written) < 0 ||
      fclose(file) != 0) {
    perror(out_path);
    _exit(1);
  }
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const struct qemu_info *info, int argc,
                               char **argv) {
  (void)info;
  for (int i = 0; i < argc; ++i) {
    if (strncmp(argv[i], "out=", 4) == 0) out_path = strdup(argv[i] + 4);
  }
  if (out_path == NULL) {
    fputs("pages: no out=FILE\n", stderr);
    return 1;
  }
  qemu_plugin_register_vcpu_tb_trans_cb(id, on_translated);
  qemu_plugin_register_atexit_cb(id, on_exit_write, NULL);
  return 0;
}
