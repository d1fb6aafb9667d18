/* The ring, its lock, and the waits. */
#include "preload.h"
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static _Thread_local uint32_t thread;
/* Whether the thread that has the lock could be cancelled before. */
static _Thread_local int cancel_state;

/* After a fork the thread has another number. */
void forget_thread(void)
{
    thread = 0;
}

static uint32_t own(void)
{
    if (!thread)
        thread = (uint32_t)syscall(SYS_gettid);
    return thread;
}

/* plover's death kills the program, but not the program's children. */
static void end_with_plover(void)
{
    if (kill((pid_t)shared->plover_pid, 0) && errno == ESRCH)
        syscall(SYS_exit_group, 1);
}

/* Sleeps while *word is `seen`, for a tenth of a second at most. */
static void nap(_Atomic uint32_t *word, uint32_t seen)
{
    static const struct timespec span = {.tv_nsec = 100 * 1000 * 1000};
    int error = errno;
    if (syscall(SYS_futex, word, FUTEX_WAIT, seen, &span, NULL, 0) && errno == ETIMEDOUT)
        end_with_plover();
    errno = error;
}

/* A thread that is cancelled in a call would keep the lock. So it cannot be cancelled until it has unlocked. */
static void take_lock(void)
{
    int state;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    for (;;) {
        uint32_t seen = 0;
        if (atomic_compare_exchange_strong(&shared->lock, &seen, own()))
            break;
        atomic_fetch_add(&shared->lock_waiters, 1);
        nap(&shared->lock, seen);
        atomic_fetch_sub(&shared->lock_waiters, 1);
    }
    cancel_state = state;
}

void unlock(void)
{
    int state = cancel_state;
    atomic_store(&shared->lock, 0);
    if (atomic_load(&shared->lock_waiters)) {
        int error = errno;
        syscall(SYS_futex, &shared->lock, FUTEX_WAKE, 1, NULL, NULL, 0);
        errno = error;
    }
    pthread_setcancelstate(state, NULL);
}

static size_t whole(size_t payload)
{
    return sizeof(struct record) + ((payload + 7) & ~(size_t)7);
}

static bool has_room(size_t payload)
{
    uint64_t filled = atomic_load(&shared->head) - atomic_load(&shared->tail);
    return filled + whole(payload) <= RING_BYTES;
}

/* Whether plover should take something out soon. */
bool is_filling(void)
{
    return atomic_load(&shared->head) - atomic_load(&shared->tail) > RING_BYTES / 4;
}

/* Takes the lock when there is room for a record. */
void lock_with_room(size_t payload)
{
    for (;;) {
        take_lock();
        if (has_room(payload))
            return;
        unlock();
        ring_bell();
        atomic_fetch_add(&shared->waiters, 1);
        uint32_t bell = atomic_load(&shared->bell);
        if (!has_room(payload))
            nap(&shared->bell, bell);
        atomic_fetch_sub(&shared->waiters, 1);
    }
}

static uint64_t copy_in(uint64_t at, const void *from, size_t bytes)
{
    char *ring = (char *)shared + RING_AT;
    size_t place = at % RING_BYTES, first = RING_BYTES - place;
    if (first > bytes)
        first = bytes;
    memcpy(ring + place, from, first);
    memcpy(ring, (const char *)from + first, bytes - first);
    return at + bytes;
}

/* Fills in a record, under the lock and with room for it. Returns the number of the last input. */
uint64_t fill(uint16_t kind, uint32_t slot, uint16_t flag, const struct iovec *parts, size_t bytes)
{
    uint64_t head = atomic_load(&shared->head), number = atomic_load(&shared->inputs);
    if (kind <= RECORD_END || kind == RECORD_CLOCK)
        number++;
    struct record record = {.bytes = (uint32_t)bytes,
                            .kind = kind,
                            .flag = flag,
                            .slot = slot,
                            .epoch = atomic_load(slot ? &slot_at(slot)->epoch : &shared->epoch),
                            .number = number,
                            .sent = slot ? atomic_load(&slot_at(slot)->sent) : 0};
    uint64_t at = copy_in(head, &record, sizeof record);
    for (size_t left = bytes; left; parts++) {
        size_t part = parts->iov_len < left ? parts->iov_len : left;
        at = copy_in(at, parts->iov_base, part);
        left -= part;
    }
    atomic_store(&shared->head, head + whole(bytes));
    /* Behind it: a process that is killed here has filled in a whole record or none. */
    atomic_store(&shared->inputs, number);
    return number;
}

/* Wakes plover, if it sleeps. */
void ring_bell(void)
{
    if (atomic_load(&shared->sleeps) && atomic_exchange(&shared->sleeps, 0)) {
        int error = errno;
        uint64_t one = 1;
        ssize_t ignored = syscall(SYS_write, event_fd, &one, sizeof one);
        (void)ignored;
        errno = error;
    }
}

static bool is_cut_off(const struct slot *slot)
{
    return atomic_load(&slot->epoch) != atomic_load(&shared->epoch);
}

/* Waits until an input is committed. False if it is not in the log. */
bool wait_for_commit(const struct slot *slot, uint64_t number)
{
    bool is_lost, is_committed;
    atomic_fetch_add(&shared->waiters, 1);
    for (;;) {
        uint32_t bell = atomic_load(&shared->bell);
        is_committed = number <= atomic_load(&shared->committed);
        is_lost = number >= atomic_load(&slot->lost_from);
        if (is_lost || is_committed)
            break;
        nap(&shared->bell, bell);
    }
    atomic_fetch_sub(&shared->waiters, 1);
    return !is_lost;
}

/* Whether output may leave that follows this input. Another replica may lead when the lease is over, and what the
 * program says of itself, as at the end of a timeout, would be of an old state. */
static bool may_send(uint64_t inputs)
{
    struct timespec now;
    if (!shared->wait_read && atomic_load(&shared->committed) < inputs)
        return false;
    REAL(clock_gettime)(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000 <
           atomic_load(&shared->leased_until);
}

/* Waits until all that was read is committed, and no other replica can lead. False if the connection is over. */
bool wait_to_send(const struct slot *slot)
{
    uint64_t inputs = atomic_load(&shared->inputs);
    if (!may_send(inputs)) {
        atomic_fetch_add(&shared->waiters, 1);
        for (;;) {
            uint32_t bell = atomic_load(&shared->bell);
            if (is_cut_off(slot) || may_send(inputs))
                break;
            nap(&shared->bell, bell);
        }
        atomic_fetch_sub(&shared->waiters, 1);
    }
    return !is_cut_off(slot);
}

/* Tells the operator something. */
void note(const char *words)
{
    struct iovec part = {(void *)words, strlen(words)};
    lock_with_room(part.iov_len);
    fill(RECORD_NOTE, 0, 0, &part, part.iov_len);
    unlock();
    ring_bell();
}
