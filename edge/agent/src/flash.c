/*
 * Puts memory of plover's in the place of a flash chip's.
 *
 * UEFI keeps its variables in a flash chip that the guest may write. Its content is a RAM block, whose
 * place blocks.c gives to memory of plover's.
 *
 * After a load the chip wants to write its content to the file behind it as the guest goes on: it adds
 * a handler to a list, and keeps it in one variable (pflash_post_load() in hw/block/pflash_cfi01.c).
 * A second load before that makes two of one, and QEMU frees the wrong one and crashes. So the agent
 * finds the handler after each load and calls it at once.
 */
#include "agent.h"
#include <errno.h>
#include <malloc.h>

/* The chip's RAM block: "pflash1" of the machine (hw/i386/pc_sysfw.c). */
static const char CHIP[] = "system.flash1";

/* QEMU's list of functions that it calls when the machine begins or ceases to run, by priority
 * (include/sysemu/runstate.h). */
typedef void handler_fn(void *opaque, _Bool running, int state);
static struct {
    void *(*add)(handler_fn *function, void *opaque);
    void (*remove)(void *entry);
} list;

static struct {
    _Bool is_placed;
    /* Words of a list's entry, of which the first is the function; 0 until they are known. */
    size_t opaque, next;
    /* During a load: our entry in the list, and the one behind it before the load. */
    void **mark, **behind;
} chip;

static void nothing(void *opaque, _Bool running, int state)
{
    (void)opaque;
    (void)running;
    (void)state;
}

/* The word of an entry, but the first, that holds `value`; 0 if none does. */
static size_t word_of(void **entry, const void *value)
{
    const size_t words = malloc_usable_size(entry) / sizeof *entry;
    for (size_t i = 1; i < words; i++)
        if (entry[i] == value)
            return i;
    return 0;
}

/* Called before a load. Returns 0 or an errno. */
int begin_flash_load(void)
{
    if (!chip.is_placed)
        return 0;
    if (!chip.next) {
        /* Entries of one priority follow each other. */
        static char known;
        void **first = list.add(nothing, &known), **second = list.add(nothing, NULL);
        chip.opaque = word_of(first, &known);
        chip.next = word_of(first, second);
        list.remove(second);
        list.remove(first);
    }
    if (!chip.opaque || !chip.next)
        return ENOSYS;
    chip.mark = list.add(nothing, NULL);
    chip.behind = chip.mark[chip.next];
    return 0;
}

/* Called after a load, whether it succeeded or not: calls the handlers that the load has added, as QEMU
 * would when the guest goes on. They remove themselves. */
void end_flash_load(void)
{
    if (!chip.mark)
        return;
    for (void **entry; (entry = chip.mark[chip.next]) && entry != chip.behind;) {
        ((handler_fn *)entry[0])(entry[chip.opaque], 1, 0);
        if (chip.mark[chip.next] == entry)
            break; /* It stays, so it is not the chip's. */
    }
    list.remove(chip.mark);
    chip.mark = NULL;
}

/* Returns 0 or an errno, as place_block() does. */
int place_flash(int file, off_t offset, size_t bytes)
{
    if (!FIND(list.add, "qemu_add_vm_change_state_handler") ||
        !FIND(list.remove, "qemu_del_vm_change_state_handler"))
        return ENOSYS;
    const int failed = place_block(CHIP, file, offset, bytes);
    chip.is_placed = !failed;
    return failed;
}
