/* What the sockets of a memcached that is left unchanged have read and sent, and so what is being written and which
 * replies are clean. Those of a Redis are told on to redis.h.
 *
 *     read from a socket                what is in progress      until
 *     get; gets, whose reply is dirty   nothing
 *     set, incr, delete ...             a write of its key       its reply is sent, or *
 *     one other line                    a write of everything    its reply is sent, or *
 *     anything else                     a write of everything    *
 *
 *     *: the next read of the same socket begins, or (TCP) the socket is closed.
 *
 * A command over TCP may come in parts; its write begins with its line. A connection over which anything else has come
 * than these commands, one after the other, is *foreign* while it is open: all that it asks is a write of everything, and its
 * replies are dirty.
 *
 * This is right for a program that, like memcached,
 * - executes all that it has read from a socket before it reads the socket again. One exception is known:
 *   it may read on at once if the last read filled its buffer. So after such a read, the next one ends nothing; but if that was
 *   the data of a write over TCP, which memcached 1.6 reads straight into its place.
 * - uses each descriptor by one thread, and reads one datagram at a time.
 * - changes an item in place only if no reply refers to it.
 *
 * A connection over TCP that has once sent several commands at once keeps all replies dirty while it is open and
 * silent.
 *
 * Bytes that a connection has taken are counted from accept() on; of other connections nothing is reported. */
#ifndef PLOVER_CLEAN_SOCKETS_H
#define PLOVER_CLEAN_SOCKETS_H

#include "memcached.h"

#include <stdbool.h>
#include <sys/socket.h>

enum socket_kind { NO_SOCKET, DATAGRAMS, STREAM };

/* Opens the channel. Without one there are no sockets for the functions here. */
void start_sockets(void);

enum socket_kind kind_of(int fd);

/* Around each call that reads. */
enum socket_kind before_read(int fd);
/* `count` is the call's result, `room` the buffer's size. Without `bytes` it is not known what was read. */
void after_read(int fd, enum socket_kind kind, const char *bytes, ssize_t count, size_t room,
                const struct sockaddr *from, socklen_t from_bytes, bool cut_short);

/* Around each call that sends. `after` is what is known of the reply once it is sent. */
void before_send(int fd, enum socket_kind kind, const struct msghdr *message, struct request *after);
void after_send(int fd, enum socket_kind kind, ssize_t count, const struct request *after);

void before_close(int fd);
/* After each call that accepts. */
void after_accept(int fd);

#endif
