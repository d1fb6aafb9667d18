/*
 * A server on TCP port ARGV[1] of 127.0.0.1 that takes one client after the other, does with each what ARGV[2] says, and
 * closes the connection. Its findings are files of its directory, one line each.
 */
#define _GNU_SOURCE
#include "shared.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static void check(int is_well, const char *what)
{
    if (is_well)
        return;
    perror(what);
    exit(1);
}

/* Safe in the handler of a signal. */
static void tell(const char *name, const char *words)
{
    int file = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    size_t bytes = strlen(words);
    check(file >= 0 && write(file, words, bytes) == (ssize_t)bytes, name);
    close(file);
}

static void tell_result(ssize_t got)
{
    char words[32];
    if (got < 0)
        snprintf(words, sizeof words, "%s\n",
                 errno == EAGAIN       ? "nothing came"
                 : errno == EINTR      ? "interrupted"
                 : errno == ECONNRESET ? "reset"
                                       : "failed");
    else
        snprintf(words, sizeof words, "%zd\n", got);
    tell("result", words);
}

static void wait_for_bytes(int client, int count)
{
    int queued = 0;
    while (queued < count) {
        check(!ioctl(client, FIONREAD, &queued), "FIONREAD");
        usleep(1000);
    }
}

static void fork_fails(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {.len = sizeof code / sizeof *code, .filter = code};
    check(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS");
    check(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), "PR_SET_SECCOMP");
    check(fork() < 0, "the fork has succeeded");
}

/* Each client has a child of its own. One that sends a "k" has its child killed. */
static void serve_in_a_child(int client)
{
    char byte;
    pid_t child = fork();
    check(child >= 0, "fork");
    if (child)
        return;
    check(read(client, &byte, 1) == 1, "read");
    if (byte == 'k')
        raise(SIGKILL); /* It stays a zombie. */
    _exit(0);
}

/* The kernel closes the connection for the other program. */
static void child_executes(void)
{
    pid_t child = fork();
    check(child >= 0, "fork");
    if (!child) {
        execlp("sleep", "sleep", "1000", NULL);
        _exit(1);
    }
}

/* The child has its own descriptors, and its parent's memory. */
static void vfork_copies(int client)
{
    pid_t child = vfork();
    check(child >= 0, "vfork");
    if (!child) {
        int copied = dup(client) >= 0 && fcntl(client, F_DUPFD, 100) >= 0;
        _exit(!copied);
    }
}

static void read_once(int client)
{
    char buffer[100];
    tell_result(read(client, buffer, sizeof buffer));
}

/* A child is killed in the middle of a read. */
static void child_dies_with_the_lock(int client)
{
    int memory, event;
    const char *words = getenv("PLOVER_PRELOAD");
    check(words && sscanf(words, "%d,%d", &memory, &event) == 2, "PLOVER_PRELOAD");
    struct shared *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    check(shared != MAP_FAILED, "mmap");
    pid_t child = fork();
    check(child >= 0, "fork");
    if (!child) {
        uint32_t own = (uint32_t)syscall(SYS_gettid), seen = 0;
        while (!atomic_compare_exchange_strong(&shared->lock, &seen, own))
            seen = 0;
        atomic_fetch_add(&shared->inputs, 1);
        raise(SIGKILL);
    }
    siginfo_t how;
    check(!waitid(P_PID, (id_t)child, &how, WEXITED | WNOWAIT), "waitid");
    tell("child", "dead\n");
    read_once(client);
}

static void read_all(int client)
{
    static unsigned char buffer[200 << 10];
    const size_t first = 1, second = 50 << 10;
    struct iovec parts[] = {
        {buffer, first},
        {buffer + first, second},
        {buffer + first + second, sizeof buffer - first - second},
    };
    wait_for_bytes(client, 100 << 10);
    ssize_t got = readv(client, parts, 3);
    for (ssize_t i = 0; i < got; i++)
        if (buffer[i] != i % 251)
            got = -1;
    tell_result(got);
}

static void truncate_input(int client)
{
    char buffer[20000], words[64];
    wait_for_bytes(client, 60000);
    ssize_t gone = recv(client, NULL, 50000, MSG_TRUNC);
    ssize_t got = recv(client, buffer, sizeof buffer, 0);
    snprintf(words, sizeof words, "%zd %zd\n", gone, got);
    tell("result", words);
}

static void count_signal(int number)
{
    static volatile sig_atomic_t count;
    (void)number;
    if (++count == 10)
        tell("signals", "many\n");
}

static void read_with_signals(int client)
{
    char buffer[100];
    struct sigaction action = {.sa_handler = count_signal, .sa_flags = SA_RESTART};
    struct itimerval timer = {.it_interval.tv_usec = 5000, .it_value.tv_usec = 5000};
    check(!sigaction(SIGALRM, &action, NULL), "sigaction");
    check(!setitimer(ITIMER_REAL, &timer, NULL), "setitimer");
    ssize_t got = read(client, buffer, sizeof buffer);
    int error = errno;
    timer = (struct itimerval){0};
    setitimer(ITIMER_REAL, &timer, NULL);
    errno = error;
    tell_result(got);
}

static void read_with_timeout(int client)
{
    struct timeval within = {.tv_usec = 100};
    check(!setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &within, sizeof within), "SO_RCVTIMEO");
    read_once(client);
}

static void *cancel_itself(void *client)
{
    char byte;
    pthread_cancel(pthread_self());
    return read(*(int *)client, &byte, 1) < 0 ? NULL : client;
}

static void read_after_cancel(int client)
{
    pthread_t thread;
    void *how;
    check(!pthread_create(&thread, NULL, cancel_itself, &client), "pthread_create");
    check(!pthread_join(thread, &how), "pthread_join");
    tell("thread", how == PTHREAD_CANCELED ? "cancelled\n" : "not cancelled\n");
    read_once(client);
}

static void serve(int client, const char *what)
{
    if (!strcmp(what, "fork fails"))
        fork_fails();
    else if (!strcmp(what, "a child each"))
        serve_in_a_child(client);
    else if (!strcmp(what, "child executes"))
        child_executes();
    else if (!strcmp(what, "vfork copies"))
        vfork_copies(client);
    else if (!strcmp(what, "child dies with the lock"))
        child_dies_with_the_lock(client);
    else if (!strcmp(what, "read all"))
        read_all(client);
    else if (!strcmp(what, "truncate"))
        truncate_input(client);
    else if (!strcmp(what, "signals"))
        read_with_signals(client);
    else if (!strcmp(what, "timeout"))
        read_with_timeout(client);
    else if (!strcmp(what, "cancel"))
        read_after_cancel(client);
    else if (!strcmp(what, "read"))
        read_once(client);
    else
        check(0, what);
}

int main(int count, char **words)
{
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int on = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    check(count == 3, "arguments");
    own.sin_port = htons((uint16_t)atoi(words[1]));
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    check(!bind(listener, (struct sockaddr *)&own, sizeof own), "bind");
    check(!listen(listener, 9), "listen");
    for (;;) {
        int client = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (client < 0)
            continue;
        serve(client, words[2]);
        close(client);
    }
}
