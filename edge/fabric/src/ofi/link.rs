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
use super::seal::{Secret, Secrets};
use crate::context::{Context, Loss, No};
use crate::door::{Connection, Listen, Visitor};
use crate::driver::Handshake;
use crate::hello::{Greet, Refusal, Session};
use crate::line::Line;
use crate::peer::Step;
use crate::poll::Interest;
use crate::socket::{self, ASK_EVERY, Dial, Silence, TcpDoor, parse};
use crate::{Lane, PeerError};
use plover_types::ReplicaId;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// From the start of a handshake to the first doorbells. Providers connect their endpoints meanwhile.
const JOIN_WITHIN: Duration = Duration::from_secs(3);

/// A link that is not up yet.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it is boxed where it is kept")]
pub enum Trying {
    /// This side dialled. It opens its ports, and draws its secret, when it greets.
    Dialing(Dial<Greeting, GREETING_BYTES>, Option<([End; 2], Secret)>),
    /// Both sides have said where to write.
    Joining(Joined),
}

/// Both sides have said where to write.
#[derive(Debug)]
pub struct Joined {
    // Before the connection: a peer that sees it end may rely on the ports being closed.
    pub ends: [End; 2],
    connection: Connection<Line>,
    /// The dialling side rings first, so that the two do not connect at the same moment.
    dialled: bool,
    pub beat_at: Instant,
    silence: Silence,
}

impl Ofi {
    /// This side's part of the keys of a link: it needs TLS to be sent.
    fn draw_secret(&self) -> Secret {
        self.keys.as_ref().map_or(Secret::NONE, |_| Secret::fresh())
    }

    /// This side's greeting to `peer` when all is well.
    fn greeting(
        &self,
        context: &Context,
        peer: ReplicaId,
        session: Session,
        addresses: [Address; 2],
        secret: Secret,
    ) -> Greeting {
        Greeting {
            lanes: Lane::ALL.map(|lane| context.hello_on(peer, lane, session)),
            provider: self.provider.traits.name,
            addresses,
            secret,
        }
    }

    /// Opens the ports of both lanes.
    fn open_ends(
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

impl Handshake for Ofi {
    const DIAL_EVERY: Duration = Duration::from_millis(250);
    type Place = SocketAddr;
    type Listener = TcpDoor<Greeting, GREETING_BYTES>;
    type Trying = Trying;
    type Up = Joined;

    fn place(&self, _: ReplicaId, address: &str) -> Result<SocketAddr, PeerError> {
        parse(address)
    }

    /// The addresses and the secret come only into an answer that accepts.
    fn answer(&self, context: &Context, theirs: &Greeting) -> Greeting {
        let (peer, session, addresses) = (theirs.sender(), theirs.session(), theirs.addresses);
        self.greeting(context, peer, session, addresses, Secret::NONE)
    }

    fn welcome(
        &mut self,
        context: &mut Context,
        _: Option<Trying>,
        visitor: Visitor<Self::Listener>,
        mut mine: Greeting,
        now: Instant,
    ) -> Result<Step<Self>, Loss> {
        let (theirs, mut connection) = (visitor.greeting, visitor.connection);
        mine.secret = self.draw_secret();
        let secrets = Secrets {
            dialled: theirs.secret,
            listened: mine.secret,
        };
        let (mut ends, addresses) = self.open_ends(context, theirs.sender(), theirs.session())?;
        seal(&mut ends, context.me, theirs.session(), &secrets)?;
        mine.addresses = addresses;
        Self::Listener::send(&mut connection.socket, &mine)?;
        Joined::new(context, connection, ends, &theirs.addresses, false, now)?.step()
    }

    fn dial(
        &mut self,
        context: &mut Context,
        peer: ReplicaId,
        place: &SocketAddr,
    ) -> Result<Step<Self>, Loss> {
        let dial = Dial::start(context, *place, self.keys.as_ref(), peer)?;
        Ok(Step::Trying(Trying::Dialing(dial, None)))
    }

    fn advance(
        &mut self,
        context: &mut Context,
        peer: ReplicaId,
        trying: Trying,
        now: Instant,
    ) -> Result<Step<Self>, Loss> {
        let (mut dial, mut ends) = match trying {
            Trying::Dialing(dial, ends) => (dial, ends),
            Trying::Joining(mut joined) => {
                joined.listen(context)?;
                return joined.step();
            }
        };
        // Not sooner: ports cost memory and time, and most attempts to reach a replica that is gone
        // end before.
        let answer = dial.advance(context, |context| {
            let session = Session::fresh();
            let (opened, addresses) = self.open_ends(context, peer, session)?;
            let secret = self.draw_secret();
            ends = Some((opened, secret));
            Ok(self.greeting(context, peer, session, addresses, secret))
        })?;
        match (answer, ends) {
            (Some(Err(why)), _) => Ok(Step::Refused(why)),
            (Some(Ok(theirs)), Some((mut ends, dialled))) => {
                let secrets = Secrets {
                    dialled,
                    listened: theirs.secret,
                };
                seal(&mut ends, context.me, theirs.session(), &secrets)?;
                let (connection, addresses) = (dial.connection, theirs.addresses);
                Joined::new(context, connection, ends, &addresses, true, now)?.step()
            }
            (_, ends) => Ok(Step::Trying(Trying::Dialing(dial, ends))),
        }
    }

    fn patience(trying: &Trying) -> (Duration, &'static str) {
        match trying {
            Trying::Dialing(dial, _) => dial.patience(Self::DIAL_EVERY),
            Trying::Joining(_) => (
                JOIN_WITHIN,
                "doorbell, although the handshake went well: libfabric's own traffic does not get \
                 through (is a firewall between the replicas?); none came",
            ),
        }
    }
}

/// Has the records of a link sealed, if its handshake is under TLS.
fn seal(
    ends: &mut [End; 2],
    me: ReplicaId,
    session: Session,
    secrets: &Secrets,
) -> Result<(), Loss> {
    match (
        secrets.dialled == Secret::NONE,
        secrets.listened == Secret::NONE,
    ) {
        (false, false) => ends
            .iter_mut()
            .for_each(|end| end.seal(me, session, secrets)),
        // Without TLS on both sides there is no greeting.
        (true, true) => {}
        _ => {
            let words =
                "it has keys and does not seal its records: run the same release on all replicas";
            return Err(Loss::Refused(No::because(Refusal::Version, words)));
        }
    }
    Ok(())
}

impl Joined {
    fn new(
        context: &mut Context,
        connection: Connection<Line>,
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
            dialled,
            beat_at: now + ASK_EVERY,
            silence: Silence::default(),
        })
    }

    /// Rings the first doorbells. The link is up once they have come and gone on both lanes.
    fn step(mut self) -> Result<Step<Ofi>, Loss> {
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
        if context.poll.is_ready(self.connection.token) {
            self.connection.socket.read(&mut [0; 256])?;
        }
        Ok(())
    }

    /// If it is time: asks the kernel about the peer's host, sends a heartbeat, asks libfabric about
    /// failures.
    pub fn beat(&mut self, now: Instant) -> Result<(), Loss> {
        if now < self.beat_at {
            return Ok(());
        }
        self.beat_at = now + ASK_EVERY;
        let line = &mut self.connection.socket;
        // Before the next heartbeat goes out: what is owed then was owed for a whole beat.
        self.silence.check(&line.socket, now)?;
        // A peer that is stopped reads none; that its host acknowledges is what counts.
        line.write(&[0])?;
        Ok(self.ends.iter_mut().try_for_each(End::check)?)
    }

    /// Sends a heartbeat out of turn.
    pub fn challenge(&mut self) -> Result<(), Loss> {
        self.connection.socket.write(&[0])?;
        Ok(())
    }

    /// Whether the peer's host has acknowledged something since then.
    pub fn has_answered(&self, challenged: Instant, now: Instant) -> io::Result<bool> {
        let line = &self.connection.socket;
        socket::has_answered(&line.socket, !line.holds_output(), challenged, now)
    }

    /// Arms the descriptors of both lanes; `false` if there is something to do first.
    pub fn arm(&mut self) -> Result<bool, NativeError> {
        let [log, bulk] = &mut self.ends;
        let log = log.arm()?;
        Ok(bulk.arm()? && log)
    }
}
