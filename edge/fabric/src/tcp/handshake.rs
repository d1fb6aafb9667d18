//! The handshake: one greeting each way on the connection of each lane.
//!
//! ```text
//!      lower id: connects both lanes, greets ──┐
//!                                              ├─► both lanes are greeted: up
//!      higher id: one lane greeted ────────────┘
//! ```
//!
//! A greeting of another session starts over.

use super::{Tcp, Up};
use crate::context::{Context, Loss};
use crate::door::{Connection, Listen, Visitor};
use crate::driver::Handshake;
use crate::hello::{HELLO_BYTES, Hello, Session};
use crate::line::Line;
use crate::peer::{HELLO_WITHIN, Step};
use crate::poll::Interest;
use crate::socket::{Dial, TcpDoor, parse};
use crate::{Lane, PeerError};
use plover_types::ReplicaId;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// A link that is not up yet.
#[derive(Debug)]
pub struct Trying {
    session: Session,
    /// The lanes that this side dials, until the peer has answered.
    dials: [Option<Dial<Hello, HELLO_BYTES>>; 2],
    /// The lanes on which both sides have greeted.
    greeted: [Option<Connection<Line>>; 2],
}

impl Trying {
    /// Both sides have greeted on the lane number `lane`.
    fn greeted(
        &mut self,
        context: &Context,
        lane: usize,
        connection: Connection<Line>,
    ) -> io::Result<()> {
        // The peer may write at once; its bytes wait until the other lane has greeted.
        let Connection { socket, token } = &connection;
        context.poll.change(socket, *token, Interest::Nothing)?;
        self.greeted[lane] = Some(connection);
        Ok(())
    }

    fn step(self, context: &Context, peer: ReplicaId, now: Instant) -> Result<Step<Tcp>, Loss> {
        Ok(match self.greeted {
            [Some(log), Some(bulk)] => {
                Step::Up(Up::new(context, peer, self.session, [log, bulk], now)?)
            }
            greeted => Step::Trying(Self { greeted, ..self }),
        })
    }
}

impl Handshake for Tcp {
    const DIAL_EVERY: Duration = Duration::from_millis(250);
    type Place = SocketAddr;
    type Listener = TcpDoor<Hello, HELLO_BYTES>;
    type Trying = Trying;
    type Up = Up;

    fn place(&self, _: ReplicaId, address: &str) -> Result<SocketAddr, PeerError> {
        parse(address)
    }

    fn answer(&self, context: &Context, theirs: &Hello) -> Hello {
        let mut lanes = Lane::ALL.into_iter();
        // A lane that does not exist shows as a difference.
        let lane = lanes.find(|lane| lane.index() == usize::from(theirs.lane));
        context.hello_on(theirs.from, lane.unwrap_or(Lane::Log), theirs.session)
    }

    fn is_continued(trying: &Trying, greeting: &Hello) -> bool {
        trying.session == greeting.session
    }

    fn welcome(
        &mut self,
        context: &mut Context,
        trying: Option<Trying>,
        mut visitor: Visitor<Self::Listener>,
        mine: Hello,
        now: Instant,
    ) -> Result<Step<Self>, Loss> {
        Self::Listener::send(&mut visitor.connection.socket, &mine)?;
        let mut trying = trying.unwrap_or(Trying {
            session: mine.session,
            dials: [None, None],
            greeted: [None, None],
        });
        trying.greeted(context, usize::from(mine.lane), visitor.connection)?;
        trying.step(context, mine.to, now)
    }

    fn dial(
        &mut self,
        context: &mut Context,
        peer: ReplicaId,
        place: &SocketAddr,
    ) -> Result<Step<Self>, Loss> {
        let keys = self.keys.as_ref();
        let mut dial = || Dial::start(context, *place, keys, peer).map(Some);
        Ok(Step::Trying(Trying {
            session: Session::fresh(),
            dials: [dial()?, dial()?],
            greeted: [None, None],
        }))
    }

    fn advance(
        &mut self,
        context: &mut Context,
        peer: ReplicaId,
        mut trying: Trying,
        now: Instant,
    ) -> Result<Step<Self>, Loss> {
        let ended = |it: &Connection<_>| context.poll.has_ended(it.token);
        if trying.greeted.iter().flatten().any(ended) {
            return Err(Loss::Closed);
        }
        for lane in Lane::ALL {
            let Some(mut dial) = trying.dials[lane.index()].take() else {
                continue;
            };
            let mine = context.hello_on(peer, lane, trying.session);
            match dial.advance(context, |_| Ok(mine))? {
                None => trying.dials[lane.index()] = Some(dial),
                Some(Err(why)) => return Ok(Step::Refused(why)),
                Some(Ok(_)) => trying.greeted(context, lane.index(), dial.connection)?,
            }
        }
        trying.step(context, peer, now)
    }

    fn patience(trying: &Trying) -> (Duration, &'static str) {
        let dials = trying.dials.iter().flatten();
        let patience = dials.map(|dial| dial.patience(Self::DIAL_EVERY));
        patience.min().unwrap_or((HELLO_WITHIN, "handshake"))
    }
}
