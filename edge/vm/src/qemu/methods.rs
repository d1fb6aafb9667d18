//! The methods of a running guest. Each goes to the part that it concerns.
//!
//! Every method returns at once, except that work on pages takes time in proportion to their number.

use super::orders::Purpose;
use super::{NIC, Phase, QemuVm};
use crate::console::Console;
use crate::cpu_clock::CpuClock;
use crate::thread_state::ThreadState;
use crate::{VmCommand, VmError, VmEvent, clean, hash};
use plover_disk::Attachment;
use plover_types::{
    Digest, Frame, HashKey, PAGE_BYTES, PageLayout, PageNo, PageSet, Reply, SyncNo, Unconsumed,
};
use rustix::event::epoll;
use rustix::fd::AsRawFd;
use serde_json::Value;
use std::fs::File;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// QEMU that has not come to its guest by then hangs. With a busy host and a slow disk it takes some seconds.
const START_WITHIN: Duration = Duration::from_secs(60);

/// Orders and events.
impl QemuVm {
    /// Gives an order.
    pub fn command(&mut self, command: VmCommand) {
        if command == VmCommand::Probe {
            if self.phase == Phase::Ready {
                self.send(Purpose::Probe, "query-status", Value::Null);
            }
        } else if self.phase != Phase::Gone {
            self.orders.push(command);
            self.next_order();
            // Some orders are answered at once.
            if !self.events.is_empty() {
                // Fails only if its counter is full, and then it is readable anyway.
                let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
            }
        }
    }

    /// Collects what happened since the last call.
    pub fn poll(&mut self, events: &mut Vec<VmEvent>) {
        self.pump();
        self.nics.refill();
        self.console.flush();
        self.guest_agent.iter_mut().for_each(Console::flush);
        if self.is_starting() && self.started.elapsed() >= START_WITHIN {
            self.give_up(&format!(
                "QEMU has not started within {} s",
                START_WITHIN.as_secs()
            ));
        }
        events.extend(self.events.drain(..));
    }

    /// Whether QEMU has not come to its guest yet. Call [`Self::poll`] now and then meanwhile, since a QEMU that hangs is silent.
    pub fn is_starting(&self) -> bool {
        matches!(self.phase, Phase::Hello | Phase::Track)
    }

    /// A descriptor that polls readable when `poll` or `console_read` has something; also when
    /// `take_outputs` has, unless [`Self::hear_outputs`] says otherwise.
    pub fn wait_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Whether fed frames or typed bytes wait for room in QEMU's queue. `poll` puts them there; `wait_fd`
    /// does not report room.
    pub fn has_backlog(&self) -> bool {
        let agent = self.guest_agent.as_ref().is_some_and(Console::has_backlog);
        self.nics.has_backlog() || self.console.has_backlog() || agent
    }

    /// QEMU's process id, for people and fault tests.
    pub fn pid(&self) -> Option<u32> {
        (self.phase != Phase::Gone).then(|| self.process.pid())
    }

    /// Ends QEMU and waits for its end. Dropping does so, too.
    pub fn kill(&mut self) {
        self.end();
        self.process.kill();
        self.events.clear();
    }

    /// Ends QEMU, and waits for its end on a thread: giving 4 GiB of memory back takes the kernel seconds. The
    /// guest reaches its disks no more when this returns.
    pub fn leave(mut self) {
        self.end();
        self.disks = None;
        // A thread that cannot be started drops the guest here.
        let name = std::thread::Builder::new().name("guest-end".into());
        let _ = name.spawn(move || drop(self));
    }
}

/// Memory and disks, as pages of one [`PageLayout`].
impl QemuVm {
    /// The guest's page numbers: RAM, then blocks of disks.
    pub fn layout(&self) -> PageLayout {
        self.regions().layout()
    }

    /// Whether [`Self::scan_dirty`] finds all that was written until now. If not, give [`VmCommand::Collect`] before. Of a
    /// guest that is paused it stays so until the next order but to save its state.
    pub fn is_collected(&self) -> bool {
        self.orders.is_collected
    }

    /// Adds to `dirty` the pages that the guest or QEMU had written when that was last collected, by
    /// [`VmCommand::Collect`] or a pause, and that no scan has reported.
    ///
    /// # Errors
    /// The guest has not started, or the kernel does not say.
    pub fn scan_dirty(&mut self, dirty: &mut PageSet) -> Result<(), VmError> {
        let layout = self.layout();
        if self.clean.take_dirty() {
            dirty.insert(clean::PAGE);
        }
        if let Some(disks) = &self.disks {
            disks.scan(layout, dirty);
        }
        if self.is_starting() {
            return Err(VmError::Io {
                what: "scanning for written pages before the guest has started".into(),
                source: std::io::ErrorKind::NotConnected.into(),
            });
        }
        self.orders.is_collected &= self.orders.is_paused;
        self.log.take(dirty);
        self.trackers
            .iter_mut()
            .try_for_each(|tracker| tracker.scan(dirty))
    }

    /// Tells programs in the guest, which stands, that it stands at this cut. The next [`Self::scan_dirty`] reports the
    /// page.
    pub fn tell_cut(&mut self, sync: SyncNo) {
        self.clean.tell_cut(&self.ram, sync);
    }

    /// Adds what programs in the guest have said of their replies since the last call, or the last
    /// [`Self::forget_replies`]. Returns whether some of it is lost.
    pub fn take_replies(&mut self, replies: &mut Vec<Reply>) -> bool {
        self.clean.take(&self.ram, replies)
    }

    /// Passes over all that they have said so far.
    pub fn forget_replies(&mut self) {
        self.clean.begin_anew();
    }

    /// The keyed hash of each page, in order; all cores hash.
    pub fn hash_pages(&self, key: &HashKey, pages: &[PageNo], digests: &mut Vec<Digest>) {
        hash::hash_pages(self.regions(), key, pages, digests);
    }

    /// The keyed hash of each subpage of each page ([`plover_types::SUBPAGE_BYTES`]), in order.
    pub fn hash_subpages(&self, key: &HashKey, pages: &[PageNo], hashes: &mut Vec<u64>) {
        hash::hash_subpages(|page, to| self.read_page(page, to), key, pages, hashes);
    }

    /// Copies a page out; `to` has [`PAGE_BYTES`].
    pub fn read_page(&self, page: PageNo, to: &mut [u8]) {
        self.regions().read(page, to);
    }

    /// Copies out what UEFI's flash memory holds: nothing without UEFI. May be torn while the guest runs.
    pub fn flash(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.config.flash_bytes()];
        self.ram
            .copy_out(self.config.machine_ram_bytes(), &mut bytes);
        bytes
    }

    /// Copies a page in. `scan_dirty` does not see it.
    pub fn write_page(&mut self, page: PageNo, from: &[u8]) {
        match (&self.disks, self.layout().block(page)) {
            (Some(disks), Some(block)) => disks.direct().write(block, from),
            _ => {
                self.ram.write(page, from);
                // No code runs from the memory of devices, behind the machine's RAM.
                if (page.0 as usize) < self.config.machine_ram_bytes() / PAGE_BYTES {
                    self.loads.overwrote(page);
                }
            }
        }
    }

    /// The first page at or after `page` that may not be zero. Pages before it were never touched, and
    /// reading them would allocate them.
    pub fn first_data(&self, page: PageNo) -> PageNo {
        self.regions().first_data(page)
    }

    /// The guest's memory as a file, for a thread: the bytes of page N begin at N * [`PAGE_BYTES`].
    /// `scan_dirty` does not see what is written there.
    ///
    /// # Errors
    /// This process has no descriptor left.
    pub fn memory(&self) -> std::io::Result<File> {
        self.ram.file()
    }

    /// The guest's disks, for work that can wait for a disk.
    pub fn disks(&self) -> Option<&Attachment> {
        self.disks.as_ref()
    }

    /// Why a page of a disk could not be read or written, if that has happened. The content read or
    /// written is then void, and so is the guest.
    pub fn disk_failure(&self) -> Option<String> {
        self.disks.as_ref()?.failure()
    }
}

/// NIC, console and CPU time.
impl QemuVm {
    /// Puts frames into the queues of the guest's NICs. Returns how many of them were taken: a queue may be full. A guest
    /// that is off has no NIC that listens, and takes all.
    pub fn feed(&mut self, frames: &[Frame]) -> usize {
        if self.is_off() {
            return frames.len();
        }
        self.nics.feed(frames)
    }

    /// The offloads that the guest's driver takes on this NIC (`TUN_F_…`): a TAP device may leave as much to the guest. They
    /// change when the guest's driver starts, and with a load.
    pub fn offloads(&self, nic: usize) -> u32 {
        self.nics.offloads(nic)
    }

    /// Whether QEMU has consumed every frame fed and every byte typed, and its disks have answered
    /// every request. A guest that stands still for an operator consumes no more.
    pub fn consumed_all(&self) -> bool {
        let disks_idle = self.disks.as_ref().is_none_or(Attachment::is_idle);
        let inputs = self.stands() || self.nics.consumed_all() && self.console.consumed_all();
        inputs && disks_idle
    }

    /// While paused: takes back the frames and typed bytes that QEMU has not consumed.
    pub fn take_unconsumed(&mut self) -> Unconsumed {
        Unconsumed {
            frames: self.nics.take_unconsumed(),
            typed: self.console.take_unconsumed(),
        }
    }

    /// Whether outputs make [`Self::wait_fd`] readable; at the start they do. A guest that does not wake
    /// plover with each output gets more of its CPU.
    pub fn hear_outputs(&mut self, hear: bool) {
        if hear == self.hears_outputs {
            return;
        }
        let flags = match hear {
            true => epoll::EventFlags::IN,
            false => epoll::EventFlags::empty(),
        };
        let data = epoll::EventData::new_u64(NIC);
        let mut nics = self.nics.fds();
        // If the kernel refuses the change, we keep receiving these events, which is harmless.
        if nics.all(|nic| epoll::modify(&self.epoll, nic, data, flags).is_ok()) {
            self.hears_outputs = hear;
        }
    }

    /// Frames that the guest has sent since the last call; of each NIC at most `max` a call.
    pub fn take_outputs(&mut self, max: usize, frames: &mut Vec<Frame>) {
        self.nics.take_outputs(max, frames);
    }

    /// Types on the guest's serial console, unless the guest is off. Returns how many bytes are lost, because the guest reads
    /// none and too many wait.
    pub fn console_write(&mut self, bytes: &[u8]) -> usize {
        match self.is_off() {
            true => 0,
            false => self.console.write(bytes),
        }
    }

    /// Appends to `bytes` the output of the guest's serial console since the last call.
    pub fn console_read(&mut self, bytes: &mut Vec<u8>) {
        if !self.console.read(bytes) {
            self.unwatch(self.console.fd());
        }
    }

    /// Sends bytes to the agent in the guest, unless the guest is off or has no channel to one. The agent has read them only
    /// when [`Self::agent_take_unread`] no longer returns any of them.
    pub fn agent_write(&mut self, bytes: &[u8]) {
        if self.is_off() {
            return;
        }
        if let Some(agent) = &mut self.guest_agent {
            agent.write(bytes);
        }
    }

    /// Appends to `bytes` what the guest has written to the channel of its agent since the last call.
    pub fn agent_read(&mut self, bytes: &mut Vec<u8>) {
        if let Some(agent) = self.guest_agent.take_if(|agent| !agent.read(bytes)) {
            self.unwatch(agent.fd());
        }
    }

    /// Takes back the bytes for the agent that QEMU has not moved into the guest.
    pub fn agent_take_unread(&mut self) -> Vec<u8> {
        let agent = self.guest_agent.as_mut();
        agent.map(Console::take_back).unwrap_or_default()
    }

    /// The guest is about to stop: QEMU gets no inputs before [`Self::release_inputs`].
    pub(super) fn hold_inputs(&mut self) {
        self.nics.hold();
        self.console.hold();
        self.guest_agent.iter_mut().for_each(Console::hold);
    }

    /// The guest is about to run: QEMU gets the inputs that were kept back.
    pub(super) fn release_inputs(&mut self) {
        self.nics.release();
        self.console.release();
        self.guest_agent.iter_mut().for_each(Console::release);
    }

    /// CPU time of all vCPU threads since the start.
    pub fn cpu_time(&self) -> Duration {
        self.vcpu_clocks.iter().map(CpuClock::read).sum()
    }

    /// Whether a thread that runs the guest or its devices is running or waiting for a CPU.
    pub fn has_work(&self) -> bool {
        let found = self.thread_states.iter().position(ThreadState::is_runnable);
        if let Some(found) = found {
            self.last_busy.store(found, Ordering::Relaxed);
        }
        found.is_some()
    }

    /// Whether the thread that [`Self::has_work`] last found busy still is. That is one look, however many vCPUs there are.
    pub fn still_has_work(&self) -> bool {
        let last = self.last_busy.load(Ordering::Relaxed);
        let last = self.thread_states.get(last);
        last.is_some_and(ThreadState::is_runnable)
    }

    /// The number of pages that the guest had written since the last scan when that was last collected
    /// ([`VmCommand::Collect`]).
    pub fn written_since_scan(&self) -> u64 {
        self.log.count()
    }

    /// Whether the guest is not paused, and no order is open or waits.
    pub fn runs_undisturbed(&self) -> bool {
        self.phase == Phase::Ready && !self.orders.is_paused && self.orders.is_done()
    }
}
