//! The handshake: one greeting each way on the connection of each lane.
//!
//! ```text
//!      lower id                                   higher id
//!   Dialing: connects both lanes,              Half: one lane greeted,
//!            greets, waits for both answers          waits for the other one
//! ```
//!
//! A greeting of another session starts over.

use super::{Tcp, Up, answer};
use crate::Lane;
use crate::context::{Context, Loss, No};
use crate::door::{Connection, Visitor};
use crate::driver::Transport;
use crate::hello::{HELLO_BYTES, Hello, Session};
use crate::peer::{HELLO_WITHIN, Step};
use crate::poll::Interest;
use crate::socket::{self, Partial, send};
use plover_types::ReplicaId;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

/// A link that is not up yet.
#[derive(Debug)]
pub enum Trying {
    /// This side dialled.
    Dialing {
        session: Session,
        since: Instant,
        lanes: [Dial; 2],
    },
    /// The peer dialled, and greeted on one lane so far.
    Half {
        session: Session,
        since: Instant,
        lanes: [Option<Connection<TcpStream>>; 2],
    },
}

impl Trying {
    pub fn dial(context: &mut Context, address: SocketAddr, now: Instant) -> io::Result<Self> {
        Ok(Self::Dialing {
            session: Session::fresh(),
            since: now,
            lanes: [
                Dial::start(context, address)?,
                Dial::start(context, address)?,
            ],
        })
    }

    pub fn advance(
        mut self,
        context: &mut Context,
        peer: ReplicaId,
        now: Instant,
    ) -> Result<Step<Tcp>, Loss> {
        match &mut self {
            Self::Dialing { session, lanes, .. } => {
                for lane in Lane::ALL {
                    let mine = context.hello_on(peer, lane, *session);
                    if let Some(why) = lanes[lane.index()].advance(context, &mine)? {
                        return Ok(Step::Refused(why));
                    }
                }
            }
            Self::Half { lanes, .. } => {
                let ended = |it: &Connection<_>| context.poll.has_ended(it.token);
                if lanes.iter().flatten().any(ended) {
                    return Err(Loss::Closed);
                }
            }
        }
        match self {
            Self::Dialing { session, lanes, .. } if lanes.iter().all(Dial::is_greeted) => {
                let lanes = lanes.map(|dial| dial.connection);
                Ok(Step::Up(Up::new(context, peer, session, lanes, now)?))
            }
            trying => Ok(Step::Trying(trying)),
        }
    }

    /// When it has failed, and what did not come in time.
    pub fn until(&self) -> (Instant, &'static str) {
        match self {
            Self::Dialing { since, lanes, .. } if !lanes.iter().all(Dial::is_connected) => {
                (*since + Tcp::DIAL_EVERY, "connection")
            }
            Self::Dialing { since, .. } | Self::Half { since, .. } => {
                (*since + HELLO_WITHIN, "handshake")
            }
        }
    }
}

/// Answers a greeting that is accepted. `trying` has the other lane of its session, if it is there.
pub fn welcome(
    context: &Context,
    peer: ReplicaId,
    trying: Option<Trying>,
    visitor: Visitor<<Tcp as Transport>::Listener>,
    now: Instant,
) -> Result<Step<Tcp>, Loss> {
    let (theirs, connection) = (visitor.greeting, visitor.connection);
    send(&connection.socket, &answer(context, &theirs).encode())?;
    // The peer may write at once; its bytes wait until the other lane has greeted.
    let Connection { socket, token } = &connection;
    context.poll.change(socket, *token, Interest::Nothing)?;
    let session = theirs.session;
    let (since, mut lanes) = match trying {
        Some(Trying::Half { since, lanes, .. }) => (since, lanes),
        _ => (now, [None, None]),
    };
    lanes[usize::from(theirs.lane)] = Some(connection);
    Ok(match lanes {
        [Some(log), Some(bulk)] => Step::Up(Up::new(context, peer, session, [log, bulk], now)?),
        lanes => Step::Trying(Trying::Half {
            session,
            since,
            lanes,
        }),
    })
}

/// One lane's connection that this side dials.
#[derive(Debug)]
pub struct Dial {
    connection: Connection<TcpStream>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Connecting,
    Asked(Partial<HELLO_BYTES>),
    Greeted,
}

impl Dial {
    fn start(context: &mut Context, address: SocketAddr) -> io::Result<Self> {
        Ok(Self {
            connection: Connection::dial(context, address)?,
            stage: Stage::Connecting,
        })
    }

    /// Goes on as far as it can; `mine` is what this side says on this lane. Returns why one side
    /// refuses the other.
    fn advance(&mut self, context: &Context, mine: &Hello) -> Result<Option<No>, Loss> {
        let Connection { socket, token } = &self.connection;
        if !context.poll.is_ready(*token) {
            return Ok(None);
        }
        match &mut self.stage {
            Stage::Connecting => {
                if socket::is_connected(socket)? {
                    send(socket, &mine.encode())?;
                    context.poll.change(socket, *token, Interest::Read)?;
                    self.stage = Stage::Asked(Partial::default());
                }
            }
            Stage::Asked(partial) => {
                let Some(bytes) = partial.read(socket)? else {
                    return Ok(None);
                };
                let refusal = match Hello::decode(bytes) {
                    Err(error) => Some(error.into()),
                    Ok(theirs) => theirs.refusal(mine).map(No::from),
                };
                if refusal.is_some() {
                    return Ok(refusal);
                }
                // The peer may write at once; its bytes wait until the other lane is greeted.
                context.poll.change(socket, *token, Interest::Nothing)?;
                self.stage = Stage::Greeted;
            }
            // Only an error or a hang-up wakes us now.
            Stage::Greeted => return Err(socket.take_error()?.map_or(Loss::Closed, Loss::Io)),
        }
        Ok(None)
    }

    fn is_connected(&self) -> bool {
        !matches!(self.stage, Stage::Connecting)
    }

    fn is_greeted(&self) -> bool {
        matches!(self.stage, Stage::Greeted)
    }
}
