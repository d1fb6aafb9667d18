/* memcached's text protocol, as far as needed to know what a request writes and what a reply depends on.
 * No I/O, and nothing of UDP: the bytes may as well come from a TCP connection. */
#ifndef PLOVER_CLEAN_MEMCACHED_H
#define PLOVER_CLEAN_MEMCACHED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

enum kind {
    READ,   /* get, gets; a reply of gets is never clean */
    WRITE,  /* a command that writes one key */
    UNKNOWN /* anything else: it may write everything */
};

#define REQUEST_KEYS_MAX 64

struct request {
    enum kind kind;
    /* The bytes are exactly one command, so that it is done when its reply is sent. Always true of READ and
     * WRITE; an UNKNOWN command has it if it is one line. */
    bool whole;
    uint64_t data; /* bytes that follow the line, with their line end */
    unsigned keys;
    uint64_t key[REQUEST_KEYS_MAX];

    /* How far the reply of a READ was seen. Each key's value may be a datagram of its own, or several. */
    unsigned hits;
    uint64_t value_left; /* bytes of a value that the next datagram goes on with */
    bool failed;         /* a miss, an error, or something not understood: dirty from here on */
    bool done;           /* the last line was seen */
};

/* A datagram's bytes. */
void request_parse(struct request *request, const char *bytes, size_t count);

/* The line of a command, without its line feed. */
void request_line(struct request *request, const char *line, size_t count);

/* Follows the reply of a READ by one datagram, whose first `skip` bytes are left out. Returns whether all that was
 * sent so far depends only on keys that were found: key[0] to key[hits - 1]. */
bool reply_follow(struct request *request, const struct iovec *parts, size_t count, size_t skip);

#endif
