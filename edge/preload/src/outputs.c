/* The write family. */
#include "preload.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/sendfile.h>
#include <unistd.h>
#include <fcntl.h>

enum { FILE_BYTES = 32 << 10, SWALLOWED_BYTES_MAX = 1 << 20 };

/* Tells plover what was sent, for the output check. */
static void copy_output(uint32_t number, const struct msghdr *message, size_t sent)
{
    for (size_t i = 0; i < message->msg_iovlen && sent; i++) {
        struct iovec part = message->msg_iov[i];
        if (part.iov_len > sent)
            part.iov_len = sent;
        sent -= part.iov_len;
        while (part.iov_len) {
            size_t bytes = part.iov_len < PAYLOAD_BYTES_MAX ? part.iov_len : PAYLOAD_BYTES_MAX;
            lock_with_room(bytes);
            fill(RECORD_OUTPUT, number, 0, &part, bytes);
            unlock();
            part.iov_base = (char *)part.iov_base + bytes;
            part.iov_len -= bytes;
        }
    }
    /* The output check has time: plover finds this when it wakes for something else, or soon by itself. */
    if (is_filling())
        ring_bell();
}

/* Whether output for a client that is gone is taken all the same. The others' programs send it and go on, so this one must not give
 * up what it does; a thread that only writes has to notice some time. */
static bool swallows(struct slot *slot, int error, size_t bytes)
{
    bool is_gone = error == EPIPE || error == ECONNRESET || error == ETIMEDOUT || error == ENOTCONN;
    atomic_store(&slot->broken, 1);
    if (!is_gone || bytes > SWALLOWED_BYTES_MAX)
        return false;
    return atomic_fetch_add(&slot->swallowed, (uint32_t)bytes) + bytes <= SWALLOWED_BYTES_MAX;
}

/* Sends as sendmsg() does, when all that the program has read is committed. */
ssize_t put(int fd, const struct msghdr *message, int flags)
{
    struct slot *slot = client_of(fd);
    if (!slot)
        return REAL(sendmsg)(fd, message, flags);
    uint32_t number = slot_of(fd);
    bool lives = wait_to_send(slot);
    size_t all = 0;
    for (size_t i = 0; i < message->msg_iovlen; i++)
        all += message->msg_iov[i].iov_len;
    /* Counted first: the client's next input may be read before this thread goes on. */
    atomic_fetch_add(&slot->sent, all);
    ssize_t sent = lives ? REAL(sendmsg)(fd, message, flags | MSG_NOSIGNAL) : -1;
    int error = lives ? errno : EPIPE;
    bool fails = sent < 0 && error != EAGAIN && error != EINTR;
    if (fails && swallows(slot, error, all))
        sent = (ssize_t)all;
    atomic_fetch_sub(&slot->sent, sent > 0 ? all - (size_t)sent : all);
    if (sent > 0 && !fails && shared->copies_output)
        copy_output(number, message, (size_t)sent);
    errno = error;
    return sent;
}

static ssize_t put_bytes(int fd, const void *buffer, size_t bytes, int flags)
{
    struct iovec part = {(void *)buffer, bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    return put(fd, &message, flags);
}

EXPORT ssize_t write(int fd, const void *buffer, size_t bytes)
{
    return client_of(fd) ? put_bytes(fd, buffer, bytes, 0) : REAL(write)(fd, buffer, bytes);
}

EXPORT ssize_t writev(int fd, const struct iovec *parts, int count)
{
    struct msghdr message = {.msg_iov = (struct iovec *)parts, .msg_iovlen = (size_t)count};
    if (!client_of(fd) || count < 0)
        return REAL(writev)(fd, parts, count);
    return put(fd, &message, 0);
}

EXPORT ssize_t send(int fd, const void *buffer, size_t bytes, int flags)
{
    return client_of(fd) ? put_bytes(fd, buffer, bytes, flags)
                         : REAL(send)(fd, buffer, bytes, flags);
}

EXPORT ssize_t sendto(int fd, const void *buffer, size_t bytes, int flags,
                      __CONST_SOCKADDR_ARG address, socklen_t length)
{
    if (client_of(fd))
        return put_bytes(fd, buffer, bytes, flags);
    if (is_refused(address.__sockaddr__))
        return -1;
    return REAL(sendto)(fd, buffer, bytes, flags, address, length);
}

EXPORT ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    if (client_of(fd))
        return put(fd, message, flags);
    if (is_refused(message->msg_name))
        return -1;
    return REAL(sendmsg)(fd, message, flags);
}

EXPORT int sendmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags)
{
    if (!count || (!client_of(fd) && !is_refused(messages->msg_hdr.msg_name)))
        return REAL(sendmmsg)(fd, messages, count, flags);
    if (!client_of(fd))
        return -1;
    ssize_t sent = put(fd, &messages->msg_hdr, flags);
    messages->msg_len = sent > 0 ? (unsigned)sent : 0;
    return sent < 0 ? -1 : 1;
}

/* A file is sent as any other output. */
EXPORT ssize_t sendfile(int out, int in, off_t *offset, size_t bytes)
{
    char buffer[FILE_BYTES];
    if (!client_of(out))
        return REAL(sendfile)(out, in, offset, bytes);
    off_t from = offset ? *offset : lseek(in, 0, SEEK_CUR);
    size_t part = bytes < sizeof buffer ? bytes : sizeof buffer;
    ssize_t got = pread(in, buffer, part, from);
    if (got <= 0)
        return got;
    ssize_t sent = put_bytes(out, buffer, (size_t)got, 0);
    if (sent > 0 && offset)
        *offset += sent;
    else if (sent > 0)
        lseek(in, from + sent, SEEK_SET);
    return sent;
}

EXPORT ssize_t sendfile64(int out, int in, off64_t *offset, size_t bytes)
{
    return sendfile(out, in, (off_t *)offset, bytes);
}

EXPORT ssize_t splice(int in, off64_t *in_at, int out, off64_t *out_at, size_t bytes,
                      unsigned flags)
{
    if (!client_of(in) && !client_of(out))
        return REAL(splice)(in, in_at, out, out_at, bytes, flags);
    errno = EINVAL; /* programs then read and write */
    return -1;
}

EXPORT int vdprintf(int fd, const char *restrict format, va_list arguments)
{
    char *words = NULL;
    int length = vasprintf(&words, format, arguments);
    int done = 0;
    while (length >= 0 && done < length) {
        ssize_t sent = write(fd, words + done, (size_t)(length - done));
        if (sent < 0)
            length = -1;
        else
            done += (int)sent;
    }
    free(words);
    return length;
}

EXPORT int dprintf(int fd, const char *restrict format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vdprintf(fd, format, arguments);
    va_end(arguments);
    return length;
}

EXPORT int __vdprintf_chk(int fd, int flag, const char *format, va_list arguments);
EXPORT int __dprintf_chk(int fd, int flag, const char *format, ...);

int __vdprintf_chk(int fd, int flag, const char *format, va_list arguments)
{
    (void)flag;
    return vdprintf(fd, format, arguments);
}

int __dprintf_chk(int fd, int flag, const char *format, ...)
{
    va_list arguments;
    (void)flag;
    va_start(arguments, format);
    int length = vdprintf(fd, format, arguments);
    va_end(arguments);
    return length;
}
