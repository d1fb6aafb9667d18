//! The loop.

use crate::config::ReplicaConfig;
use crate::control::{Control, Op, Request, StopHandle};
use crate::metrics::{HeldOutputs, SyncMetrics};
use crate::storage::Storage;
use crate::tap::Tap;
use crate::trace::Trace;
use crate::{announce, clock};
use plover_disk::{Attachment, Batch, BlockNo, DiskError, DiskEvent, Disks};
use plover_fabric::{BoxedFabric, Fabric, FabricEvent};
use plover_replica::{Action, Event, Note, OperatorInput, Replica, Role};
use plover_syncvm::blocks::{BlockMask, Divergent};
use plover_syncvm::chunk::{self, ChunkWriter, PageContent};
use plover_types::{
    BLOCKS_PER_PAGE, Lane, Micros, PAGE_BYTES, PageNo, PageSet, ReplicaId, SyncNo, Unconsumed,
};
use plover_vm::{QemuConfig, QemuVm, Vm, VmCommand, VmEvent};
use rustix::event::{PollFd, PollFlags, Timespec};
use serde_json::json;
use std::collections::VecDeque;
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::sync::mpsc::{SyncSender, TrySendError};

/// Frames taken from the TAP or the guest in one go: one batch, one log entry.
const FRAMES_PER_TURN: usize = 256;

/// The loop's place before the guests' vCPUs.
const NICE: i32 = -10;

/// Free memory that this process keeps: a few usual slots' pages. Well within the 64 MiB that a
/// replica may hold beside its buffers.
const KEPT_BYTES: libc::c_int = 16 << 20;

/// The console log is cut at this size.
const CONSOLE_LOG_BYTES_MAX: u64 = 1 << 20;

/// Why the node ended, when it ended as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitReason {
    /// It was told to.
    Stopped,
}

/// Runs one replica until it is told to stop. `ready` gets the handle that does so, once
/// everything is open. Must be called on the process's main thread: the hypervisor dies with
/// the thread that started it.
///
/// # Errors
/// Everything that keeps a replica from starting: the TAP, the address to listen on, the state
/// directory; and the loss of the disk while running, which makes its promises worthless.
pub fn run(
    config: ReplicaConfig,
    ready: impl FnOnce(StopHandle),
) -> Result<ExitReason, Box<dyn std::error::Error + Send + Sync>> {
    let mut body = Body::open(config)?;
    ready(body.control.handle());
    body.run()?;
    Ok(ExitReason::Stopped)
}

struct Body {
    config: ReplicaConfig,
    qemu: QemuConfig,
    replica: Replica,
    role: Role,
    actions: VecDeque<Action>,
    events: VecDeque<Event>,
    storage: Storage,
    fabric: Option<BoxedFabric>,
    tap: Tap,
    facing: bool,
    vm: Option<QemuVm>,
    /// Of a guest that has some.
    disks: Option<Disks>,
    control: Control,
    console: Vec<SyncSender<Vec<u8>>>,
    console_log: std::fs::File,
    console_log_bytes: u64,
    trace: Trace,
    metrics: SyncMetrics,
    held: HeldOutputs,
    crash_in: Option<plover_syncvm::Phase>,
    dropped_inputs: u64,
    dropped_outputs: u64,
    last_failure: Option<String>,
    stopping: bool,
    /// When the guest's activity was last looked at.
    sampled_at: Micros,
}

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl Body {
    fn open(config: ReplicaConfig) -> Result<Self, BoxError> {
        let now = clock::now();
        let me = ReplicaId(config.group.me);
        let run_dir = &config.paths.run_dir;
        std::fs::create_dir_all(run_dir)
            .map_err(|e| format!("cannot create paths.run_dir {}: {e}", run_dir.display()))?;
        let control = Control::listen(run_dir)
            .map_err(|e| format!("cannot listen in paths.run_dir {}: {e}", run_dir.display()))?;
        let tap = Tap::attach(&config.net.tap).map_err(|e| {
            format!(
                "cannot attach to the TAP device '{}': {e}; create it with \
                 'ip tuntap add {} mode tap' and make sure nothing else uses it",
                config.net.tap, config.net.tap
            )
        })?;
        let durability = config.group.durability;
        let (storage, start) =
            Storage::open(&config.paths.state_dir, &config.group.name, durability)?;
        let disks = match &config.disks()[..] {
            [] => None,
            specs => Some(Disks::open(specs, &config.paths.state_dir.join("disks"))?),
        };
        let fabric = crate::fabric::open(&config)?;
        let message_bytes_max = fabric
            .as_ref()
            .map_or(1 << 20, |f| f.record_bytes_max(Lane::Log))
            .min(1 << 20);
        let mut secret = [0u8; 40];
        rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())?;
        let mut hash_key = [0u8; 32];
        hash_key.copy_from_slice(&secret[..32]);
        let seed = u64::from_le_bytes(secret[32..].try_into().unwrap_or_default());
        let disk_blocks = disks.as_ref().map_or(0, Disks::blocks);
        let brain = config.brain(message_bytes_max, hash_key, seed, disk_blocks);
        prepare_process();
        let console_log = std::fs::File::create(run_dir.join("console.log"))?;
        let trace = Trace::open(run_dir, me, config.debug.trace_syncs)?;
        let last_failure = storage.damage();
        Ok(Self {
            qemu: config.qemu(),
            replica: Replica::new(brain, start, now),
            role: Role::Recovering,
            actions: VecDeque::new(),
            events: VecDeque::new(),
            storage,
            fabric,
            tap,
            facing: false,
            vm: None,
            disks,
            control,
            console: Vec::new(),
            console_log,
            console_log_bytes: 0,
            trace,
            metrics: SyncMetrics::default(),
            held: HeldOutputs::default(),
            crash_in: None,
            dropped_inputs: 0,
            dropped_outputs: 0,
            last_failure,
            stopping: false,
            sampled_at: Micros::ZERO,
            config,
        })
    }

    fn run(&mut self) -> Result<(), BoxError> {
        self.apply(Event::Tick)?;
        self.storage.submit();
        while !self.stopping {
            self.wait();
            self.turn()?;
        }
        if let Some(vm) = &mut self.vm {
            vm.kill();
        }
        Ok(())
    }

    /// Sleeps until something happens or a deadline comes.
    fn wait(&mut self) {
        let now = clock::now();
        let mut until = self.replica.deadline();
        if let Some(period) = self.replica.wants_samples() {
            until = until.min((self.sampled_at + period).max(now));
        }
        let mut span = until.since(now);
        if let Some(timeout) = self.fabric.as_ref().and_then(|f| f.timeout()) {
            span = span.min(Micros(timeout.as_micros() as u64));
        }
        let timeout = Timespec {
            tv_sec: (span.0 / 1_000_000).min(3600) as i64,
            tv_nsec: (span.0 % 1_000_000 * 1000) as i64,
        };
        let storage = borrow(self.storage.wait_fd(), &self.storage);
        let mut fds = vec![
            PollFd::new(&self.control, PollFlags::IN),
            PollFd::from_borrowed_fd(storage, PollFlags::IN),
        ];
        if self.facing {
            fds.push(PollFd::new(&self.tap, PollFlags::IN));
        }
        if let Some(disks) = &self.disks {
            let fd = borrow(disks.wait_fd(), disks);
            fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
        }
        if let Some(fabric) = &self.fabric {
            fds.push(PollFd::from_borrowed_fd(
                borrow(fabric.wait_fd(), fabric),
                PollFlags::IN,
            ));
        }
        if let Some(vm) = &self.vm {
            fds.push(PollFd::from_borrowed_fd(
                borrow(vm.wait_fd(), vm),
                PollFlags::IN,
            ));
        }
        let _ = rustix::event::poll(&mut fds, Some(&timeout));
    }

    /// Everything that has happened, in one turn.
    fn turn(&mut self) -> Result<(), BoxError> {
        self.take_storage()?;
        self.take_fabric()?;
        self.take_disks()?;
        self.take_vm()?;
        self.take_tap()?;
        self.take_control()?;
        self.sample()?;
        if clock::now() >= self.replica.deadline() {
            self.apply(Event::Tick)?;
        }
        self.storage.trim(self.replica.log_base());
        self.storage.submit();
        if let Some(fabric) = &mut self.fabric {
            fabric.flush();
        }
        Ok(())
    }

    /// Looks at what the guest is doing, when somebody waits for it and it is time.
    fn sample(&mut self) -> Result<(), BoxError> {
        let (Some(period), Some(vm)) = (self.replica.wants_samples(), &self.vm) else {
            return Ok(());
        };
        let now = clock::now();
        if now < self.sampled_at + period {
            return Ok(());
        }
        self.sampled_at = now;
        // The clock of a thread that runs is read by interrupting its CPU: only when it is of use.
        let at_rest = vm.consumed_all() && !vm.has_work();
        let cpu = at_rest.then(|| Micros(vm.cpu_time().as_micros() as u64));
        self.apply(Event::Sample { cpu })
    }

    fn take_storage(&mut self) -> Result<(), BoxError> {
        let mut persisted = Vec::new();
        self.storage.persisted(&mut persisted)?;
        for event in persisted {
            self.apply(event)?;
        }
        Ok(())
    }

    fn take_fabric(&mut self) -> Result<(), BoxError> {
        let mut happened = Vec::new();
        if let Some(fabric) = &mut self.fabric {
            fabric.progress(&mut happened);
        }
        for event in happened {
            let event = match event {
                FabricEvent::Up(peer) => Event::Link { peer, up: true },
                FabricEvent::Down(peer) => Event::Link { peer, up: false },
                FabricEvent::Record { from, lane, bytes } => Event::Received { from, lane, bytes },
                FabricEvent::Room { .. } => continue,
            };
            self.apply(event)?;
        }
        Ok(())
    }

    fn take_disks(&mut self) -> Result<(), BoxError> {
        let mut happened = Vec::new();
        if let Some(disks) = &mut self.disks {
            disks.take_events(&mut happened);
        }
        for event in happened {
            let event = match event {
                DiskEvent::Staged(sync) => Event::DisksStaged(sync),
                DiskEvent::ManyWritten => Event::MuchWritten,
                DiskEvent::Failed(why) => self.guest_is_gone(why),
            };
            self.apply(event)?;
        }
        Ok(())
    }

    fn take_tap(&mut self) -> Result<(), BoxError> {
        if !self.facing {
            return Ok(());
        }
        let mut frames = Vec::new();
        self.tap.read(FRAMES_PER_TURN, &mut frames);
        if frames.is_empty() {
            Ok(())
        } else {
            self.apply(Event::Frames(frames))
        }
    }

    fn take_vm(&mut self) -> Result<(), BoxError> {
        let Some(vm) = &mut self.vm else {
            return Ok(());
        };
        let mut happened = Vec::new();
        vm.poll(&mut happened);
        let mut outputs = Vec::new();
        vm.take_outputs(FRAMES_PER_TURN, &mut outputs);
        let mut printed = Vec::new();
        vm.console_read(&mut printed);
        if !printed.is_empty() {
            self.print(printed);
        }
        if !outputs.is_empty() {
            self.apply(Event::Outputs(outputs))?;
        }
        for event in happened {
            let event = match event {
                VmEvent::Started => Event::GuestStarted,
                VmEvent::Paused => self.paused(),
                VmEvent::Resumed => Event::GuestResumed,
                VmEvent::ResetDone => Event::GuestResetDone,
                VmEvent::StateSaved(state) => Event::StateSaved(state),
                VmEvent::StateLoaded => Event::StateLoaded,
                VmEvent::Failed { command, error } => {
                    self.guest_is_gone(format!("QEMU refused {command}: {error}"))
                }
                VmEvent::Died(why) => self.guest_is_gone(why),
                VmEvent::GuestShutdown => {
                    tracing::warn!("the guest has shut itself down; it stays paused");
                    continue;
                }
            };
            self.apply(event)?;
        }
        Ok(())
    }

    /// The guest stands: collect all it has sent and all it has not consumed.
    fn paused(&mut self) -> Event {
        let (mut outputs, mut unconsumed) = (Vec::new(), Unconsumed::default());
        if let Some(vm) = &mut self.vm {
            loop {
                let before = outputs.len();
                vm.take_outputs(FRAMES_PER_TURN, &mut outputs);
                if outputs.len() == before {
                    break;
                }
            }
            unconsumed = vm.take_unconsumed();
        }
        Event::GuestPaused {
            outputs,
            unconsumed,
        }
    }

    fn guest_is_gone(&mut self, why: String) -> Event {
        tracing::error!(%why, "this replica's guest is lost");
        self.vm = None;
        self.last_failure = Some(why.clone());
        Event::GuestDied(why)
    }

    /// Applies an event and carries out what follows, answers of memory work included.
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
            self.replica.apply(clock::now(), event, &mut actions);
            self.actions.extend(actions.drain(..));
            while let Some(action) = self.actions.pop_front() {
                self.act(action)?;
                if !self.events.is_empty() {
                    // An answer goes first: nothing may come between a question and it, but
                    // the actions already decided keep their order.
                    break;
                }
            }
        }
        Ok(())
    }

    fn act(&mut self, action: Action) -> Result<(), BoxError> {
        match action {
            Action::Write { to, lane, bytes } => self.write(to, lane, &bytes),
            Action::PersistState(state) => {
                self.storage.persist_state(state);
            }
            Action::PersistEntries {
                after,
                anew,
                entries,
            } => self.storage.append(after, anew, &entries),
            Action::PersistGuest(record) => self.storage.persist_guest(record)?,
            Action::StartGuest => self.start_guest(),
            Action::KillGuest => self.vm = None,
            Action::Pause => self.order(VmCommand::Pause),
            Action::Resume => {
                if let Some(disks) = &mut self.disks {
                    disks.settle();
                }
                self.order(VmCommand::Resume);
            }
            Action::Reset => self.order(VmCommand::Reset),
            Action::SaveState => self.order(VmCommand::SaveState),
            Action::LoadState(state) => self.order(VmCommand::LoadState(state)),
            Action::Scan => self.scan(),
            Action::Hash { key, pages } => {
                let mut digests = Vec::with_capacity(pages.len());
                match &self.vm {
                    Some(vm) => vm.hash_pages(&key, &pages, &mut digests),
                    None => digests.resize(pages.len(), Default::default()),
                }
                self.look_at_disks();
                self.events.push_back(Event::Hashed(digests));
            }
            Action::HashBlocks { key, pages } => {
                let mut hashes = Vec::with_capacity(pages.len() * BLOCKS_PER_PAGE);
                match &self.vm {
                    Some(vm) => vm.hash_blocks(&key, &pages, &mut hashes),
                    None => hashes.resize(pages.len() * BLOCKS_PER_PAGE, 0),
                }
                self.look_at_disks();
                self.events.push_back(Event::BlocksHashed(hashes));
            }
            Action::ReadBlocks(pages) => {
                let chunk = self.read_blocks(&pages);
                self.look_at_disks();
                self.events.push_back(Event::PagesRead(chunk));
            }
            Action::ReadPages(pages) => {
                let chunk = self.read_pages(&pages);
                self.look_at_disks();
                self.events.push_back(Event::PagesRead(chunk));
            }
            Action::WriteChunks(chunks) => {
                self.write_chunks(&chunks);
                self.look_at_disks();
            }
            Action::StageDisks { sync, chunks } => self.stage_disks(sync, &chunks),
            Action::Feed(frames) => {
                if let Some(vm) = &mut self.vm {
                    for frame in &frames {
                        if !vm.feed(frame) {
                            self.dropped_inputs += 1;
                        }
                    }
                }
            }
            Action::Operate(input) => self.operate(&input),
            Action::Release { frames, .. } => {
                self.held.release(clock::now(), frames.len());
                for frame in &frames {
                    if !self.tap.write(frame) {
                        tracing::debug!("the TAP did not take a frame");
                    }
                }
            }
            Action::FaceClients(facing) => {
                self.facing = facing;
                self.tap.drain();
            }
            Action::Announce => {
                self.tap.write(&announce::frame(self.qemu.mac));
            }
            Action::Note(note) => self.note(note),
        }
        Ok(())
    }

    fn write(&mut self, to: ReplicaId, lane: Lane, bytes: &[u8]) {
        let Some(fabric) = &mut self.fabric else {
            return;
        };
        if let Err(error) = fabric.write(to, lane, bytes) {
            // The core repeats what matters; a bulk message that is lost ends its sync.
            tracing::debug!(%to, ?lane, %error, "a message was not sent");
        }
    }

    fn order(&mut self, command: VmCommand) {
        if let Some(vm) = &mut self.vm {
            vm.command(command);
        }
    }

    fn start_guest(&mut self) {
        // The hypervisor inherits the nice value of the thread that starts it.
        let _ = rustix::process::setpriority_process(None, 0);
        let spawned = self.attach_disks().map_err(|error| error.to_string());
        let spawned = spawned.and_then(|disks| {
            QemuVm::spawn_with_disks(self.qemu.clone(), disks).map_err(|error| error.to_string())
        });
        let _ = rustix::process::setpriority_process(None, NICE);
        match spawned {
            Ok(vm) => self.vm = Some(vm),
            Err(error) => {
                let event = self.guest_is_gone(format!("cannot start the guest: {error}"));
                self.events.push_back(event);
            }
        }
    }

    /// The disks for a guest that starts: of a leader as they are, if they are whole; of one that
    /// joins to be overwritten.
    fn attach_disks(&mut self) -> Result<Option<Attachment>, DiskError> {
        let Some(disks) = &mut self.disks else {
            return Ok(None);
        };
        let attachment = disks.attach()?;
        if self.role == Role::Joining {
            disks.begin_copy()?;
        } else if !disks.is_whole() {
            return Err(DiskError::Incomplete);
        }
        Ok(Some(attachment))
    }

    /// What went wrong in the last work on pages goes before its answer, which is void then.
    fn look_at_disks(&mut self) {
        if let Some(why) = self.vm.as_mut().and_then(Vm::take_disk_failure) {
            let event = self.guest_is_gone(why);
            self.events.push_back(event);
        }
    }

    fn stage_disks(&mut self, sync: SyncNo, chunks: &[Vec<u8>]) {
        let (Some(disks), Some(vm)) = (&mut self.disks, &self.vm) else {
            return self.events.push_back(Event::DisksStaged(sync));
        };
        let (ram, mut buffer) = (self.qemu.pages(), [0u8; PAGE_BYTES]);
        let mut batch = Batch::new();
        let pages = chunks
            .iter()
            .flat_map(|chunk| chunk::read(chunk, ram + disks.blocks()))
            .flatten();
        for (page, content) in pages.filter(|(page, _)| page.0 >= ram) {
            // The journal has whole blocks of the disk, whatever part of them was sent.
            if !content.is_whole() {
                vm.read_page(page, &mut buffer);
            }
            content.apply(&mut buffer);
            batch.push(BlockNo(page.0 - ram), &buffer);
        }
        disks.stage(sync, batch);
        self.look_at_disks();
    }

    fn scan(&mut self) {
        let blocks = self.disks.as_ref().map_or(0, Disks::blocks);
        let mut set = PageSet::new(self.qemu.pages() + blocks);
        let scanned = self.vm.as_mut().map(|vm| vm.scan_dirty(&mut set));
        self.events.push_back(Event::Scanned(set));
        if let Some(Err(error)) = scanned {
            let event = self.guest_is_gone(format!("cannot scan the guest's memory: {error}"));
            self.events.push_back(event);
        }
    }

    fn read_pages(&self, pages: &[PageNo]) -> Vec<u8> {
        let whole: Vec<Divergent> = pages.iter().map(|page| (*page, BlockMask::ALL)).collect();
        self.read_blocks(&whole)
    }

    fn read_blocks(&self, pages: &[Divergent]) -> Vec<u8> {
        let mut writer = ChunkWriter::new();
        let mut buffer = [0u8; PAGE_BYTES];
        if let Some(vm) = &self.vm {
            for (page, mask) in pages {
                vm.read_page(*page, &mut buffer);
                writer.push_blocks(*page, *mask, &buffer);
            }
        }
        writer.finish()
    }

    fn write_chunks(&mut self, chunks: &[Vec<u8>]) {
        let Some(vm) = &mut self.vm else { return };
        let mut buffer = [0u8; PAGE_BYTES];
        for chunk in chunks {
            for page in chunk::read(chunk, vm.pages()) {
                match page {
                    Ok((number, PageContent::Raw(bytes))) => vm.write_page(number, bytes),
                    Ok((number, content)) => {
                        if !content.is_whole() {
                            vm.read_page(number, &mut buffer);
                        }
                        content.apply(&mut buffer);
                        vm.write_page(number, &buffer);
                    }
                    Err(error) => tracing::error!(%error, "a staged chunk"),
                }
            }
        }
    }

    fn operate(&mut self, input: &OperatorInput) {
        let Some(vm) = &mut self.vm else { return };
        match input {
            OperatorInput::Console(bytes) => vm.console_write(bytes),
            OperatorInput::PowerButton => vm.command(VmCommand::PowerButton),
        }
    }

    fn note(&mut self, note: Note) {
        match &note {
            Note::Role { to, .. } => {
                self.role = *to;
                self.held.forget();
                tracing::info!(role = ?to, "role");
                self.place_guest();
            }
            Note::SyncPhase { phase, .. } => self.at_phase(*phase, &note),
            Note::Synced(report) => self.metrics.add((**report).clone()),
            Note::InputDropped { frames } => self.dropped_inputs += *frames as u64,
            Note::OutputDropped { frames } => {
                self.dropped_outputs += *frames as u64;
                self.held.lose(*frames);
            }
            Note::Applied { sync } | Note::Kept { sync } => self.checksum(sync.0),
            Note::Rejected { .. } => tracing::debug!(?note, "rejected"),
            // As often as slots end.
            Note::OutputsDiffer { why } => tracing::debug!(why, "outputs differ"),
            other => tracing::info!(?other, "note"),
        }
        if self.trace.wants(&note) {
            self.trace.note(clock::now(), &note);
        }
    }

    /// Gives the guest's vCPUs the place among the host's threads that its role deserves; QEMU's
    /// main thread keeps its own, since a leader waits for it in every syncvm. Only root may
    /// raise a priority again, so nobody else lowers it.
    fn place_guest(&self) {
        let Some(pid) = self.vm.as_ref().and_then(Vm::pid) else {
            return;
        };
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let nice = if self.role == Role::Secondary {
            self.config.secondary_nice()
        } else {
            0
        };
        let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
        for thread in threads.into_iter().flatten().flatten() {
            let name = std::fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
            if !name.starts_with("CPU ") {
                continue;
            }
            let tid = thread
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok());
            if let Some(tid) = tid.and_then(rustix::process::Pid::from_raw) {
                // A thread that ends meanwhile needs no place.
                let _ = rustix::process::setpriority_process(Some(tid), nice);
            }
        }
    }

    /// Test hooks that strike in a given phase of a sync this replica leads.
    fn at_phase(&mut self, phase: plover_syncvm::Phase, note: &Note) {
        if phase == plover_syncvm::Phase::Scan {
            if let Note::SyncPhase { sync, .. } = note {
                self.checksum(sync.0);
            }
        }
        if self.crash_in == Some(phase) {
            if let Some(fabric) = &mut self.fabric {
                // What was sent before this phase has been sent.
                fabric.flush();
            }
            if let Some(pid) = self.vm.as_ref().and_then(Vm::pid) {
                if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                }
            }
            let me = rustix::process::getpid();
            let _ = rustix::process::kill_process(me, rustix::process::Signal::KILL);
        }
    }

    fn checksum(&mut self, sync: u64) {
        if !self.config.debug.checksum_each_sync {
            return;
        }
        let Some(vm) = &self.vm else { return };
        let pages: Vec<PageNo> = (0..vm.pages()).map(PageNo).collect();
        let mut digests = Vec::with_capacity(pages.len());
        vm.hash_pages(&[0; 32], &pages, &mut digests);
        let mut all = blake3::Hasher::new();
        for digest in &digests {
            all.update(&digest.0.to_le_bytes());
        }
        let value = json!({"what": "checksum", "sync": sync, "memory": all.finalize().to_string()});
        self.trace.write(clock::now(), value);
    }

    fn print(&mut self, bytes: Vec<u8>) {
        if self.console_log_bytes < CONSOLE_LOG_BYTES_MAX {
            self.console_log_bytes += bytes.len() as u64;
            let _ = self.console_log.write_all(&bytes);
        }
        self.console.retain(|o| {
            !matches!(
                o.try_send(bytes.clone()),
                Err(TrySendError::Disconnected(_))
            )
        });
    }

    fn take_control(&mut self) -> Result<(), BoxError> {
        for request in self.control.take() {
            match request {
                Request::Stop => self.stopping = true,
                Request::Attach { output } => self.console.push(output),
                Request::Typed(bytes) => {
                    self.apply(Event::Operator(OperatorInput::Console(bytes)))?;
                }
                Request::Op { op, reply } => {
                    let answer = match op {
                        Op::Status => self.status(),
                        Op::Power => {
                            self.apply(Event::Operator(OperatorInput::PowerButton))?;
                            json!({"ok": true})
                        }
                        Op::Bootstrap => match self.why_not_bootstrap() {
                            Some(why) => json!({"error": why}),
                            None => {
                                self.apply(Event::Bootstrap)?;
                                json!({"ok": true})
                            }
                        },
                        Op::Shutdown => {
                            self.stopping = true;
                            json!({"ok": true})
                        }
                        Op::CrashInPhase { phase } => {
                            self.crash_in = Some(phase);
                            json!({"ok": true})
                        }
                        Op::Console => json!({"error": "console is a connection of its own"}),
                    };
                    let _ = reply.send(answer);
                }
            }
        }
        Ok(())
    }

    /// Bytes to and from the peers since the start, by lane.
    fn traffic(&self) -> serde_json::Value {
        let stats = self.fabric.as_ref().map(|f| f.stats()).unwrap_or_default();
        json!({
            "log_bytes_out": stats.log.bytes_out,
            "log_bytes_in": stats.log.bytes_in,
            "bulk_bytes_out": stats.bulk.bytes_out,
            "bulk_bytes_in": stats.bulk.bytes_in,
        })
    }

    /// Why the guest must not start from this replica's disks, as far as it knows by itself.
    fn why_not_bootstrap(&self) -> Option<String> {
        let (me, disks) = (ReplicaId(self.config.group.me), self.disks.as_ref()?);
        let known = self.storage.guest().in_sync;
        if self.config.group.first_leader != me.0 {
            None
        } else if !disks.is_whole() {
            Some(DiskError::Incomplete.to_string())
        } else if !known.is_empty() && !known.contains(me) {
            Some(format!(
                "this replica's copy of the guest's disks is old: replicas {known} were in sync when \
                 it last heard; make one of them group.first_leader on all hosts and start them again"
            ))
        } else {
            None
        }
    }

    fn status(&self) -> serde_json::Value {
        let known = self.storage.guest();
        let status = self.replica.status();
        json!({
            "id": status.id.0,
            "group": self.config.group.name,
            "policy": self.config.policy.name.name(),
            "role": status.role,
            "view": status.view.to_string(),
            "leader": status.leader.map(|l| l.0),
            "isr": status.in_sync.iter().map(|r| r.0).collect::<Vec<_>>(),
            "protected": status.protected,
            "serving": status.serving,
            "holds_state": status.holds_state,
            "guest_running": status.guest_running,
            "held_outputs": status.held_outputs,
            "commit": status.commit.0,
            "rejected": status.rejected,
            "plover_pid": std::process::id(),
            "last_in_sync": {
                "isr": known.in_sync.iter().map(|r| r.0).collect::<Vec<_>>(),
                "life": known.life.0,
                "index": known.index.0,
            },
            "disks_whole": self.disks.as_ref().map(Disks::is_whole),
            "qemu_pid": self.vm.as_ref().and_then(Vm::pid),
            "machine": self.qemu.machine.to_string(),
            "accel": self.qemu.accel.to_string(),
            "dropped_inputs": self.dropped_inputs,
            "dropped_outputs": self.dropped_outputs,
            "last_failure": self.last_failure,
            "mono_us": clock::now().0,
            "sync": self.metrics.to_json(),
            "outputs": self.held.to_json(),
            "traffic": self.traffic(),
            "memory": memory(),
        })
    }
}

/// A descriptor that `owner` keeps open while it is borrowed.
fn borrow<T>(fd: std::os::fd::RawFd, _owner: &T) -> BorrowedFd<'_> {
    // SAFETY: `wait_fd` returns a descriptor that its owner keeps open for its own lifetime,
    // and the owner is borrowed for as long as the result is.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Short sleeps and a place before the guests' vCPUs: this thread does little, but others
/// wait for it. Failing costs only latency.
fn prepare_process() {
    // SAFETY: PR_SET_TIMERSLACK takes its argument by value.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1_000 as libc::c_ulong);
    }
    // What a sync takes it gives back, and takes again a few milliseconds later: the allocator shall
    // keep that much rather than return it to the kernel and have it zeroed anew each time.
    // SAFETY: mallopt takes its arguments by value; no other thread allocates yet.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, KEPT_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES);
    }
    let _ = rustix::process::setpriority_process(None, NICE);
}

/// Memory of this process in KiB: `private` is its own, `shared` the guest's mapping.
fn memory() -> serde_json::Value {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| -> u64 {
        text.lines()
            .find_map(|l| {
                l.strip_prefix(name)?
                    .trim_start_matches(':')
                    .split_whitespace()
                    .next()
            })
            .and_then(|n| n.parse().ok())
            .unwrap_or(0)
    };
    json!({
        "rss_kib": field("VmRSS"),
        "private_kib": field("RssAnon") + field("RssFile"),
        "shared_kib": field("RssShmem"),
    })
}
