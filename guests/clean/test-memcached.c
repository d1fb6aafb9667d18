/* Tests of plover-clean.so: a real memcached over UDP, with a file as the channel. The test is the client and
 * the host. Each reply is looked up among the records by its hash, as the host does.
 *
 *     test-memcached PRELOAD MEMCACHED
 *
 * Prints each check that fails, and exits 1 if there was one. */
#define _GNU_SOURCE
#include "test-channel.h"

#include <poll.h>
#include <stdarg.h>

static int udp;
static uint16_t own_port;
static uint64_t last_number;

/* What the records say of the datagrams of one answer. */
struct answer {
    unsigned datagrams, clean, dirty, unknown; /* unknown: without a record */
    char text[70000];                          /* of all datagrams, without the frames */
    size_t count;
};

/* Looks for the newest record of a datagram. */
static struct plover_clean_record *record_of(const char *bytes, size_t count)
{
    struct plover_clean_record *found = NULL;
    uint64_t hash = plover_clean_key(bytes, count); /* FNV-1a too; test-library.c checks its value */
    for (size_t at = 0; at < PLOVER_CLEAN_RECORDS; at++) {
        struct plover_clean_record *record = &host->record[at];
        if (record->number > last_number && record->what == hash && record->bytes == count &&
            (!found || record->number > found->number))
            found = record;
    }
    return found;
}

/* How long to wait for more, after an answer that is whole. */
static int more_ms = 2;

static void receive(struct answer *answer, uint16_t id, int timeout_ms)
{
    memset(answer, 0, sizeof *answer);
    for (;;) {
        char bytes[65536];
        struct pollfd wait = {.fd = udp, .events = POLLIN};
        /* An answer is whole with the line "END", or if it is neither values nor statistics. */
        bool whole = answer->count >= 5 && (!memcmp(answer->text + answer->count - 5, "END\r\n", 5) ||
                                            (memcmp(answer->text, "VALUE", 5) && memcmp(answer->text, "STAT", 4)));
        if (poll(&wait, 1, whole ? more_ms : timeout_ms) <= 0)
            break;
        ssize_t got = recv(udp, bytes, sizeof bytes, 0);
        if (got < 8)
            break;
        struct plover_clean_record *record = record_of(bytes, (size_t)got);
        answer->datagrams++;
        memcpy(answer->text + answer->count, bytes + 8, (size_t)got - 8);
        answer->count += (size_t)got - 8;
        CHECK((uint8_t)bytes[0] << 8 == (id & 0xff00) && (uint8_t)bytes[1] == (id & 0xff));
        if (!record) {
            answer->unknown++;
            continue;
        }
        CHECK(record->guest_port == ntohs(server.sin_port) && record->client_port == own_port);
        CHECK(!record->cut || record->cut == cut);
        *(record->cut ? &answer->clean : &answer->dirty) += 1;
    }
    answer->text[answer->count] = 0;
    last_number = host->next;
}

static uint16_t last_id;

static void send_frame(uint16_t id, uint16_t total, const char *bytes, size_t count)
{
    char frame[65536] = {(char)(id >> 8), (char)id, 0, 0, (char)(total >> 8), (char)total};
    memcpy(frame + 8, bytes, count);
    CHECK(send(udp, frame, count + 8, 0) == (ssize_t)count + 8);
}

static struct answer *ask(const char *format, ...)
{
    static struct answer answer;
    char text[60000];
    va_list list;
    va_start(list, format);
    int count = vsnprintf(text, sizeof text, format, list);
    va_end(list);
    send_frame(++last_id, 1, text, (size_t)count);
    receive(&answer, last_id, strstr(text, "noreply") ? 20 : 500);
    return &answer;
}

/* Whether each datagram of the answer has a record, all clean or all dirty, and the answer begins so. */
static bool is_clean(struct answer *answer, const char *start)
{
    return answer->datagrams && answer->clean == answer->datagrams && !strncmp(answer->text, start, strlen(start));
}

static bool is_dirty(struct answer *answer, const char *start)
{
    return answer->datagrams && answer->dirty == answer->datagrams && !strncmp(answer->text, start, strlen(start));
}

static void say_tcp(int fd, const char *text, const char *answer)
{
    char bytes[4096];
    CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    if (!answer) {
        usleep(50000);
        return;
    }
    ssize_t got = read(fd, bytes, sizeof bytes);
    CHECK(got >= (ssize_t)strlen(answer) && !memcmp(bytes, answer, strlen(answer)));
}

/* A clean a = "abc", b = "xyz" to begin with. */
static void fill(void)
{
    ask("set a 0 0 3\r\nabc\r\n");
    ask("set b 0 0 3\r\nxyz\r\n");
    next_cut();
    CHECK(is_clean(ask("get a b\r\n"), "VALUE a 0 3\r\nabc\r\nVALUE b 0 3\r\nxyz\r\nEND\r\n"));
}

static void a_get_is_clean_from_the_cut_after_the_write(void)
{
    CHECK(is_dirty(ask("set a 0 0 3\r\nabc\r\n"), "STORED"));
    CHECK(is_dirty(ask("get a\r\n"), "VALUE a 0 3\r\nabc"));
    next_cut();
    CHECK(is_clean(ask("get a\r\n"), "VALUE a 0 3\r\nabc"));
    CHECK(is_dirty(ask("gets a\r\n"), "VALUE a 0 3 "));
    next_cut();
    CHECK(is_clean(ask("get a\r\n"), "VALUE a 0 3\r\nabc"));
    CHECK(is_dirty(ask("set a 0 0 1\r\nx\r\n"), "STORED"));
    CHECK(is_dirty(ask("get a\r\n"), "VALUE a 0 1\r\nx"));
}

static void a_miss_is_dirty(void)
{
    fill();
    CHECK(is_dirty(ask("get none\r\n"), "END"));
    struct answer *answer = ask("get a none\r\n");
    CHECK(answer->dirty >= 1 && !answer->unknown);
    answer = ask("get none a\r\n");
    CHECK(is_dirty(answer, "VALUE a"));
    CHECK(is_clean(ask("get a a b a\r\n"), "VALUE a"));
    ask("set a 0 0 3\r\nnew\r\n");
    CHECK(is_dirty(ask("get none a b\r\n"), "VALUE a")); /* the first value is not that of the first key */
}

static void every_writing_command_makes_its_key_dirty(void)
{
    static const char *commands[] = {
        "set n 0 0 1\r\n5\r\n", "replace n 0 0 1\r\n6\r\n", "append n 0 0 1\r\n7\r\n", "prepend n 0 0 1\r\n1\r\n",
        "incr n 1\r\n", "decr n 1\r\n", "touch n 0\r\n", "cas n 0 0 1 1\r\n8\r\n", "add n 0 0 1\r\n9\r\n",
        "set n 0 0 1 noreply\r\n5\r\n", "incr n 1 noreply\r\n", "touch n 0 noreply\r\n",
    };
    fill();
    ask("set n 0 0 1\r\n4\r\n");
    next_cut();
    for (size_t at = 0; at < sizeof commands / sizeof *commands; at++) {
        bool silent = strstr(commands[at], "noreply");
        CHECK(is_clean(ask("get n\r\n"), "VALUE n"));
        struct answer *answer = ask("%s", commands[at]);
        CHECK(silent ? !answer->datagrams : is_dirty(answer, ""));
        if (!is_dirty(ask("get n\r\n"), "VALUE n")) {
            fprintf(stderr, "after %s", commands[at]);
            CHECK(!"the key is dirty");
        }
        CHECK(is_clean(ask("get a\r\n"), "VALUE a"));
        next_cut();
    }
    CHECK(is_dirty(ask("delete n\r\n"), "DELETED"));
    CHECK(is_dirty(ask("get n\r\n"), "END"));
    ask("set n 0 0 1\r\n4\r\n");
    next_cut();
    CHECK(ask("delete n noreply\r\n")->datagrams == 0);
    CHECK(is_dirty(ask("get n\r\n"), "END"));
}

static void a_silent_write_stays_in_progress_over_a_cut(void)
{
    fill();
    CHECK(ask("set a 0 0 3 noreply\r\nnew\r\n")->datagrams == 0);
    next_cut(); /* nothing tells yet that the write is done */
    CHECK(is_dirty(ask("get a\r\n"), "VALUE a 0 3\r\nnew"));
    next_cut();
    CHECK(is_clean(ask("get a\r\n"), "VALUE a 0 3\r\nnew"));
}

static void what_is_unknown_makes_all_dirty(void)
{
    static const char *requests[] = {
        "flush_all 1000\r\n", "version\r\n", "stats\r\n", "rubbish\r\n", "mg a v\r\n", "gat 0 a\r\n", "GET a\r\n",
        "get a\r\nget b\r\n", "set b 0 0 3\r\nxyz\r\nset a 0 0 3\r\nabc\r\n", "set b 0 0 2\r\nxyz\r\n",
        "get a\tb\r\n", "get \x01\r\n",
    };
    for (size_t at = 0; at < sizeof requests / sizeof *requests; at++) {
        fill();
        struct answer *answer = ask("%s", requests[at]);
        CHECK(!answer->clean && !answer->unknown);
        if (!is_dirty(ask("get a\r\n"), "VALUE a")) {
            fprintf(stderr, "after %s", requests[at]);
            CHECK(!"all is dirty");
        }
        next_cut();
        ask("get a\r\n"); /* may still be dirty: this read ends what was unknown */
        next_cut();
        CHECK(is_clean(ask("get a\r\n"), "VALUE a"));
    }
    fill();
    CHECK(is_dirty(ask("flush_all\r\n"), "OK"));
    CHECK(is_dirty(ask("get a\r\n"), "END"));
}

static void a_request_in_several_datagrams_is_unknown(void)
{
    struct answer answer;
    fill();
    send_frame(++last_id, 2, "get a\r\n", 7);
    receive(&answer, last_id, 100);
    CHECK(!answer.clean && !answer.unknown); /* memcached 1.6 drops it */
    CHECK(is_dirty(ask("get a\r\n"), "VALUE a"));
}

static void set_long(const char *key, char filler)
{
    char value[5001];
    memset(value, filler, 5000);
    value[5000] = 0;
    memcpy(value + 2000, "\r\nEND\r\n", 7);
    CHECK(is_dirty(ask("set %s 0 0 5000\r\n%s\r\n", key, value), "STORED"));
}

static void long_values_are_clean_in_each_datagram(void)
{
    /* Two values that differ everywhere: of datagrams with equal bytes, only the newest record is found. */
    fill();
    set_long("long", 'v');
    set_long("other", 'w');
    CHECK(is_dirty(ask("get long\r\n"), "VALUE long"));
    next_cut();
    struct answer *answer = ask("get a long b other\r\n");
    CHECK(is_clean(answer, "VALUE a") && answer->datagrams >= 8 && answer->count > 10000);
    ask("set b 0 0 1\r\n.\r\n");
    answer = ask("get a long b other\r\n");
    CHECK(answer->clean >= 4 && answer->dirty >= 4 && !answer->unknown); /* dirty from b on */
}

static void equal_ids_of_two_requests_do_not_mix(void)
{
    fill();
    ask("set w 0 0 1\r\n.\r\n");
    for (int round = 0; round < 50; round++) {
        struct answer answer;
        last_id++;
        send_frame(last_id, 1, "get a\r\n", 7);
        send_frame(last_id, 1, "get w\r\n", 7);
        more_ms = 20;
        receive(&answer, last_id, 100);
        more_ms = 2;
        CHECK(answer.datagrams == 2 && !answer.unknown && answer.dirty >= 1);
    }
}

static void commands_over_tcp_are_followed(void)
{
    fill();
    int tcp = connect_tcp();
    usleep(50000);
    CHECK(is_clean(ask("get a\r\n"), "VALUE a")); /* a connection alone writes nothing */
    say_tcp(tcp, "set a 0 0 3\r\ntcp\r\n", "STORED");
    CHECK(is_dirty(ask("get a\r\n"), "VALUE a 0 3\r\ntcp"));
    CHECK(is_clean(ask("get b\r\n"), "VALUE b"));
    say_tcp(tcp, "touch a 0\r\nversion\r\n", "TOUCHED");
    CHECK(is_dirty(ask("get b\r\n"), "VALUE b"));
    close(tcp);
    usleep(100000);
    tcp = connect_tcp();
    next_cut();
    CHECK(is_clean(ask("get a b\r\n"), "VALUE a 0 3\r\ntcp"));

    /* Several commands at once: in progress until the connection is read again, or closed. */
    say_tcp(tcp, "get a\r\nincr none 1\r\n", "VALUE");
    next_cut();
    CHECK(is_dirty(ask("get a\r\n"), "VALUE a"));
    say_tcp(tcp, "version\r\n", NULL);
    next_cut();
    CHECK(is_dirty(ask("get a\r\n"), "VALUE a"));
    close(tcp);
    usleep(100000);
    next_cut();
    CHECK(is_clean(ask("get a\r\n"), "VALUE a"));

    /* memcached closes the connection, without another read. */
    tcp = connect_tcp();
    say_tcp(tcp, "get a\r\nquit\r\n", "VALUE");
    usleep(50000);
    next_cut();
    CHECK(is_clean(ask("get a\r\n"), "VALUE a"));
    close(tcp);

    /* A command in two pieces, and a cut between them. */
    tcp = connect_tcp();
    say_tcp(tcp, "set a 0 0 3\r\n", NULL);
    next_cut();
    say_tcp(tcp, "two\r\n", "STORED");
    CHECK(is_dirty(ask("get a\r\n"), "VALUE a 0 3\r\ntwo"));
    close(tcp);
    usleep(100000);
    next_cut();
    CHECK(is_clean(ask("get a\r\n"), "VALUE a 0 3\r\ntwo"));
}

/* Asks over TCP, and reads the answer up to this end. All of it is reported, or nothing. */
static struct answer *ask_tcp(struct connection *connection, const char *text, const char *end)
{
    static struct answer answer;
    memset(&answer, 0, sizeof answer);
    CHECK(write(connection->fd, text, strlen(text)) == (ssize_t)strlen(text));
    while (answer.count < strlen(end) || strcmp(answer.text + answer.count - strlen(end), end)) {
        ssize_t got = read(connection->fd, answer.text + answer.count, sizeof answer.text - 1 - answer.count);
        if (got <= 0) {
            CHECK(!"the connection is open");
            return &answer;
        }
        answer.count += (size_t)got;
        answer.text[answer.count] = 0;
    }
    uint64_t clean = clean_bytes(connection, connection->got, answer.count);
    CHECK(!clean || clean == answer.count);
    connection->got += answer.count;
    answer.datagrams = 1;
    answer.clean = clean != 0;
    answer.dirty = clean == 0;
    return &answer;
}

static void a_get_over_tcp_is_clean_from_the_cut_after_the_write(void)
{
    fill();
    struct connection tcp = connect_counted();
    CHECK(is_clean(ask_tcp(&tcp, "get a b\r\n", "END\r\n"), "VALUE a 0 3"));
    CHECK(is_dirty(ask_tcp(&tcp, "set a 0 0 3\r\nnew\r\n", "STORED\r\n"), ""));
    CHECK(is_dirty(ask_tcp(&tcp, "get a\r\n", "END\r\n"), "VALUE a 0 3\r\nnew"));
    CHECK(is_clean(ask_tcp(&tcp, "get b\r\n", "END\r\n"), "VALUE b 0 3"));
    CHECK(is_dirty(ask_tcp(&tcp, "gets b\r\n", "END\r\n"), "VALUE b 0 3"));
    CHECK(is_clean(ask_tcp(&tcp, "get b\r\n", "END\r\n"), "VALUE b 0 3"));
    CHECK(is_dirty(ask_tcp(&tcp, "get absent b\r\n", "END\r\n"), "VALUE b"));
    next_cut();
    CHECK(is_clean(ask_tcp(&tcp, "get a\r\n", "END\r\n"), "VALUE a 0 3\r\nnew"));

    /* In pieces: its key is being written from its line on. */
    say_tcp(tcp.fd, "set a 0 0 8\r\nEND\r", NULL);
    next_cut();
    CHECK(is_dirty(ask("get a\r\n"), "VALUE a 0 3\r\nnew"));
    CHECK(is_clean(ask("get b\r\n"), "VALUE b"));
    CHECK(is_dirty(ask_tcp(&tcp, "\n12\r\r\n", "STORED\r\n"), ""));
    next_cut();
    CHECK(is_clean(ask_tcp(&tcp, "get a\r\n", "\r\r\nEND\r\n"), "VALUE a 0 8"));

    /* Silent: until the connection is read again. */
    say_tcp(tcp.fd, "set a 0 0 1 noreply\r\nx\r\n", NULL);
    next_cut();
    CHECK(is_dirty(ask("get a\r\n"), "VALUE a"));
    CHECK(is_dirty(ask_tcp(&tcp, "get a\r\n", "END\r\n"), "VALUE a"));
    next_cut();
    CHECK(is_clean(ask_tcp(&tcp, "get a\r\n", "END\r\n"), "VALUE a"));

    /* After anything else its replies are dirty, as long as it is open. */
    ask_tcp(&tcp, "version\r\n", "\r\n");
    next_cut();
    CHECK(is_dirty(ask_tcp(&tcp, "get a\r\n", "END\r\n"), "VALUE a"));
    close(tcp.fd);
    usleep(100000);
    tcp = connect_counted();
    next_cut();
    CHECK(is_clean(ask_tcp(&tcp, "get a\r\n", "END\r\n"), "VALUE a"));

    /* Data of a command that is not known may look like a command. */
    say_tcp(tcp.fd, "ms a 5\r\n", NULL);
    say_tcp(tcp.fd, "get a\r\n", "HD");
    CHECK(is_dirty(ask("get b\r\n"), "VALUE b"));
    close(tcp.fd);
    usleep(100000);
    next_cut();
}

/* Executed without being followed: the writes that memcached finds in what is no write for this library. */
static void what_memcached_takes_for_other_commands_makes_all_dirty(void)
{
    static const char set_quietly[] = {(char)0x80, 0x11, 0, 1, 8, 0, 0, 0, 0, 0, 0, 11, 0, 0, 0, 0,
                                       0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 'n', '7', '0'};
    static char lines[6][700];
    static char key[260];
    memset(key, 'k', 251);
    sprintf(lines[0], "set %s 0 0 800 noreply\r\n", key);
    sprintf(lines[1], "set k abc 0 8\r\n");
    sprintf(lines[2], "set k 0 abc 8\r\n");
    sprintf(lines[3], "cas k 0 0 8 nocas\r\n");
    sprintf(lines[4], "set k -9 0 8\r\n");
    sprintf(lines[5], "set k 99999999999 0 8\r\n");
    for (int line = -1; line < 6; line++) {
        ask("set n 0 0 2\r\n60\r\n");
        next_cut();
        int tcp = connect_tcp();
        if (line < 0) {
            CHECK(write(tcp, set_quietly, sizeof set_quietly) == sizeof set_quietly);
            usleep(50000);
        } else {
            strcat(lines[line], line ? "incr n 1\r\n" : "incr n 1 noreply\r\n");
            say_tcp(tcp, lines[line], NULL);
        }
        struct answer *answer = ask("get n\r\n");
        CHECK(!answer->clean || strstr(answer->text, "\r\n60\r\n"));
        CHECK(line >= 0 || strstr(answer->text, "\r\n70\r\n"));
        close(tcp);
        usleep(50000);
    }
}

/* memcached reads such a value straight into its place. */
static void a_long_silent_write_ends_with_the_next_read(void)
{
    static char text[40100];
    struct connection tcp = connect_counted();
    int line = sprintf(text, "set l 0 0 40000 noreply\r\n");
    memset(text + line, 'l', 40000);
    strcpy(text + line + 40000, "\r\n");
    say_tcp(tcp.fd, text, NULL);
    CHECK(is_dirty(ask_tcp(&tcp, "get l\r\n", "END\r\n"), "VALUE l"));
    next_cut();
    CHECK(is_clean(ask_tcp(&tcp, "get l\r\n", "END\r\n"), "VALUE l"));
    close(tcp.fd);
    usleep(50000);
}

/* The client reads slowly, so the connection takes a long reply in pieces. */
static void a_reply_that_is_taken_in_pieces_is_reported_once(void)
{
    enum { BYTES = 900000, COUNT = 8 };
    struct connection tcp = connect_counted();
    static char value[BYTES + 64], answer[BYTES * COUNT + 4096];
    for (int key = 0; key < COUNT; key++) {
        size_t line = (size_t)sprintf(value, "set big%d 0 0 %d\r\n", key, BYTES);
        memset(value + line, 'a' + key, BYTES);
        memcpy(value + line + BYTES, "\r\n", 2);
        for (size_t at = 0; at < line + BYTES + 2;)
            at += (size_t)write(tcp.fd, value + at, line + BYTES + 2 - at);
        CHECK(read(tcp.fd, answer, 8) == 8);
        tcp.got += 8;
    }
    next_cut();
    const char *all = "get big0 big1 big2 big3 big4 big5 big6 big7\r\n";
    CHECK(write(tcp.fd, all, strlen(all)) == (ssize_t)strlen(all));
    size_t got = 0;
    while (got < 5 || memcmp(answer + got - 5, "END\r\n", 5)) {
        usleep(1000);
        ssize_t more = read(tcp.fd, answer + got, got + 100000 < sizeof answer ? 100000 : sizeof answer - got);
        if (more <= 0)
            break;
        got += (size_t)more;
    }
    CHECK(got > (size_t)BYTES * COUNT);
    CHECK(clean_bytes(&tcp, tcp.got, got) == got);
    tcp.got += got;
    CHECK(is_clean(ask_tcp(&tcp, "get b\r\n", "END\r\n"), "VALUE b"));
    close(tcp.fd);
    usleep(100000);
}

/* Random requests, while the host pauses at random, by stopping the process. The test knows each key's value at
 * each cut. The answer of a `get` that is clean as of the cut must have the value at the cut. */
static void clean_answers_equal_the_state_at_the_cut(pid_t memcached, struct connection *tcp)
{
    unsigned value[8] = {0}, at_cut[8] = {0}, clean = 0, dirty = 0;
    for (int key = 0; key < 8; key++)
        ask("set k%d 0 0 1\r\n0\r\n", key);
    srand(1);
    more_ms = 0;
    for (int round = 0; round < 4000; round++) {
        int key = rand() % 8;
        struct answer answer;
        char text[64], expected[64];
        bool writes = rand() % 4 == 0, silent = rand() % 2;
        if (writes)
            value[key]++;
        snprintf(text, sizeof text, writes ? "set k%d 0 0 9%s\r\n%09u\r\n" : "get k%d\r\n", key,
                 silent ? " noreply" : "", value[key]);
        bool pause_now = rand() % 10 == 0;
        if (pause_now) {
            int status;
            kill(memcached, SIGSTOP);
            waitpid(memcached, &status, WUNTRACED);
        }
        if (tcp)
            CHECK(write(tcp->fd, text, strlen(text)) == (ssize_t)strlen(text));
        else
            send_frame(++last_id, 1, text, strlen(text));
        if (pause_now) {
            /* The request waits in the kernel: its write comes after the cut. */
            for (int each = 0; each < 8; each++)
                at_cut[each] = value[each] - (writes && each == key);
            next_cut();
            kill(memcached, SIGCONT);
        }
        if (writes && silent) {
            /* Another thread may execute it later than a request that follows. */
            snprintf(expected, sizeof expected, "%09u", value[key]);
            struct answer *seen;
            while (!strstr((seen = ask("get k%d\r\n", key))->text, expected)) {
            }
            CHECK(!seen->clean); /* no cut has come since it was written */
            continue;
        }
        if (tcp)
            answer = *ask_tcp(tcp, "", writes ? "STORED\r\n" : "END\r\n");
        else
            receive(&answer, last_id, 10000); /* on a busy machine it may take its time */
        CHECK(answer.datagrams == 1 && !answer.unknown);
        clean += answer.clean;
        dirty += answer.dirty;
        snprintf(expected, sizeof expected, "VALUE k%d 0 9\r\n%09u\r\nEND\r\n", key, at_cut[key]);
        if (answer.clean && at_cut[key])
            CHECK(!strcmp(answer.text, expected));
        if (answer.clean)
            CHECK(value[key] == at_cut[key]);
    }
    printf("  %u answers clean, %u dirty, %lu cuts\n", clean, dirty, (unsigned long)cut);
    CHECK(clean > 50 && dirty > 50);
    more_ms = 2;
}

static pid_t start_memcached(const char *preload, const char *memcached, const char *channel, const char *threads)
{
    char port[8];
    snprintf(port, sizeof port, "%d", ntohs(server.sin_port));
    const char *const arguments[] = {"memcached", "-u", "nobody", "-l", "127.0.0.1", "-p", port, "-U", port, "-t", threads, NULL};
    return start_server(preload, channel, memcached, arguments);
}

static void new_socket(void)
{
    struct sockaddr_in own;
    socklen_t bytes = sizeof own;
    if (udp > 0)
        close(udp);
    udp = socket(AF_INET, SOCK_DGRAM, 0);
    connect(udp, (struct sockaddr *)&server, sizeof server);
    getsockname(udp, (struct sockaddr *)&own, &bytes);
    own_port = ntohs(own.sin_port);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    const char *path = open_channel();
    choose_port();

#define RUN(test, ...) (printf("%s\n", #test), test(__VA_ARGS__))
    for (const char *threads = "1"; threads; threads = *threads == '1' ? "3" : NULL) {
        printf("memcached with %s threads\n", threads);
        pid_t memcached = start_memcached(argv[1], argv[2], path, threads);
        new_socket();
        CHECK(!memcmp(host->magic, PLOVER_CLEAN_MAGIC, 16));
        CHECK(is_dirty(ask("set a 0 0 3\r\nabc\r\n"), "STORED"));
        next_cut();
        if (*threads == '1') {
            RUN(a_get_is_clean_from_the_cut_after_the_write);
            RUN(a_miss_is_dirty);
            RUN(every_writing_command_makes_its_key_dirty);
            RUN(a_silent_write_stays_in_progress_over_a_cut);
            RUN(what_is_unknown_makes_all_dirty);
            RUN(a_request_in_several_datagrams_is_unknown);
            RUN(long_values_are_clean_in_each_datagram);
            RUN(equal_ids_of_two_requests_do_not_mix);
            RUN(commands_over_tcp_are_followed);
            RUN(a_get_over_tcp_is_clean_from_the_cut_after_the_write);
            RUN(what_memcached_takes_for_other_commands_makes_all_dirty);
            RUN(a_long_silent_write_ends_with_the_next_read);
            RUN(a_reply_that_is_taken_in_pieces_is_reported_once);
        }
        RUN(clean_answers_equal_the_state_at_the_cut, memcached, NULL);
        struct connection tcp = connect_counted();
        RUN(clean_answers_equal_the_state_at_the_cut, memcached, &tcp);
        close(tcp.fd);
        stop(memcached);
    }

    printf("without a channel, memcached serves as before\n");
    pid_t memcached = start_memcached(argv[1], argv[2], "/nowhere/channel", "1");
    new_socket();
    last_number = host->next;
    struct answer *answer = ask("set a 0 0 3\r\nabc\r\n");
    CHECK(answer->unknown == 1 && !strcmp(answer->text, "STORED\r\n"));
    stop(memcached);
    unlink(path);
    return failures != 0;
}
