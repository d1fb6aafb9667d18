/*
 * Resets virtio devices whose queues the loaded state does not know.
 *
 * A device state does not say how far a device has used a queue. virtio_load() reads that from guest
 * memory, but only for queues that the guest has set up. For other queues it keeps the present value,
 * because it expects a QEMU that has just started. A secondary that is ahead of its leader while the
 * guest boots has a value from a queue that does not exist any more, and its device would go on
 * counting from there in the queue that the guest sets up next.
 */
#include "agent.h"
#include <stdlib.h>

/* QEMU's tree of objects, and the queues of a virtio device. */
static struct {
    void *(*find)(const char *path, _Bool *ambiguous);
    int (*each)(void *object, int (*function)(void *object, void *), void *);
    void *(*cast)(void *object, const char *type);
    int (*size)(void *device, int queue);
    uint64_t (*address)(void *device, int queue);
    void (*reset)(void *device);
} qom;
enum { QUEUES_MAX = 1024 }; /* VIRTIO_QUEUE_MAX */

static _Bool found;

/* The queues that the guest has set up. */
static struct {
    struct queue {
        void *device;
        int number;
    } *list;
    size_t count, room;
} queues;

_Bool find_queues(void)
{
    found = find_dma() && FIND(qom.find, "object_resolve_path") &&
            FIND(qom.each, "object_child_foreach_recursive") &&
            FIND(qom.cast, "object_dynamic_cast") && FIND(qom.size, "virtio_queue_get_num") &&
            FIND(qom.address, "virtio_queue_get_desc_addr") && FIND(qom.reset, "virtio_reset");
    return found;
}

_Bool is_microvm(void)
{
    void *machine = found ? qom.find("/machine", NULL) : NULL;
    return machine && qom.cast(machine, "microvm-machine");
}

static int note_queues_of(void *object, void *unused)
{
    void *device = qom.cast(object, "virtio-device");
    (void)unused;
    if (!device)
        return 0;
    for (int number = 0; number < QUEUES_MAX && qom.size(device, number); number++) {
        if (!qom.address(device, number))
            continue;
        if (queues.count == queues.room) {
            size_t room = queues.room ? 2 * queues.room : 64;
            struct queue *list = realloc(queues.list, room * sizeof *list);
            if (!list)
                abort(); /* QEMU does the same when it has no memory. */
            queues.list = list;
            queues.room = room;
        }
        queues.list[queues.count++] = (struct queue){device, number};
    }
    return 0;
}

/* Called before each load, because a guest can eject devices. */
void note_queues(void)
{
    /* The devices of the command line: those with an id, and the others. */
    static const char *const places[] = {"/machine/peripheral", "/machine/peripheral-anon"};
    queues.count = 0;
    for (int i = 0; found && i < 2; i++) {
        void *place = qom.find(places[i], NULL);
        if (place)
            qom.each(place, note_queues_of, NULL);
    }
}

/* Called after a load. Resets the devices that had a queue which the loaded state does not have.
 * Returns whether there was one: then the state must be loaded again. */
_Bool restart_queues(void)
{
    void *done = NULL;
    for (size_t i = 0; i < queues.count; i++) {
        void *device = queues.list[i].device;
        if (device != done && !qom.address(device, queues.list[i].number))
            qom.reset(done = device);
    }
    return done != NULL;
}
