/* A plugin of QEMU that counts executed instructions.
 *
 * It prints them at every call of getppid (since the one before), and the sum at the end; with the
 * argument blocks=1 the sums of blocks of code by their address too. Only what is used of QEMU's
 * plugin interface (version 1, https://www.qemu.org/docs/master/devel/tcg-plugins.html) is declared.
 */
#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef uint64_t qemu_plugin_id_t;
typedef struct qemu_info_t qemu_info_t;
struct qemu_plugin_tb;
enum qemu_plugin_op { QEMU_PLUGIN_INLINE_ADD_U64 };
typedef void (*tb_trans_t)(qemu_plugin_id_t, struct qemu_plugin_tb *);
typedef void (*syscall_t)(qemu_plugin_id_t, unsigned, int64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                          uint64_t, uint64_t, uint64_t, uint64_t);
typedef void (*atexit_t)(qemu_plugin_id_t, void *);
extern void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, tb_trans_t);
extern void qemu_plugin_register_vcpu_syscall_cb(qemu_plugin_id_t, syscall_t);
extern void qemu_plugin_register_atexit_cb(qemu_plugin_id_t, atexit_t, void *);
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
extern uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *);
extern void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *, enum qemu_plugin_op, void *,
                                                     uint64_t);
int qemu_plugin_version = 1;

enum { GETPPID_X86_64 = 110, GETPPID_AARCH64 = 173, BLOCKS = 1 << 20 };
static uint64_t total, last;
static int64_t mark = GETPPID_AARCH64;
static struct { uint64_t address, count; } blocks[BLOCKS];
static int known, wanted;

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
  const uint64_t n = qemu_plugin_tb_n_insns(tb);
  (void)id;
  qemu_plugin_register_vcpu_tb_exec_inline(tb, QEMU_PLUGIN_INLINE_ADD_U64, &total, n);
  if (wanted && known < BLOCKS) {
    blocks[known].address = qemu_plugin_tb_vaddr(tb);
    qemu_plugin_register_vcpu_tb_exec_inline(tb, QEMU_PLUGIN_INLINE_ADD_U64, &blocks[known++].count, n);
  }
}

static void called(qemu_plugin_id_t id, unsigned cpu, int64_t number, uint64_t a, uint64_t b, uint64_t c,
                   uint64_t d, uint64_t e, uint64_t f, uint64_t g, uint64_t h)
{
  (void)id, (void)cpu, (void)a, (void)b, (void)c, (void)d, (void)e, (void)f, (void)g, (void)h;
  if (number != mark)
    return;
  fprintf(stderr, "since the mark before: %" PRIu64 "\n", total - last);
  last = total;
}

static void ended(qemu_plugin_id_t id, void *data)
{
  (void)id, (void)data;
  fprintf(stderr, "instructions: %" PRIu64 "\n", total);
  for (int i = 0; i < known; i++)
    if (blocks[i].count)
      fprintf(stderr, "block %" PRIx64 ": %" PRIu64 "\n", blocks[i].address, blocks[i].count);
}

int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv)
{
  const char *target = *(const char *const *)info; /* its first member */
  if (strcmp(target, "x86_64") == 0)
    mark = GETPPID_X86_64;
  for (int i = 0; i < argc; i++)
    wanted |= strcmp(argv[i], "blocks=1") == 0 || strcmp(argv[i], "blocks=on") == 0;
  qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
  qemu_plugin_register_vcpu_syscall_cb(id, called);
  qemu_plugin_register_atexit_cb(id, ended, NULL);
  return 0;
}
