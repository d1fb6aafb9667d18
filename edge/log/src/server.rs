//! The server: one thread's loop that owns consensus, the fabric and the state.
//!
//! ```text
//!            ┌──────────────────────── a turn ────────────────────────┐
//!   sleep ─► │ fabric, disk, clients ─► core ─► commands ─► machine   │ ─► flush ─► sleep
//!            └────────────────────────────────────────────────────────┘
//! ```
//!
//! The loop sleeps until something happens or is due. All that one turn writes leaves at its end,
//! so what arrives while a write is in flight travels together.
//!
//! A proposer can drive the turns itself ([`Server::append`]); then no thread hands anything over
//! between the proposal and its answer. [`Server::run`] serves remote clients alone.

use crate::address::{Address, Listener};
use crate::append::{Submitted, Ticket};
use crate::clients::{Clients, ConnectionId};
use crate::envelope::ENVELOPE_BYTES_MAX;
use crate::mail::{Incoming, Outgoing};
use crate::members::Change;
use crate::pending::{Origin, Proposals};
use crate::replicated::{Replicated, RestoreError};
use crate::stable::Stable;
use crate::{Config, Error, ServerError, StateMachine};
use apus::{Apus, Command, Event, Start};
use plover_fabric::{Attached, BoxedFabric, FabricEvent, Keys, Lane};
use plover_types::wire::WIRE_VERSION;
use plover_types::{Micros, ReplicaId, ReplicaSet, Viewstamp};
use rustix::event::{EventfdFlags, eventfd};
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// CLOCK_BOOTTIME, which goes on while the host is suspended: a leader that wakes up knows that its lease is over.
fn boot_clock() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// The largest message between replicas, even if the fabric carries larger ones: an eighth of a
/// ring of the default size, so that a full window never overflows it.
pub(crate) const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// An upper bound of the bytes that a message and an entry in it add to the application's bytes. It is
/// generous: the core makes the exact check.
pub(crate) const ENTRY_OVERHEAD_MAX: usize = 192 + ENVELOPE_BYTES_MAX;

/// One replica of a log.
pub struct Server<M> {
    pub(crate) config: Config,
    pub(crate) core: Apus,
    pub(crate) fabric: BoxedFabric,
    pub(crate) stable: Stable,
    pub(crate) state: Replicated<M>,
    pub(crate) commands: Vec<Command>,
    pub(crate) commands_spare: Vec<Command>,
    happened: Vec<FabricEvent>,
    pub(crate) proposals: Proposals,
    pub(crate) submitted: Submitted,
    pub(crate) clients: Clients,
    /// `clients` in the fabric's own wait.
    pub(crate) attached: Attached,
    /// Connections whose next request waits for room in the log.
    pub(crate) stalled: Vec<ConnectionId>,
    /// Clients that read the log can be sent more at once.
    pub(crate) tails_wait: bool,
    /// The last delivered entry.
    pub(crate) commit: Viewstamp,
    /// Where the others serve clients.
    pub(crate) client_addresses: BTreeMap<ReplicaId, String>,
    pub(crate) linked: ReplicaSet,
    pub(crate) outgoing: Outgoing,
    pub(crate) incoming: Option<Incoming>,
    /// A change of the group that a client has asked for.
    pub(crate) change: Option<Change>,
    /// Replicas that were removed, and when their links end.
    pub(crate) departing: Vec<(ReplicaId, Micros)>,
    /// Every replica has lost the log, and the operator has to begin a new one.
    pub(crate) lost: bool,
    pub(crate) rejected: u64,
    /// The sleep also ends for a descriptor of the caller's ([`Self::watch`]).
    pub(crate) embedded: bool,
    pub(crate) entry_bytes_max: usize,
    stopper: Stopper,
    pub(crate) started: Instant,
    /// The same on [`boot_clock`].
    began: Duration,
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
    pub fn in_memory(config: Config, fabric: BoxedFabric, machine: M) -> Result<Self, ServerError> {
        let stable = Stable::default();
        Self::open(config, fabric, machine, (stable, Start::Fresh))
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
        fabric: BoxedFabric,
        machine: M,
        dir: &Path,
        group: &str,
    ) -> Result<Self, ServerError> {
        let (stable, start, snapshot) = Stable::open(dir, group, &config)?;
        let mut server = Self::open(config, fabric, machine, (stable, start))?;
        if let Some(snapshot) = snapshot {
            let group = server.state.restore(&snapshot, server.core.generation());
            let unusable = |why: RestoreError| ServerError::Snapshot {
                dir: dir.into(),
                why: why.to_string(),
            };
            match group.map_err(unusable)? {
                Some(group) => server.regroup(group),
                None => tracing::info!("the snapshot is of the log before this one: not used"),
            }
        }
        server.link_as_logged();
        server.settle()?;
        Ok(server)
    }

    fn open(
        config: Config,
        mut fabric: BoxedFabric,
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
            fencing: false,
            quorum_selection: true,
            newest_version: WIRE_VERSION,
            heartbeat: config.heartbeat,
            timeout: config.timeout,
            timeout_min: config.timeout_min.unwrap_or(Micros(config.timeout.0 / 2)),
            durability: config.durability,
            log_bytes_max: config.log_bytes_max,
            message_bytes_max,
            seed: u64::from_le_bytes(seed),
            canary: apus::Canary::None,
            known_after: Micros(config.heartbeat.0 * 100),
        };
        let stopper = Stopper::new().map_err(ServerError::system("make an eventfd"))?;
        let clients = Clients::new().map_err(ServerError::system("make an epoll descriptor"))?;
        for waker in [Some(stopper.0.wake.as_fd()), stable.wait_fd()] {
            let watched = waker.map_or(Ok(()), |waker| clients.watch(waker));
            watched.map_err(ServerError::system("watch an eventfd"))?;
        }
        let attached = fabric.attach(clients.epoll.as_fd());
        let attached = attached.map_err(ServerError::system("watch an epoll descriptor"))?;
        let mut server = Self {
            core: Apus::new(core, start, Micros(1)),
            state: Replicated::new(machine, config.group(), config.check_outputs),
            fabric,
            stable,
            commands: Vec::new(),
            commands_spare: Vec::new(),
            happened: Vec::new(),
            proposals: Proposals::default(),
            submitted: Submitted::default(),
            clients,
            attached,
            stalled: Vec::new(),
            tails_wait: false,
            commit: Viewstamp::default(),
            client_addresses: BTreeMap::new(),
            linked: ReplicaSet::EMPTY,
            outgoing: Outgoing::default(),
            incoming: None,
            change: None,
            departing: Vec::new(),
            lost: false,
            rejected: 0,
            embedded: false,
            entry_bytes_max: message_bytes_max.saturating_sub(ENTRY_OVERHEAD_MAX),
            stopper,
            started: Instant::now(),
            began: boot_clock(),
            config,
        };
        server.fabric.speak(server.core.versions());
        server.tick();
        Ok(server)
    }

    /// Lets remote clients in at `address`, without keys. Returns the address on which it listens, with the port if
    /// the kernel chose it.
    pub fn listen(&mut self, address: &Address) -> Result<Address, ServerError> {
        self.listen_with(address, None)
    }

    /// The same. With `keys`, clients over TCP are under TLS, and need keys that these trust as `client` or `admin`;
    /// those over a unix socket have the permissions of its file.
    pub fn listen_with(
        &mut self,
        address: &Address,
        keys: Option<Arc<Keys>>,
    ) -> Result<Address, ServerError> {
        let failed = |source| ServerError::Listen {
            address: address.to_string(),
            source,
        };
        let listener = Listener::bind(address).map_err(failed)?;
        let address = listener.address.clone();
        let listening = self.clients.listen(listener, keys);
        listening.map_err(ServerError::system("watch the clients' socket"))?;
        Ok(address)
    }

    /// Takes turns until a [`Stopper`] stops the server.
    pub fn run(&mut self) -> Result<(), ServerError> {
        while !self.stopper.take() {
            self.turn(None)?;
        }
        Ok(())
    }

    /// A handle that ends [`run`](Self::run) from another thread.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Sleeps until something happens, at most for `patience`, and deals with it.
    pub fn turn(&mut self, patience: Option<Duration>) -> Result<(), ServerError> {
        self.settle()?;
        self.sleep(patience);
        self.take_records()?;
        self.take_stored()?;
        self.take_remote();
        if self.now() >= self.core.deadline() {
            self.tick();
        }
        self.settle()
    }

    /// This replica's clock: microseconds since it started, never zero.
    pub(crate) fn now(&self) -> Micros {
        Micros(boot_clock().saturating_sub(self.began).as_micros() as u64 + 1)
    }

    fn tick(&mut self) {
        let now = self.now();
        self.core.apply(now, Event::Tick, &mut self.commands);
    }

    /// Passes the peers' records to consensus, and their mail to the server.
    fn take_records(&mut self) -> Result<(), ServerError> {
        let mut happened = std::mem::take(&mut self.happened);
        self.fabric.progress(&mut happened);
        if let Some((peer, why)) = self.fabric.twin() {
            return Err(ServerError::Second { peer, why });
        }
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
                // The core repeats what matters, and snapshots are sent on in each turn.
                FabricEvent::Room { .. } => {}
            }
        }
        self.happened = happened;
        Ok(())
    }

    /// Proposes an entry without waiting. [`turn`](Self::turn) drives it, and
    /// [`completed`](Self::completed) returns its result.
    ///
    /// # Errors
    ///
    /// Nothing was proposed: another replica leads, the log is full, or the entry is too large.
    pub fn submit(&mut self, entry: &[u8]) -> Result<Ticket, Error> {
        let ticket = Ticket(self.submitted.next);
        self.propose(None, entry, Origin::Submitted(ticket))?;
        self.submitted.next += 1;
        Ok(ticket)
    }
}

/// Ends a server's [`run`](Server::run) from another thread.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<Stop>);

#[derive(Debug)]
struct Stop {
    wanted: AtomicBool,
    wake: OwnedFd,
}

impl Stopper {
    fn new() -> Result<Self, rustix::io::Errno> {
        Ok(Self(Arc::new(Stop {
            wanted: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
        })))
    }

    /// The server returns after the turn it is in.
    pub fn stop(&self) {
        self.0.wanted.store(true, Ordering::SeqCst);
        // The write fails only if the counter is full, and then the server is being woken already.
        let _ = rustix::io::write(&self.0.wake, &1u64.to_ne_bytes());
    }

    /// Whether the server was asked to stop. Clears the request.
    fn take(&self) -> bool {
        let wanted = self.0.wanted.swap(false, Ordering::SeqCst);
        if wanted {
            let _ = rustix::io::read(&self.0.wake, &mut [0; 8]);
        }
        wanted
    }
}
