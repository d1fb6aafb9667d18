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
//!   pidfd, stderr ◄───│                                      │
//!                     └──────────────────────────────────────┘
//! ```
//!
//! All of them are descriptors that QEMU inherits: there is no path by which anybody else could
//! reach the guest, and nothing to clean up but the process. They are in one epoll set, and
//! [`QemuVm::poll`] turns what they say into events.
//!
//! # Life
//!
//! ```text
//!   Hello ──────────► Track ──────────► Ready ──────────► Gone
//!   (QMP and agent    (the agent        (Started; orders  (Died, or killed;
//!    answer, vCPUs     hands out the     are carried       no more events)
//!    are known)        tracker)          out)
//! ```
//!
//! Anything that goes wrong before `Ready`, and anything on QMP or the agent's sockets that cannot
//! be understood, ends the process and is reported as [`VmEvent::Died`] with the reason.
//!
//! # Orders
//!
//! One is in the works at a time, except that what may follow a pause (`SaveState`, `Reset`) is
//! sent right behind it: that saves a wake-up of this process while the guest stands. A failed
//! order drops those behind it, so that nothing runs on a state that is not what was asked for.

pub(crate) mod agent_link;
mod command_line;
mod load;
mod methods;
mod order_link;
mod orders;
pub(crate) mod process;
mod startup;

use crate::console::Console;
use crate::cpu_clock::CpuClock;
use crate::device_state::StateFile;
use crate::dirty::DirtyTracker;
use crate::nic::Nic;
use crate::qmp::{Incoming, Qmp, QmpError};
use crate::ram::Ram;
use crate::regions::Regions;
use crate::thread_state::ThreadState;
use crate::{Accel, QemuConfig, VmError, VmEvent};
use agent_link::AgentLink;
use load::Loads;
use order_link::OrderLink;
use orders::{Orders, Purpose};
use plover_agent::Op;
use plover_disk::Attachment;
use process::{Ends, Process};
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use serde_json::Value;
use std::collections::VecDeque;

/// Where the hypervisor is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Waiting for QMP, the agent's hello and the list of vCPUs.
    Hello,
    /// Waiting for the userfaultfd.
    Track,
    /// Carrying out orders.
    Ready,
    /// Ended.
    Gone,
}

/// Who has been heard of while starting.
#[derive(Clone, Copy, Debug, Default)]
struct Heard {
    qmp: bool,
    agent: bool,
    vcpus: bool,
}

/// What in the epoll set has something to say.
const NIC: u64 = 0;
const QMP: u64 = 1;
const AGENT: u64 = 2;
const CONSOLE: u64 = 3;
const STDERR: u64 = 4;
const PROCESS: u64 = 5;
const WAKE: u64 = 6;
const ORDERS: u64 = 7;

/// One guest under a stock QEMU; see the module.
pub struct QemuVm {
    config: QemuConfig,
    accel: Accel,
    process: Process,
    ram: Ram,
    disks: Option<Attachment>,
    state_file: StateFile,
    nic: Nic,
    console: Console,
    qmp: Qmp<Purpose>,
    agent: AgentLink,
    order_link: OrderLink,
    /// The number of QEMU's end of it, which is the same here and there.
    order_end: i32,
    /// Whether QEMU takes orders over it.
    direct: bool,
    tracker: Option<DirtyTracker>,
    epoll: OwnedFd,
    phase: Phase,
    heard: Heard,
    orders: Orders,
    loads: Loads,
    /// Whether QEMU's yank instance is registered, as a load needs.
    armed: bool,
    vcpu_clocks: Vec<CpuClock>,
    /// Of the vCPU threads and the main thread.
    thread_states: Vec<ThreadState>,
    /// Whether the guest's frames make the epoll set readable.
    hears_outputs: bool,
    events: VecDeque<VmEvent>,
    /// Readable while there are events that no descriptor of QEMU's announces.
    wake: OwnedFd,
}

impl QemuVm {
    /// Starts QEMU. [`VmEvent::Started`] follows when it is ready; the guest does not run before
    /// the first [`crate::VmCommand::Resume`].
    ///
    /// Call it on a thread that lives as long as the guest shall: the kernel kills QEMU when the
    /// *thread* that started it ends, which is how a guest never outlives its replica.
    ///
    /// With [`Accel::Auto`], the first call in a process tries KVM, which takes up to a second.
    pub fn spawn(config: QemuConfig) -> Result<Self, VmError> {
        Self::spawn_with_disks(config, None)
    }

    /// [`QemuVm::spawn`] for a guest whose [`QemuConfig::disks`] are those of `disks`.
    pub fn spawn_with_disks(
        config: QemuConfig,
        mut disks: Option<Attachment>,
    ) -> Result<Self, VmError> {
        config.validate()?;
        let connections = disks.iter().flat_map(Attachment::connections);
        assert_eq!(
            connections.count(),
            config.disks.len(),
            "a connection for each disk"
        );
        let accel = crate::choose_accel(&config).accel;
        let ram = Ram::new(config.ram_bytes())?;
        let regions = Regions {
            ram: &ram,
            disks: disks.as_ref(),
        };
        let loads = Loads::new(regions.layout().pages());
        let state_file = StateFile::new()?;
        let nic = Nic::new(config.feed_frames)?;
        let console = Console::new()?;
        let (mut agent, agent_end) = AgentLink::new()?;
        let (order_link, order_end) = OrderLink::new()?;
        let (qmp, qmp_end) = socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(VmError::io("making the QMP socket"))?;
        let ends = Ends {
            ram: ram.fd(),
            state: state_file.fd(),
            nic: nic.qemu_fd(),
            qmp: qmp_end.as_fd(),
            console: console.qemu_fd(),
            agent: agent_end.as_fd(),
            orders: order_end.as_fd(),
            disks: disks.iter().flat_map(Attachment::connections).collect(),
        };
        let process = Process::spawn(&config, accel, &ends)?;
        disks.iter_mut().for_each(Attachment::close_connections);
        agent.ask(Op::Hello, 0, 0).map_err(|source| VmError::Io {
            what: "asking the agent".into(),
            source,
        })?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(VmError::io("making an epoll set"))?;
        let qmp = Qmp::new(qmp);
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(VmError::io("making an eventfd"))?;
        for (tag, fd) in [
            (NIC, nic.fd()),
            (QMP, qmp.fd()),
            (AGENT, agent.fd()),
            (ORDERS, order_link.fd()),
            (CONSOLE, console.fd()),
            (STDERR, process.stderr()),
            (PROCESS, process.pidfd()),
            (WAKE, wake.as_fd()),
        ] {
            epoll::add(
                &epoll,
                fd,
                epoll::EventData::new_u64(tag),
                epoll::EventFlags::IN,
            )
            .map_err(VmError::io("adding to an epoll set"))?;
        }
        tracing::info!(pid = process.pid(), machine = %config.machine, %accel, "QEMU started");
        Ok(Self {
            config,
            accel,
            process,
            ram,
            disks,
            state_file,
            nic,
            console,
            qmp,
            agent,
            order_link,
            order_end: order_end.as_raw_fd(),
            direct: false,
            tracker: None,
            epoll,
            phase: Phase::Hello,
            heard: Heard::default(),
            orders: Orders::default(),
            loads,
            armed: false,
            vcpu_clocks: Vec::new(),
            thread_states: Vec::new(),
            hears_outputs: true,
            events: VecDeque::new(),
            wake,
        })
    }

    /// What runs the guest's instructions: never [`Accel::Auto`].
    pub fn accel(&self) -> Accel {
        self.accel
    }

    /// The hypervisor is of no more use: ends it and says why.
    fn give_up(&mut self, why: &str) {
        if self.phase == Phase::Gone {
            return;
        }
        self.end();
        self.process.read_stderr();
        let words = self.process.last_words();
        // A failed disk is why QEMU stopped, whatever it calls that.
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

    /// Ends the process and forgets what was to be done.
    fn end(&mut self) {
        self.phase = Phase::Gone;
        self.orders.clear();
        self.process.kill();
        // What has ended polls readable for ever; only the NIC and the console may still hold
        // something to be fetched.
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
        // Fails when it is out of the set already.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Handles what the epoll set says is there.
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
        // Error output first and the end last, so that a death is told with its reason, after
        // what QEMU had still answered.
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
                self.events.push_back(VmEvent::Died(how));
            }
        }
    }

    fn hear_agent(&mut self) {
        while self.phase != Phase::Gone {
            match self.agent.receive() {
                Ok(None) => return,
                Ok(Some(answer)) => self.agent_answered(answer),
                // The end of the process, which is told with more detail, closes the socket too.
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
                Ok(Some((purpose, result))) => self.answered(purpose, result.map(|()| Value::Null)),
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
        while self.phase != Phase::Gone {
            match self.qmp.receive() {
                Ok(None) => return,
                Ok(Some(Incoming::Greeting { version, package })) => {
                    tracing::debug!(?version, package, "QMP is up");
                    self.greeted();
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

    /// Whether a closed socket is the sign of an ending process, whose end will be told in a
    /// moment with its exit status. A dying process closes its descriptors shortly before it can
    /// be waited for.
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
