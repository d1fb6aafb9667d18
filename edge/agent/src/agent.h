/*
 * What the files of the agent share. See agent.c for what the agent is.
 *
 * Everything is compiled with hidden visibility: a preloaded library that exported `memory`, say, would
 * replace QEMU's. Only ioctl() is meant to (time.c).
 */
#ifndef PLOVER_AGENT_H
#define PLOVER_AGENT_H
#ifndef __x86_64__
#error "x86-64 only"
#endif
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { PAGE_BYTES = 4096, RUNS_MAX = 8192 };

/* Consecutive guest pages. */
struct run {
    uint32_t page, pages;
};

struct request {
    uint32_t op, runs;
    uint64_t addr, len;
    struct run run[RUNS_MAX];
};

struct reply {
    int32_t status;
    uint32_t value;
};

/* Looks up an exported function of QEMU or GLib. Returns whether it exists. */
#define FIND(slot, name) ((*(void **)&(slot) = dlsym(RTLD_DEFAULT, name)))

/* QEMU's functions for devices that access the machine's memory (DMA). TCG drops its translations of
 * memory that is written through them. */
extern struct dma {
    void *(*map)(uint64_t addr, uint64_t *len, _Bool is_write);
    void (*unmap)(void *buffer, uint64_t len, _Bool is_write, uint64_t access_len);
} dma;

/* The machine's RAM in this process: set by OP_LOG. */
extern struct guest_ram {
    uintptr_t start, bytes;
} ram;

/* agent.c */
_Bool is_whole(const struct request *request, ssize_t got);
_Bool find_dma(void);

/* orders.c: OP_ORDERS and the orders */
_Bool find_monitor(void);
int take_orders(int sock, int file);

/* translations.c: TCG's translations across a load */
_Bool find_translations(void);
void hook_translations(void);
void keep_translations(_Bool keep, const struct run *written, size_t runs);

/* queues.c: virtio queues across a load */
_Bool find_queues(void);
void note_queues(void);
_Bool restart_queues(void);
_Bool is_microvm(void);

/* time.c: the guest's clocks across a pause and a load */
void find_clocks(void);
void note_stop(void);
void note_load(uint64_t stopped_at);
void catch_up(void);
/* Why KVM has refused a processor's state (an errno), or 0. */
extern int kvm_refused;

/* firmware.c: a microvm's firmware memory across a load */
void find_firmware(void);
int save_firmware(int file);
int load_firmware(int file);

/* written.c: QEMU's log of written RAM */
_Bool find_log(void);
int begin_log(uint64_t addr, uint64_t bytes, int file);
void hand_over_log(void);
void hand_over_log_of_running(void);
void forget_log(void);
int kvm_log_begins_empty(uint32_t request, void *arg, int result);

/* ahci.c: pages that a disk controller writes */
_Bool find_ahci(void);
void each_ahci_page(void (*each)(uint64_t offset));

/* blocks.c: memory of devices that is not the machine's RAM */
int place_block(const char *ending, int file, off_t offset, size_t bytes);
int place_display(int file, off_t offset, size_t bytes);

/* flash.c: the memory of a flash chip */
int place_flash(int file, off_t offset, size_t bytes);
int begin_flash_load(void);
void end_flash_load(void);

/* nic.c: the guest's NICs as TAP devices */
struct nic;
void find_nics(void);
struct nic *nic_of(int fd);
int answer_as_tap(struct nic *nic, uint32_t request, void *argument);

#endif
