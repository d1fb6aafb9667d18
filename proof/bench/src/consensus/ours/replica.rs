//! The process of one replica: obeys its standard input, ends with it.

use super::super::load::Spans;
use super::super::measured::{Measured, Recorder};
use super::super::plan::Load;
use super::node::Node;
use super::{Answer, Order, ReplicaOptions, fabrics};
use crate::counting::allocations;
use anyhow::{Context, Result, bail};
use plover_types::ReplicaId;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io::Write;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// An order is one line, and shorter than this.
const ORDER_BYTES_MAX: usize = 4096;

pub(crate) fn run(options: &ReplicaOptions) -> Result<()> {
    let fabric = fabrics::open(options)?;
    let replicas = options.replicas.len();
    let folder = options.folder.join(format!("replica{}", options.me));
    let mut node = Node::new(
        ReplicaId(options.me),
        replicas,
        options.medium,
        &folder,
        fabric,
    )?;
    let input = std::io::stdin();
    let mut said_ready = false;
    loop {
        if node.turn(Some(input.as_fd()))? {
            match read_order()? {
                None => return Ok(()),
                Some(Order::Allocations) => say(&Answer::Allocations(allocations()))?,
                Some(Order::Measure {
                    load,
                    warm_up_ms,
                    span_ms,
                }) => {
                    let spans = Spans {
                        warm_up: Duration::from_millis(warm_up_ms),
                        span: Duration::from_millis(span_ms),
                    };
                    say(&measure(&mut node, load, spans)?)?;
                }
            }
        }
        if !said_ready && options.me == 0 && node.leads(replicas - 1) {
            said_ready = true;
            say(&Answer::Leads)?;
        }
    }
}

/// The next order; nothing at the end of the input. Unbuffered, so that `poll` tells the truth.
fn read_order() -> Result<Option<Order>> {
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        let mut byte = [0];
        match rustix::io::read(std::io::stdin().as_fd(), &mut byte) {
            Ok(0) => return Ok(None),
            Ok(_) => line.push(byte[0]),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot read orders"),
        }
        if line.len() > ORDER_BYTES_MAX {
            bail!("an order without end");
        }
    }
    Ok(Some(serde_json::from_slice(&line)?))
}

fn say(answer: &Answer) -> Result<()> {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{}", serde_json::to_string(answer)?)?;
    Ok(output.flush()?)
}

/// Closed loops: as many proposers as the load has connections, each with one entry outstanding.
/// Entries commit in the order in which they were proposed, so a queue of start times tells
/// whose entry it is.
fn measure(node: &mut Node, load: Load, spans: Spans) -> Result<Answer> {
    let payload = vec![7; load.bytes];
    let mut starts: VecDeque<Instant> = VecDeque::with_capacity(load.connections);
    let mut recorder = Recorder::new(spans.warm_up, spans.span);
    node.take_delivered();
    let before = node.synced();
    loop {
        if !recorder.is_over(Instant::now()) {
            while starts.len() < load.connections {
                let start = Instant::now();
                if !node.propose(&payload)? {
                    break;
                }
                starts.push_back(start);
            }
        } else if starts.is_empty() {
            break;
        }
        node.turn(None)?;
        let delivered = node.take_delivered();
        if delivered > 0 {
            let now = Instant::now();
            for start in starts.drain(..delivered) {
                recorder.record(start, now);
            }
        }
    }
    let synced = before.zip(node.synced());
    let entries_per_sync =
        synced.map(|(a, b)| (b.entries - a.entries) as f64 / (b.syncs - a.syncs) as f64);
    Ok(Answer::Measured {
        entries_in_all: recorder.entries_in_all,
        measured: Measured {
            entries_per_sync,
            ..recorder.finish()
        },
    })
}
