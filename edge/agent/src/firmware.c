/*
 * Copies the memory of a microvm's firmware with a device state.
 *
 * The firmware of a microvm has RAM of its own at the end of the first MiB. That is neither in the
 * guest's RAM nor in a saved state, and the firmware writes there while it runs: the root of the ACPI
 * tables, and how far it has come. A guest that boots without these writes finds no tables, and so no
 * devices. So the changed units of this memory are written behind a saved state, and a load makes the
 * firmware's memory equal to them. The firmware of other machine types writes into the guest's RAM.
 *
 *   file: | state | unit ... | units, mark |
 */
#include "agent.h"
#include <errno.h>
#include <string.h>
#include <unistd.h>

enum { FIRMWARE_END = 0x100000, FIRMWARE_BYTES_MAX = 0x20000, UNIT_BYTES = 64 };
enum { UNITS_MAX = FIRMWARE_BYTES_MAX / UNIT_BYTES };
static const char MARK[8] = "PLOVERFW";

struct unit {
    uint32_t number; /* counted down from the end of the firmware */
    unsigned char bytes[UNIT_BYTES];
};

/* The end of the file. */
struct trailer {
    uint32_t units;
    char mark[sizeof MARK];
};

static struct {
    uint32_t count; /* of units; unit 0 ends at FIRMWARE_END */
    const unsigned char *now;
    unsigned char loaded[FIRMWARE_BYTES_MAX]; /* by QEMU, before the guest ran */
    struct unit units[UNITS_MAX];
} firmware;

/* The offset of a unit in `now` and `loaded`. */
static size_t unit_at(uint32_t number)
{
    return (size_t)(firmware.count - 1 - number) * UNIT_BYTES;
}

static uint64_t unit_address(uint32_t number)
{
    return FIRMWARE_END - (uint64_t)(number + 1) * UNIT_BYTES;
}

/* Where a unit lies in this process; NULL if it is part of the guest's RAM, which is synced as such. */
static const unsigned char *find_unit(uint32_t number)
{
    uint64_t len = UNIT_BYTES;
    void *mapped = dma.map(unit_address(number), &len, 0);
    if (!mapped)
        return NULL;
    dma.unmap(mapped, len, 0, 0); /* The mapping of a machine's memory does not move. */
    _Bool is_ram = (uintptr_t)mapped - ram.start < ram.bytes;
    return len == UNIT_BYTES && !is_ram ? mapped : NULL;
}

/* Writes a unit as a device does, so that QEMU drops its translations of it. */
static _Bool write_unit(uint32_t number, const unsigned char *bytes)
{
    uint64_t len = UNIT_BYTES;
    void *mapped = dma.map(unit_address(number), &len, 1);
    _Bool is_whole = mapped && len == UNIT_BYTES;
    if (is_whole)
        memcpy(mapped, bytes, UNIT_BYTES);
    if (mapped)
        dma.unmap(mapped, len, 1, is_whole ? UNIT_BYTES : 0);
    return is_whole;
}

/* Called before the first order is carried out, when the guest has not run yet. */
void find_firmware(void)
{
    if (!ram.bytes || !is_microvm())
        return;
    for (uint32_t number = 0; number < UNITS_MAX; number++) {
        const unsigned char *unit = find_unit(number);
        /* It is one piece of memory: each unit lies right before the last one. */
        if (!unit || (number && unit + UNIT_BYTES != firmware.now))
            break;
        firmware.now = unit;
        firmware.count = number + 1;
    }
    if (firmware.count)
        memcpy(firmware.loaded, firmware.now, unit_at(0) + UNIT_BYTES);
}

/* Appends the changed units to the state that was just saved. Returns 0 or an errno. */
int save_firmware(int file)
{
    struct trailer end = {0, {0}};
    off_t size = lseek(file, 0, SEEK_END);
    for (uint32_t number = 0; number < firmware.count; number++) {
        const unsigned char *now = firmware.now + unit_at(number);
        if (!memcmp(now, firmware.loaded + unit_at(number), UNIT_BYTES))
            continue;
        firmware.units[end.units].number = number;
        memcpy(firmware.units[end.units++].bytes, now, UNIT_BYTES);
    }
    if (!firmware.count)
        return 0;
    memcpy(end.mark, MARK, sizeof end.mark);
    const size_t bytes = end.units * sizeof *firmware.units;
    if (size < 0 || pwrite(file, firmware.units, bytes, size) != (ssize_t)bytes ||
        pwrite(file, &end, sizeof end, size + (off_t)bytes) != sizeof end)
        return EIO;
    return 0;
}

/* Makes the firmware's memory what it was when the state was saved. Returns 0, or an errno if the units
 * do not fit this firmware. A state of another machine has none. */
int load_firmware(int file)
{
    struct trailer end;
    off_t at = lseek(file, 0, SEEK_END) - (off_t)sizeof end;
    if (!firmware.count || at < 0 || pread(file, &end, sizeof end, at) != sizeof end ||
        memcmp(end.mark, MARK, sizeof end.mark))
        return 0;
    const off_t bytes = (off_t)end.units * (off_t)sizeof *firmware.units;
    if (end.units > firmware.count || bytes > at ||
        pread(file, firmware.units, (size_t)bytes, at - bytes) != bytes)
        return EINVAL;
    uint32_t next = 0;
    for (uint32_t number = 0; number < firmware.count; number++) {
        const unsigned char *due = firmware.loaded + unit_at(number);
        if (next < end.units && firmware.units[next].number == number)
            due = firmware.units[next++].bytes;
        if (memcmp(firmware.now + unit_at(number), due, UNIT_BYTES) && !write_unit(number, due))
            return EFAULT;
    }
    return next == end.units ? 0 : EINVAL;
}
