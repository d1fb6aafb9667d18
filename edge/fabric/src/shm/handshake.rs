//! The handshake: one greeting each way, with the descriptors of memory, doorbell and status page.
//!
//! Each session has memory of its own, fresh and with a salt of its own: nothing of an earlier one
//! can come out of it, and a process that still holds the old memory writes into nowhere.

use super::Shm;
use super::channel::{Channel, Parts};
use super::doorbell::{self, Doorbell};
use super::memory::{Inbound, Outbound};
use super::page::PeerPage;
use super::socket::{self, Address, Heard, Listener, Offer};
use crate::context::{Context, Loss, No};
use crate::door::{Connection, Visitor};
use crate::hello::{Hello, Refusal, Session};
use crate::peer::{HELLO_WITHIN, Step};
use crate::poll::Interest;
use plover_types::ReplicaId;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

/// The greeting's lane: one connection stands for both.
const BOTH_LANES: u8 = 255;

/// This side has sent its greeting and waits for the answer.
#[derive(Debug)]
pub struct Asked {
    session: Session,
    since: Instant,
    connection: Connection<OwnedFd>,
    inbound: Inbound,
    doorbell: OwnedFd,
}

impl Asked {
    /// When it has failed, and what did not come in time.
    pub fn until(&self) -> (Instant, &'static str) {
        (self.since + HELLO_WITHIN, "handshake")
    }
}

impl Shm {
    /// This side's greeting to `peer` when all is well.
    pub fn hello(&self, context: &Context, peer: ReplicaId, session: Session) -> Hello {
        context.hello(peer, BOTH_LANES, self.layout.ring_bytes(), session)
    }

    /// Makes what the peer writes to, and what to offer it.
    fn offer(&self, context: &mut Context) -> io::Result<(Inbound, OwnedFd, Offer)> {
        let (inbound, memory) = Inbound::create(self.layout)?;
        let doorbell = doorbell::make()?;
        context.poll.watch(&doorbell, Interest::Edge)?;
        let offer = Offer {
            memory,
            doorbell: doorbell.try_clone()?,
            page: self.page.descriptor()?,
        };
        Ok((inbound, doorbell, offer))
    }

    /// Connects and sends a greeting.
    pub fn ask(
        &self,
        context: &mut Context,
        peer: ReplicaId,
        place: &Address,
        now: Instant,
    ) -> Result<Step<Self>, Loss> {
        let socket = place.dial()?;
        if !socket::is_same_user(&socket) {
            return Ok(Step::Refused(Refusal::User.into()));
        }
        let session = Session::fresh();
        let (inbound, doorbell, offer) = self.offer(context)?;
        let token = context.poll.watch(&socket, Interest::Read)?;
        let hello = self.hello(context, peer, session);
        socket::send(&socket, &hello, Some(&offer))?;
        Ok(Step::Trying(Asked {
            session,
            since: now,
            connection: Connection { socket, token },
            inbound,
            doorbell,
        }))
    }

    /// Takes in the peer's answer.
    pub fn hear(
        &self,
        context: &Context,
        peer: ReplicaId,
        asked: Asked,
    ) -> Result<Step<Self>, Loss> {
        if !context.poll.is_ready(asked.connection.token) {
            return Ok(Step::Trying(asked));
        }
        let (theirs, offer) = match socket::receive(&asked.connection.socket)? {
            Heard::Nothing => return Ok(Step::Trying(asked)),
            Heard::End => return Err(Loss::Closed),
            Heard::Greeting(bytes, offer) => match Hello::decode(&bytes) {
                Ok(theirs) => (theirs, offer),
                Err(error) => return Ok(Step::Refused(error.into())),
            },
            Heard::Noise => {
                let what = "it answers with something else than a greeting";
                return Ok(Step::Refused(No::because(Refusal::Unknown, what)));
            }
        };
        let mine = self.hello(context, peer, asked.session);
        Ok(match (theirs.refusal(&mine), offer) {
            (Some(refusal), _) => Step::Refused(refusal.into()),
            (None, None) => Step::Refused(Refusal::Memory.into()),
            (None, Some(offer)) => {
                let own = (asked.inbound, asked.doorbell);
                self.link(context, &mine, asked.connection, own, offer)
            }
        })
    }

    /// Answers a greeting that is accepted.
    pub fn answer(
        &self,
        context: &mut Context,
        peer: ReplicaId,
        visitor: Visitor<Listener>,
    ) -> Result<Step<Self>, Loss> {
        let (theirs, theirs_offered) = visitor.greeting;
        let Some(theirs_offered) = theirs_offered else {
            return Ok(Step::Refused(Refusal::Memory.into()));
        };
        let mine = self.hello(context, peer, theirs.session);
        let (inbound, doorbell, offer) = self.offer(context)?;
        let own = (inbound, doorbell);
        let step = self.link(context, &mine, visitor.connection, own, theirs_offered);
        if let Step::Up(channel) = &step {
            socket::send(&channel.socket, &mine, Some(&offer))?;
        }
        Ok(step)
    }

    /// Both sides have offered memory: the link is up, if the peer's is what it should be.
    fn link(
        &self,
        context: &Context,
        mine: &Hello,
        connection: Connection<OwnedFd>,
        (inbound, own_doorbell): (Inbound, OwnedFd),
        offer: Offer,
    ) -> Step<Self> {
        let refuse = |why: &dyn std::fmt::Display| {
            Step::Refused(No::because(Refusal::Memory, format!("its memory: {why}")))
        };
        let outbound = match Outbound::map(&offer.memory, self.layout) {
            Ok(outbound) => outbound,
            Err(error) => return refuse(&error),
        };
        let page = match PeerPage::map(&offer.page) {
            Ok(page) => page,
            Err(error) => return refuse(&error),
        };
        let doorbell = match Doorbell::new(offer.doorbell) {
            Ok(doorbell) => doorbell,
            Err(error) => return refuse(&error),
        };
        let parts = Parts {
            connection,
            own_doorbell,
            inbound,
            outbound,
            doorbell,
            page,
        };
        Step::Up(Channel::new(context, mine, parts))
    }
}
