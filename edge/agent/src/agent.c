/*
 * The agent: the only code of Plover that runs inside QEMU.
 *
 * QEMU is the distribution's own, unpatched. A few things cannot be done to it from another process.
 * This library is preloaded into QEMU and does them when asked over a socket:
 *
 *   OP_HELLO   Says the version of the protocol, and what this QEMU exports of what is needed.
 *   OP_TRACK   Creates a userfaultfd over a device's memory, write-protects the range in asynchronous
 *              mode, and hands the descriptor out. Only the process itself can create a userfaultfd for its
 *              memory; the PAGEMAP_SCAN that reads and re-arms it works from another process.
 *   OP_ORDERS  Listens for orders on another socket, from QEMU's main loop: orders.c.
 *   OP_FLASH   Puts other memory in the place of a flash chip's: flash.c.
 *   OP_DISPLAY Puts other memory in the place of a graphics card's: blocks.c.
 *   OP_LOG     Begins QEMU's own log of written RAM: written.c.
 *
 * QEMU takes the guest's NICs, which are sockets, for TAP devices: nic.c.
 *
 * A load of device state needs four things that QEMU does not do: translations.c, queues.c, firmware.c,
 * time.c.
 *
 * The sockets are connected and inherited; the number of the first one is in PLOVER_AGENT_FD. No path
 * leads to them, and only the parent holds the other ends. Requests are answered in order:
 *
 *   struct request { u32 op; u32 runs; u64 addr; u64 len; }     host byte order, 24 bytes,
 *   then for ORDER_LOAD `runs` times { u32 page; u32 pages; }, in the same packet; for OP_LOG once, with
 *   the number of the file that says which pages were written
 *   struct reply   { i32 status; u32 value; }                   + one descriptor for OP_TRACK
 *                                                               + QEMU's words for a failed order
 *
 *   status  0 or an errno
 *   value   OP_HELLO: the version, and bits for what works; orders: the order
 *   addr    OP_TRACK, OP_LOG: begin of the range; OP_ORDERS: the number of the orders' socket; ORDER_LOAD: where
 *           in the file the serial port's section begins (upper half) and ends (lower half); OP_FLASH and
 *           OP_DISPLAY: where in the file the memory begins
 *   len     OP_TRACK, OP_LOG: bytes of the range; OP_ORDERS: the number of the file that states are saved to and
 *           loaded from; ORDER_LOAD: bit 0 to keep translations, above it when the guest of that state
 *           stopped, in microseconds of CLOCK_MONOTONIC, or 0; OP_FLASH and OP_DISPLAY: the file's number
 *           (upper half), bytes (lower half)
 *
 * The agent's thread blocks all signals, holds no lock of QEMU, and ends when the socket closes.
 */
#include "agent.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
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

enum {
    OP_HELLO = 0,
    OP_TRACK = 1,
    OP_ORDERS = 2,
    OP_FLASH = 3,
    OP_DISPLAY = 4,
    OP_LOG = 5
};
enum {
    AGENT_VERSION = 7,
    HELLO_HAS_ORDERS = 1 << 16,
    HELLO_HAS_LOG = 1 << 17,
    HELLO_KEEPS_CODE = 1 << 18
};
enum { STACK_BYTES = 256 * 1024 }; /* also holds QEMU's thread-local data */

struct dma dma;
struct guest_ram ram;

_Bool find_dma(void)
{
    return FIND(dma.map, "cpu_physical_memory_map") && FIND(dma.unmap, "cpu_physical_memory_unmap");
}

/* Returns a userfaultfd that write-protects [addr, addr+len), or -errno. USER_MODE_ONLY needs no
 * privilege. It is enough: the kernel resolves asynchronous faults itself, also those of its own writes
 * (QEMU's read() into guest RAM). */
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

/* Whether a packet of `got` bytes is one whole request. */
_Bool is_whole(const struct request *request, ssize_t got)
{
    const size_t head = offsetof(struct request, run);
    return got >= (ssize_t)head && request->runs <= RUNS_MAX &&
           (size_t)got == head + request->runs * sizeof(struct run);
}

/* Sends a reply, and `fd` with it unless that is negative. Returns 0, or -1 if the socket is closed. */
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
    static struct request request; /* too big for the stack; only one thread runs this */
    for (;;) {
        ssize_t got = recv(sock, &request, sizeof request, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (!is_whole(&request, got))
            break;
        struct reply reply = {0, 0};
        int fd = -1;
        if (request.op == OP_HELLO) {
            reply.value = AGENT_VERSION | (find_monitor() ? HELLO_HAS_ORDERS : 0) |
                          (find_log() ? HELLO_HAS_LOG : 0) |
                          (find_translations() ? HELLO_KEEPS_CODE : 0);
        } else if (request.op == OP_TRACK) {
            fd = track(request.addr, request.len);
            reply.status = fd < 0 ? -fd : 0;
        } else if (request.op == OP_ORDERS) {
            reply.status = take_orders((int)request.addr, (int)request.len);
        } else if (request.op == OP_LOG && request.runs == 1) {
            ram = (struct guest_ram){request.addr, request.len};
            reply.status = begin_log(request.addr, request.len, (int)request.run[0].page);
        } else if (request.op == OP_FLASH || request.op == OP_DISPLAY) {
            int (*place)(int, off_t, size_t) =
                request.op == OP_FLASH ? place_flash : place_display;
            reply.status =
                place((int)(request.len >> 32), (off_t)request.addr, (uint32_t)request.len);
        } else {
            reply.status = EINVAL;
        }
        int failed = answer(sock, reply, fd);
        if (fd >= 0)
            close(fd); /* The parent's copy keeps tracking alive. */
        if (failed)
            break;
    }
    close(sock);
    return NULL;
}

/* Removes this library (the first entry) from LD_PRELOAD, and its socket from the environment, so that
 * programs started by QEMU get neither. */
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
    find_nics();
    clean_environment();
    if (sock <= STDERR_FILENO || fcntl(sock, F_SETFD, FD_CLOEXEC))
        return;

    /* QEMU handles signals: the thread inherits a mask that blocks all of them. */
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
