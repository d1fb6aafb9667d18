/* The channel, the table of keys, and the records. plover_clean.h explains the order of accesses. */
#define _GNU_SOURCE
#include "plover_clean.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <unistd.h>

_Static_assert(sizeof(struct plover_clean_record) == 80, "the host reads records of 80 bytes");
_Static_assert(offsetof(struct plover_clean_channel, next) == 64, "the host reads `next` at 64");
_Static_assert(offsetof(struct plover_clean_channel, record) == 4096, "the host reads records at 4096");
_Static_assert(sizeof(struct plover_clean_channel) <= PLOVER_CLEAN_BYTES, "the channel has 64 KiB");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the channel is little endian");

/* Keys share slots by their hash. A slot is dirty if one of its keys is. More slots make more pages that
 * differ between cuts, fewer make more replies dirty without need: with 8192, a hundred writes since the
 * cut make one reply in a hundred dirty that need not be. */
#define SLOTS 8192
struct slot {
    _Atomic uint64_t writing; /* writes in progress */
    _Atomic uint64_t stamp;   /* the newest cut that a finished write has read */
};

/* Where a test makes a thread slow, so that rare orders of two threads become frequent. */
#ifndef STEP
#define STEP() ((void)0)
#endif

static struct plover_clean_channel *channel;
static struct slot slots[SLOTS];
static struct slot all; /* writes of unknown data */

/* ---- opening --------------------------------------------------------------------------------- */

static bool refuse(const char *what, const char *why, const char *advice)
{
    fprintf(stderr, "plover-clean: cannot use %s as the channel (%s), so no reply is reported as clean; %s\n",
            what, why, advice);
    return false;
}

/* An older kernel may have its own data at the channel's address. */
static bool kernel_leaves_low_memory(void)
{
    struct utsname name;
    int major = 0, minor = 0;
    if (uname(&name) || sscanf(name.release, "%d.%d", &major, &minor) != 2)
        return false;
    return major > 5 || (major == 5 && minor >= 13);
}

/* Finds the magic, or writes it after everything else. The host reads nothing without the magic. */
static bool prepare(struct plover_clean_channel *found)
{
    if (!memcmp(found->magic, PLOVER_CLEAN_MAGIC, sizeof found->magic))
        return found->records == PLOVER_CLEAN_RECORDS &&
               found->record_bytes == sizeof(struct plover_clean_record);
    uint64_t halves[2];
    memcpy(halves, PLOVER_CLEAN_MAGIC, sizeof halves);
    volatile uint64_t *magic = (volatile uint64_t *)found->magic;
    magic[0] = 0;
    atomic_thread_fence(memory_order_seq_cst);
    memset((char *)found + sizeof found->magic, 0, sizeof *found - sizeof found->magic);
    found->records = PLOVER_CLEAN_RECORDS;
    found->record_bytes = sizeof(struct plover_clean_record);
    magic[1] = halves[1];
    atomic_thread_fence(memory_order_seq_cst);
    magic[0] = halves[0];
    return true;
}

static bool open_descriptor(int fd, const char *what)
{
    struct stat status;
    if (fstat(fd, &status))
        return refuse(what, strerror(errno), "give it an open descriptor of /dev/mem");
    bool memory = S_ISCHR(status.st_mode) && status.st_rdev == makedev(1, 1);
    if (!memory && !S_ISREG(status.st_mode))
        return refuse(what, "it is neither /dev/mem nor a file", "give it an open descriptor of /dev/mem");
    if (memory && !kernel_leaves_low_memory())
        return refuse(what, "the kernel is older than 5.13 and may use this memory itself",
                      "use a newer kernel");
    if (!memory && status.st_size < PLOVER_CLEAN_BYTES)
        return refuse(what, "it has less than 64 KiB", "make it larger");
    void *mapped = mmap(NULL, PLOVER_CLEAN_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                        memory ? PLOVER_CLEAN_ADDRESS : 0);
    if (mapped == MAP_FAILED)
        return refuse(what, strerror(errno), "see whether the kernel is locked down or lacks CONFIG_DEVMEM");
    /* Two programs that start at once must not both write the magic. */
    flock(fd, LOCK_EX);
    bool ready = prepare(mapped);
    flock(fd, LOCK_UN);
    if (!ready) {
        munmap(mapped, PLOVER_CLEAN_BYTES);
        return refuse(what, "it was set up with other sizes",
                      "use the same version everywhere, and power the guest off and on");
    }
    channel = mapped;
    atomic_store(&all.stamp, atomic_load(&channel->cut));
    return true;
}

bool plover_clean_open(void)
{
    int error = errno;
    if (channel)
        return true;
    bool opened = false;
    const char *file = getenv("PLOVER_CLEAN_FILE"), *number = getenv("PLOVER_CLEAN_FD");
    if (!file && number) {
        opened = open_descriptor(atoi(number), "the descriptor in PLOVER_CLEAN_FD");
    } else {
        const char *path = file ? file : "/dev/mem";
        int fd = open(path, O_RDWR | O_CLOEXEC);
        if (fd < 0) {
            refuse(path, strerror(errno),
                   "start the program as root, or pass it the open /dev/mem in PLOVER_CLEAN_FD");
        } else {
            opened = open_descriptor(fd, path);
            close(fd);
        }
    }
    errno = error;
    return opened;
}

uint64_t plover_clean_cut(void)
{
    return channel ? atomic_load(&channel->cut) : 0;
}

/* ---- what was written ------------------------------------------------------------------------ */

static uint64_t fnv_1a(uint64_t hash, const void *bytes, size_t count)
{
    for (const uint8_t *byte = bytes; count; byte++, count--)
        hash = (hash ^ *byte) * 0x100000001b3;
    return hash;
}
#define FNV_START 0xcbf29ce484222325

uint64_t plover_clean_key(const void *name, size_t bytes)
{
    return fnv_1a(FNV_START, name, bytes);
}

uint64_t plover_clean_key_part(uint64_t key, const void *name, size_t bytes)
{
    return fnv_1a(key, name, bytes);
}

static struct slot *slot_of(uint64_t key)
{
    /* The low bits of FNV-1a depend on few bits of the name; multiplying spreads the others to the top. */
    return &slots[(((key ^ key >> 32) * 0x9e3779b97f4a7c15) >> 32) % SLOTS];
}

static void begin(struct slot *slot)
{
    atomic_fetch_add(&slot->writing, 1);
    atomic_thread_fence(memory_order_seq_cst); /* before the data changes */
}

static void end(struct slot *slot)
{
    atomic_thread_fence(memory_order_seq_cst); /* after the data has changed */
    uint64_t cut = plover_clean_cut();
    uint64_t seen = atomic_load(&slot->stamp);
    STEP();
    while (seen < cut && !atomic_compare_exchange_weak(&slot->stamp, &seen, cut)) {
    }
    STEP();
    atomic_fetch_sub(&slot->writing, 1);
}

static bool unchanged(struct slot *slot, uint64_t cut)
{
    /* Not the other way round: a write might end between a stamp that is too old and a count of 0. */
    if (atomic_load(&slot->writing))
        return false;
    STEP();
    return atomic_load(&slot->stamp) < cut;
}

void plover_clean_begin(uint64_t key)
{
    if (channel)
        begin(slot_of(key));
}

void plover_clean_end(uint64_t key)
{
    if (channel)
        end(slot_of(key));
}

bool plover_clean_unchanged(uint64_t key, uint64_t cut)
{
    if (!channel || !cut)
        return false;
    atomic_thread_fence(memory_order_seq_cst); /* after the data was read */
    return unchanged(&all, cut) && unchanged(slot_of(key), cut);
}

void plover_clean_begin_all(void)
{
    if (channel)
        begin(&all);
}

void plover_clean_end_all(void)
{
    if (channel)
        end(&all);
}

/* ---- ranges of memory ------------------------------------------------------------------------ */

static size_t pages_of(const void *start, size_t bytes, uintptr_t *first)
{
    *first = (uintptr_t)start >> 12;
    return bytes ? (((uintptr_t)start + bytes - 1) >> 12) - *first + 1 : 0;
}

static void each_page(const void *start, size_t bytes, void (*change)(struct slot *))
{
    uintptr_t first;
    size_t pages = pages_of(start, bytes, &first);
    if (!channel)
        return;
    if (pages > PLOVER_CLEAN_PAGES_MAX) {
        change(&all);
        return;
    }
    for (size_t page = 0; page < pages; page++)
        change(slot_of(first + page));
}

void plover_clean_begin_range(const void *start, size_t bytes)
{
    each_page(start, bytes, begin);
}

void plover_clean_end_range(const void *start, size_t bytes)
{
    each_page(start, bytes, end);
}

bool plover_clean_range_unchanged(const void *start, size_t bytes, uint64_t cut)
{
    uintptr_t first;
    size_t pages = pages_of(start, bytes, &first);
    if (!channel || !cut)
        return false;
    atomic_thread_fence(memory_order_seq_cst);
    for (size_t page = 0; page < pages; page++)
        if (!unchanged(slot_of(first + page), cut))
            return false;
    return unchanged(&all, cut);
}

/* ---- records --------------------------------------------------------------------------------- */

/* Takes the next record that no other writer is in the middle of. A writer may be so slow that the ring
 * comes round to its record (it was preempted, or it died). Such a record is left alone, and the number
 * that would have been there stays unused. */
static struct plover_clean_record *claim(uint64_t *number)
{
    for (int tries = 0; tries < PLOVER_CLEAN_RECORDS; tries++) {
        uint64_t n = atomic_fetch_add(&channel->next, 1);
        struct plover_clean_record *record = &channel->record[n % PLOVER_CLEAN_RECORDS];
        uint64_t seen = atomic_load(&record->number);
        bool first_round = n < PLOVER_CLEAN_RECORDS;
        if (first_round ? seen != 0 : seen == 0 || seen > n)
            continue;
        if (atomic_compare_exchange_strong(&record->number, &seen, 0)) {
            *number = n;
            return record;
        }
    }
    return NULL; /* all are taken: the host finds no record, and holds the datagram */
}

/* Writes an address as IPv6 and its port; all zero for "any address". False for other families. */
static bool write_address(const struct sockaddr_storage *from, uint8_t address[16], uint16_t *port)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    memset(address, 0, 16);
    if (from->ss_family == AF_INET) {
        const struct sockaddr_in *four = (const struct sockaddr_in *)from;
        *port = ntohs(four->sin_port);
        if (four->sin_addr.s_addr != htonl(INADDR_ANY)) {
            memcpy(address, mapped, 12);
            memcpy(address + 12, &four->sin_addr, 4);
        }
        return true;
    }
    if (from->ss_family == AF_INET6) {
        const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)from;
        *port = ntohs(six->sin6_port);
        memcpy(address, &six->sin6_addr, 16);
        return true;
    }
    return false;
}

static bool write_addresses(int socket, const struct sockaddr *client, struct plover_clean_record *into)
{
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t here_bytes = sizeof here, there_bytes = sizeof there;
    if (getsockname(socket, (struct sockaddr *)&here, &here_bytes))
        return false;
    if (!client) {
        if (getpeername(socket, (struct sockaddr *)&there, &there_bytes))
            return false;
    } else {
        memcpy(&there, client,
               client->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in));
    }
    return write_address(&here, into->guest, &into->guest_port) &&
           write_address(&there, into->client, &into->client_port);
}

static void publish(int socket, const struct sockaddr *client, struct plover_clean_record *whole)
{
    int error = errno;
    uint64_t number;
    struct plover_clean_record *record;
    if (write_addresses(socket, client, whole) && (record = claim(&number))) {
        atomic_thread_fence(memory_order_seq_cst); /* the host sees number 0 before other fields change */
        memcpy((char *)record + sizeof record->number, (char *)whole + sizeof whole->number,
               sizeof *whole - sizeof whole->number);
        atomic_store(&record->number, number + 1);
    }
    errno = error;
}

void plover_clean_report(int socket, const struct sockaddr *client, const struct iovec *parts,
                         size_t count, uint64_t cut)
{
    if (!channel)
        return;
    struct plover_clean_record whole = {.cut = cut, .what = FNV_START, .protocol = IPPROTO_UDP};
    for (size_t part = 0; part < count; part++) {
        whole.what = fnv_1a(whole.what, parts[part].iov_base, parts[part].iov_len);
        whole.bytes += (uint32_t)parts[part].iov_len;
    }
    publish(socket, client, &whole);
}

void plover_clean_report_stream(int socket, uint64_t sent, size_t bytes, uint64_t cut)
{
    if (!channel || !cut || !bytes || bytes > UINT32_MAX / 2)
        return;
    struct plover_clean_record whole = {
        .cut = cut, .what = sent, .bytes = (uint32_t)bytes, .protocol = IPPROTO_TCP};
    publish(socket, NULL, &whole);
}
