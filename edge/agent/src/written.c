/*
 * QEMU's own log of the machine's RAM that was written.
 *
 * QEMU keeps one for live migration and for displays. KVM's log (of what processors write, and KVM itself)
 * and TCG's flow into it, and devices mark what they write (but see ahci.c). Reading it costs what was
 * written and a bit for each page, where a walk over the page tables costs a look at every page.
 *
 * The log has a bit per page and client. The agent is the client of displays, which no device is for the
 * machine's RAM: its memory is the graphics card's own (blocks.c).
 */
#include "agent.h"
#include <errno.h>
#include <linux/kvm.h>
#include <semaphore.h>
#include <sys/mman.h>
#include <unistd.h>

enum { DIRTY_MEMORY_VGA = 0 };
enum { WORD_BITS = 64 };

/* QEMU's DirtyBitmapSnapshot (softmmu/physmem.c; system/physmem.c since 10.0): a bit for each page from
 * `start` to `end`, which are addresses in QEMU's own numbering of all memory. */
struct snapshot {
    uint64_t start, end;
    uint64_t bits[];
};

static struct {
    void *(*find)(void *host, uint64_t *offset);
    uint64_t (*address)(void *region);
    void (*log)(void *region, _Bool log, unsigned client);
    struct snapshot *(*take)(void *region, uint64_t offset, uint64_t bytes, unsigned client);
    void (*free)(void *);
    unsigned (*idle)(int priority, int (*function)(void *), void *, void *);
    _Bool (*is_running)(void);
    void (*pause)(void);
    void (*resume)(void);
} memory;

/* The memory that is logged, and plover's copy of the log: a bit for each page, set here and cleared there. */
static struct {
    void *region;
    uint64_t offset, bytes;
    uint64_t *written;
} logged;

_Bool find_log(void)
{
    return FIND(memory.find, "memory_region_from_host") &&
           FIND(memory.address, "memory_region_get_ram_addr") &&
           FIND(memory.log, "memory_region_set_log") &&
           FIND(memory.take, "memory_region_snapshot_and_clear_dirty") &&
           FIND(memory.free, "g_free") && FIND(memory.idle, "g_idle_add_full") &&
           FIND(memory.is_running, "runstate_is_running") &&
           FIND(memory.pause, "pause_all_vcpus") && FIND(memory.resume, "resume_all_vcpus") &&
           find_ahci();
}

/* Called with KVM's answer to a call; returns what QEMU is to hear.
 *
 * KVM can begin a log with all pages in it. QEMU takes that offer, because a migration copies them all
 * anyway. But the log begins anew wherever firmware moves the borders of RAM at a boot, and a syncvm
 * would then compare the whole memory. So QEMU does not hear of it. */
int kvm_log_begins_empty(uint32_t request, void *arg, int result)
{
    if (request == (uint32_t)KVM_CHECK_EXTENSION &&
        (uintptr_t)arg == KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2 && result > 0)
        return result & ~KVM_DIRTY_LOG_INITIALLY_SET;
    return result;
}

/* Takes what was written since the last call off QEMU's log. */
static struct snapshot *take(void)
{
    return memory.take(logged.region, logged.offset, logged.bytes, DIRTY_MEMORY_VGA);
}

static struct {
    struct guest_ram part;
    sem_t done;
    int error;
} begun;

/* GLib calls this on QEMU's main thread. */
static int begin(void *unused)
{
    uint64_t offset = 0;
    (void)unused;
    void *region = memory.find((void *)begun.part.start, &offset);
    begun.error = region ? 0 : ENXIO;
    if (region) {
        memory.log(region, 1, DIRTY_MEMORY_VGA);
        logged.region = region;
        logged.offset = offset;
        logged.bytes = begun.part.bytes;
        struct snapshot *before = take();
        const uint64_t start = memory.address(region) + offset;
        if (before->start != start || before->end < start + logged.bytes) {
            logged.region = NULL;
            begun.error = EPROTO; /* A snapshot is something else in this QEMU. */
        }
        memory.free(before);
    }
    sem_post(&begun.done);
    return 0;
}

/* Logs this part of the machine's RAM from now on, to a file with a bit for each page. Returns 0 or an
 * errno. */
int begin_log(uint64_t addr, uint64_t bytes, int file)
{
    if (!find_log())
        return ENOSYS;
    if (!bytes || bytes % ((uint64_t)WORD_BITS * PAGE_BYTES) || logged.region)
        return EINVAL;
    void *written = mmap(NULL, bytes / PAGE_BYTES / 8, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (written == MAP_FAILED)
        return errno;
    logged.written = written;
    begun.part = (struct guest_ram){addr, bytes};
    if (sem_init(&begun.done, 0, 0) || !memory.idle(0, begin, NULL, NULL))
        return ENOSYS;
    while (sem_wait(&begun.done) && errno == EINTR)
        ;
    return begun.error;
}

static void mark(uint64_t offset)
{
    const uint64_t page = offset / PAGE_BYTES;
    __atomic_fetch_or(&logged.written[page / WORD_BITS], 1ull << page % WORD_BITS, __ATOMIC_RELEASE);
}

/* Called on QEMU's main thread: hands over what was written since the last call. */
void hand_over_log(void)
{
    if (!logged.region)
        return;
    struct snapshot *found = take();
    for (uint64_t word = 0; word < logged.bytes / PAGE_BYTES / WORD_BITS; word++)
        if (found->bits[word])
            __atomic_fetch_or(&logged.written[word], found->bits[word], __ATOMIC_RELEASE);
    memory.free(found);
    each_ahci_page(mark);
}

/* The same of a guest that may run.
 *
 * A processor of TCG that is about to write a page looks whether the page is in the log, and then lets itself
 * write it without another look. If the log were taken in between, its next writes would be in no log. */
void hand_over_log_of_running(void)
{
    const _Bool runs = memory.is_running && memory.is_running();
    if (runs)
        memory.pause();
    hand_over_log();
    if (runs)
        memory.resume();
}

/* Called on QEMU's main thread: forgets what was written since the last call of these two. */
void forget_log(void)
{
    if (logged.region)
        memory.free(take());
}
