//! The network: a virtio NIC on a microvm or on PCI, and the TCP of `smoltcp` on it.

use crate::clock::Clock;
use crate::pci;
use crate::start::Start;
use core::ptr::{NonNull, addr_of_mut};
use core::sync::atomic::{AtomicUsize, Ordering};
use smoltcp::iface::{
    Config, Interface, PollIngressSingleResult, PollResult, SocketSet, SocketStorage,
};
use smoltcp::phy::{self, DeviceCapabilities, Medium};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpCidr};
use virtio_drivers::device::net::VirtIONetRaw;
use virtio_drivers::transport::mmio::{MmioTransport, VirtIOHeader};
use virtio_drivers::transport::{DeviceType, SomeTransport, Transport};
use virtio_drivers::{BufferDirection, Hal, PAGE_SIZE, PhysAddr};

/// Where a microvm has its virtio devices.
const DEVICES_AT: usize = 0xfeb0_0000;
const DEVICE_BYTES: usize = 0x200;
const DEVICES: usize = 24;

/// Entries of each of the two queues.
const QUEUE: usize = 256;
/// Frames that may wait to be read, or to be sent. A frame that is sent takes one entry.
const FRAMES: usize = 128;
/// A frame and the NIC's header.
const FRAME_BYTES: usize = 2048;
const FRAME_BYTES_MAX: usize = 1514;

/// Connections.
pub const SOCKETS: usize = 64;

type Buffers = [[u8; FRAME_BYTES]; FRAMES];

static mut RECEIVED: Buffers = [[0; FRAME_BYTES]; FRAMES];
static mut SENT: Buffers = [[0; FRAME_BYTES]; FRAMES];
static mut STORAGE: [SocketStorage<'static>; SOCKETS] = [SocketStorage::EMPTY; SOCKETS];

/// Pages for the queues.
const QUEUE_PAGES: usize = 16;

#[repr(align(4096))]
struct Pages(
    #[expect(dead_code, reason = "the NIC reads and writes it")] [u8; PAGE_SIZE * QUEUE_PAGES],
);

static mut PAGES: Pages = Pages([0; PAGE_SIZE * QUEUE_PAGES]);
static PAGES_USED: AtomicUsize = AtomicUsize::new(0);

/// Memory is mapped one to one.
pub struct Metal;

// SAFETY: pages are handed out once, and an address is its own physical address.
unsafe impl Hal for Metal {
    fn dma_alloc(pages: usize, _: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        let at = PAGES_USED.fetch_add(pages, Ordering::Relaxed);
        assert!(at + pages <= QUEUE_PAGES, "no pages are left for queues");
        let address = addr_of_mut!(PAGES) as usize + at * PAGE_SIZE;
        let pointer = NonNull::new(address as *mut u8).expect("the image is not at 0");
        (address, pointer)
    }

    unsafe fn dma_dealloc(_: PhysAddr, _: NonNull<u8>, _: usize) -> i32 {
        panic!("queues are never given back")
    }

    unsafe fn mmio_phys_to_virt(address: PhysAddr, _: usize) -> NonNull<u8> {
        NonNull::new(address as *mut u8).expect("no device is at 0")
    }

    unsafe fn share(buffer: NonNull<[u8]>, _: BufferDirection) -> PhysAddr {
        buffer.cast::<u8>().as_ptr() as usize
    }

    unsafe fn unshare(_: PhysAddr, _: NonNull<[u8]>, _: BufferDirection) {}
}

/// The NIC with its buffers: the buffer at a place has the token of that place's `tokens`.
pub struct Device {
    nic: VirtIONetRaw<Metal, SomeTransport<'static>, QUEUE>,
    received: &'static mut Buffers,
    sent: &'static mut Buffers,
    receive_tokens: [u16; FRAMES],
    send_tokens: [Option<u16>; FRAMES],
    /// The place of the frame that was read last. It goes back to the NIC before the next is read.
    read: Option<usize>,
}

impl Device {
    fn open() -> Result<Self, &'static str> {
        let transport = if pci::is_there() {
            pci::nic().map(SomeTransport::from)
        } else {
            on_microvm().map(SomeTransport::from)
        };
        let transport = transport.ok_or("no virtio NIC was found")?;
        let mut nic = VirtIONetRaw::new(transport).map_err(|_| "the NIC does not start")?;
        // SAFETY: `open` runs once, so that these are the only references.
        let (received, sent) = unsafe { (&mut *addr_of_mut!(RECEIVED), &mut *addr_of_mut!(SENT)) };
        let mut receive_tokens = [0; FRAMES];
        for (buffer, token) in received.iter_mut().zip(&mut receive_tokens) {
            // SAFETY: the buffer is not touched before `receive_complete`.
            *token = unsafe { nic.receive_begin(buffer) }.map_err(|_| "the NIC takes no buffer")?;
        }
        Ok(Self {
            nic,
            received,
            sent,
            receive_tokens,
            send_tokens: [None; FRAMES],
            read: None,
        })
    }

    /// Takes the interrupt's cause away. Call it before the queues are read: what comes later interrupts again.
    pub fn acknowledge(&mut self) {
        self.nic.ack_interrupt();
    }

    /// Gives the buffer that was read last to the NIC again.
    fn give_back(&mut self) {
        if let Some(place) = self.read.take() {
            // SAFETY: the buffer is not touched before `receive_complete`.
            let token = unsafe { self.nic.receive_begin(&mut self.received[place]) };
            self.receive_tokens[place] = token.expect("the queue had this buffer before");
        }
    }

    /// A place for a frame to be sent. Buffers that were sent are taken back only when none is left, since taking one
    /// back asks for an interrupt at the next.
    fn free_place(&mut self) -> Option<usize> {
        let free = |tokens: &[Option<u16>]| tokens.iter().position(Option::is_none);
        if let Some(place) = free(&self.send_tokens) {
            return Some(place);
        }
        while let Some(token) = self.nic.poll_transmit() {
            let place = self.send_tokens.iter().position(|it| *it == Some(token))?;
            // SAFETY: the buffer that was given with this token.
            let done = unsafe { self.nic.transmit_complete(token, &self.sent[place]) };
            done.expect("the token was just read");
            self.send_tokens[place] = None;
        }
        free(&self.send_tokens)
    }
}

/// The first NIC of a microvm.
fn on_microvm() -> Option<MmioTransport<'static>> {
    (0..DEVICES).find_map(|at| {
        let header = NonNull::new((DEVICES_AT + at * DEVICE_BYTES) as *mut VirtIOHeader)?;
        // SAFETY: the machine has a device's registers there, and each is opened once.
        let transport = unsafe { MmioTransport::new(header, DEVICE_BYTES) }.ok()?;
        if transport.device_type() == DeviceType::Network {
            return Some(transport);
        }
        // Dropping it would reset a device that is not ours.
        core::mem::forget(transport);
        None
    })
}

/// A frame that has come.
pub struct Received<'a>(&'a [u8]);

/// A place for a frame to be sent.
pub struct Sent<'a> {
    nic: &'a mut VirtIONetRaw<Metal, SomeTransport<'static>, QUEUE>,
    buffer: &'a mut [u8; FRAME_BYTES],
    token: &'a mut Option<u16>,
}

impl phy::Device for Device {
    type RxToken<'a> = Received<'a>;
    type TxToken<'a> = Sent<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Received<'_>, Sent<'_>)> {
        self.give_back();
        let place_to_answer = self.free_place()?;
        let token = self.nic.poll_receive()?;
        let place = self.receive_tokens.iter().position(|it| *it == token)?;
        // SAFETY: the buffer that was given with this token.
        let got = unsafe { self.nic.receive_complete(token, &mut self.received[place]) };
        let (header, bytes) = got.ok()?;
        self.read = Some(place);
        let frame = Received(&self.received[place][header..header + bytes]);
        let answer = Sent {
            nic: &mut self.nic,
            buffer: &mut self.sent[place_to_answer],
            token: &mut self.send_tokens[place_to_answer],
        };
        Some((frame, answer))
    }

    fn transmit(&mut self, _: Instant) -> Option<Sent<'_>> {
        let place = self.free_place()?;
        Some(Sent {
            nic: &mut self.nic,
            buffer: &mut self.sent[place],
            token: &mut self.send_tokens[place],
        })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = FRAME_BYTES_MAX;
        capabilities
    }
}

impl phy::RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(self.0)
    }
}

impl phy::TxToken for Sent<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, bytes: usize, write: F) -> R {
        let header = self.nic.fill_buffer_header(self.buffer);
        let from = header.expect("a buffer is longer than a header");
        let result = write(&mut self.buffer[from..from + bytes]);
        // SAFETY: the buffer is not touched before `transmit_complete`.
        let token = unsafe { self.nic.transmit_begin(&self.buffer[..from + bytes]) };
        *self.token = Some(token.expect("the queue has more entries than there are buffers"));
        result
    }
}

/// The NIC with the TCP on it.
pub struct Net {
    pub device: Device,
    pub sockets: SocketSet<'static>,
    interface: Interface,
    address: IpCidr,
}

impl Net {
    /// Opens the machine's NIC.
    pub fn open(start: &Start, clock: &Clock) -> Result<Self, &'static str> {
        let address = start
            .ip()
            .ok_or("the command line has no plover.ip=ADDRESS/PREFIX")?;
        let mut device = Device::open()?;
        let mac = EthernetAddress(device.nic.mac_address());
        // The seed is the same in every run: two guests that get the same frames number their segments alike.
        let config = Config::new(HardwareAddress::Ethernet(mac));
        let mut interface = Interface::new(config, &mut device, clock.instant());
        interface.update_ip_addrs(|list| {
            list.push(address.into())
                .expect("there is room for one address");
        });
        // SAFETY: `open` runs once, so that this is the only reference.
        let sockets = SocketSet::new(unsafe { &mut *addr_of_mut!(STORAGE) }.as_mut_slice());
        Ok(Self {
            device,
            sockets,
            interface,
            address: address.into(),
        })
    }

    /// The guest's address.
    pub fn address(&self) -> IpCidr {
        self.address
    }

    /// Takes one frame in. Whether a connection may have changed; `None` if no frame waits.
    pub fn take(&mut self, clock: &Clock) -> Option<bool> {
        let now = clock.instant();
        let taken = self
            .interface
            .poll_ingress_single(now, &mut self.device, &mut self.sockets);
        match taken {
            PollIngressSingleResult::None => None,
            PollIngressSingleResult::PacketProcessed => Some(false),
            PollIngressSingleResult::SocketStateChanged => Some(true),
        }
    }

    /// Sends what is due. Whether a connection may have changed.
    pub fn send(&mut self, clock: &Clock) -> bool {
        let now = clock.instant();
        let sent = self
            .interface
            .poll_egress(now, &mut self.device, &mut self.sockets);
        sent == PollResult::SocketStateChanged
    }

    /// Until a retransmission or the like is due.
    pub fn delay_us(&mut self, clock: &Clock) -> u64 {
        let delay = self.interface.poll_delay(clock.instant(), &self.sockets);
        delay.map_or(u64::MAX, |delay| delay.total_micros())
    }
}
