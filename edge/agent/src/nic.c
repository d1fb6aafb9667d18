/*
 * The guest's NICs: QEMU takes our sockets for TAP devices.
 *
 * QEMU lets a guest leave checksums and the cutting of TCP segments to its host only if the NIC's other end is
 * a TAP device: frames then have a virtio-net header. Ours is a socket (edge/vm/src/nic.rs). A datagram is read
 * and written as a frame of a TAP device is, so only QEMU's questions about the device have to be answered:
 * our ioctl() (time.c) asks here.
 *
 * What the guest's driver takes (TUN_F_...) and how long the header is (it may have the number of buffers at its
 * end) is written to a file of each NIC that plover has mapped: its own TAP device is to give the guest no more than
 * that.
 *
 * PLOVER_NIC has the numbers of the socket and the file of each NIC: "10,11 12,13". Without it nothing is answered
 * here.
 */
#include "agent.h"
#include <errno.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* Not the offloads of UDP: the two guests' datagrams are compared one by one. */
enum { OFFLOADS = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN };

enum { NICS_MAX = 4 };

static struct nic {
    int socket, file;
    struct {
        uint32_t offloads, header_bytes;
    } now;
} nics[NICS_MAX];
static int nic_count;

void find_nics(void)
{
    const char *numbers = getenv("PLOVER_NIC");
    while (numbers && nic_count < NICS_MAX) {
        struct nic *nic = &nics[nic_count];
        if (sscanf(numbers, "%d,%d", &nic->socket, &nic->file) != 2)
            break;
        nic->now.header_bytes = sizeof(struct virtio_net_hdr);
        nic_count++;
        numbers = strchr(numbers, ' ');
        if (numbers)
            numbers++;
    }
    unsetenv("PLOVER_NIC");
}

static int refuse(void)
{
    errno = EINVAL;
    return -1;
}

static int tell(const struct nic *nic)
{
    return pwrite(nic->file, &nic->now, sizeof nic->now, 0) == sizeof nic->now ? 0 : -1;
}

/* The NIC with this socket, or NULL. */
struct nic *nic_of(int fd)
{
    for (int i = 0; i < nic_count; i++)
        if (nics[i].socket == fd)
            return &nics[i];
    return NULL;
}

/* Answers as the kernel's TAP driver does. */
int answer_as_tap(struct nic *nic, uint32_t request, void *argument)
{
    uint32_t offloads = (uint32_t)(uintptr_t)argument;
    switch (request) {
    case TUNGETIFF: {
        struct ifreq *about = argument;
        memset(about, 0, sizeof *about);
        strcpy(about->ifr_name, "plover");
        about->ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
        return 0;
    }
    case TUNSETOFFLOAD:
        if (offloads & ~(uint32_t)OFFLOADS)
            return refuse();
        nic->now.offloads = offloads;
        return tell(nic);
    case TUNGETVNETHDRSZ:
        *(int *)argument = (int)nic->now.header_bytes;
        return 0;
    case TUNSETVNETHDRSZ:
        if (*(int *)argument != sizeof(struct virtio_net_hdr) &&
            *(int *)argument != sizeof(struct virtio_net_hdr_mrg_rxbuf))
            return refuse();
        nic->now.header_bytes = (uint32_t)*(int *)argument;
        return tell(nic);
    case TUNSETVNETLE: /* the byte order of the only hosts there are */
        return 0;
    default:
        return refuse();
    }
}
