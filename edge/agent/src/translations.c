/*
 * Keeps TCG's translations across a load of device state.
 *
 * After a load QEMU flushes all translations and translates the guest anew, which takes tens of
 * milliseconds. It does so in one place: the post_load function of the section "cpu_common". The
 * description of that section is an exported table, so the agent replaces the function in the table.
 * When the caller lists all pages that were written behind QEMU's back, only the translations of these
 * pages are dropped.
 */
#include "agent.h"
#include <errno.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef int post_load_fn(void *cpu, int version);
static struct {
    void (*tlb_flush)(void *cpu);
    post_load_fn **slot;    /* in QEMU's table */
    post_load_fn *original; /* set once the slot is replaced */
} post_load;
static _Bool keep;

/* Replaces cpu_common_post_load() (cpu.c; hw/core/cpu-system.c since 10.0). That calls tlb_flush() and
 * tb_flush(), and clears a flag that QEMU has not saved since 0.13. */
static int after_load(void *cpu, int version)
{
    if (!keep)
        return post_load.original(cpu, version);
    post_load.tlb_flush(cpu);
    return 0;
}

/* Returns 1 if the address lies in the program's own code (the first object of the list), else -1.
 * Either value ends the walk over the list. */
static int in_program(struct dl_phdr_info *object, size_t size, void *address)
{
    (void)size;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        uintptr_t start = object->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_LOAD && (part->p_flags & PF_X) &&
            *(uintptr_t *)address - start < part->p_memsz)
            return 1;
    }
    return -1;
}

/* Finds post_load in the description of "cpu_common". The fields before it differ between versions of
 * QEMU, but in all of them the name comes first, and the functions are pre_load, then post_load. */
static post_load_fn **find_slot(void)
{
    Dl_info info;
    const ElfW(Sym) *symbol = NULL;
    void **word = dlsym(RTLD_DEFAULT, "vmstate_cpu_common");
    post_load_fn **found[2];
    size_t count = 0;
    if (!word || !dladdr1(word, &info, (void **)&symbol, RTLD_DL_SYMENT) || !symbol ||
        info.dli_saddr != word || !word[0] || strcmp(word[0], "cpu_common"))
        return NULL;
    for (size_t i = 1; i < symbol->st_size / sizeof *word; i++) {
        if (dl_iterate_phdr(in_program, &word[i]) == 1) {
            if (count == 2)
                return NULL;
            found[count++] = (post_load_fn **)&word[i];
        }
    }
    return count == 2 ? found[1] : NULL;
}

_Bool find_translations(void)
{
    return find_dma() && FIND(post_load.tlb_flush, "tlb_flush") && (post_load.slot = find_slot());
}

/* Puts after_load() into the table. The table lies in memory that is read-only after relocation. If
 * that cannot be changed, every load flushes all translations, as without the agent. */
void hook_translations(void)
{
    const uintptr_t size = (uintptr_t)sysconf(_SC_PAGESIZE);
    if (!find_translations() || post_load.original)
        return;
    char *page = (char *)((uintptr_t)post_load.slot & ~(size - 1));
    if (mprotect(page, size, PROT_READ | PROT_WRITE))
        return;
    post_load.original = *post_load.slot;
    *post_load.slot = after_load;
    mprotect(page, size, PROT_READ);
}

/* Drops the translations of these pages, as a device's write to them does. */
static void forget(const struct run *run, size_t runs)
{
    for (; runs; runs--, run++) {
        uint64_t at = (uint64_t)run->page * PAGE_BYTES;
        uint64_t left = (uint64_t)run->pages * PAGE_BYTES;
        while (left) {
            uint64_t len = left;
            void *mapped = dma.map(at, &len, 1);
            if (!mapped || !len)
                break; /* Not RAM, so nothing was translated from it. */
            dma.unmap(mapped, len, 1, len);
            at += len;
            left -= len;
        }
    }
}

/* Called before a load: whether it keeps the translations of all pages but the written ones. */
void keep_translations(_Bool wanted, const struct run *written, size_t runs)
{
    keep = wanted && post_load.original;
    if (!keep || !runs)
        return;
    hand_over_log();
    forget(written, runs);
    forget_log(); /* What forget() has marked is what plover wrote. */
}
