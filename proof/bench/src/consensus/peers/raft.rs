//! `openraft`: a Raft library in one process, its nodes connected by calls.
//!
//! No socket, no file, no encoding: the least cost of consensus by a general library.

use super::super::load::{Connection, Spans, closed_loops};
use super::super::measured::Measured;
use super::super::plan::Load;
use super::super::subject::Subject;
use super::raft_store::{Counter, LogStore, Payload, Types};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use openraft::error::{InstallSnapshotError, RPCError, RaftError, Unreachable};
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use openraft::{Config, Raft, RaftNetwork, RaftNetworkFactory, SnapshotPolicy};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::runtime::Runtime;

const NODES: u64 = 3;

type Group = Arc<OnceLock<Vec<Raft<Types>>>>;

/// Three nodes on an event loop.
pub(crate) struct InProcess {
    runtime: Runtime,
    nodes: Vec<Raft<Types>>,
}

impl InProcess {
    /// Starts three nodes, the first of which leads.
    pub fn start() -> Result<Self> {
        // One thread: with two, entries took longer on this many cores, because each step then
        // wakes another thread.
        let runtime = super::super::load::runtime()?;
        let config = Config {
            heartbeat_interval: 50,
            election_timeout_min: 500,
            election_timeout_max: 1000,
            // The log is kept, because a purge is not to be measured.
            snapshot_policy: SnapshotPolicy::Never,
            ..Config::default()
        };
        let config = Arc::new(config.validate()?);
        let nodes = runtime.block_on(async {
            let group = Group::default();
            let mut nodes = Vec::new();
            for id in 0..NODES {
                let network = Network(group.clone());
                let (log, counter) = (LogStore::default(), Counter::default());
                nodes.push(Raft::new(id, config.clone(), network, log, counter).await?);
            }
            group
                .set(nodes.clone())
                .map_err(|_| anyhow::anyhow!("set twice"))?;
            let members: BTreeMap<u64, ()> = (0..NODES).map(|id| (id, ())).collect();
            nodes[0].initialize(members).await?;
            nodes[0]
                .wait(Some(Duration::from_secs(10)))
                .current_leader(0, "the first node leads")
                .await?;
            anyhow::Ok(nodes)
        })?;
        Ok(Self { runtime, nodes })
    }
}

impl Subject for InProcess {
    fn measure(&mut self, load: Load, spans: Spans) -> Result<Measured> {
        let leader = &self.nodes[0];
        let clients = (0..load.connections).map(|_| Client {
            leader: leader.clone(),
            payload: Bytes::from(vec![7; load.bytes]),
        });
        self.runtime
            .block_on(closed_loops(clients.collect(), load, spans, Vec::new()))
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        self.runtime.block_on(async {
            for node in &self.nodes {
                // A node that fails to shut down does nothing any more either.
                let _ = node.shutdown().await;
            }
        });
    }
}

struct Client {
    leader: Raft<Types>,
    payload: Bytes,
}

impl Connection for Client {
    async fn put(&mut self, payload: &[u8]) -> Result<()> {
        let written = self
            .leader
            .client_write(Payload(self.payload.clone()))
            .await;
        let applied = written.context("openraft refused to write")?.data;
        ensure!(applied == payload.len(), "openraft applied {applied} bytes");
        Ok(())
    }

    async fn close(self) -> Result<()> {
        Ok(())
    }
}

/// Finds the other nodes.
struct Network(Group);

impl RaftNetworkFactory<Types> for Network {
    type Network = Link;

    async fn new_client(&mut self, target: u64, _node: &()) -> Link {
        Link(self.0.clone(), target)
    }
}

/// The link to one node.
struct Link(Group, u64);

type RpcResult<T, E = RaftError<u64>> = Result<T, RPCError<u64, (), E>>;

impl Link {
    #[allow(clippy::result_large_err, reason = "the library's own error")]
    fn node<E: std::error::Error>(&self) -> RpcResult<&Raft<Types>, E> {
        let nodes = self.0.get().and_then(|nodes| nodes.get(self.1 as usize));
        nodes.ok_or_else(|| {
            let error = std::io::Error::other("the group is still being made");
            RPCError::Unreachable(Unreachable::new(&error))
        })
    }

    fn refused<E: std::error::Error>(&self, error: E) -> RPCError<u64, (), E> {
        RPCError::RemoteError(openraft::error::RemoteError::new(self.1, error))
    }
}

impl RaftNetwork<Types> for Link {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        _option: RPCOption,
    ) -> RpcResult<AppendEntriesResponse<u64>> {
        self.node()?
            .append_entries(request)
            .await
            .map_err(|error| self.refused(error))
    }

    async fn install_snapshot(
        &mut self,
        request: InstallSnapshotRequest<Types>,
        _option: RPCOption,
    ) -> RpcResult<InstallSnapshotResponse<u64>, RaftError<u64, InstallSnapshotError>> {
        self.node()?
            .install_snapshot(request)
            .await
            .map_err(|error| self.refused(error))
    }

    async fn vote(
        &mut self,
        request: VoteRequest<u64>,
        _option: RPCOption,
    ) -> RpcResult<VoteResponse<u64>> {
        self.node()?
            .vote(request)
            .await
            .map_err(|error| self.refused(error))
    }
}
