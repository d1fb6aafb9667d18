/*
 * The memory that the program and plover share. src/layout.rs has the same in Rust; a test compares the two.
 *
 * plover writes the first part, the program the second. Neither trusts the other's: plover checks every record
 * that it takes, and the program gives up when plover is gone.
 */
#ifndef PLOVER_SHARED_H
#define PLOVER_SHARED_H
#include <stdatomic.h>
#include <stdint.h>

enum {
    SHARED_MAGIC = 0x504c5652,
    SHARED_VERSION = 5,
    PORTS = 65536,
    SLOTS = 4096,
    RING_AT = 1 << 20,
    RING_BYTES = 4 << 20,
    PAYLOAD_BYTES_MAX = 32 << 10,
    SLOT_BITS = 12
};

/* Of `refs`: plover waits for the program to accept the connection, or has given it up. */
#define REFS_NOT_ACCEPTED 0x40000000u
#define REFS_GIVEN_UP 0x80000000u

/* What a connection is. */
enum { SLOT_FREE = 0, SLOT_CLIENT = 1, SLOT_REPLAY = 2 };

/* The kinds of records. The first three and the clock are inputs, which are counted. */
enum {
    RECORD_ACCEPT = 1,
    RECORD_BYTES = 2,
    RECORD_END = 3,
    RECORD_CLOSE = 4,  /* `flag`: the connection was broken */
    RECORD_OUTPUT = 5, /* sent to the client */
    RECORD_NOTE = 6,   /* words for the operator */
    RECORD_CLOCK = 7   /* the program's time goes on */
};

struct slot {
    /* Written by plover. */
    _Atomic uint32_t kind;
    _Atomic uint32_t epoch;
    _Atomic uint32_t ip;   /* the client's, network order */
    _Atomic uint32_t port; /* the client's, host order */
    _Atomic uint64_t lost_from; /* inputs from this number on are not in the log */
    /* Written by the program. */
    _Atomic uint32_t refs; /* descriptors of all processes; too high after the kernel has closed some by itself */
    _Atomic uint32_t ended;
    _Atomic uint32_t broken;
    _Atomic uint32_t generation; /* by plover: which use of the slot this is */
    _Atomic uint64_t time_us;     /* by plover: the time at which a replayed one is accepted */
    _Atomic uint64_t sent;        /* bytes that the program has sent, or is sending */
    _Atomic uint32_t swallowed;   /* bytes of output that nobody gets any more */
    uint32_t unused;
};

struct shared {
    uint32_t magic, version;
    uint32_t wait_read; /* reads end at the commit; otherwise writes wait for it */
    uint32_t copies_output;
    uint32_t allows_outgoing;
    uint32_t port;        /* where the program listens */
    uint32_t listen_ip;   /* where clients connect: network order */
    uint32_t listen_port; /* host order */
    uint32_t plover_pid;
    uint32_t log_clock; /* the program's time is the log's: clock.c */
    uint8_t secret[16];
    char door[40]; /* the abstract name of plover's socket */
    uint8_t gap[32];
    /* 128: written by plover */
    _Atomic uint64_t committed; /* inputs up to this number are */
    _Atomic uint64_t tail;      /* bytes of the ring that plover has taken */
    _Atomic uint32_t bell;      /* rises with each change that a thread may wait for */
    _Atomic uint32_t epoch;     /* only connections of this epoch are read */
    _Atomic uint32_t sleeps;    /* plover waits for its eventfd */
    _Atomic uint32_t clock_epoch; /* the program's time follows this host's in this epoch */
    _Atomic uint64_t next_us;   /* the time of what the program is given next */
    _Atomic uint64_t leased_until; /* no other replica leads before this: CLOCK_BOOTTIME, µs */
    uint32_t gap_2[20];
    /* 256: written by the program */
    _Atomic uint64_t head;   /* bytes of the ring that the program has filled */
    _Atomic uint64_t inputs; /* the number of the last input */
    _Atomic uint32_t lock;   /* the thread that takes an input or fills the ring */
    _Atomic uint32_t lock_waiters;
    _Atomic uint32_t waiters; /* threads that wait for the bell */
    _Atomic uint32_t listens; /* the program listens at its port, and this library knows */
    _Atomic uint64_t now_us; /* the program's time, µs since 1970 */
    _Atomic uint32_t forks;  /* processes that the program has made of itself, or tried to */
    _Atomic uint32_t reading; /* the slot, from 1 on, that the thread with the lock reads from; 0 for none */
    uint32_t gap_3[20];
    /* 384 */
    _Atomic uint32_t by_port[PORTS]; /* generation and slot, by the port of plover's end */
    struct slot slots[SLOTS];
};

struct record {
    uint32_t bytes; /* behind the record, padded to 8 */
    uint16_t kind;
    uint16_t flag;
    uint32_t slot;
    uint32_t epoch;
    uint64_t number; /* inputs so far */
    uint64_t sent;   /* the slot's */
};

_Static_assert(sizeof(struct slot) == 64, "as in layout.rs");
_Static_assert(sizeof(struct shared) == 384 + 4 * PORTS + 64 * SLOTS, "as in layout.rs");
_Static_assert(sizeof(struct shared) <= RING_AT, "the ring is behind it");
_Static_assert(sizeof(struct record) == 32, "as in layout.rs");
#endif
