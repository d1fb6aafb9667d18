//! Shared by the tests with a real QEMU: a guest to wait on, a sync, a comparison of the whole memory,
//! and frames that a guest answers.

mod frames;
mod viewer;

pub use frames::{arp_reply, arp_request, ping, pong};
use plover_disk::{Attachment, DiskSpec, Disks};
use plover_types::{Frame, Mac, PAGE_BYTES, PageNo, PageSet};
use plover_vm::{Accel, Boot, Machine, QemuConfig, QemuVm, VmCommand, VmEvent};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{Duration, Instant};
pub use viewer::Viewer;

/// The guest's address in every test.
pub const GUEST_IP: [u8; 4] = [10, 77, 0, 100];
/// The address frames come from.
pub const CLIENT_IP: [u8; 4] = [10, 77, 0, 1];
pub const CLIENT_MAC: Mac = Mac([0x52, 0x54, 0, 0, 0, 1]);
pub const GUEST_MAC: Mac = Mac([0x52, 0x54, 0, 0, 0, 0x64]);

/// A test that waits this long hangs.
const PATIENCE: Duration = Duration::from_secs(120);

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

/// A guest, and its output so far.
pub struct Guest {
    pub vm: QemuVm,
    pub events: VecDeque<VmEvent>,
    pub console: String,
    /// What the agent in the guest has said.
    pub agent: Vec<u8>,
    pub sent: Vec<Frame>,
    /// Pages that the last load wrote.
    pub by_load: PageSet,
}

impl Guest {
    /// Starts QEMU and waits until it is ready.
    pub fn start(config: QemuConfig) -> Self {
        Self::start_with(config, None)
    }

    /// The same with disks.
    pub fn start_with(config: QemuConfig, disks: Option<Attachment>) -> Self {
        let vm = QemuVm::spawn(config, disks).expect("QEMU starts");
        let mut guest = Self {
            by_load: PageSet::new(vm.layout().pages()),
            vm,
            events: VecDeque::new(),
            console: String::new(),
            agent: Vec::new(),
            sent: Vec::new(),
        };
        guest.expect(VmEvent::Started);
        guest
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
        // SAFETY: the descriptor belongs to `self.vm`, which outlives this call.
        let fd = unsafe { BorrowedFd::borrow_raw(self.vm.wait_fd()) };
        let timeout = Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        poll(
            &mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)],
            Some(&timeout),
        )
        .expect("poll");
        let mut events = Vec::new();
        self.vm.poll(&mut events);
        self.events.extend(events);
        let mut bytes = Vec::new();
        self.vm.console_read(&mut bytes);
        self.console.push_str(&String::from_utf8_lossy(&bytes));
        self.vm.agent_read(&mut self.agent);
        self.vm.take_outputs(usize::MAX, &mut self.sent);
    }

    /// The next event.
    pub fn event(&mut self) -> VmEvent {
        let begin = Instant::now();
        loop {
            if let Some(event) = self.events.pop_front() {
                return event;
            }
            assert!(
                begin.elapsed() < PATIENCE,
                "no event; console: {}",
                self.console
            );
            self.collect(Duration::from_secs(1));
        }
    }

    pub fn expect(&mut self, expected: VmEvent) {
        let event = self.event();
        assert_eq!(event, expected);
    }

    /// Gives an order and waits for the event that answers it.
    pub fn order(&mut self, command: VmCommand) -> VmEvent {
        self.vm.command(command.clone());
        let event = self.event();
        let right = matches!(
            (&command, &event),
            (VmCommand::Pause, VmEvent::Paused)
                | (VmCommand::Resume, VmEvent::Resumed)
                | (VmCommand::Reset, VmEvent::ResetDone)
                | (VmCommand::SaveState, VmEvent::StateSaved(_))
                | (VmCommand::LoadState(_), VmEvent::StateLoaded)
        );
        let name = format!("{command:?}");
        assert!(
            right,
            "{} was answered by {event:?}",
            &name[..name.len().min(40)]
        );
        event
    }

    pub fn save(&mut self) -> Vec<u8> {
        match self.order(VmCommand::SaveState) {
            VmEvent::StateSaved(state) => state,
            _ => unreachable!("checked by `order`"),
        }
    }

    /// Lets the guest run for a while, and collects its output.
    pub fn run_for(&mut self, time: Duration) {
        let begin = Instant::now();
        while let Some(left) = time.checked_sub(begin.elapsed()) {
            self.collect(left);
        }
    }

    /// Waits until the console has printed `text` since it was last cleared.
    pub fn wait_console(&mut self, text: &str) {
        let begin = Instant::now();
        while !self.console.contains(text) {
            assert!(
                begin.elapsed() < PATIENCE,
                "no '{text}' on the console: {}",
                self.console
            );
            assert!(
                self.events.is_empty(),
                "{:?} while waiting for '{text}'",
                self.events
            );
            self.collect(Duration::from_secs(1));
        }
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

/// The figures of one sync.
#[derive(Clone, Copy, Debug, Default)]
pub struct Synced {
    pub dirty_a: u32,
    pub dirty_b: u32,
    pub divergent: u32,
    pub state_bytes: usize,
}

/// Syncs `b` to `a`; both run before and are paused afterwards. With `full`, all pages are compared, as
/// for the first sync of two guests.
pub fn sync(a: &mut Guest, b: &mut Guest, full: bool) -> Synced {
    let pages = a.vm.layout().pages();
    a.order(VmCommand::Pause);
    b.order(VmCommand::Pause);
    let state = a.save();
    b.order(VmCommand::Reset);
    let mut dirty = [PageSet::new(pages), PageSet::new(pages)];
    a.vm.scan_dirty(&mut dirty[0]).unwrap();
    b.vm.scan_dirty(&mut dirty[1]).unwrap();
    let mut synced = Synced {
        dirty_a: dirty[0].len(),
        dirty_b: dirty[1].len(),
        state_bytes: state.len(),
        divergent: 0,
    };
    let mut union = if full {
        PageSet::all(pages)
    } else {
        dirty[0].clone()
    };
    union.union_with(&dirty[1]);
    union.union_with(&b.by_load);
    let (mut left, mut right) = ([0; PAGE_BYTES], [0; PAGE_BYTES]);
    for page in union.iter() {
        a.vm.read_page(page, &mut left);
        b.vm.read_page(page, &mut right);
        if left != right {
            b.vm.write_page(page, &left);
            synced.divergent += 1;
        }
    }
    b.order(VmCommand::LoadState(state.into()));
    b.by_load.clear();
    b.vm.scan_dirty(&mut b.by_load).unwrap();
    // Drops `b`'s frames that it has not consumed. A real secondary would get the leader's instead.
    b.vm.take_unconsumed();
    synced
}

/// After a sync, compares every page of both guests. They are equal, except under KVM: when a clock is
/// loaded, KVM itself writes into the guest (the pvclock page: the guest's view of its host's clock). The
/// scan must have seen that, and the next sync moves it.
pub fn assert_equal(a: &Guest, b: &Guest) {
    let (mut left, mut right) = ([0; PAGE_BYTES], [0; PAGE_BYTES]);
    let mut differing = PageSet::new(a.vm.layout().pages());
    for page in (0..a.vm.layout().pages()).map(PageNo) {
        a.vm.read_page(page, &mut left);
        b.vm.read_page(page, &mut right);
        if left != right {
            differing.insert(page);
        }
    }
    if a.vm.accel() == Accel::Kvm {
        assert!(
            b.by_load.len() <= 2,
            "a load wrote {:?}",
            b.by_load.to_runs()
        );
        differing.subtract(&b.by_load);
    } else {
        assert!(
            b.by_load.is_empty(),
            "a load wrote {:?}",
            b.by_load.to_runs()
        );
    }
    assert!(
        differing.is_empty(),
        "pages differ: {:?}",
        differing.to_runs()
    );
}
