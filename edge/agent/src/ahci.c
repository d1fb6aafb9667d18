/*
 * The pages that a disk controller of the kind AHCI writes without a word.
 *
 * QEMU's devices mark what they write as they unmap it. An AHCI controller keeps two areas of each port
 * mapped while the port works: the list of commands, in which it counts bytes, and the area in which it
 * answers (AHCI 1.3.1, 3.3). So these pages are taken to be written, whenever that is asked.
 */
#include "agent.h"

enum { PORTS_MAX = 32 };
/* PCI's configuration, and the registers of the controller and of a port (AHCI 1.3.1, 2.1, 3.1, 3.3). */
enum { PCI_COMMAND = 0x04, PCI_MEMORY = 1 << 1, PCI_BAR5 = 0x24 };
enum { PORTS = 0x0c, PORT = 0x100, PORT_BYTES = 0x80 };
enum { LIST = 0x00, ANSWERS = 0x08, COMMAND = 0x18, STARTED = 1 << 0, ANSWERING = 1 << 4 };

static struct {
    void *(*find)(const char *path, const char *type, _Bool *ambiguous);
    uint32_t (*config)(void *device, uint32_t at, int bytes);
    void (*access)(uint64_t addr, void *buffer, uint64_t len, _Bool is_write);
} qemu;

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
    void *mapped = dma.map(addr, &len, 0);
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
    void *device = qemu.find("", "ich9-ahci", NULL);
    if (!device || !(qemu.config(device, PCI_COMMAND, 2) & PCI_MEMORY))
        return;
    const uint64_t base = qemu.config(device, PCI_BAR5, 4) & ~0xfu;
    const uint32_t ports = read_register(base + PORTS);
    for (unsigned i = 0; i < PORTS_MAX; i++) {
        const uint64_t port = base + PORT + i * (uint64_t)PORT_BYTES;
        if (!(ports >> i & 1))
            continue;
        const uint32_t command = read_register(port + COMMAND);
        const struct {
            uint32_t works, at;
        } areas[] = {{STARTED, LIST}, {ANSWERING, ANSWERS}};
        for (int a = 0; a < 2; a++)
            if (command & areas[a].works)
                report(read_register(port + areas[a].at) |
                           (uint64_t)read_register(port + areas[a].at + 4) << 32,
                       each);
    }
}
