/*
 * Carries out orders on QEMU's main thread, under its big lock, as monitor commands are.
 *
 *   ORDER_STOP, ORDER_CONT, ORDER_SAVE   "stop", "cont", "xen-save-devices-state"
 *   ORDER_LOAD                           "xen-load-devices-state"
 *   ORDER_WRITTEN                        hands over the log of written RAM (written.c), as ORDER_STOP does once
 *                                        the guest stands
 *
 * Why not QMP: QEMU's monitor reads a command byte by byte, with one round of an event loop for each,
 * and hands it to the main loop. That takes 0.2 to 0.4 ms for each command while the guest stands. An
 * order calls the function of the command at once.
 */
#include "agent.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ORDER_STOP = 0, ORDER_CONT = 1, ORDER_SAVE = 2, ORDER_LOAD = 3, ORDER_WRITTEN = 4 };

/* The functions of monitor commands (qapi/misc.json, qapi/migration.json) and of their errors, and the
 * watches of GLib's main loop, which QEMU uses. */
static struct {
    void (*stop)(void **errp);
    void (*cont)(void **errp);
    void (*save)(const char *filename, _Bool has_live, _Bool live, void **errp);
    void (*load)(const char *filename, void **errp);
    const char *(*error_text)(const void *error);
    void (*error_free)(void *error);
    unsigned (*watch)(int priority, int fd, int condition,
                      int (*function)(int fd, int condition, void *), void *, void *);
    unsigned (*idle)(int priority, int (*function)(void *), void *, void *);
} monitor;
enum { G_IO_IN = 1, G_IO_ERR = 8, G_IO_HUP = 16 };

/* QEMU's YankInstance (qapi/yank.json): a union by type, of which "migration" has no members. */
struct yank_instance {
    int type;
    void *members[4];
};
enum { YANK_INSTANCE_TYPE_MIGRATION = 2 };
static _Bool (*yank_register)(const struct yank_instance *, void **errp);

static char state_file[64];
static int state_fd;

_Bool find_monitor(void)
{
    return FIND(monitor.stop, "qmp_stop") && FIND(monitor.cont, "qmp_cont") &&
           FIND(monitor.save, "qmp_xen_save_devices_state") &&
           FIND(monitor.load, "qmp_xen_load_devices_state") &&
           FIND(monitor.error_text, "error_get_pretty") &&
           FIND(monitor.error_free, "error_free") && FIND(monitor.watch, "g_unix_fd_add_full") &&
           FIND(monitor.idle, "g_idle_add_full") &&
           FIND(yank_register, "yank_register_instance") && find_queues();
}

/* Removes the bytes from `begin` to `end` from a file. Returns 0 or an errno. */
static int cut(int file, off_t begin, off_t end)
{
    static char buffer[64 * 1024];
    ssize_t got;
    if (begin > end)
        return EINVAL;
    while ((got = pread(file, buffer, sizeof buffer, end)) > 0) {
        if (pwrite(file, buffer, (size_t)got, begin) != got)
            return EIO;
        begin += got;
        end += got;
    }
    return got < 0 || ftruncate(file, begin) ? errno : 0;
}

/* Loads the file as it is. Returns 0 or an errno; `error` is QEMU's, if QEMU refuses.
 *
 * A load unregisters the "migration" yank instance at its end, and QEMU aborts if it is not registered.
 * QEMU refuses to register it only if it is. */
static int load_once(void **error)
{
    static const struct yank_instance migration = {.type = YANK_INSTANCE_TYPE_MIGRATION};
    int failed = begin_flash_load();
    if (failed)
        return failed;
    yank_register(&migration, NULL);
    monitor.load(state_file, error);
    end_flash_load();
    return 0;
}

/* Loads the state in the file. Returns 0 or an errno; `error` is QEMU's, if QEMU refuses.
 *
 * If the state must be loaded twice (see queues.c), the second time is without the section of the
 * serial port, which lies at `serial`: QEMU aborts if a port that waits for room on its console is
 * told so twice. */
static int load(uint64_t serial, void **error)
{
    note_queues();
    int failed = load_once(error);
    if (failed || *error || !restart_queues())
        return failed;
    failed = cut(state_fd, (off_t)(serial >> 32), (off_t)(uint32_t)serial);
    return failed ? failed : load_once(error);
}

/* Returns 0 or an errno; `error` is QEMU's, if QEMU refuses. */
static int carry_out(const struct request *order, void **error)
{
    int failed = 0;
    switch (order->op) {
    case ORDER_STOP:
        note_stop();
        monitor.stop(error);
        return 0;
    case ORDER_CONT:
        catch_up();
        monitor.cont(error);
        return 0;
    case ORDER_SAVE:
        monitor.save(state_file, 1, 0, error);
        return *error ? 0 : save_firmware(state_fd);
    case ORDER_LOAD:
        keep_translations(order->len & 1, order->run, order->runs);
        failed = load_firmware(state_fd);
        kvm_refused = 0;
        if (!failed)
            failed = load(order->addr, error);
        /* QEMU 7.2 does not say that KVM has refused a part of a processor's state. */
        if (!failed && !*error)
            failed = kvm_refused;
        note_load(order->len >> 1);
        return failed;
    case ORDER_WRITTEN:
        hand_over_log_of_running();
        return 0;
    default:
        return EINVAL;
    }
}

static struct {
    struct reply head;
    char text[512];
} reply;
static size_t reply_text;
static int reply_sock;

/* The reply to ORDER_STOP waits for the next pass of the main loop. */
static _Bool reply_waits;

/* Returns whether the other end is there. */
static _Bool send_reply(void)
{
    if (reply.head.value == ORDER_STOP)
        hand_over_log();
    reply_waits = 0;
    return send(reply_sock, &reply, sizeof reply.head + reply_text, MSG_NOSIGNAL) >= 0;
}

/* GLib calls this in the pass after ORDER_STOP. */
static int on_next_pass(void *unused)
{
    (void)unused;
    if (reply_waits)
        send_reply();
    return 0;
}

/* GLib calls this on QEMU's main thread when the orders' socket is readable. Returns whether to go on
 * listening.
 *
 * A reset that the guest has asked for just before it stops is done at the end of the pass, and writes
 * into its memory. So only the next pass says that the guest has stopped. */
static int on_order(int sock, int condition, void *unused)
{
    static struct request request;
    static _Bool begun;
    (void)condition;
    (void)unused;
    if (reply_waits && !send_reply()) {
        close(sock);
        return 0;
    }
    for (;;) {
        ssize_t got = recv(sock, &request, sizeof request, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN)
            return 1;
        if (!is_whole(&request, got))
            break;
        if (!begun)
            find_firmware();
        begun = 1;
        void *error = NULL;
        reply_sock = sock;
        reply_text = 0;
        reply.head.value = request.op;
        reply.head.status = carry_out(&request, &error);
        if (error) {
            reply.head.status = EIO;
            size_t text = (size_t)snprintf(reply.text, sizeof reply.text, "%s", monitor.error_text(error));
            reply_text = text < sizeof reply.text ? text : sizeof reply.text - 1;
            monitor.error_free(error);
        }
        if (request.op == ORDER_STOP && monitor.idle(0, on_next_pass, NULL, NULL)) {
            reply_waits = 1;
            return 1;
        }
        if (!send_reply())
            break;
    }
    close(sock);
    return 0;
}

/* Listens for orders on `sock` from now on; states are saved to and loaded from `file`. Returns 0 or an
 * errno. */
int take_orders(int sock, int file)
{
    if (!find_monitor())
        return ENOSYS;
    find_clocks();
    hook_translations();
    state_fd = file;
    snprintf(state_file, sizeof state_file, "/proc/self/fd/%d", file);
    if (fcntl(sock, F_SETFD, FD_CLOEXEC))
        return errno;
    return monitor.watch(0, sock, G_IO_IN | G_IO_ERR | G_IO_HUP, on_order, NULL, NULL) ? 0 : ENOSYS;
}
