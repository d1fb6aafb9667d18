//! The listener, and the accepted connections that have not said yet who they are.
//!
//! Nothing but a whole greeting is believed, and a connection has only so much time for it.

use crate::FabricError;
use crate::context::{Context, Loss, No};
use crate::hello::Greet;
use crate::peer::HELLO_WITHIN;
use crate::poll::{Interest, Token};
use crate::refused::most_crowded;
use std::fmt::{Debug, Display};
use std::io;
use std::os::fd::AsFd;
use std::time::Instant;
use tracing::{debug, warn};

/// Connections that may wait here. Two of each of 15 peers fit; more are not replicas.
const WAITING_MAX: usize = 32;
/// Connections that one turn accepts. A handshake of TLS takes some 0.2 ms of this thread, which has other
/// things to do; the kernel keeps the rest in its queue.
const ACCEPTED_PER_TURN: usize = 4;

/// A socket that listens for replicas.
pub trait Listen: AsFd + Debug {
    /// An accepted connection.
    type Socket: AsFd + Debug;
    /// A greeting that has arrived in part.
    type Partial: Default + Debug;
    /// A whole one.
    type Greeting: Greet;

    /// The next connection and where it comes from, without blocking.
    fn accept(&self) -> io::Result<(Self::Socket, String)>;

    /// Reads on; the greeting once it is whole.
    fn read(
        &self,
        socket: &mut Self::Socket,
        partial: &mut Self::Partial,
    ) -> Result<Option<Self::Greeting>, Loss>;

    /// Why the other end of a connection is not the replica that its greeting names.
    fn objection(&self, socket: &Self::Socket, greeting: &Self::Greeting) -> Option<No> {
        let _ = (socket, greeting);
        None
    }

    /// Sends a greeting on a connection that has carried nothing this way yet, so that there is room
    /// for it.
    fn send(socket: &mut Self::Socket, greeting: &Self::Greeting) -> Result<(), Loss>;
}

/// A watched connection.
#[derive(Debug)]
pub struct Connection<S> {
    pub socket: S,
    pub token: Token,
}

/// A connection whose greeting is whole.
#[derive(Debug)]
pub struct Visitor<L: Listen> {
    pub connection: Connection<L::Socket>,
    pub address: String,
    pub greeting: L::Greeting,
}

/// A connection that is none of a replica that may link, and why. Its end is closed.
#[derive(Debug)]
pub struct TurnedAway {
    pub address: String,
    pub why: No,
}

/// The listener and the connections that wait.
#[derive(Debug)]
pub struct Door<L: Listen> {
    pub listener: L,
    token: Token,
    waiting: Vec<Waiting<L>>,
}

#[derive(Debug)]
struct Waiting<L: Listen> {
    connection: Connection<L::Socket>,
    address: String,
    since: Instant,
    partial: L::Partial,
}

impl<L: Listen> Door<L> {
    pub fn new(context: &mut Context, listener: L) -> Result<Self, FabricError> {
        let token = context
            .poll
            .watch(&listener, Interest::Read)
            .map_err(FabricError::system("watch the listener"))?;
        Ok(Self {
            listener,
            token,
            waiting: Vec::new(),
        })
    }

    /// When the next waiting connection has had its time.
    pub fn due_at(&self) -> Option<Instant> {
        self.waiting.iter().map(|it| it.since + HELLO_WITHIN).min()
    }

    /// Accepts connections, and returns those that have greeted, or were refused before they could.
    pub fn serve(
        &mut self,
        context: &mut Context,
        now: Instant,
    ) -> Vec<Result<Visitor<L>, TurnedAway>> {
        if context.poll.is_ready(self.token) {
            self.accept(context, now);
        }
        let mut come = Vec::new();
        for mut it in std::mem::take(&mut self.waiting) {
            match self
                .listener
                .read(&mut it.connection.socket, &mut it.partial)
            {
                Ok(Some(greeting)) => come.push(Ok(Visitor {
                    connection: it.connection,
                    address: it.address,
                    greeting,
                })),
                Ok(None) if now < it.since + HELLO_WITHIN => self.waiting.push(it),
                Ok(None) => turn_away(context, &it.address, &"it did not greet in time", now),
                Err(Loss::Refused(why)) => come.push(Err(TurnedAway {
                    address: it.address,
                    why,
                })),
                Err(why @ Loss::Damage(_)) => turn_away(context, &it.address, &why, now),
                // It closed the connection itself, as peers do that give up dialling.
                Err(loss) => debug!(address = it.address, %loss, "a connection ended early"),
            }
        }
        come
    }

    fn most_crowded(&self) -> usize {
        let hosts = self.waiting.iter().map(|it| host_of(&it.address));
        most_crowded(&hosts.collect::<Vec<_>>())
    }

    fn accept(&mut self, context: &mut Context, now: Instant) {
        for _ in 0..ACCEPTED_PER_TURN {
            let (socket, address) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The connection was gone before we took it, or we are short of descriptors;
                // epoll asks again.
                Err(error) => return debug!(%error, "accept failed"),
            };
            if self.waiting.len() == WAITING_MAX {
                let crowded = self.waiting.remove(self.most_crowded());
                turn_away(context, &crowded.address, &"too many connections wait", now);
            }
            match context.poll.watch(&socket, Interest::Read) {
                Ok(token) => self.waiting.push(Waiting {
                    connection: Connection { socket, token },
                    address,
                    since: now,
                    partial: L::Partial::default(),
                }),
                Err(error) => debug!(address, %error, "a connection failed at once"),
            }
        }
    }
}

/// An address without its port.
pub fn host_of(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

/// Counts a connection that is no replica's. The log names its host now and then.
pub fn turn_away(context: &mut Context, address: &str, why: &dyn Display, now: Instant) {
    context.stats.rejected += 1;
    if context.strangers.note(host_of(address), now) {
        warn!(
            event = "stranger",
            "a connection from {address} was turned away: {why}"
        );
    } else {
        debug!(address, %why, "turned away");
    }
}
