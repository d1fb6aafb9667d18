//! The process of one replica: obeys its standard input, and ends with it.

use super::super::load::Spans;
use super::super::measured::{Measured, Recorder};
use super::super::plan::Load;
use super::node::Node;
use super::{Answer, Order, ReplicaOptions, fabrics};
use crate::counting::allocations;
use anyhow::Result;
use std::collections::VecDeque;
use std::io::Write;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::{Duration, Instant};

/// How long it takes an idle replica to see an order. No measurement includes this.
const IDLE_TURN: Duration = Duration::from_millis(20);

pub(crate) fn run(options: &ReplicaOptions) -> Result<()> {
    let fabric = fabrics::open(options)?;
    let backups = options.replicas.len() - 1;
    let mut node = Node::start(options, fabric)?;
    let orders = listen();
    let mut said_that_it_leads = false;
    loop {
        node.turn(Some(IDLE_TURN))?;
        match orders.try_recv() {
            Ok(Order::Allocations) => say(&Answer::Allocations(allocations()))?,
            Ok(Order::Fill(load)) => {
                say(&Answer::Filled(fill(&mut node, load)?))?;
            }
            Ok(Order::Measure {
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
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Ok(()),
        }
        if !said_that_it_leads && options.me == 0 && node.leads(backups) {
            said_that_it_leads = true;
            say(&Answer::Leads)?;
        }
    }
}

/// The orders, read by a thread that ends with the input. The replica's own loop has no system call to
/// spare for it.
fn listen() -> Receiver<Order> {
    let (sender, orders) = mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines() {
            let order = line.ok().and_then(|line| serde_json::from_str(&line).ok());
            match order {
                Some(order) if sender.send(order).is_ok() => {}
                // Our parent wrote no line that cannot be read.
                _ => return,
            }
        }
    });
    orders
}

fn say(answer: &Answer) -> Result<()> {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{}", serde_json::to_string(answer)?)?;
    Ok(output.flush()?)
}

/// Proposes entries until all that was in the log is reclaimed, then again until all of these are, and
/// all are committed. An eighth of the log is reclaimed at a time, so only then have all replicas had as
/// many buffers of this size as they need. Gives up, and returns `false`, where entries are so slow that
/// this would take minutes.
fn fill(node: &mut Node, load: Load) -> Result<bool> {
    const PATIENCE: Duration = Duration::from_secs(2);
    const TURNS: u32 = 2;
    const OUTSTANDING: usize = 24;
    let payload = vec![7; load.bytes];
    let (mut goal, _) = node.last_and_base();
    let (mut outstanding, mut turns) = (0, 0);
    let start = Instant::now();
    loop {
        let (last, base) = node.last_and_base();
        if base >= goal {
            turns += 1;
            goal = last;
        }
        let is_full = turns >= TURNS;
        let is_over = is_full || start.elapsed() > PATIENCE;
        while !is_over && outstanding < OUTSTANDING && node.propose(&payload)? {
            outstanding += 1;
        }
        if is_over && outstanding == 0 {
            return Ok(is_full);
        }
        node.turn(None)?;
        outstanding -= node.take_committed()?;
    }
}

/// Closed loops: as many proposers as the load has connections, each with one entry outstanding. Entries
/// commit in the order in which they were proposed, so a queue of start times is enough to match them.
fn measure(node: &mut Node, load: Load, spans: Spans) -> Result<Answer> {
    let payload = vec![7; load.bytes];
    let mut starts: VecDeque<Instant> = VecDeque::with_capacity(load.connections);
    let mut recorder = Recorder::new(spans.warm_up, spans.span);
    node.take_committed()?;
    let before = node.stored();
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
        let committed = node.take_committed()?;
        if committed > 0 {
            let now = Instant::now();
            for start in starts.drain(..committed) {
                recorder.record(start, now);
            }
        }
    }
    let after = node.stored();
    let syncs = after.syncs - before.syncs;
    let entries_per_sync =
        (syncs > 0).then(|| (after.entries - before.entries) as f64 / syncs as f64);
    Ok(Answer::Measured {
        entries_in_all: recorder.entries_in_all,
        measured: Measured {
            entries_per_sync,
            ..recorder.finish()
        },
    })
}
