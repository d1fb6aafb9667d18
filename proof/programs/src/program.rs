//! A simulated program, and the reference that executes the committed log.

use plover_program::{ConnectionId, Entry};
use plover_sim::rng::mix;
use plover_types::Viewstamp;
use std::collections::{BTreeMap, VecDeque};

/// Bytes of a request, which is its number, and of its reply: the number, and the sum of all requests so far.
pub const REQUEST_BYTES: usize = 8;
pub const REPLY_BYTES: usize = 16;

/// The state of a program that a checkpoint keeps.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// The requests in the order in which they were executed.
    pub executed: Vec<u64>,
    pub sum: u64,
}

/// One connection at a program.
#[derive(Clone, Debug, Default)]
pub struct Connection {
    pub unread: Vec<u8>,
    /// The program has something to read: bytes, a new connection, or its end.
    pub is_news: bool,
    pub closes: bool,
    /// It is a client's own, which the program reads itself; and whether it was cut off from the client.
    pub is_own: bool,
    pub is_cut: bool,
    /// Read, and no whole request yet.
    pub partly: Vec<u8>,
    /// The first request of the connection, if programs want a login.
    pub login: Option<u64>,
}

/// The number of a request that is a login has this bit, and its reply this sum.
pub const LOGIN: u64 = 1 << 63;

/// A program that runs.
#[derive(Clone, Debug, Default)]
pub struct Program {
    pub memory: Memory,
    pub connections: BTreeMap<ConnectionId, Connection>,
    /// A fault has changed its memory.
    pub is_wrong: bool,
    /// Its time, which goes into its replies; and the time of what it is given next.
    pub time: u64,
    pub next_time: u64,
    /// Connections say first who they are.
    pub wants_login: bool,
    /// It executes requests later than it reads them, and not at all if their connection has ended by then.
    pub is_slow: bool,
    /// Requests that it has read and not executed: their connections, numbers and times.
    pub under_way: VecDeque<(ConnectionId, u64, u64)>,
}

impl Program {
    /// Reads all that there is on a connection. Returns the replies to what it executes at once.
    pub fn read(&mut self, id: ConnectionId) -> Vec<u8> {
        let Some(connection) = self.connections.get_mut(&id) else {
            return Vec::new();
        };
        self.time = self.time.max(self.next_time);
        connection.is_news = false;
        connection.partly.append(&mut connection.unread);
        while connection.partly.len() >= REQUEST_BYTES {
            let rest = connection.partly.split_off(REQUEST_BYTES);
            let request = std::mem::replace(&mut connection.partly, rest);
            let number = u64::from_le_bytes(request.try_into().expect("eight bytes"));
            self.under_way.push_back((id, number, self.time));
        }
        let (executes, closes) = (!self.is_slow || connection.is_own, connection.closes);
        let mut replies = Vec::new();
        while executes && !self.under_way.is_empty() {
            replies.extend(self.execute_next().map(|it| it.1));
        }
        if closes {
            self.connections.remove(&id);
        }
        replies.concat()
    }

    /// Executes the oldest request that it has read; nothing if its connection has ended since. Returns the reply.
    pub fn execute_next(&mut self) -> Option<(ConnectionId, Vec<u8>)> {
        let (id, number, time) = self.under_way.pop_front()?;
        let connection = self.connections.get_mut(&id)?;
        let result = if self.wants_login && connection.login.is_none() {
            connection.login = Some(number);
            LOGIN
        } else {
            let by = connection.login.unwrap_or_default();
            self.memory.executed.push(number);
            self.memory.sum = mix(self.memory.sum ^ time ^ by, number);
            self.memory.sum
        };
        Some((id, [number.to_le_bytes(), result.to_le_bytes()].concat()))
    }

    /// Whether it has read something that it has not executed.
    pub fn is_busy(&self) -> bool {
        !self.under_way.is_empty()
    }
}

/// The reference.
#[derive(Clone, Debug, Default)]
pub struct Reference {
    program: Program,
    /// The sum after so many requests.
    pub sums: Vec<u64>,
}

impl Reference {
    /// The reference of programs that want a login, or do not.
    pub fn new(wants_login: bool) -> Self {
        let program = Program {
            wants_login,
            ..Program::default()
        };
        Self {
            program,
            sums: Vec::new(),
        }
    }

    /// Executes the next committed entry.
    pub fn execute(&mut self, at: Viewstamp, bytes: Option<&[u8]>) {
        let Some(entry) = bytes.and_then(Entry::decode) else {
            return;
        };
        let connections = &mut self.program.connections;
        match entry {
            Entry::Accept(_) => drop(connections.insert(ConnectionId(at), Connection::default())),
            Entry::Bytes(id, _, bytes) => {
                if let Some(connection) = connections.get_mut(&id) {
                    connection.unread.extend(bytes);
                }
                let replies = self.program.read(id);
                for reply in replies.chunks(REPLY_BYTES) {
                    let (number, sum) = reply.split_at(REQUEST_BYTES);
                    let word = |it: &[u8]| u64::from_le_bytes(it.try_into().expect("eight bytes"));
                    if word(number) & LOGIN == 0 {
                        self.sums.push(word(sum));
                    }
                }
            }
            Entry::Clock(time) => self.program.next_time = time,
            Entry::Close(id, _) => drop(connections.remove(&id)),
            Entry::Cut(_) => connections.clear(),
            _ => {}
        }
    }

    /// The requests in their order.
    pub fn executed(&self) -> &[u64] {
        &self.program.memory.executed
    }

    /// The reply to a request, if it was executed.
    pub fn reply_to(&self, number: u64) -> Option<Vec<u8>> {
        if number & LOGIN != 0 {
            return Some([number.to_le_bytes(), LOGIN.to_le_bytes()].concat());
        }
        let place = self.executed().iter().position(|it| *it == number)?;
        Some([number.to_le_bytes(), self.sums[place].to_le_bytes()].concat())
    }

    /// Whether a program with this memory has executed a prefix of the log.
    pub fn has_been(&self, memory: &Memory) -> bool {
        let count = memory.executed.len();
        self.executed().get(..count) == Some(&memory.executed[..])
            && (count == 0 || self.sums[count - 1] == memory.sum)
    }
}
