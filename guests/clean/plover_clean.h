/* Clean replies: a program in the guest says which of its replies may leave before the next sync.
 *
 * A *cut* is the pause of a syncvm. The state at the cut is the state that the other host gets. A reply
 * is *clean as of cut C* if it was computed only from data that the guest has not written since C. The
 * other host can compute the same reply from its state, so nothing is lost if it takes over. The idea is
 * COLO++'s (section 3.3 of the paper), but the program names its data by keys or ranges, and needs no
 * change of the kernel.
 *
 * A program that answers over UDP does this:
 *
 *     plover_clean_open();                        // once, before it has threads
 *
 *     plover_clean_begin(key);                    // a write: before the first byte changes
 *     ... change the data ...
 *     plover_clean_end(key);                      // after the last byte has changed
 *
 *     ... compute the reply ...                   // a reply: first read all data it depends on,
 *     uint64_t cut = plover_clean_cut();          // then the cut,
 *     if (!plover_clean_unchanged(key, cut))      // then each key the reply depends on
 *         cut = 0;
 *     plover_clean_report(fd, client, parts, count, cut);
 *     sendmsg(fd, ...);                           // the same bytes
 *
 * One that answers over TCP counts for each connection what all calls that send on it have returned since
 * accept(), dirty bytes included (with TLS, the encrypted bytes), and before it sends clean bytes it calls
 *
 *     plover_clean_report_stream(fd, sent, bytes, cut);
 *
 * One thread at a time reports and sends on a connection. Not over MPTCP, which has several connections for one.
 *
 * Rules that make it right:
 *
 * 1. UDP: report every datagram of the socket, before it is sent, clean (the cut) or dirty (0). The host
 *    takes an equal dirty record as a veto. TCP: bytes that nobody reports are dirty. If the connection
 *    takes fewer bytes than were reported, the next ones must be the rest of these, which need no report.
 * 2. A reply that depends on something being absent is dirty, unless its absence has a key of its own.
 * 3. Data that is written without a word about it makes replies wrong. If a write cannot be named, use
 *    plover_clean_begin_all() and plover_clean_end_all(): all replies are dirty until the next cut.
 * 4. One process only: the table of keys is the process's own.
 *
 * Why the order is safe. A pause may fall between any two instructions, and stops all threads.
 *
 * - A write that ended before cut C has a stamp below C, or it took the stamp after C. So a stamp below C
 *   means: all of the write is in the state at C.
 * - A reader that saw a write which reaches beyond C looks at the key after the write began. It finds the
 *   write in progress, or it has ended and its stamp is C or more. Both are dirty. This needs the data
 *   read before the key, the count of writes in progress read before the stamp, and the stamp raised
 *   before that count falls.
 * - The cut is read after the data. Data that was read before C lies in the state at C together with the
 *   thread that has read it, and that thread goes on to send the same reply. Data that was read after C
 *   and has a stamp below C is as it was at C.
 * - The cut is read before the keys. If a pause falls after that, the reply says a cut that is past, and
 *   the keys show that it holds for that one too: the state at the later cut says the same.
 * - After a takeover the process goes on in another host from the state at the last cut. The table and
 *   the channel are part of that state.
 *
 * If the channel cannot be opened, one sentence on standard error says why, and all calls do nothing.
 * All functions but plover_clean_open() may be called by any thread, and leave errno as it is. */
#ifndef PLOVER_CLEAN_H
#define PLOVER_CLEAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>

/* The channel: 64 KiB of guest-physical memory, little endian. Linux since 5.13 never uses memory below
 * 1 MiB for itself. */
#define PLOVER_CLEAN_ADDRESS 0x70000
#define PLOVER_CLEAN_BYTES 0x10000
#define PLOVER_CLEAN_MAGIC "plover-clean-01\n"
#define PLOVER_CLEAN_RECORDS 768

/* One datagram, or bytes of a connection. Record n lies at n % PLOVER_CLEAN_RECORDS. */
struct plover_clean_record {
    _Atomic uint64_t number; /* n + 1 once the record is whole; 0 while it is written */
    uint64_t cut;            /* clean as of this cut; 0: dirty */
    uint64_t what;           /* UDP: FNV-1a of the payload; TCP: bytes that the connection took before */
    uint32_t bytes;          /* of the UDP payload, or of TCP */
    uint16_t guest_port, client_port;
    uint8_t protocol; /* 17: UDP, 6: TCP */
    uint8_t zeros[7];
    uint8_t guest[16], client[16]; /* IPv6, or IPv4 mapped into it; all zero: not known */
    uint64_t zero;
};

struct plover_clean_channel {
    char magic[16];       /* written last, by the first program that finds none */
    _Atomic uint64_t cut; /* written by the host at each pause; 0: none yet */
    uint32_t records, record_bytes;
    uint8_t unused_1[32];
    _Atomic uint64_t next; /* records that were begun, in all */
    uint8_t unused_2[4096 - 72];
    struct plover_clean_record record[PLOVER_CLEAN_RECORDS];
};

/* Opens the channel: the file in PLOVER_CLEAN_FILE (for tests), or the descriptor in PLOVER_CLEAN_FD
 * (/dev/mem, opened by a parent with the right to), or /dev/mem. Returns whether it is open. All data that
 * exists now counts as written now. Call it once, before the first thread. */
bool plover_clean_open(void);

/* The newest cut. 0: none yet, or no channel. */
uint64_t plover_clean_cut(void);

/* The key of a name, such as a database's key. Keys that collide are dirty together. */
uint64_t plover_clean_key(const void *name, size_t bytes);
/* The same for a name that comes in parts: the key of the parts before, followed by this one. */
uint64_t plover_clean_key_part(uint64_t key, const void *name, size_t bytes);

/* A write of the data of a key begins, and ends. Writes of several threads may overlap. */
void plover_clean_begin(uint64_t key);
void plover_clean_end(uint64_t key);
/* Whether no write of the key is in progress, and none has ended since the cut. Never for cut 0. */
bool plover_clean_unchanged(uint64_t key, uint64_t cut);

/* The same for memory, in pages of 4 KiB. Begin and end must name the same range. A range of more than
 * PLOVER_CLEAN_PAGES_MAX pages counts as a write of everything. */
#define PLOVER_CLEAN_PAGES_MAX 256
void plover_clean_begin_range(const void *start, size_t bytes);
void plover_clean_end_range(const void *start, size_t bytes);
bool plover_clean_range_unchanged(const void *start, size_t bytes, uint64_t cut);

/* A write of unknown data begins, and ends. */
void plover_clean_begin_all(void);
void plover_clean_end_all(void);

/* Reports a datagram that is about to be sent from a UDP socket to `client` (NULL: the peer that the
 * socket is connected to): clean as of `cut`, or dirty (0). */
void plover_clean_report(int socket, const struct sockaddr *client, const struct iovec *parts,
                         size_t count, uint64_t cut);

/* Reports bytes that are about to be sent over a connection, which has taken `sent` bytes before them: clean
 * as of `cut`. Nothing for cut 0. */
void plover_clean_report_stream(int socket, uint64_t sent, size_t bytes, uint64_t cut);

#endif
