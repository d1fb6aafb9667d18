/*
 * The agent: the only code of Plover that runs inside QEMU.
 *
 * QEMU is the distribution's own, unpatched. A few things cannot be done to it from outside,
 * so this library is preloaded into it and does them when asked over a socket:
 *
 *   OP_TRACK  Create a userfaultfd over guest RAM, write-protect the range in asynchronous mode,
 *             and hand the descriptor out. A userfaultfd belongs to the address space of the
 *             process that creates it; the PAGEMAP_SCAN that reads and re-arms it does not.
 *   OP_YANK   Register QEMU's "migration" yank instance. xen-load-devices-state ends by
 *             unregistering it, an abort unless somebody has registered it before. QEMU builds
 *             that support modules export the function; others do not, and OP_HELLO says so.
 *
 *   OP_ORDERS  Listen for orders on another socket, from QEMU's main loop, where its own monitor
 *             carries them out. The monitor reads its commands byte by byte, with a round of an
 *             event loop for each, and hands them to the main loop: 0.2 to 0.4 ms a command, in
 *             the time in which the guest stands. These orders call what the commands call.
 *
 * The orders, each carried out under QEMU's big lock, as monitor commands are:
 *
 *   ORDER_STOP, ORDER_CONT, ORDER_SAVE   "stop", "cont", "xen-save-devices-state"
 *   ORDER_LOAD  "xen-load-devices-state", with what OP_YANK does done before. Where the caller
 *             says which pages it has written behind QEMU's back, TCG's translations are kept:
 *             those of these pages are forgotten here, through QEMU's interface for devices, and
 *             QEMU's own answer to a load, which is to forget all and to translate the guest
 *             anew for tens of milliseconds, is left out. QEMU does that in one place, after it
 *             has loaded the section "cpu_common"; the description of that section is an exported
 *             table, in which the function is replaced. And virtio queues that the state has not
 *             set up are as in a QEMU that has just started: see restart_queues().
 *
 * What a microvm's firmware keeps in memory of its own travels behind the state: see
 * save_firmware().
 *
 * The sockets are connected and inherited; the first one's number comes in PLOVER_AGENT_FD. There
 * is no path to find them by, and only the parent holds the other ends. Each request is answered in
 * order:
 *
 *   struct request { u32 op; u32 runs; u64 addr; u64 len; }     host byte order, 24 bytes,
 *   then for ORDER_LOAD `runs` times { u32 page; u32 pages; }, in the same packet
 *   struct reply   { i32 status; u32 value; }                   + one descriptor for OP_TRACK
 *                                                               + QEMU's words for a failed order
 *
 * status is 0 or an errno; value is, for OP_HELLO, the version and which of the others can work.
 * addr and len are, for OP_TRACK, the range; for OP_ORDERS, the numbers of the orders' socket and
 * of the file that states are saved to and loaded from; for ORDER_LOAD, len is 1 to keep
 * translations, and addr where in the file the serial port's section begins (the upper half) and
 * ends. The agent's thread takes no signal, holds no lock of QEMU, and ends when the socket
 * closes.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Kernel headers older than 6.7 lack these; their values are part of the kernel's ABI. */
#define FEATURE_WP_HUGETLBFS_SHMEM (1ull << 12)
#define FEATURE_WP_UNPOPULATED (1ull << 13)
#define FEATURE_WP_ASYNC (1ull << 15)
#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

enum { OP_HELLO = 0, OP_TRACK = 1, OP_YANK = 2, OP_ORDERS = 3 };
enum { ORDER_STOP = 0, ORDER_CONT = 1, ORDER_SAVE = 2, ORDER_LOAD = 3 };
enum {
    AGENT_VERSION = 3,
    HELLO_HAS_YANK = 1 << 16,
    HELLO_HAS_ORDERS = 1 << 17,
    HELLO_KEEPS_CODE = 1 << 18,
    HELLO_FOLLOWS_BOOT = 1 << 19
};
enum { PAGE_BYTES = 4096, RUNS_MAX = 8192 };
enum { STACK_BYTES = 256 * 1024 }; /* holds QEMU's thread-local data too */

struct run {
    uint32_t page, pages;
};

struct request {
    uint32_t op, runs;
    uint64_t addr, len;
    struct run run[RUNS_MAX];
};

struct reply {
    int32_t status;
    uint32_t value;
};

/* QEMU's YankInstance (qapi/yank.json): a union by type, of which "migration" has no members. */
struct yank_instance {
    int type;
    void *members[4];
};
enum { YANK_INSTANCE_TYPE_MIGRATION = 2 };
typedef _Bool yank_register_fn(const struct yank_instance *, void **errp);

static yank_register_fn *find_yank(void)
{
    return (yank_register_fn *)dlsym(RTLD_DEFAULT, "yank_register_instance");
}

/* Returns a userfaultfd that write-protects [addr, addr+len), or -errno. USER_MODE_ONLY needs no
 * privilege and is enough: an asynchronous fault never waits for anybody, so the kernel resolves
 * its own writes (QEMU's read() into guest RAM) as it does the guest's. */
static int track(uint64_t addr, uint64_t len)
{
    struct uffdio_api api = {.api = UFFD_API,
                             .features = FEATURE_WP_ASYNC | FEATURE_WP_UNPOPULATED |
                                         FEATURE_WP_HUGETLBFS_SHMEM};
    struct uffdio_register range = {.range = {addr, len}, .mode = UFFDIO_REGISTER_MODE_WP};
    struct uffdio_writeprotect protect = {.range = {addr, len},
                                          .mode = UFFDIO_WRITEPROTECT_MODE_WP};
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    if (fd < 0)
        return -errno;
    if (ioctl(fd, UFFDIO_API, &api) || ioctl(fd, UFFDIO_REGISTER, &range) ||
        ioctl(fd, UFFDIO_WRITEPROTECT, &protect)) {
        int error = errno;
        close(fd);
        return -error;
    }
    return fd;
}

/* Registers the yank instance. A refusal means that it is registered already: as good. */
static int arm_yank(void)
{
    static const struct yank_instance migration = {.type = YANK_INSTANCE_TYPE_MIGRATION};
    yank_register_fn *yank_register = find_yank();
    if (!yank_register)
        return ENOSYS;
    yank_register(&migration, NULL);
    return 0;
}

/* Whether a packet of `got` bytes is a request. */
static _Bool is_whole(const struct request *request, ssize_t got)
{
    const size_t head = offsetof(struct request, run);
    return got >= (ssize_t)head && request->runs <= RUNS_MAX &&
           (size_t)got == head + request->runs * sizeof(struct run);
}

/* What orders are made of: the functions of monitor commands (qapi/misc.json,
 * qapi/migration.json) and of their errors, and GLib's main loop, which is QEMU's. */
static struct {
    void (*stop)(void **errp);
    void (*cont)(void **errp);
    void (*save)(const char *filename, _Bool has_live, _Bool live, void **errp);
    void (*load)(const char *filename, void **errp);
    const char *(*error_text)(const void *error);
    void (*error_free)(void *error);
    unsigned (*watch)(int priority, int fd, int condition,
                      int (*function)(int fd, int condition, void *), void *, void *);
} monitor;
enum { G_IO_IN = 1, G_IO_ERR = 8, G_IO_HUP = 16 };

static char state_file[64];
static int state_fd;

#define FIND(slot, name) (*(void **)&(slot) = dlsym(RTLD_DEFAULT, name))

static _Bool find_monitor(void)
{
    return FIND(monitor.stop, "qmp_stop") && FIND(monitor.cont, "qmp_cont") &&
           FIND(monitor.save, "qmp_xen_save_devices_state") &&
           FIND(monitor.load, "qmp_xen_load_devices_state") &&
           FIND(monitor.error_text, "error_get_pretty") &&
           FIND(monitor.error_free, "error_free") && FIND(monitor.watch, "g_unix_fd_add_full") &&
           find_yank();
}

/* QEMU's interface for devices that access the memory of the machine. What was translated from
 * memory so written is forgotten. */
static struct {
    void *(*map)(uint64_t addr, uint64_t *len, _Bool is_write);
    void (*unmap)(void *buffer, uint64_t len, _Bool is_write, uint64_t access_len);
} memory;

static _Bool find_memory(void)
{
    return FIND(memory.map, "cpu_physical_memory_map") &&
           FIND(memory.unmap, "cpu_physical_memory_unmap");
}

/* What keeping translations needs beside that: the place where a load forgets everything. */
typedef int post_load_fn(void *cpu, int version);
static struct {
    void (*tlb_flush)(void *cpu);
    post_load_fn **post_load;
    post_load_fn *forget_all;
} translator;
static _Bool keep_code;

/* Takes the place of cpu_common_post_load() (cpu.c; hw/core/cpu-system.c since 10.0), which is
 * tlb_flush() and tb_flush(), and the end of a flag that QEMU has not saved since 0.13. */
static int after_load(void *cpu, int version)
{
    if (!keep_code)
        return translator.forget_all(cpu, version);
    translator.tlb_flush(cpu);
    return 0;
}

/* Whether an address lies in the code of the program itself, the first object of the list. */
static int in_program(struct dl_phdr_info *object, size_t size, void *address)
{
    (void)size;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        uintptr_t start = object->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_LOAD && (part->p_flags & PF_X) &&
            *(uintptr_t *)address - start < part->p_memsz)
            return 1;
    }
    return -1; /* and ends the walk */
}

/* The place of post_load in the description of "cpu_common". Versions of QEMU differ in the numbers
 * before it, and agree on this: the name comes first, and of the functions it has two, pre_load
 * and then post_load. */
static post_load_fn **find_post_load(void)
{
    Dl_info info;
    const ElfW(Sym) *symbol = NULL;
    void **word = dlsym(RTLD_DEFAULT, "vmstate_cpu_common");
    post_load_fn **found[2];
    size_t count = 0;
    if (!word || !dladdr1(word, &info, (void **)&symbol, RTLD_DL_SYMENT) || !symbol ||
        info.dli_saddr != word || !word[0] || strcmp(word[0], "cpu_common"))
        return NULL;
    for (size_t i = 1; i < symbol->st_size / sizeof *word; i++) {
        if (dl_iterate_phdr(in_program, &word[i]) == 1) {
            if (count == 2)
                return NULL;
            found[count++] = (post_load_fn **)&word[i];
        }
    }
    return count == 2 ? found[1] : NULL;
}

static _Bool find_translator(void)
{
    return find_memory() && FIND(translator.tlb_flush, "tlb_flush") &&
           (translator.post_load = find_post_load());
}

/* Puts after_load() into the table, which lies in memory that is read-only after relocation. */
static int hook_post_load(void)
{
    const uintptr_t size = (uintptr_t)sysconf(_SC_PAGESIZE);
    char *page = (char *)((uintptr_t)translator.post_load & ~(size - 1));
    if (mprotect(page, size, PROT_READ | PROT_WRITE))
        return errno;
    translator.forget_all = *translator.post_load;
    *translator.post_load = after_load;
    return mprotect(page, size, PROT_READ) ? errno : 0;
}

/* Has QEMU forget what it translated from these pages, as after a write of a device's. */
static void forget(const struct run *run, size_t runs)
{
    for (; runs; runs--, run++) {
        uint64_t at = (uint64_t)run->page * PAGE_BYTES;
        uint64_t left = (uint64_t)run->pages * PAGE_BYTES;
        while (left) {
            uint64_t len = left;
            void *mapped = memory.map(at, &len, 1);
            if (!mapped || !len)
                break; /* No RAM: nothing was translated from it. */
            memory.unmap(mapped, len, 1, len);
            at += len;
            left -= len;
        }
    }
}

/* What following a guest that boots needs beside that: QEMU's tree of objects, and of a virtio
 * device its queues. */
static struct {
    void *(*find)(const char *path, _Bool *ambiguous);
    int (*each)(void *object, int (*function)(void *object, void *), void *);
    void *(*cast)(void *object, const char *type);
    int (*size)(void *device, int queue);
    uint64_t (*address)(void *device, int queue);
    void (*reset)(void *device);
} boot;
enum { QUEUES_MAX = 1024 }; /* VIRTIO_QUEUE_MAX */

static _Bool follows_boot;

/* The queues that the guest has set up. */
static struct {
    struct queue {
        void *device;
        int number;
    } *list;
    size_t count, room;
} queues;

static _Bool find_boot(void)
{
    return find_memory() && FIND(boot.find, "object_resolve_path") &&
           FIND(boot.each, "object_child_foreach_recursive") &&
           FIND(boot.cast, "object_dynamic_cast") && FIND(boot.size, "virtio_queue_get_num") &&
           FIND(boot.address, "virtio_queue_get_desc_addr") && FIND(boot.reset, "virtio_reset");
}

static int note_queues_of(void *object, void *unused)
{
    void *device = boot.cast(object, "virtio-device");
    (void)unused;
    if (!device)
        return 0;
    for (int number = 0; number < QUEUES_MAX && boot.size(device, number); number++) {
        if (!boot.address(device, number))
            continue;
        if (queues.count == queues.room) {
            size_t room = queues.room ? 2 * queues.room : 64;
            struct queue *list = realloc(queues.list, room * sizeof *list);
            if (!list)
                abort(); /* As QEMU does where there is no memory. */
            queues.list = list;
            queues.room = room;
        }
        queues.list[queues.count++] = (struct queue){device, number};
    }
    return 0;
}

/* Each time, since a guest can eject a device. */
static void note_queues(void)
{
    /* Where a command line's devices are: those with an id and the others. */
    static const char *const places[] = {"/machine/peripheral", "/machine/peripheral-anon"};
    queues.count = 0;
    for (int i = 0; follows_boot && i < 2; i++) {
        void *place = boot.find(places[i], NULL);
        if (place)
            boot.each(place, note_queues_of, NULL);
    }
}

/* Resets the devices of which the state that has just been loaded does not know a queue that was
 * in use before. Returns whether there was one: the state is then to be loaded again.
 *
 * A state does not hold how far a device has used a queue. virtio_load() reads that from guest
 * memory, but only for queues that the guest has set up, and leaves it as it was for others, since
 * it expects a QEMU that has just started. Of a secondary that is ahead of its leader while the
 * guest boots it would be left over from a queue that is gone: the device would count on from there
 * in the queue that the guest sets up next. */
static _Bool restart_queues(void)
{
    void *done = NULL;
    for (size_t i = 0; i < queues.count; i++) {
        void *device = queues.list[i].device;
        if (device != done && !boot.address(device, queues.list[i].number))
            boot.reset(done = device);
    }
    return done != NULL;
}

/* Takes what lies from `begin` to `end` out of a file. Returns 0 or an errno. */
static int cut(int file, off_t begin, off_t end)
{
    static char buffer[64 * 1024];
    ssize_t got;
    if (begin > end)
        return EINVAL;
    while ((got = pread(file, buffer, sizeof buffer, end)) > 0) {
        if (pwrite(file, buffer, (size_t)got, begin) != got)
            return EIO;
        begin += got;
        end += got;
    }
    return got < 0 || ftruncate(file, begin) ? errno : 0;
}

/* Loads the state in the file. `error` is QEMU's, if it refuses; returns 0 or another errno. A
 * second time it is loaded without its serial port, whose section lies at `serial`: QEMU aborts if
 * a port that waits for room on its console is told so twice. */
static int load(uint64_t serial, void **error)
{
    note_queues();
    arm_yank();
    monitor.load(state_file, error);
    if (*error || !restart_queues())
        return 0;
    int failed = cut(state_fd, (off_t)(serial >> 32), (off_t)(uint32_t)serial);
    if (failed)
        return failed;
    arm_yank();
    monitor.load(state_file, error);
    return 0;
}

/* The firmware of a microvm lies at the end of the first MiB in RAM of its own, which is neither in
 * the guest's RAM nor in a saved state, and while it runs it writes there: the root of the ACPI
 * tables, and what it has done. A guest that boots where the writes of another's firmware are
 * missing finds no tables, and so no device. So a state is followed by the units that are no longer
 * as QEMU has loaded them, and a load makes all of them so. Other machines' firmware writes into
 * the guest's RAM. */
enum { FIRMWARE_END = 0x100000, FIRMWARE_BYTES_MAX = 0x20000, FIRMWARE_UNIT = 64 };
enum { FIRMWARE_UNITS_MAX = FIRMWARE_BYTES_MAX / FIRMWARE_UNIT };
static const char FIRMWARE_MARK[8] = "PLOVERFW";

struct firmware_unit {
    uint32_t number; /* from the end of the firmware */
    unsigned char bytes[FIRMWARE_UNIT];
};

/* What follows the units, at the end of the file. */
struct firmware_end {
    uint32_t units;
    char mark[sizeof FIRMWARE_MARK];
};

static struct {
    uint32_t count; /* of units; the last one ends at FIRMWARE_END */
    const unsigned char *now;
    unsigned char loaded[FIRMWARE_BYTES_MAX]; /* by QEMU, before the guest ran */
    struct firmware_unit units[FIRMWARE_UNITS_MAX];
} firmware;

/* The guest's RAM in this process. */
static struct {
    uintptr_t start, bytes;
} ram;

/* Where a unit begins, in the firmware as it is now and as it was loaded. */
static size_t unit_at(uint32_t number)
{
    return (size_t)(firmware.count - 1 - number) * FIRMWARE_UNIT;
}

static uint64_t unit_address(uint32_t number)
{
    return FIRMWARE_END - (uint64_t)(number + 1) * FIRMWARE_UNIT;
}

/* Where this unit is in this process; NULL if it is of the guest's RAM, which travels as such. */
static const unsigned char *find_unit(uint32_t number)
{
    uint64_t len = FIRMWARE_UNIT;
    void *mapped = memory.map(unit_address(number), &len, 0);
    if (!mapped)
        return NULL;
    memory.unmap(mapped, len, 0, 0); /* Memory of a machine stays where it is. */
    _Bool is_ram = (uintptr_t)mapped - ram.start < ram.bytes;
    return len == FIRMWARE_UNIT && !is_ram ? mapped : NULL;
}

/* Writes a unit as a device would, so that QEMU forgets what it has translated from it. */
static _Bool write_unit(uint32_t number, const unsigned char *bytes)
{
    uint64_t len = FIRMWARE_UNIT;
    void *mapped = memory.map(unit_address(number), &len, 1);
    _Bool is_whole = mapped && len == FIRMWARE_UNIT;
    if (is_whole)
        memcpy(mapped, bytes, FIRMWARE_UNIT);
    if (mapped)
        memory.unmap(mapped, len, 1, is_whole ? FIRMWARE_UNIT : 0);
    return is_whole;
}

/* Called before the first order is carried out. */
static void find_firmware(void)
{
    void *machine = follows_boot && ram.bytes ? boot.find("/machine", NULL) : NULL;
    if (!machine || !boot.cast(machine, "microvm-machine"))
        return;
    for (uint32_t number = 0; number < FIRMWARE_UNITS_MAX; number++) {
        const unsigned char *unit = find_unit(number);
        /* All in one piece, each unit in front of the one before. */
        if (!unit || (number && unit + FIRMWARE_UNIT != firmware.now))
            break;
        firmware.now = unit;
        firmware.count = number + 1;
    }
    if (firmware.count)
        memcpy(firmware.loaded, firmware.now, unit_at(0) + FIRMWARE_UNIT);
}

/* Puts the units behind the state that has just been saved. Returns 0 or an errno. */
static int save_firmware(void)
{
    struct firmware_end end = {0, {0}};
    off_t size = lseek(state_fd, 0, SEEK_END);
    for (uint32_t number = 0; number < firmware.count; number++) {
        const unsigned char *now = firmware.now + unit_at(number);
        if (!memcmp(now, firmware.loaded + unit_at(number), FIRMWARE_UNIT))
            continue;
        firmware.units[end.units].number = number;
        memcpy(firmware.units[end.units++].bytes, now, FIRMWARE_UNIT);
    }
    if (!firmware.count)
        return 0;
    memcpy(end.mark, FIRMWARE_MARK, sizeof end.mark);
    const size_t bytes = end.units * sizeof *firmware.units;
    if (size < 0 || pwrite(state_fd, firmware.units, bytes, size) != (ssize_t)bytes ||
        pwrite(state_fd, &end, sizeof end, size + (off_t)bytes) != sizeof end)
        return EIO;
    return 0;
}

/* Makes the firmware what it was where the state was saved. Returns 0, or an errno if the units are
 * not such a firmware's. A state without any is of a QEMU that cannot tell, which has been warned
 * about. */
static int load_firmware(void)
{
    struct firmware_end end;
    off_t at = lseek(state_fd, 0, SEEK_END) - (off_t)sizeof end;
    if (!firmware.count || at < 0 || pread(state_fd, &end, sizeof end, at) != sizeof end ||
        memcmp(end.mark, FIRMWARE_MARK, sizeof end.mark))
        return 0;
    const off_t bytes = (off_t)end.units * (off_t)sizeof *firmware.units;
    if (end.units > firmware.count || bytes > at ||
        pread(state_fd, firmware.units, (size_t)bytes, at - bytes) != bytes)
        return EINVAL;
    uint32_t next = 0;
    for (uint32_t number = 0; number < firmware.count; number++) {
        const unsigned char *due = firmware.loaded + unit_at(number);
        if (next < end.units && firmware.units[next].number == number)
            due = firmware.units[next++].bytes;
        if (memcmp(firmware.now + unit_at(number), due, FIRMWARE_UNIT) && !write_unit(number, due))
            return EFAULT;
    }
    return next == end.units ? 0 : EINVAL;
}

/* Carries orders out, on QEMU's main thread. Returns whether to go on listening. */
static int on_order(int sock, int condition, void *unused)
{
    static struct request request;
    static struct {
        struct reply head;
        char text[512];
    } reply;
    static _Bool begun;
    (void)condition;
    (void)unused;
    for (;;) {
        ssize_t got = recv(sock, &request, sizeof request, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN)
            return 1;
        if (!is_whole(&request, got))
            break;
        if (!begun)
            find_firmware();
        begun = 1;
        void *error = NULL;
        size_t text = 0;
        reply.head.status = 0;
        reply.head.value = request.op;
        if (request.op == ORDER_STOP) {
            monitor.stop(&error);
        } else if (request.op == ORDER_CONT) {
            monitor.cont(&error);
        } else if (request.op == ORDER_SAVE) {
            monitor.save(state_file, 1, 0, &error);
            if (!error)
                reply.head.status = save_firmware();
        } else if (request.op == ORDER_LOAD) {
            keep_code = request.len == 1 && translator.forget_all;
            if (keep_code)
                forget(request.run, request.runs);
            reply.head.status = load_firmware();
            if (!reply.head.status)
                reply.head.status = load(request.addr, &error);
        } else {
            reply.head.status = EINVAL;
        }
        if (error) {
            reply.head.status = EIO;
            text = (size_t)snprintf(reply.text, sizeof reply.text, "%s", monitor.error_text(error));
            text = text < sizeof reply.text ? text : sizeof reply.text - 1;
            monitor.error_free(error);
        }
        if (send(sock, &reply, sizeof reply.head + text, MSG_NOSIGNAL) < 0)
            break;
    }
    close(sock);
    return 0;
}

/* From now on, listens for orders on `sock`. */
static int take_orders(int sock, int file)
{
    if (!find_monitor())
        return ENOSYS;
    follows_boot = find_boot(); /* As OP_HELLO has said. */
    if (find_translator() && !translator.forget_all && hook_post_load())
        translator.forget_all = NULL;
    state_fd = file;
    snprintf(state_file, sizeof state_file, "/proc/self/fd/%d", file);
    if (fcntl(sock, F_SETFD, FD_CLOEXEC))
        return errno;
    return monitor.watch(0, sock, G_IO_IN | G_IO_ERR | G_IO_HUP, on_order, NULL, NULL) ? 0 : ENOSYS;
}

/* Sends one reply, with fd beside it unless that is negative. */
static int answer(int sock, struct reply reply, int fd)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec io = {&reply, sizeof reply};
    struct msghdr message = {.msg_iov = &io, .msg_iovlen = 1};
    if (fd >= 0) {
        memset(&control, 0, sizeof control);
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &fd, sizeof fd);
    }
    return sendmsg(sock, &message, MSG_NOSIGNAL) == sizeof reply ? 0 : -1;
}

static void *serve(void *argument)
{
    int sock = (int)(intptr_t)argument;
    static struct request request; /* too big for the stack; there is one such thread */
    for (;;) {
        ssize_t got = recv(sock, &request, sizeof request, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (!is_whole(&request, got))
            break;
        struct reply reply = {0, 0};
        int fd = -1;
        if (request.op == OP_HELLO) {
            reply.value = AGENT_VERSION | (find_yank() ? HELLO_HAS_YANK : 0);
            if (find_monitor())
                reply.value |= HELLO_HAS_ORDERS | (find_translator() ? HELLO_KEEPS_CODE : 0) |
                               (find_boot() ? HELLO_FOLLOWS_BOOT : 0);
        } else if (request.op == OP_TRACK) {
            fd = track(request.addr, request.len);
            ram.start = request.addr;
            ram.bytes = request.len;
            reply.status = fd < 0 ? -fd : 0;
        } else if (request.op == OP_YANK) {
            reply.status = arm_yank();
        } else if (request.op == OP_ORDERS) {
            reply.status = take_orders((int)request.addr, (int)request.len);
        } else {
            reply.status = EINVAL;
        }
        int failed = answer(sock, reply, fd);
        if (fd >= 0)
            close(fd); /* Tracking lives as long as the parent's copy. */
        if (failed)
            break;
    }
    close(sock);
    return NULL;
}

/* Takes this library, the first entry, off LD_PRELOAD, and its socket out of the environment, so
 * that a program which QEMU starts gets neither. */
static void clean_environment(void)
{
    const char *preload = getenv("LD_PRELOAD");
    const char *rest = preload ? strpbrk(preload, ": ") : NULL;
    char *copy = rest && rest[1] ? strdup(rest + 1) : NULL;
    if (copy)
        setenv("LD_PRELOAD", copy, 1);
    else
        unsetenv("LD_PRELOAD");
    free(copy);
    unsetenv("PLOVER_AGENT_FD");
}

__attribute__((constructor)) static void start(void)
{
    const char *number = getenv("PLOVER_AGENT_FD");
    if (!number)
        return;
    int sock = atoi(number);
    clean_environment();
    if (sock <= STDERR_FILENO || fcntl(sock, F_SETFD, FD_CLOEXEC))
        return;

    /* Signals are QEMU's business: the thread inherits a mask that blocks every one of them. */
    sigset_t all, old;
    pthread_attr_t attributes;
    pthread_t thread;
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    if (pthread_create(&thread, &attributes, serve, (void *)(intptr_t)sock))
        close(sock); /* The parent reads end of file and reports it. */
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attributes);
}
