/*
 * The guest's NIC: QEMU takes our socket for a TAP device.
 *
 * QEMU lets a guest leave checksums and the cutting of TCP segments to its host only if the NIC's other end is
 * a TAP device: frames then have a virtio-net header. Ours is a socket (edge/vm/src/nic.rs). A datagram is read
 * and written as a frame of a TAP device is, so only QEMU's questions about the device have to be answered:
 * our ioctl() (time.c) asks here.
 *
 * What the guest's driver takes (TUN_F_...) and how long the header is (it may have the number of buffers at its
 * end) is written to a file that plover has mapped: its own TAP device is to give the guest no more than that.
 *
 * PLOVER_NIC has the numbers of the socket and the file. Without it nothing is answered here.
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

static int nic = -1, file = -1;
static struct {
    uint32_t offloads, header_bytes;
} now = {0, sizeof(struct virtio_net_hdr)};

void find_nic(void)
{
    const char *numbers = getenv("PLOVER_NIC");
    if (!numbers || sscanf(numbers, "%d,%d", &nic, &file) != 2)
        nic = -1;
    unsetenv("PLOVER_NIC");
}

static int refuse(void)
{
    errno = EINVAL;
    return -1;
}

static int tell(void)
{
    return pwrite(file, &now, sizeof now, 0) == sizeof now ? 0 : -1;
}

_Bool is_nic(int fd)
{
    return fd == nic && fd >= 0;
}

/* Answers as the kernel's TAP driver does. */
int answer_as_tap(uint32_t request, void *argument)
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
        now.offloads = offloads;
        return tell();
    case TUNGETVNETHDRSZ:
        *(int *)argument = (int)now.header_bytes;
        return 0;
    case TUNSETVNETHDRSZ:
        if (*(int *)argument != sizeof(struct virtio_net_hdr) &&
            *(int *)argument != sizeof(struct virtio_net_hdr_mrg_rxbuf))
            return refuse();
        now.header_bytes = (uint32_t)*(int *)argument;
        return tell();
    case TUNSETVNETLE: /* the byte order of the only hosts there are */
        return 0;
    default:
        return refuse();
    }
}
