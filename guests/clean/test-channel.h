/* For the tests of the preload: a file as the channel, and connections whose records they look for. The test is the
 * client and the host. */
#include "plover_clean.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static int failures;
#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: %s: not so: %s\n", __FILE__, __LINE__, __func__, #condition);        \
            failures++;                                                                                      \
        }                                                                                                    \
    } while (0)

static struct plover_clean_channel *host;
static struct sockaddr_in server = {.sin_family = AF_INET};
static uint64_t cut;

static void next_cut(void)
{
    atomic_store(&host->cut, ++cut);
}

/* Makes the file. It is to be removed by its name. */
static const char *open_channel(void)
{
    static char path[] = "/tmp/plover-clean-test-XXXXXX";
    int fd = mkstemp(path);
    if (fd < 0 || ftruncate(fd, PLOVER_CLEAN_BYTES)) {
        perror("test: cannot make a file in /tmp");
        exit(2);
    }
    host = mmap(NULL, PLOVER_CLEAN_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return path;
}

/* Gives the server a port that is free now. */
static void choose_port(void)
{
    socklen_t bytes = sizeof server;
    int probe = socket(AF_INET, SOCK_STREAM, 0);
    server = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (bind(probe, (struct sockaddr *)&server, sizeof server)) {
        perror("test: cannot bind a port");
        exit(2);
    }
    getsockname(probe, (struct sockaddr *)&server, &bytes);
    close(probe);
}

static int connect_tcp(void)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    for (int tries = 0; connect(fd, (struct sockaddr *)&server, sizeof server); tries++) {
        if (tries == 200) {
            fprintf(stderr, "test: the server does not answer on TCP port %d\n", ntohs(server.sin_port));
            exit(2);
        }
        usleep(20000);
    }
    return fd;
}

/* A connection, and how many bytes came over it. */
struct connection {
    int fd;
    uint16_t port;
    uint64_t got;
};

static struct connection connect_counted(void)
{
    struct connection connection = {.fd = connect_tcp()};
    struct sockaddr_in own;
    socklen_t bytes = sizeof own;
    getsockname(connection.fd, (struct sockaddr *)&own, &bytes);
    connection.port = ntohs(own.sin_port);
    return connection;
}

/* How many of these bytes of a connection the records call clean, as of the newest cut. Counts bytes twice that are
 * reported twice. */
static uint64_t clean_bytes(struct connection *connection, uint64_t from, uint64_t bytes)
{
    uint64_t clean = 0;
    for (size_t at = 0; at < PLOVER_CLEAN_RECORDS; at++) {
        struct plover_clean_record *record = &host->record[at];
        if (record->protocol != 6 || record->client_port != connection->port)
            continue;
        CHECK(record->guest_port == ntohs(server.sin_port) && record->guest[15] == 1);
        uint64_t start = record->what > from ? record->what : from;
        uint64_t last = record->what + record->bytes;
        uint64_t end = last < from + bytes ? last : from + bytes;
        if (start < end) {
            CHECK(record->cut == cut);
            clean += end - start;
        }
    }
    return clean;
}

/* Starts a server with the preload, and waits until it takes connections. Its own words go to standard error only. */
static pid_t start_server(const char *preload, const char *channel, const char *program, const char *const *arguments)
{
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        setenv("PLOVER_CLEAN_FILE", channel, 1);
        setenv("LD_PRELOAD", preload, 1);
        if (freopen("/dev/null", "w", stdout))
            execv(program, (char *const *)(uintptr_t)arguments);
        fprintf(stderr, "test: cannot start %s: %s\n", program, strerror(errno));
        _exit(127);
    }
    close(connect_tcp());
    return child;
}

static void stop(pid_t child)
{
    kill(child, SIGTERM);
    waitpid(child, NULL, 0);
}
