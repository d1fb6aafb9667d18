/* Which connection a descriptor is: close, dup, fork. */
#include "preload.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The number of the slot and 1, or 0. */
static _Atomic uint32_t slots_of[DESCRIPTORS_MAX];
static _Atomic int highest = -1;
/* The process whose table this is. A child of vfork() has its own descriptors and writes into this memory. */
static pid_t process;

uint32_t slot_of(int fd)
{
    return fd >= 0 && fd < DESCRIPTORS_MAX ? atomic_load(&slots_of[fd]) : 0;
}

struct slot *slot_at(uint32_t number)
{
    return &shared->slots[number - 1];
}

/* The connection, if it is a client's own. */
struct slot *client_of(int fd)
{
    uint32_t number = slot_of(fd);
    if (!number || atomic_load(&slot_at(number)->kind) != SLOT_CLIENT)
        return NULL;
    return slot_at(number);
}

static void mark(int fd, uint32_t number)
{
    atomic_store(&slots_of[fd], number);
    int seen = atomic_load(&highest);
    while (seen < fd && !atomic_compare_exchange_weak(&highest, &seen, fd))
        ;
}

static void keep(int fd, uint32_t number)
{
    atomic_fetch_add(&slot_at(number)->refs, 1);
    mark(fd, number);
}

/* The connection is this descriptor's from now on. One whose number is too high for the table is not noted: the caller
 * has to let go of the connection. False if plover has given it up. */
bool claim(int fd, uint32_t number, uint32_t generation)
{
    struct slot *slot = slot_at(number);
    uint32_t seen = REFS_NOT_ACCEPTED;
    if (!atomic_compare_exchange_strong(&slot->refs, &seen, 1))
        return false;
    if (atomic_load(&slot->generation) != generation) {
        atomic_store(&slot->refs, REFS_NOT_ACCEPTED);
        return false;
    }
    atomic_store(&slot->ended, 0);
    atomic_store(&slot->broken, 0);
    atomic_store(&slot->swallowed, 0);
    if (fd < DESCRIPTORS_MAX)
        mark(fd, number);
    return true;
}

/* Descriptors of epoll instances and 1, or 0. Some may be closed by now, or be something else. */
static _Atomic int epolls[64];

static int watches(int epoll)
{
    for (size_t at = 0; epoll >= 0 && at < sizeof epolls / sizeof *epolls; at++) {
        int seen = 0;
        if (atomic_load(&epolls[at]) == epoll + 1 ||
            atomic_compare_exchange_strong(&epolls[at], &seen, epoll + 1))
            break;
    }
    return epoll;
}

EXPORT int epoll_create(int size)
{
    return watches(REAL(epoll_create)(size));
}

EXPORT int epoll_create1(int flags)
{
    return watches(REAL(epoll_create1)(flags));
}

/* The program is about to close the last descriptor of a client's connection. The kernel would forget it in all epoll instances
 * then, but plover has the connection open until its end is in the log. */
static void unwatch(int fd, uint32_t number)
{
    struct slot *slot = slot_at(number);
    int error = errno;
    if (atomic_load(&slot->kind) != SLOT_CLIENT || atomic_load(&slot->refs) != 1)
        return;
    for (size_t at = 0; at < sizeof epolls / sizeof *epolls; at++) {
        int epoll = atomic_load(&epolls[at]) - 1;
        if (epoll < 0)
            break;
        epoll_ctl(epoll, EPOLL_CTL_DEL, fd, NULL);
    }
    errno = error;
}

/* A descriptor of the connection is closed. */
void let_go(uint32_t number)
{
    struct slot *slot = slot_at(number);
    if (atomic_fetch_sub(&slot->refs, 1) != 1)
        return;
    lock_with_room(0);
    fill(RECORD_CLOSE, number, (uint16_t)atomic_load(&slot->broken), NULL, 0);
    unlock();
    ring_bell();
}

static bool is_ours(int fd)
{
    return shared && (fd == event_fd || fd == memory_fd);
}

EXPORT int close(int fd)
{
    if (is_ours(fd)) {
        errno = EBADF;
        return -1;
    }
    uint32_t number = slot_of(fd);
    if (!number || getpid() != process)
        return REAL(close)(fd);
    atomic_store(&slots_of[fd], 0);
    unwatch(fd, number);
    int result = REAL(close)(fd), error = errno;
    let_go(number);
    errno = error;
    return result;
}

EXPORT int close_range(unsigned first, unsigned last, int flags)
{
    int high = atomic_load(&highest);
    if (!shared || flags)
        return REAL(close_range)(first, last, flags);
    for (unsigned fd = first; fd <= last && high >= 0 && fd <= (unsigned)high; fd++)
        if (slot_of((int)fd))
            close((int)fd);
    int low = event_fd < memory_fd ? event_fd : memory_fd;
    int top = event_fd < memory_fd ? memory_fd : event_fd;
    const unsigned kept[2] = {(unsigned)low, (unsigned)top};
    for (int i = 0; i < 2 && first <= last; i++) {
        if (kept[i] < first || kept[i] > last)
            continue;
        if (kept[i] > first)
            REAL(close_range)(first, kept[i] - 1, 0);
        first = kept[i] + 1;
    }
    return first <= last ? REAL(close_range)(first, last, 0) : 0;
}

EXPORT void closefrom(int first)
{
    close_range(first < 0 ? 0 : (unsigned)first, ~0u, 0);
}

EXPORT int dup(int fd)
{
    int copy = REAL(dup)(fd);
    uint32_t number = slot_of(fd);
    if (number && copy >= 0 && copy < DESCRIPTORS_MAX && getpid() == process)
        keep(copy, number);
    return copy;
}

static int copied(int fd, int copy, int flags)
{
    if (is_ours(copy)) {
        errno = EBADF;
        return -1;
    }
    uint32_t old = slot_of(copy), number = slot_of(fd);
    bool is_table = (old || number) && fd != copy && getpid() == process;
    if (is_table && old && REAL(fcntl)(fd, F_GETFD) >= 0)
        unwatch(copy, old);
    int result = REAL(dup3)(fd, copy, flags);
    if (result < 0 || !is_table || copy >= DESCRIPTORS_MAX)
        return result;
    if (number)
        keep(copy, number);
    else
        atomic_store(&slots_of[copy], 0);
    if (old)
        let_go(old);
    return result;
}

EXPORT int dup2(int fd, int copy)
{
    return fd == copy ? REAL(dup2)(fd, copy) : copied(fd, copy, 0);
}

EXPORT int dup3(int fd, int copy, int flags)
{
    return copied(fd, copy, flags);
}

static int control(int fd, int command, void *argument)
{
    int result = (int)REAL(fcntl)(fd, command, argument);
    uint32_t number = command == F_DUPFD || command == F_DUPFD_CLOEXEC ? slot_of(fd) : 0;
    if (number && result >= 0 && result < DESCRIPTORS_MAX && getpid() == process)
        keep(result, number);
    return result;
}

EXPORT int fcntl(int fd, int command, ...)
{
    va_list arguments;
    va_start(arguments, command);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    return control(fd, command, argument);
}

EXPORT int fcntl64(int fd, int command, ...)
{
    va_list arguments;
    va_start(arguments, command);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    return control(fd, command, argument);
}

/* Before a fork: the child has all descriptors, too. Another thread may close or accept some at this moment, and a child
 * may end without a word; plover looks for connections that nobody has open (edge/run/src/direct/holders.rs). */
static void before_fork(void)
{
    atomic_fetch_add(&shared->forks, 1);
    for (int fd = 0, high = atomic_load(&highest); fd <= high; fd++)
        if (slot_of(fd))
            atomic_fetch_add(&slot_at(slot_of(fd))->refs, 1);
}

static void in_child(void)
{
    process = getpid();
    forget_thread();
}

/* At the end of a process, its descriptors are closed. */
static void let_all_go(void)
{
    if (!shared || getpid() != process)
        return;
    for (int fd = 0, high = atomic_load(&highest); fd <= high; fd++)
        if (slot_of(fd))
            close(fd);
}

__attribute__((destructor)) static void end(void)
{
    let_all_go();
}

EXPORT void _exit(int code)
{
    let_all_go();
    for (;;)
        syscall(SYS_exit_group, code);
}

EXPORT void _Exit(int code)
{
    _exit(code);
}

void watch_forks(void)
{
    process = getpid();
    pthread_atfork(before_fork, NULL, in_child);
}
