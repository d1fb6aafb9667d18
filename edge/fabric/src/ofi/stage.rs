//! The stages of a link that is not down: dialling, then joined.

use super::end::End;
use super::greeting::{self, Greeting, GreetingBuffer};
use super::native::{Address, NativeError};
use super::{Context, Loss};
use crate::Lane;
use crate::hello::Session;
use crate::poll::{Interest, Token};
use crate::tcp::socket::{self, Silence};
use plover_types::ReplicaId;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// A connection that we dial.
#[derive(Debug)]
pub(super) struct Dial {
    pub connection: Connection,
    pub since: Instant,
    pub asked: Option<Box<Asked>>,
}

/// What we have said on it.
#[derive(Debug)]
pub(super) struct Asked {
    pub mine: Greeting,
    pub ends: [End; 2],
    pub answer: GreetingBuffer,
}

/// A watched TCP connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub socket: TcpStream,
    pub token: Token,
}

/// Both sides have said where to write.
#[derive(Debug)]
pub(super) struct Joined {
    // Before the connection: a peer that sees it end may rely on the ports being closed.
    pub ends: [End; 2],
    pub connection: Connection,
    pub since: Instant,
    pub up: bool,
    /// Whether we dialled: who did rings first, so that not both connect at the same moment.
    pub dialled: bool,
    pub beat_at: Instant,
    pub silence: Silence,
}

impl Connection {
    pub fn dial(context: &mut Context, address: SocketAddr) -> io::Result<Self> {
        let socket = socket::dial(address, None)?;
        let token = context.poll.watch(&socket, Interest::Write)?;
        Ok(Self { socket, token })
    }
}

impl Dial {
    /// Goes on as far as it can; the peer's answer once it is there.
    pub fn advance(
        &mut self,
        context: &mut Context,
        peer: ReplicaId,
    ) -> Result<Option<Greeting>, Loss> {
        let Connection { socket, token } = &self.connection;
        let Some(asked) = &mut self.asked else {
            if socket::is_connected(socket)? {
                // Not sooner: ports cost memory and time, and most attempts to reach a replica
                // that is gone end here.
                let session = Session::fresh();
                let (ends, addresses) = open_ends(context, peer, session)?;
                let mine = context.greeting(peer, session, addresses);
                greeting::send(socket, &mine)?;
                context.poll.change(socket, *token, Interest::Read)?;
                let answer = GreetingBuffer::new();
                self.asked = Some(Box::new(Asked { mine, ends, answer }));
            }
            return Ok(None);
        };
        match asked.answer.read(socket)? {
            Some(bytes) => Greeting::decode(bytes).map(Some).map_err(Loss::Stranger),
            None => Ok(None),
        }
    }

    pub fn due_at(&self, context: &Context) -> Instant {
        let times = context.times;
        self.since
            + if self.asked.is_some() {
                times.hello_within
            } else {
                times.dial_every
            }
    }
}

impl Joined {
    /// Reads what keeps the connection warm, and rings the first doorbells.
    pub fn advance(&mut self, context: &Context) -> Result<(), Loss> {
        if context.poll.is_ready(self.connection.token) {
            self.listen()?;
        }
        if !self.up {
            for end in &mut self.ends {
                end.drain()?;
                if self.dialled || end.is_heard() {
                    end.greet()?;
                }
            }
        }
        Ok(())
    }

    /// Takes the peer's heartbeats off the connection: what they say is that it has not ended.
    fn listen(&self) -> Result<(), Loss> {
        let mut beats = [0; 256];
        match (&self.connection.socket).read(&mut beats) {
            Ok(0) => Err(Loss::Closed),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Asks the kernel about the peer's host, sends a heartbeat, asks libfabric about failures.
    pub fn beat(&mut self, now: Instant, silent_after: Duration) -> Result<(), Loss> {
        let mut socket = &self.connection.socket;
        // Before the next heartbeat goes out: what is owed then was owed for a whole beat, and not
        // since a moment ago.
        let silent = self.silence.observe(now, socket::acknowledged(socket)?);
        if silent >= silent_after {
            return Err(Loss::Silent(silent));
        }
        match socket.write(&[0]) {
            Ok(_) => {}
            // A peer that is stopped reads none; that its host acknowledges is what counts.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        self.ends.iter_mut().try_for_each(End::check)?;
        Ok(())
    }
}

pub(super) fn open_ends(
    context: &mut Context,
    peer: ReplicaId,
    session: Session,
) -> Result<([End; 2], [Address; 2]), NativeError> {
    let (log, log_address) = End::open(context, peer, Lane::Log, session)?;
    let (bulk, bulk_address) = End::open(context, peer, Lane::Bulk, session)?;
    Ok(([log, bulk], [log_address, bulk_address]))
}

/// Often enough that silence is noticed in time.
pub(super) fn beat_every(context: &Context) -> Duration {
    context.times.silent_after / 5
}
