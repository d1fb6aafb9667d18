//! Closed loops of clients that await one answer each: the load on the systems with clients.
//!
//! All loops share one thread and one event loop, so that 24 connections cost no thread switches
//! among themselves. A connection only writes its request and reads its answer.

use super::measured::{CpuMeter, Measured, Recorder};
use super::plan::Load;
use anyhow::{Context, Result};
use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::task::LocalSet;

/// How long an answer may take before a system counts as stuck.
const PATIENCE: Duration = Duration::from_secs(20);

/// A client of some replicated log.
pub(crate) trait Connection: 'static {
    /// Has these bytes committed.
    fn put(&mut self, payload: &[u8]) -> impl Future<Output = Result<()>>;

    /// Ends the session, where the system has one.
    fn close(self) -> impl Future<Output = Result<()>>
    where
        Self: Sized,
    {
        async { Ok(()) }
    }
}

/// The spans of a load: the warm-up, and the time that counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spans {
    pub warm_up: Duration,
    pub span: Duration,
}

/// Opens as many connections as the load has, each by `open` with its number.
pub(crate) async fn connect_all<C, F: Future<Output = Result<C>>>(
    load: Load,
    mut open: impl FnMut(usize) -> F,
) -> Result<Vec<C>> {
    let mut connections = Vec::new();
    for number in 0..load.connections {
        connections.push(within(PATIENCE, open(number)).await?);
    }
    Ok(connections)
}

/// The result of some work, or an error if that takes longer than `limit`.
async fn within<T>(limit: Duration, work: impl Future<Output = Result<T>>) -> Result<T> {
    let done = tokio::time::timeout(limit, work).await;
    done.context("no answer within 20 s")?
}

/// Runs each connection in a loop of its own until the span is over. `pids` are the other processes that
/// do the work.
pub(crate) async fn closed_loops<C: Connection>(
    connections: Vec<C>,
    load: Load,
    spans: Spans,
    pids: Vec<u32>,
) -> Result<Measured> {
    let recorder = Rc::new(RefCell::new(Recorder::new(spans.warm_up, spans.span)));
    let cpu = CpuMeter::start(pids)?;
    let local = LocalSet::new();
    let loops: Vec<_> = connections
        .into_iter()
        .map(|connection| local.spawn_local(one_loop(connection, load.bytes, recorder.clone())))
        .collect();
    let done = local.run_until(async {
        let mut connections = Vec::new();
        for one in loops {
            connections.push(one.await.context("a client panicked")??);
        }
        anyhow::Ok(connections)
    });
    let connections = within(spans.warm_up + spans.span + PATIENCE, done).await?;
    let recorder = Rc::try_unwrap(recorder).map_err(|_| anyhow::anyhow!("a loop goes on"))?;
    let recorder = recorder.into_inner();
    let cpu_us = cpu.per_entry(recorder.entries_in_all)?;
    for connection in connections {
        within(PATIENCE, connection.close()).await?;
    }
    Ok(Measured {
        cpu_us: Some(cpu_us),
        ..recorder.finish()
    })
}

async fn one_loop<C: Connection>(
    mut connection: C,
    bytes: usize,
    recorder: Rc<RefCell<Recorder>>,
) -> Result<C> {
    let payload = vec![7; bytes];
    loop {
        let start = Instant::now();
        if recorder.borrow().is_over(start) {
            return Ok(connection);
        }
        connection.put(&payload).await?;
        recorder.borrow_mut().record(start, Instant::now());
    }
}

/// An event loop for one thread.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot make an event loop")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_does_not_answer_is_given_up() {
        let never = std::future::pending::<Result<()>>();
        let runtime = runtime().unwrap();
        let given_up = runtime.block_on(within(Duration::ZERO, never));
        let error = given_up.unwrap_err().to_string();
        assert!(error.contains("no answer"), "{error}");
    }
}
