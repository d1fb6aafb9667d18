//! The port at which the other replicas fetch this one's checkpoints.
//!
//! ```text
//!   accepted ─► waiting ── a trusted key, and a request ─► served
//!                  └─ no key, no request, or too many wait ─► closed
//! ```
//!
//! Anybody who reaches the port can connect. So connections that wait are counted apart from those that are served.

use super::SILENT_FOR;
use crate::files::{Files, copy};
use plover_fabric::{Keys, Stream, most_crowded};
use plover_node::accepted;
use plover_types::{Index, View, Viewstamp};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Requests that are served at a time. A group has eight peers at most.
const SERVED_MAX: usize = 16;

/// Connections that wait at a time, as at the port of the links.
const WAITING_MAX: usize = 32;

/// A connection on which nothing was asked for yet.
#[derive(Debug)]
struct Waiting {
    number: u64,
    host: String,
    socket: TcpStream,
}

/// All of them, oldest first.
#[derive(Debug, Default)]
struct Lobby {
    next: u64,
    waiting: Vec<Waiting>,
}

impl Lobby {
    /// Takes in a connection, and returns its number. If too many wait, the oldest one of the host that has the most is closed.
    fn enter(&mut self, socket: &TcpStream) -> io::Result<u64> {
        let host = socket.peer_addr()?.ip().to_string();
        let socket = socket.try_clone()?;
        if self.waiting.len() == WAITING_MAX {
            let hosts: Vec<&str> = self.waiting.iter().map(|it| &*it.host).collect();
            let crowded = most_crowded(&hosts);
            let crowded = self.waiting.remove(crowded);
            tracing::debug!(host = %crowded.host, "too many connections wait: one is closed");
            // The thread that reads from it finds its end.
            let _ = crowded.socket.shutdown(Shutdown::Both);
        }
        let number = self.next;
        self.next += 1;
        self.waiting.push(Waiting {
            number,
            host,
            socket,
        });
        Ok(number)
    }

    fn leave(&mut self, number: u64) {
        self.waiting.retain(|it| it.number != number);
    }
}

/// Shared by the threads that serve.
#[derive(Debug)]
struct Desk {
    files: Files,
    keys: Option<Arc<Keys>>,
    lobby: Mutex<Lobby>,
    /// Each thread that serves a request holds a copy.
    served: Arc<()>,
}

/// Serves this replica's checkpoints at a port of `ip` that the kernel chooses, to peers alone if there are `keys`.
/// Returns the address.
pub(crate) fn serve(ip: IpAddr, files: Files, keys: Option<Arc<Keys>>) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((ip, 0))?;
    let address = listener.local_addr()?;
    let desk = Arc::new(Desk {
        files,
        keys,
        lobby: Mutex::default(),
        served: Arc::default(),
    });
    std::thread::Builder::new()
        .name("checkpoints".into())
        .spawn(move || {
            for socket in accepted(listener.incoming()) {
                // It may be closed already.
                let Ok(number) = desk.lobby().enter(&socket) else {
                    continue;
                };
                let own = Arc::clone(&desk);
                let served = std::thread::Builder::new().name("checkpoint".into());
                let served = served.spawn(move || {
                    if let Err(error) = own.give(socket, number) {
                        tracing::debug!(%error, "a checkpoint was not sent");
                    }
                });
                if let Err(error) = served {
                    desk.lobby().leave(number);
                    tracing::warn!(%error, "a request for a checkpoint was refused: no thread can be made for it");
                }
            }
        })?;
    Ok(address)
}

impl Desk {
    fn lobby(&self) -> MutexGuard<'_, Lobby> {
        self.lobby.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the checkpoint that is asked for on a connection.
    fn give(&self, socket: TcpStream, number: u64) -> io::Result<()> {
        let asked = hear(socket, self.keys.as_ref());
        self.lobby().leave(number);
        let (mut stream, at) = asked?;
        let served = Arc::clone(&self.served);
        // One is the desk's own.
        if Arc::strong_count(&served) > SERVED_MAX + 1 {
            tracing::warn!("a request for a checkpoint was refused: too many are served");
            return Ok(());
        }
        let own = self.files.find(at).ok_or(io::ErrorKind::NotFound)?;
        // From here on the file is there, even if its name goes.
        let mut file = File::open(self.files.path(&own))?;
        stream.write_all(&own.bytes.to_le_bytes())?;
        copy(&mut file, &mut stream, own.bytes)?;
        stream.flush()
    }
}

/// Waits until a peer asks for a checkpoint.
fn hear(socket: TcpStream, keys: Option<&Arc<Keys>>) -> io::Result<(Stream, Viewstamp)> {
    socket.set_read_timeout(Some(SILENT_FOR))?;
    socket.set_write_timeout(Some(SILENT_FOR))?;
    let mut stream = Stream::from_peer(socket, keys)?;
    let mut line = String::new();
    BufReader::new((&mut stream).take(64)).read_line(&mut line)?;
    let mut words = line.split_whitespace().filter_map(|word| word.parse().ok());
    let (Some(view), Some(index)) = (words.next(), words.next()) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let at = Viewstamp {
        view: View(view),
        index: Index(index),
    };
    Ok((stream, at))
}

#[cfg(test)]
mod tests {
    use super::super::fetch;
    use super::*;
    use plover_program::Held;
    use plover_types::ReplicaId;

    #[test]
    fn strangers_keep_no_peer_from_a_checkpoint() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let files = Files::open(one.path()).unwrap();
        let new = files.unfinished("taken");
        std::fs::write(&new.path, "a checkpoint").unwrap();
        let at = Viewstamp {
            view: View(17),
            index: Index(42),
        };
        let own = files.finish(new, at, ReplicaId(1)).unwrap();
        let address = serve([127, 0, 0, 1].into(), files, None).unwrap();
        let connect = |_| TcpStream::connect(address).unwrap();
        let strangers: Vec<_> = (0..WAITING_MAX + 8).map(connect).collect();
        let held = Held {
            replica: ReplicaId(1),
            at,
            taken_by: ReplicaId(1),
            bytes: own.bytes,
            sum: own.sum,
            address: address.to_string(),
        };
        let theirs = Files::open(other.path()).unwrap();
        assert_eq!(fetch(&theirs, &held, None).unwrap(), own);
        // Closed as the oldest of their host, long before they have been silent for too long.
        let mut first = &strangers[0];
        first.set_read_timeout(Some(SILENT_FOR / 2)).unwrap();
        assert_eq!(first.read(&mut [0]).unwrap(), 0);
    }
}
