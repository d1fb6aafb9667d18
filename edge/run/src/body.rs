//! One replica: the loop that waits, applies, acts.

mod begin;
mod directly;
mod facing;
mod program;
mod words;

pub use begin::run;

use crate::BoxError;
use crate::clients::Clients;
use crate::config::RunConfig;
use crate::control::Control;
use crate::direct::{self, Direct};
use crate::face::{Face, LowNumber};
use crate::files::Files;
use crate::jobs::Jobs;
use crate::orphans::Known;
use crate::program::Program;
use crate::sockets::{FromProgram, Sockets};
use plover_log::{LogOnly, Server};
use plover_program::{Action, Entry, Event, LogState, Own, Replica, State};
use plover_types::{Index, Micros, Viewstamp};
use rustix::event::epoll;
use rustix::event::{EventfdFlags, Timespec, eventfd};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::rc::Rc;
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
const DOOR: u64 = 6 << 60;

/// Entries that one turn takes at most.
const ENTRIES_PER_TURN: usize = 256;

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
    /// The bytes of the log that clients can fill.
    room: usize,
    clients: Clients,
    /// The program reads its clients itself.
    direct: Option<Direct>,
    listens_late: Option<Instant>,
    /// The commit index that the brain knows.
    commit: Index,
    sockets: Sockets,
    program: Option<Program>,
    starting: Option<Starting>,
    /// The state of the checkpoint that the program is started from.
    restored: State,
    /// Counts starts of the program.
    starts: u64,
    /// A checkpoint is being archived; what calls it off.
    archiving: Option<Arc<AtomicBool>>,
    jobs: Jobs,
    files: Files,
    control: Control,
    face: Option<Face>,
    face_at: Instant,
    low_number: Rc<LowNumber>,
    /// When this replica had the lease last.
    leased_at: Instant,
    clients_known: Known,
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

impl Body {
    fn live(&mut self) -> Result<(), BoxError> {
        while !self.stop.0.0.load(Ordering::SeqCst) {
            let mut patience = self.patience();
            if let Some(direct) = &self.direct {
                patience = direct.before_sleep(patience);
            }
            self.server.turn(Some(patience))?;
            if let Some(direct) = &mut self.direct {
                direct.after_sleep();
            }
            self.step()?;
        }
        tracing::info!("ending");
        self.clients.drop_all();
        if let Some(direct) = &mut self.direct {
            direct.cut_off();
        }
        self.face = None;
        self.server.set_may_lead(false);
        self.server.turn(Some(Duration::ZERO))?;
        if let Some(program) = self.program.take() {
            // Nothing is made of its state.
            let _ = program.end();
        }
        Ok(())
    }

    fn now(&self) -> Micros {
        Micros(self.began.elapsed().as_micros() as u64 + 1)
    }

    /// How long the loop may sleep.
    fn patience(&self) -> Duration {
        let commit = self.server.status().commit;
        // A group of one commits what it has just proposed, and nothing wakes it for that.
        if commit != self.commit || self.brain.wants().is_some_and(|index| index <= commit) {
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
        if self.brain.serves() != self.faces() || self.face.is_some() {
            patience = patience.min(AGAIN_AFTER / 2);
        }
        if self.direct.is_some() && self.brain.serves() {
            patience = patience.min(direct::LOOK_EVERY);
        }
        patience
    }

    fn step(&mut self) -> Result<(), BoxError> {
        self.take_lease();
        self.take_ready()?;
        for done in self.jobs.take() {
            self.finish(done);
        }
        self.look_at_program();
        self.look_at_log();
        self.pump();
        self.take_entries();
        for id in self.sockets.take_read() {
            self.looks = 0;
            self.apply(Event::Consumed(id));
        }
        self.looks += 1;
        self.take_entries();
        self.look_at_direct();
        self.face_clients();
        self.answer();
        self.server.set_may_lead(self.brain.may_lead());
        // Before the others hear that it leads no more.
        self.take_lease();
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
                    let (server, room) = (&mut self.server, self.room);
                    self.clients
                        .ready(token, flags, &mut |entry| propose(server, room, entry));
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
                DOOR => {
                    if let Some(direct) = &mut self.direct {
                        direct.ready(token);
                    }
                }
                LISTENER => {
                    if let Some(direct) = &mut self.direct {
                        for (stream, client) in self.clients.take_new(direct.clients()) {
                            direct.offer(stream, client);
                        }
                        continue;
                    }
                    let (server, room) = (&mut self.server, self.room);
                    self.clients
                        .accept(&mut |entry| propose(server, room, entry));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The program's output reaches clients as long as no other replica can lead.
    fn take_lease(&mut self) {
        let until = self.server.leased_until();
        self.clients.lease(until);
        self.directly(|direct| direct.lease(until));
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
        self.commit = status.commit;
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
            Action::Connect(id, client) => {
                self.clients_known.opens(id, client);
                let direct = &mut self.direct;
                let bound = |port| {
                    if let Some(direct) = direct {
                        direct.replay(port, client);
                    }
                };
                if let Err(error) = self.sockets.connect(id, bound) {
                    // Told in the next turn, since the brain is in the middle of this one.
                    let remedy = match error.kind() {
                        ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable => {
                            "widen net.ipv4.ip_local_port_range"
                        }
                        _ => "raise `ulimit -n`",
                    };
                    self.died = Some(format!(
                        "no connection to it can be opened: {error}; {remedy}"
                    ));
                }
            }
            Action::Feed(id, bytes) => self.sockets.feed(id, &bytes),
            Action::EndInput(id) => self.sockets.end(id),
            Action::Clock(us) => self.directly(|direct| direct.set_next_time(us)),
            Action::Close(id) => {
                self.clients_known.ends(Instant::now(), id);
                match &mut self.direct {
                    Some(direct) if !self.sockets.has(id) => direct.close(id),
                    _ => {
                        self.sockets.close(id);
                        self.clients.close(id);
                    }
                }
            }
            Action::Release(at) => self.directly(|direct| direct.release(at)),
            Action::Forget => self.directly(Direct::forget),
            Action::Quiesce => self.directly(Direct::quiesce),
            Action::Reply(id, bytes) => self.clients.reply(id, &bytes),
            Action::Finish(id) => self.clients.finish(id),
            Action::DropClients => {
                self.clients.drop_all();
                self.directly(Direct::cut_off);
                self.face = None;
            }
            Action::Start(from) => self.start(from),
            Action::Stop => {
                self.program = None;
                if let Some(Starting::Listening(_, Some(own)) | Starting::Readying(_, Some(own))) =
                    self.starting.take()
                {
                    self.files.remove(&own);
                }
                self.forget_connections();
                self.call_off_archive();
            }
            Action::TakeCheckpoint(at, state) => {
                self.restored.time = state.time;
                let ends = self.config.program.snapshot_by_stop;
                let program = if ends { self.program.take() } else { None };
                if ends {
                    // A program that waits for its clients would not end.
                    self.sockets.clear();
                }
                self.archiving = Some(self.jobs.archive(at, state, program));
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
}

/// Proposes what a client has sent, if the log holds no more than `room` bytes.
fn propose(
    server: &mut Server<LogOnly>,
    room: usize,
    entry: &Entry<'_>,
) -> Result<Viewstamp, plover_log::Error> {
    if server.status().log_bytes > room {
        return Err(plover_log::Error::Full);
    }
    server.propose_only(&entry.encode())
}
