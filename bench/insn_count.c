/* A qemu-user plugin that counts executed guest instructions and writes the sum at exit.
 *
 *   cc -O2 -fPIC -shared insn_count.c -o insn_count.so
 *   qemu-arm -plugin ./insn_count.so,out=FILE PROGRAM
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
struct qemu_plugin_tb;
struct qemu_info;

typedef void (*tb_translated_t)(qemu_plugin_id_t id, struct qemu_plugin_tb *tb);
typedef void (*exited_t)(qemu_plugin_id_t id, void *data);
enum qemu_plugin_op { QEMU_PLUGIN_INLINE_ADD_U64 };

extern void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id, tb_translated_t callback);
extern void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *tb,
                                                     enum qemu_plugin_op op, void *counter,
                                                     uint64_t amount);
extern void qemu_plugin_register_atexit_cb(qemu_plugin_id_t id, exited_t callback, void *data);
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);

EXPORT int qemu_plugin_version = 1;

/* Added to by generated code, without a lock: exact for programs of one thread only. */
static uint64_t executed;
static char *out_path;

/* A translation block is left early only by a fault, so its length is what it executes. */
static void on_translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb) {
  (void)id;
  qemu_plugin_register_vcpu_tb_exec_inline(tb, QEMU_PLUGIN_INLINE_ADD_U64, &executed,
                                           qemu_plugin_tb_n_insns(tb));
}

static void on_exit_write(qemu_plugin_id_t id, void *data) {
  (void)id;
  (void)data;
  FILE *file = fopen(out_path, "w");
  if (file == NULL || fprintf(file, "%llu\n", (unsigned long long)executed) < 0 ||
      fclose(file) != 0) {
    perror(out_path);
    _exit(1);
  }
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const struct qemu_info *info, int argc,
                               char **argv) {
  (void)info;
  for (int i = 0; i < argc; ++i) {
    if (strncmp(argv[i], "out=", 4) == 0) {
      out_path = strdup(argv[i] + 4);
    }
  }
  if (out_path == NULL) {
    fputs("insn_count: no out=FILE\n", stderr);
    return 1;
  }
  qemu_plugin_register_vcpu_tb_trans_cb(id, on_translated);
  qemu_plugin_register_atexit_cb(id, on_exit_write, NULL);
  return 0;
}
