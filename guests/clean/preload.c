/* plover-clean.so: reports the replies of an unchanged memcached that answers over UDP.
 *
 *     LD_PRELOAD=/lib/plover-clean.so memcached -U 11211 ...
 *
 * It stands between the program and the C library's calls on sockets. A request that is read from a UDP
 * socket begins the writes that it asks for; its reply ends them. The reply of a `get` is clean if all its
 * keys were found and none was written since the cut. Everything else is reported as dirty.
 *
 *     read from a socket         what is in progress                          until
 *     get, gets (UDP)            nothing
 *     set, incr, delete ... (UDP)  a write of its key                         its reply is sent, or *
 *     one other line (UDP)       a write of everything                        its reply is sent, or *
 *     anything else (UDP)        a write of everything                        *
 *     one command (TCP)          a write of everything                        a reply is sent, or *
 *     anything else (TCP)        a write of everything                        *
 *
 *     *: the next read of the same socket begins, or (TCP) the socket is closed.
 *
 * This is right for a program that, like memcached,
 * - executes all that it has read from a socket before it reads the socket again. An exception is known:
 *   it may read on at once if the last read filled its buffer. So a read ends nothing then.
 * - reads one datagram at a time from one descriptor, by one thread for each descriptor.
 * - changes an item in place only if no reply refers to it.
 *
 * A connection over TCP that has sent several commands at once, and then stays open and silent, keeps all
 * replies dirty until it is closed. */
#define _GNU_SOURCE
/* The checked forms of these calls are defined here too. */
#undef _FORTIFY_SOURCE
#include "memcached.h"
#include "plover_clean.h"

#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
/* Of memcached's frame before each datagram: request, sequence, total, reserved. */
#define FRAME_BYTES 8

static bool active;

/* ---- the C library's own calls ---------------------------------------------------------------- */

static ssize_t (*real_read)(int, void *, size_t);
static ssize_t (*real_readv)(int, const struct iovec *, int);
static ssize_t (*real_recvfrom)(int, void *, size_t, int, struct sockaddr *, socklen_t *);
static ssize_t (*real_recvmsg)(int, struct msghdr *, int);
static int (*real_recvmmsg)(int, struct mmsghdr *, unsigned, int, struct timespec *);
static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_writev)(int, const struct iovec *, int);
static ssize_t (*real_sendto)(int, const void *, size_t, int, const struct sockaddr *, socklen_t);
static ssize_t (*real_sendmsg)(int, const struct msghdr *, int);
static int (*real_close)(int);

static void find(void *function, const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (!found)
        abort(); /* every C library of Linux has these calls */
    memcpy(function, &found, sizeof found);
}

/* Other constructors may use the calls before this one ran. */
static void find_all(void)
{
    if (real_close)
        return;
    find(&real_read, "read");
    find(&real_readv, "readv");
    find(&real_recvfrom, "recvfrom");
    find(&real_recvmsg, "recvmsg");
    find(&real_recvmmsg, "recvmmsg");
    find(&real_write, "write");
    find(&real_writev, "writev");
    find(&real_sendto, "sendto");
    find(&real_sendmsg, "sendmsg");
    find(&real_close, "close");
}

__attribute__((constructor)) static void start(void)
{
    find_all();
    active = plover_clean_open();
}

/* ---- sockets ---------------------------------------------------------------------------------- */

enum socket_kind { NO_SOCKET, DATAGRAMS, STREAM };

/* Asked anew each time: descriptors are closed and used again in ways that are not seen here. */
static enum socket_kind kind_of(int fd)
{
    int error = errno, protocol = 0;
    socklen_t bytes = sizeof protocol;
    enum socket_kind kind = STREAM; /* also what is neither TCP nor UDP: all its bytes are unknown */
    if (!active || getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &bytes))
        kind = NO_SOCKET;
    else if (protocol == IPPROTO_UDP)
        kind = DATAGRAMS;
    errno = error;
    return kind;
}

/* What is known of a descriptor. Only the thread that uses the descriptor changes it. */
enum {
    FILLED = 1,   /* the last read filled its buffer, so another may follow before anything is executed */
    OPEN = 2,     /* of a stream: a write of everything is in progress */
    SINGLE = 4,   /* of a stream: the last bytes were one whole command */
    PIPELINED = 8 /* of a stream: once the bytes were not one whole command. Later bytes may be the rest */
};
#define DESCRIPTORS 65536
static _Atomic uint8_t descriptors[DESCRIPTORS];

static bool has(int fd, uint8_t flag)
{
    return fd < DESCRIPTORS && atomic_load(&descriptors[fd]) & flag;
}

static void set(int fd, uint8_t flag, bool on)
{
    if (fd >= DESCRIPTORS)
        return;
    if (on)
        atomic_fetch_or(&descriptors[fd], flag);
    else
        atomic_fetch_and(&descriptors[fd], (uint8_t)~flag);
}

/* ---- streams ----------------------------------------------------------------------------------- */

static void end_stream(int fd)
{
    if (has(fd, OPEN)) {
        set(fd, OPEN, false);
        plover_clean_end_all();
    }
}

static void stream_read(int fd, const char *bytes, size_t count)
{
    struct request request;
    request_parse(&request, bytes, count);
    if (!has(fd, OPEN)) {
        plover_clean_begin_all(); /* for ever, if the descriptor's number is too high for the table */
        set(fd, OPEN, true);
    }
    if (!request.whole || has(fd, FILLED))
        set(fd, PIPELINED, true);
    set(fd, SINGLE, request.whole && !has(fd, PIPELINED));
}

static void stream_sent(int fd)
{
    if (has(fd, SINGLE))
        end_stream(fd);
}

/* ---- datagrams ---------------------------------------------------------------------------------- */

struct client {
    uint8_t address[16];
    uint16_t port;
};

/* The datagram that a thread has read from a descriptor, until the next read. */
struct waiting {
    bool used, key_begun, all_begun;
    bool answered; /* nothing is expected any more, but writes may be in progress */
    int fd;
    struct client client;
    uint16_t id;
    struct request request;
};
/* memcached has one UDP descriptor for each thread and address that it listens on. */
#define WAITING_MAX 16
static _Thread_local struct waiting waiting[WAITING_MAX];

static struct waiting *waiting_of(int fd)
{
    for (int at = 0; at < WAITING_MAX; at++)
        if (waiting[at].used && waiting[at].fd == fd)
            return &waiting[at];
    return NULL;
}

static void end_writes(struct waiting *of)
{
    if (of->key_begun)
        plover_clean_end(of->request.key[0]);
    if (of->all_begun)
        plover_clean_end_all();
    of->key_begun = of->all_begun = false;
}

static bool client_of(const struct sockaddr *from, socklen_t bytes, struct client *client)
{
    memset(client, 0, sizeof *client);
    if (from && bytes >= sizeof(struct sockaddr_in) && from->sa_family == AF_INET) {
        const struct sockaddr_in *four = (const struct sockaddr_in *)from;
        memcpy(client->address, &four->sin_addr, 4);
        client->port = four->sin_port;
        return true;
    }
    if (from && bytes >= sizeof(struct sockaddr_in6) && from->sa_family == AF_INET6) {
        const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)from;
        memcpy(client->address, &six->sin6_addr, 16);
        client->port = six->sin6_port;
        return true;
    }
    return false;
}

static uint16_t id_of(const uint8_t *frame)
{
    return (uint16_t)(frame[0] << 8 | frame[1]);
}

/* Whether the frame is of a request in one datagram. */
static bool single_frame(const uint8_t *frame)
{
    return !frame[2] && !frame[3] && !frame[4] && frame[5] == 1;
}

static void datagram_read(int fd, const char *bytes, size_t count, const struct sockaddr *from,
                          socklen_t from_bytes, bool cut_short)
{
    struct waiting *now = waiting_of(fd);
    if (now) {
        /* The last read has filled its buffer. What is in progress stays so, and no reply is expected. */
        now->answered = true;
        if (!now->all_begun)
            plover_clean_begin_all();
        now->all_begun = true;
        return;
    }
    for (now = waiting; now < waiting + WAITING_MAX && now->used; now++) {
    }
    if (now == waiting + WAITING_MAX) {
        plover_clean_begin_all(); /* for ever: this many descriptors of one thread are not expected */
        return;
    }
    const uint8_t *frame = (const uint8_t *)bytes;
    *now = (struct waiting){.used = true, .fd = fd};
    now->request.kind = UNKNOWN;
    if (client_of(from, from_bytes, &now->client) && !cut_short && count > FRAME_BYTES && single_frame(frame)) {
        now->id = id_of(frame);
        request_parse(&now->request, bytes + FRAME_BYTES, count - FRAME_BYTES);
    } else {
        now->answered = true;
    }
    now->key_begun = now->request.kind == WRITE;
    now->all_begun = now->request.kind == UNKNOWN;
    if (now->key_begun)
        plover_clean_begin(now->request.key[0]);
    if (now->all_begun)
        plover_clean_begin_all();
}

/* The request whose reply this datagram is, or NULL. */
static struct waiting *asked_for(int fd, const struct sockaddr *to, socklen_t to_bytes, const struct iovec *parts,
                                 size_t count)
{
    struct waiting *found = waiting_of(fd);
    struct client client;
    uint8_t frame[FRAME_BYTES];
    size_t got = 0;
    for (size_t part = 0; part < count && got < FRAME_BYTES; part++) {
        size_t some = parts[part].iov_len < FRAME_BYTES - got ? parts[part].iov_len : FRAME_BYTES - got;
        memcpy(frame + got, parts[part].iov_base, some);
        got += some;
    }
    if (!found || found->answered || got < FRAME_BYTES || !client_of(to, to_bytes, &client) ||
        memcmp(&client, &found->client, sizeof client) || id_of(frame) != found->id)
        return NULL;
    return found;
}

/* Reports a datagram that is about to be sent. `after` is what is known of the reply once it is sent. */
static void report(int fd, const struct sockaddr *to, socklen_t to_bytes, const struct iovec *parts, size_t count,
                   struct request *after)
{
    struct waiting *reply_to = asked_for(fd, to, to_bytes, parts, count);
    uint64_t cut = 0;
    after->keys = 0;
    if (reply_to && reply_to->request.kind == READ) {
        *after = reply_to->request;
        bool found = reply_follow(after, parts, count, FRAME_BYTES);
        cut = plover_clean_cut();
        for (unsigned key = 0; key < after->hits && cut; key++)
            if (!plover_clean_unchanged(after->key[key], cut))
                cut = 0;
        if (!found || !after->hits)
            cut = 0;
    } else if (reply_to && reply_to->request.whole) {
        end_writes(reply_to);
        reply_to->answered = true;
    }
    plover_clean_report(fd, to, parts, count, cut);
}

static void datagram_sent(int fd, const struct request *after)
{
    struct waiting *reply_to = waiting_of(fd);
    if (reply_to && after->keys) {
        reply_to->request = *after;
        reply_to->answered = after->done;
    }
}

/* ---- both ---------------------------------------------------------------------------------------- */

static enum socket_kind before_read(int fd)
{
    find_all();
    enum socket_kind kind = kind_of(fd);
    if (kind == NO_SOCKET || has(fd, FILLED))
        return kind;
    if (kind == STREAM) {
        end_stream(fd);
        return kind;
    }
    struct waiting *last = waiting_of(fd);
    if (last) {
        end_writes(last);
        last->used = false;
    }
    return kind;
}

/* `count` is the call's result, `room` the buffer's size. */
static void after_read(int fd, enum socket_kind kind, const char *bytes, ssize_t count, size_t room,
                       const struct sockaddr *from, socklen_t from_bytes, bool cut_short)
{
    int error = errno;
    if (kind == NO_SOCKET)
        return;
    bool filled = count > 0 && (size_t)count >= room;
    if (count > 0) {
        if (kind == STREAM)
            stream_read(fd, bytes, (size_t)count);
        else
            datagram_read(fd, bytes, (size_t)count, from, from_bytes, cut_short || filled);
    }
    set(fd, FILLED, filled);
    /* The other end has closed. Its number may be another connection's soon. */
    if (kind == STREAM && !count && room)
        set(fd, PIPELINED, false);
    errno = error;
}

/* Of several buffers only the first is looked at: memcached reads into one. */
static void after_vector_read(int fd, enum socket_kind kind, const struct iovec *parts, size_t parts_count,
                              ssize_t count, const struct sockaddr *from, socklen_t from_bytes, bool cut_short)
{
    if (count <= 0) {
        after_read(fd, kind, "", count, 1, NULL, 0, false);
        return;
    }
    size_t room = 0;
    for (size_t part = 0; part < parts_count; part++)
        room += parts[part].iov_len;
    if ((size_t)count <= parts[0].iov_len)
        after_read(fd, kind, parts[0].iov_base, count, room, from, from_bytes, cut_short);
    else /* one byte that is no command */
        after_read(fd, kind, "", 1, (size_t)count < room ? 2 : 1, NULL, 0, true);
}

EXPORT ssize_t recvfrom(int fd, void *buffer, size_t room, int flags, struct sockaddr *from, socklen_t *from_bytes)
{
    enum socket_kind kind = before_read(fd);
    ssize_t count = real_recvfrom(fd, buffer, room, flags, from, from_bytes);
    after_read(fd, kind, buffer, count, room, from, from && from_bytes ? *from_bytes : 0, false);
    return count;
}

EXPORT ssize_t recv(int fd, void *buffer, size_t room, int flags)
{
    return recvfrom(fd, buffer, room, flags, NULL, NULL);
}

EXPORT ssize_t read(int fd, void *buffer, size_t room)
{
    enum socket_kind kind = before_read(fd);
    ssize_t count = real_read(fd, buffer, room);
    after_read(fd, kind, buffer, count, room, NULL, 0, false);
    return count;
}

EXPORT ssize_t readv(int fd, const struct iovec *parts, int parts_count)
{
    enum socket_kind kind = before_read(fd);
    ssize_t count = real_readv(fd, parts, parts_count);
    after_vector_read(fd, kind, parts, (size_t)parts_count, count, NULL, 0, false);
    return count;
}

EXPORT ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    enum socket_kind kind = before_read(fd);
    ssize_t count = real_recvmsg(fd, message, flags);
    if (count < 0)
        after_read(fd, kind, "", count, 1, NULL, 0, false);
    else
        after_vector_read(fd, kind, message->msg_iov, message->msg_iovlen, count, message->msg_name,
                          message->msg_namelen, message->msg_flags & MSG_TRUNC);
    return count;
}

/* Several datagrams at once are unknown. */
EXPORT int recvmmsg(int fd, struct mmsghdr *messages, unsigned messages_count, int flags, struct timespec *timeout)
{
    enum socket_kind kind = before_read(fd);
    int count = real_recvmmsg(fd, messages, messages_count, flags, timeout);
    if (count > 0)
        after_read(fd, kind, "", 1, 2, NULL, 0, true);
    return count;
}

EXPORT ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    find_all();
    enum socket_kind kind = kind_of(fd);
    struct request after = {.keys = 0};
    if (kind == STREAM)
        stream_sent(fd);
    if (kind == DATAGRAMS)
        report(fd, message->msg_name, message->msg_namelen, message->msg_iov, message->msg_iovlen, &after);
    ssize_t count = real_sendmsg(fd, message, flags);
    if (kind == DATAGRAMS && count >= 0)
        datagram_sent(fd, &after);
    return count;
}

EXPORT int sendmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags)
{
    for (unsigned at = 0; at < count; at++) {
        ssize_t sent = sendmsg(fd, &messages[at].msg_hdr, flags);
        if (sent < 0)
            return at ? (int)at : -1;
        messages[at].msg_len = (unsigned)sent;
    }
    return (int)count;
}

EXPORT ssize_t sendto(int fd, const void *bytes, size_t count, int flags, const struct sockaddr *to,
                      socklen_t to_bytes)
{
    struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = count};
    struct msghdr message = {.msg_name = (void *)(uintptr_t)to, .msg_namelen = to ? to_bytes : 0,
                             .msg_iov = &part, .msg_iovlen = 1};
    return sendmsg(fd, &message, flags);
}

EXPORT ssize_t send(int fd, const void *bytes, size_t count, int flags)
{
    return sendto(fd, bytes, count, flags, NULL, 0);
}

EXPORT ssize_t writev(int fd, const struct iovec *parts, int count)
{
    find_all();
    if (kind_of(fd) == NO_SOCKET)
        return real_writev(fd, parts, count);
    struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)parts, .msg_iovlen = (size_t)count};
    return sendmsg(fd, &message, 0);
}

EXPORT ssize_t write(int fd, const void *bytes, size_t count)
{
    struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = count};
    find_all();
    return kind_of(fd) == NO_SOCKET ? real_write(fd, bytes, count) : writev(fd, &part, 1);
}

EXPORT int close(int fd)
{
    find_all();
    if (active && fd >= 0 && fd < DESCRIPTORS) {
        end_stream(fd);
        atomic_store(&descriptors[fd], 0);
    }
    return real_close(fd);
}

/* The forms that a program compiled with _FORTIFY_SOURCE calls. */
EXPORT ssize_t __read_chk(int fd, void *buffer, size_t room, size_t size)
{
    return room > size ? (abort(), -1) : read(fd, buffer, room);
}

EXPORT ssize_t __recv_chk(int fd, void *buffer, size_t room, size_t size, int flags)
{
    return room > size ? (abort(), -1) : recv(fd, buffer, room, flags);
}

EXPORT ssize_t __recvfrom_chk(int fd, void *buffer, size_t room, size_t size, int flags, struct sockaddr *from,
                              socklen_t *from_bytes)
{
    return room > size ? (abort(), -1) : recvfrom(fd, buffer, room, flags, from, from_bytes);
}
