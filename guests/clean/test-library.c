/* Tests of plover_clean.c. The test is the host: it maps the channel's file, and writes the cut. Prints each
 * check that fails, and exits 1 if there was one. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>

static _Thread_local uint32_t step_seed = 1;
/* Lets another thread run at one of 16 steps. */
static inline void step(void)
{
    step_seed = step_seed * 1103515245 + 12345;
    if (!(step_seed >> 16 & 15))
        sched_yield();
}
#define STEP() step()
/* With its static functions and the steps. */
#include "plover_clean.c"

#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

static int failures;
#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "test-library.c:%d: %s: not so: %s\n", __LINE__, __func__, #condition);          \
            failures++;                                                                                      \
        }                                                                                                    \
    } while (0)

static char path[] = "/tmp/plover-clean-test-XXXXXX";
static struct plover_clean_channel *host;

static void open_channel(void)
{
    CHECK(plover_clean_open());
}

/* ---- opening --------------------------------------------------------------------------------- */

static void without_a_channel_nothing_is_clean(void)
{
    setenv("PLOVER_CLEAN_FILE", "/nowhere/channel", 1);
    CHECK(!plover_clean_open());
    plover_clean_begin(1);
    plover_clean_end(1);
    struct iovec part = {.iov_base = "x", .iov_len = 1};
    plover_clean_report(0, NULL, &part, 1, 0);
    CHECK(plover_clean_cut() == 0);
    CHECK(!plover_clean_unchanged(1, 5));
    CHECK(!plover_clean_range_unchanged(&part, 1, 5));
}

static void a_new_channel_has_the_layout(void)
{
    memset(host, 0xa5, PLOVER_CLEAN_BYTES);
    open_channel();
    const uint8_t *bytes = (const uint8_t *)host;
    uint64_t cut, next;
    uint32_t sizes[2];
    memcpy(&cut, bytes + 16, 8);
    memcpy(sizes, bytes + 24, 8);
    memcpy(&next, bytes + 64, 8);
    CHECK(!memcmp(bytes, "plover-clean-01\n", 16));
    CHECK(cut == 0 && sizes[0] == 768 && sizes[1] == 80 && next == 0);
    for (size_t at = 4096; at < 4096 + 768 * 80; at++)
        if (bytes[at]) {
            CHECK(!"records are zero");
            break;
        }
}

static void a_channel_that_is_there_is_kept(void)
{
    prepare(host);
    host->cut = 7;
    host->next = 5;
    open_channel();
    CHECK(plover_clean_cut() == 7 && host->next == 5);
    CHECK(!plover_clean_unchanged(1, 7)); /* what exists at the start counts as written now */
    host->cut = 8;
    CHECK(plover_clean_unchanged(1, 8));
}

static void other_sizes_are_refused(void)
{
    prepare(host);
    host->record_bytes = 96;
    CHECK(!plover_clean_open());
}

static void an_inherited_descriptor_serves(void)
{
    char number[16];
    int fd = open(path, O_RDWR);
    snprintf(number, sizeof number, "%d", fd);
    unsetenv("PLOVER_CLEAN_FILE");
    setenv("PLOVER_CLEAN_FD", number, 1);
    open_channel();
    host->cut = 3;
    CHECK(plover_clean_cut() == 3);
}

/* ---- keys ------------------------------------------------------------------------------------ */

static void a_key_is_dirty_until_the_cut_after_its_write(void)
{
    open_channel();
    uint64_t key = plover_clean_key("a", 1), other = plover_clean_key("b", 1);
    CHECK(!plover_clean_unchanged(key, 0));
    host->cut = 3;
    CHECK(plover_clean_unchanged(key, 3));
    plover_clean_begin(key);
    CHECK(!plover_clean_unchanged(key, 3));
    host->cut = 4; /* a pause in the middle of the write */
    CHECK(!plover_clean_unchanged(key, 4));
    plover_clean_end(key);
    CHECK(!plover_clean_unchanged(key, 4));
    CHECK(plover_clean_unchanged(other, 4));
    host->cut = 5;
    CHECK(plover_clean_unchanged(key, 5));
    CHECK(!plover_clean_unchanged(key, 4));
    CHECK(!plover_clean_unchanged(key, 0));
}

static void writes_that_overlap_are_counted(void)
{
    open_channel();
    host->cut = 3;
    plover_clean_begin(1);
    plover_clean_begin(1);
    plover_clean_end(1);
    host->cut = 4;
    CHECK(!plover_clean_unchanged(1, 4));
    plover_clean_end(1);
    host->cut = 5;
    CHECK(plover_clean_unchanged(1, 5));
}

static void an_unknown_write_makes_all_dirty(void)
{
    open_channel();
    host->cut = 3;
    plover_clean_begin_all();
    host->cut = 4;
    CHECK(!plover_clean_unchanged(1, 4) && !plover_clean_range_unchanged(&failures, 4, 4));
    plover_clean_end_all();
    CHECK(!plover_clean_unchanged(1, 4) && !plover_clean_range_unchanged(&failures, 4, 4));
    host->cut = 5;
    CHECK(plover_clean_unchanged(1, 5) && plover_clean_range_unchanged(&failures, 4, 5));
}

static uint64_t numbered_key(int number)
{
    char name[32];
    return plover_clean_key(name, (size_t)snprintf(name, sizeof name, "key:%d", number));
}

static void keys_that_collide_are_dirty_together(void)
{
    open_channel();
    host->cut = 3;
    int dirty = 0, written = 100, others = 10000;
    for (int key = 0; key < written; key++) {
        plover_clean_begin(numbered_key(key));
        plover_clean_end(numbered_key(key));
    }
    for (int key = 0; key < written; key++)
        CHECK(!plover_clean_unchanged(numbered_key(key), 3));
    for (int key = written; key < written + others; key++)
        dirty += !plover_clean_unchanged(numbered_key(key), 3);
    CHECK(dirty > 0);            /* there are more keys than slots */
    CHECK(dirty < others * 3 / 100); /* 1.2 in 100 are expected */
    /* Far more writes than slots: none is forgotten. */
    for (int key = 0; key < 50000; key++) {
        plover_clean_begin(numbered_key(key));
        plover_clean_end(numbered_key(key));
    }
    for (int key = 0; key < 50000; key += 7)
        CHECK(!plover_clean_unchanged(numbered_key(key), 3));
    host->cut = 4;
    for (int key = 0; key < 50000; key += 7)
        CHECK(plover_clean_unchanged(numbered_key(key), 4));
}

static void ranges_are_pages(void)
{
    open_channel();
    host->cut = 3;
    char *memory = (char *)0x10000000; /* never touched */
    plover_clean_begin_range(memory + 4000, 200); /* over an edge: pages 0 and 1 */
    CHECK(!plover_clean_range_unchanged(memory, 1, 3));
    plover_clean_end_range(memory + 4000, 200);
    CHECK(!plover_clean_range_unchanged(memory, 1, 3));
    CHECK(!plover_clean_range_unchanged(memory + 8191, 1, 3));
    CHECK(plover_clean_range_unchanged(memory + 8192, 4096, 3));
    CHECK(!plover_clean_range_unchanged(memory - 4096, 3 * 4096, 3));
    CHECK(plover_clean_range_unchanged(memory, 0, 3));
    plover_clean_begin_range(memory, (PLOVER_CLEAN_PAGES_MAX + 1) * 4096);
    plover_clean_end_range(memory, (PLOVER_CLEAN_PAGES_MAX + 1) * 4096);
    CHECK(!plover_clean_unchanged(1, 3));
    host->cut = 4;
    CHECK(plover_clean_range_unchanged(memory, 1 << 20, 4) && plover_clean_unchanged(1, 4));
}

/* ---- records --------------------------------------------------------------------------------- */

static int bound(int family, const char *address, struct sockaddr_storage *name, uint16_t *port)
{
    int fd = socket(family, SOCK_DGRAM, 0);
    socklen_t bytes = sizeof *name;
    memset(name, 0, sizeof *name);
    name->ss_family = (sa_family_t)family;
    inet_pton(family, address, family == AF_INET ? (void *)&((struct sockaddr_in *)name)->sin_addr
                                                 : (void *)&((struct sockaddr_in6 *)name)->sin6_addr);
    CHECK(!bind(fd, (struct sockaddr *)name, sizeof *name));
    getsockname(fd, (struct sockaddr *)name, &bytes);
    *port = ntohs(((struct sockaddr_in *)name)->sin_port); /* at the same place in both */
    return fd;
}

static void a_record_tells_the_datagram(void)
{
    static const uint8_t zero[16], local[16] = {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1};
    static const uint8_t six_local[16] = {[15] = 1};
    open_channel();
    struct sockaddr_storage guest, client, six;
    uint16_t guest_port, client_port, six_port;
    int any = bound(AF_INET, "0.0.0.0", &guest, &guest_port), to = bound(AF_INET, "127.0.0.1", &client, &client_port);
    struct iovec parts[] = {{"foo", 3}, {NULL, 0}, {"bar", 3}};
    plover_clean_report(any, (struct sockaddr *)&client, parts, 3, 9);
    struct plover_clean_record *record = &host->record[0];
    CHECK(record->number == 1 && record->cut == 9 && record->bytes == 6 && record->protocol == 17);
    CHECK(record->what == 0x85944171f73967e8); /* the published value of FNV-1a for "foobar" */
    CHECK(record->guest_port == guest_port && record->client_port == client_port);
    CHECK(!memcmp(record->guest, zero, 16) && !memcmp(record->client, local, 16) && !record->zero);

    connect(to, (struct sockaddr *)&client, sizeof(struct sockaddr_in));
    plover_clean_report(to, NULL, parts, 1, 0);
    CHECK(host->record[1].number == 2 && !host->record[1].cut && host->record[1].bytes == 3);
    CHECK(!memcmp(host->record[1].guest, local, 16) && host->record[1].client_port == client_port);

    int six_fd = bound(AF_INET6, "::1", &six, &six_port);
    plover_clean_report(six_fd, (struct sockaddr *)&six, parts, 3, 1);
    if (six_port) { /* this machine has IPv6 */
        CHECK(host->record[2].number == 3 && host->record[2].client_port == six_port);
        CHECK(!memcmp(host->record[2].guest, six_local, 16) && !memcmp(host->record[2].client, six_local, 16));
    }
}

static int reporter_fd;
static struct sockaddr_storage reporter_to;
#define REPORTS 20000

/* The cut is made from the payload, so that a record of two halves shows. */
static uint64_t cut_for(uint64_t hash)
{
    return hash ^ 0x5555555555555555;
}

static void *report_many(void *first)
{
    for (uintptr_t at = 0; at < REPORTS; at++) {
        uint64_t payload = (uint64_t)(uintptr_t)first + at;
        struct iovec part = {.iov_base = &payload, .iov_len = sizeof payload};
        plover_clean_report(reporter_fd, (struct sockaddr *)&reporter_to, &part, 1,
                            cut_for(plover_clean_key(&payload, sizeof payload)));
    }
    return NULL;
}

static void the_ring_goes_round(void)
{
    open_channel();
    uint16_t port;
    pthread_t threads[3];
    reporter_fd = bound(AF_INET, "127.0.0.1", &reporter_to, &port);
    for (uintptr_t at = 0; at < 3; at++)
        pthread_create(&threads[at], NULL, report_many, (void *)(at << 32));
    /* The host reads meanwhile, as a sequence lock. */
    uint64_t seen = 0;
    while (host->next < 3 * REPORTS - 100) {
        struct plover_clean_record *record = &host->record[host->next % PLOVER_CLEAN_RECORDS], copy;
        uint64_t before = atomic_load(&record->number);
        memcpy(&copy, record, sizeof copy);
        atomic_thread_fence(memory_order_seq_cst);
        if (!before || atomic_load(&record->number) != before)
            continue;
        seen++;
        if (copy.cut != cut_for(copy.what)) {
            CHECK(!"a record that counts as whole is of one datagram");
            break;
        }
    }
    for (int at = 0; at < 3; at++)
        pthread_join(threads[at], NULL);
    CHECK(seen > 100);
    int in_place = 0, newest = 0;
    for (uint64_t at = 0; at < PLOVER_CLEAN_RECORDS; at++) {
        struct plover_clean_record *record = &host->record[at];
        in_place += record->number && (record->number - 1) % PLOVER_CLEAN_RECORDS == at;
        newest += record->number + PLOVER_CLEAN_RECORDS > host->next;
        CHECK(record->cut == cut_for(record->what));
    }
    CHECK(in_place == PLOVER_CLEAN_RECORDS);
    CHECK(newest > PLOVER_CLEAN_RECORDS - 10); /* but for records that were being written as the ring came round */
    CHECK(host->next >= 3 * REPORTS);
}

static void a_slow_writers_record_is_left_alone(void)
{
    open_channel();
    uint16_t port;
    reporter_fd = bound(AF_INET, "127.0.0.1", &reporter_to, &port);
    struct iovec part = {.iov_base = "x", .iov_len = 1};
    uint64_t number;
    struct plover_clean_record *slow = claim(&number);
    CHECK(slow == &channel->record[0] && number == 0);
    slow->what = 1234;
    for (int at = 0; at < 2 * PLOVER_CLEAN_RECORDS; at++)
        plover_clean_report(reporter_fd, (struct sockaddr *)&reporter_to, &part, 1, 0);
    CHECK(slow->number == 0 && slow->what == 1234);
    atomic_store(&slow->number, number + 1);
    for (int at = 0; at < PLOVER_CLEAN_RECORDS; at++)
        plover_clean_report(reporter_fd, (struct sockaddr *)&reporter_to, &part, 1, 0);
    CHECK(slow->number > 2 * PLOVER_CLEAN_RECORDS && slow->what == plover_clean_key("x", 1));
}

/* ---- pauses ---------------------------------------------------------------------------------- */

/* A process of writers and readers is stopped at any instruction, again and again. At each stop the test
 * copies the data, as a syncvm does, and writes the cut. A reply that is clean as of a cut must equal the
 * copy at that cut. */
#define KEYS 4
#define CUTS 4000
static struct {
    _Atomic uint64_t data[KEYS];
    uint64_t copy[CUTS + 1][KEYS];
    _Atomic uint64_t clean, dirty, wrong, writes;
} *world;

static void *write_for_ever(void *seed)
{
    step_seed = (uint32_t)(uintptr_t)seed;
    for (uint64_t value = (uint64_t)(uintptr_t)seed << 32;; value++) {
        unsigned key = (step_seed >> 20) % KEYS;
        plover_clean_begin(key);
        step();
        atomic_store(&world->data[key], value);
        step();
        plover_clean_end(key);
        atomic_fetch_add(&world->writes, 1);
        if (!(value & 7))
            usleep(step_seed >> 16 & 127); /* so that some keys are clean */
        step();
    }
    return NULL;
}

static void *read_for_ever(void *seed)
{
    step_seed = (uint32_t)(uintptr_t)seed;
    for (;;) {
        step();
        unsigned key = (step_seed >> 20) % KEYS;
        uint64_t before = plover_clean_cut();
        uint64_t value = atomic_load(&world->data[key]);
        uint64_t cut = plover_clean_cut();
        step();
        bool clean = plover_clean_unchanged(key, cut);
        atomic_fetch_add(clean ? &world->clean : &world->dirty, 1);
        /* What was read before the cut is in the state at the cut, with its reader. */
        if (clean && before == cut && value != world->copy[cut][key])
            atomic_fetch_add(&world->wrong, 1);
    }
    return NULL;
}

static void a_clean_reply_equals_the_state_at_its_cut(void)
{
    world = mmap(NULL, sizeof *world, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t guest = fork();
    if (!guest) {
        pthread_t thread;
        open_channel();
        for (uintptr_t at = 1; at <= 2; at++) {
            pthread_create(&thread, NULL, write_for_ever, (void *)at);
            pthread_create(&thread, NULL, read_for_ever, (void *)(at + 10));
        }
        pause();
    }
    while (!world->writes)
        usleep(100);
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    uint64_t cut = 0;
    do {
        int status;
        kill(guest, SIGSTOP);
        waitpid(guest, &status, WUNTRACED);
        cut++;
        for (int key = 0; key < KEYS; key++)
            world->copy[cut][key] = world->data[key];
        host->cut = cut;
        kill(guest, SIGCONT);
        usleep((unsigned)(cut % 5) * 100);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (cut < CUTS && now.tv_sec < start.tv_sec + 4);
    kill(guest, SIGKILL);
    waitpid(guest, NULL, 0);
    printf("  %lu pauses, %lu writes, %lu replies clean, %lu dirty, %lu wrong\n", (unsigned long)cut,
           (unsigned long)world->writes, (unsigned long)world->clean, (unsigned long)world->dirty,
           (unsigned long)world->wrong);
    CHECK(world->wrong == 0);
    CHECK(world->clean > 100 && world->dirty > 100 && cut > 100);
}

/* ---- all ------------------------------------------------------------------------------------- */

/* Each test is a process of its own, with a channel of zeros. */
static int run(const char *name, void (*test)(void))
{
    memset(host, 0, PLOVER_CLEAN_BYTES);
    printf("%s\n", name);
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        test();
        fflush(stdout);
        _exit(failures != 0);
    }
    int status;
    waitpid(child, &status, 0);
    return status != 0;
}

int main(void)
{
    int fd = mkstemp(path), failed = 0;
    if (fd < 0 || ftruncate(fd, PLOVER_CLEAN_BYTES))
        return 2;
    host = mmap(NULL, PLOVER_CLEAN_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    setenv("PLOVER_CLEAN_FILE", path, 1);
#define RUN(test) failed += run(#test, test)
    RUN(without_a_channel_nothing_is_clean);
    RUN(a_new_channel_has_the_layout);
    RUN(a_channel_that_is_there_is_kept);
    RUN(other_sizes_are_refused);
    RUN(an_inherited_descriptor_serves);
    RUN(a_key_is_dirty_until_the_cut_after_its_write);
    RUN(writes_that_overlap_are_counted);
    RUN(an_unknown_write_makes_all_dirty);
    RUN(keys_that_collide_are_dirty_together);
    RUN(ranges_are_pages);
    RUN(a_record_tells_the_datagram);
    RUN(the_ring_goes_round);
    RUN(a_slow_writers_record_is_left_alone);
    RUN(a_clean_reply_equals_the_state_at_its_cut);
    unlink(path);
    return failed != 0;
}
