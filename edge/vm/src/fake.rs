//! A guest that exists only in memory, for tests of what stands above [`Vm`].
//!
//! It computes: each frame it consumes is mixed into its memory at places that depend on all
//! frames before it, and answered by a frame that depends on its state. Two fake guests that are
//! fed the same frames in the same order hold the same memory, except for `noise`: seeded writes
//! that differ between guests, as the timing of a real guest makes them, and never reach its
//! answers. What [`VmCommand::SaveState`] gives is the whole of its state but memory, so that a
//! guest that got another's pages and state goes on as that one would.
//!
//! Time does not pass by itself: [`FakeVm::run`] lets it consume what it was fed.

use crate::{Vm, VmCommand, VmError, VmEvent, hash};
use plover_types::{Digest, Frame, PAGE_BYTES, PageNo, PageSet, SplitMix64, Unconsumed};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsRawFd, OwnedFd};
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::time::Duration;

/// CPU time that a frame costs the fake guest.
const FRAME_CPU: Duration = Duration::from_micros(50);

/// Bytes of its saved state: the running mix and the count of frames.
const STATE_BYTES: usize = 16;

/// The fake guest.
pub struct FakeVm {
    memory: Vec<u8>,
    dirty: PageSet,
    noise: Option<SplitMix64>,
    mix: u64,
    frames: u64,
    cpu: Duration,
    running: bool,
    dead: bool,
    inputs: VecDeque<Frame>,
    outputs: VecDeque<Frame>,
    console: Vec<u8>,
    events: VecDeque<VmEvent>,
    fail_next: Option<String>,
    wait: OwnedFd,
}

impl FakeVm {
    /// A guest of `pages` pages; with `noise`, also seeded writes of its own.
    pub fn new(pages: u32, noise: Option<u64>) -> Self {
        assert!(pages >= 4, "the fake guest needs 4 pages");
        let wait = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .expect("an eventfd can be made");
        let fake = Self {
            memory: vec![0; pages as usize * PAGE_BYTES],
            dirty: PageSet::new(pages),
            noise: noise.map(SplitMix64::new),
            mix: 1,
            frames: 0,
            cpu: Duration::ZERO,
            running: false,
            dead: false,
            inputs: VecDeque::new(),
            outputs: VecDeque::new(),
            console: Vec::new(),
            events: VecDeque::from([VmEvent::Started]),
            fail_next: None,
            wait,
        };
        fake.signal();
        fake
    }

    /// Lets the guest consume all it was fed, if it runs; gives back how many frames.
    pub fn run(&mut self) -> usize {
        let mut consumed = 0;
        while self.running {
            let Some(frame) = self.inputs.pop_front() else {
                break;
            };
            self.consume(&frame);
            consumed += 1;
        }
        consumed
    }

    /// The next order fails with `error`.
    pub fn fail_next(&mut self, error: &str) {
        self.fail_next = Some(error.to_owned());
    }

    /// The hypervisor dies by itself.
    pub fn die(&mut self, why: &str) {
        self.end();
        self.events.push_back(VmEvent::Died(why.to_owned()));
        self.signal();
    }

    /// The guest prints.
    pub fn print(&mut self, text: &[u8]) {
        self.console.extend_from_slice(text);
        self.signal();
    }

    /// Frames consumed since the start: part of the guest's state.
    pub fn frames_consumed(&self) -> u64 {
        self.frames
    }

    fn consume(&mut self, frame: &Frame) {
        self.frames += 1;
        self.cpu += FRAME_CPU;
        for chunk in frame.0.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix = SplitMix64::new(self.mix ^ u64::from_le_bytes(word)).next_u64();
        }
        // One page stands for its data, chosen by all inputs so far; the first is its counters,
        // written for every frame; the second belongs to the noise.
        let pages = u64::from(self.pages());
        let page = 2 + self.mix % (pages - 2);
        self.put(page, self.frames % 512, self.mix);
        self.put(0, 0, self.frames);
        if let Some(noise) = &mut self.noise {
            let (word, value) = (noise.range(0, 511), noise.next_u64());
            self.put(1, word, value);
        }
        let mut answer = self.frames.to_be_bytes().to_vec();
        answer.extend_from_slice(&self.mix.to_be_bytes());
        self.outputs.push_back(Frame(answer));
        self.signal();
    }

    fn put(&mut self, page: u64, word: u64, value: u64) {
        let at = page as usize * PAGE_BYTES + word as usize * 8;
        self.memory[at..at + 8].copy_from_slice(&value.to_le_bytes());
        self.dirty.insert(PageNo(page as u32));
    }

    fn at(page: PageNo) -> std::ops::Range<usize> {
        let start = page.0 as usize * PAGE_BYTES;
        start..start + PAGE_BYTES
    }

    fn end(&mut self) {
        self.dead = true;
        self.running = false;
        self.events.clear();
        self.inputs.clear();
    }

    /// Makes `wait_fd` readable.
    fn signal(&self) {
        // Fails only if it is readable beyond counting.
        let _ = rustix::io::write(&self.wait, &1u64.to_ne_bytes());
    }

    /// Makes `wait_fd` unreadable once nothing is left to fetch.
    fn quiet(&self) {
        if self.events.is_empty() && self.outputs.is_empty() && self.console.is_empty() {
            let _ = rustix::io::read(&self.wait, &mut [0u8; 8]);
        }
    }

    fn carry_out(&mut self, command: VmCommand) -> Option<VmEvent> {
        let paused = |vm: &Self, what: &str| {
            assert!(
                !vm.running,
                "{what} while the guest runs is a bug of the caller"
            );
        };
        Some(match command {
            VmCommand::Pause => {
                self.running = false;
                VmEvent::Paused
            }
            VmCommand::Resume => {
                self.running = true;
                VmEvent::Resumed
            }
            VmCommand::Reset => {
                paused(self, "a reset");
                VmEvent::ResetDone
            }
            VmCommand::SaveState => {
                paused(self, "a save");
                let mut state = self.mix.to_le_bytes().to_vec();
                state.extend_from_slice(&self.frames.to_le_bytes());
                VmEvent::StateSaved(state)
            }
            VmCommand::LoadState(state) => {
                paused(self, "a load");
                let Ok(state) = <[u8; STATE_BYTES]>::try_from(state) else {
                    let error = "no state of a fake guest".into();
                    return Some(VmEvent::Failed {
                        command: "load".into(),
                        error,
                    });
                };
                let [mix, frames] = [0, 8]
                    .map(|at| u64::from_le_bytes(std::array::from_fn(|byte| state[at + byte])));
                (self.mix, self.frames) = (mix, frames);
                VmEvent::StateLoaded
            }
            VmCommand::PowerButton => {
                self.running = false;
                VmEvent::GuestShutdown
            }
        })
    }
}

impl Vm for FakeVm {
    fn pages(&self) -> u32 {
        self.dirty.capacity()
    }

    fn needs_reset(&self) -> bool {
        false
    }

    fn command(&mut self, command: VmCommand) {
        if self.dead {
            return;
        }
        let event = match self.fail_next.take() {
            Some(error) => Some(VmEvent::Failed {
                command: format!("{command:?}"),
                error,
            }),
            None => self.carry_out(command),
        };
        self.events.extend(event);
        self.signal();
    }

    fn poll(&mut self, events: &mut Vec<VmEvent>) {
        events.extend(self.events.drain(..));
        self.quiet();
    }

    fn scan_dirty(&mut self, dirty: &mut PageSet) -> Result<(), VmError> {
        dirty.union_with(&self.dirty);
        self.dirty.clear();
        Ok(())
    }

    fn hash_pages(&self, key: &[u8; 32], pages: &[PageNo], digests: &mut Vec<Digest>) {
        digests.extend(pages.iter().map(|page| {
            let bytes = self.memory[Self::at(*page)]
                .try_into()
                .expect("a page is a page");
            hash::digest_page(key, bytes)
        }));
    }

    fn read_page(&self, page: PageNo, to: &mut [u8]) {
        to.copy_from_slice(&self.memory[Self::at(page)]);
    }

    fn write_page(&mut self, page: PageNo, from: &[u8]) {
        self.memory[Self::at(page)].copy_from_slice(from);
    }

    fn feed(&mut self, frame: &Frame) -> bool {
        if self.inputs.len() >= 1024 {
            return false;
        }
        self.inputs.push_back(frame.clone());
        true
    }

    fn consumed_all(&self) -> bool {
        self.inputs.is_empty()
    }

    /// It reads what is typed at once.
    fn take_unconsumed(&mut self) -> Unconsumed {
        Unconsumed {
            frames: self.inputs.drain(..).collect(),
            typed: Vec::new(),
        }
    }

    /// It always tells.
    fn hear_outputs(&mut self, _: bool) {}

    fn take_outputs(&mut self, max: usize, frames: &mut Vec<Frame>) {
        let count = max.min(self.outputs.len());
        frames.extend(self.outputs.drain(..count));
        self.quiet();
    }

    fn cpu_time(&self) -> Duration {
        self.cpu
    }

    fn has_work(&self) -> bool {
        false
    }

    /// The fake guest's console echoes.
    fn console_write(&mut self, bytes: &[u8]) {
        self.print(bytes);
    }

    fn console_read(&mut self, bytes: &mut Vec<u8>) {
        bytes.append(&mut self.console);
        self.quiet();
    }

    /// It has room for all.
    fn has_backlog(&self) -> bool {
        false
    }

    fn wait_fd(&self) -> RawFd {
        self.wait.as_raw_fd()
    }

    fn pid(&self) -> Option<u32> {
        None
    }

    fn kill(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(vm: &mut FakeVm) -> Vec<VmEvent> {
        let mut events = Vec::new();
        vm.poll(&mut events);
        events
    }

    fn outputs(vm: &mut FakeVm) -> Vec<Frame> {
        let mut frames = Vec::new();
        vm.take_outputs(usize::MAX, &mut frames);
        frames
    }

    /// Same inputs, same outputs; memory differs in the noise only, and after a sync not at all.
    #[test]
    fn two_fakes_do_the_same_and_can_be_synced() {
        let (mut a, mut b) = (FakeVm::new(16, Some(1)), FakeVm::new(16, Some(2)));
        for vm in [&mut a, &mut b] {
            vm.command(VmCommand::Resume);
            assert_eq!(events(vm), [VmEvent::Started, VmEvent::Resumed]);
            for n in 0..50u8 {
                assert!(vm.feed(&Frame(vec![n; 60])));
            }
            assert!(!vm.consumed_all());
            assert_eq!(vm.run(), 50);
        }
        let first = outputs(&mut a);
        assert_eq!(first.len(), 50);
        assert_eq!(first, outputs(&mut b));
        assert_ne!(a.memory, b.memory, "noise was asked for");

        b.feed(&Frame(vec![9; 60]));
        b.run();
        a.command(VmCommand::Pause);
        b.command(VmCommand::Pause);
        a.command(VmCommand::SaveState);
        let Some(VmEvent::StateSaved(state)) = events(&mut a).pop() else {
            panic!()
        };
        let mut union = PageSet::new(16);
        a.scan_dirty(&mut union).unwrap();
        b.scan_dirty(&mut union).unwrap();
        let mut page = [0; PAGE_BYTES];
        for at in union.iter() {
            a.read_page(at, &mut page);
            b.write_page(at, &page);
        }
        b.command(VmCommand::LoadState(state));
        assert_eq!(events(&mut b).pop(), Some(VmEvent::StateLoaded));
        assert_eq!(a.memory, b.memory);
        outputs(&mut b);
        for vm in [&mut a, &mut b] {
            vm.command(VmCommand::Resume);
            vm.feed(&Frame(vec![7]));
            vm.run();
        }
        assert_eq!(outputs(&mut a), outputs(&mut b));
    }

    #[test]
    fn a_failed_order_and_a_death_are_told() {
        let mut vm = FakeVm::new(4, None);
        vm.fail_next("no");
        vm.command(VmCommand::Pause);
        assert!(matches!(events(&mut vm)[1], VmEvent::Failed { .. }));
        vm.command(VmCommand::LoadState(vec![1]));
        assert!(matches!(events(&mut vm)[0], VmEvent::Failed { .. }));
        vm.die("gone");
        vm.command(VmCommand::Resume);
        assert_eq!(events(&mut vm), [VmEvent::Died("gone".into())]);
    }
}
