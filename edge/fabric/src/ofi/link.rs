//! A link that is dialled, joined, or up: a TCP connection and a port for each lane.
//!
//! ```text
//!     lower id: Dialing ── answered ──┐
//!                                     ├─► Joining ── doorbells of both lanes, both ways ──► up
//!     higher id: a peer greeted, ─────┘
//!                answers
//! ```
//!
//! **Liveness.** An unconnected endpoint does not notice that its peer has died. The TCP
//! connection does: at once if the process dies, and after half a second without an
//! acknowledgement if the host does (`socket.rs`). Each side sends a byte every tenth of a second, so
//! that something is to be acknowledged.

use super::Ofi;
use super::end::End;
use super::greeting::{GREETING_BYTES, Greeting};
use super::native::{Address, NativeError};
use crate::Lane;
use crate::context::{Context, Loss};
use crate::door::Connection;
use crate::driver::Transport;
use crate::hello::Session;
use crate::peer::{HELLO_WITHIN, Step};
use crate::poll::Interest;
use crate::socket::{self, ASK_EVERY, Partial, Silence, send};
use plover_types::ReplicaId;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// From the handshake to the first doorbells. Providers connect their endpoints meanwhile.
const JOIN_WITHIN: Duration = Duration::from_secs(3);

/// A link that is not up yet.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it is boxed where it is kept")]
pub enum Trying {
    /// This side dialled.
    Dialing {
        connection: Connection<TcpStream>,
        since: Instant,
        asked: Option<Asked>,
    },
    /// Both sides have said where to write.
    Joining(Joined),
}

/// A greeting that this side has sent, and the ports that it names.
#[derive(Debug)]
pub struct Asked {
    mine: Greeting,
    ends: [End; 2],
    answer: Partial<GREETING_BYTES>,
}

/// Both sides have said where to write.
#[derive(Debug)]
pub struct Joined {
    // Before the connection: a peer that sees it end may rely on the ports being closed.
    pub ends: [End; 2],
    connection: Connection<TcpStream>,
    since: Instant,
    /// The dialling side rings first, so that the two do not connect at the same moment.
    dialled: bool,
    pub beat_at: Instant,
    silence: Silence,
}

impl Trying {
    pub fn dial(context: &mut Context, address: SocketAddr, now: Instant) -> io::Result<Self> {
        Ok(Self::Dialing {
            connection: Connection::dial(context, address)?,
            since: now,
            asked: None,
        })
    }

    pub fn joined(&self) -> Option<&Joined> {
        match self {
            Self::Joining(joined) => Some(joined),
            Self::Dialing { .. } => None,
        }
    }

    pub fn joined_mut(&mut self) -> Option<&mut Joined> {
        match self {
            Self::Joining(joined) => Some(joined),
            Self::Dialing { .. } => None,
        }
    }

    pub fn advance(
        self,
        transport: &Ofi,
        context: &mut Context,
        peer: ReplicaId,
        now: Instant,
    ) -> Result<Step<Ofi>, Loss> {
        let (connection, since, asked) = match self {
            Self::Dialing {
                connection,
                since,
                asked,
            } if context.poll.is_ready(connection.token) => (connection, since, asked),
            Self::Dialing { .. } => return Ok(Step::Trying(self)),
            Self::Joining(mut joined) => {
                joined.listen(context)?;
                return joined.step();
            }
        };
        let Connection { socket, token } = &connection;
        let asked = match asked {
            Some(mut asked) => match asked.answer.read(socket)? {
                Some(bytes) => {
                    let refusal = match Greeting::decode(bytes) {
                        Err(error) => Err(error.into()),
                        Ok(theirs) => theirs.refusal(&asked.mine).map_or(Ok(theirs), Err),
                    };
                    let theirs = match refusal {
                        Err(why) => return Ok(Step::Refused(why)),
                        Ok(theirs) => theirs.addresses,
                    };
                    return Joined::new(context, connection, asked.ends, &theirs, true, now)?
                        .step();
                }
                None => Some(asked),
            },
            // Not sooner: ports cost memory and time, and most attempts to reach a replica
            // that is gone end before.
            None if socket::is_connected(socket)? => {
                let session = Session::fresh();
                let (ends, addresses) = transport.open_ends(context, peer, session)?;
                let mine = transport.greeting(context, peer, session, addresses);
                send(socket, &mine.encode())?;
                context.poll.change(socket, *token, Interest::Read)?;
                let answer = Partial::default();
                Some(Asked { mine, ends, answer })
            }
            None => None,
        };
        Ok(Step::Trying(Self::Dialing {
            connection,
            since,
            asked,
        }))
    }

    /// When it has failed, and what did not come in time.
    pub fn until(&self) -> (Instant, &'static str) {
        match self {
            Self::Dialing {
                since, asked: None, ..
            } => (*since + Ofi::DIAL_EVERY, "connection"),
            Self::Dialing { since, .. } => (*since + HELLO_WITHIN, "handshake"),
            Self::Joining(joined) => (
                joined.since + JOIN_WITHIN,
                "doorbell, although the handshake went well: libfabric's own traffic does not get \
                 through (is a firewall between the replicas?); none came",
            ),
        }
    }
}

impl Ofi {
    /// Opens the ports of both lanes.
    pub fn open_ends(
        &self,
        context: &mut Context,
        peer: ReplicaId,
        session: Session,
    ) -> Result<([End; 2], [Address; 2]), NativeError> {
        let mut open = |lane| End::open(context, &self.provider, self.waits, peer, lane, session);
        let (log, log_address) = open(Lane::Log)?;
        let (bulk, bulk_address) = open(Lane::Bulk)?;
        Ok(([log, bulk], [log_address, bulk_address]))
    }
}

impl Joined {
    pub fn new(
        context: &mut Context,
        connection: Connection<TcpStream>,
        mut ends: [End; 2],
        addresses: &[Address; 2],
        dialled: bool,
        now: Instant,
    ) -> Result<Self, Loss> {
        let mut lanes = ends.iter_mut().zip(addresses);
        lanes.try_for_each(|(end, address)| end.connect(address))?;
        let Connection { socket, token } = &connection;
        context.poll.change(socket, *token, Interest::Read)?;
        Ok(Self {
            ends,
            connection,
            since: now,
            dialled,
            beat_at: now + ASK_EVERY,
            silence: Silence::default(),
        })
    }

    /// Rings the first doorbells. The link is up once they have come and gone on both lanes.
    pub fn step(mut self) -> Result<Step<Ofi>, Loss> {
        for end in &mut self.ends {
            end.drain()?;
            if self.dialled || end.is_heard() {
                end.greet()?;
            }
        }
        let works = |end: &End| end.is_heard() && end.is_greeted();
        Ok(if self.ends.iter().all(works) {
            Step::Up(self)
        } else {
            Step::Trying(Trying::Joining(self))
        })
    }

    /// Takes the peer's heartbeats off the connection: they show that it has not ended.
    pub fn listen(&mut self, context: &Context) -> Result<(), Loss> {
        if !context.poll.is_ready(self.connection.token) {
            return Ok(());
        }
        match (&self.connection.socket).read(&mut [0; 256]) {
            Ok(0) => Err(Loss::Closed),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// If it is time: asks the kernel about the peer's host, sends a heartbeat, asks libfabric about
    /// failures.
    pub fn beat(&mut self, now: Instant) -> Result<(), Loss> {
        if now < self.beat_at {
            return Ok(());
        }
        self.beat_at = now + ASK_EVERY;
        let mut socket = &self.connection.socket;
        // Before the next heartbeat goes out: what is owed then was owed for a whole beat.
        self.silence.check(socket, now)?;
        match socket.write(&[0]) {
            Ok(_) => {}
            // A peer that is stopped reads none; that its host acknowledges is what counts.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        Ok(self.ends.iter_mut().try_for_each(End::check)?)
    }

    /// Arms the descriptors of both lanes; `false` if there is something to do first.
    pub fn arm(&mut self) -> Result<bool, NativeError> {
        let [log, bulk] = &mut self.ends;
        let log = log.arm()?;
        Ok(bulk.arm()? && log)
    }
}
