/*
 * The pages that an AHCI controller writes without marking them.
 *
 * QEMU's devices mark what they write as they unmap it. An AHCI controller keeps two areas of each port
 * mapped while the port works: the command list, in which it counts the bytes that it has moved, and the
 * received FIS area (AHCI 1.3.1, 3.3). So these pages are taken to be written, whenever that is asked.
 */
#include "agent.h"

enum { PORTS_MAX = 32 };
/* PCI's configuration, and the registers of the controller and of a port (AHCI 1.3.1, 2.1, 3.1, 3.3). */
enum { PCI_COMMAND = 0x04, PCI_MEMORY = 1 << 1, PCI_BAR5 = 0x24 };
enum { PORTS = 0x0c, PORT = 0x100, PORT_BYTES = 0x80, COMMAND_LIST = 0x00, RECEIVED_FIS = 0x08 };

static struct {
    void *(*find)(const char *path, const char *type, _Bool *ambiguous);
    uint32_t (*config)(void *device, uint32_t at, int bytes);
    void (*access)(uint64_t addr, void *buffer, uint64_t len, _Bool is_write);
} qemu;

/* A machine has one such controller or none. */
static void *controller;
static _Bool is_sought;

/* The addresses of each port's areas as of the last time at which the registers could be read: a controller
 * that is being reset may have written them before. 0: none. */
static uint64_t areas[PORTS_MAX][2];

_Bool find_ahci(void)
{
    return find_dma() && FIND(qemu.find, "object_resolve_path_type") &&
           FIND(qemu.config, "pci_default_read_config") &&
           FIND(qemu.access, "cpu_physical_memory_rw");
}

static uint32_t read_register(uint64_t at)
{
    uint32_t value = 0;
    qemu.access(at, &value, sizeof value, 0);
    return value;
}

/* Calls `each` with the place in the machine's RAM of the page at this address. */
static void report(uint64_t addr, void (*each)(uint64_t offset))
{
    uint64_t len = 1;
    void *mapped = addr ? dma.map(addr, &len, 0) : NULL;
    if (!mapped)
        return;
    const uintptr_t offset = (uintptr_t)mapped - ram.start;
    if (len && offset < ram.bytes)
        each(offset);
    dma.unmap(mapped, len, 0, 0);
}

/* Called on QEMU's main thread. Reads registers only, which changes nothing in the controller. */
void each_ahci_page(void (*each)(uint64_t offset))
{
    if (!is_sought)
        controller = qemu.find("", "ich9-ahci", NULL);
    is_sought = 1;
    if (!controller)
        return;
    const uint64_t base = qemu.config(controller, PCI_BAR5, 4) & ~0xfu;
    const _Bool answers = base && qemu.config(controller, PCI_COMMAND, 2) & PCI_MEMORY;
    const uint32_t ports = answers ? read_register(base + PORTS) : 0;
    for (unsigned i = 0; i < PORTS_MAX; i++) {
        static const unsigned registers[] = {COMMAND_LIST, RECEIVED_FIS};
        for (int a = 0; a < 2; a++) {
            const uint64_t at = base + PORT + i * (uint64_t)PORT_BYTES + registers[a];
            const uint64_t before = areas[i][a];
            if (ports >> i & 1)
                areas[i][a] = read_register(at) | (uint64_t)read_register(at + 4) << 32;
            report(areas[i][a], each);
            if (before != areas[i][a])
                report(before, each);
        }
    }
}
