/* plover-clean.so: reports the replies of an unchanged memcached, over TCP and UDP, Redis, or Valkey.
 *
 *     LD_PRELOAD=/lib/plover-clean.so memcached -U 11211 ...
 *     LD_PRELOAD=/lib/plover-clean.so redis-server ...
 *
 * It stands between the program and the C library's calls on sockets. A request that is read from a socket
 * begins the writes that it asks for; its reply ends them. The reply of a `get` is clean if all its
 * keys were found and none was written since the cut. Everything else is dirty. sockets.h and redis.h have the rules. */
#define _GNU_SOURCE
/* The checked forms of these calls are defined here too. */
#undef _FORTIFY_SOURCE
#include "plover_clean.h"
#include "sockets.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

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
static int (*real_accept4)(int, struct sockaddr *, socklen_t *, int);

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
    find(&real_accept4, "accept4");
    find(&real_close, "close");
}

__attribute__((constructor)) static void start(void)
{
    find_all();
    start_sockets();
}

/* ---- the calls, as the program finds them ----------------------------------------------------- */

/* Of several buffers only the first is looked at: memcached and Redis read into one. */
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
    const char *bytes = (size_t)count <= parts[0].iov_len ? parts[0].iov_base : NULL;
    after_read(fd, kind, bytes, count, room, from, from_bytes, cut_short);
}

EXPORT ssize_t recvfrom(int fd, void *buffer, size_t room, int flags, struct sockaddr *from, socklen_t *from_bytes)
{
    find_all();
    enum socket_kind kind = flags & MSG_PEEK ? NO_SOCKET : before_read(fd);
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
    find_all();
    enum socket_kind kind = before_read(fd);
    ssize_t count = real_read(fd, buffer, room);
    after_read(fd, kind, buffer, count, room, NULL, 0, false);
    return count;
}

EXPORT ssize_t readv(int fd, const struct iovec *parts, int parts_count)
{
    find_all();
    enum socket_kind kind = before_read(fd);
    ssize_t count = real_readv(fd, parts, parts_count);
    after_vector_read(fd, kind, parts, (size_t)parts_count, count, NULL, 0, false);
    return count;
}

EXPORT ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    find_all();
    enum socket_kind kind = flags & MSG_PEEK ? NO_SOCKET : before_read(fd);
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
    find_all();
    enum socket_kind kind = before_read(fd);
    int count = real_recvmmsg(fd, messages, messages_count, flags, timeout);
    if (count > 0)
        after_read(fd, kind, NULL, count, (size_t)count + 1, NULL, 0, true);
    return count;
}

EXPORT ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    struct request after;
    find_all();
    enum socket_kind kind = kind_of(fd);
    before_send(fd, kind, message, &after);
    ssize_t count = real_sendmsg(fd, message, flags);
    after_send(fd, kind, count, &after);
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
    struct request after;
    find_all();
    enum socket_kind kind = kind_of(fd);
    before_send(fd, kind, &message, &after);
    ssize_t sent = real_sendto(fd, bytes, count, flags, to, to_bytes);
    after_send(fd, kind, sent, &after);
    return sent;
}

EXPORT ssize_t send(int fd, const void *bytes, size_t count, int flags)
{
    return sendto(fd, bytes, count, flags, NULL, 0);
}

EXPORT ssize_t writev(int fd, const struct iovec *parts, int count)
{
    struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)parts, .msg_iovlen = (size_t)count};
    struct request after;
    find_all();
    enum socket_kind kind = kind_of(fd);
    before_send(fd, kind, &message, &after);
    ssize_t sent = real_writev(fd, parts, count);
    after_send(fd, kind, sent, &after);
    return sent;
}

EXPORT ssize_t write(int fd, const void *bytes, size_t count)
{
    struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = count};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    struct request after;
    find_all();
    enum socket_kind kind = kind_of(fd);
    before_send(fd, kind, &message, &after);
    ssize_t sent = real_write(fd, bytes, count);
    after_send(fd, kind, sent, &after);
    return sent;
}

EXPORT int accept4(int fd, struct sockaddr *from, socklen_t *from_bytes, int flags)
{
    find_all();
    int accepted = real_accept4(fd, from, from_bytes, flags);
    after_accept(accepted);
    return accepted;
}

EXPORT int accept(int fd, struct sockaddr *from, socklen_t *from_bytes)
{
    return accept4(fd, from, from_bytes, 0);
}

EXPORT int close(int fd)
{
    find_all();
    before_close(fd);
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
