//! Guests that are driven by hand, with no replica around them: `plover check --guest`, and the tests with a real QEMU.

use crate::{Accel, QemuConfig, QemuVm, VmCommand, VmError, VmEvent};
use plover_disk::Attachment;
use plover_types::{Frame, PAGE_BYTES, PageNo, PageSet};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// A guest or QEMU that is waited for longer than this hangs.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Pages that KVM itself may write when it loads a guest's clocks: its pages about the host's clock.
const CLOCK_PAGES: usize = 2;

/// Why a trial came to an end.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// QEMU does not start, or its memory cannot be read.
    #[error(transparent)]
    Vm(#[from] VmError),
    /// Waiting failed.
    #[error("cannot wait for QEMU: {0}")]
    Wait(std::io::Error),
    /// Nothing came within [`PATIENCE`].
    #[error("{what} did not come within {} s; the guest's console ends with: {console}", PATIENCE.as_secs())]
    Silent {
        /// The event or text that was waited for.
        what: String,
        /// The end of what the guest has printed.
        console: String,
    },
    /// Something else came.
    #[error("{wanted} was waited for, and QEMU answered: {event}")]
    Unexpected {
        /// The order, or the text.
        wanted: String,
        /// The event.
        event: String,
    },
}

/// A guest, and what has come from it so far.
pub struct TrialGuest {
    /// Its machine.
    pub vm: QemuVm,
    /// Events that nobody has taken.
    pub events: VecDeque<VmEvent>,
    /// Its console's output since that was last cleared.
    pub console: String,
    /// The output of the agent in the guest.
    pub agent: Vec<u8>,
    /// Frames that it has sent.
    pub sent: Vec<Frame>,
    /// Pages that the last load of its device state wrote.
    pub by_load: PageSet,
}

impl TrialGuest {
    /// Starts QEMU and waits until it is ready. The guest is paused before its first instruction.
    ///
    /// # Errors
    /// QEMU does not start.
    pub fn start(config: QemuConfig, disks: Option<Attachment>) -> Result<Self, TrialError> {
        let vm = QemuVm::spawn(config, disks)?;
        let mut guest = Self {
            by_load: PageSet::new(vm.layout().pages()),
            vm,
            events: VecDeque::new(),
            console: String::new(),
            agent: Vec::new(),
            sent: Vec::new(),
        };
        match guest.event("the start")? {
            VmEvent::Started => Ok(guest),
            event => Err(unexpected("the start", &event)),
        }
    }

    /// Collects events and output, waiting at most `timeout` for the first.
    ///
    /// # Errors
    /// The kernel lets nobody wait.
    pub fn collect(&mut self, timeout: Duration) -> Result<(), TrialError> {
        // SAFETY: the descriptor belongs to `self.vm`, which outlives this call.
        let fd = unsafe { BorrowedFd::borrow_raw(self.vm.wait_fd()) };
        let timeout = Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let mut awaited = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        poll(&mut awaited, Some(&timeout)).map_err(|error| TrialError::Wait(error.into()))?;
        let mut events = Vec::new();
        self.vm.poll(&mut events);
        self.events.extend(events);
        let mut bytes = Vec::new();
        self.vm.console_read(&mut bytes);
        self.console.push_str(&String::from_utf8_lossy(&bytes));
        self.vm.agent_read(&mut self.agent);
        self.vm.take_outputs(usize::MAX, &mut self.sent);
        Ok(())
    }

    /// The next event, which answers `what`.
    ///
    /// # Errors
    /// There is none.
    pub fn event(&mut self, what: &str) -> Result<VmEvent, TrialError> {
        let begin = Instant::now();
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            self.collect_within(begin, what)?;
        }
    }

    /// Gives an order and waits for the event that answers it.
    ///
    /// # Errors
    /// Another event came, or none.
    pub fn order(&mut self, command: VmCommand) -> Result<VmEvent, TrialError> {
        // Not the whole state.
        let (name, loads) = match &command {
            VmCommand::LoadState(_) => ("LoadState".to_owned(), true),
            other => (format!("{other:?}"), false),
        };
        self.vm.command(command);
        let event = self.event(&name)?;
        let is_right = match &event {
            VmEvent::StateLoaded => loads,
            VmEvent::Paused => name == "Pause",
            VmEvent::Resumed => name == "Resume",
            VmEvent::ResetDone => name == "Reset",
            VmEvent::Collected => name == "Collect",
            VmEvent::StateSaved(_) => name == "SaveState",
            _ => false,
        };
        if is_right {
            Ok(event)
        } else {
            Err(unexpected(&name, &event))
        }
    }

    /// The device and CPU state of a paused guest.
    ///
    /// # Errors
    /// QEMU does not save it.
    pub fn save(&mut self) -> Result<Vec<u8>, TrialError> {
        match self.order(VmCommand::SaveState)? {
            VmEvent::StateSaved(state) => Ok(state),
            event => Err(unexpected("SaveState", &event)),
        }
    }

    /// Adds the pages that were written since the last scan to `dirty`.
    ///
    /// # Errors
    /// QEMU does not say.
    pub fn scan(&mut self, dirty: &mut PageSet) -> Result<(), TrialError> {
        if !self.vm.is_collected() {
            self.order(VmCommand::Collect)?;
        }
        Ok(self.vm.scan_dirty(dirty)?)
    }

    /// Lets the guest run for a while, and collects its output.
    ///
    /// # Errors
    /// The kernel lets nobody wait.
    pub fn run_for(&mut self, time: Duration) -> Result<(), TrialError> {
        let begin = Instant::now();
        while let Some(left) = time.checked_sub(begin.elapsed()) {
            self.collect(left)?;
        }
        Ok(())
    }

    /// Waits until the console has printed `text` since it was last cleared.
    ///
    /// # Errors
    /// It does not, or something else happens to the guest.
    pub fn wait_console(&mut self, text: &str) -> Result<(), TrialError> {
        let begin = Instant::now();
        let what = format!("'{text}'");
        while !self.console.contains(text) {
            if let Some(event) = self.events.front() {
                return Err(unexpected(&what, event));
            }
            self.collect_within(begin, &what)?;
        }
        Ok(())
    }

    /// Collects what comes next, unless it was waited for since `begin` for too long.
    fn collect_within(&mut self, begin: Instant, what: &str) -> Result<(), TrialError> {
        if begin.elapsed() < PATIENCE {
            return self.collect(Duration::from_secs(1));
        }
        let last: Vec<&str> = self.console.lines().rev().take(3).collect();
        Err(TrialError::Silent {
            what: what.to_owned(),
            console: last.into_iter().rev().collect::<Vec<_>>().join(" / "),
        })
    }
}

fn unexpected(wanted: &str, event: &VmEvent) -> TrialError {
    TrialError::Unexpected {
        wanted: wanted.to_owned(),
        event: format!("{event:?}").chars().take(400).collect(),
    }
}

/// The figures of one sync.
#[derive(Clone, Copy, Debug, Default)]
pub struct Synced {
    /// Pages that the first guest wrote since the sync before.
    pub dirty_a: u32,
    /// The same of the second.
    pub dirty_b: u32,
    /// Pages of these that differed, and were copied.
    pub divergent: u32,
    /// Bytes of the device and CPU state.
    pub state_bytes: usize,
}

/// Syncs `b` to `a`; both run before and are paused afterwards. With `full`, all pages are compared, as
/// for the first sync of two guests.
///
/// # Errors
/// QEMU does not carry an order out, or the written pages cannot be read.
pub fn sync(a: &mut TrialGuest, b: &mut TrialGuest, full: bool) -> Result<Synced, TrialError> {
    let pages = a.vm.layout().pages();
    a.order(VmCommand::Pause)?;
    b.order(VmCommand::Pause)?;
    let state = a.save()?;
    b.order(VmCommand::Reset)?;
    let mut dirty = [PageSet::new(pages), PageSet::new(pages)];
    a.scan(&mut dirty[0])?;
    b.scan(&mut dirty[1])?;
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
    b.order(VmCommand::LoadState(state.into()))?;
    let mut by_load = PageSet::new(pages);
    b.scan(&mut by_load)?;
    b.by_load = by_load;
    // Drops `b`'s frames that it has not consumed. A real secondary would get the leader's instead.
    b.vm.take_unconsumed();
    Ok(synced)
}

/// Compares every page of both guests after a sync, and returns those that differ though nothing explains it. Under KVM
/// one thing does: when a clock is loaded, KVM itself writes into the guest (the guest's view of its host's clock). The
/// scan must have seen that, and the next sync moves it. If it wrote more that differs, none of it is explained.
pub fn differing(a: &TrialGuest, b: &TrialGuest) -> PageSet {
    let (mut left, mut right) = ([0; PAGE_BYTES], [0; PAGE_BYTES]);
    let mut differing = PageSet::new(a.vm.layout().pages());
    for page in (0..a.vm.layout().pages()).map(PageNo) {
        a.vm.read_page(page, &mut left);
        b.vm.read_page(page, &mut right);
        if left != right {
            differing.insert(page);
        }
    }
    let by_load = differing.iter().filter(|page| b.by_load.contains(*page));
    let by_load: Vec<PageNo> = by_load.collect();
    if a.vm.accel() == Accel::Kvm && by_load.len() <= CLOCK_PAGES {
        by_load.into_iter().for_each(|page| differing.remove(page));
    }
    differing
}
