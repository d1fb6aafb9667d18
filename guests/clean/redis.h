/* The connections of a Redis or Valkey that is left unchanged: by all that they have read and sent, the writes in progress and the
 * replies that are clean.
 *
 *     read from a connection                what is in progress      until
 *     GET, HGET, LRANGE ... (RESP_READS)    nothing
 *     SET, INCR, LPUSH ... (RESP_WRITES)    a write of its keys      its reply is sent
 *     EVAL, FLUSHALL ... (RESP_ALL)         a write of everything    its reply is sent
 *     either, in a transaction              the same                 the reply of EXEC or DISCARD is sent
 *     PING, INFO, MULTI ... (RESP_NEUTRAL)  nothing
 *     SUBSCRIBE, MONITOR ... (RESP_MUTE)    nothing; from here on all replies are dirty, and what writes is as unknown
 *     anything else, other protocols        a write of everything    the connection is closed
 *
 * Each command has one reply, in order, so a reply tells that its command was executed: also of one that had to wait (BLPOP,
 * CLIENT PAUSE). A connection that the program has opened itself, as a replica does to its master, is as one with an unknown
 * command.
 *
 * This is right for a program that executes a command only after all of it was read from a socket, and then sends one reply, as
 * Redis and Valkey do with any number of threads. It is wrong with commands that were renamed to others' names (rename-command), with
 * a module that writes by itself, without a command, and over RDMA. Commands of modules are unknown. */
#ifndef PLOVER_CLEAN_REDIS_H
#define PLOVER_CLEAN_REDIS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/uio.h>

/* `tcp`: it is neither a Unix socket nor MPTCP, which has several connections for one. */
void redis_accepted(int fd, bool tcp);
void redis_closed(int fd);
/* Whether it is a connection that was accepted. */
bool redis_knows(int fd);

/* Without `bytes` it is not known what was read. */
void redis_read(int fd, const char *bytes, size_t count);

/* `parts` are about to be sent. If not all are taken, the next ones begin with the rest. */
void redis_sends(int fd, const struct iovec *parts, size_t count);
void redis_sent(int fd, size_t bytes);

#endif
