//! ZooKeeper: three nodes, and a client that speaks just enough of its protocol.
//!
//! The nodes live through all rounds: a Java machine is slow until it has compiled its program, and a
//! fresh one in each round would be measured at its slowest.

use super::super::load::{Connection, Spans, closed_loops, connect_all, runtime};
use super::super::measured::Measured;
use super::super::plan::Load;
use super::super::subject::Subject;
use super::{await_leader, free_addresses};
use crate::children::Process;
use anyhow::{Context, Result, bail};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const NODES: usize = 3;
const JAR: &str = "/usr/share/java/zookeeper.jar";

/// A running ensemble.
pub(crate) struct ZooKeeper {
    nodes: Vec<Process>,
    leader: SocketAddr,
}

impl ZooKeeper {
    /// Starts three nodes that keep their files in `folder`, waits until one leads, and lets
    /// the Java machine compile.
    pub fn start(folder: &Path) -> Result<Self> {
        if !Path::new(JAR).exists() {
            bail!("{JAR} is missing: install the package zookeeper");
        }
        let addresses = free_addresses(3 * NODES)?;
        let (clients, peers) = addresses.split_at(NODES);
        let mut nodes = Vec::new();
        for (n, client) in clients.iter().enumerate() {
            let data = folder.join(format!("node{n}"));
            std::fs::create_dir(&data)?;
            std::fs::write(data.join("myid"), format!("{}\n", n + 1))?;
            let config = data.join("zoo.cfg");
            std::fs::write(&config, node_config(&data, *client, peers))?;
            let mut command = Command::new("java");
            command
                .args(["-Xms256m", "-Xmx256m", "-cp", JAR])
                .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
                .arg(config)
                .current_dir(&data);
            let log = folder.join(format!("node{n}.log"));
            nodes.push(Process::logged(&mut command, &log, false)?);
        }
        let leads = |answer: &str| answer.lines().any(|line| line == "Mode: leader");
        let leader = await_leader(clients, "srvr", leads, || {
            nodes.iter_mut().try_for_each(Process::check)
        })?;
        let mut ensemble = Self { nodes, leader };
        let load = Load {
            bytes: 256,
            connections: 24,
        };
        let spans = Spans {
            warm_up: Duration::ZERO,
            span: Duration::from_secs(4),
        };
        ensemble.measure(load, spans).context("cannot warm up")?;
        Ok(ensemble)
    }
}

/// The content of Debian's own `zoo.cfg`, with our folders and addresses and the command that we ask
/// with.
fn node_config(data: &Path, client: SocketAddr, peers: &[SocketAddr]) -> String {
    let mut text = format!(
        "tickTime=2000\ninitLimit=10\nsyncLimit=5\ndataDir={}\nclientPortAddress={}\n\
         clientPort={}\nmaxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=srvr\n",
        data.display(),
        client.ip(),
        client.port()
    );
    for (n, pair) in peers.chunks_exact(2).enumerate() {
        let (ip, follow, elect) = (pair[0].ip(), pair[0].port(), pair[1].port());
        text += &format!("server.{}={ip}:{follow}:{elect}\n", n + 1);
    }
    text
}

impl Subject for ZooKeeper {
    fn measure(&mut self, load: Load, spans: Spans) -> Result<Measured> {
        self.nodes.iter_mut().try_for_each(Process::check)?;
        let pids = self.nodes.iter().map(Process::id).collect();
        runtime()?.block_on(async {
            let clients = connect_all(load, |n| Client::connect(self.leader, n)).await?;
            closed_loops(clients, load, spans, pids).await
        })
    }

    fn outlives_the_round(&self) -> bool {
        true
    }
}

const CREATE: i32 = 1;
const SET_DATA: i32 = 5;
const CLOSE_SESSION: i32 = -11;
const OK: i32 = 0;
const NODE_EXISTS: i32 = -110;

/// One session, which writes one node.
struct Client {
    stream: TcpStream,
    path: String,
    /// Numbers the requests.
    xid: i32,
    /// The request, then the answer; reused.
    buffer: Vec<u8>,
}

impl Client {
    async fn connect(address: SocketAddr, number: usize) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let mut client = Self {
            stream,
            path: format!("/bench{number}"),
            xid: 0,
            buffer: Vec::new(),
        };
        client.begin();
        client.int(0); // protocol version
        client.long(0); // last transaction seen
        client.int(30_000); // session timeout, ms
        client.long(0); // a new session
        client.bytes(&[0; 16]); // its password
        client.buffer.push(0); // not read-only
        client.exchange().await?;
        let path = client.path.clone();
        let error = client
            .request(CREATE, |client| {
                client.bytes(path.as_bytes());
                client.bytes(&[]);
                client.int(1); // one access rule: everybody may do everything
                client.int(31);
                client.bytes(b"world");
                client.bytes(b"anyone");
                client.int(0); // persistent
            })
            .await?;
        match error {
            OK | NODE_EXISTS => Ok(client),
            error => bail!("ZooKeeper refused to create {path}: error {error}"),
        }
    }

    fn begin(&mut self) {
        self.buffer.clear();
        self.int(0); // the length, filled in when it is known
    }

    fn int(&mut self, value: i32) {
        self.buffer.extend(value.to_be_bytes());
    }

    fn long(&mut self, value: i64) {
        self.buffer.extend(value.to_be_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.int(bytes.len() as i32);
        self.buffer.extend_from_slice(bytes);
    }

    /// Sends the content of the buffer and puts the answer in its place.
    async fn exchange(&mut self) -> Result<()> {
        let length = (self.buffer.len() - 4) as u32;
        self.buffer[..4].copy_from_slice(&length.to_be_bytes());
        self.stream.write_all(&self.buffer).await?;
        let length = self.stream.read_u32().await?;
        if length > 1 << 20 {
            bail!("ZooKeeper announces an answer of {length} bytes");
        }
        self.buffer.resize(length as usize, 0);
        self.stream.read_exact(&mut self.buffer).await?;
        Ok(())
    }

    /// Sends a request. Returns the error code of its answer.
    async fn request(&mut self, kind: i32, body: impl FnOnce(&mut Self)) -> Result<i32> {
        self.xid += 1;
        self.begin();
        self.int(self.xid);
        self.int(kind);
        body(self);
        self.exchange().await?;
        // The answer has the number of the request, that of the transaction, and the error.
        let int = |at: usize| {
            self.buffer
                .get(at..at + 4)?
                .try_into()
                .ok()
                .map(i32::from_be_bytes)
        };
        if int(0) != Some(self.xid) {
            bail!("ZooKeeper answers another request");
        }
        int(12).context("ZooKeeper's answer is too short")
    }
}

impl Connection for Client {
    async fn put(&mut self, payload: &[u8]) -> Result<()> {
        let path = std::mem::take(&mut self.path);
        let error = self
            .request(SET_DATA, |client| {
                client.bytes(path.as_bytes());
                client.bytes(payload);
                client.int(-1); // whatever its version
            })
            .await;
        self.path = path;
        match error? {
            OK => Ok(()),
            error => bail!("ZooKeeper refused to write: error {error}"),
        }
    }

    async fn close(mut self) -> Result<()> {
        self.request(CLOSE_SESSION, |_| {}).await.map(drop)
    }
}
