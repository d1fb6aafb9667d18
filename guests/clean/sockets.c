/* Requests and replies on sockets: see sockets.h. */
#define _GNU_SOURCE
#include "sockets.h"
#include "plover_clean.h"
#include "redis.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Of memcached's frame before each datagram: request, sequence, total, reserved. */
#define FRAME_BYTES 8

static bool active;
static bool redis; /* the program is one; otherwise it is a memcached */

void start_sockets(void)
{
    /* Not by what is said to it: memcached executes lines that Redis's protocol takes for data. */
    redis = strstr(program_invocation_short_name, "redis") || strstr(program_invocation_short_name, "valkey");
    active = plover_clean_open();
}

/* ---- sockets ---------------------------------------------------------------------------------- */

/* 0: it is no socket. Asked anew each time: descriptors are closed and used again in ways that are not seen here. */
static int protocol_of(int fd)
{
    int error = errno, protocol = 0;
    socklen_t bytes = sizeof protocol;
    bool socket = active && !getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &bytes);
    errno = error;
    return socket && !protocol ? IPPROTO_RAW : protocol; /* a Unix socket has none */
}

enum socket_kind kind_of(int fd)
{
    /* Without a system call. If it was closed unseen, its next bytes are not those that are expected, and it is not followed. */
    if (redis && redis_knows(fd))
        return STREAM;
    int protocol = protocol_of(fd);
    /* Others than TCP and UDP are followed, too: their bytes may be commands. */
    return !protocol ? NO_SOCKET : protocol == IPPROTO_UDP ? DATAGRAMS : STREAM;
}

/* What is known of a descriptor. Only the thread that uses the descriptor changes it. */
enum {
    FILLED = 1,   /* the last read filled its buffer, so another may follow before anything is executed */
    FOREIGN = 2,  /* of a stream: its commands are not followed any more */
    OPEN = 4,     /* of a foreign stream: a write of everything is in progress */
    SINGLE = 8,   /* of a foreign stream: the last bytes were one whole command */
    PIPELINED = 16 /* of a foreign stream: once the bytes were not one whole command. Later bytes may be the rest */
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

/* ---- foreign streams ---------------------------------------------------------------------------- */

static void end_foreign(int fd)
{
    if (has(fd, OPEN)) {
        set(fd, OPEN, false);
        plover_clean_end_all();
    }
}

static void foreign_read(int fd, const char *bytes, size_t count)
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

/* ---- streams ------------------------------------------------------------------------------------ */

/* Where a stream of commands stands. */
enum stage {
    BETWEEN, /* the next byte begins a command */
    LINE,    /* in a line */
    DATA,    /* in the data of a write, which is begun */
    ASKED    /* a whole command was read, and is not answered */
};

/* Memcached takes longer lines for a mistake, but for those of a get with many keys. */
#define LINE_MAX_BYTES 2048

struct stream {
    enum stage stage;
    char line[LINE_MAX_BYTES];
    size_t line_count;
    uint64_t data_left;
    char data_last[2]; /* its last two bytes */
    struct request request;

    bool counted;   /* it is a TCP connection, and accept() was seen */
    uint64_t taken; /* bytes that the connection has taken since */
};
/* Each is made when its descriptor is first used, and stays. */
static struct stream *streams[DESCRIPTORS];

static struct stream *stream_of(int fd)
{
    if (fd >= DESCRIPTORS)
        return NULL;
    if (!streams[fd])
        streams[fd] = calloc(1, sizeof *streams[fd]);
    return streams[fd];
}

static void end_command(struct stream *stream)
{
    if ((stream->stage == DATA || stream->stage == ASKED) && stream->request.kind == WRITE)
        plover_clean_end(stream->request.key[0]);
    stream->stage = BETWEEN;
    stream->line_count = 0;
}

/* A line is whole. */
static void stream_line(struct stream *stream)
{
    struct request *request = &stream->request;
    request_line(request, stream->line, stream->line_count);
    stream->line_count = 0;
    stream->stage = request->data ? DATA : ASKED;
    stream->data_left = request->data;
    if (request->kind == WRITE)
        plover_clean_begin(request->key[0]);
}

/* Follows the commands. False if they are not one after the other, or not understood. */
static bool stream_follow(struct stream *stream, const char *bytes, size_t count)
{
    for (size_t at = 0; at < count;) {
        if (stream->stage == ASKED)
            return false;
        if (stream->stage == DATA) {
            size_t passed = stream->data_left < count - at ? stream->data_left : count - at;
            for (size_t last = passed > 2 ? passed - 2 : 0; last < passed; last++) {
                stream->data_last[0] = stream->data_last[1];
                stream->data_last[1] = bytes[at + last];
            }
            at += passed;
            stream->data_left -= passed;
            if (stream->data_left)
                continue;
            if (memcmp(stream->data_last, "\r\n", 2))
                return false;
            stream->stage = ASKED;
        } else if (bytes[at] == '\n') {
            at++;
            stream_line(stream);
            if (stream->request.kind == UNKNOWN)
                return false;
        } else if (stream->stage == BETWEEN && (bytes[at] < 'a' || bytes[at] > 'z')) {
            return false; /* memcached takes it for its binary protocol, or for nothing */
        } else if (stream->line_count == sizeof stream->line) {
            return false;
        } else {
            stream->stage = LINE;
            stream->line[stream->line_count++] = bytes[at++];
        }
    }
    return true;
}

static void stream_read(int fd, const char *bytes, size_t count)
{
    struct stream *stream = has(fd, FOREIGN) ? NULL : stream_of(fd);
    bool begins = stream && stream->stage == BETWEEN;
    if (stream && stream_follow(stream, bytes, count))
        return;
    foreign_read(fd, bytes, count);
    if (!begins && !has(fd, FOREIGN)) {
        /* Bytes of before belong to the same command. */
        set(fd, PIPELINED, true);
        set(fd, SINGLE, false);
    }
    if (stream)
        end_command(stream);
    set(fd, FOREIGN, true);
}

/* Whether memcached reads the data of a write straight into its place, and then executes it. */
static bool reads_data(int fd)
{
    struct stream *stream = has(fd, FOREIGN) ? NULL : stream_of(fd);
    return stream && stream->stage == DATA;
}

static void before_stream_read(int fd)
{
    struct stream *stream = has(fd, FOREIGN) ? NULL : stream_of(fd);
    end_foreign(fd);
    if (stream && stream->stage == ASKED)
        end_command(stream);
}

static size_t bytes_of(const struct msghdr *message)
{
    size_t bytes = 0;
    for (size_t part = 0; part < message->msg_iovlen; part++)
        bytes += message->msg_iov[part].iov_len;
    return bytes;
}

/* The cut as of which the reply of a READ is clean so far, or 0. */
static uint64_t clean_cut(const struct request *after, bool found)
{
    uint64_t cut = plover_clean_cut();
    for (unsigned key = 0; key < after->hits && cut; key++)
        if (!plover_clean_unchanged(after->key[key], cut))
            cut = 0;
    return found && after->hits ? cut : 0;
}

/* A reply is about to be sent. The command that it answers was executed. */
static void before_stream_send(int fd, const struct msghdr *message, struct request *after)
{
    if (has(fd, FOREIGN)) {
        if (has(fd, SINGLE))
            end_foreign(fd);
        return;
    }
    struct stream *stream = stream_of(fd);
    /* Between commands it is the rest of a message that was not taken whole, and was reported whole. */
    if (!stream || stream->stage == BETWEEN)
        return;
    if (stream->stage != ASKED || stream->request.kind != READ) {
        if (stream->stage != ASKED) {
            /* A command that is refused before all its data has come: what follows may be anything. */
            foreign_read(fd, "", 0);
            set(fd, FOREIGN, true);
        }
        end_command(stream);
        return;
    }
    *after = stream->request;
    bool found = reply_follow(after, message->msg_iov, message->msg_iovlen, 0);
    uint64_t cut = clean_cut(after, found);
    if (stream->counted)
        plover_clean_report_stream(fd, stream->taken, bytes_of(message), cut);
}

static void stream_sent(int fd, ssize_t count, const struct request *after)
{
    struct stream *stream = stream_of(fd);
    if (!stream)
        return;
    if (count > 0)
        stream->taken += (uint64_t)count;
    if (after->keys && stream->stage == ASKED) {
        stream->request = *after;
        if (after->done || after->failed)
            stream->stage = BETWEEN;
    }
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

/* Reports a datagram that is about to be sent. */
static void report(int fd, const struct sockaddr *to, socklen_t to_bytes, const struct iovec *parts, size_t count,
                   struct request *after)
{
    struct waiting *reply_to = asked_for(fd, to, to_bytes, parts, count);
    uint64_t cut = 0;
    after->keys = 0;
    if (reply_to && reply_to->request.kind == READ) {
        *after = reply_to->request;
        bool found = reply_follow(after, parts, count, FRAME_BYTES);
        cut = clean_cut(after, found);
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

enum socket_kind before_read(int fd)
{
    enum socket_kind kind = kind_of(fd);
    if (kind == NO_SOCKET || has(fd, FILLED) || redis)
        return kind;
    if (kind == STREAM) {
        before_stream_read(fd);
        return kind;
    }
    struct waiting *last = waiting_of(fd);
    if (last) {
        end_writes(last);
        last->used = false;
    }
    return kind;
}

void after_read(int fd, enum socket_kind kind, const char *bytes, ssize_t count, size_t room,
                const struct sockaddr *from, socklen_t from_bytes, bool cut_short)
{
    int error = errno;
    if (kind == NO_SOCKET)
        return;
    if (redis) {
        if (kind == STREAM && count > 0)
            redis_read(fd, bytes, (size_t)count);
        errno = error;
        return;
    }
    if (!bytes) {
        /* One byte that is no command. */
        bytes = "";
        room = (size_t)count < room ? 2 : 1;
        count = 1;
        cut_short = true;
    }
    bool filled = count > 0 && (size_t)count >= room && !(kind == STREAM && reads_data(fd));
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

void before_send(int fd, enum socket_kind kind, const struct msghdr *message, struct request *after)
{
    after->keys = 0;
    if (kind == STREAM && redis)
        redis_sends(fd, message->msg_iov, message->msg_iovlen);
    else if (kind == STREAM)
        before_stream_send(fd, message, after);
    if (kind == DATAGRAMS)
        report(fd, message->msg_name, message->msg_namelen, message->msg_iov, message->msg_iovlen, after);
}

void after_send(int fd, enum socket_kind kind, ssize_t count, const struct request *after)
{
    int error = errno;
    if (kind == DATAGRAMS && count >= 0)
        datagram_sent(fd, after);
    if (kind == STREAM && redis && count > 0)
        redis_sent(fd, (size_t)count);
    else if (kind == STREAM && !redis)
        stream_sent(fd, count, after);
    errno = error;
}

static void forget(int fd)
{
    if (streams[fd]) {
        end_command(streams[fd]);
        memset(streams[fd], 0, sizeof *streams[fd]);
    }
    end_foreign(fd);
    redis_closed(fd);
    atomic_store(&descriptors[fd], 0);
}

void before_close(int fd)
{
    if (active && fd >= 0 && fd < DESCRIPTORS)
        forget(fd);
}

void after_accept(int fd)
{
    int error = errno;
    if (active && fd >= 0 && fd < DESCRIPTORS) {
        forget(fd); /* one that was closed unseen */
        bool tcp = protocol_of(fd) == IPPROTO_TCP;
        struct stream *stream = redis ? NULL : stream_of(fd);
        if (stream)
            stream->counted = tcp;
        if (redis)
            redis_accepted(fd, tcp);
    }
    errno = error;
}
