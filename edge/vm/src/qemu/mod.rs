//! A guest under a stock QEMU, driven from outside.
//!
//! ```text
//!                     ┌──────────────── QEMU ────────────────┐
//!   QMP ◄────────────►│ monitor                              │
//!   agent ◄──────────►│ agent thread (LD_PRELOAD)            │
//!   orders ◄─────────►│ main loop, by the agent              │
//!   NIC ◄────────────►│ virtio-net                           │
//!   console ◄────────►│ UART                                 │
//!   RAM (memfd) ══════│ guest RAM   device state (memfd) ════│
//!   disks (NBD) ◄────►│ virtio-blk, SCSI, IDE                │
//!   viewers ─────────►│ VNC server, VGA (memory above)       │
//!   pidfd, stderr ◄───│                                      │
//!                     └──────────────────────────────────────┘
//! ```
//!
//! All of them are descriptors that QEMU inherits: no path leads to the guest, and only the process must
//! be cleaned up. They are in one epoll set, and [`QemuVm::poll`] turns what they report into events.
//!
//! # States
//!
//! ```text
//!   Hello ──────────► Track ──────────► Ready ──────────► Gone
//!   (QMP and agent    (what is          (Started; orders  (Died, or killed;
//!    answer, vCPUs     written will      are carried       no more events)
//!    are known)        be known)         out)
//! ```
//!
//! A failure before `Ready`, or a message on QMP or the agent's sockets that cannot be understood, ends
//! the process and is reported as [`VmEvent::Died`] with the reason.
//!
//! # Orders
//!
//! One order is open at a time, except that `SaveState` is sent right behind a pause, and a pause behind `Collect`: that
//! saves a wake-up of this process while the guest is paused. A failed order drops later ones, so that no
//! guest runs on a wrong state.

mod command_line;
mod disks;
mod display;
pub(crate) mod links;
mod load;
mod methods;
mod orders;
mod power;
pub(crate) mod process;
mod startup;
pub(crate) mod words;

use crate::clean::Channel;
use crate::console::Console;
use crate::cpu_clock::CpuClock;
use crate::device_state::StateFile;
use crate::dirty::DirtyTracker;
use crate::nics::Nics;
use crate::qmp::{Incoming, Qmp, QmpError};
use crate::ram::Ram;
use crate::regions::Regions;
use crate::thread_state::ThreadState;
use crate::written::WrittenLog;
use crate::{Accel, QemuConfig, VmEvent};
use disks::Sizes;
use links::{AgentLink, OrderLink};
use load::Loads;
use orders::{Orders, Purpose};
use plover_disk::Attachment;
use process::Process;
use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use serde_json::Value;
use std::collections::VecDeque;
use std::sync::atomic::AtomicUsize;
use std::time::Instant;

/// See "States" above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Waiting for QMP, the agent's hello, the list of vCPUs and what machine this is.
    Hello,
    /// Waiting for QEMU's log of written pages, and for the trackers of other memory.
    Track,
    /// Carrying out orders.
    Ready,
    /// Ended.
    Gone,
}

/// The answers that have come while QEMU starts.
#[derive(Clone, Copy, Debug, Default)]
struct Heard {
    qmp: bool,
    agent: bool,
    vcpus: bool,
    features: bool,
}

/// Tags of the descriptors in the epoll set.
const NIC: u64 = 0;
const QMP: u64 = 1;
const AGENT: u64 = 2;
const CONSOLE: u64 = 3;
const STDERR: u64 = 4;
const PROCESS: u64 = 5;
const WAKE: u64 = 6;
const ORDERS: u64 = 7;
const GUEST_AGENT: u64 = 8;

/// One guest under a stock QEMU; see the module.
pub struct QemuVm {
    config: QemuConfig,
    accel: Accel,
    /// The machine as QEMU itself says.
    made: words::Made,
    process: Process,
    ram: Ram,
    disks: Option<Attachment>,
    /// The sizes that QEMU knows of.
    sizes: Sizes,
    state_file: StateFile,
    nics: Nics,
    console: Console,
    /// The channel to the agent in the guest. (`agent` is plover's own, inside QEMU.)
    guest_agent: Option<Console>,
    qmp: Qmp<Purpose>,
    agent: AgentLink,
    order_link: OrderLink,
    /// The descriptor's number of QEMU's end, which is the same in QEMU.
    order_end: i32,
    /// How many devices have memory of the guest's in the place of their own.
    placed: usize,
    /// QEMU's log of written pages of the machine's RAM.
    log: WrittenLog,
    /// Of each of these devices' memory, once the guest has started.
    trackers: Vec<DirtyTracker>,
    /// Where in QEMU the part lies that the agent makes a tracker for.
    tracked_next: u64,
    /// Words of programs in the guest about their replies.
    clean: Channel,
    epoll: OwnedFd,
    phase: Phase,
    /// When the process was started.
    started: Instant,
    heard: Heard,
    orders: Orders,
    loads: Loads,
    vcpu_clocks: Vec<CpuClock>,
    /// The states of the vCPU threads and the main thread.
    thread_states: Vec<ThreadState>,
    /// The place in it of the thread that was last found busy.
    last_busy: AtomicUsize,
    /// Whether the guest's frames make the epoll set readable.
    hears_outputs: bool,
    events: VecDeque<VmEvent>,
    /// Readable while there are events that no other descriptor reports.
    wake: OwnedFd,
}

impl QemuVm {
    /// The chosen accelerator: never [`Accel::Auto`].
    pub fn accel(&self) -> Accel {
        self.accel
    }

    /// Ends QEMU and reports why.
    fn give_up(&mut self, why: &str) {
        if self.phase == Phase::Gone {
            return;
        }
        self.end();
        self.process.read_stderr();
        let words = self.process.last_words();
        // If a disk failed, that is the reason for QEMU's end, whatever its error output says.
        let why = match self.disks.as_ref().and_then(Attachment::failure) {
            Some(failure) => failure,
            None => format!("{why}{words}"),
        };
        self.events.push_back(VmEvent::Died(why));
    }

    /// RAM and disks, as pages with one numbering.
    fn regions(&self) -> Regions<'_> {
        Regions {
            ram: &self.ram,
            disks: self.disks.as_ref(),
        }
    }

    /// Ends the process and drops all orders. Nobody waits for the end of the process.
    fn end(&mut self) {
        self.phase = Phase::Gone;
        self.orders.clear();
        self.process.signal();
        // Closed descriptors poll readable for ever. Only the NIC, the console and the guest's agent
        // may still hold data.
        let Self {
            process,
            qmp,
            agent,
            order_link,
            ..
        } = &*self;
        for fd in [
            process.pidfd(),
            process.stderr(),
            qmp.fd(),
            agent.fd(),
            order_link.fd(),
        ] {
            self.unwatch(fd);
        }
    }

    fn unwatch(&self, fd: BorrowedFd<'_>) {
        // Fails if it is not in the set any more.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Handles all ready descriptors.
    fn pump(&mut self) {
        let mut ready = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; 8];
        let zero = rustix::time::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let Ok(count) = epoll::wait(&self.epoll, &mut ready, Some(&zero)) else {
            return;
        };
        let tags: Vec<u64> = ready[..count]
            .iter()
            .map(|event| event.data.u64())
            .collect();
        if tags.contains(&WAKE) {
            let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
        }
        // Error output first and the end last, so that a death is reported with its reason, after the
        // last answers.
        if tags.contains(&STDERR) && !self.process.read_stderr() {
            self.unwatch(self.process.stderr());
        }
        if tags.contains(&AGENT) {
            self.hear_agent();
        }
        if tags.contains(&ORDERS) {
            self.hear_of_orders();
        }
        if tags.contains(&QMP) {
            self.hear_qmp();
        }
        if tags.contains(&PROCESS) && self.phase != Phase::Gone {
            if let Some(how) = self.process.ended() {
                self.end();
                let how = format!("QEMU has ended, {how}");
                self.events.push_back(VmEvent::Died(how));
            }
        }
    }

    fn hear_agent(&mut self) {
        while self.phase != Phase::Gone {
            match self.agent.receive() {
                Ok(None) => return,
                Ok(Some(answer)) => self.agent_answered(answer),
                // The end of the process closes the socket, too, and is reported with more detail.
                Err(_) => {
                    self.unwatch(self.agent.fd());
                    if !self.process_ending() {
                        self.give_up(
                            "the agent inside QEMU did not start, or ended (is QEMU static, or \
                             LD_PRELOAD disabled?)",
                        );
                    }
                    return;
                }
            }
        }
    }

    fn hear_of_orders(&mut self) {
        while self.phase != Phase::Gone {
            match self.order_link.receive() {
                Ok(None) => return,
                Ok(Some(answer)) => {
                    // What QEMU has said before it answered: that the guest has ended, above all. Heard later, a machine
                    // that is paused then, and whose state is replaced, would never be reset.
                    self.hear_qmp();
                    if self.phase == Phase::Gone {
                        return;
                    }
                    let result = answer.result();
                    self.answered(answer.to, result.map(|()| Value::Null));
                }
                Err(error) => {
                    self.unwatch(self.order_link.fd());
                    if !self.process_ending() {
                        self.give_up(&format!("QEMU takes no orders any more: {error}"));
                    }
                    return;
                }
            }
        }
    }

    fn hear_qmp(&mut self) {
        self.qmp.begin_turn();
        while self.phase != Phase::Gone {
            match self.qmp.receive() {
                Ok(None) => return,
                Ok(Some(Incoming::Greeting(about))) => {
                    tracing::debug!(%about, "QMP is up");
                    self.greeted(&about);
                }
                Ok(Some(Incoming::Answer { tag, result })) => self.answered(tag, result),
                Ok(Some(Incoming::Event { name, data })) => self.happened(&name, &data),
                Err(QmpError::Closed) => {
                    self.unwatch(self.qmp.fd());
                    if !self.process_ending() {
                        self.give_up("QEMU closed its QMP connection");
                    }
                    return;
                }
                Err(error) => return self.give_up(&error.to_string()),
            }
        }
    }

    fn send(&mut self, purpose: Purpose, execute: &str, arguments: Value) {
        if let Err(error) = self.qmp.send(purpose, execute, arguments) {
            if error != QmpError::Closed || !self.process_ending() {
                self.give_up(&error.to_string());
            }
        }
    }

    /// Whether a socket closed because the process ends. The end is then reported in a moment, with the exit
    /// status: a dying process closes its descriptors shortly before it can be waited for.
    fn process_ending(&self) -> bool {
        let mut fds = [rustix::event::PollFd::new(
            &self.process,
            rustix::event::PollFlags::IN,
        )];
        let grace = rustix::time::Timespec {
            tv_sec: 0,
            tv_nsec: 50_000_000,
        };
        rustix::event::poll(&mut fds, Some(&grace)).is_ok_and(|ready| ready > 0)
    }
}

impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd()
    }
}
