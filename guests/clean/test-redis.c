/* Tests of plover-clean.so: a real Redis, with a file as the channel.
 *
 *     test-redis PRELOAD REDIS-SERVER
 *
 * Prints each check that fails, and exits 1 if there was one. */
#define _GNU_SOURCE
#include "resp.h"
#include "test-channel.h"

#include <stdarg.h>

/* ---- asking ------------------------------------------------------------------------------------- */

/* The end of the reply that begins here, or NULL if it is not whole. */
static const char *reply_end(const char *at, const char *end)
{
    const char *feed = memchr(at, '\n', (size_t)(end - at));
    if (!feed)
        return NULL;
    char type = *at;
    long count = strtol(at + 1, NULL, 10);
    at = feed + 1;
    if (type == '$' && count >= 0)
        return end - at < count + 2 ? NULL : at + count + 2;
    if (type == '%')
        count *= 2;
    for (; strchr("*~%>", type) && count > 0 && at; count--)
        at = at < end ? reply_end(at, end) : NULL;
    return at;
}

/* The replies to what was sent last. */
#define REPLIES_MAX 2000
static struct {
    unsigned count;
    const char *at[REPLIES_MAX + 1]; /* where each begins, and the last one ends */
    bool clean[REPLIES_MAX];
    char text[1 << 20];
    size_t bytes;
} replies;

static void say(struct connection *to, const char *bytes, size_t count)
{
    for (size_t at = 0; at < count;) {
        ssize_t sent = write(to->fd, bytes + at, count - at);
        CHECK(sent > 0);
        if (sent <= 0)
            return;
        at += (size_t)sent;
    }
}

/* Appends a command, given as words between blanks, to what is to be sent. */
static size_t command(char *into, const char *text)
{
    char words[4096], *rest = NULL;
    size_t count = 0, bytes = 0;
    snprintf(words, sizeof words, "%s", text);
    for (const char *at = words; *at; at++)
        count += *at != ' ' && (at == words || at[-1] == ' ');
    bytes += (size_t)sprintf(into, "*%zu\r\n", count);
    for (char *word = strtok_r(words, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        bytes += (size_t)sprintf(into + bytes, "$%zu\r\n%s\r\n", strlen(word), word);
    return bytes;
}

/* Receives so many replies, and looks up which are clean as of the newest cut. */
static void hear(struct connection *from, unsigned count)
{
    replies.count = 0;
    replies.bytes = 0;
    replies.at[0] = replies.text;
    while (replies.count < count) {
        const char *end = replies.text + replies.bytes;
        const char *next = replies.at[replies.count] < end ? reply_end(replies.at[replies.count], end) : NULL;
        if (next) {
            replies.at[++replies.count] = next;
            continue;
        }
        ssize_t got = read(from->fd, replies.text + replies.bytes, sizeof replies.text - 1 - replies.bytes);
        if (got <= 0) {
            CHECK(!"the connection is open");
            return;
        }
        replies.bytes += (size_t)got;
    }
    replies.text[replies.bytes] = 0;
    for (unsigned reply = 0; reply < count; reply++) {
        uint64_t start = from->got + (uint64_t)(replies.at[reply] - replies.text);
        uint64_t bytes = (uint64_t)(replies.at[reply + 1] - replies.at[reply]);
        uint64_t clean = clean_bytes(from, start, bytes);
        CHECK(!clean || clean == bytes);
        replies.clean[reply] = clean;
    }
    from->got += replies.bytes;
}

static void tell(struct connection *to, const char *text)
{
    char bytes[8192];
    say(to, bytes, command(bytes, text));
}

static void ask(struct connection *of, const char *text)
{
    tell(of, text);
    hear(of, 1);
}

/* Whether the command's reply begins so, and is clean. */
static bool is_clean(struct connection *of, const char *text, const char *start)
{
    ask(of, text);
    return replies.clean[0] && !strncmp(replies.text, start, strlen(start));
}

static bool is_dirty(struct connection *of, const char *text, const char *start)
{
    ask(of, text);
    return !replies.clean[0] && !strncmp(replies.text, start, strlen(start));
}

static struct connection first, second;

/* a = "abc", b = "xyz", clean. */
static void fill(void)
{
    ask(&first, "MSET a abc b xyz");
    next_cut();
    CHECK(is_clean(&first, "GET a", "$3\r\nabc"));
    CHECK(is_clean(&second, "MGET a b", "*2\r\n$3\r\nabc\r\n$3\r\nxyz"));
}

/* ---- tests -------------------------------------------------------------------------------------- */

static void a_read_is_clean_from_the_cut_after_the_write(void)
{
    fill();
    CHECK(is_dirty(&first, "SET a new", "+OK"));
    CHECK(is_dirty(&first, "GET a", "$3\r\nnew"));
    CHECK(is_dirty(&second, "get a", "$3\r\nnew"));
    CHECK(is_dirty(&second, "MGET b a", "*2"));
    CHECK(is_clean(&second, "GET b", "$3\r\nxyz"));
    next_cut();
    CHECK(is_clean(&second, "GET a", "$3\r\nnew"));
    /* A key of another database has the same name. */
    CHECK(is_dirty(&first, "SELECT 1", "+OK"));
    CHECK(is_dirty(&first, "SET a other", "+OK"));
    CHECK(is_dirty(&second, "GET a", "$3\r\nnew"));
    CHECK(is_dirty(&first, "FLUSHDB", "+OK"));
    CHECK(is_dirty(&second, "GET b", "$3\r\nxyz"));
    ask(&first, "SELECT 0");
    next_cut();
    CHECK(is_clean(&second, "GET b", "$3\r\nxyz"));
}

static void a_reply_that_tells_of_something_absent_is_dirty(void)
{
    fill();
    ask(&first, "DEL l h s z none");
    ask(&first, "RPUSH l 1 2 3");
    ask(&first, "HSET h f 1 g 2");
    ask(&first, "SADD s m");
    ask(&first, "ZADD z 1 m");
    next_cut();
    CHECK(is_dirty(&first, "GET none", "$-1"));
    CHECK(is_dirty(&first, "MGET a none b", "*3"));
    CHECK(is_dirty(&first, "LRANGE none 0 9", "*0"));
    CHECK(is_dirty(&first, "SISMEMBER s x", ":0"));
    CHECK(is_dirty(&first, "HMGET h f x", "*2"));
    CHECK(is_dirty(&first, "GET l", "-WRONGTYPE"));
    CHECK(is_dirty(&first, "GET", "-ERR"));
    CHECK(is_dirty(&first, "HGETALL h", "*4"));
    CHECK(is_clean(&first, "LRANGE l 0 9", "*3"));
    CHECK(is_clean(&first, "LINDEX l 1", "$1\r\n2"));
    CHECK(is_clean(&first, "HGET h f", "$1\r\n1"));
    CHECK(is_clean(&first, "HMGET h g f", "*2"));
    CHECK(is_clean(&first, "SISMEMBER s m", ":1"));
    CHECK(is_clean(&first, "SMEMBERS s", "*1"));
    CHECK(is_clean(&first, "ZSCORE z m", "$1\r\n1"));
    CHECK(is_clean(&first, "ZRANGE z 0 -1 WITHSCORES", "*2"));
    CHECK(is_dirty(&first, "HELLO 3", "%"));
    CHECK(is_dirty(&first, "GET none", "_"));
    CHECK(is_clean(&first, "ZSCORE z m", ",1"));
    CHECK(is_clean(&first, "ZRANGE z 0 -1 WITHSCORES", "*1\r\n*2"));
    CHECK(is_clean(&first, "SMEMBERS s", "~1"));
    ask(&first, "HELLO 2");
}

/* By the server's own word of its commands. */
static void no_command_writes_more_than_is_known(void)
{
    unsigned writes = 0, unknown = 0;
    ask(&first, "COMMAND");
    long commands = strtol(replies.text + 1, NULL, 10);
    const char *at = strchr(replies.text, '\n') + 1, *end = replies.text + replies.bytes;
    CHECK(commands > 200);
    for (; commands; commands--) {
        char name[64] = "";
        const char *next = reply_end(at, end);
        const char *word = strchr(at, '\n') + 1; /* "$N", the name */
        snprintf(name, sizeof name, "%.*s", (int)strtol(word + 1, NULL, 10), strchr(word, '\n') + 1);
        const char *arity = reply_end(word, end), *flags = reply_end(arity, end), *keys = reply_end(flags, end);
        const char *write = memmem(flags, (size_t)(keys - flags), "+write\r\n", 8);
        const char *may = memmem(flags, (size_t)(keys - flags), "+may_replicate\r\n", 16);
        int first_key, last_key, step;
        enum resp_kind kind = resp_kind_of(name, &first_key, &last_key, &step);
        bool publishes = strstr(name, "publish");
        /* Streams are read by no RESP_READS. */
        bool stream = !strcmp(name, "xreadgroup") || !strcmp(name, "xack") || !strcmp(name, "xclaim") ||
                      !strcmp(name, "xautoclaim");
        if ((write || (may && !publishes)) && !stream) {
            writes++;
            CHECK(kind == RESP_WRITES || kind == RESP_ALL || kind == RESP_UNKNOWN);
            if (kind != RESP_WRITES && kind != RESP_ALL && kind != RESP_UNKNOWN)
                fprintf(stderr, "  %s writes\n", name);
        }
        if (kind == RESP_WRITES || kind == RESP_READS) {
            const char *last = reply_end(keys, end), *by = reply_end(last, end);
            bool same = strtol(keys + 1, NULL, 10) == first_key && strtol(last + 1, NULL, 10) == last_key &&
                        strtol(by + 1, NULL, 10) == step;
            CHECK(same);
            if (!same)
                fprintf(stderr, "  %s has other keys\n", name);
        }
        if (kind == RESP_UNKNOWN) {
            unknown++;
            printf("  %s is unknown\n", name);
        }
        at = next;
    }
    CHECK(writes > 50 && unknown < 40);
}

/* A command is in progress from when it is read, however long its reply takes. */
static void a_command_that_waits_stays_in_progress(void)
{
    fill();
    ask(&first, "DEL queue waiting done");
    ask(&first, "RPUSH done 1");
    struct connection waiter = connect_counted();
    tell(&waiter, "BLMOVE queue done LEFT RIGHT 0");
    usleep(50000);
    next_cut();
    CHECK(is_dirty(&first, "LRANGE done 0 9", "*1\r\n$1\r\n1"));
    CHECK(is_clean(&first, "GET a", "$3\r\nabc"));
    CHECK(is_dirty(&first, "RPUSH queue 2", ":1"));
    hear(&waiter, 1);
    CHECK(is_dirty(&first, "LRANGE done 0 9", "*2\r\n$1\r\n1\r\n$1\r\n2"));
    next_cut();
    CHECK(is_clean(&first, "LRANGE done 0 9", "*2"));

    /* Clients that are paused. */
    tell(&waiter, "SET a later");
    hear(&waiter, 1);
    ask(&first, "SET a abc");
    next_cut();
    CHECK(is_dirty(&second, "CLIENT PAUSE 300 WRITE", "+OK"));
    tell(&waiter, "SET a later");
    usleep(50000);
    next_cut();
    CHECK(is_dirty(&first, "GET a", "$3\r\nabc"));
    CHECK(is_clean(&first, "GET b", "$3\r\nxyz"));
    hear(&waiter, 1);
    CHECK(is_dirty(&first, "GET a", "$5\r\nlater"));
    next_cut();
    CHECK(is_clean(&first, "GET a", "$5\r\nlater"));

    /* One that is closed is not waited for. */
    tell(&waiter, "BLPOP queue 0");
    usleep(50000);
    close(waiter.fd);
    usleep(50000);
    CHECK(is_dirty(&first, "RPUSH queue 3", ":1"));
    next_cut();
    CHECK(is_clean(&first, "LRANGE queue 0 9", "*1\r\n$1\r\n3"));
}

static void a_transaction_writes_when_it_is_executed(void)
{
    fill();
    CHECK(is_dirty(&first, "MULTI", "+OK"));
    CHECK(is_dirty(&first, "SET a new", "+QUEUED"));
    CHECK(is_dirty(&first, "GET b", "+QUEUED"));
    next_cut();
    CHECK(is_dirty(&second, "GET a", "$3\r\nabc"));
    CHECK(is_clean(&second, "GET b", "$3\r\nxyz"));
    CHECK(is_dirty(&first, "EXEC", "*2\r\n+OK\r\n$3\r\nxyz"));
    CHECK(is_dirty(&second, "GET a", "$3\r\nnew"));
    CHECK(is_clean(&second, "GET b", "$3\r\nxyz"));
    next_cut();
    ask(&first, "MULTI");
    ask(&first, "FLUSHALL");
    next_cut();
    CHECK(is_dirty(&second, "GET b", "$3\r\nxyz"));
    CHECK(is_dirty(&first, "DISCARD", "+OK"));
    next_cut();
    CHECK(is_clean(&second, "GET a", "$3\r\nnew"));
    /* One that is refused, and one whose client leaves, write nothing. */
    ask(&first, "MULTI");
    ask(&first, "SET a never");
    CHECK(is_dirty(&first, "SET a", "-ERR"));
    CHECK(is_dirty(&first, "EXEC", "-EXECABORT"));
    struct connection leaves = connect_counted();
    ask(&leaves, "MULTI");
    ask(&leaves, "SET a never");
    close(leaves.fd);
    usleep(50000);
    next_cut();
    CHECK(is_clean(&second, "GET a", "$3\r\nnew"));
    CHECK(is_dirty(&first, "EVAL return{redis.call('set',KEYS[1],'lua'),'x'} 1 a", "*2"));
    CHECK(is_dirty(&second, "GET a", "$3\r\nlua"));
    next_cut();
    CHECK(is_clean(&second, "GET a", "$3\r\nlua"));

    /* One that is debugged has answers before it is executed, which it is when its connection is closed. */
    struct connection debugger = connect_counted();
    ask(&debugger, "SCRIPT DEBUG SYNC");
    tell(&debugger, "EVAL redis.call('set',KEYS[1],'bug') 1 a");
    hear(&debugger, 1);
    next_cut();
    close(debugger.fd);
    CHECK(is_dirty(&second, "GET a", "$3\r\nbug"));
    next_cut();
    CHECK(is_clean(&second, "GET a", "$3\r\nbug"));
}

/* Commands that are sent at once are answered at once, and each reply is looked at by itself. */
static void replies_that_leave_together_are_told_apart(void)
{
    static char bytes[1 << 17];
    static const char *mixed[] = {"GET a", "GET b", "SET b new", "GET b", "GET none", "GET a", "MGET a a", "PING"};
    static const bool clean[] = {true, false, false, false, false, true, true, false};
    fill();
    size_t count = 0;
    for (int each = 0; each < 8; each++)
        count += command(bytes + count, mixed[each]);
    say(&first, bytes, count);
    hear(&first, 8);
    for (int each = 0; each < 8; each++)
        CHECK(replies.clean[each] == clean[each]);

    /* Far more than Redis reads at once. */
    next_cut();
    count = 0;
    for (int each = 0; each < 2000; each++)
        count += command(bytes + count, each % 2 ? "GET a" : "GET b");
    say(&first, bytes, count);
    hear(&first, 2000);
    for (int each = 0; each < 2000; each++)
        CHECK(replies.clean[each]);

    /* In parts of any size. */
    count = 0;
    for (int each = 0; each < 200; each++)
        count += command(bytes + count, each % 8 ? "GET a" : "MSET b one c two");
    srand(1);
    for (size_t at = 0; at < count;) {
        size_t some = (size_t)(rand() % 40) + 1;
        some = some < count - at ? some : count - at;
        say(&first, bytes + at, some);
        at += some;
        usleep(200);
    }
    hear(&first, 200);
    for (int each = 0; each < 200; each++)
        CHECK(replies.clean[each] == (each % 8 != 0));
    CHECK(is_dirty(&second, "GET c", "$3\r\ntwo"));
    next_cut();
    CHECK(is_clean(&second, "GET c", "$3\r\ntwo"));
}

/* A value that is longer than what the connection takes at once. */
static void a_reply_that_is_taken_in_pieces_is_reported_once(void)
{
    enum { BYTES = 12000000, COUNT = 3 };
    static char text[BYTES + 100], gets[COUNT * 40];
    struct connection slow = connect_counted();
    fill();
    size_t line = (size_t)sprintf(text, "*3\r\n$3\r\nSET\r\n$3\r\nbig\r\n$%d\r\n", BYTES), count = 0;
    memset(text + line, 'x', BYTES);
    memcpy(text + line + BYTES, "\r\n", 2);
    say(&first, text, line + BYTES + 2);
    hear(&first, 1);
    next_cut();
    for (int each = 0; each < COUNT; each++)
        count += command(gets + count, "GET big");
    say(&slow, gets, count);
    usleep(200000);
    for (int each = 0; each < COUNT; each++) {
        size_t whole = 11 + BYTES + 2, got = 0;
        while (got < whole) {
            ssize_t some = read(slow.fd, text + got, whole - got);
            if (some <= 0)
                break;
            got += (size_t)some;
        }
        CHECK(got == whole && !memcmp(text, "$12000000\r\nxx", 13));
        CHECK(clean_bytes(&slow, slow.got, got) == got);
        slow.got += got;
    }
    CHECK(is_clean(&slow, "GET a", "$3\r\nabc"));
    close(slow.fd);
    ask(&first, "DEL big");
}

static void what_is_unknown_makes_all_dirty_until_it_is_closed(void)
{
    static const char *unknown[] = {
        "*3\r\n$5\r\nDEBUG\r\n$5\r\nSLEEP\r\n$1\r\n0\r\n",
        "SET a abc\r\n",                                        /* a line */
        "*1\r\n$4\r\nPING\r\nSET a abc\r\n",                    /* after a command */
        "*3\r\n$3\r\nSET\r\n$1\r\naxx$3\r\nabc\r\n",            /* Redis takes any two bytes for a line's end */
        "*-1\r\n*3\r\n$3\r\nSET\r\n$1\r\na\r\n$3\r\nabc\r\n",   /* nothing is asked, and nothing answered */
        "*3\r\n$3\r\nSET\rx$1\r\na\r\n$3\r\nabc\r\n",
        "*3\rx$3\r\nSET\r\n$1\r\na\r\n$3\r\nabc\r\n",
        "*3\r\n$6\r\nCLIENT\r\n$5\r\nREPLY\r\n$3\r\noff\r\n*3\r\n$3\r\nSET\r\n$1\r\na\r\n$3\r\nabc\r\n",
        "*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\nx\r\n*2\r\n$11\r\nUNSUBSCRIBE\r\n$1\r\nx\r\n*3\r\n$3\r\nSET\r\n$1\r\na\r\n$3\r\nabc\r\n",
    };
    for (size_t each = 0; each < sizeof unknown / sizeof *unknown; each++) {
        fill();
        struct connection other = connect_counted();
        say(&other, unknown[each], strlen(unknown[each]));
        usleep(50000);
        CHECK(is_dirty(&first, "GET a", "$3\r\nabc"));
        next_cut();
        CHECK(is_dirty(&first, "GET b", "$3\r\nxyz"));
        close(other.fd);
        usleep(50000);
        next_cut();
        CHECK(is_clean(&first, "GET b", "$3\r\nxyz"));
    }
}

static void clients_that_only_listen_cost_nothing(void)
{
    struct connection listener = connect_counted(), monitor = connect_counted();
    fill();
    tell(&listener, "SUBSCRIBE news");
    hear(&listener, 1);
    ask(&monitor, "MONITOR");
    CHECK(is_dirty(&first, "PUBLISH news today", ":1"));
    hear(&listener, 1);
    CHECK(!replies.clean[0]);
    CHECK(is_clean(&first, "GET a", "$3\r\nabc"));
    tell(&listener, "PING");
    hear(&listener, 1);
    CHECK(is_clean(&first, "GET a", "$3\r\nabc"));
    close(listener.fd);
    close(monitor.fd);

    /* A push is no reply. Its connection may read on. */
    struct connection tracker = connect_counted();
    ask(&tracker, "HELLO 3");
    ask(&tracker, "CLIENT TRACKING ON");
    next_cut();
    CHECK(is_clean(&tracker, "GET b", "$3\r\nxyz"));
    ask(&first, "SET b xyz");
    hear(&tracker, 1);
    CHECK(!replies.clean[0] && replies.text[0] == '>');
    next_cut();
    CHECK(is_dirty(&tracker, "GET a", "$3\r\nabc"));
    CHECK(is_clean(&first, "GET a", "$3\r\nabc"));
    CHECK(is_dirty(&tracker, "SET b xyz", "+OK"));
    next_cut();
    CHECK(is_dirty(&first, "GET a", "$3\r\nabc"));
    close(tracker.fd);
    usleep(50000);
    next_cut();
    CHECK(is_clean(&first, "GET a", "$3\r\nabc"));
}

enum { KEYS = 6, READERS = 8 };

/* Random writes, in transactions or not. Returns how many replies they have. */
static unsigned write_some(char *bytes, size_t *count, unsigned value[KEYS])
{
    char text[64];
    bool transaction = rand() % 4 == 0;
    unsigned writes = (unsigned)rand() % 5 + 1;
    if (transaction)
        *count += command(bytes + *count, "MULTI");
    for (unsigned each = 0; each < writes; each++) {
        int key = rand() % KEYS;
        value[key]++;
        snprintf(text, sizeof text, rand() % 2 ? "INCR k%d" : "SET k%d %u", key, value[key]);
        *count += command(bytes + *count, text);
    }
    if (transaction)
        *count += command(bytes + *count, "EXEC");
    return writes + (transaction ? 2 : 0);
}

/* Random commands of a writer and several readers at once, while the host pauses now and then, by stopping the process when all is
 * answered. The test knows each key's number at each cut. A value that is clean as of the cut must be that at the cut. */
static void clean_replies_equal_the_state_at_the_cut(pid_t redis)
{
    unsigned value[KEYS] = {0}, at_cut[KEYS] = {0}, clean = 0, dirty = 0;
    struct connection reader[READERS];
    for (int each = 0; each < READERS; each++)
        reader[each] = connect_counted();
    ask(&first, "MSET k0 0 k1 0 k2 0 k3 0 k4 0 k5 0");
    next_cut();
    srand(2);
    for (int round = 0; round < 1000; round++) {
        static char writes[1 << 12], reads[1 << 12];
        size_t count = 0;
        unsigned asked[READERS][8], reads_asked[READERS];
        char text[64];
        bool pause_now = rand() % 4 == 0;
        if (pause_now) {
            /* All that was asked is answered. What follows waits in the kernel, and is executed after the cut. */
            int status;
            memcpy(at_cut, value, sizeof at_cut);
            kill(redis, SIGSTOP);
            waitpid(redis, &status, WUNTRACED);
        }
        unsigned replies_of_writes = rand() % 3 == 0 ? write_some(writes, &count, value) : 0;
        int writes_before = rand() % READERS;
        for (int each = 0; each < READERS; each++) {
            size_t bytes = 0;
            for (reads_asked[each] = 0; reads_asked[each] < (unsigned)rand() % 8; reads_asked[each]++) {
                asked[each][reads_asked[each]] = (unsigned)rand() % KEYS;
                snprintf(text, sizeof text, "GET k%u", asked[each][reads_asked[each]]);
                bytes += command(reads + bytes, text);
            }
            if (each == writes_before)
                say(&first, writes, count);
            say(&reader[each], reads, bytes);
        }
        if (pause_now) {
            next_cut();
            kill(redis, SIGCONT);
        }
        hear(&first, replies_of_writes);
        for (int each = 0; each < READERS; each++) {
            hear(&reader[each], reads_asked[each]);
            for (unsigned reply = 0; reply < reads_asked[each]; reply++) {
                unsigned number = (unsigned)strtoul(strchr(replies.at[reply], '\n') + 1, NULL, 10);
                *(replies.clean[reply] ? &clean : &dirty) += 1;
                CHECK(!replies.clean[reply] || number == at_cut[asked[each][reply]]);
            }
        }
    }
    printf("  %u replies clean, %u dirty, %lu cuts\n", clean, dirty, (unsigned long)cut);
    CHECK(clean > 1000 && dirty > 1000);
    for (int each = 0; each < READERS; each++)
        close(reader[each].fd);
}

/* ---- servers ------------------------------------------------------------------------------------ */

static pid_t start_redis(const char *preload, const char *redis, const char *channel, const char *threads)
{
    char port[8], file[32];
    snprintf(port, sizeof port, "%d", ntohs(server.sin_port));
    snprintf(file, sizeof file, "plover-clean-test-%d.rdb", (int)getpid());
    const char *const arguments[] = {"redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--loglevel", "warning",
                                     "--dir", "/tmp", "--dbfilename", file, "--io-threads", threads,
                                     "--io-threads-do-reads", "yes", NULL};
    return start_server(preload, channel, redis, arguments);
}

/* A replica writes what its master sends, which it has not been asked for. */
static void a_replica_says_clean_of_nothing(const char *preload, const char *redis)
{
    struct sockaddr_in replica = server;
    char text[64];
    fill();
    choose_port();
    struct sockaddr_in master = server;
    pid_t child = start_redis(preload, redis, "/nowhere/channel", "1");
    struct connection to_master = connect_counted();
    ask(&to_master, "SET a old");
    server = replica;
    struct connection operator = connect_counted();
    snprintf(text, sizeof text, "REPLICAOF 127.0.0.1 %d", ntohs(master.sin_port));
    ask(&operator, text);
    close(operator.fd);
    for (int tries = 0; tries < 500 && !is_dirty(&first, "GET a", "$3\r\nold"); tries++)
        usleep(20000);
    server = master;
    ask(&to_master, "SET a new");
    server = replica;
    next_cut();
    for (int tries = 0; tries < 500 && !is_dirty(&first, "GET a", "$3\r\nnew"); tries++) {
        CHECK(!replies.clean[0]);
        usleep(20000);
    }
    next_cut();
    CHECK(is_dirty(&first, "GET a", "$3\r\nnew"));
    operator = connect_counted();
    ask(&operator, "REPLICAOF NO ONE");
    close(operator.fd);
    usleep(50000);
    next_cut();
    CHECK(is_clean(&first, "GET a", "$3\r\nnew"));
    close(to_master.fd);
    stop(child);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    const char *path = open_channel();
    choose_port();

#define RUN(test, ...) (printf("%s\n", #test), test(__VA_ARGS__))
    for (const char *threads = "1"; threads; threads = *threads == '1' ? "3" : NULL) {
        printf("Redis with %s threads\n", threads);
        pid_t redis = start_redis(argv[1], argv[2], path, threads);
        first = connect_counted();
        second = connect_counted();
        CHECK(!memcmp(host->magic, PLOVER_CLEAN_MAGIC, 16));
        next_cut();
        if (*threads == '1') {
            RUN(a_read_is_clean_from_the_cut_after_the_write);
            RUN(a_reply_that_tells_of_something_absent_is_dirty);
            RUN(no_command_writes_more_than_is_known);
            RUN(a_command_that_waits_stays_in_progress);
            RUN(a_transaction_writes_when_it_is_executed);
            RUN(replies_that_leave_together_are_told_apart);
            RUN(a_reply_that_is_taken_in_pieces_is_reported_once);
            RUN(what_is_unknown_makes_all_dirty_until_it_is_closed);
            RUN(clients_that_only_listen_cost_nothing);
            RUN(a_replica_says_clean_of_nothing, argv[1], argv[2]);
        }
        RUN(clean_replies_equal_the_state_at_the_cut, redis);
        ask(&first, "INFO stats");
        CHECK(!strstr(replies.text, "io_threaded_writes_processed:0\r\n") == (*threads != '1'));
        close(first.fd);
        close(second.fd);
        stop(redis);
    }

    printf("without a channel, Redis serves as before\n");
    pid_t redis = start_redis(argv[1], argv[2], "/nowhere/channel", "1");
    first = connect_counted();
    CHECK(is_dirty(&first, "SET a abc", "+OK"));
    CHECK(is_dirty(&first, "GET a", "$3\r\nabc"));
    stop(redis);
    unlink(path);
    char file[64];
    snprintf(file, sizeof file, "/tmp/plover-clean-test-%d.rdb", (int)getpid());
    unlink(file); /* of a replica that was tested */
    return failures != 0;
}
