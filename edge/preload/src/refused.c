/* What is not replicated, and refused: outgoing connections, UDP, io_uring. */
#include "preload.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

#if defined(__x86_64__)
#define OWN_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define OWN_ARCH AUDIT_ARCH_AARCH64
#else
#error "the library knows x86-64 and AArch64"
#endif
enum { IO_URING_SETUP = 425 };

static bool is_inet(const struct sockaddr *address)
{
    return address && (address->sa_family == AF_INET || address->sa_family == AF_INET6);
}

static void refuse(void)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&told))
        note("the program opens an outgoing connection or uses UDP, which is not replicated and is refused: "
             "every replica would do it (program.outgoing = true allows it)");
    errno = EACCES;
}

/* Whether the program may not send to this address. Sets errno. */
bool is_refused(const struct sockaddr *to)
{
    if (!shared || shared->allows_outgoing || !is_inet(to))
        return false;
    refuse();
    return true;
}

EXPORT int connect(int fd, __CONST_SOCKADDR_ARG address, socklen_t length)
{
    return is_refused(address.__sockaddr__) ? -1 : REAL(connect)(fd, address, length);
}

EXPORT int bind(int fd, __CONST_SOCKADDR_ARG address, socklen_t length)
{
    int type = SOCK_STREAM;
    socklen_t bytes = sizeof type;
    if (shared && is_inet(address.__sockaddr__))
        getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes);
    if (type == SOCK_DGRAM && is_refused(address.__sockaddr__))
        return -1;
    return REAL(bind)(fd, address, length);
}

/* Makes io_uring_setup() say that the kernel has none: programs then use epoll. */
void refuse_io_uring(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, OWN_ARCH, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, IO_URING_SETUP, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {.len = sizeof code / sizeof *code, .filter = code};
    if (!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
        return;
    /* Without CAP_SYS_ADMIN the kernel wants a promise first. */
    if (!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}
