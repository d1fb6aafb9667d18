/*
 * What the Rust side of the ofi fabric may ask of libfabric. `src/ofi/native/ffi.rs` declares the
 * same functions; the two files change together.
 *
 * Every call returns 0 (or a count) or a negative libfabric error number. The calls that open
 * something also name the libfabric call that failed, since "invalid argument" alone helps nobody.
 */
#ifndef PLOVER_OFI_SHIM_H
#define PLOVER_OFI_SHIM_H

#include <stddef.h>
#include <stdint.h>

struct plover_ofi_provider;
struct plover_ofi_port;

/* What a provider is like. */
struct plover_ofi_traits {
    char name[64];          /* as it names itself, such as "tcp;ofi_rxm" */
    uint64_t inject_bytes;  /* largest write whose buffer is free at once; 0: none */
    uint64_t write_bytes;   /* largest write at all */
    uint64_t key_bytes;     /* width of a memory key */
    uint32_t immediate_bytes;
};

/* One event of a receive queue, or one completed write of a transmit queue. */
struct plover_ofi_event {
    uint64_t sequence;  /* of a completed write: what plover_ofi_write was given */
    uint32_t immediate; /* of an arrival */
    uint32_t arrived;   /* 1 if a peer's write with immediate data arrived */
};

/* What goes to the peer so that it can write here. */
struct plover_ofi_address {
    uint8_t name[256];
    uint64_t name_bytes;
    uint64_t key;
    uint64_t base; /* remote address of the first byte */
};

uint32_t plover_ofi_version_built(void);
uint32_t plover_ofi_version_running(void);
const char *plover_ofi_error_text(int error);

int plover_ofi_provider_open(const char *provider, const char *node,
                             struct plover_ofi_provider **out, struct plover_ofi_traits *traits,
                             const char **failed);
void plover_ofi_provider_close(struct plover_ofi_provider *provider);

int plover_ofi_port_open(struct plover_ofi_provider *provider, int waits, uint64_t queue_entries,
                         void *inbound, size_t inbound_bytes, void *outbound,
                         size_t outbound_bytes, uint64_t key, struct plover_ofi_port **out,
                         struct plover_ofi_address *address, const char **failed);
void plover_ofi_port_close(struct plover_ofi_port *port);

int plover_ofi_port_wait_fd(const struct plover_ofi_port *port);
int plover_ofi_port_try_wait(struct plover_ofi_port *port);
int plover_ofi_port_connect(struct plover_ofi_port *port, const struct plover_ofi_address *peer);

int plover_ofi_inject(struct plover_ofi_port *port, uint64_t at, uint64_t bytes, uint32_t immediate);
int plover_ofi_write(struct plover_ofi_port *port, uint64_t at, uint64_t bytes, uint32_t immediate,
                     uint64_t sequence, int signalled);

int plover_ofi_arrivals(struct plover_ofi_port *port, struct plover_ofi_event *events, int count);
int plover_ofi_completions(struct plover_ofi_port *port, struct plover_ofi_event *events,
                           int count);
int plover_ofi_queue_error(struct plover_ofi_port *port, int transmit, char *text, size_t bytes);

#endif
