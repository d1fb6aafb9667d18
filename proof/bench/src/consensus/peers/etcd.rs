//! etcd: three nodes, and a client that speaks just enough gRPC.
//!
//! gRPC is HTTP/2 with a five-byte head before each message, and `Put` carries two strings; a
//! client library would add its own cost to every figure, and this one adds little.

use super::super::load::{Connection, Spans, closed_loops, connect_all, runtime};
use super::super::measured::Measured;
use super::super::plan::Load;
use super::super::subject::Subject;
use super::{await_leader, free_addresses};
use crate::children::Process;
use anyhow::{Context, Result, bail, ensure};
use bytes::{BufMut, Bytes, BytesMut};
use h2::client::SendRequest;
use http::Request;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use tokio::net::TcpStream;

const NODES: usize = 3;

/// A running cluster.
pub(crate) struct Etcd {
    nodes: Vec<Process>,
    leader: SocketAddr,
}

impl Etcd {
    /// Starts three nodes that keep their files in `folder` and waits until one leads.
    pub fn start(folder: &Path) -> Result<Self> {
        let addresses = free_addresses(2 * NODES)?;
        let (clients, peers) = addresses.split_at(NODES);
        let cluster: Vec<_> = (0..NODES)
            .map(|n| format!("node{n}=http://{}", peers[n]))
            .collect();
        let mut nodes = Vec::new();
        for n in 0..NODES {
            let (client, peer) = (
                format!("http://{}", clients[n]),
                format!("http://{}", peers[n]),
            );
            let mut command = Command::new("etcd");
            command
                .args(["--name", &format!("node{n}"), "--data-dir"])
                .arg(folder.join(format!("node{n}")))
                .args([
                    "--listen-client-urls",
                    &client,
                    "--advertise-client-urls",
                    &client,
                ])
                .args([
                    "--listen-peer-urls",
                    &peer,
                    "--initial-advertise-peer-urls",
                    &peer,
                ])
                .args(["--initial-cluster", &cluster.join(",")])
                .args(["--initial-cluster-state", "new", "--logger", "zap"]);
            let log = folder.join(format!("node{n}.log"));
            nodes.push(Process::logged(&mut command, &log, false)?);
        }
        let question = "GET /metrics HTTP/1.0\r\n\r\n";
        let leads = |answer: &str| answer.lines().any(|line| line == "etcd_server_is_leader 1");
        let leader = await_leader(clients, question, leads, || {
            nodes.iter_mut().try_for_each(Process::check)
        })?;
        Ok(Self { nodes, leader })
    }
}

impl Subject for Etcd {
    fn measure(&mut self, load: Load, spans: Spans) -> Result<Measured> {
        self.nodes.iter_mut().try_for_each(Process::check)?;
        let pids = self.nodes.iter().map(Process::id).collect();
        runtime()?.block_on(async {
            let clients = connect_all(load, |n| Client::connect(self.leader, n)).await?;
            closed_loops(clients, load, spans, pids).await
        })
    }
}

/// One connection, which writes one key.
struct Client {
    sender: SendRequest<Bytes>,
    uri: String,
    key: String,
}

impl Client {
    async fn connect(address: SocketAddr, number: usize) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = h2::client::handshake(stream).await?;
        // This task ends with the connection. Its failures show in the answers.
        tokio::spawn(connection);
        Ok(Self {
            sender,
            uri: format!("http://{address}/etcdserverpb.KV/Put"),
            key: format!("bench{number}"),
        })
    }
}

impl Connection for Client {
    async fn put(&mut self, payload: &[u8]) -> Result<()> {
        let request = Request::post(self.uri.as_str())
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())?;
        let mut sender = self.sender.clone().ready().await?;
        let (answer, mut body) = sender.send_request(request, false)?;
        body.send_data(put_request(self.key.as_bytes(), payload), true)?;
        let answer = answer.await?;
        ensure!(answer.status() == 200, "etcd answered {}", answer.status());
        let mut body = answer.into_body();
        while let Some(chunk) = body.data().await {
            let taken = chunk?.len();
            body.flow_control().release_capacity(taken)?;
        }
        let trailers = body.trailers().await?.context("etcd's answer has no end")?;
        match trailers.get("grpc-status").map(|status| status.as_bytes()) {
            Some(b"0") => Ok(()),
            _ => bail!("etcd refused: {trailers:?}"),
        }
    }
}

/// `PutRequest { key = 1, value = 2 }` behind gRPC's head: the flag "not compressed" and the length.
fn put_request(key: &[u8], value: &[u8]) -> Bytes {
    const HEAD_BYTES: usize = 5;
    let mut bytes = BytesMut::with_capacity(HEAD_BYTES + key.len() + value.len() + 12);
    bytes.put_bytes(0, HEAD_BYTES);
    for (tag, field) in [(1, key), (2, value)] {
        bytes.put_u8((tag << 3) | 2);
        put_varint(&mut bytes, field.len());
        bytes.put_slice(field);
    }
    let message_bytes = (bytes.len() - HEAD_BYTES) as u32;
    bytes[1..HEAD_BYTES].copy_from_slice(&message_bytes.to_be_bytes());
    bytes.freeze()
}

fn put_varint(bytes: &mut BytesMut, mut value: usize) {
    while value >= 0x80 {
        bytes.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.put_u8(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_put_is_encoded_as_protobuf_says() {
        let bytes = put_request(b"k", &[9; 300]);
        assert_eq!(bytes[..5], [0, 0, 0, 1, 50]);
        assert_eq!(bytes[5..8], [0x0a, 1, b'k']);
        assert_eq!(bytes[8..11], [0x12, 0xac, 0x02]);
        assert_eq!(bytes[11..], [9; 300]);
    }
}
