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
 *   OP_INVALIDATE  Make QEMU's translator (TCG) forget the code that it has translated from given
 *             pages. The parent writes guest RAM behind QEMU's back, and translations of a page it
 *             wrote would be stale. QEMU's own answer is to forget everything at each state load,
 *             and to translate the guest anew for tens of milliseconds. This writes the pages onto
 *             themselves through QEMU's interface for devices, which knows what to forget.
 *
 * The socket is connected and inherited; its number comes in PLOVER_AGENT_FD. There is no path to
 * find it by, and only the parent holds the other end. Each request is answered in order:
 *
 *   struct request { u32 op; u32 runs; u64 addr; u64 len; }     host byte order, 24 bytes,
 *   then for OP_INVALIDATE `runs` times { u32 page; u32 pages; }, in the same packet
 *   struct reply   { i32 status; u32 value; }                   + one descriptor for OP_TRACK
 *
 * status is 0 or an errno; value is, for OP_HELLO, the version and which of the others can work.
 * The agent's thread takes no signal, holds no lock of QEMU, and ends when the socket closes.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
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

enum { OP_HELLO = 0, OP_TRACK = 1, OP_YANK = 2, OP_INVALIDATE = 3 };
enum { AGENT_VERSION = 1, HELLO_HAS_YANK = 1 << 16, HELLO_HAS_INVALIDATE = 1 << 17 };
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

/* include/exec/cpu-common.h and include/qemu/rcu.h; unchanged since QEMU 5.0. */
typedef void physical_rw_fn(uint64_t addr, void *buf, uint64_t len, _Bool is_write);
typedef void rcu_register_fn(void);

static physical_rw_fn *find_physical_rw(void)
{
    return (physical_rw_fn *)dlsym(RTLD_DEFAULT, "cpu_physical_memory_rw");
}

static rcu_register_fn *find_rcu_register(void)
{
    return (rcu_register_fn *)dlsym(RTLD_DEFAULT, "rcu_register_thread");
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

/* Writes pages of guest RAM, mapped at `ram`, onto themselves. The guest stands meanwhile. */
static int invalidate(char *ram, const struct run *run, size_t runs)
{
    static _Bool registered;
    physical_rw_fn *physical_rw = find_physical_rw();
    rcu_register_fn *rcu_register = find_rcu_register();
    if (!physical_rw || !rcu_register)
        return ENOSYS;
    if (!registered) /* A thread must be known to QEMU's RCU before it looks at the memory map. */
        rcu_register();
    registered = 1;
    for (; runs; runs--, run++) {
        uint64_t at = (uint64_t)run->page * PAGE_BYTES;
        physical_rw(at, ram + at, (uint64_t)run->pages * PAGE_BYTES, 1);
    }
    return 0;
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
    const size_t head = offsetof(struct request, run);
    for (;;) {
        ssize_t got = recv(sock, &request, sizeof request, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < (ssize_t)head || request.runs > RUNS_MAX ||
            (size_t)got != head + request.runs * sizeof(struct run))
            break;
        struct reply reply = {0, 0};
        int fd = -1;
        if (request.op == OP_HELLO) {
            reply.value = AGENT_VERSION | (find_yank() ? HELLO_HAS_YANK : 0);
            if (find_physical_rw() && find_rcu_register())
                reply.value |= HELLO_HAS_INVALIDATE;
        } else if (request.op == OP_TRACK) {
            fd = track(request.addr, request.len);
            reply.status = fd < 0 ? -fd : 0;
        } else if (request.op == OP_YANK) {
            reply.status = arm_yank();
        } else if (request.op == OP_INVALIDATE) {
            reply.status = invalidate((char *)(uintptr_t)request.addr, request.run, request.runs);
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
