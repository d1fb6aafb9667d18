/* accept, shutdown, and the addresses of connections. */
#include "preload.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* How long plover may take to hand over a client's socket. */
enum { HANDED_WITHIN_S = 5 };

/* Of this host's clock, whatever the program's time is. */
static time_t seconds(void)
{
    struct timespec now = {0};
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

/* Repeats a system call that a signal has ended. */
#define AGAIN(until, call)                                                                         \
    ({                                                                                             \
        ssize_t done;                                                                              \
        while ((done = (call)) < 0 && errno == EINTR && seconds() <= (until))                      \
            ;                                                                                      \
        done;                                                                                      \
    })

/* Fetches a client's socket from plover. */
static int fetch(uint32_t number, uint32_t generation)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    size_t length = strnlen(shared->door, sizeof shared->door);
    struct timeval within = {.tv_sec = HANDED_WITHIN_S};
    struct {
        uint8_t secret[16];
        uint32_t slot, generation;
    } request = {.slot = number - 1, .generation = generation};
    char answer;
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec part = {&answer, 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    int client = -1, door = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (door < 0)
        return -1;
    memcpy(to.sun_path + 1, shared->door, length);
    memcpy(request.secret, shared->secret, sizeof request.secret);
    REAL(setsockopt)(door, SOL_SOCKET, SO_RCVTIMEO, &within, sizeof within);
    REAL(setsockopt)(door, SOL_SOCKET, SO_SNDTIMEO, &within, sizeof within);
    socklen_t to_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
    time_t until = seconds() + HANDED_WITHIN_S;
    if (!AGAIN(until, REAL(connect)(door, (struct sockaddr *)&to, to_bytes)) &&
        AGAIN(until, REAL(send)(door, &request, sizeof request, MSG_NOSIGNAL)) == sizeof request &&
        AGAIN(until, REAL(recvmsg)(door, &message, MSG_CMSG_CLOEXEC)) == 1) {
        struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
        if (rights && rights->cmsg_type == SCM_RIGHTS)
            memcpy(&client, CMSG_DATA(rights), sizeof client);
    }
    REAL(close)(door);
    return client;
}

static void tell(uint32_t ip, uint32_t port, struct sockaddr *address, socklen_t *length)
{
    struct sockaddr_in peer = {.sin_family = AF_INET,
                               .sin_port = htons((uint16_t)port),
                               .sin_addr.s_addr = ip};
    if (!address || !length)
        return;
    memcpy(address, &peer, *length < sizeof peer ? *length : sizeof peer);
    *length = sizeof peer;
}

/* The slot of plover's connection from this address, or 0. */
static uint32_t find(const struct sockaddr_storage *peer)
{
    const struct sockaddr_in *four = (const void *)peer;
    const struct sockaddr_in6 *six = (const void *)peer;
    if (peer->ss_family == AF_INET && four->sin_addr.s_addr == htonl(INADDR_LOOPBACK))
        return atomic_load(&shared->by_port[ntohs(four->sin_port)]);
    if (peer->ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&six->sin6_addr) &&
        six->sin6_addr.s6_addr[12] == 127)
        return atomic_load(&shared->by_port[ntohs(six->sin6_port)]);
    return 0;
}

/* If the descriptor is a client's already, plover learns that it is closed. */
static int aborted(int fd)
{
    close(fd);
    errno = ECONNABORTED;
    return -1;
}

/* Puts the client's socket in the place of plover's connection. */
static int welcome(int fd, uint32_t number, uint32_t generation, int flags)
{
    struct slot *slot = slot_at(number);
    if (!claim(fd, number, generation))
        return aborted(fd);
    if (fd >= DESCRIPTORS_MAX) {
        let_go(number);
        return aborted(fd);
    }
    int client = fetch(number, generation);
    if (client < 0)
        return aborted(fd);
    int placed = REAL(dup3)(client, fd, flags & SOCK_CLOEXEC ? O_CLOEXEC : 0);
    REAL(close)(client);
    int status = REAL(fcntl)(fd, F_GETFL);
    status = flags & SOCK_NONBLOCK ? status | O_NONBLOCK : status & ~O_NONBLOCK;
    if (placed < 0 || REAL(fcntl)(fd, F_SETFL, status) < 0)
        return aborted(fd);
    lock_with_room(CLOCK_ROOM);
    if (atomic_load(&slot->epoch) != atomic_load(&shared->epoch)) {
        unlock();
        return aborted(fd);
    }
    clock_of_accept();
    uint64_t input = fill(RECORD_ACCEPT, number, 0, NULL, 0);
    unlock();
    ring_bell();
    if (shared->wait_read && !wait_for_commit(slot, input))
        return aborted(fd);
    return fd;
}

EXPORT int accept4(int listener, __SOCKADDR_ARG address, socklen_t *length, int flags)
{
    struct sockaddr_storage peer;
    socklen_t peer_bytes = sizeof peer;
    if (!shared)
        return REAL(accept4)(listener, address, length, flags);
    int fd = REAL(accept4)(listener, (struct sockaddr *)&peer, &peer_bytes, flags);
    if (fd < 0)
        return fd;
    uint32_t found = find(&peer);
    if (!found) {
        struct sockaddr *to = address.__sockaddr__;
        if (to && length) {
            memcpy(to, &peer, *length < peer_bytes ? *length : peer_bytes);
            *length = peer_bytes;
        }
        return fd;
    }
    uint32_t number = found % SLOTS + 1, generation = found >> SLOT_BITS;
    struct slot *slot = slot_at(number);
    uint32_t ip = atomic_load(&slot->ip), port = atomic_load(&slot->port);
    if (atomic_load(&slot->kind) == SLOT_CLIENT) {
        fd = welcome(fd, number, generation, flags);
    } else if (fd >= DESCRIPTORS_MAX) {
        fd = aborted(fd);
    } else {
        follow_clock_of(slot);
        claim(fd, number, generation);
    }
    if (fd >= 0)
        tell(ip, port, address.__sockaddr__, length);
    return fd;
}

EXPORT int accept(int listener, __SOCKADDR_ARG address, socklen_t *length)
{
    return accept4(listener, address, length, 0);
}

/* Whether plover replays the log on the connection. */
bool is_replayed(uint32_t number)
{
    return number && atomic_load(&slot_at(number)->kind) == SLOT_REPLAY;
}

EXPORT int getpeername(int fd, __SOCKADDR_ARG address, socklen_t *restrict length)
{
    uint32_t number = slot_of(fd);
    if (!is_replayed(number))
        return REAL(getpeername)(fd, address, length);
    struct slot *slot = slot_at(number);
    tell(atomic_load(&slot->ip), atomic_load(&slot->port), address.__sockaddr__, length);
    return 0;
}

EXPORT int getsockname(int fd, __SOCKADDR_ARG address, socklen_t *restrict length)
{
    if (!is_replayed(slot_of(fd)))
        return REAL(getsockname)(fd, address, length);
    tell(shared->listen_ip, shared->listen_port, address.__sockaddr__, length);
    return 0;
}

/* The end of the output is output, too. */
EXPORT int shutdown(int fd, int how)
{
    struct slot *slot = client_of(fd);
    if (slot && how != SHUT_RD && !wait_to_send(slot)) {
        errno = ENOTCONN;
        return -1;
    }
    return REAL(shutdown)(fd, how);
}

/* With TCP_DEFER_ACCEPT the kernel hides a connection until its client has sent something. Plover's, which stands for a client
 * until the program accepts it, never sends anything. */
EXPORT int setsockopt(int fd, int level, int name, const void *value, socklen_t length)
{
    if (shared && level == IPPROTO_TCP && name == TCP_DEFER_ACCEPT)
        return 0;
    return REAL(setsockopt)(fd, level, name, value, length);
}

EXPORT int listen(int fd, int backlog)
{
    struct sockaddr_storage own = {0};
    socklen_t own_bytes = sizeof own;
    int result = REAL(listen)(fd, backlog);
    if (result || !shared || REAL(getsockname)(fd, (struct sockaddr *)&own, &own_bytes))
        return result;
    uint16_t port = own.ss_family == AF_INET    ? ((struct sockaddr_in *)&own)->sin_port
                    : own.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&own)->sin6_port
                                                : 0;
    if (port && ntohs(port) == shared->port)
        atomic_store(&shared->listens, 1);
    return result;
}
