//! The server: one thread's loop that owns consensus, the fabric and the state.
//!
//! ```text
//!            ┌──────────────────────── a turn ────────────────────────┐
//!   sleep ─► │ fabric, disk, clients ─► core ─► commands ─► machine   │ ─► flush ─► sleep
//!            └────────────────────────────────────────────────────────┘
//! ```
//!
//! It sleeps in one `ppoll` until something happens or is due. What one turn writes leaves in
//! one go at its end, so what waits while a write is in flight travels together.
//!
//! A proposer can drive the turns itself ([`Server::append`]); then no thread is handed anything
//! over between the proposal and its answer. [`Server::run`] is for all others.

use crate::address::{Address, Listener};
use crate::client::{Client, Inbox, Shared, Ticket};
use crate::door::Door;
use crate::envelope::{self, SessionRequest};
use crate::inline::Inline;
use crate::mail::{Incoming, Outgoing};
use crate::members::Change;
use crate::nap::Wakers;
use crate::pending::{Origin, Proposals};
use crate::replicated::Replicated;
use crate::stable::Stable;
use crate::{Config, Error, ServerError, StateMachine};
use apus::{Apus, Command, EntryKind, Event, ProposeError, Start};
use plover_fabric::{Fabric, FabricEvent, Lane};
use plover_types::{Micros, ReplicaId, ReplicaSet, Viewstamp};
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The largest message between replicas, whatever the fabric would carry: what a ring of the
/// default size holds eight of, so that a full window never overflows it.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// One replica of a log.
pub struct Server<M> {
    pub(crate) config: Config,
    pub(crate) core: Apus,
    pub(crate) fabric: Box<dyn Fabric + Send>,
    pub(crate) stable: Stable,
    pub(crate) state: Replicated<M>,
    pub(crate) commands: Vec<Command>,
    pub(crate) commands_spare: Vec<Command>,
    happened: Vec<FabricEvent>,
    pub(crate) proposals: Proposals,
    pub(crate) shared: Arc<Shared>,
    /// Entries of clients that are being proposed, and how far that has come.
    pub(crate) taken: Inbox,
    taken_bytes: usize,
    pub(crate) inline: Inline,
    pub(crate) door: Option<Door>,
    /// Connections whose next request waits for room in the log.
    pub(crate) stalled: Vec<u32>,
    /// Clients that follow the log can be sent more at once.
    pub(crate) tails_wait: bool,
    /// The last delivered entry.
    pub(crate) commit: Viewstamp,
    /// Where the others serve clients.
    pub(crate) book: BTreeMap<ReplicaId, String>,
    pub(crate) linked: ReplicaSet,
    pub(crate) alive: ReplicaSet,
    pub(crate) outgoing: Outgoing,
    pub(crate) incoming: Option<Incoming>,
    /// A change of the group that a client has asked for.
    pub(crate) change: Option<Change>,
    /// Replicas that were let go, and when their links end.
    pub(crate) departing: Vec<(ReplicaId, Micros)>,
    /// Every replica has lost the log; the operator decides.
    pub(crate) lost: bool,
    pub(crate) rejected: u64,
    pub(crate) entry_bytes_max: usize,
    pub(crate) wakers: Option<Wakers>,
    started: Instant,
}

impl<M> std::fmt::Debug for Server<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("config", &self.config)
            .field("core", &self.core.status())
            .finish_non_exhaustive()
    }
}

impl<M: StateMachine> Server<M> {
    /// A replica whose log lives in memory and that remembers nothing. If all replicas of a
    /// group end, the group begins anew with an empty log.
    pub fn in_memory(
        config: Config,
        fabric: impl Fabric + Send + 'static,
        machine: M,
    ) -> Result<Self, ServerError> {
        let stable = Stable::default();
        Self::open(config, Box::new(fabric), machine, (stable, Start::Fresh))
    }

    /// A replica that keeps in `dir` what [`Config::durability`] asks for: with `Memory` its
    /// promise, so that it may recover from a leader alone; with `Disk` the log, so that the
    /// group goes on where it was after all of it has ended. `group` names the group, so that
    /// directories are not mixed up.
    ///
    /// # Errors
    ///
    /// [`ServerError::Store`] when another process uses `dir`, it belongs to another group, or it
    /// cannot be read.
    pub fn in_directory(
        config: Config,
        fabric: impl Fabric + Send + 'static,
        machine: M,
        dir: &Path,
        group: &str,
    ) -> Result<Self, ServerError> {
        let (stable, start, snapshot) = Stable::open(dir, group, &config)?;
        let mut server = Self::open(config, Box::new(fabric), machine, (stable, start))?;
        if let Some(snapshot) = snapshot {
            let group = server.state.restore(&snapshot, server.core.generation());
            let unusable = |why| ServerError::Snapshot {
                dir: dir.into(),
                why,
            };
            match group.map_err(unusable)? {
                Some(group) => server.regroup(group),
                None => tracing::info!("the snapshot is of the log before this one: not used"),
            }
        }
        server.settle()?;
        Ok(server)
    }

    fn open(
        config: Config,
        mut fabric: Box<dyn Fabric + Send>,
        machine: M,
        (stable, start): (Stable, Start),
    ) -> Result<Self, ServerError> {
        let mut seed = [0; 8];
        rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())
            .map_err(ServerError::system("draw a random number"))?;
        let message_bytes_max = fabric.record_bytes_max(Lane::Log).min(MESSAGE_BYTES_MAX);
        let core = apus::Config {
            me: config.me,
            members: config.members,
            first_leader: config.first_leader(),
            any_voter_stands: true,
            pair: false,
            quorum_selection: true,
            heartbeat: config.heartbeat,
            timeout: config.timeout,
            durability: config.durability,
            log_bytes_max: config.log_bytes_max,
            message_bytes_max,
            seed: u64::from_le_bytes(seed),
            canary: apus::Canary::None,
        };
        let shared = Shared::new().map_err(ServerError::system("make an eventfd"))?;
        let wakers = Wakers::attach(&mut fabric, shared.wake.as_fd(), stable.wait_fd());
        let mut server = Self {
            core: Apus::new(core, start, Micros(1)),
            state: Replicated::new(machine, config.group(), config.check_outputs),
            fabric,
            stable,
            commands: Vec::new(),
            commands_spare: Vec::new(),
            happened: Vec::new(),
            proposals: Proposals::default(),
            shared: Arc::new(shared),
            taken: Inbox::default(),
            taken_bytes: 0,
            inline: Inline::default(),
            door: None,
            stalled: Vec::new(),
            tails_wait: false,
            commit: Viewstamp::default(),
            book: BTreeMap::new(),
            linked: ReplicaSet::EMPTY,
            alive: ReplicaSet::EMPTY,
            outgoing: Outgoing::default(),
            incoming: None,
            change: None,
            departing: Vec::new(),
            lost: false,
            rejected: 0,
            entry_bytes_max: message_bytes_max.saturating_sub(ENTRY_OVERHEAD_MAX),
            wakers,
            started: Instant::now(),
            config,
        };
        server.tick();
        Ok(server)
    }

    /// Lets remote clients in at `address`. Says where it listens: the port, if that was left
    /// to the kernel.
    pub fn listen(&mut self, address: &Address) -> Result<Address, ServerError> {
        let failed = |source| ServerError::Listen {
            address: address.to_string(),
            source,
        };
        let listener = Listener::bind(address).map_err(failed)?;
        let door = Door::open(listener).map_err(ServerError::system("make an epoll descriptor"))?;
        let address = door.address().clone();
        if let Some(wakers) = &mut self.wakers {
            wakers.door = self.fabric.attach(door.epoll.as_fd()).ok();
        }
        self.door = Some(door);
        Ok(address)
    }

    /// A handle for proposers in other threads. They get answers while somebody
    /// [runs](Self::run) the server.
    pub fn client(&self) -> Client {
        Client::new(Arc::clone(&self.shared))
    }

    /// Takes turns until a [`Stopper`] says that it is enough.
    pub fn run(&mut self) -> Result<(), ServerError> {
        while !self.shared.take_stop() {
            self.turn(None)?;
        }
        Ok(())
    }

    /// What ends [`run`](Self::run) from another thread.
    pub fn stopper(&self) -> Stopper {
        Stopper {
            shared: Arc::clone(&self.shared),
        }
    }

    /// Takes on what waits, sleeps until something happens (at most for `patience`), and deals
    /// with it.
    pub fn turn(&mut self, patience: Option<Duration>) -> Result<(), ServerError> {
        self.take_requests();
        self.settle()?;
        self.sleep(patience)?;
        self.take_records()?;
        self.take_stored()?;
        self.take_remote();
        self.take_requests();
        if self.now() >= self.core.deadline() {
            self.tick();
        }
        self.settle()
    }

    /// This replica's clock: microseconds since it started, never zero.
    pub(crate) fn now(&self) -> Micros {
        Micros(self.started.elapsed().as_micros() as u64 + 1)
    }

    fn tick(&mut self) {
        let now = self.now();
        self.core.apply(now, Event::Tick, &mut self.commands);
    }

    /// Feeds consensus what its peers have written.
    fn take_records(&mut self) -> Result<(), ServerError> {
        let mut happened = std::mem::take(&mut self.happened);
        self.fabric.progress(&mut happened);
        let now = self.now();
        for event in happened.drain(..) {
            match event {
                FabricEvent::Record {
                    from,
                    lane: Lane::Log,
                    bytes,
                } => {
                    let received = Event::Received {
                        from,
                        bytes: &bytes,
                    };
                    self.core.apply(now, received, &mut self.commands);
                    self.fabric.recycle(bytes);
                }
                FabricEvent::Record {
                    from,
                    lane: Lane::Bulk,
                    bytes,
                } => {
                    self.take_mail(from, &bytes)?;
                    self.fabric.recycle(bytes);
                }
                FabricEvent::Up(peer) => self.linked(peer, true),
                FabricEvent::Down(peer) => self.linked(peer, false),
                // The core repeats what matters, and snapshots go on each turn.
                FabricEvent::Room { .. } => {}
            }
        }
        self.happened = happened;
        Ok(())
    }

    /// Proposes what clients in other threads have handed over, as far as the log has room.
    fn take_requests(&mut self) {
        if self.taken.requests.is_empty() {
            self.taken_bytes = 0;
            self.shared.take(&mut self.taken);
        }
        let bytes = std::mem::take(&mut self.taken.bytes);
        while let Some(request) = self.taken.requests.pop_front() {
            let end = self.taken_bytes + request.bytes;
            let entry = &bytes[self.taken_bytes..end];
            let origin = Origin::Client(Arc::clone(&request.slot), request.ticket);
            match self.propose(None, entry, origin) {
                Ok(()) => {}
                Err(Error::Full) => {
                    self.taken.requests.push_front(request);
                    break;
                }
                Err(error) => request.slot.complete(request.ticket, Err(error), &[]),
            }
            self.taken_bytes = end;
        }
        self.taken.bytes = bytes;
    }

    /// Proposes an entry for `origin`, who is told when it is committed.
    pub(crate) fn propose(
        &mut self,
        session: Option<SessionRequest>,
        bytes: &[u8],
        origin: Origin,
    ) -> Result<(), Error> {
        if bytes.len() > self.entry_bytes_max {
            return Err(Error::TooLarge {
                bytes: bytes.len(),
                max: self.entry_bytes_max,
            });
        }
        let room = bytes.len() + envelope::ENVELOPE_BYTES_MAX;
        let mut payload = self.core.buffer(room);
        envelope::put(session, bytes, &mut payload);
        self.propose_payload(payload, origin)
    }

    pub(crate) fn propose_payload(
        &mut self,
        payload: Vec<u8>,
        origin: Origin,
    ) -> Result<(), Error> {
        let now = self.now();
        let proposed = self.core.propose(now, EntryKind::App, payload);
        match proposed {
            Ok(at) => {
                self.proposals.push(at, origin);
                Ok(())
            }
            Err(ProposeError::LogFull) => Err(Error::Full),
            Err(ProposeError::NotLeader) => Err(Error::NotLeader {
                leader: self.core.status().leader,
            }),
            Err(ProposeError::TooLarge(bytes)) => Err(Error::TooLarge {
                bytes,
                max: self.entry_bytes_max,
            }),
            Err(ProposeError::Members(error)) => unreachable!("no group was proposed: {error}"),
        }
    }

    /// Proposes an entry without waiting; [`turn`](Self::turn) drives it and
    /// [`completed`](Self::completed) tells what became of it.
    ///
    /// # Errors
    ///
    /// Whatever makes it impossible now; then nothing was proposed.
    pub fn submit(&mut self, entry: &[u8]) -> Result<Ticket, Error> {
        let ticket = self.inline.next_ticket();
        self.propose(None, entry, Origin::Inline(ticket))?;
        Ok(ticket)
    }
}

/// What a message and an entry in it add to the application's bytes, at most; stated
/// generously, the core has the last word.
const ENTRY_OVERHEAD_MAX: usize = 192 + envelope::ENVELOPE_BYTES_MAX;

impl<M> Drop for Server<M> {
    fn drop(&mut self) {
        self.shared.stop();
        for request in std::mem::take(&mut self.taken.requests) {
            request
                .slot
                .complete(request.ticket, Err(Error::Stopped), &[]);
        }
        for origin in self.proposals.give_up() {
            if let Origin::Client(slot, ticket) = origin {
                slot.complete(ticket, Err(Error::Stopped), &[]);
            }
        }
    }
}

/// Ends a server's [`run`](Server::run) from another thread.
#[derive(Clone, Debug)]
pub struct Stopper {
    shared: Arc<Shared>,
}

impl Stopper {
    /// The server returns after the turn it is in.
    pub fn stop(&self) {
        self.shared.ask_to_stop();
    }
}
