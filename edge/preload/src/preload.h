/* What the files of the library share. See preload.c for what the library is. */
#ifndef PLOVER_PRELOAD_H
#define PLOVER_PRELOAD_H
#define _GNU_SOURCE
#include "shared.h"
#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#define EXPORT __attribute__((visibility("default")))

/* The next definition of a function behind this library: the C library's. */
#define REAL(name)                                                                                 \
    ({                                                                                             \
        static __typeof__(name) *_Atomic found;                                                    \
        __typeof__(name) *real = found;                                                            \
        if (!real)                                                                                 \
            found = real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name);                            \
        real;                                                                                      \
    })

enum { DESCRIPTORS_MAX = 65536, PARTS_MAX = 64 };

/* NULL in a program that plover has not started. */
extern struct shared *shared;

/* ring.c */
void lock_with_room(size_t payload);
void unlock(void);
uint64_t fill(uint16_t kind, uint32_t slot, uint16_t flag, const struct iovec *parts, size_t bytes);
void ring_bell(void);
bool is_filling(void);
bool wait_for_commit(const struct slot *slot, uint64_t number);
bool wait_to_send(const struct slot *slot);
void note(const char *words);
void forget_thread(void);

/* descriptors.c: which connection a descriptor is */
uint32_t slot_of(int fd);
struct slot *slot_at(uint32_t number);
struct slot *client_of(int fd);
bool claim(int fd, uint32_t number, uint32_t generation);
void let_go(uint32_t number);
void watch_forks(void);
extern int event_fd, memory_fd;

/* inputs.c */
ssize_t take(int fd, const struct msghdr *message, int flags);

/* clock.c: the program's time */
enum { CLOCK_ROOM = sizeof(struct record) + sizeof(uint64_t) };
bool has_log_clock(void);
void follow_clock(void);
void follow_clock_of(const struct slot *slot);
void clock_of_read(void);
void clock_of_accept(void);

/* connections.c */
bool is_replayed(uint32_t number);

/* outputs.c */
ssize_t put(int fd, const struct msghdr *message, int flags);

/* refused.c */
bool is_refused(const struct sockaddr *to);
void refuse_io_uring(void);
#endif
