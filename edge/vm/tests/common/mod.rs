//! Shared by the tests with a real QEMU: a guest to wait on, a sync, a comparison of the whole memory,
//! and frames that a guest answers.

mod frames;
mod viewer;

pub use frames::{arp_reply, arp_request, ping, pong};
use plover_disk::{Attachment, DiskSpec, Disks};
use plover_types::Mac;
pub use plover_vm::trial::Synced;
use plover_vm::trial::{self, PATIENCE, TrialGuest};
use plover_vm::{Boot, Machine, QemuConfig, VmCommand, VmEvent};
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::time::{Duration, Instant};
pub use viewer::Viewer;

/// The guest's address in every test.
pub const GUEST_IP: [u8; 4] = [10, 77, 0, 100];
/// The address frames come from.
pub const CLIENT_IP: [u8; 4] = [10, 77, 0, 1];
pub const CLIENT_MAC: Mac = Mac([0x52, 0x54, 0, 0, 0, 1]);
pub const GUEST_MAC: Mac = Mac([0x52, 0x54, 0, 0, 0, 0x64]);

/// Whether `/dev/kvm` opens.
pub fn have_kvm() -> bool {
    let opened = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/kvm");
    if let Err(error) = &opened {
        eprintln!("skipped: /dev/kvm: {error}");
    }
    opened.is_ok()
}

/// The Linux guest that `guests/build` makes.
pub fn linux(machine: Machine, vcpus: u32) -> QemuConfig {
    linux_of("redis", machine, vcpus)
}

/// The Linux guest that `guests/build NAME` makes.
pub fn linux_of(name: &str, machine: Machine, vcpus: u32) -> QemuConfig {
    let guests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/guests");
    let cache = guests.join(name);
    let file = |name: &str| {
        let path = cache.join(name);
        assert!(path.exists(), "no {}: run guests/build", path.display());
        path
    };
    let (kernel, initrd) = (file("kernel"), file("initrd"));
    let cmdline = std::fs::read_to_string(file("cmdline")).expect("cmdline");
    let cmdline = format!("{} plover.ip=10.77.0.100/24", cmdline.trim());
    let boot = Boot::Kernel {
        kernel,
        initrd: Some(initrd),
        cmdline,
    };
    QemuConfig {
        machine,
        vcpus,
        ..QemuConfig::new(boot, GUEST_MAC)
    }
}

/// One writable disk of `bytes` in `dir`, which is made unless it is there.
pub fn disk(dir: &Path, name: &str, bytes: u64) -> Disks {
    open(dir, name, bytes, None)
}

/// The same; it may grow to `bytes_max`.
pub fn disk_that_grows(dir: &Path, name: &str, bytes: u64, bytes_max: u64) -> Disks {
    open(dir, name, bytes, Some(bytes_max))
}

fn open(dir: &Path, name: &str, bytes: u64, bytes_max: Option<u64>) -> Disks {
    let spec = DiskSpec {
        path: dir.join(name),
        read_only: false,
        bytes: Some(bytes),
        bytes_max,
        delay: Duration::ZERO,
    };
    Disks::open(&[spec], &dir.join(format!("{name}.journal"))).unwrap()
}

/// A guest that is expected to do what it is told: any error fails the test.
pub struct Guest(TrialGuest);

impl Deref for Guest {
    type Target = TrialGuest;

    fn deref(&self) -> &TrialGuest {
        &self.0
    }
}

impl DerefMut for Guest {
    fn deref_mut(&mut self) -> &mut TrialGuest {
        &mut self.0
    }
}

impl Guest {
    /// Starts QEMU and waits until it is ready.
    pub fn start(config: QemuConfig) -> Self {
        Self::start_with(config, None)
    }

    /// The same with disks.
    pub fn start_with(config: QemuConfig, disks: Option<Attachment>) -> Self {
        Self(TrialGuest::start(config, disks).expect("QEMU starts"))
    }

    /// Starts a Linux guest and waits for its service.
    pub fn boot(config: QemuConfig) -> Self {
        let mut guest = Self::start(config);
        guest.order(VmCommand::Resume);
        guest.wait_console("plover-guest: ready");
        guest
    }

    /// Collects events and output, waiting at most `timeout` for the first.
    pub fn collect(&mut self, timeout: Duration) {
        self.0.collect(timeout).expect("it can be waited for");
    }

    /// The next event.
    pub fn event(&mut self) -> VmEvent {
        let event = self.0.event("an event");
        event.unwrap_or_else(|error| panic!("{error}; console: {}", self.console))
    }

    pub fn expect(&mut self, expected: VmEvent) {
        let event = self.event();
        assert_eq!(event, expected);
    }

    /// Gives an order and waits for the event that answers it.
    pub fn order(&mut self, command: VmCommand) -> VmEvent {
        self.0
            .order(command)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    pub fn save(&mut self) -> Vec<u8> {
        self.0.save().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Lets the guest run for a while, and collects its output.
    pub fn run_for(&mut self, time: Duration) {
        self.0.run_for(time).expect("it can be waited for");
    }

    /// Waits until the console has printed `text` since it was last cleared.
    pub fn wait_console(&mut self, text: &str) {
        let waited = self.0.wait_console(text);
        waited.unwrap_or_else(|error| panic!("{error}; console: {}", self.console));
    }

    /// Waits until the guest has booted again. (SeaBIOS may reset the machine some times more.)
    pub fn wait_boot(&mut self) {
        let begin = Instant::now();
        while !self.console.contains("plover-guest: ready") {
            assert!(begin.elapsed() < PATIENCE, "no boot: {}", self.console);
            self.collect(Duration::from_secs(1));
            self.events.retain(|event| *event != VmEvent::GuestReset);
            assert!(self.events.is_empty(), "{:?} while booting", self.events);
        }
    }

    /// Types a command at the guest's shell.
    pub fn type_line(&mut self, line: &str) {
        self.console.clear();
        self.vm.console_write(format!("{line}\n").as_bytes());
    }

    /// Makes sure that the guest knows where to send its answers.
    pub fn introduce(&mut self) {
        self.vm.feed(&[arp_request()]);
        self.vm.feed(&[arp_reply()]);
    }

    /// Pings until the guest has answered `number`: it may still be starting.
    pub fn wait_ping(&mut self, number: u16) {
        let begin = Instant::now();
        self.sent.clear();
        while !self.sent.iter().any(|frame| pong(frame) == Some(number)) {
            assert!(
                begin.elapsed() < PATIENCE,
                "no answer to a ping; console: {}",
                self.console
            );
            self.introduce();
            self.vm.feed(&[ping(number, 56)]);
            self.run_for(Duration::from_millis(50));
        }
    }

    /// Pings once and waits for the answer.
    pub fn wait_answer(&mut self, number: u16) {
        let begin = Instant::now();
        self.introduce();
        assert_eq!(self.vm.feed(&[ping(number, 56)]), 1, "no room for a ping");
        while !self.sent.iter().any(|frame| pong(frame) == Some(number)) {
            assert!(
                begin.elapsed() < PATIENCE,
                "a ping was lost; console: {}",
                self.console
            );
            self.collect(Duration::from_secs(1));
        }
    }
}

/// Syncs `b` to `a`; both run before and are paused afterwards. With `full`, all pages are compared, as
/// for the first sync of two guests.
pub fn sync(a: &mut Guest, b: &mut Guest, full: bool) -> Synced {
    trial::sync(a, b, full).unwrap_or_else(|error| panic!("{error}"))
}

/// After a sync, compares every page of both guests.
pub fn assert_equal(a: &Guest, b: &Guest) {
    let differing = trial::differing(a, b);
    assert!(
        differing.is_empty(),
        "pages differ: {:?}; the load wrote {:?}",
        differing.to_runs(),
        b.by_load.to_runs()
    );
}
