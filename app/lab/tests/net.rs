//! The lab's network, on the real kernel. Needs root, like every lab.

use anyhow::Result;
use plover_lab::net::{CLIENT_IP, GUEST_IP, GUEST_MAC, TAP, Topology, replica_ip};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::process::Command;
use std::time::{Duration, Instant};

/// A lab of its own for each test, because tests run at the same time. It is taken down also when the
/// test fails.
struct Lab(Option<Topology>);

impl Lab {
    fn new(name: &str, replicas: usize) -> Self {
        assert!(
            rustix::process::geteuid().is_root(),
            "these tests make namespaces: run as root"
        );
        Topology::remove(name).unwrap();
        Self(Some(Topology::create(name, replicas).unwrap()))
    }
}

impl std::ops::Deref for Lab {
    type Target = Topology;
    fn deref(&self) -> &Topology {
        self.0.as_ref().unwrap()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Some(topology) = self.0.take() {
            topology.destroy().unwrap();
        }
    }
}

/// All links that the kernel shows outside the lab.
fn links_here() -> String {
    let output = Command::new("ip").args(["-o", "link"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// The same for a namespace that has lost its name.
fn links_in(namespace: std::fs::File) -> String {
    std::thread::spawn(move || {
        use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
        use std::os::fd::AsFd;
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        links_here()
    })
    .join()
    .unwrap()
}

/// The result of a datagram that `from` sends to `to`: one direction only. Sending itself must succeed
/// even where nothing arrives, because a cut is silent.
fn send(lab: &Topology, from: usize, to: usize, patience: Duration) -> std::io::Result<usize> {
    let bind = |id| {
        lab.replica(id)
            .run(move || Ok(UdpSocket::bind((replica_ip(id), 0))?))
    };
    let (sender, receiver) = (bind(from).unwrap(), bind(to).unwrap());
    receiver.set_read_timeout(Some(patience)).unwrap();
    assert_eq!(
        sender
            .send_to(b"hello", receiver.local_addr().unwrap())
            .unwrap(),
        5
    );
    receiver.recv(&mut [0; 16])
}

fn open(lab: &Topology, from: usize, to: usize) {
    let result = send(lab, from, to, Duration::from_secs(10));
    assert!(
        matches!(result, Ok(5)),
        "{from} does not reach {to}: {result:?}"
    );
}

fn closed(lab: &Topology, from: usize, to: usize) {
    let error = send(lab, from, to, Duration::from_millis(200)).expect_err("it was cut");
    assert_eq!(
        error.kind(),
        ErrorKind::WouldBlock,
        "{from} to {to}: {error}"
    );
}

/// Attaches to a replica's TAP as the daemon does, and waits until the bridge has noticed.
fn attach_tap(lab: &Topology, replica: usize) -> OwnedFd {
    let tap = lab
        .replica(replica)
        .run(|| {
            let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let fd = rustix::fs::open("/dev/net/tun", flags, Mode::empty())?;
            // SAFETY: an all-zero ifreq is a valid value of this plain C struct.
            let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
            for (to, from) in request.ifr_name.iter_mut().zip(TAP.bytes()) {
                *to = from as libc::c_char;
            }
            request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
            // SAFETY: TUNSETIFF reads and writes one ifreq, which lives across the call.
            let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &mut request) };
            anyhow::ensure!(
                result == 0,
                "TUNSETIFF: {}",
                std::io::Error::last_os_error()
            );
            Ok(fd)
        })
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let mut bridge = Command::new("bridge");
        bridge.args(["link", "show", "dev", TAP]);
        let output = lab
            .replica(replica)
            .exec_in(bridge)
            .unwrap()
            .output()
            .unwrap();
        if String::from_utf8_lossy(&output.stdout).contains("state forwarding") {
            return tap;
        }
        assert!(Instant::now() < deadline, "the TAP never came up");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// All frames that wait on a TAP; waits for the first one.
fn read_frames(tap: &OwnedFd) -> Vec<Vec<u8>> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let second = Timespec {
        tv_sec: 1,
        tv_nsec: 0,
    };
    let mut frames = Vec::new();
    let mut buffer = vec![0; 70_000];
    while poll(&mut [PollFd::new(tap, PollFlags::IN)], Some(&second)).unwrap() > 0 {
        frames.push({
            let n = rustix::io::read(tap, &mut buffer[..]).unwrap();
            buffer[..n].to_vec()
        });
    }
    frames
}

/// The Internet checksum over a pseudo-header and a segment: 0 when the segment's own is right.
fn checksum(ip: &[u8]) -> u16 {
    let header = usize::from(ip[0] & 15) * 4;
    let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    let segment = &ip[header..total];
    let mut sum = u32::from(ip[9]) + segment.len() as u32;
    for pair in ip[12..20].chunks(2).chain(segment.chunks(2)) {
        sum += u32::from(u16::from_be_bytes([
            pair[0],
            pair.get(1).copied().unwrap_or(0),
        ]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[test]
fn up_and_down_leaves_no_trace() {
    let before = links_here();
    let lab = Lab::new("t-updown", 3);
    assert!(Topology::exists("t-updown"));
    assert_eq!(Topology::open("t-updown").unwrap().as_ref(), Some(&*lab));
    let namespaces: Vec<_> = [lab.switch(), lab.client()]
        .into_iter()
        .chain((0..3).map(|i| lab.replica(i)))
        .collect();
    assert!(namespaces.iter().all(|namespace| namespace.path().exists()));
    assert_eq!(
        links_here(),
        before,
        "a lab adds nothing to the machine's own links"
    );
    assert!(
        Topology::create("t-updown", 3).is_err(),
        "a lab is not made twice"
    );
    assert!(
        Topology::exists("t-updown"),
        "and the refusal does not take the first one down"
    );

    drop(lab);
    assert!(!Topology::exists("t-updown"));
    assert!(
        namespaces
            .iter()
            .all(|namespace| !namespace.path().exists())
    );
    assert_eq!(Topology::open("t-updown").unwrap(), None);
    Topology::remove("t-updown").unwrap();
}

#[test]
fn a_lab_is_not_mistaken_for_another() {
    let (short, long) = (Lab::new("t-name", 1), Lab::new("t-name-r0", 1));
    Topology::remove("t-name").unwrap();
    assert!(!Topology::exists("t-name") && Topology::exists("t-name-r0"));
    drop((short, long));
}

#[test]
fn leftovers_of_a_crashed_lab_are_removed() {
    let lab = Lab::new("t-crash", 3);
    // As after a crash in the middle of going down: one namespace is gone, and a process still lives in
    // another one, which keeps that namespace and its devices alive.
    let mut sleeper = Command::new("sleep");
    sleeper.arg("60");
    let mut child = lab.replica(1).exec_in(sleeper).unwrap().spawn().unwrap();
    let inside = std::fs::File::open(format!("/proc/{}/ns/net", child.id())).unwrap();
    Command::new("ip")
        .args(["netns", "del", lab.client().name()])
        .status()
        .unwrap();
    assert_eq!(
        Topology::open("t-crash").unwrap(),
        None,
        "not a whole lab any more"
    );
    assert!(Topology::exists("t-crash"));

    Topology::remove("t-crash").unwrap();
    assert!(!Topology::exists("t-crash"));
    let left = links_in(inside);
    assert!(
        !left.contains("repl0") && !left.contains("edge0"),
        "still plugged in: {left}"
    );
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_cut_link_carries_nothing_until_it_is_healed() {
    let lab = Lab::new("t-cut", 3);
    for (from, to) in [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)] {
        open(&lab, from, to);
    }

    lab.cut(0, &[1]).unwrap();
    closed(&lab, 0, 1);
    closed(&lab, 1, 0);
    open(&lab, 0, 2);
    open(&lab, 1, 2);
    lab.cut(0, &[0, 1, 2]).unwrap();
    closed(&lab, 0, 2);
    closed(&lab, 2, 0);
    open(&lab, 1, 2);

    lab.heal(0).unwrap();
    for (from, to) in [(0, 1), (1, 0), (0, 2), (2, 0)] {
        open(&lab, from, to);
    }
}

/// The failure to prevent: traffic that is cut off, or any traffic between replicas, floods into the
/// guests.
#[test]
fn nothing_but_the_clients_frames_reaches_the_guests() {
    let lab = Lab::new("t-quiet", 3);
    let taps: Vec<_> = (0..3).map(|i| attach_tap(&lab, i)).collect();
    lab.cut(0, &[1, 2]).unwrap();
    closed(&lab, 0, 1);
    open(&lab, 1, 2);
    lab.heal(0).unwrap();
    open(&lab, 0, 1);
    open(&lab, 2, 0);
    for tap in &taps {
        assert_eq!(read_frames(tap), Vec::<Vec<u8>>::new());
    }
    // The taps do work: the client's question for the guest's address reaches all of them.
    let ask = || Ok(UdpSocket::bind((CLIENT_IP, 0))?.send_to(b"?", (GUEST_IP, 5000))?);
    lab.client().run(ask).unwrap();
    for tap in &taps {
        assert!(
            read_frames(tap)
                .iter()
                .any(|frame| frame[12..14] == [0x08, 0x06])
        );
    }
}

/// The work that the client's kernel leaves to "the hardware" is done before a frame is on the TAP.
#[test]
fn frames_on_the_tap_are_whole() {
    let lab = Lab::new("t-whole", 1);
    let tap = attach_tap(&lab, 0);
    let neighbour = format!("neigh replace {GUEST_IP} lladdr {GUEST_MAC} dev eth0 nud permanent");
    let mut ip = Command::new("ip");
    ip.args(neighbour.split(' '));
    assert!(
        lab.client()
            .exec_in(ip)
            .unwrap()
            .status()
            .unwrap()
            .success()
    );

    let result: Result<()> = lab.client().run(|| {
        let socket = UdpSocket::bind((CLIENT_IP, 0))?;
        for len in [1, 33, 1472] {
            socket.send_to(&vec![0xa5; len], (GUEST_IP, 5000))?;
        }
        // One datagram for the socket, cut into several by "the hardware" (UDP segmentation offload).
        // TCP's super-frames go the same way.
        let segment: libc::c_int = 1000;
        // SAFETY: pointer and length describe `segment`, which outlives the call.
        let result = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_UDP,
                libc::UDP_SEGMENT,
                (&raw const segment).cast(),
                size_of_val(&segment) as libc::socklen_t,
            )
        };
        anyhow::ensure!(
            result == 0,
            "UDP_SEGMENT: {}",
            std::io::Error::last_os_error()
        );
        socket.send_to(&[0x5a; 10_000], (GUEST_IP, 5000))?;
        Ok(())
    });
    result.unwrap();

    let frames = read_frames(&tap);
    let payloads: Vec<usize> = frames.iter().map(|frame| frame.len() - 42).collect();
    let mut expected = vec![1, 33, 1472];
    expected.extend([1000; 10]);
    assert_eq!(payloads, expected);
    for frame in &frames {
        assert_eq!(
            checksum(&frame[14..]),
            0,
            "a frame of {} bytes",
            frame.len()
        );
    }
}
