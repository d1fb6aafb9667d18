//! From starting the process to a guest that takes orders.

use super::disks::Sizes;
use super::links::{AgentLink, Answer, OrderLink};
use super::process::{self, Ends, Process};
use super::{AGENT, CONSOLE, GUEST_AGENT, NIC, ORDERS, PROCESS, QMP, STDERR, WAKE};
use super::{Heard, Loads, Orders, Phase, Purpose, QemuVm};
use crate::clean::Channel;
use crate::console::Console;
use crate::cpu_clock::CpuClock;
use crate::device_state::StateFile;
use crate::dirty::DirtyTracker;
use crate::nics::Nics;
use crate::qmp::Qmp;
use crate::ram::Ram;
use crate::regions::Regions;
use crate::thread_state::ThreadState;
use crate::written::WrittenLog;
use crate::{Accel, QemuConfig, VmError, VmEvent};
use plover_agent::{AGENT_VERSION, HELLO_KEEPS_CODE, Op};
use plover_disk::Attachment;
use plover_types::{PAGE_BYTES, PageNo};
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::time::Instant;

/// Bytes of frames that may wait in the sockets of the guest's NICs, and as many again before them. More are refused, as by
/// the queue of a NIC. At 10 Gbit/s they come in 1.6 ms. A sync sends what is left of both in one message, of which the
/// bulk lane takes 8 MiB.
const FEED_BYTES_MAX: usize = 2 << 20;

impl QemuVm {
    /// Starts QEMU; `disks` are those of [`QemuConfig::disks`]. [`VmEvent::Started`] follows when QEMU
    /// is ready. The guest does not run before the first [`crate::VmCommand::Resume`].
    ///
    /// Call it on a thread that lives as long as the guest: the kernel kills QEMU when the *thread* that
    /// started it ends, so that a guest never outlives its replica.
    ///
    /// With [`Accel::Auto`], it calls [`crate::choose_accel`], which takes up to a second if nobody has called
    /// it before.
    pub fn spawn(config: QemuConfig, mut disks: Option<Attachment>) -> Result<Self, VmError> {
        config.validate()?;
        let connections = disks.iter().flat_map(Attachment::connections);
        assert_eq!(
            connections.count(),
            config.disks.len(),
            "a connection for each disk"
        );
        let accel = crate::choose_accel(&config).accel;
        let ram = memory(&config)?;
        let regions = Regions {
            ram: &ram,
            disks: disks.as_ref(),
        };
        let loads = Loads::new(regions.layout().pages());
        // QEMU hears these sizes when it connects; nothing changes them before.
        let sizes = Sizes::new(disks.as_ref().map(Attachment::sizes).unwrap_or_default());
        let state_file = StateFile::new()?;
        let log = WrittenLog::new(config.machine_ram_bytes() / PAGE_BYTES)?;
        let nics = Nics::new(config.nics.len(), FEED_BYTES_MAX)?;
        let console = Console::new()?;
        let guest_agent = config.agent.then(Console::new).transpose()?;
        let (mut agent, agent_end) = AgentLink::new()?;
        let (order_link, order_end) = OrderLink::new()?;
        let (stream, cloexec) = (SocketType::STREAM, SocketFlags::CLOEXEC);
        let (qmp, qmp_end) = socketpair(AddressFamily::UNIX, stream, cloexec, None)
            .map_err(VmError::io("making the QMP socket"))?;
        let ends = Ends {
            ram: ram.fd(),
            state: state_file.fd(),
            log: log.fd(),
            nics: nics
                .iter()
                .map(|nic| (nic.qemu_fd(), nic.agreed_fd()))
                .collect(),
            qmp: qmp_end.as_fd(),
            console: console.qemu_fd(),
            guest_agent: guest_agent.as_ref().map(Console::qemu_fd),
            agent: agent_end.as_fd(),
            orders: order_end.as_fd(),
            disks: disks.iter().flat_map(Attachment::connections).collect(),
        };
        let made = super::words::Made::by_files(&config);
        let process = Process::spawn(&config, accel, &ends)?;
        disks.iter_mut().for_each(Attachment::close_connections);
        agent.ask(Op::Hello, 0, 0).map_err(asking_the_agent)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(VmError::io("making an epoll set"))?;
        let qmp = Qmp::new(qmp);
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(VmError::io("making an eventfd"))?;
        let guest_agent_fd = guest_agent.as_ref().map(|it| (GUEST_AGENT, it.fd()));
        let watched = [
            (QMP, qmp.fd()),
            (AGENT, agent.fd()),
            (ORDERS, order_link.fd()),
            (CONSOLE, console.fd()),
            (STDERR, process.stderr()),
            (PROCESS, process.pidfd()),
            (WAKE, wake.as_fd()),
        ];
        let nic_fds = nics.fds().map(|fd| (NIC, fd));
        for (tag, fd) in watched.into_iter().chain(nic_fds).chain(guest_agent_fd) {
            let tag = epoll::EventData::new_u64(tag);
            epoll::add(&epoll, fd, tag, epoll::EventFlags::IN)
                .map_err(VmError::io("adding to an epoll set"))?;
        }
        tracing::info!(event = "qemu_started", pid = process.pid(), machine = %config.machine, %accel, "QEMU started");
        Ok(Self {
            config,
            accel,
            made,
            process,
            ram,
            disks,
            state_file,
            nics,
            console,
            guest_agent,
            qmp,
            agent,
            order_link,
            order_end: order_end.as_raw_fd(),
            placed: 0,
            log,
            trackers: Vec::new(),
            tracked_next: 0,
            clean: Channel::default(),
            epoll,
            sizes,
            phase: Phase::Hello,
            started: Instant::now(),
            heard: Heard::default(),
            orders: Orders::new(),
            loads,
            vcpu_clocks: Vec::new(),
            thread_states: Vec::new(),
            last_busy: AtomicUsize::new(0),
            hears_outputs: true,
            events: VecDeque::new(),
            wake,
        })
    }

    pub(super) fn greeted(&mut self, about: &Value) {
        if std::mem::replace(&mut self.heard.qmp, true) {
            return self.give_up("a second QMP greeting");
        }
        self.made.version = super::words::version(about);
        self.send(
            Purpose::Quiet("qmp_capabilities"),
            "qmp_capabilities",
            Value::Null,
        );
        self.send(Purpose::ListVcpus, "query-cpus-fast", Value::Null);
    }

    /// Opens the vCPU threads' clocks.
    pub(super) fn vcpus_listed(&mut self, list: &Value) {
        let pid = self.process.pid();
        let threads: Vec<i32> = list
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|vcpu| vcpu.get("thread-id")?.as_i64()?.try_into().ok())
            .collect();
        if threads.len() != self.config.vcpus as usize {
            return self.give_up("QEMU has other vCPUs than it was told to make");
        }
        let clocks: std::io::Result<Vec<_>> = threads
            .iter()
            .map(|tid| CpuClock::open(pid, *tid))
            .collect();
        // The main thread, whose id is the process id, carries frames between NIC and socket.
        let states: std::io::Result<Vec<_>> = threads
            .iter()
            .chain([&(pid as i32)])
            .map(|tid| ThreadState::open(pid, *tid))
            .collect();
        match (clocks, states) {
            (Ok(clocks), Ok(states)) => {
                self.vcpu_clocks = clocks;
                self.thread_states = states;
            }
            (Err(error), _) | (_, Err(error)) => {
                return self.give_up(&format!("reading vCPU time: {error}"));
            }
        }
        self.heard.vcpus = true;
        self.ask_what_was_made(&list[0]["qom-path"]);
    }

    /// Asks for the machine's versioned name and for the first vCPU's features.
    fn ask_what_was_made(&mut self, vcpu: &Value) {
        let type_of = json!({"path": "/machine", "property": "type"});
        self.send(Purpose::MachineType, "qom-get", type_of);
        let features_of = json!({"path": vcpu, "property": "feature-words"});
        self.send(Purpose::Features, "qom-get", features_of);
    }

    pub(super) fn features_said(&mut self, words: &Value) {
        self.made.features = super::words::features(words);
        self.heard.features = true;
        self.track_if_ready();
    }

    pub(super) fn agent_answered(&mut self, answer: Answer<Op>) {
        let status = std::io::Error::from_raw_os_error(answer.reply.status);
        match answer.to {
            Op::Hello if answer.reply.value & 0xffff != u32::from(AGENT_VERSION) => {
                self.give_up(
                    "the agent inside QEMU is of another version than this program: install both \
                     from one build",
                );
            }
            Op::Hello => {
                if let Some(symbol) = crate::check::missing_symbol(answer.reply.value) {
                    let binary = process::binary(&self.config);
                    return self.give_up(&crate::check::exports_too_little(&binary, symbol));
                }
                let keeps_code = answer.reply.value & HELLO_KEEPS_CODE != 0;
                self.loads.keeps_code = self.accel == Accel::Tcg && keeps_code;
                self.heard.agent = true;
                self.track_if_ready();
            }
            Op::Log if answer.reply.status != 0 => {
                self.give_up(&format!(
                    "QEMU keeps no log of written pages for Plover: {status}; this QEMU is unlike any that Plover knows: use a \
                     distribution's QEMU 7.2 or newer"
                ));
            }
            Op::Log => self.ask_to_track(),
            Op::Flash | Op::Display if answer.reply.status != 0 => {
                self.cannot_place(answer.to, &status);
            }
            Op::Flash | Op::Display => {
                self.placed += 1;
                self.place_or_track();
            }
            Op::Track => match answer.fd {
                Some(fd) if answer.reply.status == 0 => self.tracking(fd),
                _ => self.give_up(&format!(
                    "QEMU's memory cannot be tracked: {status}; Linux 6.7 or newer is needed for a guest with UEFI or a \
                     display"
                )),
            },
            Op::Orders if answer.reply.status != 0 => {
                self.give_up(&format!("QEMU could not be made to take orders: {status}"));
            }
            Op::Orders => self.ready(),
        }
    }

    /// Asks for the tracker once the agent and QMP have both answered.
    fn track_if_ready(&mut self) {
        let heard = self.heard;
        if self.phase != Phase::Hello || !(heard.agent && heard.vcpus && heard.features) {
            return;
        }
        self.phase = Phase::Track;
        self.place_or_track();
    }

    /// Asks for the first memory of a device that is not in its place, or for the log if all is.
    fn place_or_track(&mut self) {
        let devices = self.config.device_memory();
        let Some((op, part)) = devices.get(self.placed) else {
            return self.ask_to_log();
        };
        let file = self.ram.fd().as_raw_fd() as u32;
        let bytes = (part.end - part.start) as u32;
        if let Err(error) = self.agent.ask_to_place(*op, file, part.start, bytes) {
            self.give_up(&format!("asking the agent: {error}"));
        }
    }

    fn cannot_place(&mut self, op: Op, why: &std::io::Error) {
        let what = match op {
            Op::Display => "the picture of its display",
            _ => "the variables of UEFI",
        };
        self.give_up(&format!(
            "{what} cannot be made memory of the guest with this QEMU: {why}; use a build with modules (the qemu-system \
             packages of Debian, Ubuntu and Fedora)"
        ));
    }

    /// The device's memory that the next tracker tracks. `None`: all have one.
    fn untracked(&self) -> Option<Range<u64>> {
        let devices = self.config.device_memory().into_iter();
        devices.map(|it| it.1).nth(self.trackers.len())
    }

    /// Asks for QEMU's log of what is written of the machine's RAM.
    fn ask_to_log(&mut self) {
        let part = self.config.machine_ram();
        let bytes = part.end - part.start;
        let file = self.log.fd().as_raw_fd() as u32;
        let asked = self
            .ram
            .find_in(self.process.pid(), part)
            .and_then(|start| {
                let asked = self.agent.ask_to_log(start, bytes, file);
                asked.map_err(asking_the_agent)
            });
        if let Err(error) = asked {
            self.give_up(&error.to_string());
        }
    }

    /// Asks for the tracker of the first device's memory that has none.
    fn ask_to_track(&mut self) {
        let Some(part) = self.untracked() else {
            return self.take_orders();
        };
        let bytes = part.end - part.start;
        let asked = self
            .ram
            .find_in(self.process.pid(), part)
            .and_then(|start| {
                self.tracked_next = start;
                let asked = self.agent.ask(Op::Track, start, bytes);
                asked.map_err(asking_the_agent)
            });
        if let Err(error) = asked {
            self.give_up(&error.to_string());
        }
    }

    fn tracking(&mut self, userfaultfd: OwnedFd) {
        let pid = self.process.pid();
        let Some(part) = self.untracked() else {
            return self.give_up("the agent tracks more than it was asked to");
        };
        let bytes = (part.end - part.start) as usize;
        let first = PageNo((part.start / PAGE_BYTES as u64) as u32);
        let start = self.tracked_next;
        match DirtyTracker::new(pid, userfaultfd, start, bytes, first) {
            Ok(tracker) => self.trackers.push(tracker),
            Err(error) => return self.give_up(&error.to_string()),
        }
        self.ask_to_track();
    }

    /// Makes QEMU listen to the orders' socket.
    fn take_orders(&mut self) {
        let file = self.state_file.fd().as_raw_fd();
        let (socket, file) = (self.order_end as u64, file as u64);
        if let Err(error) = self.agent.ask(Op::Orders, socket, file) {
            self.give_up(&format!("asking the agent: {error}"));
        }
    }

    fn ready(&mut self) {
        if self.phase == Phase::Track {
            self.phase = Phase::Ready;
            self.events.push_back(VmEvent::Started);
        }
        self.next_order();
    }
}

fn asking_the_agent(source: std::io::Error) -> VmError {
    VmError::Io {
        what: "asking the agent".into(),
        source,
    }
}

/// The guest's memory: all zero, but for the flash memory of UEFI.
fn memory(config: &QemuConfig) -> Result<Ram, VmError> {
    let ram = config.machine_ram_bytes();
    let mut memory = Ram::new(config.ram_pages() as usize * PAGE_BYTES)?;
    let Some(new) = config.firmware.new_variables() else {
        return Ok(memory);
    };
    let mut flash = config.flash.clone();
    if flash.is_empty() {
        flash = std::fs::read(new).map_err(|source| VmError::Io {
            what: format!("reading the variables of a new machine, {}", new.display()),
            source,
        })?;
    }
    if flash.len() != config.flash_bytes() {
        return Err(VmError::Unsupported(format!(
            "{} has {} bytes, not {}: it is of another build of OVMF than any that Plover knows",
            new.display(),
            flash.len(),
            config.flash_bytes()
        )));
    }
    for (i, page) in flash.chunks_exact(PAGE_BYTES).enumerate() {
        memory.write(PageNo((ram / PAGE_BYTES + i) as u32), page);
    }
    Ok(memory)
}
