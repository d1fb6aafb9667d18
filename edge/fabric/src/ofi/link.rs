//! The link to one peer: a TCP connection and a port for each lane, which live and die together.
//!
//! ```text
//!     ┌───►┌──────────────┐
//!     │    │     Down     │◄────────────────────────────────────┐
//!     │    └──┬────────┬──┘                                     │
//!     │       │ lower  │ higher id: a peer greeted              │
//!     │       │ id:    │                                        │
//!     │    ┌──▼──────┐ │   opens its ports, answers             │
//!     ├────┤ Dialling│ │                                        │
//!     │    └──┬──────┘ │                                        │
//!     │       │answered│                                        │
//!     │    ┌──▼────────▼──┐  doorbells of both lanes,   ┌───────┴──────┐
//!     └────┤    Joined    │────── both ways: Up ───────►│  Joined, up  │
//!          └──────────────┘                             └──────────────┘
//! ```
//!
//! **Fencing.** All that a session has under way ends with it: its ports are closed, and with
//! them the registration of the memory that the peer wrote to. The next session has new memory
//! under a new key, rings that start empty and another salt in its checksums. A write of an old
//! session fails, or lands in memory that nobody reads, or fails its checksum.
//!
//! **Liveness.** An unconnected endpoint does not notice that its peer has died. The TCP
//! connection does: at once if the process dies, and after half a second without an
//! acknowledgement if the host does (`tcp/socket.rs`); so that something is to be acknowledged,
//! each side sends a byte every tenth of a second.

use super::end::End;
use super::greeting::{self, Greeting};
use super::native::Address;
use super::stage::{Connection, Dial, Joined, beat_every, open_ends};
use super::{Context, Loss};
use crate::poll::Interest;
use crate::tcp::socket::Silence;
use crate::{FabricEvent, Lane, WriteError};
use plover_types::ReplicaId;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tracing::{debug, info, warn};

/// From the handshake to the first doorbells. Providers connect their endpoints meanwhile.
const JOIN_WITHIN: Duration = Duration::from_secs(3);

/// A peer and the link to it.
#[derive(Debug)]
pub(super) struct Peer {
    pub id: ReplicaId,
    address: SocketAddr,
    link: Link,
    /// When the last dialling began.
    dialled_at: Option<Instant>,
    /// When to dial next, while down.
    dial_at: Instant,
}

#[derive(Debug)]
enum Link {
    Down,
    Dialling(Dial),
    Joined(Box<Joined>),
}

impl Peer {
    pub fn new(id: ReplicaId, address: SocketAddr, now: Instant) -> Self {
        Self {
            id,
            address,
            link: Link::Down,
            dialled_at: None,
            dial_at: now,
        }
    }

    pub fn is_up(&self) -> bool {
        matches!(&self.link, Link::Joined(joined) if joined.up)
    }

    /// Whether it is we who dial.
    fn dials(&self, context: &Context) -> bool {
        context.me < self.id
    }

    /// Queues one record.
    pub fn write(
        &mut self,
        context: &mut Context,
        lane: Lane,
        record: &[u8],
    ) -> Result<(), WriteError> {
        match &mut self.link {
            Link::Joined(joined) if joined.up => joined.ends[lane.index()].write(context, record),
            _ => Err(WriteError::Down(self.id)),
        }
    }

    /// Posts what was queued.
    pub fn flush(&mut self, context: &mut Context, now: Instant) {
        if let Link::Joined(joined) = &mut self.link {
            let flushed = joined.ends.iter_mut().try_for_each(End::flush);
            self.settle(context, now, flushed.map_err(Loss::from));
        }
    }

    /// Takes in and delivers what has come on one lane. `spinning` looks though nothing woke us.
    pub fn serve(&mut self, context: &mut Context, now: Instant, lane: Lane, spinning: bool) {
        if let Link::Joined(joined) = &mut self.link {
            let end = &mut joined.ends[lane.index()];
            if joined.up && (spinning || end.is_due(context)) {
                let served = end.serve(context, now);
                self.settle(context, now, served);
            }
        }
    }

    /// Whether anything has come that `serve` should see.
    pub fn look(&mut self) -> bool {
        match &mut self.link {
            Link::Joined(joined) => joined.ends.iter_mut().any(End::look),
            _ => false,
        }
    }

    /// Arms the descriptors of both lanes; `false` if there is something to do first.
    pub fn arm(&mut self, context: &mut Context, now: Instant) -> bool {
        let Link::Joined(joined) = &mut self.link else {
            return true;
        };
        let [log, bulk] = &mut joined.ends;
        match log.arm().and_then(|log| Ok(bulk.arm()? && log)) {
            Ok(armed) => armed,
            Err(error) => {
                self.lose(context, now, error.into());
                false
            }
        }
    }

    /// Gets on with the connection: the handshake, the peer's heartbeats, its end.
    pub fn advance(&mut self, context: &mut Context, now: Instant) {
        let outcome = match &mut self.link {
            Link::Down => return,
            Link::Dialling(dial) if context.poll.is_ready(dial.connection.token) => {
                match dial.advance(context, self.id) {
                    Ok(Some(answer)) => return self.answered(context, now, &answer),
                    Ok(None) => Ok(()),
                    Err(loss) => Err(loss),
                }
            }
            Link::Dialling(_) => Ok(()),
            Link::Joined(joined) => joined.advance(context),
        };
        self.settle(context, now, outcome);
        self.raise(context);
    }

    /// The peer has answered our greeting.
    fn answered(&mut self, context: &mut Context, now: Instant, answer: &Greeting) {
        let Link::Dialling(Dial {
            connection,
            asked: Some(asked),
            ..
        }) = std::mem::replace(&mut self.link, Link::Down)
        else {
            return;
        };
        if let Some(why) = answer.no_link(&asked.mine) {
            context.stats.rejected += 1;
            if context.refused.note(self.id, &why, now) {
                let (peer, address) = (self.id, self.address);
                warn!("no link to {peer} at {address}: {why}");
            }
            self.dial_at = now + context.times.refused_every;
            return;
        }
        self.join(
            context,
            now,
            connection,
            asked.ends,
            &answer.addresses,
            true,
        );
    }

    /// Takes in a peer that greeted us and may: opens our ports and answers.
    pub fn welcome(
        &mut self,
        context: &mut Context,
        now: Instant,
        connection: Connection,
        theirs: &Greeting,
    ) {
        if !matches!(self.link, Link::Down) {
            self.lose(context, now, Loss::Superseded);
        }
        let session = theirs.session();
        let answered = open_ends(context, self.id, session)
            .map_err(Loss::from)
            .and_then(|(ends, addresses)| {
                let mine = context.greeting(self.id, session, addresses);
                greeting::send(&connection.socket, &mine)?;
                Ok(ends)
            });
        match answered {
            Ok(ends) => self.join(context, now, connection, ends, &theirs.addresses, false),
            Err(loss) => self.lose(context, now, loss),
        }
    }

    /// Both sides have said where to write.
    fn join(
        &mut self,
        context: &mut Context,
        now: Instant,
        connection: Connection,
        mut ends: [End; 2],
        addresses: &[Address; 2],
        dialled: bool,
    ) {
        let mut lanes = ends.iter_mut().zip(addresses);
        let connected = lanes.try_for_each(|(end, address)| end.connect(address));
        let Connection { socket, token } = &connection;
        let watched = context.poll.change(socket, *token, Interest::Read);
        if let Err(loss) = connected
            .map_err(Loss::from)
            .and(watched.map_err(Loss::from))
        {
            return self.lose(context, now, loss);
        }
        self.link = Link::Joined(Box::new(Joined {
            ends,
            connection,
            since: now,
            up: false,
            dialled,
            beat_at: now + beat_every(context),
            silence: Silence::default(),
        }));
        self.advance(context, now);
    }

    /// The link is up once doorbells have come and gone on both lanes.
    fn raise(&mut self, context: &mut Context) {
        let Link::Joined(joined) = &mut self.link else {
            return;
        };
        let works = |end: &End| end.is_heard() && end.is_greeted();
        if !joined.up && joined.ends.iter().all(works) {
            joined.up = true;
            info!(peer = %self.id, "link up");
            context.stats.ups += 1;
            context.refused.forget(self.id);
            context.events.push(FabricEvent::Up(self.id));
        }
    }

    /// What is due by the clock.
    pub fn tick(&mut self, context: &mut Context, now: Instant) {
        let times = context.times;
        let outcome = match &mut self.link {
            Link::Down => {
                if self.dials(context) && now >= self.dial_at {
                    self.dial(context, now);
                }
                Ok(())
            }
            Link::Dialling(dial) if now >= dial.due_at(context) => Err(match dial.asked {
                Some(_) => Loss::GreetingTimeout,
                None => Loss::ConnectTimeout,
            }),
            Link::Joined(joined) if !joined.up && now >= joined.since + JOIN_WITHIN => {
                Err(Loss::JoinTimeout)
            }
            Link::Joined(joined) if now >= joined.beat_at => {
                joined.beat_at = now + beat_every(context);
                joined.beat(now, times.silent_after)
            }
            Link::Dialling(_) | Link::Joined(_) => Ok(()),
        };
        self.settle(context, now, outcome);
    }

    /// When `tick` has to be called next; none while only the peer can change anything.
    pub fn due_at(&self, context: &Context) -> Option<Instant> {
        match &self.link {
            Link::Down => self.dials(context).then_some(self.dial_at),
            Link::Dialling(dial) => Some(dial.due_at(context)),
            Link::Joined(joined) => Some(joined.beat_at),
        }
    }

    /// Whether `progress` would get on at once.
    pub fn wants_progress(&self) -> bool {
        self.ends().any(End::wants_progress)
    }

    /// Whether to come again soon, though nothing may wake us for it.
    pub fn wants_nap(&self) -> bool {
        let joining = matches!(&self.link, Link::Joined(joined) if !joined.up);
        joining || self.ends().any(End::wants_nap)
    }

    /// Whether it has a port that something may come to.
    pub fn is_joined(&self) -> bool {
        matches!(self.link, Link::Joined(_))
    }

    fn ends(&self) -> impl Iterator<Item = &End> {
        let ends = match &self.link {
            Link::Joined(joined) => joined.ends.as_slice(),
            _ => &[],
        };
        ends.iter()
    }

    fn dial(&mut self, context: &mut Context, now: Instant) {
        self.dialled_at = Some(now);
        self.dial_at = now + context.times.dial_every;
        match Connection::dial(context, self.address) {
            Ok(connection) => {
                self.link = Link::Dialling(Dial {
                    connection,
                    since: now,
                    asked: None,
                });
            }
            // No route, no descriptor left: the same as a peer that does not answer.
            Err(error) => debug!(peer = %self.id, address = %self.address, %error, "cannot dial"),
        }
    }

    fn settle(&mut self, context: &mut Context, now: Instant, outcome: Result<(), Loss>) {
        if let Err(loss) = outcome {
            self.lose(context, now, loss);
        }
    }

    /// Ends the link, in whatever stage it is.
    fn lose(&mut self, context: &mut Context, now: Instant, loss: Loss) {
        let was_up = self.is_up();
        self.link = Link::Down;
        // At once, but never faster than the pace.
        let paced = self
            .dialled_at
            .map_or(now, |at| at + context.times.dial_every);
        self.dial_at = now.max(paced);
        let peer = self.id;
        match &loss {
            Loss::Native(error) => warn!(%peer, "no link over libfabric: {error}"),
            Loss::Stuck(_) => {
                context.stats.damaged += 1;
                warn!(%peer, %loss, "link down");
            }
            Loss::Silent(_) => {
                context.stats.silent += 1;
                info!(%peer, %loss, "link down");
            }
            _ if was_up => info!(%peer, %loss, "link down"),
            _ => debug!(%peer, address = %self.address, %loss, "no link"),
        }
        if was_up {
            context.stats.downs += 1;
            context.events.push(FabricEvent::Down(peer));
        }
    }
}
