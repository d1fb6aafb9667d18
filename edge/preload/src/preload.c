/*
 * The library that plover preloads into a replicated program (APUS §3).
 *
 * On the leader a client's connection is the program's own. This library stands between the program and the C
 * library's socket calls. It copies what the program reads into a ring in memory that it shares with plover, its
 * parent, which proposes it:
 *
 *   client ──► recv() ─┬─► the program                       write() ──► client
 *                      └─► ring ─► plover ─► log ─► committed ──┘ waits for this, once
 *
 * With `wait_read` the read itself ends when its input is committed, as in the paper.
 *
 * plover accepts clients. It connects to the program's port for each, so that the program's accept() returns, and
 * accept() here fetches the client's socket from plover and puts it in the place of that connection. On a follower
 * that connection is the one on which plover replays the log, and this library adds the client's address alone.
 *
 * No call waits without end: every wait looks ten times a second whether plover is still there.
 *
 *   ring.c         the ring, its lock, and the waits
 *   connections.c  accept, shutdown, addresses
 *   descriptors.c  close, dup, fork: which descriptor is which connection
 *   inputs.c       the read family
 *   outputs.c      the write family
 *   clock.c        the program's time
 *   refused.c      what is not replicated, and refused
 */
#include "preload.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct shared *shared;
int event_fd = -1, memory_fd = -1;

__attribute__((constructor)) static void begin(void)
{
    const char *words = getenv("PLOVER_PRELOAD");
    int memory, event;
    if (!words || sscanf(words, "%d,%d", &memory, &event) != 2)
        return;
    void *at = mmap(NULL, RING_AT + RING_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    if (at == MAP_FAILED)
        return;
    struct shared *found = at;
    if (found->magic != SHARED_MAGIC || found->version != SHARED_VERSION) {
        munmap(at, RING_AT + RING_BYTES);
        return;
    }
    memory_fd = memory;
    event_fd = event;
    shared = found;
    watch_forks();
    refuse_io_uring();
}
