/*
 * The program's time, if it is the log's (program.clock = "log").
 *
 *   the leader's program                                   a follower's
 *     epoll_wait() returns ── RECORD_CLOCK ──► log ──► next_us, and then
 *     recv()               ── RECORD_BYTES ──► log ──► the bytes
 *
 * Its time stands still between two inputs, so that all replicas execute each at one time. It goes on when a thread
 * is woken, since programs look at the time then; when one reads or accepts that was not woken long since; and
 * when it has waited in vain, for those whose own timers look at the time.
 *
 * plover sets `next_us` when the program has read all that it was given, and gives the next input after it. So
 * `next_us` belongs to what can be read, as long as that was not read.
 *
 * Only the time of day is the log's. Spans are the host's: CLOCK_MONOTONIC, timeouts, and deadlines.
 */
#include "preload.h"
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/time.h>
#include <time.h>

/* How far behind the host's time the program's may be: for a thread that is woken, reads, or has waited in vain. */
enum { WOKEN_US = 1000, READS_US = 20 * 1000, IDLE_US = 1000 * 1000 };

/* A deadline is the time of day if it is between these. Uptimes are earlier, and "never" is later. */
enum { DAY_S = 300 * 1000 * 1000 };
#define NEVER_S (INT64_MAX / 4)

enum { S_US = 1000 * 1000 };

bool has_log_clock(void)
{
    return shared && shared->log_clock;
}

static uint64_t host_us(void)
{
    struct timespec now;
    REAL(clock_gettime)(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * S_US + (uint64_t)now.tv_nsec / 1000;
}

static void advance(uint64_t to)
{
    uint64_t seen = atomic_load(&shared->now_us);
    while (seen < to && !atomic_compare_exchange_weak(&shared->now_us, &seen, to))
        ;
}

/* The time of what can be read now. */
void follow_clock(void)
{
    if (has_log_clock())
        advance(atomic_load(&shared->next_us));
}

/* The time of a connection on which the log is replayed. */
void follow_clock_of(const struct slot *slot)
{
    if (has_log_clock())
        advance(atomic_load(&slot->time_us));
}

static bool follows_host(void)
{
    return atomic_load(&shared->clock_epoch) == atomic_load(&shared->epoch);
}

static bool is_late(uint64_t us, uint64_t host)
{
    return host >= atomic_load(&shared->now_us) + us;
}

/* Nobody sees a time before it is in the ring: an output waits for all that is there. */
static void fill_clock(uint64_t host)
{
    uint64_t now = atomic_load(&shared->now_us);
    if (now < host)
        now = host;
    struct iovec part = {&now, sizeof now};
    fill(RECORD_CLOCK, 0, 0, &part, sizeof now);
    advance(now);
}

/* Before the input of a read is filled in, under the lock and with CLOCK_ROOM. */
void clock_of_read(void)
{
    if (!has_log_clock() || !follows_host())
        return;
    uint64_t host = host_us();
    if (is_late(READS_US, host))
        fill_clock(host);
}

/* The same for a new client, whose time is always named: a restored program begins with it. */
void clock_of_accept(void)
{
    if (!has_log_clock() || !follows_host())
        return;
    uint64_t host = host_us();
    fill_clock(is_late(READS_US, host) ? host : 0);
}

/* A thread has waited for something to read. */
static int woken(int ready)
{
    if (!has_log_clock())
        return ready;
    int error = errno;
    uint64_t us = ready > 0 ? WOKEN_US : IDLE_US;
    follow_clock();
    if (follows_host() && is_late(us, host_us())) {
        lock_with_room(sizeof(uint64_t));
        uint64_t host = host_us();
        bool is_filled = follows_host() && is_late(us, host);
        if (is_filled)
            fill_clock(host);
        unlock();
        if (is_filled)
            ring_bell();
    }
    errno = error;
    return ready;
}

EXPORT int epoll_wait(int epoll, struct epoll_event *events, int count, int ms)
{
    return woken(REAL(epoll_wait)(epoll, events, count, ms));
}

EXPORT int epoll_pwait(int epoll, struct epoll_event *events, int count, int ms,
                       const sigset_t *signals)
{
    return woken(REAL(epoll_pwait)(epoll, events, count, ms, signals));
}

#if __GLIBC_PREREQ(2, 35)
EXPORT int epoll_pwait2(int epoll, struct epoll_event *events, int count,
                        const struct timespec *within, const sigset_t *signals)
{
    return woken(REAL(epoll_pwait2)(epoll, events, count, within, signals));
}
#endif

EXPORT int poll(struct pollfd *fds, nfds_t count, int ms)
{
    return woken(REAL(poll)(fds, count, ms));
}

EXPORT int ppoll(struct pollfd *fds, nfds_t count, const struct timespec *within,
                 const sigset_t *signals)
{
    return woken(REAL(ppoll)(fds, count, within, signals));
}

EXPORT int select(int count, fd_set *reads, fd_set *writes, fd_set *others, struct timeval *within)
{
    return woken(REAL(select)(count, reads, writes, others, within));
}

EXPORT int pselect(int count, fd_set *reads, fd_set *writes, fd_set *others,
                   const struct timespec *within, const sigset_t *signals)
{
    return woken(REAL(pselect)(count, reads, writes, others, within, signals));
}

/* The forms of programs that are compiled with _FORTIFY_SOURCE. */
extern void __chk_fail(void) __attribute__((noreturn));
EXPORT int __poll_chk(struct pollfd *fds, nfds_t count, int ms, size_t room);
EXPORT int __ppoll_chk(struct pollfd *fds, nfds_t count, const struct timespec *within,
                       const sigset_t *signals, size_t room);

int __poll_chk(struct pollfd *fds, nfds_t count, int ms, size_t room)
{
    if (room / sizeof *fds < count)
        __chk_fail();
    return poll(fds, count, ms);
}

int __ppoll_chk(struct pollfd *fds, nfds_t count, const struct timespec *within,
                const sigset_t *signals, size_t room)
{
    if (room / sizeof *fds < count)
        __chk_fail();
    return ppoll(fds, count, within, signals);
}

/* ---- the time of day */

EXPORT int clock_gettime(clockid_t clock, struct timespec *to)
{
    if (!has_log_clock() || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE))
        return REAL(clock_gettime)(clock, to);
    uint64_t now = atomic_load(&shared->now_us);
    to->tv_sec = (time_t)(now / S_US);
    to->tv_nsec = (long)(now % S_US) * 1000;
    return 0;
}

EXPORT int gettimeofday(struct timeval *restrict to, void *restrict zone)
{
    if (!has_log_clock())
        return REAL(gettimeofday)(to, zone);
    uint64_t now = atomic_load(&shared->now_us);
    if (zone)
        *(struct timezone *)zone = (struct timezone){0};
    struct timeval *volatile given = to; /* which glibc's header says is never NULL */
    if (given)
        *given = (struct timeval){.tv_sec = (time_t)(now / S_US),
                                  .tv_usec = (suseconds_t)(now % S_US)};
    return 0;
}

EXPORT time_t time(time_t *to)
{
    if (!has_log_clock())
        return REAL(time)(to);
    time_t now = (time_t)(atomic_load(&shared->now_us) / S_US);
    if (to)
        *to = now;
    return now;
}

EXPORT int timespec_get(struct timespec *to, int base)
{
    if (!has_log_clock() || base != TIME_UTC)
        return REAL(timespec_get)(to, base);
    clock_gettime(CLOCK_REALTIME, to);
    return base;
}

/* ---- deadlines, which the kernel compares with the host's time */

static struct timespec deadline_of(const struct timespec *given)
{
    struct timespec due = *given;
    if (!has_log_clock() || due.tv_sec < DAY_S || due.tv_sec > NEVER_S)
        return due;
    int64_t ahead = (int64_t)(host_us() - atomic_load(&shared->now_us));
    int64_t us = due.tv_nsec / 1000 + ahead % S_US;
    due.tv_sec += ahead / S_US + (us >= S_US) - (us < 0);
    due.tv_nsec = (us + (us < 0) * S_US - (us >= S_US) * S_US) * 1000;
    return due;
}

/* Before glibc 2.36, dlsym() finds the oldest of two versions, whose conditions are another structure. */
static int cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                          const struct timespec *due)
{
    static __typeof__(pthread_cond_timedwait) *_Atomic found;
    __typeof__(pthread_cond_timedwait) *real = found;
#if defined(__x86_64__)
    if (!real)
        real = (__typeof__(real))dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
#endif
    if (!real)
        real = (__typeof__(real))dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    found = real;
    return real(condition, mutex, due);
}

EXPORT int pthread_cond_timedwait(pthread_cond_t *restrict condition,
                                  pthread_mutex_t *restrict mutex,
                                  const struct timespec *restrict due)
{
    struct timespec deadline = deadline_of(due);
    return cond_timedwait(condition, mutex, &deadline);
}

#if __GLIBC_PREREQ(2, 30)
EXPORT int pthread_cond_clockwait(pthread_cond_t *restrict condition,
                                  pthread_mutex_t *restrict mutex, clockid_t clock,
                                  const struct timespec *restrict due)
{
    struct timespec deadline = clock == CLOCK_REALTIME ? deadline_of(due) : *due;
    return REAL(pthread_cond_clockwait)(condition, mutex, clock, &deadline);
}
#endif

EXPORT int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex,
                                   const struct timespec *restrict due)
{
    struct timespec deadline = deadline_of(due);
    return REAL(pthread_mutex_timedlock)(mutex, &deadline);
}

EXPORT int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict due)
{
    struct timespec deadline = deadline_of(due);
    return REAL(sem_timedwait)(semaphore, &deadline);
}

EXPORT int clock_nanosleep(clockid_t clock, int flags, const struct timespec *due,
                           struct timespec *left)
{
    if (clock != CLOCK_REALTIME || !(flags & TIMER_ABSTIME))
        return REAL(clock_nanosleep)(clock, flags, due, left);
    struct timespec deadline = deadline_of(due);
    return REAL(clock_nanosleep)(clock, flags, &deadline, left);
}
