/*
 * Which process has which connection open: fork, exec, and the end of a process.
 *
 * `refs` of a slot counts the processes that have the connection open. Each process has a place in the shared memory, with
 * a bit for each connection that it has open:
 *
 *   fork()    the child's bits are set before it is made, and cleared again if it is not made
 *   close()   of the last descriptor clears the bit
 *   exec      clears those that the kernel will close
 *   exit      clears all; if the process is killed, plover does it when it finds the process gone
 *
 * The connection is closed when no process has it open any more. Bits are cleared under the lock.
 */
#include "preload.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The process whose memory this is. A child of vfork() has its own descriptors and writes into this memory. */
static pid_t process;
/* Its place: the number and 1. */
static uint32_t own_place;
/* The place of the child that this thread makes, or 0, and the word in `processes` that names it. The word is 0 if the
 * library does not know this process, as after a clone(): then it does not know the child. */
static _Thread_local uint32_t child_place;
static _Thread_local uint64_t child_name;

bool is_own_process(void)
{
    return getpid() == process;
}

/* ---- bits */

static _Atomic uint32_t *word_at(uint32_t place, uint32_t number)
{
    return &shared->holds[place - 1][(number - 1) / 32];
}

static uint32_t bit_of(uint32_t number)
{
    return 1u << (number - 1) % 32;
}

static bool has_open(uint32_t place, uint32_t number)
{
    return atomic_load(word_at(place, number)) & bit_of(number);
}

static void set_open(uint32_t place, uint32_t number)
{
    atomic_fetch_or(word_at(place, number), bit_of(number));
}

static void clear_open(uint32_t place, uint32_t number)
{
    struct slot *slot = slot_at(number);
    uint32_t bit = bit_of(number);
    lock_with_room(0);
    bool had = atomic_fetch_and(word_at(place, number), ~bit) & bit;
    bool is_last = had && atomic_fetch_sub(&slot->refs, 1) == 1;
    if (is_last)
        fill(RECORD_CLOSE, number, (uint16_t)atomic_load(&slot->broken), NULL, 0);
    unlock();
    if (is_last)
        ring_bell();
}

static void clear_all(uint32_t place)
{
    for (uint32_t number = 1; number <= SLOTS; number++)
        if (has_open(place, number))
            clear_open(place, number);
}

/* This process has opened the connection, and counted it. */
void opened(uint32_t number)
{
    set_open(own_place, number);
}

/* This process has the connection open no more. */
void closed(uint32_t number)
{
    clear_open(own_place, number);
}

/* ---- places */

static uint64_t named(uint64_t name, pid_t pid)
{
    return (name & ~(uint64_t)UINT32_MAX) | (uint32_t)pid;
}

/* Takes a free place for a process that is named as this one, so far. Returns 0 if there is none. */
static uint32_t take_place(uint64_t *name)
{
    pid_t own = getpid();
    for (uint32_t place = 1; place <= PROCESSES; place++) {
        uint64_t seen = atomic_load(&shared->processes[place - 1]);
        *name = named(seen + ((uint64_t)1 << 32), own);
        if (!(uint32_t)seen &&
            atomic_compare_exchange_strong(&shared->processes[place - 1], &seen, *name))
            return place;
    }
    return 0;
}

/* The place of this process. It has one already after an exec, with what stays open. */
static uint32_t find_place(void)
{
    uint64_t name;
    for (uint32_t place = 1; place <= PROCESSES; place++)
        if ((uint32_t)atomic_load(&shared->processes[place - 1]) == (uint32_t)getpid())
            return place;
    return take_place(&name);
}

/* ---- fork */

/* The child has all connections open, too. They are counted for it before it is made: this process may close them before
 * the child runs. */
static void before_fork(void)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    child_place = 0;
    child_name = 0;
    if (!shared || !is_own_process())
        return;
    child_place = take_place(&child_name);
    if (!child_place) {
        if (!atomic_flag_test_and_set(&told))
            note("the program has more processes than plover can follow (4096): the newest have no "
                 "connections");
        return;
    }
    /* A signal's handler that forks may have interrupted this thread in the middle of a read. */
    bool is_locked = has_lock();
    if (!is_locked)
        take_lock();
    for (uint32_t number = 1; number <= SLOTS; number++) {
        if (!has_open(own_place, number))
            continue;
        atomic_fetch_add(&slot_at(number)->refs, 1);
        set_open(child_place, number);
    }
    if (!is_locked)
        unlock();
}

/* Names the child. False if plover has given the place back, since the parent was killed. The parent names it, too. */
static bool name_child(void)
{
    _Atomic uint64_t *name = &shared->processes[child_place - 1];
    uint64_t seen = child_name;
    if (atomic_compare_exchange_strong(name, &seen, named(child_name, process)))
        return true;
    return seen >> 32 == child_name >> 32 && (uint32_t)seen && (uint32_t)seen != PROCESS_GONE;
}

static void in_child(void)
{
    forget_thread();
    if (!shared || !child_name)
        return;
    process = getpid();
    own_place = child_place && name_child() ? child_place : 0;
    child_place = 0;
    count_again();
    /* Another thread may have opened or closed some after they were counted. */
    for (int fd = 0, high = highest_descriptor(); fd <= high; fd++) {
        uint32_t number = slot_of(fd);
        if (number && !(own_place && has_open(own_place, number)))
            abandon(fd);
    }
    if (!own_place) {
        shared = NULL;
        return;
    }
    for (uint32_t number = 1; number <= SLOTS; number++)
        if (has_open(own_place, number) && !is_open(number))
            closed(number);
}

EXPORT pid_t fork(void)
{
    child_place = 0;
    pid_t child = REAL(fork)();
    int error = errno;
    if (child && child_place) {
        uint64_t name = child_name;
        if (child < 0)
            clear_all(child_place);
        atomic_compare_exchange_strong(&shared->processes[child_place - 1], &name,
                                       named(name, child < 0 ? 0 : child));
        child_place = 0;
    }
    errno = error;
    return child;
}

/* ---- exec */

/* The generation of each connection that this process has closed for an exec, or 0. */
static uint32_t closed_for_exec[SLOTS];

/* The kernel closes descriptors with FD_CLOEXEC, and nothing tells when. */
static void before_exec(void)
{
    uint32_t stays[SLOTS / 32] = {0};
    if (!shared || !is_own_process())
        return;
    for (int fd = 0, high = highest_descriptor(); fd <= high; fd++) {
        uint32_t number = slot_of(fd);
        if (number && !(REAL(fcntl)(fd, F_GETFD) & FD_CLOEXEC))
            stays[(number - 1) / 32] |= bit_of(number);
    }
    for (uint32_t number = 1; number <= SLOTS; number++) {
        bool is_closed = is_open(number) && !(stays[(number - 1) / 32] & bit_of(number));
        closed_for_exec[number - 1] = is_closed ? atomic_load(&slot_at(number)->generation) : 0;
        if (is_closed)
            closed(number);
    }
}

/* Counts the connection again. False if it is over, since no other process had it open. */
static bool reopened(uint32_t number, uint32_t generation)
{
    struct slot *slot = slot_at(number);
    bool lives;
    take_lock();
    uint32_t refs = atomic_load(&slot->refs);
    do
        lives = refs && refs < REFS_NOT_ACCEPTED && atomic_load(&slot->generation) == generation;
    while (lives && !atomic_compare_exchange_strong(&slot->refs, &refs, refs + 1));
    if (lives)
        opened(number);
    unlock();
    return lives;
}

/* The exec has failed. */
static void after_exec(void)
{
    if (!shared || !is_own_process())
        return;
    for (uint32_t number = 1; number <= SLOTS; number++) {
        uint32_t generation = closed_for_exec[number - 1];
        if (!generation || !is_open(number) || reopened(number, generation))
            continue;
        for (int fd = 0, high = highest_descriptor(); fd <= high; fd++)
            if (slot_of(fd) == number)
                abandon(fd);
    }
}

#define EXEC(call)                                                                                 \
    ({                                                                                             \
        before_exec();                                                                             \
        int failed = (call), error = errno;                                                        \
        after_exec();                                                                              \
        errno = error;                                                                             \
        failed;                                                                                    \
    })

EXPORT int execve(const char *path, char *const words[], char *const variables[])
{
    return EXEC(REAL(execve)(path, words, variables));
}

EXPORT int execv(const char *path, char *const words[])
{
    return execve(path, words, environ);
}

EXPORT int execvpe(const char *file, char *const words[], char *const variables[])
{
    return EXEC(REAL(execvpe)(file, words, variables));
}

EXPORT int execvp(const char *file, char *const words[])
{
    return execvpe(file, words, environ);
}

EXPORT int fexecve(int fd, char *const words[], char *const variables[])
{
    return EXEC(REAL(fexecve)(fd, words, variables));
}

#if __GLIBC_PREREQ(2, 34)
EXPORT int execveat(int fd, const char *path, char *const words[], char *const variables[],
                    int flags)
{
    return EXEC(REAL(execveat)(fd, path, words, variables, flags));
}
#endif

/* How many words there are, with the NULL behind them. */
static size_t count_words(const char *first, va_list *rest)
{
    size_t count = 1;
    for (const char *word = first; word; word = va_arg(*rest, const char *))
        count++;
    return count;
}

static void gather_words(char **words, size_t count, const char *first, va_list *rest)
{
    words[0] = (char *)first;
    for (size_t i = 1; i < count; i++)
        words[i] = va_arg(*rest, char *);
}

EXPORT int execl(const char *path, const char *first, ...)
{
    va_list rest;
    va_start(rest, first);
    size_t count = count_words(first, &rest);
    va_end(rest);
    char *words[count];
    va_start(rest, first);
    gather_words(words, count, first, &rest);
    va_end(rest);
    return execv(path, words);
}

EXPORT int execlp(const char *file, const char *first, ...)
{
    va_list rest;
    va_start(rest, first);
    size_t count = count_words(first, &rest);
    va_end(rest);
    char *words[count];
    va_start(rest, first);
    gather_words(words, count, first, &rest);
    va_end(rest);
    return execvp(file, words);
}

EXPORT int execle(const char *path, const char *first, ...)
{
    va_list rest;
    va_start(rest, first);
    size_t count = count_words(first, &rest);
    va_end(rest);
    char *words[count];
    va_start(rest, first);
    gather_words(words, count, first, &rest);
    char **variables = va_arg(rest, char **);
    va_end(rest);
    return execve(path, words, variables);
}

/* ---- the end */

/* At the end of a process, its descriptors are closed. */
static void let_all_go(void)
{
    if (!shared || !is_own_process())
        return;
    /* The handler of a signal may end the process in the middle of a read. */
    if (has_lock())
        unlock();
    for (int fd = 0, high = highest_descriptor(); fd <= high; fd++)
        if (slot_of(fd))
            close(fd);
    clear_all(own_place);
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

/* False if there are too many processes. */
bool begin_process(void)
{
    process = getpid();
    own_place = find_place();
    if (own_place)
        pthread_atfork(before_fork, NULL, in_child);
    return own_place;
}
