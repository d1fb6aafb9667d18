/*
 * Puts memory of plover's in the place of a flash chip's.
 *
 * UEFI keeps its variables in a flash chip that the guest may write. Its content is a RAM block of QEMU's
 * own: not part of the guest's RAM, and not of a saved state. QEMU reads and writes it by its address
 * only. So a mapping of plover's file at that address makes it memory that plover sees, tracks and
 * overwrites like the guest's RAM. Called before the guest runs for the first time.
 */
#include "agent.h"
#include <errno.h>
#include <sys/mman.h>

/* The chip's RAM block: "pflash1" of the machine (hw/i386/pc_sysfw.c). */
static const char CHIP[] = "system.flash1";

/* QEMU's functions for its RAM blocks (include/exec/cpu-common.h). */
static struct {
    void *(*block)(const char *name);
    void *(*address)(const void *block);
    uint64_t (*bytes)(const void *block);
} find;

/* Returns 0 or an errno: ENOSYS if this QEMU exports too little, ENODEV if it has no such chip. */
int place_flash(int file, off_t offset, size_t bytes)
{
    if (!FIND(find.block, "qemu_ram_block_by_name") ||
        !FIND(find.address, "qemu_ram_get_host_addr") ||
        !FIND(find.bytes, "qemu_ram_get_used_length"))
        return ENOSYS;
    /* No lock: blocks come and go with devices, and none does before the guest runs. */
    void *block = find.block(CHIP);
    if (!block || find.bytes(block) != bytes)
        return ENODEV;
    void *chip = find.address(block);
    void *now = mmap(chip, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, offset);
    return now == MAP_FAILED ? errno : 0;
}
