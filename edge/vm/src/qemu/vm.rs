//! [`Vm`] for a guest under QEMU: each method goes to the part that it concerns.

use super::{NIC, Phase, QemuVm};
use crate::cpu_clock::CpuClock;
use crate::regions::block_of;
use crate::thread_state::ThreadState;
use crate::{Vm, VmCommand, VmError, VmEvent, hash};
use plover_disk::Attachment;
use plover_types::{Digest, Frame, PageNo, PageSet, Unconsumed};
use rustix::event::epoll;
use rustix::fd::AsRawFd;
use std::os::fd::RawFd;
use std::time::Duration;

impl Vm for QemuVm {
    fn pages(&self) -> u32 {
        self.regions().pages()
    }

    fn needs_reset(&self) -> bool {
        self.config.machine.needs_reset()
    }

    fn command(&mut self, command: VmCommand) {
        if self.phase != Phase::Gone {
            self.orders.push(command);
            self.next_order();
            // Some orders are answered on the spot.
            if !self.events.is_empty() {
                // Fails only if it is readable beyond counting.
                let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
            }
        }
    }

    fn poll(&mut self, events: &mut Vec<VmEvent>) {
        self.pump();
        self.nic.refill();
        self.console.flush();
        events.extend(self.events.drain(..));
    }

    fn scan_dirty(&mut self, dirty: &mut PageSet) -> Result<(), VmError> {
        if let Some(disks) = &self.disks {
            disks.scan(self.ram.pages(), dirty);
        }
        match &mut self.tracker {
            Some(tracker) => tracker.scan(dirty),
            None => Err(VmError::Io {
                what: "scanning for written pages before the guest has started".into(),
                source: std::io::ErrorKind::NotConnected.into(),
            }),
        }
    }

    fn hash_pages(&self, key: &[u8; 32], pages: &[PageNo], digests: &mut Vec<Digest>) {
        hash::hash_pages(self.regions(), key, pages, digests);
    }

    fn read_page(&self, page: PageNo, to: &mut [u8]) {
        self.regions().read(page, to);
    }

    fn first_data(&self, page: PageNo) -> PageNo {
        self.regions().first_data(page)
    }

    fn write_page(&mut self, page: PageNo, from: &[u8]) {
        match (&self.disks, block_of(page, self.ram.pages())) {
            (Some(disks), Some(block)) => disks.direct().write(block, from),
            _ => {
                self.ram.write(page, from);
                self.loads.overwrote(page);
            }
        }
    }

    fn disk_failure(&self) -> Option<String> {
        self.disks.as_ref()?.failure()
    }

    fn feed(&mut self, frame: &Frame) -> bool {
        self.nic.feed(frame)
    }

    fn consumed_all(&self) -> bool {
        let disks_idle = self.disks.as_ref().is_none_or(Attachment::is_idle);
        self.nic.consumed_all() && self.console.consumed_all() && disks_idle
    }

    fn take_unconsumed(&mut self) -> Unconsumed {
        let mut frames = Vec::new();
        self.nic.take_unconsumed(&mut frames);
        Unconsumed {
            frames,
            typed: self.console.take_unconsumed(),
        }
    }

    fn hear_outputs(&mut self, hear: bool) {
        if hear == self.hears_outputs {
            return;
        }
        let flags = match hear {
            true => epoll::EventFlags::IN,
            false => epoll::EventFlags::empty(),
        };
        let data = epoll::EventData::new_u64(NIC);
        // Who cannot stop listening hears more than it asked for.
        if epoll::modify(&self.epoll, self.nic.fd(), data, flags).is_ok() {
            self.hears_outputs = hear;
        }
    }

    fn take_outputs(&mut self, max: usize, frames: &mut Vec<Frame>) {
        self.nic.take_outputs(max, frames);
    }

    fn cpu_time(&self) -> Duration {
        self.vcpu_clocks.iter().map(CpuClock::read).sum()
    }

    fn has_work(&self) -> bool {
        self.thread_states.iter().any(ThreadState::is_runnable)
    }

    fn console_write(&mut self, bytes: &[u8]) {
        self.console.write(bytes);
    }

    fn console_read(&mut self, bytes: &mut Vec<u8>) {
        if !self.console.read(bytes) {
            self.unwatch(self.console.fd());
        }
    }

    fn has_backlog(&self) -> bool {
        self.nic.has_backlog() || self.console.has_backlog()
    }

    fn wait_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    fn pid(&self) -> Option<u32> {
        (self.phase != Phase::Gone).then(|| self.process.pid())
    }

    fn kill(&mut self) {
        self.end();
        self.events.clear();
    }
}
