//! The capture at a lab's switch, on the real kernel: it names the sender of each frame of the guest.

use anyhow::{Context, Result, ensure};
use plover_lab::net::{GUEST_MAC, Topology};
use plover_lab_proof::capture::Capture;
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Sends an Ethernet frame with this source out of a replica's host.
fn send(network: &Topology, replica: usize, source: [u8; 6]) -> Result<()> {
    network.replica(replica).run(|| {
        let mut frame = [0xff; 60];
        frame[6..12].copy_from_slice(&source);
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        // SAFETY: plain system call without pointers; the result is checked below.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        ensure!(fd >= 0, "socket: {}", std::io::Error::last_os_error());
        // SAFETY: a descriptor just returned by the kernel, which has no other owner.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: all-zero is a valid value of this plain C struct.
        let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_ifindex = rustix::net::netdevice::name_to_index(&socket, "edge0")? as i32;
        // SAFETY: the frame, the address and their lengths outlive the call.
        let sent = unsafe {
            libc::sendto(
                socket.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                0,
                (&raw const to).cast(),
                size_of_val(&to) as libc::socklen_t,
            )
        };
        ensure!(sent == 60, "sendto: {}", std::io::Error::last_os_error());
        Ok(())
    })
}

fn captured(network: &Topology) -> Result<(Vec<u8>, u32)> {
    send(network, 0, GUEST_MAC.0)?;
    let capture = Capture::start(network).context("it starts")?;
    for replica in [0, 2, 1, 1] {
        send(network, replica, GUEST_MAC.0)?;
        send(network, replica, [2, 0, 0, 0, 0, 9])?;
    }
    let captured = capture.stop()?;
    Ok((captured.senders, captured.lost))
}

#[test]
fn the_capture_sees_who_sends_as_the_guest() {
    let name = "t-capture";
    Topology::remove(name).expect("what an ended test left is removed");
    let network = Topology::create(name, 3).expect("namespaces can be made: run as root");
    let result = captured(&network);
    network.destroy().expect("it is removed");
    assert_eq!(result.expect("frames are sent"), (vec![0, 2, 1, 1], 0));
}
