/*
 * Lets the guest's clocks go on while it is paused or copied.
 *
 * A guest that is stopped for a sync stops its clocks, too: QEMU takes them up again where they stood. A
 * guest that is synced often would so lose minutes in an hour. Before the guest goes on, its clocks are
 * set to what they would show if it had run all the time: to the host's monotonic clock less a constant,
 * which is taken when the guest stops for the first time, or from a state that is loaded and the time at
 * which its guest stopped. So no pause leaves an error that adds up.
 *
 * QEMU keeps two numbers in `timers_state`: nanoseconds, for the virtual timers and what reads time from
 * devices, and ticks of the host's counter, for the guest's under TCG. Their places differ between
 * versions of QEMU. So they are found by what they do: while the guest stands, the functions that read the
 * clocks return these numbers and nothing else.
 *
 * Under KVM most guests read neither, but a clock that KVM keeps (kvmclock). It goes on in the kernel; but
 * QEMU asks KVM for it when the guest stops, and sets it back to that when the guest goes on. Those two
 * calls are seen here, and the second one gets a number that is as much later as the guest has stood.
 */
#include "agent.h"
#include <errno.h>
#include <link.h>
#include <linux/kvm.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { NS_PER_S = 1000000000, NS_PER_US = 1000 };

static struct {
    int64_t (*clock)(void);
    int64_t (*ticks)(void);
    _Bool (*is_running)(void);
    int64_t *timers;
    size_t words;
} qemu;

/* The host's monotonic clock less the guest's, in nanoseconds. */
static int64_t behind;
static _Bool is_known;
/* The host's clocks when the agent started, to learn how many ticks a nanosecond has. */
static int64_t start_ns;
static uint64_t start_ticks;
/* The host's monotonic clock less KVM's clock for the guest. */
static struct {
    int64_t behind;
    _Bool is_known;
    /* When the guest of the state that was loaded last stopped, until its clock is known. */
    int64_t loaded_at;
} kvm;

int kvm_refused;

/* Whether this gives KVM a part of a processor's state that it takes if it is valid. */
static _Bool sets_processor(uint32_t request)
{
    return request == (uint32_t)KVM_SET_REGS || request == (uint32_t)KVM_SET_VCPU_EVENTS ||
           request == (uint32_t)KVM_SET_MP_STATE || request == (uint32_t)KVM_SET_LAPIC;
}

static int64_t host_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * (int64_t)NS_PER_S + now.tv_nsec;
}

/* Called before the guest runs for the first time. */
void find_clocks(void)
{
    Dl_info info;
    const ElfW(Sym) *symbol = NULL;
    void *timers = dlsym(RTLD_DEFAULT, "timers_state");
    start_ns = host_ns();
    start_ticks = __builtin_ia32_rdtsc();
    if (timers && dladdr1(timers, &info, (void **)&symbol, RTLD_DL_SYMENT) && symbol &&
        info.dli_saddr == timers && FIND(qemu.clock, "cpu_get_clock") &&
        FIND(qemu.ticks, "cpu_get_ticks") && FIND(qemu.is_running, "runstate_is_running")) {
        qemu.timers = timers;
        qemu.words = symbol->st_size / sizeof *qemu.timers;
    }
}

/* Called before the guest is stopped. What it missed between `catch_up` and its first instruction is made
 * up for at the next pause, because the number is taken only once. */
void note_stop(void)
{
    if (!qemu.timers || is_known || !qemu.is_running())
        return;
    behind = host_ns() - qemu.clock();
    is_known = 1;
}

/* A state was loaded, whose guest stopped at this time in microseconds. */
void note_load(uint64_t stopped_at)
{
    is_known = qemu.timers && stopped_at;
    if (is_known)
        behind = (int64_t)stopped_at * NS_PER_US - qemu.clock();
    kvm.is_known = 0;
    kvm.loaded_at = (int64_t)stopped_at * NS_PER_US;
}

/* QEMU sets KVM's clock to what it was when the guest stopped. */
static void catch_up_kvm(struct kvm_clock_data *data)
{
    if (kvm.loaded_at) {
        kvm.behind = kvm.loaded_at - (int64_t)data->clock;
        kvm.is_known = 1;
        kvm.loaded_at = 0;
    }
    const int64_t missed = host_ns() - kvm.behind - (int64_t)data->clock;
    if (kvm.is_known && missed > 0)
        data->clock += (uint64_t)missed;
}

/* Replaces the C library's: QEMU calls this one. Its own wrapper passes the request as an int, so the
 * upper half may be all ones. */
__attribute__((visibility("default"))) int ioctl(int fd, unsigned long request, ...)
{
    va_list list;
    va_start(list, request);
    void *arg = va_arg(list, void *);
    va_end(list);
    struct nic *nic = nic_of(fd);
    if (nic)
        return answer_as_tap(nic, (uint32_t)request, arg);
    if ((uint32_t)request == (uint32_t)KVM_SET_CLOCK)
        catch_up_kvm(arg);
    const int result = kvm_log_begins_empty((uint32_t)request, arg, (int)syscall(SYS_ioctl, fd, request, arg));
    if (result < 0 && sets_processor((uint32_t)request))
        kvm_refused = errno;
    if ((uint32_t)request == (uint32_t)KVM_GET_CLOCK && result == 0 && !kvm.is_known) {
        const struct kvm_clock_data *data = arg;
        kvm.behind = host_ns() - (int64_t)data->clock;
        kvm.is_known = 1;
    }
    return result;
}

/* Adds `span` to the number that `read` returns. The guest stands. */
static void advance(int64_t (*read)(void), int64_t span)
{
    const int64_t before = read();
    for (size_t i = 0; i < qemu.words; i++) {
        if (qemu.timers[i] != before)
            continue;
        qemu.timers[i] = before + span;
        if (read() == before + span)
            return;
        qemu.timers[i] = before;
    }
}

/* Called before the guest goes on. */
void catch_up(void)
{
    if (!is_known || qemu.is_running())
        return;
    const int64_t now = host_ns();
    const int64_t missed = now - behind - qemu.clock();
    const double ticks_per_ns =
        (double)(__builtin_ia32_rdtsc() - start_ticks) / (double)(now - start_ns);
    if (missed <= 0)
        return;
    advance(qemu.clock, missed);
    advance(qemu.ticks, (int64_t)((double)missed * ticks_per_ns));
}
