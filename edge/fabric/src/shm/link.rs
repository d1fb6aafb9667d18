//! The link to one peer, from dialling to its loss.
//!
//! ```text
//!          lower id                                    higher id
//!
//!     ┌──────────────┐                            ┌──────────────┐
//!  ┌─►│     Down     │                         ┌─►│     Down     │
//!  │  └──────┬───────┘                         │  └──────┬───────┘
//!  │         │ connected: sends its greeting,  │         │ a greeting that fits: answers with
//!  │         │ memory and bell                 │         │ its own memory and bell
//!  │  ┌──────▼───────┐                         │  ┌──────▼───────┐
//!  ├──┤    Asked     │                         └──┤      Up      ├──┐ another greeting:
//!  │  └──────┬───────┘                            └──────────────┘◄─┘ Down, then Up
//!  │         │ the answer fits: Up
//!  │  ┌──────▼───────┐
//!  └──┤      Up      │    any end of the socket, any damage: Down
//!     └──────────────┘
//! ```
//!
//! The lower id dials, so that a pair never makes two links. Each session has memory of its own,
//! fresh and with a salt of its own: nothing of an earlier one can come out of it, and a process
//! that still holds the old memory writes into nowhere.

use super::Context;
use super::bell::{self, Bell};
use super::board::BoardOf;
use super::channel::{Channel, Loss, Parts};
use super::memory::{Inbound, Outbound};
use super::socket::{self, Door, Heard, Offer};
use crate::hello::{Hello, Refusal, Session};
use crate::poll::{Interest, Token};
use crate::{FabricEvent, Lane, WriteError};
use plover_types::ReplicaId;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;
use tracing::{debug, info, warn};

/// A peer and the link to it.
#[derive(Debug)]
pub(super) struct Peer {
    pub id: ReplicaId,
    door: Door,
    link: Link,
    /// When the last dialling began.
    dialled_at: Option<Instant>,
    /// When to dial next, while down.
    dial_at: Instant,
}

#[derive(Debug)]
enum Link {
    Down,
    Asked(Box<Asked>),
    Up(Box<Channel>),
}

/// We have sent our greeting and wait for the answer.
#[derive(Debug)]
struct Asked {
    session: Session,
    since: Instant,
    socket: OwnedFd,
    token: Token,
    inbound: Inbound,
    bell: OwnedFd,
}

impl Peer {
    pub fn new(id: ReplicaId, door: Door, now: Instant) -> Self {
        Self {
            id,
            door,
            link: Link::Down,
            dialled_at: None,
            dial_at: now,
        }
    }

    /// Whether it is we who dial.
    fn dials(&self, context: &Context) -> bool {
        context.me < self.id
    }

    pub fn channel(&self) -> Option<&Channel> {
        match &self.link {
            Link::Up(channel) => Some(channel),
            _ => None,
        }
    }

    pub fn channel_mut(&mut self) -> Option<&mut Channel> {
        match &mut self.link {
            Link::Up(channel) => Some(channel),
            _ => None,
        }
    }

    pub fn write(
        &mut self,
        context: &mut Context,
        lane: Lane,
        record: &[u8],
    ) -> Result<(), WriteError> {
        let down = WriteError::Down(self.id);
        self.channel_mut().ok_or(down)?.write(context, lane, record)
    }

    /// Delivers what has come on one lane.
    pub fn serve(&mut self, context: &mut Context, now: Instant, lane: Lane) {
        if let Some(channel) = self.channel_mut() {
            if let Err(loss) = channel.serve(context, lane) {
                self.lose(context, now, loss);
            }
        }
    }

    /// Looks at the socket: the answer to our greeting, or the end.
    pub fn listen(&mut self, context: &mut Context, now: Instant) {
        match &self.link {
            Link::Down => {}
            Link::Asked(asked) => {
                if !context.poll.is_ready(asked.token) {
                    return;
                }
                if let Link::Asked(asked) = std::mem::replace(&mut self.link, Link::Down) {
                    self.hear_answer(context, now, asked);
                }
            }
            Link::Up(channel) => {
                if !context.poll.is_ready(channel.token) {
                    return;
                }
                let loss = match socket::receive(&channel.socket) {
                    Ok(Heard::Nothing) => return,
                    Ok(Heard::End) => Loss::Closed,
                    Ok(_) => Loss::Noise,
                    Err(error) => Loss::Io(error),
                };
                self.lose(context, now, loss);
            }
        }
    }

    fn hear_answer(&mut self, context: &mut Context, now: Instant, asked: Box<Asked>) {
        let heard = socket::receive(&asked.socket);
        match heard {
            Ok(Heard::Nothing) => self.link = Link::Asked(asked),
            Ok(Heard::End) => self.lose(context, now, Loss::Closed),
            Err(error) => self.lose(context, now, error.into()),
            Ok(Heard::Noise) => self.refused(context, now, &Loss::Noise),
            Ok(Heard::Greeting(bytes, offer)) => {
                let mine = context.hello(self.id, asked.session);
                match Hello::decode(&bytes) {
                    Err(error) => self.refused(context, now, &error),
                    Ok(theirs) => match (theirs.refusal(&mine), offer) {
                        (Some(refusal), _) => self.refused(context, now, &refusal),
                        (None, None) => self.refused(context, now, &Refusal::Memory),
                        (None, Some(offer)) => self.take(context, now, *asked, offer),
                    },
                }
            }
        }
    }

    /// The answer fits: takes the memory that came with it.
    fn take(&mut self, context: &mut Context, now: Instant, asked: Asked, offer: Offer) {
        let made = accept_offer(context, offer);
        match made {
            Err(loss) => self.refused(context, now, &loss),
            Ok((outbound, bell, board)) => {
                let parts = Parts {
                    socket: asked.socket,
                    token: asked.token,
                    own_bell: asked.bell,
                    inbound: asked.inbound,
                    outbound,
                    bell,
                    board,
                };
                self.raise(context, asked.session, parts);
            }
        }
    }

    /// A stranger has greeted as this peer; `mine` accepts. Answers with memory of our own.
    pub fn welcome(
        &mut self,
        context: &mut Context,
        now: Instant,
        mine: &Hello,
        (socket, token): (OwnedFd, Token),
        offer: Offer,
    ) -> Result<(), Loss> {
        let (outbound, bell, board) = accept_offer(context, offer)?;
        let (inbound, memory) = Inbound::create(context.layout)?;
        let own_bell = bell::make()?;
        context.poll.watch(&own_bell, Interest::Edge)?;
        socket::send(&socket, mine, Some(&context.offer(memory, &own_bell)?))?;
        if !matches!(self.link, Link::Down) {
            self.lose(context, now, Loss::Superseded);
        }
        let parts = Parts {
            socket,
            token,
            own_bell,
            inbound,
            outbound,
            bell,
            board,
        };
        self.raise(context, mine.session, parts);
        Ok(())
    }

    fn raise(&mut self, context: &mut Context, session: Session, parts: Parts) {
        info!(peer = %self.id, "link up");
        context.stats.ups += 1;
        context.refused.forget(self.id);
        context.events.push(FabricEvent::Up(self.id));
        let channel = Channel::new(context.me, self.id, context.layout, session, parts);
        self.link = Link::Up(Box::new(channel));
    }

    /// What is due by the clock.
    pub fn tick(&mut self, context: &mut Context, now: Instant) {
        match &self.link {
            Link::Down if self.dials(context) && now >= self.dial_at => self.dial(context, now),
            Link::Asked(asked) if now >= asked.since + context.times.hello_within => {
                self.lose(context, now, Loss::HelloTimeout);
            }
            _ => {}
        }
    }

    /// When `tick` has to be called next; none while only the peer can change anything.
    pub fn due_at(&self, context: &Context) -> Option<Instant> {
        match &self.link {
            Link::Down => self.dials(context).then_some(self.dial_at),
            Link::Asked(asked) => Some(asked.since + context.times.hello_within),
            Link::Up(_) => None,
        }
    }

    fn dial(&mut self, context: &mut Context, now: Instant) {
        self.dialled_at = Some(now);
        self.dial_at = now + context.times.dial_every;
        match self.ask(context, now) {
            Ok(Some(asked)) => self.link = Link::Asked(Box::new(asked)),
            Ok(None) => self.refused(context, now, &Refusal::User),
            // Nobody there yet.
            Err(error) => debug!(peer = %self.id, door = %self.door, %error, "cannot dial"),
        }
    }

    /// Connects and sends our greeting; `None` if another user listens there.
    fn ask(&self, context: &mut Context, now: Instant) -> io::Result<Option<Asked>> {
        let socket = self.door.dial()?;
        if !socket::is_same_user(&socket)? {
            return Ok(None);
        }
        let session = Session::fresh();
        let (inbound, memory) = Inbound::create(context.layout)?;
        let bell = bell::make()?;
        let token = context.poll.watch(&socket, Interest::Read)?;
        context.poll.watch(&bell, Interest::Edge)?;
        let hello = context.hello(self.id, session);
        socket::send(&socket, &hello, Some(&context.offer(memory, &bell)?))?;
        Ok(Some(Asked {
            session,
            since: now,
            socket,
            token,
            inbound,
            bell,
        }))
    }

    fn refused(&mut self, context: &mut Context, now: Instant, why: &dyn std::fmt::Display) {
        if context.refused.note(self.id, why, now) {
            warn!("no link to {} at {}: {why}", self.id, self.door);
        }
        context.stats.rejected += 1;
        self.link = Link::Down;
        self.dial_at = now + context.times.refused_every;
    }

    /// Ends the link, in whatever stage it is.
    fn lose(&mut self, context: &mut Context, now: Instant, loss: Loss) {
        let was_up = matches!(self.link, Link::Up(_));
        self.link = Link::Down;
        // At once, but never faster than the pace.
        let paced = self
            .dialled_at
            .map_or(now, |at| at + context.times.dial_every);
        self.dial_at = now.max(paced);
        if !was_up {
            debug!(peer = %self.id, door = %self.door, %loss, "no link");
            return;
        }
        if loss.is_damage() {
            context.stats.damaged += 1;
            warn!(peer = %self.id, %loss, "link down");
        } else {
            info!(peer = %self.id, %loss, "link down");
        }
        context.stats.downs += 1;
        context.events.push(FabricEvent::Down(self.id));
    }
}

/// Checks what a peer offers, and maps it.
fn accept_offer(context: &Context, offer: Offer) -> Result<(Outbound, Bell, BoardOf), Loss> {
    let outbound = Outbound::map(&offer.memory, context.layout)?;
    let board = BoardOf::map(&offer.board)?;
    Ok((outbound, Bell::new(offer.bell)?, board))
}
