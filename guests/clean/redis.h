/* What the connections of a Redis or Valkey that is left unchanged have read and sent, and so what is being written and which
 * replies are clean.
 *
 *     read from a connection              what is in progress      until
 *     GET, HGET, LRANGE ... (RESP_READS)  nothing
 *     SET, INCR, LPUSH ... (RESP_WRITES)  a write of its keys      its reply is sent
 *     EXEC, EVAL, FLUSHALL ... (RESP_ALL) a write of everything    its reply is sent
 *     PING, INFO, MULTI ... (RESP_NEUTRAL) nothing
 *     SUBSCRIBE, MONITOR ... (RESP_MUTE)  nothing; then only RESP_NEUTRAL and RESP_MUTE are, all else is as unknown
 *     anything else, other protocols      a write of everything    the connection is closed
 *
 * Each command has one reply, in order, so a reply tells that its command was executed: also of one that had to wait (BLPOP,
 * CLIENT PAUSE). In a transaction a command is answered when it is queued; EXEC, which executes it, may write everything.
 * A connection that the program has opened itself, as a replica does to its master, is as one with an unknown command.
 *
 * This is right for a program that executes a command only after all of it was read, and sends one reply for each, as all
 * Redis and Valkey servers do, whatever threads read and send. Commands of modules are unknown; a module that writes
 * by itself, without a command, makes replies wrong. */
#ifndef PLOVER_CLEAN_REDIS_H
#define PLOVER_CLEAN_REDIS_H

#include <stddef.h>
#include <sys/uio.h>

void redis_accepted(int fd);
void redis_closed(int fd);

void redis_read(int fd, const char *bytes, size_t count);

/* `parts` are about to be sent. If not all are taken, the next ones begin with the rest. */
void redis_sends(int fd, const struct iovec *parts, size_t count);
void redis_sent(int fd, size_t bytes);

#endif
