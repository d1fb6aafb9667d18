/*
 * Puts memory of plover's in the place of a device's.
 *
 * A flash chip and a graphics card have memory of their own. It is a RAM block of QEMU's that is not
 * part of the guest's RAM, and not of a saved state. QEMU finds its bytes by one address only. So a
 * mapping of plover's file at that address makes it memory that plover sees, tracks and overwrites
 * like the guest's RAM. That is done before the guest runs for the first time.
 */
#include "agent.h"
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

/* The graphics card's RAM block, behind the path of the device: "vga.vram" (hw/display/vga.c). */
static const char VIDEO[] = "/vga.vram";

/* QEMU's functions for its RAM blocks (include/exec/cpu-common.h). */
static struct {
    int (*each)(int (*function)(void *block, void *opaque), void *opaque);
    const char *(*name)(const void *block);
    void *(*address)(const void *block);
    uint64_t (*bytes)(const void *block);
} find;

struct search {
    const char *ending;
    void *found;
};

static int look(void *block, void *opaque)
{
    struct search *search = opaque;
    const char *name = find.name(block);
    const size_t length = name ? strlen(name) : 0, last = strlen(search->ending);
    if (length < last || strcmp(name + length - last, search->ending))
        return 0;
    search->found = block;
    return 1;
}

/* Puts `bytes` at `offset` of the file in the place of the block whose name ends so. Returns 0 or an
 * errno: ENOSYS if this QEMU exports too little, ENODEV if it has no such block of that size. */
int place_block(const char *ending, int file, off_t offset, size_t bytes)
{
    if (!FIND(find.each, "qemu_ram_foreach_block") || !FIND(find.name, "qemu_ram_get_idstr") ||
        !FIND(find.address, "qemu_ram_get_host_addr") ||
        !FIND(find.bytes, "qemu_ram_get_used_length"))
        return ENOSYS;
    /* No lock: blocks come and go with devices, and none does before the guest runs. */
    struct search search = {ending, NULL};
    find.each(look, &search);
    if (!search.found || find.bytes(search.found) != bytes)
        return ENODEV;
    void *at = find.address(search.found);
    void *now = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, offset);
    return now == MAP_FAILED ? errno : 0;
}

int place_display(int file, off_t offset, size_t bytes)
{
    return place_block(VIDEO, file, offset, bytes);
}
