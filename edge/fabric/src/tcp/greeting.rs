//! Connections before their lane is up: our dialling, and strangers at our door.

use super::lane::{Greeted, Loss};
use super::{Context, socket};
use crate::hello::{HELLO_BYTES, Hello, NotHello};
use crate::poll::Interest;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

/// A handshake message as it arrives. Never reads past its end: what follows belongs to the
/// ring.
#[derive(Debug)]
pub(super) struct HelloBuffer {
    bytes: [u8; HELLO_BYTES],
    have: usize,
}

impl HelloBuffer {
    pub fn new() -> Self {
        Self {
            bytes: [0; HELLO_BYTES],
            have: 0,
        }
    }

    /// Reads on; the message once it is whole.
    pub fn read(&mut self, mut socket: &TcpStream) -> Result<Option<&[u8; HELLO_BYTES]>, Loss> {
        while self.have < HELLO_BYTES {
            match socket.read(&mut self.bytes[self.have..]) {
                Ok(0) => return Err(Loss::Closed),
                Ok(count) => self.have += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Some(&self.bytes))
    }
}

/// Sends a handshake message on a connection that carried nothing yet, so that it always fits
/// the kernel's buffer whole.
pub(super) fn send(mut socket: &TcpStream, hello: &Hello) -> io::Result<()> {
    let bytes = hello.encode();
    match socket.write(&bytes)? {
        HELLO_BYTES => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// One lane's connection that we dial.
#[derive(Debug)]
pub(super) struct Dial {
    connection: Greeted,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Connecting,
    Asked(HelloBuffer),
    Greeted,
}

/// What came of looking at a dialled connection.
pub(super) enum Answer {
    Pending,
    Refused(crate::hello::Refusal),
    /// Not a replica, or one that speaks nonsense.
    Stranger(NotHello),
}

impl Dial {
    pub fn start(context: &mut Context, address: SocketAddr) -> io::Result<Self> {
        let socket = socket::dial(address, context.send_buffer)?;
        let token = context.poll.watch(&socket, Interest::Write)?;
        Ok(Self {
            connection: Greeted { socket, token },
            stage: Stage::Connecting,
        })
    }

    /// Goes on as far as it can; `mine` is what we say on this lane.
    pub fn advance(&mut self, context: &Context, mine: &Hello) -> Result<Answer, Loss> {
        let Greeted { socket, token } = &self.connection;
        if !context.poll.is_ready(*token) {
            return Ok(Answer::Pending);
        }
        match &mut self.stage {
            Stage::Connecting => {
                if socket::is_connected(socket)? {
                    send(socket, mine)?;
                    context.poll.change(socket, *token, Interest::Read)?;
                    self.stage = Stage::Asked(HelloBuffer::new());
                }
            }
            Stage::Asked(buffer) => {
                let Some(bytes) = buffer.read(socket)? else {
                    return Ok(Answer::Pending);
                };
                match Hello::decode(bytes) {
                    Err(error) => return Ok(Answer::Stranger(error)),
                    Ok(theirs) => {
                        if let Some(refusal) = theirs.refusal(mine) {
                            return Ok(Answer::Refused(refusal));
                        }
                    }
                }
                // The peer may write at once; its bytes wait until the other lane is greeted.
                context.poll.change(socket, *token, Interest::Nothing)?;
                self.stage = Stage::Greeted;
            }
            // Only an error or a hang-up wakes us now.
            Stage::Greeted => return Err(socket.take_error()?.map_or(Loss::Closed, Loss::Io)),
        }
        Ok(Answer::Pending)
    }

    pub fn is_connected(&self) -> bool {
        !matches!(self.stage, Stage::Connecting)
    }

    pub fn is_greeted(&self) -> bool {
        matches!(self.stage, Stage::Greeted)
    }

    pub fn into_connection(self) -> Greeted {
        self.connection
    }
}

/// An accepted connection that has not said yet whose it is.
#[derive(Debug)]
pub(super) struct Stranger {
    pub connection: Greeted,
    pub address: SocketAddr,
    pub since: Instant,
    pub buffer: HelloBuffer,
}

impl Stranger {
    pub fn welcome(
        context: &mut Context,
        socket: TcpStream,
        address: SocketAddr,
        since: Instant,
    ) -> io::Result<Self> {
        socket::tune(&socket, context.send_buffer)?;
        let token = context.poll.watch(&socket, Interest::Read)?;
        let connection = Greeted { socket, token };
        Ok(Self {
            connection,
            address,
            since,
            buffer: HelloBuffer::new(),
        })
    }
}
