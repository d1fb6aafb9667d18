//! The slots of connections.

use super::holders::Held;
use super::memory::Memory;
use crate::clients::ends_by_reset;
use plover_preload::{
    REFS_GIVEN_UP, REFS_NOT_ACCEPTED, SLOT_BITS, SLOT_CLIENT, SLOT_REPLAY, SLOTS,
};
use plover_program::{Client, ConnectionId};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};
use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

#[derive(Debug)]
pub(super) struct Connection {
    pub client: Client,
    /// The name, from the entry that accepts it on.
    pub id: Option<ConnectionId>,
    /// A client's own.
    pub stream: Option<TcpStream>,
    /// Makes the program's accept() return, until the client's socket was fetched.
    knocks: Option<TcpStream>,
    port: u16,
    /// The log says that it is over.
    pub closes: bool,
}

#[derive(Debug)]
pub(super) struct Connections {
    program: SocketAddrV4,
    all: Vec<Option<Connection>>,
    free: Vec<usize>,
    generations: Vec<u32>,
    names: BTreeMap<ConnectionId, usize>,
    /// Replayed connections.
    ports: BTreeMap<u16, usize>,
}

impl Connections {
    pub fn new(port: u16) -> Self {
        Self {
            program: SocketAddrV4::new(Ipv4Addr::LOCALHOST, port),
            all: (0..SLOTS).map(|_| None).collect(),
            free: (0..SLOTS).rev().collect(),
            generations: vec![0; SLOTS],
            names: BTreeMap::new(),
            ports: BTreeMap::new(),
        }
    }

    pub fn clear(&mut self) {
        // The program may have changed how they end.
        let all = self.all.iter().flatten();
        all.filter_map(|it| it.stream.as_ref())
            .for_each(ends_by_reset);
        // A process of the program before may still ask for a client of then.
        let generations = std::mem::take(&mut self.generations);
        *self = Self {
            generations,
            ..Self::new(self.program.port())
        };
    }

    pub fn get(&mut self, slot: usize) -> Option<&mut Connection> {
        self.all[slot].as_mut()
    }

    pub fn find(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        let slot = *self.names.get(&id)?;
        self.all[slot].as_mut()
    }

    pub fn name(&mut self, slot: usize, id: ConnectionId) {
        if let Some(connection) = &mut self.all[slot] {
            connection.id = Some(id);
            self.names.insert(id, slot);
        }
    }

    pub fn generation(&self, slot: usize) -> u32 {
        self.generations[slot]
    }

    pub fn are_none(&self) -> bool {
        self.free.len() == SLOTS
    }

    pub fn clients(&self) -> usize {
        let all = self.all.iter().flatten();
        all.filter(|it| it.stream.is_some()).count()
    }

    /// Fills a slot in, which the program finds by `port`.
    fn fill(
        &mut self,
        memory: &Memory,
        (kind, epoch): (u32, u32),
        connection: Connection,
    ) -> Option<usize> {
        let slot = self.free.pop()?;
        let generation = (self.generations[slot] + 1).max(1) & (u32::MAX >> SLOT_BITS);
        let generation = generation.max(1);
        self.generations[slot] = generation;
        let shared = memory.slot(slot);
        shared.epoch.store(epoch, SeqCst);
        let client = connection.client;
        shared.ip.store(u32::from_ne_bytes(client.ip), SeqCst);
        shared.port.store(client.port.into(), SeqCst);
        memory.set(&shared.lost_from, u64::MAX);
        memory.set(&shared.sent, 0);
        memory.set(&shared.time_us, memory.next_time());
        shared.generation.store(generation, SeqCst);
        shared.kind.store(kind, SeqCst);
        shared.refs.store(REFS_NOT_ACCEPTED, SeqCst);
        let value = (generation << SLOT_BITS) | slot as u32;
        memory.shared().by_port[usize::from(connection.port)].store(value, SeqCst);
        self.all[slot] = Some(connection);
        Some(slot)
    }

    /// Offers the program a client.
    pub fn offer(
        &mut self,
        memory: &Memory,
        epoch: u32,
        stream: TcpStream,
        client: Client,
    ) -> io::Result<()> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let knocks = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        rustix::net::bind(&knocks, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))?;
        // It ends by a reset, which leaves no port in TIME_WAIT.
        sockopt::set_socket_linger(&knocks, Some(Duration::ZERO))?;
        let knocks = TcpStream::from(knocks);
        let connection = Connection {
            client,
            id: None,
            stream: Some(stream),
            port: knocks.local_addr()?.port(),
            knocks: None,
            closes: false,
        };
        let filled = self.fill(memory, (SLOT_CLIENT, epoch), connection);
        let Some(slot) = filled else {
            return Err(io::Error::other("the program has too many connections"));
        };
        match rustix::net::connect(&knocks, &self.program) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(error) => {
                self.give_up(memory, slot);
                return Err(error.into());
            }
        }
        if let Some(connection) = &mut self.all[slot] {
            connection.knocks = Some(knocks);
        }
        Ok(())
    }

    pub fn replay(&mut self, memory: &Memory, port: u16, client: Client) {
        // The kernel gives a port again once the connection before is over, which may not be told yet.
        self.gone(memory, port);
        let connection = Connection {
            client,
            id: None,
            stream: None,
            knocks: None,
            port,
            closes: false,
        };
        // Without a slot the program sees this host's address, as from a proxy.
        if let Some(slot) = self.fill(memory, (SLOT_REPLAY, 0), connection) {
            self.ports.insert(port, slot);
        }
    }

    /// A replayed connection is over. The slot is in use until the program closes its end.
    pub fn gone(&mut self, memory: &Memory, port: u16) {
        if let Some(slot) = self.ports.remove(&port) {
            memory.shared().by_port[usize::from(port)].store(0, SeqCst);
            self.give_up(memory, slot);
        }
    }

    /// The client's socket, for the program. A request that comes late is for a client that the slot has no more.
    pub fn hand_over(&mut self, memory: &Memory, slot: usize, generation: u32) -> Option<OwnedFd> {
        let connection = self.all.get_mut(slot)?.as_mut()?;
        if self.generations[slot] != generation {
            return None;
        }
        connection.knocks.take()?;
        memory.shared().by_port[usize::from(connection.port)].store(0, SeqCst);
        connection.stream.as_ref()?.try_clone().ok().map(Into::into)
    }

    /// The client's connection, which the program has closed.
    pub fn take_stream(&mut self, slot: usize) -> Option<TcpStream> {
        self.all[slot].as_mut()?.stream.take()
    }

    /// Frees a slot that the program has not accepted, and will not. Others are freed when the program closes
    /// them.
    fn give_up(&mut self, memory: &Memory, slot: usize) {
        let refs = &memory.slot(slot).refs;
        let given = refs.compare_exchange(REFS_NOT_ACCEPTED, REFS_GIVEN_UP, SeqCst, SeqCst);
        if given.is_ok() {
            self.free(memory, slot);
        }
    }

    /// The program has closed the connection. Returns its name, if the log waits for that.
    pub fn free(&mut self, memory: &Memory, slot: usize) -> Option<ConnectionId> {
        let connection = self.all[slot].take()?;
        // The end of a replayed one is told later, and by then the slot may be another's.
        let is_replayed = self.ports.get(&connection.port) == Some(&slot);
        if is_replayed {
            self.ports.remove(&connection.port);
        }
        if is_replayed || connection.knocks.is_some() {
            memory.shared().by_port[usize::from(connection.port)].store(0, SeqCst);
        }
        memory.free(slot);
        self.free.push(slot);
        let id = connection.id?;
        self.names.remove(&id);
        connection.closes.then_some(id)
    }

    /// Ends all clients' connections. Their slots are freed when the program has closed them.
    pub fn cut_off(&mut self, memory: &Memory) {
        for slot in 0..SLOTS {
            let Some(stream) = self.all[slot].as_ref().and_then(|it| it.stream.as_ref()) else {
                continue;
            };
            reset(stream);
            self.give_up(memory, slot);
        }
    }

    /// The clients' connections that the program has accepted.
    pub fn held(&self) -> Vec<Held> {
        let all = self.all.iter().enumerate();
        let held = all.filter_map(|(slot, connection)| {
            let connection = connection.as_ref().filter(|it| it.id.is_some())?;
            Some(Held {
                slot,
                generation: self.generations[slot],
                inode: rustix::fs::fstat(connection.stream.as_ref()?).ok()?.st_ino,
            })
        });
        held.collect()
    }

    /// Whether a client waits for the program: it is not accepted, or has sent something that is not read.
    pub fn are_unread(&self) -> bool {
        self.all.iter().flatten().any(|connection| {
            let Some(stream) = &connection.stream else {
                return false;
            };
            // A client that does not read replies may keep a program from reading it.
            connection.knocks.is_some()
                || (queued(stream, libc::FIONREAD) > 0 && queued(stream, libc::TIOCOUTQ) == 0)
        })
    }
}

/// Ends a client's connection by a reset, although the program has it open.
pub(super) fn reset(stream: &TcpStream) {
    // The kernel refuses that while a thread waits in a call on the socket.
    if rustix::net::connect_unspec(stream).is_err() {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

/// Bytes in a queue of the socket.
fn queued(stream: &TcpStream, which: libc::Ioctl) -> i32 {
    let mut bytes: libc::c_int = 0;
    // SAFETY: both requests write one int, and the socket is open.
    let result = unsafe { libc::ioctl(stream.as_raw_fd(), which, &raw mut bytes) };
    if result < 0 { 0 } else { bytes }
}

#[cfg(test)]
mod tests {
    use super::super::memory::Terms;
    use super::*;

    const CLIENT: Client = Client {
        ip: [192, 0, 2, 200],
        port: 4000,
    };

    fn memory() -> Memory {
        let terms = Terms {
            wait_read: false,
            copies_output: true,
            allows_outgoing: false,
            log_clock: false,
            port: 6379,
            listen: "192.0.2.100:6379".parse().unwrap(),
            secret: [7; 16],
            door: "a door".into(),
        };
        Memory::new(&terms, 0).unwrap()
    }

    /// The program of a follower would see this host's address on the second connection.
    #[test]
    fn a_connection_whose_end_is_told_late_takes_no_slot_from_another() {
        let memory = memory();
        let mut connections = Connections::new(6379);
        let number = connections.free.last().copied().unwrap();
        connections.replay(&memory, 50_000, CLIENT);
        // The program accepts it, and closes it before this process knows.
        memory.slot(number).refs.store(0, SeqCst);
        connections.free(&memory, number);
        connections.replay(&memory, 50_001, CLIENT);
        connections.gone(&memory, 50_000);
        let sought = |port: usize| memory.shared().by_port[port].load(SeqCst);
        assert!(connections.get(number).is_some());
        assert_eq!(memory.slot(number).refs.load(SeqCst), REFS_NOT_ACCEPTED);
        assert_eq!(sought(50_000), 0);
        assert_eq!(
            sought(50_001) as usize & ((1 << SLOT_BITS) - 1),
            number,
            "the program finds it"
        );
    }

    #[test]
    fn a_port_that_is_given_again_has_one_slot() {
        let memory = memory();
        let mut connections = Connections::new(6379);
        for _ in 0..3 {
            connections.replay(&memory, 50_000, CLIENT);
        }
        assert_eq!(connections.all.iter().flatten().count(), 1);
        connections.gone(&memory, 50_000);
        assert!(connections.are_none());
    }
}
