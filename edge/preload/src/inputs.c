/* The read family. */
#include "preload.h"
#include <fcntl.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* The parts of a message behind its first `skip` bytes, PAYLOAD_BYTES_MAX at most. Returns how many bytes they have. */
static size_t cut(const struct msghdr *message, size_t skip, struct iovec *parts, size_t *count)
{
    size_t left = PAYLOAD_BYTES_MAX;
    *count = 0;
    for (size_t i = 0; i < message->msg_iovlen && *count < PARTS_MAX && left; i++) {
        struct iovec part = message->msg_iov[i];
        size_t skipped = skip < part.iov_len ? skip : part.iov_len;
        skip -= skipped;
        part.iov_base = (char *)part.iov_base + skipped;
        part.iov_len -= skipped;
        if (part.iov_len > left)
            part.iov_len = left;
        left -= part.iov_len;
        if (part.iov_len)
            parts[(*count)++] = part;
    }
    return PAYLOAD_BYTES_MAX - left;
}

/* Waits as a blocking read does, without the lock. Returns 0 when there is something to read, or the error. It is a read
 * itself, so that the kernel goes on with it after a signal (SA_RESTART) and ends it in time (SO_RCVTIMEO). */
static int wait_to_read(int fd, int flags)
{
    char first;
    if (flags & MSG_DONTWAIT || REAL(fcntl)(fd, F_GETFL) & O_NONBLOCK)
        return EAGAIN;
    if (REAL(recv)(fd, &first, 1, MSG_PEEK) >= 0)
        return 0;
    /* plover has reset the connection meanwhile. The next read says so. */
    return errno == EPIPE ? 0 : errno;
}

/* Before a read that is not of a client's own connection. False if it fails: there is nothing to read. */
static bool is_due(int fd, int flags)
{
    char first;
    if (!has_log_clock() || !is_replayed(slot_of(fd)))
        return true;
    if (REAL(recv)(fd, &first, 1, MSG_PEEK | (flags & MSG_DONTWAIT)) < 0)
        return false;
    follow_clock();
    return true;
}

/* Reads from a client into a part of the message, and gives plover what was read. */
static ssize_t take_part(int fd, struct slot *slot, const struct msghdr *message, size_t skip,
                         int flags, bool *is_full)
{
    struct iovec parts[PARTS_MAX];
    struct msghdr part = *message;
    size_t count, room = cut(message, skip, parts, &count);
    uint32_t number = slot_of(fd);
    uint64_t input = 0;
    ssize_t got;
    int failed = 0; /* the wait */
    part.msg_iov = parts;
    part.msg_iovlen = count;
    for (;;) {
        lock_with_room(room + CLOCK_ROOM);
        if (atomic_load(&slot->epoch) != atomic_load(&shared->epoch)) {
            unlock();
            atomic_store(&slot->broken, 1);
            errno = ECONNRESET;
            return -1;
        }
        if (slot_of(fd) != number) { /* Another thread has closed it. */
            unlock();
            errno = EBADF;
            return -1;
        }
        atomic_store(&shared->reading, number);
        got = failed ? -1 : REAL(recvmsg)(fd, &part, (flags & ~MSG_WAITALL) | MSG_DONTWAIT);
        int error = failed ? failed : errno;
        bool is_over = got == 0 || (got < 0 && error != EAGAIN && error != EINTR);
        if (got < 0 && is_over)
            atomic_store(&slot->broken, 1);
        bool is_end = is_over && !atomic_exchange(&slot->ended, 1);
        if ((got > 0 || is_end) && !skip)
            clock_of_read();
        if (got > 0)
            input = fill(RECORD_BYTES, number, 0, parts, (size_t)got);
        else if (is_end)
            input = fill(RECORD_END, number, 0, NULL, 0);
        atomic_store(&shared->reading, 0);
        unlock();
        errno = error;
        if (got >= 0 || error != EAGAIN)
            break;
        failed = wait_to_read(fd, flags);
        if (failed == EAGAIN || failed == EINTR) {
            errno = failed;
            return -1;
        }
    }
    int error = errno;
    *is_full = got == (ssize_t)room;
    if (input)
        ring_bell();
    if (input && shared->wait_read && !wait_for_commit(slot, input)) {
        error = ECONNRESET;
        got = -1;
    }
    errno = error;
    return got;
}

/* With MSG_TRUNC the kernel throws bytes away and fills no buffer, and they are input all the same. */
__attribute__((noinline)) static ssize_t take_unwanted(int fd, struct slot *slot, size_t bytes,
                                                       int flags, bool *is_full)
{
    char unwanted[PAYLOAD_BYTES_MAX];
    struct iovec part = {unwanted, bytes < sizeof unwanted ? bytes : sizeof unwanted};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    return take_part(fd, slot, &message, 0, flags & ~MSG_TRUNC, is_full);
}

/* Whether more bytes are there. The end of the stream, and its errors, are left to another read. */
static bool has_more(int fd)
{
    int queued = 0;
    return !ioctl(fd, FIONREAD, &queued) && queued > 0;
}

/* Reads as recvmsg() does: a program whose buffer was not filled may rely on it that nothing is left to read. */
ssize_t take(int fd, const struct msghdr *message, int flags)
{
    struct slot *slot = client_of(fd);
    size_t wanted = 0, done = 0;
    for (size_t i = 0; i < message->msg_iovlen; i++)
        wanted += message->msg_iov[i].iov_len;
    /* What is only looked at is read later. */
    if (!slot || !wanted || flags & (MSG_PEEK | MSG_ERRQUEUE))
        return REAL(recvmsg)(fd, (struct msghdr *)message, flags);
    if (flags & MSG_OOB) {
        errno = EINVAL;
        return -1;
    }
    while (done < wanted) {
        bool is_full = false;
        ssize_t got = flags & MSG_TRUNC
                          ? take_unwanted(fd, slot, wanted - done, flags, &is_full)
                          : take_part(fd, slot, message, done, flags, &is_full);
        if (got <= 0)
            return done ? (ssize_t)done : got;
        done += (size_t)got;
        if (flags & MSG_WAITALL)
            continue;
        if (!is_full || !has_more(fd))
            break;
        flags |= MSG_DONTWAIT;
    }
    return (ssize_t)done;
}

static ssize_t take_bytes(int fd, void *buffer, size_t bytes, int flags)
{
    struct iovec part = {buffer, bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    return take(fd, &message, flags);
}

EXPORT ssize_t read(int fd, void *buffer, size_t bytes)
{
    if (client_of(fd))
        return take_bytes(fd, buffer, bytes, 0);
    return is_due(fd, 0) ? REAL(read)(fd, buffer, bytes) : -1;
}

EXPORT ssize_t readv(int fd, const struct iovec *parts, int count)
{
    struct msghdr message = {.msg_iov = (struct iovec *)parts, .msg_iovlen = (size_t)count};
    if (!client_of(fd) || count < 0)
        return is_due(fd, 0) ? REAL(readv)(fd, parts, count) : -1;
    return take(fd, &message, 0);
}

EXPORT ssize_t recv(int fd, void *buffer, size_t bytes, int flags)
{
    if (client_of(fd))
        return take_bytes(fd, buffer, bytes, flags);
    return is_due(fd, flags) ? REAL(recv)(fd, buffer, bytes, flags) : -1;
}

EXPORT ssize_t recvfrom(int fd, void *restrict buffer, size_t bytes, int flags,
                        __SOCKADDR_ARG address, socklen_t *restrict length)
{
    if (!client_of(fd))
        return is_due(fd, flags) ? REAL(recvfrom)(fd, buffer, bytes, flags, address, length) : -1;
    if (address.__sockaddr__ && length)
        *length = 0; /* as for any connection */
    return take_bytes(fd, buffer, bytes, flags);
}

EXPORT ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    if (!client_of(fd))
        return is_due(fd, flags) ? REAL(recvmsg)(fd, message, flags) : -1;
    ssize_t got = take(fd, message, flags);
    if (!(flags & (MSG_PEEK | MSG_ERRQUEUE))) {
        message->msg_namelen = 0;
        message->msg_controllen = 0;
        message->msg_flags = 0;
    }
    return got;
}

EXPORT int recvmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags,
                    struct timespec *within)
{
    if (!client_of(fd) || !count)
        return is_due(fd, flags) ? REAL(recvmmsg)(fd, messages, count, flags, within) : -1;
    ssize_t got = recvmsg(fd, &messages->msg_hdr, flags & ~MSG_WAITFORONE);
    messages->msg_len = got > 0 ? (unsigned)got : 0;
    return got < 0 ? -1 : 1;
}

/* The forms of programs that are compiled with _FORTIFY_SOURCE. */
extern void __chk_fail(void) __attribute__((noreturn));
EXPORT ssize_t __read_chk(int fd, void *buffer, size_t bytes, size_t room);
EXPORT ssize_t __recv_chk(int fd, void *buffer, size_t bytes, size_t room, int flags);
EXPORT ssize_t __recvfrom_chk(int fd, void *restrict buffer, size_t bytes, size_t room, int flags,
                              __SOCKADDR_ARG address, socklen_t *restrict length);

ssize_t __read_chk(int fd, void *buffer, size_t bytes, size_t room)
{
    if (bytes > room)
        __chk_fail();
    return read(fd, buffer, bytes);
}

ssize_t __recv_chk(int fd, void *buffer, size_t bytes, size_t room, int flags)
{
    if (bytes > room)
        __chk_fail();
    return recv(fd, buffer, bytes, flags);
}

ssize_t __recvfrom_chk(int fd, void *restrict buffer, size_t bytes, size_t room, int flags,
                       __SOCKADDR_ARG address, socklen_t *restrict length)
{
    if (bytes > room)
        __chk_fail();
    return recvfrom(fd, buffer, bytes, flags, address, length);
}

/* A stream reads and writes behind this library's back. */
EXPORT FILE *fdopen(int fd, const char *mode)
{
    if (!client_of(fd))
        return REAL(fdopen)(fd, mode);
    note("the program uses a client's connection as a stream (fdopen), which is refused: use "
         "program.via = \"proxy\"");
    errno = EINVAL;
    return NULL;
}
