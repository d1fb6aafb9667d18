//! The link to one peer: two connections that live and die together.
//!
//! ```text
//!              lower id                                  higher id
//!
//!          ┌──────────────┐                          ┌──────────────┐
//!     ┌───►│     Down     │                     ┌───►│     Down     │
//!     │    └──────┬───────┘                     │    └──────┬───────┘
//!     │           │ time to dial                │           │ one lane said hello
//!     │    ┌──────▼───────┐                     │    ┌──────▼───────┐
//!     ├────┤   Dialing    │  both lanes         ├────┤     Half     │ ◄─┐ another session:
//!     │    └──────┬───────┘                     │    └──────┬───────┘   │ start over
//!     │           │ both greeted: Up            │           │ the other lane too: Up
//!     │    ┌──────▼───────┐                     │    ┌──────▼───────┐   │
//!     └────┤      Up      │                     └────┤      Up      ├───┘
//!          └──────────────┘                          └──────────────┘
//!        any error, end or silence of either lane: Down
//! ```
//!
//! The lower id dials, so that a pair never makes two links. A hello of a new session ends the
//! old link at once: the peer has given it up, whatever our kernel still believes. Each session
//! starts with empty rings and a salt of its own.

use super::Context;
use super::greeting::{Answer, Dial};
use super::lane::{Greeted, LaneLink, Loss};
use crate::hello::{Hello, Session};
use crate::{FabricEvent, Lane, WriteError};
use plover_types::ReplicaId;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tracing::{debug, info, warn};

/// A peer, its inbound rings and the link to it.
#[derive(Debug)]
pub(super) struct Peer {
    pub id: ReplicaId,
    address: SocketAddr,
    /// Its rings here, one a lane. The kernel backs them with memory as they are first filled.
    rings: [Vec<u8>; 2],
    link: Link,
    /// When the last dialling began.
    dialled_at: Option<Instant>,
    /// When to dial next, while down.
    dial_at: Instant,
}

#[derive(Debug)]
enum Link {
    Down,
    Dialing {
        session: Session,
        since: Instant,
        lanes: Box<[Dial; 2]>,
    },
    Half {
        session: Session,
        since: Instant,
        lanes: [Option<Greeted>; 2],
    },
    Up {
        lanes: Box<[LaneLink; 2]>,
        check_at: Instant,
    },
}

impl Peer {
    pub fn new(context: &Context, id: ReplicaId, address: SocketAddr, now: Instant) -> Self {
        let rings = Lane::ALL.map(|lane| vec![0; context.capacity(lane).bytes()]);
        Self {
            id,
            address,
            rings,
            link: Link::Down,
            dialled_at: None,
            dial_at: now,
        }
    }

    /// Whether it is we who dial.
    fn dials(&self, context: &Context) -> bool {
        context.me < self.id
    }

    pub fn is_up(&self) -> bool {
        matches!(self.link, Link::Up { .. })
    }

    /// Queues one record.
    pub fn write(
        &mut self,
        context: &mut Context,
        lane: Lane,
        record: &[u8],
    ) -> Result<(), WriteError> {
        let Link::Up { lanes, .. } = &mut self.link else {
            return Err(WriteError::Down(self.id));
        };
        let handed_over = lanes[lane.index()].write(context, record)?;
        self.settle(context, Instant::now(), handed_over);
        Ok(())
    }

    pub fn flush(&mut self, context: &mut Context, now: Instant) {
        if let Link::Up { lanes, .. } = &mut self.link {
            let flushed = lanes.iter_mut().try_for_each(|lane| lane.flush(context));
            self.settle(context, now, flushed);
        }
    }

    /// Takes in and delivers what has come on one lane.
    pub fn serve(&mut self, context: &mut Context, now: Instant, lane: Lane) {
        if let Link::Up { lanes, .. } = &mut self.link {
            let ring = &mut self.rings[lane.index()];
            let served = lanes[lane.index()].serve(context, ring);
            self.settle(context, now, served);
        }
    }

    /// Gets the handshakes on that we began, and sees when the peer gives its own up.
    pub fn advance(&mut self, context: &mut Context, now: Instant) {
        if let Link::Half { lanes, .. } = &self.link {
            let ended = |greeted: &Greeted| context.poll.has_ended(greeted.token);
            if lanes.iter().flatten().any(ended) {
                self.lose(context, now, Loss::Closed);
            }
        }
        let Link::Dialing { session, lanes, .. } = &mut self.link else {
            return;
        };
        let session = *session;
        for lane in Lane::ALL {
            let mine = context.hello(self.id, lane, session);
            match lanes[lane.index()].advance(context, &mine) {
                Ok(Answer::Pending) => {}
                Ok(Answer::Refused(refusal)) => {
                    return self.refused(context, now, &refusal);
                }
                Ok(Answer::Stranger(error)) => {
                    return self.refused(context, now, &error);
                }
                Err(loss) => return self.lose(context, now, loss),
            }
        }
        if lanes.iter().all(Dial::is_greeted) {
            if let Link::Dialing { lanes, .. } = std::mem::replace(&mut self.link, Link::Down) {
                self.raise(context, now, session, lanes.map(Dial::into_connection));
            }
        }
    }

    /// Takes in one lane that the peer dialled and that has passed the handshake.
    pub fn offer(
        &mut self,
        context: &mut Context,
        now: Instant,
        lane: Lane,
        session: Session,
        connection: Greeted,
    ) {
        let same = matches!(&self.link, Link::Half { session: s, .. } if *s == session);
        if !same {
            if !matches!(self.link, Link::Down) {
                self.lose(context, now, Loss::Superseded);
            }
            self.link = Link::Half {
                session,
                since: now,
                lanes: [None, None],
            };
        }
        let Link::Half { lanes, .. } = &mut self.link else {
            return;
        };
        lanes[lane.index()] = Some(connection);
        if lanes.iter().all(Option::is_some) {
            if let Link::Half {
                lanes: [Some(log), Some(bulk)],
                ..
            } = std::mem::replace(&mut self.link, Link::Down)
            {
                self.raise(context, now, session, [log, bulk]);
            }
        }
    }

    /// Both lanes are greeted.
    fn raise(
        &mut self,
        context: &mut Context,
        now: Instant,
        session: Session,
        [log, bulk]: [Greeted; 2],
    ) {
        let made = LaneLink::new(context, self.id, Lane::Log, session, log).and_then(|log| {
            Ok([
                log,
                LaneLink::new(context, self.id, Lane::Bulk, session, bulk)?,
            ])
        });
        match made {
            Ok(lanes) => {
                info!(peer = %self.id, "link up");
                context.stats.ups += 1;
                context.refused.forget(self.id);
                context.events.push(FabricEvent::Up(self.id));
                let check_at = now + context.times.silent_after / 5;
                self.link = Link::Up {
                    lanes: Box::new(lanes),
                    check_at,
                };
            }
            Err(error) => self.lose(context, now, error.into()),
        }
    }

    /// What is due by the clock: dialling, giving up, looking for silence.
    pub fn tick(&mut self, context: &mut Context, now: Instant) {
        let times = context.times;
        match &mut self.link {
            Link::Down => {
                if self.dials(context) && now >= self.dial_at {
                    self.dial(context, now);
                }
            }
            Link::Dialing { since, lanes, .. } => {
                if now >= *since + times.hello_within {
                    self.lose(context, now, Loss::HelloTimeout);
                } else if now >= *since + times.dial_every && !lanes.iter().all(Dial::is_connected)
                {
                    self.lose(context, now, Loss::ConnectTimeout);
                }
            }
            Link::Half { since, .. } => {
                if now >= *since + times.hello_within {
                    self.lose(context, now, Loss::HelloTimeout);
                }
            }
            Link::Up { lanes, check_at } => {
                if now >= *check_at {
                    *check_at = now + times.silent_after / 5;
                    let checked = lanes
                        .iter_mut()
                        .try_for_each(|lane| lane.check(now, times.silent_after));
                    self.settle(context, now, checked);
                }
            }
        }
    }

    /// When `tick` has to be called next; none while only the peer can change anything.
    pub fn due_at(&self, context: &Context) -> Option<Instant> {
        let times = context.times;
        match &self.link {
            Link::Down => self.dials(context).then_some(self.dial_at),
            Link::Dialing { since, lanes, .. } => {
                let connected = lanes.iter().all(Dial::is_connected);
                Some(
                    *since
                        + if connected {
                            times.hello_within
                        } else {
                            times.dial_every
                        },
                )
            }
            Link::Half { since, .. } => Some(*since + times.hello_within),
            Link::Up { check_at, .. } => Some(*check_at),
        }
    }

    /// Whether `progress` would get on without waiting for anything.
    pub fn wants_progress(&self) -> bool {
        match &self.link {
            Link::Up { lanes, .. } => lanes.iter().any(LaneLink::wants_progress),
            _ => false,
        }
    }

    fn dial(&mut self, context: &mut Context, now: Instant) {
        self.dialled_at = Some(now);
        self.dial_at = now + context.times.dial_every;
        let mut start = || Dial::start(context, self.address);
        match start().and_then(|log| Ok([log, start()?])) {
            Ok(lanes) => {
                let session = Session::fresh();
                self.link = Link::Dialing {
                    session,
                    since: now,
                    lanes: Box::new(lanes),
                };
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

    fn refused(&mut self, context: &mut Context, now: Instant, why: &dyn std::fmt::Display) {
        context.stats.rejected += 1;
        if context.refused.note(self.id, why, now) {
            warn!("no link to {} at {}: {why}", self.id, self.address);
        }
        self.link = Link::Down;
        self.dial_at = now + context.times.refused_every;
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
        if !was_up {
            debug!(peer = %self.id, address = %self.address, %loss, "no link");
            return;
        }
        match &loss {
            loss if loss.is_damage() => {
                context.stats.damaged += 1;
                warn!(peer = %self.id, %loss, "link down");
            }
            Loss::Silent(_) => {
                context.stats.silent += 1;
                info!(peer = %self.id, %loss, "link down");
            }
            _ => info!(peer = %self.id, %loss, "link down"),
        }
        context.stats.downs += 1;
        context.events.push(FabricEvent::Down(self.id));
    }
}

#[cfg(test)]
impl Peer {
    pub fn sockets(&self) -> Vec<&std::net::TcpStream> {
        match &self.link {
            Link::Up { lanes, .. } => lanes.iter().map(LaneLink::socket).collect(),
            _ => Vec::new(),
        }
    }

    /// Whether the kernel refuses bytes on one of the lanes.
    pub fn wants_room(&self) -> bool {
        matches!(&self.link, Link::Up { lanes, .. } if lanes.iter().any(LaneLink::is_blocked))
    }
}

/// How long until `due`, from `now`.
pub(super) fn until(due: Instant, now: Instant) -> Duration {
    due.saturating_duration_since(now)
}

impl Context {
    /// What we say to `peer` when all is well.
    pub(super) fn hello(&self, peer: ReplicaId, lane: Lane, session: Session) -> Hello {
        Hello {
            version: plover_types::wire::WIRE_VERSION,
            lane: lane.index() as u8,
            from: self.me,
            to: peer,
            verdict: 0,
            session,
            ring_bytes: self.capacity(lane).bytes() as u64,
            group: self.group,
        }
    }
}
