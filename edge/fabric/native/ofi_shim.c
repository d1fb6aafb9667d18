/*
 * A thin layer over libfabric.
 *
 * Most of libfabric's API is static inline functions that call through tables of pointers: there
 * is nothing to link against, so the calls are made here, in C, against the headers of the version
 * that is installed. Nothing is decided here; what a port is and when it is used, `src/ofi/` says.
 *
 * A *provider* is an opened fabric with the attributes that were chosen. A *port* is one end of
 * one lane of one link: a domain, an endpoint, two completion queues and two registered pieces of
 * memory of its own. It lives as long as the link's session. Closing it ends all that the session
 * had under way, withdraws its memory key, and touches no other link.
 *
 * Two completion queues, because only arrivals shall wake a sleeper. Completions of our own writes
 * are picked up when they are needed; they never wake anybody.
 */
#include "ofi_shim.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

/* The interface that is asked for. 2.0 dropped what was long deprecated, and none of that is used
 * here, but its providers differ in what they offer to a caller of 1.x. */
#if FI_MAJOR_VERSION >= 2
#define API_VERSION FI_VERSION(2, 0)
#else
#define API_VERSION FI_VERSION(1, 14)
#endif

enum { EVENTS_MAX = 64 };

struct plover_ofi_provider {
    struct fi_info *info;
    struct fid_fabric *fabric;
};

struct plover_ofi_port {
    struct fid_fabric *fabric; /* the provider's; not ours to close */
    struct fid_domain *domain;
    struct fid_av *peers;
    struct fid_cq *arrivals;
    struct fid_cq *completions;
    struct fid_ep *endpoint;
    struct fid_mr *inbound;
    struct fid_mr *outbound;
    char *outbound_memory;
    void *outbound_descriptor;
    int wait_fd; /* -1 without a wait object */
    fi_addr_t peer;
    uint64_t peer_base;
    uint64_t peer_key;
};

uint32_t plover_ofi_version_built(void) { return FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION); }

uint32_t plover_ofi_version_running(void) { return fi_version(); }

const char *plover_ofi_error_text(int error) { return fi_strerror(error < 0 ? -error : error); }

/* ---- provider ------------------------------------------------------------------------------ */

static struct fi_info *wishes(const char *provider)
{
    struct fi_info *hints = fi_allocinfo();

    if (!hints)
        return NULL;
    /* FI_MSG is not used, but the layered providers build their connections on it. */
    hints->caps = FI_MSG | FI_RMA | FI_WRITE | FI_REMOTE_WRITE;
    /* Reliable and unconnected: the one kind that every provider has, itself or by a layer. */
    hints->ep_attr->type = FI_EP_RDM;
    /* What we are ready to do for the provider: register local buffers, use real addresses and
     * the provider's own keys, bind memory to the endpoint. */
    hints->domain_attr->mr_mode =
        FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->domain_attr->cq_data_size = sizeof(uint32_t);
    hints->mode = 0;
    hints->fabric_attr->prov_name = strdup(provider);
    return hints;
}

static int has_socket_address(const struct fi_info *info)
{
    return info->addr_format == FI_SOCKADDR || info->addr_format == FI_SOCKADDR_IN ||
           info->addr_format == FI_SOCKADDR_IN6;
}

/* The first offer for the address `node`, or, for providers whose addresses are of another kind
 * (shm, efa), the first offer. */
static int choose(const struct fi_info *hints, const char *node, struct fi_info **out)
{
    int error = fi_getinfo(API_VERSION, NULL, NULL, 0, hints, out);

    if (error || !has_socket_address(*out))
        return error;
    fi_freeinfo(*out);
    *out = NULL;
    return fi_getinfo(API_VERSION, node, NULL, FI_SOURCE, hints, out);
}

/* tcp under ofi_rxm reports an injected write that fails, as its peer ends, with no context, and
 * ofi_rxm follows that null pointer (seen in libfabric 1.17: the process dies with its peer). */
static int inject_is_safe(const char *provider)
{
    return !strstr(provider, "tcp") || !strstr(provider, "ofi_rxm");
}

static void describe(const struct fi_info *info, struct plover_ofi_traits *traits)
{
    const char *name = info->fabric_attr->prov_name;

    snprintf(traits->name, sizeof(traits->name), "%s", name);
    traits->inject_bytes = inject_is_safe(name) ? info->tx_attr->inject_size : 0;
    traits->write_bytes = info->ep_attr->max_msg_size;
    traits->key_bytes = info->domain_attr->mr_key_size;
    traits->immediate_bytes = (uint32_t)info->domain_attr->cq_data_size;
}

/* Endpoints of ofi_rxm, which carry tcp and verbs, keep a thousand buffers for messages. Here nobody
 * sends any, only writes; with the 16 KiB that each has by default a replica of nine held 1.5 GB, and
 * clearing them took longer than everything else at its start. An operator's own setting wins. */
static void set_buffers(void) { setenv("FI_OFI_RXM_BUFFER_SIZE", "1024", 0); }

int plover_ofi_provider_open(const char *provider, const char *node,
                             struct plover_ofi_provider **out, struct plover_ofi_traits *traits,
                             const char **failed)
{
    static pthread_once_t is_set = PTHREAD_ONCE_INIT;
    struct plover_ofi_provider *opened = calloc(1, sizeof(*opened));
    struct fi_info *hints = wishes(provider);
    int error = -FI_ENOMEM;

    /* libfabric reads it once, at the first fi_getinfo. */
    pthread_once(&is_set, set_buffers);

    *failed = "fi_allocinfo";
    if (!opened || !hints)
        goto fail;
    *failed = "fi_getinfo";
    error = choose(hints, node, &opened->info);
    if (error)
        goto fail;
    *failed = "fi_fabric";
    error = fi_fabric(opened->info->fabric_attr, &opened->fabric, NULL);
    if (error)
        goto fail;
    describe(opened->info, traits);
    fi_freeinfo(hints);
    *out = opened;
    return 0;

fail:
    if (hints)
        fi_freeinfo(hints);
    plover_ofi_provider_close(opened);
    return error;
}

void plover_ofi_provider_close(struct plover_ofi_provider *provider)
{
    if (!provider)
        return;
    if (provider->fabric)
        fi_close(&provider->fabric->fid);
    if (provider->info)
        fi_freeinfo(provider->info);
    free(provider);
}

/* ---- port ---------------------------------------------------------------------------------- */

static int open_queues(struct plover_ofi_port *port, int waits, uint64_t entries,
                       const char **failed)
{
    struct fi_cq_attr arrivals = {
        .size = entries,
        .format = FI_CQ_FORMAT_DATA,
        .wait_obj = waits ? FI_WAIT_FD : FI_WAIT_NONE,
    };
    struct fi_cq_attr completions = {
        .size = entries,
        .format = FI_CQ_FORMAT_CONTEXT,
        .wait_obj = FI_WAIT_NONE,
    };
    int error;

    *failed = waits ? "fi_cq_open with FI_WAIT_FD" : "fi_cq_open";
    error = fi_cq_open(port->domain, &arrivals, &port->arrivals, NULL);
    if (error)
        return error;
    *failed = "fi_cq_open";
    error = fi_cq_open(port->domain, &completions, &port->completions, NULL);
    if (error)
        return error;
    if (!waits)
        return 0;
    *failed = "fi_control(FI_GETWAIT)";
    return fi_control(&port->arrivals->fid, FI_GETWAIT, &port->wait_fd);
}

static int open_endpoint(struct plover_ofi_port *port, struct fi_info *info, const char **failed)
{
    struct fi_av_attr table = {.type = FI_AV_TABLE, .count = 1};
    int error;

    *failed = "fi_av_open";
    error = fi_av_open(port->domain, &table, &port->peers, NULL);
    if (error)
        return error;
    *failed = "fi_endpoint";
    error = fi_endpoint(port->domain, info, &port->endpoint, NULL);
    if (error)
        return error;
    *failed = "fi_ep_bind";
    error = fi_ep_bind(port->endpoint, &port->peers->fid, 0);
    if (error)
        return error;
    /* Selective: a write is only reported when it asks for it. */
    error = fi_ep_bind(port->endpoint, &port->completions->fid,
                       FI_TRANSMIT | FI_SELECTIVE_COMPLETION);
    if (error)
        return error;
    error = fi_ep_bind(port->endpoint, &port->arrivals->fid, FI_RECV);
    if (error)
        return error;
    *failed = "fi_enable";
    return fi_enable(port->endpoint);
}

static int register_memory(struct plover_ofi_port *port, const struct fi_info *info, void *memory,
                           size_t bytes, uint64_t access, uint64_t key, struct fid_mr **out,
                           const char **failed)
{
    int error;

    *failed = "fi_mr_reg";
    error = fi_mr_reg(port->domain, memory, bytes, access, 0, key, 0, out, NULL);
    if (error || !(info->domain_attr->mr_mode & FI_MR_ENDPOINT))
        return error;
    *failed = "fi_mr_bind";
    error = fi_mr_bind(*out, &port->endpoint->fid, 0);
    if (error)
        return error;
    *failed = "fi_mr_enable";
    return fi_mr_enable(*out);
}

static int describe_port(struct plover_ofi_port *port, const struct fi_info *info, void *inbound,
                         struct plover_ofi_address *address, const char **failed)
{
    size_t length = sizeof(address->name);
    int error;

    *failed = "fi_getname";
    error = fi_getname(&port->endpoint->fid, address->name, &length);
    if (error)
        return error;
    address->name_bytes = length;
    address->key = fi_mr_key(port->inbound);
    address->base = info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)inbound : 0;
    *failed = "fi_mr_key";
    return address->key == FI_KEY_NOTAVAIL ? -FI_EKEYREJECTED : 0;
}

int plover_ofi_port_open(struct plover_ofi_provider *provider, int waits, uint64_t queue_entries,
                         void *inbound, size_t inbound_bytes, void *outbound,
                         size_t outbound_bytes, uint64_t key, struct plover_ofi_port **out,
                         struct plover_ofi_address *address, const char **failed)
{
    struct fi_info *info = provider->info;
    struct plover_ofi_port *port = calloc(1, sizeof(*port));
    int error;

    *failed = "calloc";
    if (!port)
        return -FI_ENOMEM;
    port->fabric = provider->fabric;
    port->wait_fd = -1;
    port->peer = FI_ADDR_UNSPEC;
    port->outbound_memory = outbound;
    *failed = "fi_domain";
    error = fi_domain(port->fabric, info, &port->domain, NULL);
    if (!error)
        error = open_queues(port, waits, queue_entries, failed);
    if (!error)
        error = open_endpoint(port, info, failed);
    if (!error)
        error = register_memory(port, info, inbound, inbound_bytes, FI_REMOTE_WRITE, key,
                                &port->inbound, failed);
    if (!error && info->domain_attr->mr_mode & FI_MR_LOCAL) {
        /* Another key, of the same width. */
        error = register_memory(port, info, outbound, outbound_bytes, FI_WRITE, key ^ 1,
                                &port->outbound, failed);
        if (!error)
            port->outbound_descriptor = fi_mr_desc(port->outbound);
    }
    if (!error)
        error = describe_port(port, info, inbound, address, failed);
    if (error) {
        plover_ofi_port_close(port);
        return error;
    }
    *out = port;
    return 0;
}

static void close_one(struct fid *fid)
{
    if (fid)
        fi_close(fid);
}

#define CLOSE(object) close_one((object) ? &(object)->fid : NULL)

void plover_ofi_port_close(struct plover_ofi_port *port)
{
    if (!port)
        return;
    /* The order is libfabric's: memory that is bound to the endpoint, then the endpoint before
     * what it is bound to, the domain last. */
    CLOSE(port->inbound);
    CLOSE(port->outbound);
    CLOSE(port->endpoint);
    CLOSE(port->peers);
    CLOSE(port->completions);
    CLOSE(port->arrivals);
    CLOSE(port->domain);
    free(port);
}

int plover_ofi_port_wait_fd(const struct plover_ofi_port *port) { return port->wait_fd; }

int plover_ofi_port_try_wait(struct plover_ofi_port *port)
{
    struct fid *queues[] = {&port->arrivals->fid};

    return fi_trywait(port->fabric, queues, 1);
}

int plover_ofi_port_connect(struct plover_ofi_port *port, const struct plover_ofi_address *peer)
{
    int inserted = fi_av_insert(port->peers, peer->name, 1, &port->peer, 0, NULL);

    if (inserted != 1)
        return inserted < 0 ? inserted : -FI_EADDRNOTAVAIL;
    port->peer_base = peer->base;
    port->peer_key = peer->key;
    return 0;
}

/* ---- data path ----------------------------------------------------------------------------- */

int plover_ofi_inject(struct plover_ofi_port *port, uint64_t at, uint64_t bytes, uint32_t immediate)
{
    return (int)fi_inject_writedata(port->endpoint, port->outbound_memory + at, bytes, immediate,
                                    port->peer, port->peer_base + at, port->peer_key);
}

int plover_ofi_write(struct plover_ofi_port *port, uint64_t at, uint64_t bytes, uint32_t immediate,
                     uint64_t sequence, int signalled)
{
    struct iovec local = {port->outbound_memory + at, bytes};
    struct fi_rma_iov remote = {port->peer_base + at, bytes, port->peer_key};
    struct fi_msg_rma message = {
        .msg_iov = &local,
        .desc = &port->outbound_descriptor,
        .iov_count = 1,
        .addr = port->peer,
        .rma_iov = &remote,
        .rma_iov_count = 1,
        .context = (void *)(uintptr_t)sequence,
        .data = immediate,
    };

    return (int)fi_writemsg(port->endpoint, &message,
                            FI_REMOTE_CQ_DATA | (signalled ? FI_COMPLETION : 0));
}

int plover_ofi_arrivals(struct plover_ofi_port *port, struct plover_ofi_event *events, int count)
{
    struct fi_cq_data_entry entries[EVENTS_MAX];
    ssize_t read = fi_cq_read(port->arrivals, entries, count < EVENTS_MAX ? count : EVENTS_MAX);

    for (ssize_t i = 0; i < read; i++) {
        events[i].sequence = 0;
        events[i].arrived = (entries[i].flags & FI_REMOTE_CQ_DATA) != 0;
        events[i].immediate = (uint32_t)entries[i].data;
    }
    return (int)read;
}

int plover_ofi_completions(struct plover_ofi_port *port, struct plover_ofi_event *events, int count)
{
    struct fi_cq_entry entries[EVENTS_MAX];
    ssize_t read = fi_cq_read(port->completions, entries, count < EVENTS_MAX ? count : EVENTS_MAX);

    for (ssize_t i = 0; i < read; i++) {
        events[i].sequence = (uint64_t)(uintptr_t)entries[i].op_context;
        events[i].arrived = 0;
        events[i].immediate = 0;
    }
    return (int)read;
}

/* After -FI_EAVAIL: takes the error off the queue and puts it into words. */
int plover_ofi_queue_error(struct plover_ofi_port *port, int transmit, char *text, size_t bytes)
{
    struct fid_cq *queue = transmit ? port->completions : port->arrivals;
    struct fi_cq_err_entry entry = {0};
    char detail[128] = "";
    ssize_t read = fi_cq_readerr(queue, &entry, 0);

    if (read != 1) {
        snprintf(text, bytes, "an error that the provider does not explain");
        return -FI_EOTHER;
    }
    fi_cq_strerror(queue, entry.prov_errno, entry.err_data, detail, sizeof(detail));
    snprintf(text, bytes, "%s (%s)", fi_strerror(entry.err), detail);
    return -entry.err;
}
