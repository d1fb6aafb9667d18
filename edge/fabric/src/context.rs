//! The state that all links of one fabric share, and why a link ends.

use crate::hello::{self, Greet, GroupName, Hello, NotHello, Refusal, Session};
use crate::poll::Poll;
use crate::processes::{Process, Processes};
use crate::refused::{Refused, Strangers};
use crate::ring::{BadCredit, BufferPool, Capacity, Damage, RingWriter};
use crate::{FabricError, FabricEvent, FabricStats, Lane};
use plover_types::ReplicaId;
use plover_types::wire::Versions;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::io;
use std::time::{Duration, Instant};
use tracing::{debug, info, warn};

/// One `progress` call delivers at most so much from one lane of one peer: enough to amortise the
/// call, little enough (well under a millisecond) that a flood on one lane delays no other.
const DELIVER_RECORDS_MAX: usize = 1024;
const DELIVER_BYTES_MAX: usize = 1 << 20;

/// The state that all links share.
#[derive(Debug)]
pub struct Context {
    pub me: ReplicaId,
    pub group: GroupName,
    /// The rings' sizes, in the order of [`Lane::ALL`].
    pub capacities: [Capacity; 2],
    /// What this replica tells peers.
    pub versions: Versions,
    /// What peers have told, each at its newest handshake.
    pub told: BTreeMap<ReplicaId, Versions>,
    /// This process of this replica.
    pub process: Process,
    /// The peers' processes.
    pub processes: BTreeMap<ReplicaId, Processes>,
    /// See [`Fabric::twin`](crate::Fabric::twin).
    pub twin: Option<(ReplicaId, String)>,
    pub poll: Poll,
    pub stats: FabricStats,
    pub refused: Refused,
    pub strangers: Strangers,
    /// Events since `progress` last returned.
    pub events: Vec<FabricEvent>,
    /// Buffers of records that the caller is done with.
    pub pool: BufferPool,
}

/// The rest of one call's share for one lane of one peer.
#[derive(Debug)]
pub struct Share {
    records: usize,
    bytes: usize,
}

impl Default for Share {
    fn default() -> Self {
        Self {
            records: DELIVER_RECORDS_MAX,
            bytes: DELIVER_BYTES_MAX,
        }
    }
}

impl Context {
    /// For `me`, a member of `group` with `peers`, and rings of these sizes.
    pub fn new(
        group: &str,
        me: ReplicaId,
        peers: impl IntoIterator<Item = ReplicaId>,
        [log_bytes, bulk_bytes]: [usize; 2],
    ) -> Result<Self, FabricError> {
        let mut seen = vec![me];
        for id in peers {
            if seen.contains(&id) {
                return Err(FabricError::Member(id));
            }
            seen.push(id);
        }
        let capacity =
            |lane, bytes| Capacity::new(bytes).map_err(|source| FabricError::Ring { lane, source });
        Ok(Self {
            me,
            group: GroupName::new(group)?,
            capacities: [
                capacity(Lane::Log, log_bytes)?,
                capacity(Lane::Bulk, bulk_bytes)?,
            ],
            versions: Versions::OURS,
            told: BTreeMap::new(),
            process: Process::default(),
            processes: BTreeMap::new(),
            twin: None,
            poll: Poll::new().map_err(FabricError::system("make an epoll descriptor"))?,
            stats: FabricStats::default(),
            refused: Refused::default(),
            strangers: Strangers::default(),
            events: Vec::new(),
            pool: BufferPool::default(),
        })
    }

    pub fn capacity(&self, lane: Lane) -> Capacity {
        self.capacities[lane.index()]
    }

    /// This replica's greeting to `peer` when all is well, on a connection of the lane number `lane`,
    /// whose rings have `ring_bytes`.
    pub fn hello(&self, peer: ReplicaId, lane: u8, ring_bytes: u64, session: Session) -> Hello {
        Hello {
            versions: self.versions,
            lane,
            from: self.me,
            to: peer,
            verdict: 0,
            session,
            ring_bytes,
            group: self.group,
            process: self.process,
            refuses: self
                .processes
                .get(&peer)
                .map_or(Process::default(), |it| it.refused),
        }
    }

    /// The same on a connection of `lane` alone.
    pub fn hello_on(&self, peer: ReplicaId, lane: Lane, session: Session) -> Hello {
        let ring_bytes = self.capacity(lane).bytes() as u64;
        self.hello(peer, lane.index() as u8, ring_bytes, session)
    }

    /// The processes of a peer.
    pub fn processes_of(&mut self, peer: ReplicaId) -> &mut Processes {
        self.processes.entry(peer).or_default()
    }

    /// A greeting is welcome.
    pub fn met(&mut self, greeting: &impl Greet) {
        self.told.insert(greeting.sender(), greeting.versions());
        self.processes_of(greeting.sender())
            .welcome(greeting.process());
    }

    /// The reason against the process that answers, if another one has taken its place.
    pub fn replaced(&mut self, greeting: &impl Greet) -> Option<No> {
        let processes = self.processes_of(greeting.sender());
        processes.objection(greeting.process()).map(No::of_peer)
    }

    /// Why a link to `peer` cannot go on: the group's version has been raised, and it does not speak it.
    pub fn outgrown(&self, peer: ReplicaId) -> Option<No> {
        let told = self.told.get(&peer)?;
        let words = || hello::unlike(self.versions, *told);
        (!self.versions.agree(*told)).then(|| No::because(Refusal::Version, words()))
    }

    /// Reports the records that `next` gives, within `share`. `true` if the share is used up: then
    /// there may be more.
    pub fn deliver(
        &mut self,
        from: ReplicaId,
        lane: Lane,
        share: &mut Share,
        mut next: impl FnMut(&mut BufferPool) -> Result<Option<Vec<u8>>, Loss>,
    ) -> Result<bool, Loss> {
        while let Some(bytes) = next(&mut self.pool)? {
            self.stats.lane_mut(lane).bytes_in += bytes.len() as u64;
            share.records -= 1;
            share.bytes = share.bytes.saturating_sub(bytes.len());
            self.events.push(FabricEvent::Record { from, lane, bytes });
            if share.records == 0 || share.bytes == 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reports room at `peer`, if `writer` was refused and now has it.
    pub fn report_room(&mut self, peer: ReplicaId, lane: Lane, writer: &mut RingWriter) {
        if writer.has_room_again() {
            self.events.push(FabricEvent::Room { peer, lane });
        }
    }

    /// A link to `peer` is up.
    pub fn up(&mut self, up: ReplicaId) {
        let ReplicaId(peer) = up;
        info!(event = "link_up", peer, "the link to replica {peer} is up");
        self.refused.forget(up);
        self.events.push(FabricEvent::Up(up));
    }

    /// A link to `peer`, or the attempt to make one, has ended.
    pub fn lost(&mut self, lost: ReplicaId, place: &dyn Display, was_up: bool, loss: &Loss) {
        let ReplicaId(peer) = lost;
        match loss {
            Loss::Damage(_) => {
                self.stats.damaged += 1;
                warn!(
                    event = "link_damaged",
                    peer, "the link to replica {peer} is down: {loss}"
                );
            }
            Loss::Cut(_) => {
                self.stats.damaged += 1;
                warn!(
                    event = "link_cut",
                    peer, "the link to replica {peer} is cut: {loss}"
                );
            }
            Loss::Silent(_) => {
                self.stats.silent += 1;
                info!(
                    event = "link_down",
                    peer, "the link to replica {peer} is down: {loss}"
                );
            }
            Loss::Refused(why) => self.refused(lost, place, why, Instant::now()),
            Loss::Native(_) => warn!(
                event = "link_failed",
                peer, "no link to replica {peer} at {place}: {loss}"
            ),
            _ if was_up => info!(
                event = "link_down",
                peer, "the link to replica {peer} is down: {loss}"
            ),
            _ => debug!(peer, %place, %loss, "no link"),
        }
        if was_up {
            self.events.push(FabricEvent::Down(lost));
        }
    }

    /// A peer that this replica has dialled answers with a refusal. One that dials says nothing of the kind.
    pub fn answered_no(&mut self, peer: ReplicaId, why: &No) {
        // Once linked, a peer that lies could say so to make this replica give up.
        if why.verdict == Refusal::Twin && self.processes_of(peer).is_new() {
            self.twin = Some((peer, why.to_string()));
        }
    }

    /// Either side refused a handshake with `peer`. The log says so once.
    pub fn refused(&mut self, peer: ReplicaId, place: &dyn Display, why: &No, now: Instant) {
        self.stats.rejected += 1;
        if self.refused.note(peer, why, now) {
            let me = self.me;
            warn!(
                event = "link_refused",
                peer = peer.0,
                "no link between {me} and {peer} at {place}: {why}"
            );
        }
    }
}

/// Why a link, or an attempt at one, ended.
#[derive(Debug, thiserror::Error)]
pub enum Loss {
    #[error("the peer closed the connection")]
    Closed,
    #[error(transparent)]
    Io(io::Error),
    /// The peer did what no correct peer does.
    #[error("damaged: {0}")]
    Damage(String),
    /// The caller found that out.
    #[error("it has sent {0}; look at its host")]
    Cut(String),
    #[error("the peer's host acknowledged nothing for {} ms", .0.as_millis())]
    Silent(Duration),
    #[error("the peer began a new session")]
    Superseded,
    #[error("no {0} in time")]
    Late(&'static str),
    /// An error of libfabric.
    #[error("{0}")]
    Native(String),
    /// The other side is no peer, or takes this one for none.
    #[error("{0}")]
    Refused(No),
}

impl From<io::Error> for Loss {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Closed,
            _ => Self::Io(error),
        }
    }
}

impl From<rustix::io::Errno> for Loss {
    fn from(error: rustix::io::Errno) -> Self {
        Self::Io(error.into())
    }
}

impl From<Damage> for Loss {
    fn from(damage: Damage) -> Self {
        Self::Damage(damage.to_string())
    }
}

impl From<BadCredit> for Loss {
    fn from(credit: BadCredit) -> Self {
        Self::Damage(credit.to_string())
    }
}

/// Why a handshake is refused: the verdict that travels to the peer, and the words for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct No {
    pub verdict: Refusal,
    words: String,
}

impl No {
    /// In more words than the verdict has.
    pub fn because(verdict: Refusal, words: impl Display) -> Self {
        Self {
            verdict,
            words: words.to_string(),
        }
    }
}

impl No {
    /// A second process of the peer, in this side's words.
    pub fn of_peer(verdict: Refusal) -> Self {
        let words = match verdict {
            Refusal::Twin => {
                "another process of that replica is linked here, and lives: its host was cloned, or it was started twice; stop \
                 one of the two"
            }
            _ => {
                "another process of that replica has been linked here since, and both have lived at the same time: its host \
                 was cloned, or it was started twice; stop one of the two, and start the one that stays again"
            }
        };
        Self::because(verdict, words)
    }
}

impl From<Refusal> for No {
    fn from(verdict: Refusal) -> Self {
        Self::because(verdict, verdict)
    }
}

impl From<NotHello> for No {
    fn from(error: NotHello) -> Self {
        Self::because(Refusal::Unknown, error)
    }
}

impl Display for No {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.words)
    }
}
