//! The log server with its clients on TCP connections, as etcd and ZooKeeper have theirs.
//!
//! Rows of proposers in the leader's process show what a replicated server pays (APUS §4). They are no
//! fair match for systems whose clients use sockets; this row is.

use super::super::load::{Connection, Spans, closed_loops, connect_all, runtime};
use super::super::measured::Measured;
use super::super::peers::free_addresses;
use super::super::plan::{FabricKind, Load, Setup};
use super::super::subject::Subject;
use super::Group;
use anyhow::{Result, bail, ensure};
use plover_log::wire::{Reply, Request};
use plover_types::wire::OLDEST_VERSION;
use std::net::SocketAddr;
use std::path::Path;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A group whose leader lets clients in.
pub(crate) struct Served {
    group: Group,
    leader: SocketAddr,
    /// The number of the last session. Each client has its own.
    sessions: u64,
}

impl Served {
    pub fn start(setup: Setup, folder: &Path) -> Result<Self> {
        let leader = free_addresses(1)?[0];
        let group = Group::start_with(setup, FabricKind::Tcp, folder, Some(leader))?;
        Ok(Self {
            group,
            leader,
            sessions: 0,
        })
    }
}

impl Subject for Served {
    fn measure(&mut self, load: Load, spans: Spans) -> Result<Measured> {
        self.group.check()?;
        let pids = self.group.pids();
        runtime()?.block_on(async {
            let clients = connect_all(load, |_| {
                self.sessions += 1;
                Client::connect(self.leader, self.sessions)
            })
            .await?;
            closed_loops(clients, load, spans, pids).await
        })
    }
}

/// One connection with a session of its own.
struct Client {
    stream: TcpStream,
    session: u64,
    number: u64,
    /// The request, then the reply; reused.
    buffer: Vec<u8>,
}

/// Length and checksum of the body, four bytes each.
const HEADER_BYTES: usize = 8;

impl Client {
    async fn connect(address: SocketAddr, session: u64) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            session,
            number: 0,
            buffer: Vec::new(),
        })
    }
}

impl Connection for Client {
    async fn put(&mut self, payload: &[u8]) -> Result<()> {
        self.number += 1;
        let request = Request::Append {
            number: self.number,
            session: Some(self.session),
            bytes: payload,
        };
        self.buffer.clear();
        self.buffer.extend([0; HEADER_BYTES]);
        self.buffer.push(OLDEST_VERSION);
        self.buffer = postcard::to_extend(&request, std::mem::take(&mut self.buffer))?;
        let (header, body) = self.buffer.split_at_mut(HEADER_BYTES);
        header[..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
        header[4..].copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
        self.stream.write_all(&self.buffer).await?;

        let length = self.stream.read_u32_le().await?;
        let checksum = self.stream.read_u32_le().await?;
        ensure!(length < 1 << 20, "a reply of {length} bytes");
        self.buffer.resize(length as usize, 0);
        self.stream.read_exact(&mut self.buffer).await?;
        ensure!(crc32c::crc32c(&self.buffer) == checksum, "a damaged reply");
        match self.buffer.split_first() {
            Some((&OLDEST_VERSION, reply)) => match postcard::from_bytes(reply)? {
                Reply::Appended { number, .. } if number == self.number => Ok(()),
                other => bail!("the log server says {other:?}"),
            },
            _ => bail!("a reply of another version"),
        }
    }
}
