//! One replica: the loop that waits, applies, acts.

use crate::BoxError;
use crate::clients::Clients;
use crate::config::RunConfig;
use crate::control::Control;
use crate::face::Face;
use crate::files::Files;
use crate::jobs::{Done, Jobs, serve};
use crate::program::Program;
use crate::sockets::{FromProgram, Sockets};
use plover_log::{LogOnly, Server};
use plover_program::{Action, Canary, Entry, Event, LogState, Note, Own, Replica, Taint};
use plover_types::{Index, Micros, ReplicaId, Viewstamp};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Tokens of descriptors.
const CLIENT: u64 = 1 << 60;
const SOCKET: u64 = 2 << 60;
const KIND: u64 = 15 << 60;
const LISTENER: u64 = 3 << 60;
const CHILD: u64 = 4 << 60;
const WAKER: u64 = 5 << 60;

/// Entries that one turn takes at most.
const ENTRIES_PER_TURN: usize = 256;

/// The part of the log's room that clients cannot fill: a sixteenth, 64 KiB at least.
const RESERVED: usize = 16;

/// How often the loop looks at what nothing announces: whether a program listens, whether it has read.
const LOOK_EVERY: Duration = Duration::from_millis(5);
const READ_LOOKS: [u64; 6] = [20, 40, 80, 160, 400, 1000];

/// How long the loop sleeps at most.
const IDLE: Duration = Duration::from_millis(500);

/// How often an address that cannot be taken is tried again.
const AGAIN_AFTER: Duration = Duration::from_millis(100);
const FACE_TRIES: u32 = 20;

/// Ends a replica from another thread.
#[derive(Clone, Debug)]
pub struct Stop(Arc<(AtomicBool, OwnedFd)>);

impl Stop {
    fn new() -> Result<Self, BoxError> {
        let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self(Arc::new((AtomicBool::new(false), wake))))
    }

    /// The replica ends after the turn it is in.
    pub fn stop(&self) {
        self.0.0.store(true, Ordering::SeqCst);
        let _ = rustix::io::write(&self.0.1, &1u64.to_ne_bytes());
    }
}

/// How far a start has come.
#[derive(Debug)]
enum Starting {
    /// An archive of the directory is being made, and must be given up first.
    Queued(Option<Viewstamp>),
    /// The directory is being prepared.
    Preparing,
    /// The program was started and does not listen yet. With a checkpoint: it was ended for that.
    Listening(Instant, Option<Own>),
    /// The program of this start listens, and a command asks whether it is ready.
    Readying(u64, Option<Own>),
}

struct Body {
    config: RunConfig,
    words: Vec<OsString>,
    server: Server<LogOnly>,
    brain: Replica,
    clients: Clients,
    sockets: Sockets,
    program: Option<Program>,
    starting: Option<Starting>,
    /// Counts starts of the program.
    starts: u64,
    /// A checkpoint is being archived; whether it is still wanted.
    archiving: Option<bool>,
    jobs: Jobs,
    files: Files,
    control: Control,
    face: Option<Face>,
    face_at: Instant,
    /// How often in a row the clients' address could not be taken.
    face_failures: u32,
    epoll: Arc<OwnedFd>,
    stop: Stop,
    began: Instant,
    /// How often in a row the program had not read its input when it was looked.
    looks: usize,
    /// The program was given up, and the brain is not told yet.
    died: Option<String>,
    notes: Vec<String>,
    out: Vec<Action>,
    entry: Vec<u8>,
}

/// Runs one replica until it is stopped. `ready` gets the handle that stops it. The program is `words`.
///
/// # Errors
/// What ended the replica, or why it could not begin.
pub fn run(
    config: RunConfig,
    words: Vec<OsString>,
    ready: impl FnOnce(Stop),
) -> Result<(), BoxError> {
    let words = crate::program::found(words)?;
    let paths = &config.paths;
    for directory in [&paths.state_dir, &paths.run_dir] {
        std::fs::create_dir_all(directory)
            .map_err(|e| format!("cannot create {}: {e}", directory.display()))?;
    }
    let files = Files::open(&paths.state_dir)
        .map_err(|e| format!("cannot use {}: {e}", paths.state_dir.display()))?;
    let control = Control::listen(&paths.run_dir)
        .map_err(|e| format!("cannot listen in {}: {e}", paths.run_dir.display()))?;
    let me = ReplicaId(config.group.me);
    let own = config
        .group
        .replica
        .iter()
        .find(|it| it.id == config.group.me);
    let ip = own.ok_or("group.me has no [[group.replica]]")?.address.ip();
    let address = serve(ip, files.clone())
        .map_err(|e| format!("cannot listen for the other replicas at {ip}: {e}"))?;
    let fabric = match plover_node::open_fabric(&config.group)? {
        Some(fabric) => fabric,
        None => alone(&config, me)?,
    };
    let log = paths.state_dir.join("log");
    let name = &config.group.name;
    let mut server = Server::in_directory(config.log(), fabric, LogOnly, &log, name)?;
    let epoll = Arc::new(epoll::create(CreateFlags::CLOEXEC)?);
    server.watch(epoll.as_fd())?;
    let stop = Stop::new()?;
    let jobs = Jobs::new(files.clone(), &config.program, me)?;
    for waker in [jobs.as_fd(), control.as_fd(), stop.0.1.as_fd()] {
        epoll::add(&*epoll, waker, EventData::new_u64(WAKER), EventFlags::IN)?;
    }
    let log_bytes = (config.group.log_mib as u64) << 20;
    let brain = plover_program::Config {
        me,
        members: config.members(),
        address: address.to_string(),
        check: config.program.check.0,
        checkpoints: config.takes_checkpoints(),
        checkpoint_bytes: log_bytes / 4,
        checkpoint_bytes_max: log_bytes / 2,
        stall: Micros::from_ms(config.program.stall_ms),
        checkpoint_within: Micros::from_ms(2000 * config.program.snapshot_s),
        canary: Canary::None,
    };
    let newest = files.newest()?;
    if !config.takes_checkpoints() {
        tracing::warn!(
            log_mib = config.group.log_mib,
            "there is no way to take checkpoints (program.snapshot_cmd): when the log is full of inputs, the group \
             takes no more"
        );
    }
    let mut body = Body {
        clients: Clients::new(epoll.clone(), CLIENT, LISTENER, server.entry_bytes_max()),
        sockets: Sockets::new(config.program_address(), epoll.clone(), SOCKET)?,
        brain: Replica::new(brain, newest),
        program: None,
        starting: None,
        starts: 0,
        archiving: None,
        jobs,
        files,
        control,
        face: None,
        face_at: Instant::now(),
        face_failures: 0,
        epoll,
        stop: stop.clone(),
        began: Instant::now(),
        looks: 0,
        died: None,
        notes: Vec::new(),
        out: Vec::new(),
        entry: Vec::new(),
        config,
        words,
        server,
    };
    ready(stop);
    body.live()
}

/// The fabric of a group of one, which reaches nobody.
fn alone(config: &RunConfig, me: ReplicaId) -> Result<plover_fabric::BoxedFabric, BoxError> {
    use plover_fabric::{ShmConfig, ShmFabric};
    let name = config.group.name.clone();
    Ok(Box::new(ShmFabric::new(ShmConfig::new(
        name,
        me,
        Vec::new(),
    ))?))
}

impl Body {
    fn live(&mut self) -> Result<(), BoxError> {
        while !self.stop.0.0.load(Ordering::SeqCst) {
            self.server.turn(Some(self.patience()))?;
            self.step()?;
        }
        tracing::info!("ending");
        self.clients.drop_all();
        self.face = None;
        self.server.set_may_lead(false);
        self.server.turn(Some(Duration::ZERO))?;
        if let Some(program) = self.program.take() {
            program.end();
        }
        Ok(())
    }

    fn now(&self) -> Micros {
        Micros(self.began.elapsed().as_micros() as u64 + 1)
    }

    /// How long the loop may sleep.
    fn patience(&self) -> Duration {
        let commit = self.server.status().commit;
        if self.brain.wants().is_some_and(|index| index <= commit) {
            return Duration::ZERO;
        }
        let due = self.brain.deadline().since(self.now());
        let mut patience = IDLE.min(Duration::from_micros(due.0));
        if self.sockets.waits() {
            let look = READ_LOOKS[self.looks.min(READ_LOOKS.len() - 1)];
            patience = patience.min(Duration::from_micros(look));
        }
        if matches!(self.starting, Some(Starting::Listening(..))) {
            patience = patience.min(LOOK_EVERY);
        }
        if self.brain.serves() != self.clients.is_listening() || self.face.is_some() {
            patience = patience.min(AGAIN_AFTER / 2);
        }
        patience
    }

    fn step(&mut self) -> Result<(), BoxError> {
        self.take_ready()?;
        for done in self.jobs.take() {
            self.finish(done);
        }
        self.look_at_program();
        self.look_at_log();
        self.take_entries();
        for id in self.sockets.take_read() {
            self.looks = 0;
            self.apply(Event::Consumed(id));
        }
        self.looks += 1;
        self.take_entries();
        self.face_clients();
        self.answer();
        self.server.set_may_lead(self.brain.may_lead());
        // What was proposed leaves now, and a group of one has committed it.
        self.server.turn_until(Duration::ZERO, |_| true)?;
        Ok(())
    }

    fn take_ready(&mut self) -> Result<(), BoxError> {
        let mut events = Vec::with_capacity(256);
        let no_time = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        match epoll::wait(
            &*self.epoll,
            rustix::buffer::spare_capacity(&mut events),
            Some(&no_time),
        ) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in events {
            let (token, flags) = (event.data.u64(), event.flags);
            match token & KIND {
                CLIENT => {
                    let server = &mut self.server;
                    self.clients
                        .ready(token, flags, &mut |entry| propose(server, entry));
                }
                SOCKET => {
                    let mut from = Vec::new();
                    self.sockets.ready(token, flags, &mut from);
                    for from in from {
                        match from {
                            FromProgram::Output(id, bytes) => self.apply(Event::Output(id, &bytes)),
                            FromProgram::Ended(id) => {
                                // A program that dies has not ended its connections: others go on with them.
                                if self.program.as_ref().is_some_and(|it| !it.is_ending()) {
                                    self.apply(Event::OutputEnded(id));
                                }
                            }
                        }
                    }
                }
                LISTENER => {
                    let server = &mut self.server;
                    self.clients.accept(&mut |entry| propose(server, entry));
                }
                _ => {}
            }
        }
        Ok(())
    }

    // ---- the brain

    fn apply(&mut self, event: Event<'_>) {
        let now = self.now();
        let mut out = std::mem::take(&mut self.out);
        self.brain.apply(now, event, &mut out);
        for action in out.drain(..) {
            self.obey(action);
        }
        self.out = out;
    }

    fn look_at_log(&mut self) {
        let status = self.server.status();
        let own = self.brain.own().map(|own| own.at.index);
        let state = LogState {
            leads: self.server.leads().then_some(status.view),
            base: status.base,
            commit: status.commit,
            last: status.last,
            bytes: status.log_bytes as u64,
            linked: self.server.peers_up(),
            at_own: own.and_then(|index| self.server.viewstamp(index)),
        };
        self.apply(Event::Log(state));
    }

    fn take_entries(&mut self) {
        for _ in 0..ENTRIES_PER_TURN {
            let commit = self.server.status().commit;
            let Some(index) = self.brain.wants().filter(|index| *index <= commit) else {
                return;
            };
            let mut bytes = std::mem::take(&mut self.entry);
            bytes.clear();
            let Some((at, payload)) = self.server.entry(index) else {
                return;
            };
            let is_app = payload.is_some();
            bytes.extend_from_slice(payload.unwrap_or_default());
            self.looks = 0;
            self.apply(Event::Entry(at, is_app.then_some(&bytes[..])));
            self.entry = bytes;
        }
    }

    fn obey(&mut self, action: Action) {
        match action {
            Action::Propose(bytes) => self.server.suggest(&bytes),
            Action::Connect(id) => {
                if let Err(error) = self.sockets.connect(id) {
                    // Told in the next turn, since the brain is in the middle of this one.
                    self.died = Some(format!(
                        "no connection to it can be opened: {error}; raise `ulimit -n`"
                    ));
                }
            }
            Action::Feed(id, bytes) => self.sockets.feed(id, &bytes),
            Action::EndInput(id) => self.sockets.end(id),
            Action::Close(id) => {
                self.sockets.close(id);
                self.clients.close(id);
            }
            Action::Reply(id, bytes) => self.clients.reply(id, &bytes),
            Action::Finish(id) => self.clients.finish(id),
            Action::DropClients => {
                self.clients.drop_all();
                self.face = None;
            }
            Action::Start(from) => self.start(from),
            Action::Stop => {
                self.program = None;
                self.starting = None;
                self.sockets.clear();
                if let Some(wanted) = &mut self.archiving {
                    *wanted = false;
                }
            }
            Action::TakeCheckpoint(at) => {
                self.archiving = Some(true);
                let ends = self.config.program.snapshot_by_stop;
                let program = if ends { self.program.take() } else { None };
                self.jobs.archive(at, program);
            }
            Action::Fetch(held) => self.jobs.fetch(held),
            Action::Discard(at) => {
                if let Some(own) = self.files.find(at) {
                    self.files.remove(&own);
                }
            }
            Action::Trim(index) => self.server.trim_behind(index),
            Action::Note(note) => self.note(&note),
        }
    }

    // ---- the program

    fn start(&mut self, from: Option<Viewstamp>) {
        self.program = None;
        self.sockets.clear();
        if self.archiving.is_some() {
            self.starting = Some(Starting::Queued(from));
            return;
        }
        self.starting = Some(Starting::Preparing);
        self.jobs.prepare(from);
    }

    /// A job is done.
    fn finish(&mut self, done: Done) {
        match done {
            Done::Prepared(result) => {
                if matches!(self.starting, Some(Starting::Preparing)) {
                    if let Err(why) = result.and_then(|()| self.spawn(None)) {
                        self.starting = None;
                        self.apply(Event::StartFailed(why));
                    }
                }
            }
            Done::Ready(start, result) => self.readied(start, result),
            Done::Archived(result) => self.archived(result),
            Done::Fetched(result) => {
                if result.is_ok() {
                    let _ = self.files.newest();
                }
                self.apply(Event::Fetched(result));
            }
        }
    }

    fn archived(&mut self, result: Result<Own, String>) {
        let is_wanted = self.archiving.take() == Some(true);
        if !is_wanted {
            // The program was stopped meanwhile, and its directory may not be whole.
            if let Ok(own) = result {
                self.files.remove(&own);
            }
            self.apply(Event::CheckpointTaken(
                Err("the program was stopped".into()),
            ));
            if let Some(Starting::Queued(from)) = self.starting {
                self.start(from);
            }
            return;
        }
        if result.is_ok() {
            let _ = self.files.newest();
        }
        if !self.config.program.snapshot_by_stop {
            return self.apply(Event::CheckpointTaken(result));
        }
        match result {
            Ok(own) => {
                if let Err(why) = self.spawn(Some(own)) {
                    self.starting = None;
                    self.apply(Event::Died(why));
                }
            }
            Err(why) => {
                self.apply(Event::CheckpointTaken(Err(why.clone())));
                self.apply(Event::Died(why));
            }
        }
    }

    /// Starts the process.
    fn spawn(&mut self, after: Option<Own>) -> Result<(), String> {
        let port = self.config.program.port;
        if self
            .sockets
            .is_served()
            .map_err(|e| format!("cannot ask the kernel about port {port}: {e}"))?
        {
            return Err(format!(
                "another process listens on port {port} (program.port): end it, or give the program another port"
            ));
        }
        let name = self
            .words
            .first()
            .map(|it| it.to_string_lossy().into_owned());
        let name = name.unwrap_or_default();
        let program = Program::start(&self.words, &self.files.data);
        let program = program.map_err(|e| format!("cannot start the program '{name}': {e}"))?;
        epoll::add(
            &*self.epoll,
            &program,
            EventData::new_u64(CHILD),
            EventFlags::IN,
        )
        .map_err(|e| format!("cannot watch the program: {e}"))?;
        let within = Duration::from_secs(self.config.program.start_s);
        self.program = Some(program);
        self.starting = Some(Starting::Listening(Instant::now() + within, after));
        Ok(())
    }

    /// Whether the program has ended, or listens at last.
    fn look_at_program(&mut self) {
        if let Some(why) = self.died.take() {
            return self.apply(Event::Died(why));
        }
        if let Some(why) = self.program.as_mut().and_then(Program::ended) {
            self.program = None;
            self.sockets.clear();
            return match self.starting.take() {
                Some(Starting::Listening(_, None)) => {
                    let port = self.config.program.port;
                    self.apply(Event::StartFailed(format!(
                        "{why} before it listened on port {port}"
                    )));
                }
                Some(Starting::Readying(_, None)) => {
                    self.apply(Event::StartFailed(format!("{why} before it was ready")));
                }
                _ => self.apply(Event::Died(why)),
            };
        }
        let Some(Starting::Listening(until, _)) = &self.starting else {
            return;
        };
        let until = *until;
        let listens = self.sockets.is_served().unwrap_or(false);
        if !listens && Instant::now() < until {
            return;
        }
        let Some(Starting::Listening(_, after)) = self.starting.take() else {
            return;
        };
        if !listens {
            return self.started(
                after,
                Err(format!(
                    "it does not listen at {} after {} s (program.address, program.port, program.start_s)",
                    self.config.program_address(),
                    self.config.program.start_s
                )),
            );
        }
        self.starts += 1;
        if self.jobs.await_ready(self.starts, until) {
            self.starting = Some(Starting::Readying(self.starts, after));
        } else {
            self.started(after, Ok(()));
        }
    }

    /// The command has said whether the program is ready.
    fn readied(&mut self, start: u64, result: Result<(), String>) {
        if !matches!(self.starting, Some(Starting::Readying(asked, _)) if asked == start) {
            // The program has ended meanwhile.
            return;
        }
        if let Some(Starting::Readying(_, after)) = self.starting.take() {
            let within = self.config.program.start_s;
            self.started(
                after,
                result.map_err(|why| {
                    format!("it is not ready after {within} s (program.ready_cmd, program.start_s): {why}")
                }),
            );
        }
    }

    /// The program can be given input, or its start has failed. With a checkpoint: it was ended for that.
    fn started(&mut self, after: Option<Own>, result: Result<(), String>) {
        match (result, after) {
            (Ok(()), None) => self.apply(Event::Started),
            (Ok(()), Some(own)) => self.apply(Event::CheckpointTaken(Ok(own))),
            (Err(why), None) => self.apply(Event::StartFailed(why)),
            (Err(why), Some(_)) => self.apply(Event::Died(why)),
        }
    }

    // ---- clients and operators

    /// Takes the clients' address, or gives it up, and reads clients as far as the brain takes their input.
    fn face_clients(&mut self) {
        let server = &mut self.server;
        self.clients.retry(&mut |entry| propose(server, entry));
        if !self.brain.serves() {
            if self.clients.is_listening() {
                self.clients.drop_all();
            }
            self.face = None;
            return;
        }
        if !self.clients.is_listening() && Instant::now() >= self.face_at {
            self.face_at = Instant::now() + AGAIN_AFTER;
            match self.take_address() {
                Ok(()) => self.face_failures = 0,
                Err(why) => {
                    self.face_failures += 1;
                    // The leader before may need a moment to let go of it.
                    if self.face_failures == FACE_TRIES {
                        tracing::error!("{why}");
                        self.remember(why);
                    }
                }
            }
        }
        if let Some(face) = &mut self.face {
            face.advance();
        }
        self.clients.set_reads(self.brain.accepts());
    }

    fn take_address(&mut self) -> Result<(), String> {
        let listen = self.config.program.listen;
        if let (Some(device), true) = (&self.config.program.device, self.face.is_none()) {
            let face = Face::take(*listen.ip(), device);
            let face = face.map_err(|e| format!(
                "cannot take the clients' address {} on {device} (program.device): {e}; it needs root and /dev/net/tun",
                listen.ip()
            ))?;
            self.face = Some(face);
        }
        self.clients.listen(listen).map_err(|e| {
            format!(
                "cannot listen for clients at {listen} (program.listen): {e}; the address must be on this host, or \
                 program.device must be given"
            )
        })
    }

    fn remember(&mut self, text: String) {
        self.notes.push(text);
        let old = self.notes.len().saturating_sub(8);
        self.notes.drain(..old);
    }

    fn note(&mut self, note: &Note) {
        let text = describe(note);
        match note {
            Note::Runs(_) | Note::Serves(_) => tracing::info!("{text}"),
            Note::Restores(Taint::Behind) => tracing::info!("{text}"),
            _ => {
                tracing::warn!("{text}");
                self.remember(text);
            }
        }
    }

    fn answer(&mut self) {
        for (request, reply) in self.control.take() {
            let answer = match request.as_str() {
                "status" => self.status(),
                "begin" if self.server.begin() => json!({"ok": true}),
                "begin" => {
                    json!({"error": "no new log was begun: some replica still holds the old one, has not \
                    answered, or another one begins it (the one with the lowest id); start the replicas that are down"})
                }
                _ => json!({"error": format!("'{request}' is no request")}),
            };
            let _ = reply.send(answer);
        }
    }

    fn status(&self) -> Value {
        let (log, brain) = (self.server.status(), self.brain.status());
        let index = |index: Option<Index>| index.map(|it| it.0);
        json!({
            "id": self.config.group.me,
            "group": self.config.group.name,
            "phase": brain.phase,
            "consensus": format!("{:?}", log.phase).to_lowercase(),
            "view": log.view.0,
            "leader": log.leader.map(|it| it.0),
            "lost": self.server.is_lost(),
            "committed": log.commit.0,
            "executed": brain.executed.0,
            "stalled": brain.stalled,
            "log_bytes": log.log_bytes,
            "log_begins": log.base.0,
            "checkpoint": index(brain.checkpoint),
            "newest_checkpoint": index(brain.newest),
            "connections": brain.connections,
            "clients": self.clients.count(),
            "serves": self.clients.is_listening(),
            "listen": self.config.program.listen.to_string(),
            "plover_pid": std::process::id(),
            "program_pid": self.program.as_ref().map(Program::pid),
            "stopped_because": brain.taint.map(|it| why(&it)),
            "notes": self.notes,
        })
    }
}

/// Proposes what a client has sent. The last of the log's room is kept for the entries of replicas, since only these let
/// it be trimmed: announcements of checkpoints, and the cut of a new leader.
fn propose(
    server: &mut Server<LogOnly>,
    entry: &Entry<'_>,
) -> Result<Viewstamp, plover_log::Error> {
    let room = server.log_bytes_max();
    if server.status().log_bytes > room - room / RESERVED {
        return Err(plover_log::Error::Full);
    }
    server.propose_only(&entry.encode())
}

fn why(taint: &Taint) -> String {
    match taint {
        Taint::Died(how) => format!("the program has died: {how}"),
        Taint::NotStarted(how) => format!("the program did not start: {how}"),
        Taint::Diverged(id) => {
            format!("the program has sent something else than the others on connection {id}")
        }
        Taint::Behind => "the log does not hold the program's next input any more".into(),
    }
}

/// A note as a sentence.
fn describe(note: &Note) -> String {
    match note {
        Note::Runs(index) => format!("the program runs, and goes on behind entry {index}"),
        Note::Restores(taint) => format!("{}: it is started again, from a checkpoint or the log's beginning", why(taint)),
        Note::Serves(view) => format!("clients are served in view {view}"),
        Note::Differs(it) => format!(
            "{} sent different bytes on connection {}, in the piece from byte {}; no majority tells which is right",
            it.replicas.in_words(), it.connection, it.from
        ),
        Note::Wrong(it) => format!(
            "{} sent something else than the majority on connection {}, in the piece from byte {}",
            it.replicas.in_words(), it.connection, it.from
        ),
        Note::Excerpts(it) => format!(
            "connection {} differs at byte {}: replica {} sent {:?}, replica {} sent {:?}",
            it.connection, it.position,
            it.one.0.0, String::from_utf8_lossy(&it.one.1), it.other.0.0, String::from_utf8_lossy(&it.other.1)
        ),
        Note::CheckpointFailed(why) => format!("a checkpoint failed: {why}"),
        Note::NoCheckpoint => "the log begins behind every checkpoint that this replica can get: it waits for a new one".into(),
    }
}
