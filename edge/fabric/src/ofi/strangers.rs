//! The door: connections whose peer has not said yet who it is.

use super::greeting::{self, Greeting, GreetingBuffer, NoLink};
use super::link::Peer;
use super::stage::Connection;
use super::{Context, FabricError, Loss};
use crate::hello::Refusal;
use crate::poll::{Interest, Poll, Token};
use crate::tcp::socket;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Instant;
use tracing::{debug, warn};

/// Connections that may stand at the door. One of each of 15 peers fits twice; whoever opens
/// more is not a replica.
const STRANGERS_MAX: usize = 32;

/// The listener and who stands before it.
#[derive(Debug)]
pub(super) struct Door {
    listener: TcpListener,
    token: Token,
    strangers: Vec<Stranger>,
}

#[derive(Debug)]
struct Stranger {
    connection: Connection,
    address: SocketAddr,
    since: Instant,
    buffer: GreetingBuffer,
}

impl Door {
    /// Listens on `address`.
    pub fn open(poll: &mut Poll, address: SocketAddr) -> Result<Self, FabricError> {
        let system = |what| move |source| FabricError::System { what, source };
        let listener =
            TcpListener::bind(address).map_err(|source| FabricError::bind(address, source))?;
        listener
            .set_nonblocking(true)
            .map_err(system("make the listener non-blocking"))?;
        let token = poll
            .watch(&listener, Interest::Read)
            .map_err(system("watch the listener"))?;
        Ok(Self {
            listener,
            token,
            strangers: Vec::new(),
        })
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// When the next stranger's time is up.
    pub fn due_at(&self, context: &Context) -> Option<Instant> {
        let within = context.times.hello_within;
        self.strangers.iter().map(|s| s.since + within).min()
    }

    /// Lets in whoever knocks, and hands over to its peer who has said who it is.
    pub fn serve(&mut self, context: &mut Context, peers: &mut [Peer], now: Instant) {
        if context.poll.is_ready(self.token) {
            self.accept(context, now);
        }
        let mut waiting = Vec::with_capacity(self.strangers.len());
        for mut stranger in std::mem::take(&mut self.strangers) {
            let address = stranger.address;
            match stranger.buffer.read(&stranger.connection.socket) {
                Ok(Some(bytes)) => match Greeting::decode(bytes) {
                    Ok(theirs) => introduce(context, peers, stranger, &theirs, now),
                    Err(error) => turn_away(context, address, &error.to_string()),
                },
                Ok(None) if now < stranger.since + context.times.hello_within => {
                    waiting.push(stranger);
                }
                Ok(None) => turn_away(context, address, "said nothing"),
                // It left by itself, as peers do that give up dialling.
                Err(error) => debug!(%address, loss = %Loss::from(error), "ended early"),
            }
        }
        self.strangers = waiting;
    }

    fn accept(&mut self, context: &mut Context, now: Instant) {
        for _ in 0..STRANGERS_MAX {
            match self.listener.accept() {
                Ok((socket, address)) => {
                    if self.strangers.len() == STRANGERS_MAX {
                        // The oldest has had its chance; a peer dials again.
                        let oldest = self.strangers.remove(0);
                        turn_away(context, oldest.address, "too many at the door");
                    }
                    match Stranger::new(context, socket, address, now) {
                        Ok(stranger) => self.strangers.push(stranger),
                        Err(error) => debug!(%address, %error, "a connection failed at once"),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The connection was gone before we took it, or we are short of descriptors;
                // epoll asks again.
                Err(error) => return debug!(%error, "accept failed"),
            }
        }
    }
}

impl Stranger {
    fn new(
        context: &mut Context,
        socket: TcpStream,
        address: SocketAddr,
        since: Instant,
    ) -> io::Result<Self> {
        socket::tune(&socket, None)?;
        let token = context.poll.watch(&socket, Interest::Read)?;
        Ok(Self {
            connection: Connection { socket, token },
            address,
            since,
            buffer: GreetingBuffer::new(),
        })
    }
}

fn turn_away(context: &mut Context, address: SocketAddr, why: &str) {
    context.stats.rejected += 1;
    debug!(%address, why, "turned away");
}

/// A stranger has said who it is.
fn introduce(
    context: &mut Context,
    peers: &mut [Peer],
    stranger: Stranger,
    theirs: &Greeting,
    now: Instant,
) {
    let Stranger {
        connection,
        address,
        ..
    } = stranger;
    let from = theirs.lanes[0].from;
    let me = context.me;
    let peer = peers.iter_mut().find(|p| p.id == from && p.id < me);
    // Addresses of our own come only into an answer that accepts.
    let mut mine = context.greeting(from, theirs.session(), theirs.addresses);
    let unknown = peer.is_none().then_some(NoLink::Refused(Refusal::Identity));
    match (theirs.no_link(&mine).or(unknown), peer) {
        (None, Some(peer)) => peer.welcome(context, now, connection, theirs),
        (why, _) => {
            let why = why.unwrap_or(NoLink::Refused(Refusal::Identity));
            context.stats.rejected += 1;
            if context.refused.note(from, &why, now) {
                warn!("refused {from} from {address}: {why}");
            }
            mine.refuse(why);
            if let Err(error) = greeting::send(&connection.socket, &mine) {
                debug!(%address, %error, "a connection ended early");
            }
        }
    }
}
