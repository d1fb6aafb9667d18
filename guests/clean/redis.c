/* The connections of a Redis: see redis.h. */
#include "redis.h"
#include "plover_clean.h"
#include "resp.h"

#include <stdlib.h>
#include <string.h>

/* A key of a command that was read and is not answered; of a command without keys, the command. */
struct asked {
    uint64_t key;
    enum resp_kind kind;
    bool last; /* of its command */
};
/* Of a connection that has asked for more nothing is followed. */
#define ASKED_MAX (1u << 20)

/* A ring of keys, numbered from 0. */
struct ring {
    uint64_t oldest, newest; /* the oldest one's number; that of the next */
    struct asked *keys;
    uint32_t room; /* a power of two */
};

struct connection {
    bool accepted; /* accept() was seen */
    bool reports;  /* it is a TCP connection, whose replies the host sees as they are */
    bool lost;     /* its replies are not followed any more */
    bool wrong;    /* nor are its commands */
    bool all;      /* a write of everything is in progress until it is closed */
    uint64_t taken;    /* bytes that it has taken since accept() */
    uint64_t followed; /* and those that it was given: it may not take all at once */
    struct resp_command command;
    struct resp_reply reply;
    struct ring asked;
    uint64_t whole; /* the number after the last key of a whole command */
    struct ring queued; /* keys of a transaction that is not executed */
};

#define DESCRIPTORS 65536
/* Each is made when its descriptor is first used, and stays. Only the thread that uses the descriptor changes it. */
static struct connection *connections[DESCRIPTORS];

/* Those of descriptors over which nothing was read or accepted are not known. */
static struct connection *known(int fd)
{
    return fd >= 0 && fd < DESCRIPTORS ? connections[fd] : NULL;
}

static struct connection *connection_of(int fd)
{
    if (fd < 0 || fd >= DESCRIPTORS)
        return NULL;
    if (!connections[fd])
        connections[fd] = calloc(1, sizeof *connections[fd]);
    return connections[fd];
}

static struct asked *at(const struct ring *ring, uint64_t number)
{
    return &ring->keys[number & (ring->room - 1)];
}

static bool grow(struct ring *ring)
{
    uint32_t room = ring->room ? ring->room * 2 : 8;
    struct asked *larger = room > ASKED_MAX ? NULL : calloc(room, sizeof *larger);
    if (!larger)
        return false;
    for (uint64_t number = ring->oldest; number < ring->newest; number++)
        larger[number & (room - 1)] = *at(ring, number);
    free(ring->keys);
    ring->keys = larger;
    ring->room = room;
    return true;
}

static bool append(struct ring *ring, struct asked asked)
{
    if (ring->newest - ring->oldest == ring->room && !grow(ring))
        return false;
    *at(ring, ring->newest++) = asked;
    return true;
}

static void end_write(const struct asked *asked)
{
    if (asked->kind == RESP_WRITES)
        plover_clean_end(asked->key);
    if (asked->kind == RESP_ALL)
        plover_clean_end_all();
}

static void end_queued(struct connection *of)
{
    for (; of->queued.oldest < of->queued.newest; of->queued.oldest++)
        end_write(at(&of->queued, of->queued.oldest));
}

/* ---- what is read ------------------------------------------------------------------------------- */

static void begin_all(struct connection *of)
{
    if (!of->all)
        plover_clean_begin_all();
    of->all = true;
}

/* A command is whole. Its keys are in the ring, but not begun. */
static bool begin(struct connection *of, enum resp_kind kind)
{
    struct ring *asked = &of->asked;
    of->lost |= kind == RESP_MUTE || kind == RESP_UNKNOWN;
    if (of->lost) {
        asked->newest = of->whole;
        /* Writes that EXEC executes are in progress. */
        if (kind == RESP_WRITES || kind == RESP_ALL || kind == RESP_UNKNOWN)
            begin_all(of);
        return true;
    }
    if (asked->newest == of->whole) {
        /* Without a key, a command that needs one is refused. */
        bool needs = kind == RESP_READS || kind == RESP_WRITES;
        if (!append(asked, (struct asked){.kind = needs ? RESP_NEUTRAL : kind}))
            return false;
        kind = at(asked, of->whole)->kind;
    }
    if (kind == RESP_ALL)
        plover_clean_begin_all();
    for (; of->whole < asked->newest; of->whole++) {
        struct asked *key = at(asked, of->whole);
        key->kind = kind;
        key->last = of->whole + 1 == asked->newest;
        if (kind == RESP_WRITES)
            plover_clean_begin(key->key);
    }
    return true;
}

void redis_read(int fd, const char *bytes, size_t count)
{
    struct connection *of = connection_of(fd);
    if (!of) {
        plover_clean_begin_all(); /* for ever: so many descriptors, or so little memory, are not expected */
        return;
    }
    bool followed = of->accepted && !of->wrong && bytes;
    enum resp_step step;
    size_t used;
    while (followed && (step = resp_read(&of->command, bytes, count, &used)) != RESP_MORE) {
        bytes += used;
        count -= used;
        if (step == RESP_KEY) {
            followed = append(&of->asked, (struct asked){.key = of->command.key});
        } else if (step == RESP_DONE) {
            followed = begin(of, of->command.kind);
            of->command = (struct resp_command){.words = 0};
        } else {
            followed = false;
        }
    }
    if (!followed) {
        of->asked.newest = of->whole;
        of->lost = of->wrong = true;
        begin_all(of);
    }
}

/* ---- what is sent ------------------------------------------------------------------------------- */

/* Bytes of clean replies, one after the other. */
struct run {
    uint64_t from, to, cut;
};

static void report(int fd, struct run *run)
{
    if (run->cut)
        plover_clean_report_stream(fd, run->from, run->to - run->from, run->cut);
    run->cut = 0;
}

static void extend(int fd, struct run *run, uint64_t from, uint64_t to, uint64_t cut)
{
    if (cut != run->cut || from != run->to) {
        report(fd, run);
        *run = (struct run){.from = from, .cut = cut};
    }
    run->to = to;
}

/* The cut as of which the reply to the oldest command, as far as it was followed, is clean, or 0. */
static uint64_t clean_cut(const struct connection *of)
{
    const struct resp_reply *reply = &of->reply;
    uint64_t number = of->asked.oldest;
    if (!of->reports || at(&of->asked, number)->kind != RESP_READS || reply->absent || !reply->begun || reply->line_count)
        return 0;
    uint64_t cut = plover_clean_cut();
    for (;; number++) {
        const struct asked *asked = at(&of->asked, number);
        if (!cut || !plover_clean_unchanged(asked->key, cut))
            return 0;
        if (asked->last)
            return cut;
    }
}

/* The oldest command is answered: executed, refused, or queued. */
static void end_oldest(struct connection *of)
{
    struct ring *ring = &of->asked;
    for (bool last = false; !last; ring->oldest++) {
        const struct asked *asked = at(ring, ring->oldest);
        last = asked->last;
        if (asked->kind == RESP_ENDS)
            end_queued(of);
        if (of->reply.queued && append(&of->queued, *asked))
            continue;
        if (of->reply.queued)
            begin_all(of); /* as it will write at any time */
        end_write(asked);
    }
}

/* Follows replies, and reports which are clean. False if they are not the replies to what was asked. */
static bool follow(struct connection *of, int fd, const char *bytes, size_t count, struct run *run)
{
    while (count) {
        size_t used;
        uint64_t from = of->followed;
        enum resp_step step = of->asked.oldest == of->whole ? RESP_WRONG : resp_follow(&of->reply, bytes, count, &used);
        if (step == RESP_WRONG)
            return false;
        of->followed += used;
        bytes += used;
        count -= used;
        extend(fd, run, from, of->followed, clean_cut(of));
        if (step == RESP_DONE) {
            end_oldest(of);
            of->reply = (struct resp_reply){.begun = false};
        }
    }
    return true;
}

void redis_sends(int fd, const struct iovec *parts, size_t count)
{
    struct connection *of = known(fd);
    if (!of || !of->accepted)
        return;
    struct run run = {.cut = 0};
    uint64_t skipped = of->followed - of->taken;
    for (size_t part = 0; part < count && !of->lost; part++) {
        size_t bytes = parts[part].iov_len, skip = skipped < bytes ? skipped : bytes;
        skipped -= skip;
        of->lost = !follow(of, fd, (const char *)parts[part].iov_base + skip, bytes - skip, &run);
    }
    report(fd, &run);
}

void redis_sent(int fd, size_t bytes)
{
    struct connection *of = known(fd);
    if (of)
        of->taken += bytes;
}

/* ---- connections -------------------------------------------------------------------------------- */

void redis_closed(int fd)
{
    struct connection *of = known(fd);
    if (!of)
        return;
    for (; of->asked.oldest < of->whole; of->asked.oldest++)
        end_write(at(&of->asked, of->asked.oldest));
    end_queued(of);
    if (of->all)
        plover_clean_end_all();
    free(of->asked.keys);
    free(of->queued.keys);
    *of = (struct connection){.accepted = false};
}

bool redis_knows(int fd)
{
    struct connection *of = known(fd);
    return of && of->accepted;
}

void redis_accepted(int fd, bool tcp)
{
    redis_closed(fd); /* one that was closed unseen */
    struct connection *of = connection_of(fd);
    if (of) {
        of->accepted = true;
        of->reports = tcp;
    }
}
