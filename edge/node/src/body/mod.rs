//! The loop.

mod agent;
mod answers;
mod backup;
mod carry_out;
mod control;
mod display;
mod ending;
mod failover;
mod guest;
mod inputs;
mod members;
mod memory;
mod open;
mod printed;
mod relay;
mod reload;
mod resize;
mod restore;
mod second;
mod sources;
mod start;
mod unsent;
mod waiting;
mod work;

use self::agent::AgentLine;
use self::answers::Answers;
use self::backup::Backup;
use self::display::Viewers;
use self::ending::Ending;
use self::failover::{Failover, LostLeads};
pub(crate) use self::inputs::Asker;
use self::inputs::Inputs;
use self::members::Silence;
use self::printed::Printed;
use self::relay::Relay;
use self::resize::Resizing;
use self::restore::Restoring;
use self::start::{GuestStarter, Starting};
use self::unsent::Unsent;
use self::waiting::Waiting;
use self::work::Work;
use crate::announce::Announcement;
use crate::background::Background;
use crate::config::{ConfigFile, ReplicaConfig};
use crate::control::{ConsoleOutput, Control, StopHandle};
use crate::death::{Reporter, Reports, SentOn};
use crate::histogram::Histogram;
use crate::metrics::{Failures, HeldOutputs, SyncMetrics};
use crate::pack::Packer;
use crate::recent::RecentLog;
use crate::service::Service;
use crate::storage::Storage;
use crate::supervisor::ThisProcess;
use crate::tap::Taps;
use crate::trace::Trace;
use crate::uplink::Uplink;
use crate::variables::Variables;
use crate::{clock, host};
use plover_disk::Disks;
use plover_fabric::{BoxedFabric, Keys, Spin};
use plover_replica::{Action, Area, Event, JobId, Replica, Role, Watch};
use plover_types::{Micros, PageLayout, PageNo, ReplicaId, SyncNo};
use plover_vm::{QemuConfig, QemuVm};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Pid;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The most frames taken from the TAP or the guest at once; they become one batch, one log entry.
const FRAMES_PER_TURN: usize = 256;

/// Bytes of frames taken from the TAP after which no more are. A log entry has to fit into one message (1 MiB), also with the
/// last frame, of up to 64 KiB, and with those that another replica has sent on.
const INPUT_BYTES_PER_TURN: usize = 256 << 10;

/// How long one turn works on waiting bulk records, and how long on waiting reads, after the first of
/// each. The others hear nothing of this replica meanwhile.
const WORK_A_TURN: Micros = Micros::from_ms(2);
/// A loop that wakes this much later than it meant to runs on a busy host. Heartbeats are as far apart.
const LATE: Micros = Micros::from_ms(25);

/// How long it then comes first.
const FIRST_FOR: Micros = Micros::from_ms(600_000);

/// Freed memory that this process keeps: the pages of a few usual slots. It is well within the 64 MiB
/// that a replica may hold beside its buffers.
const KEPT_BYTES: libc::c_int = 16 << 20;

/// The warning of a group of two, at its start and in its status.
pub const SPLIT_WARNING: &str = "two replicas without a witness: if the link between them fails, \
     both answer clients, and what one of them has answered is lost when it is back; a third replica \
     rules that out";

/// Why the node ended, when it ended as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitReason {
    /// It was told to stop, or its replica has left the group.
    Stopped,
}

/// Runs one replica until it is told to stop: by `ends` while an image is imported, and once everything is open by the handle
/// that `ready` gets. `log` has the lines that this process logs, for operators of other hosts.
///
/// # Errors
/// The TAP, the address to listen on or the state directory cannot be used; or the disk failed while
/// running, so that the replica can keep no promise.
pub fn run(
    file: ConfigFile,
    process: ThisProcess,
    log: RecentLog,
    ends: &AtomicBool,
    ready: impl FnOnce(StopHandle),
) -> Result<ExitReason, Box<dyn std::error::Error + Send + Sync>> {
    let mut body = match Body::open(file, process, log, ends) {
        Err(_) if ends.load(Ordering::Acquire) => return Ok(ExitReason::Stopped),
        opened => opened?,
    };
    if body.replica.group_record().is_pair() && !body.config.group.fencing {
        tracing::warn!(event = "can_split", "this group can split: {SPLIT_WARNING}");
    }
    ready(body.control.handle());
    body.run()?;
    Ok(ExitReason::Stopped)
}

struct Body {
    config: ReplicaConfig,
    /// The file that `config` was read from, with the changes that were taken since.
    file: ConfigFile,
    /// The keys of the file as it was last read whose changes wait for a restart.
    waiting_keys: Vec<String>,
    qemu: QemuConfig,
    variables: Variables,
    /// The guest's page numbers: RAM, then blocks of disks.
    layout: PageLayout,
    replica: Replica,
    /// The events that the brain waits for, as its last [`Replica::apply`] returned them.
    watch: Watch,
    role: Role,
    actions: VecDeque<Action>,
    events: VecDeque<Event>,
    storage: Storage,
    fabric: Option<BoxedFabric>,
    /// The peer that takes another process for this replica, and its words: this process takes no part (`second`).
    set_aside: Option<(ReplicaId, String)>,
    /// Reports of processes that have died on hosts that live.
    deaths: Option<Reports>,
    supervisor: Pid,
    service: Service,
    sent_on: SentOn,
    packer: Packer,
    taps: Taps,
    uplink: Uplink,
    facing: bool,
    vm: Option<QemuVm>,
    /// `None` for a guest without disks.
    disks: Option<Disks>,
    starter: GuestStarter,
    starting: Option<Starting>,
    control: Control,
    answers: Answers,
    /// Work on pages that was not finished at once, and what has to wait for it.
    work: VecDeque<Work>,
    /// Until then this turn begins work.
    work_until: Micros,
    /// Pages that a copy has asked for, in this order.
    copy_reads: VecDeque<(JobId, Vec<PageNo>)>,
    /// Scans that wait until QEMU has handed its log over, in the order of these hand-overs; `None`: it is only counted.
    scans: VecDeque<Option<JobId>>,
    console: Vec<ConsoleOutput>,
    printed: Printed,
    agent: AgentLine,
    console_log: Background,
    console_log_bytes: u64,
    trace: Trace,
    log: RecentLog,
    metrics: SyncMetrics,
    held: HeldOutputs,
    failures: Failures,
    /// The sync whose blocks of disks are being made durable, and since when.
    staging: Option<(SyncNo, Micros)>,
    /// How long that took.
    staged: Histogram,
    /// Of each NIC.
    announcements: Vec<Announcement>,
    crash_in: Option<plover_syncvm::Phase>,
    crash_at: Option<Area>,
    stops_in_release: bool,
    /// The peers that do not answer this leader.
    silences: BTreeMap<ReplicaId, Silence>,
    /// How often this replica took a leader for dead.
    suspicions: u64,
    /// Frames of clients that this replica took in while it led.
    inputs: u64,
    dropped_inputs: u64,
    dropped_outputs: u64,
    last_failure: Option<String>,
    /// The replica that refused a warm copy last, and why, until one has taken it.
    copy_refused: Option<(u8, String)>,
    /// Why the last copy to another replica failed; `None` once one has succeeded.
    unprotected: Option<String>,
    /// It ends after this turn, and how.
    stopping: Option<Ending>,
    /// Until when this replica tries to give up its roles before it ends.
    leaving: Option<Micros>,
    /// How this replica last took over.
    failover: Failover,
    /// How it has lost the lead.
    lost_leads: LostLeads,
    relay: Relay,
    viewers: Viewers,
    given: Inputs,
    backup: Backup,
    resizing: Resizing,
    restoring: Restoring,
    keys: Option<Arc<Keys>>,
    reporter: Option<Reporter>,
    /// Names this process.
    number: u64,
    /// Until when clients' frames that come here are sent on to the next leader.
    sends_on_until: Micros,
    /// When the guest's activity was last looked at.
    sampled_at: Micros,
    /// When the guest's memory was last scanned, and when it is to be learned how much has been written since.
    scanned_at: Micros,
    look_at_written_at: Micros,
    /// Counts the threads of answers that wait for a disk.
    answering: Arc<()>,
    ready: Ready,
    /// Bulk records that have come and wait for their turn.
    bulk: Waiting,
    unsent: Unsent,
    /// Whether the guest may have sent more frames than one turn takes.
    outputs_left: bool,
    /// When the fabric must be called even if nothing has come.
    fabric_due: Micros,
    /// Until when this thread comes first.
    first_until: Option<Micros>,
}

/// The sources that are ready. One turn of the loop reads only these. Most turns have none: the loop
/// samples some thousand times a second whether the guest is idle.
#[derive(Debug, Default)]
struct Ready {
    control: bool,
    storage: bool,
    tap: bool,
    uplink: bool,
    disks: bool,
    starter: bool,
    fabric: bool,
    deaths: bool,
    vm: bool,
}

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl Body {
    fn run(&mut self) -> Result<(), BoxError> {
        self.meet_peers()?;
        self.apply(Event::Tick)?;
        self.look_at_uplink()?;
        self.storage.submit();
        self.service.ready(clock::now(), &self.in_a_line());
        let ending = loop {
            if let Some(ending) = self.stopping {
                break ending;
            }
            self.wait();
            self.turn()?;
        };
        self.service.stopping(&self.in_a_line());
        // The end waits for other threads, some of it by yielding, which lets no thread run that does not come first.
        if self.first_until.take().is_some() {
            host::come_in_turn();
        }
        if let Some(vm) = &mut self.vm {
            vm.kill();
        }
        self.look_at_variables(true);
        self.log_end(ending);
        // Before the storage, whose end waits for its disk: the peers are to see at once that nobody is here.
        self.fabric = None;
        Ok(())
    }

    /// Sleeps until something happens or a deadline comes.
    fn wait(&mut self) {
        if let Some(vm) = &mut self.vm {
            // Inputs that do not fit into QEMU's queues wait until it has read others. The guest's next
            // output is a good moment to try again.
            let hears = self.watch.hears_outputs || self.outputs_left || vm.has_backlog();
            vm.hear_outputs(hears);
        }
        let now = clock::now();
        let mut until = if self.bulk.is_empty() && !self.has_work() {
            self.watch.deadline
        } else {
            now
        };
        if let Some(period) = self.watch.sample_every {
            until = until.min((self.sampled_at + period).max(now));
        }
        let timeout = self.fabric.as_ref().and_then(|f| f.timeout());
        self.fabric_due = timeout.map_or(Micros::NEVER, |t| now + Micros(t.as_micros() as u64));
        until = until.min(self.leaving.map_or(Micros::NEVER, |at| at.max(now)));
        until = until.min(self.service.due().max(now));
        until = until.min(self.agent.due().max(now));
        let start_until = self.starting.map_or(Micros::NEVER, |it| it.until);
        until = until.min(start_until.max(now));
        let span = until.min(self.fabric_due).since(now);
        let timeout = Timespec {
            tv_sec: (span.0 / 1_000_000).min(3600) as i64,
            tv_nsec: (span.0 % 1_000_000 * 1000) as i64,
        };
        let mut ready = Ready::default();
        let storage = borrow(self.storage.wait_fd(), &self.storage);
        let mut fds = vec![
            (&mut ready.control, self.control.as_fd()),
            (&mut ready.storage, storage),
        ];
        fds.push((&mut ready.uplink, self.uplink.as_fd()));
        fds.push((&mut ready.starter, self.starter.as_fd()));
        // One that is down has nothing to read, and one that was deleted polls readable for ever.
        let reads_taps = (self.facing || now < self.sends_on_until) && self.uplink.is_up();
        if let Some(disks) = &self.disks {
            fds.push((&mut ready.disks, borrow(disks.wait_fd(), disks)));
        }
        if let Some(fabric) = &self.fabric {
            fds.push((&mut ready.fabric, borrow(fabric.wait_fd(), fabric)));
        }
        if let Some(deaths) = &self.deaths {
            fds.push((&mut ready.deaths, deaths.as_fd()));
        }
        if let Some(vm) = &self.vm {
            fds.push((&mut ready.vm, borrow(vm.wait_fd(), vm)));
        }
        let taps = self.taps.iter().filter(|_| reads_taps);
        let polled = fds.iter().map(|(_, fd)| *fd);
        let polled = polled.chain(taps.map(AsFd::as_fd));
        let mut polled: Vec<_> = polled
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        if span == Micros::ZERO && self.first_until.is_some() {
            // Loops of other guests wait for this CPU at the same priority.
            rustix::thread::sched_yield();
        }
        let counted = rustix::event::poll(&mut polled, Some(&timeout));
        for ((ready, _), polled) in fds.iter_mut().zip(&polled) {
            // After a signal `poll` reports no source, so all are read.
            **ready = counted.is_err() || !polled.revents().is_empty();
        }
        let mut of_taps = polled[fds.len()..].iter();
        ready.tap = of_taps.any(|tap| counted.is_err() || !tap.revents().is_empty());
        self.ready = ready;
        self.see_whether_late(now + span);
    }

    /// On a busy host this thread takes real-time priority for a while: others take a replica that is late for dead. It does
    /// without where it can, since it then runs for every single frame, which costs throughput (docs/decisions/0067).
    fn see_whether_late(&mut self, meant: Micros) {
        let now = clock::now();
        let late = now.since(meant);
        if late >= LATE && self.first_until.is_none() && self.config.group.spin != Spin::Always {
            let may = host::come_first();
            self.first_until = Some(now + FIRST_FOR);
            let ms = late.0 / 1000;
            if may {
                tracing::info!(
                    event = "host_busy",
                    "this replica ran {ms} ms late: this host is busy or stood still, so the replica comes before everything \
                     else on it for ten minutes"
                );
            } else {
                tracing::warn!(
                    event = "priority_refused",
                    "this replica ran {ms} ms late: this host is busy or stood still, and the others take a replica that is \
                     late for dead; give the host less to do, or let the replica come first: LimitRTPRIO=1 in its unit"
                );
            }
        } else if self.first_until.is_some_and(|until| now >= until) {
            host::come_in_turn();
            self.first_until = None;
        }
    }

    /// Handles everything that has happened, in one turn.
    fn turn(&mut self) -> Result<(), BoxError> {
        self.work_until = clock::now() + WORK_A_TURN;
        self.storage.check()?;
        if let Some(place) = self.storage.members_persisted() {
            self.apply(Event::MembersPersisted(place))?;
        }
        // The guest's outputs come before its next inputs, whichever source has those.
        self.take_outputs()?;
        if self.ready.storage {
            self.take_storage()?;
        }
        if self.ready.fabric || clock::now() >= self.fabric_due {
            self.take_fabric()?;
        }
        self.take_bulk()?;
        if self.ready.deaths {
            self.take_deaths()?;
        }
        if self.ready.disks {
            self.take_disks()?;
        }
        if self.ready.starter {
            let failed = self.qemu_started();
            failed.map_or(Ok(()), |failed| self.apply(failed))?;
        }
        self.mind_start()?;
        if let Some(disks) = &mut self.disks {
            disks.open_again();
        }
        let asks = |vm: &QemuVm| vm.has_backlog() || vm.is_starting();
        if self.ready.vm || self.vm.as_ref().is_some_and(asks) {
            self.take_vm()?;
        }
        if self.ready.tap || self.facing && !self.sent_on.is_empty() {
            self.take_outputs()?;
            self.take_tap()?;
        }
        if self.ready.tap && !self.facing {
            self.send_on();
        }
        if self.ready.control {
            self.take_control()?;
        }
        self.end_if_free();
        if self.ready.uplink {
            self.look_at_uplink()?;
        }
        self.sample()?;
        self.look_at_written();
        self.look_at_variables(false);
        if clock::now() >= self.watch.deadline {
            self.apply(Event::Tick)?;
        }
        if clock::now() < self.watch.console_until {
            let printed = self.printed.take_all();
            self.show(&printed);
            self.agent_heard_all();
        }
        self.mind_agent()?;
        self.mind_viewers();
        self.mind_consoles();
        self.storage.trim(self.watch.log_base);
        self.storage.submit();
        self.flush();
        if self.has_work() {
            self.take_work()?;
            self.storage.submit();
            self.flush();
        }
        let now = clock::now();
        if now >= self.service.due() {
            self.service.beat(now, &self.in_a_line());
        }
        Ok(())
    }

    /// Samples the guest's activity, when the brain waits for a sample and it is time.
    fn sample(&mut self) -> Result<(), BoxError> {
        let (Some(period), Some(vm)) = (self.watch.sample_every, &self.vm) else {
            return Ok(());
        };
        let now = clock::now();
        if now < self.sampled_at + period {
            return Ok(());
        }
        self.sampled_at = now;
        // Reading the clock of a running thread interrupts its CPU, so it is read only if the guest has
        // no work. All threads are looked at after the queues were found empty, and before that the one that mostly runs.
        let at_rest = !vm.still_has_work() && vm.consumed_all() && !vm.has_work();
        let cpu = at_rest.then(|| Micros(vm.cpu_time().as_micros() as u64));
        self.apply(Event::Sample { cpu })
    }

    /// Applies an event and carries out the actions that follow, including the answers that are ready at
    /// once.
    fn apply(&mut self, event: Event) -> Result<(), BoxError> {
        if let Event::Outputs(frames)
        | Event::GuestPaused {
            outputs: frames, ..
        } = &event
        {
            if self.role == Role::Leader {
                self.held.hold(clock::now(), frames.len());
            }
        }
        self.events.push_back(event);
        let mut actions = Vec::new();
        while let Some(event) = self.events.pop_front() {
            self.watch = self.replica.apply(clock::now(), event, &mut actions);
            self.actions.extend(actions.drain(..));
            while let Some(action) = self.actions.pop_front() {
                self.act(action)?;
                if !self.events.is_empty() {
                    // An answer is applied first, so that nothing comes between a job and its answer. The
                    // actions already decided keep their order.
                    break;
                }
            }
        }
        self.failover.follow(self.replica.followed());
        Ok(())
    }
}

/// A descriptor that `owner` keeps open while it is borrowed.
fn borrow<T>(fd: std::os::fd::RawFd, _owner: &T) -> BorrowedFd<'_> {
    // SAFETY: `wait_fd` returns a descriptor that its owner keeps open for its own lifetime,
    // and the owner is borrowed for as long as the result is.
    unsafe { BorrowedFd::borrow_raw(fd) }
}
