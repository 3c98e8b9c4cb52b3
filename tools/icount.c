/* QEMU TCG plugin that counts the instructions of every vCPU of an emulated guest, exactly.
 *
 *   -plugin .../icount.so,out=FILE[,count=callback|inline]
 *
 * FILE is created at every start and removed at a clean exit. It has a header of 64 bytes, then 64 bytes
 * for every vCPU that the guest can ever have, in the byte order of the host:
 *   header: u64 MAGIC, u32 VERSION, u32 number of vCPUs, u32 process id of QEMU, u32 1 if inline
 *   vCPU:   u64 instructions so far
 * The file appears under its name only when it is complete.
 *
 * When a translation block is entered, its number of instructions is added. "inline" translates one
 * addition to a fixed address into the block. This is cheap, but works only for a single vCPU, because all
 * vCPUs share the blocks. "callback" calls a function with the vCPU's index. Without count=, the guest's
 * maximum number of vCPUs decides. A block that a page fault interrupts is counted in full.
 *
 * This uses QEMU's plugin interface, version 1 (QEMU 4.2 to 8.2), for which Debian ships no header.
 */
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define MAGIC UINT64_C(0x3154434e49504d41) /* "AMPINCT1" */
#define VERSION 1
#define VCPUS_MAX 8192

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
typedef struct {
    const char *target_name;
    struct { int min, cur; } version;
    bool system_emulation;
    struct { int smp_vcpus, max_vcpus; } system;
} qemu_info_t;
enum { NO_REGISTERS = 0, ADD_U64 = 0 };

void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t,
                                           void (*)(qemu_plugin_id_t, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, void (*)(unsigned, void *), int, void *);
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *, int, void *, uint64_t);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, void *), void *);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);

EXPORT int qemu_plugin_version = 1;

struct header { uint64_t magic; uint32_t version, vcpus, pid, inlined; uint64_t unused[5]; };
struct slot { uint64_t instructions, unused[7]; };

static struct slot *slots;
static char out[4000];

static void entered(unsigned vcpu, void *instructions)
{
    slots[vcpu].instructions += (uintptr_t)instructions;
}

static void translated_callback(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
    qemu_plugin_register_vcpu_tb_exec_cb(tb, entered, NO_REGISTERS, (void *)qemu_plugin_tb_n_insns(tb));
}

static void translated_inline(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
    qemu_plugin_register_vcpu_tb_exec_inline(tb, ADD_U64, &slots[0].instructions, qemu_plugin_tb_n_insns(tb));
}

static void ended(qemu_plugin_id_t id, void *unused)
{
    unlink(out);
}

static int refuse(const char *why)
{
    fprintf(stderr, "icount: %s\n", why);
    return -1;
}

static int make_file(uint32_t vcpus, bool inlined)
{
    char partial[sizeof out + 16];
    size_t bytes = sizeof(struct header) + vcpus * sizeof(struct slot);
    struct header *header;
    int fd;

    snprintf(partial, sizeof partial, "%s.%d", out, (int)getpid());
    unlink(partial);
    fd = open(partial, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)bytes))
        return refuse("the file given as out= cannot be created");
    header = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (header == MAP_FAILED)
        return refuse("the file given as out= cannot be mapped");
    slots = (struct slot *)(header + 1);
    *header = (struct header){MAGIC, VERSION, vcpus, (uint32_t)getpid(), inlined, {0}};
    return rename(partial, out) ? refuse("the file given as out= cannot be created") : 0;
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv)
{
    int vcpus = info->system_emulation ? info->system.max_vcpus : 0;
    bool inlined = vcpus == 1;

    if (vcpus < 1 || vcpus > VCPUS_MAX)
        return refuse("it only counts system emulation with 1 to 8192 vCPUs");
    for (int i = 0; i < argc; i++) {
        if (!strncmp(argv[i], "out=", 4) && strlen(argv[i] + 4) < sizeof out)
            strcpy(out, argv[i] + 4);
        else if (!strcmp(argv[i], "count=callback"))
            inlined = false;
        else if (!strcmp(argv[i], "count=inline") && vcpus == 1)
            inlined = true;
        else
            return refuse("it takes out=FILE and count=callback, or count=inline for one vCPU");
    }
    if (!out[0])
        return refuse("it needs out=FILE");
    if (make_file((uint32_t)vcpus, inlined))
        return -1;
    qemu_plugin_register_vcpu_tb_trans_cb(id, inlined ? translated_inline : translated_callback);
    qemu_plugin_register_atexit_cb(id, ended, NULL);
    return 0;
}
