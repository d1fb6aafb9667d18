/* Which connection a descriptor is: close, dup. */
#include "preload.h"
#include <fcntl.h>
#include <stdarg.h>
#include <unistd.h>

/* The number of the slot and 1, or 0. */
static _Atomic uint32_t slots_of[DESCRIPTORS_MAX];
static _Atomic int highest = -1;
/* How many descriptors of this process each connection has. */
static _Atomic uint32_t descriptors_of[SLOTS];

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
    atomic_fetch_add(&descriptors_of[number - 1], 1);
    mark(fd, number);
}

int highest_descriptor(void)
{
    return atomic_load(&highest);
}

/* Whether a descriptor of this process is the connection. */
bool is_open(uint32_t number)
{
    return atomic_load(&descriptors_of[number - 1]);
}

/* Counts the descriptors again, in a new process. */
void count_again(void)
{
    for (int i = 0; i < SLOTS; i++)
        atomic_store(&descriptors_of[i], 0);
    for (int fd = 0, high = highest_descriptor(); fd <= high; fd++)
        if (slot_of(fd))
            atomic_fetch_add(&descriptors_of[slot_of(fd) - 1], 1);
}

/* Closes a descriptor of a connection that is not counted for this process. */
void abandon(int fd)
{
    uint32_t number = atomic_exchange(&slots_of[fd], 0);
    atomic_fetch_sub(&descriptors_of[number - 1], 1);
    REAL(close)(fd);
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
    atomic_store(&descriptors_of[number - 1], 1);
    opened(number);
    if (fd < DESCRIPTORS_MAX)
        mark(fd, number);
    return true;
}

/* A descriptor of the connection is closed. */
void let_go(uint32_t number)
{
    if (atomic_fetch_sub(&descriptors_of[number - 1], 1) == 1)
        closed(number);
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
    if (!number || !is_own_process())
        return REAL(close)(fd);
    atomic_store(&slots_of[fd], 0);
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
    if (number && copy >= 0 && copy < DESCRIPTORS_MAX && is_own_process())
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
    bool is_table = (old || number) && fd != copy && is_own_process();
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
    if (number && result >= 0 && result < DESCRIPTORS_MAX && is_own_process())
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
