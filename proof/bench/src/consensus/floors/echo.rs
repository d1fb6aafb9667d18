//! The floor of a server with clients: a thread that sends back all that it gets on TCP connections.

use super::super::load::{Connection, Spans, closed_loops, connect_all, runtime};
use super::super::measured::Measured;
use super::super::plan::Load;
use super::super::subject::Subject;
use anyhow::{Context, Result};
use rustix::event::epoll;
use rustix::event::epoll::{CreateFlags, EventData, EventFlags};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Room for the largest payload.
const BUFFER_BYTES: usize = 128 << 10;

/// The server, for one load.
pub(super) struct Echo;

impl Subject for Echo {
    fn measure(&mut self, load: Load, spans: Spans) -> Result<Measured> {
        let listener = TcpListener::bind("127.0.0.1:0").context("loopback has no free port")?;
        let address = listener.local_addr()?;
        let server = thread::spawn(move || serve(&listener, load.connections));
        let measured = runtime()?.block_on(async {
            let clients = connect_all(load, |_| Client::connect(address)).await?;
            closed_loops(clients, load, spans, Vec::new()).await
        });
        let served = server.join();
        let served = served.map_err(|_| anyhow::anyhow!("the echo server panicked"))?;
        served.context("the echo server has failed")?;
        measured
    }
}

/// Accepts so many connections, and serves them until all are closed.
fn serve(listener: &TcpListener, connections: usize) -> io::Result<()> {
    let poll = epoll::create(CreateFlags::CLOEXEC)?;
    let mut open = BTreeMap::new();
    for number in 0..connections as u64 {
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        epoll::add(&poll, &stream, EventData::new_u64(number), EventFlags::IN)?;
        open.insert(number, stream);
    }
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut events = Vec::with_capacity(connections);
    while !open.is_empty() {
        events.clear();
        epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), None)?;
        for event in &events {
            let number = event.data.u64();
            let Some(stream) = open.get_mut(&number) else {
                continue;
            };
            match stream.read(&mut buffer)? {
                0 => drop(open.remove(&number)),
                count => stream.write_all(&buffer[..count])?,
            }
        }
    }
    Ok(())
}

struct Client {
    stream: TcpStream,
    answer: Vec<u8>,
}

impl Client {
    async fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            answer: Vec::new(),
        })
    }
}

impl Connection for Client {
    async fn put(&mut self, payload: &[u8]) -> Result<()> {
        self.stream.write_all(payload).await?;
        self.answer.resize(payload.len(), 0);
        self.stream.read_exact(&mut self.answer).await?;
        Ok(())
    }
}
