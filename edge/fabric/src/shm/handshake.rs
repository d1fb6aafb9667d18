//! The handshake: one greeting each way, with the descriptors of memory, doorbell and status page.
//!
//! Each session has memory of its own, fresh and with a salt of its own: nothing of an earlier one
//! can come out of it, and a process that still holds the old memory writes into nowhere.

use super::Shm;
use super::channel::Channel;
use super::doorbell;
use super::memory::Inbound;
use super::socket::{self, Address, Listener, Offer, Offering};
use crate::PeerError;
use crate::context::{Context, Loss, No};
use crate::door::{Connection, Listen, Visitor};
use crate::driver::Handshake;
use crate::hello::{Greet, Refusal, Session};
use crate::peer::Step;
use crate::poll::Interest;
use plover_types::ReplicaId;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// The greeting's lane: one connection stands for both.
const BOTH_LANES: u8 = 255;

/// This side has sent its greeting and waits for the answer.
#[derive(Debug)]
pub struct Asked {
    mine: Offering,
    connection: Connection<OwnedFd>,
    /// The memory that the greeting has offered, as this side holds it.
    own: (Inbound, OwnedFd),
}

impl Shm {
    /// This side's greeting to `peer` when all is well, but for its offer.
    fn greeting(&self, context: &Context, peer: ReplicaId, session: Session) -> Offering {
        Offering {
            hello: context.hello(peer, BOTH_LANES, self.layout.ring_bytes(), session),
            offer: None,
        }
    }

    /// Makes what the peer writes to, and what to offer it.
    fn offer(&self, context: &mut Context) -> io::Result<((Inbound, OwnedFd), Offer)> {
        let (inbound, memory) = Inbound::create(self.layout)?;
        let doorbell = doorbell::make()?;
        context.poll.watch(&doorbell, Interest::Edge)?;
        let offer = Offer {
            memory,
            doorbell: doorbell.try_clone()?,
            page: self.page.descriptor()?,
        };
        Ok(((inbound, doorbell), offer))
    }
}

impl Handshake for Shm {
    const DIAL_EVERY: Duration = Duration::from_millis(100);
    type Place = Address;
    type Listener = Listener;
    type Trying = Asked;
    type Up = Channel;

    /// A peer's address follows from its id, so the text is not looked at.
    fn place(&self, peer: ReplicaId, _: &str) -> Result<Address, PeerError> {
        // Only an id of more digits can make the path too long now.
        let address = Address::new(&self.place, &self.group, peer);
        address.map_err(|error| PeerError(error.to_string()))
    }

    fn answer(&self, context: &Context, theirs: &Offering) -> Offering {
        self.greeting(context, theirs.sender(), theirs.hello.session)
    }

    fn welcome(
        &mut self,
        context: &mut Context,
        _: Option<Asked>,
        visitor: Visitor<Listener>,
        mut mine: Offering,
        _: Instant,
    ) -> Result<Step<Self>, Loss> {
        let Some(theirs) = visitor.greeting.offer else {
            return Ok(Step::Refused(Refusal::Memory.into()));
        };
        let (own, offer) = self.offer(context)?;
        let mut channel = match Channel::open(context, &mine.hello, visitor.connection, own, theirs)
        {
            Ok(channel) => channel,
            Err(why) => return Ok(Step::Refused(why.into())),
        };
        mine.offer = Some(offer);
        Listener::send(&mut channel.socket, &mine)?;
        Ok(Step::Up(channel))
    }

    fn dial(
        &mut self,
        context: &mut Context,
        peer: ReplicaId,
        place: &Address,
    ) -> Result<Step<Self>, Loss> {
        let mut socket = place.dial()?;
        if !socket::is_same_user(&socket) {
            return Ok(Step::Refused(Refusal::User.into()));
        }
        let mut mine = self.greeting(context, peer, Session::fresh());
        let (own, offer) = self.offer(context)?;
        let token = context.poll.watch(&socket, Interest::Read)?;
        mine.offer = Some(offer);
        Listener::send(&mut socket, &mine)?;
        // The peer alone holds the memory's descriptor now.
        mine.offer = None;
        Ok(Step::Trying(Asked {
            mine,
            connection: Connection { socket, token },
            own,
        }))
    }

    fn advance(
        &mut self,
        context: &mut Context,
        _: ReplicaId,
        asked: Asked,
        _: Instant,
    ) -> Result<Step<Self>, Loss> {
        if !context.poll.is_ready(asked.connection.token) {
            return Ok(Step::Trying(asked));
        }
        let theirs = match socket::receive(&asked.connection.socket) {
            Ok(None) => return Ok(Step::Trying(asked)),
            Ok(Some(theirs)) => theirs,
            Err(Loss::Damage(what)) => {
                return Ok(Step::Refused(No::because(Refusal::Unknown, what)));
            }
            Err(loss) => return Err(loss),
        };
        let mine = &asked.mine;
        let refusal = theirs.refusal(mine).or_else(|| context.replaced(&theirs));
        if refusal.is_none() {
            context.met(&theirs);
        }
        Ok(match (refusal, theirs.offer) {
            (None, Some(offer)) => {
                match Channel::open(context, &mine.hello, asked.connection, asked.own, offer) {
                    Ok(channel) => Step::Up(channel),
                    Err(why) => Step::Refused(why.into()),
                }
            }
            (why, _) => Step::Refused(why.unwrap_or(Refusal::Memory.into())),
        })
    }
}
