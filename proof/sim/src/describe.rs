//! Names of events, for the coverage and for the trace.

use crate::coverage::failed_in;
use crate::world::World;
use plover_replica::{Event, Note, Replica, Role};
use plover_syncvm::SyncMessage;
use plover_syncvm::message::Body;
use plover_types::{Lane, ReplicaId, wire};

impl World {
    /// Counts the moment that a note reports.
    pub(crate) fn count(&mut self, who: ReplicaId, note: &Note) {
        let phase = self.process(who).phase;
        match note {
            Note::SyncPhase { phase, .. } => self.process_mut(who).phase = Some(*phase),
            Note::Synced(report) => {
                self.process_mut(who).phase = None;
                let matched = u64::from(report.matched);
                self.coverage
                    .add("match: frames released on match", matched);
                let clean = u64::from(report.clean);
                self.coverage
                    .add("clean: frames released before their sync", clean);
            }
            Note::SyncFailed { .. } => self.process_mut(who).phase = None,
            _ => {}
        }
        let what = match note {
            Note::Role {
                from: Role::Deposed,
                to: Role::Leader,
                ..
            } => "failover: a deposed leader won again",
            Note::Role {
                from: Role::Deposed,
                to: Role::Witness,
                ..
            } => "failover: a deposed leader came back as witness",
            Note::Role {
                to: Role::Deposed, ..
            } => "failover: a leader was deposed",
            Note::Role {
                from: Role::Recovering,
                to: Role::Witness,
                ..
            } => "recovery: a replica recovered its log",
            Note::Suspected { .. } => "failover: a leader was suspected",
            Note::Elected { .. } => "failover: elections won",
            Note::Protected { .. } => "join: the guest is protected",
            Note::JoinBegun { .. } => "join: begun",
            Note::JoinOpened { warm: true, .. } => "join: from a warm copy",
            Note::JoinOpened { warm: false, .. } => "join: from an old copy or none",
            Note::Warm { .. } => "warm: a witness has everything",
            Note::WarmRefused { .. } => "warm: refused",
            Note::JoinRound { round, .. } if *round > 0 => "join: more rounds",
            Note::JoinFailed { .. } => "join: failed",
            Note::SyncFailed { .. } => match phase {
                Some(phase) => failed_in(phase),
                None => "sync: given up by the secondary",
            },
            Note::Synced(report) => match report.reason.as_str() {
                "differ" => "sync: done (differ)",
                "unmatched" => "sync: done (unmatched)",
                "idle" => "sync: done (idle)",
                "longest" => "sync: done (longest)",
                "guard_full" => "sync: done (guard full)",
                "log_full" => "sync: done (log full)",
                "quiet" => "sync: done (quiet)",
                "interval" => "sync: done (interval)",
                "output" => "sync: done (output)",
                "rest" => "sync: done (rest)",
                "join" => "sync: done (join)",
                "retry" => "sync: done (retry)",
                _ => "sync: done (other)",
            },
            Note::OutputsDiffer { why } if why.ends_with("opened") => "match: a connection opens",
            Note::OutputsDiffer { why } if why.ends_with("lost") => "match: a message was lost",
            Note::OutputsDiffer { .. } => "match: outputs differ",
            Note::Applied { .. } => "sync: applied",
            Note::Kept { .. } => "sync: kept by a secondary that waits",
            Note::Wakes { inputs: 0 } => "rest: a guest wakes",
            Note::Wakes { .. } => "rest: a guest wakes, and executes what was logged since",
            Note::GuestLost { .. } => "guest: lost",
            Note::HypervisorLate { .. } => "hypervisor: late with an answer",
            Note::HypervisorAnswers => "hypervisor: answers again",
            Note::GroupEmpty { fresh: true } => "generation: the group has never run",
            Note::GroupEmpty { fresh: false } => "generation: the group is empty",
            Note::InputDropped { .. } => "input: dropped, the queue was full",
            Note::OutputDropped { .. } => "output: dropped, the guard was full",
            Note::Rejected { .. } => "messages rejected",
            _ => return,
        };
        self.coverage.hit(what);
    }

    /// Counts inputs that begin to wait for the secondary's guest, and how the wait ends. `before` is
    /// the state before the last event.
    pub(crate) fn count_paced(&mut self, who: ReplicaId, before: Paced) {
        let replica = self.process(who).replica.as_deref();
        let now = replica.map_or_else(Paced::default, Paced::of);
        let what = match self.cause {
            _ if now.in_vain > before.in_vain => "pace: an input has waited in vain",
            _ if now.waiting > before.waiting => "pace: an input waits for the secondary's guest",
            "Outputs" if now.waiting < before.waiting => {
                "pace: the guest is as far as the leader's was"
            }
            _ => return,
        };
        self.coverage.hit(what);
    }
}

/// The inputs of a replica that wait for its guest.
#[derive(Clone, Copy, Default)]
pub(crate) struct Paced {
    /// How many inputs wait.
    waiting: usize,
    /// For how many bytes they have waited in vain so far.
    in_vain: u64,
}

impl Paced {
    pub(crate) fn of(replica: &Replica) -> Self {
        Self {
            waiting: replica.inputs_paced(),
            in_vain: replica.paced_in_vain(),
        }
    }
}

/// The kind of an event, to count its effects by.
pub(crate) fn name(event: &Event) -> &'static str {
    match event {
        Event::Received {
            lane: Lane::Bulk, ..
        } => "Received Bulk",
        Event::Received {
            lane: Lane::Log, ..
        } => "Received Log",
        Event::Outputs(_) => "Outputs",
        Event::Tick => "Tick",
        _ => "other",
    }
}

/// An event in one line.
pub(crate) fn brief(event: &Event) -> String {
    match event {
        Event::Received { from, lane, bytes } => {
            let what = match (lane, wire::decode::<SyncMessage>(bytes)) {
                (Lane::Bulk, Ok(SyncMessage { view, body })) => {
                    format!("{} of view {view}", brief_body(&body))
                }
                _ => format!("{} bytes", bytes.len()),
            };
            format!("{lane:?} record of {from}: {what}")
        }
        Event::Frames(frames) => format!("{} frames of clients", frames.len()),
        Event::Outputs(frames) => format!("{} outputs", frames.len()),
        Event::GuestPaused {
            outputs,
            unconsumed,
        } => {
            format!(
                "paused, {} outputs, {} frames and {} typed bytes unconsumed",
                outputs.len(),
                unconsumed.frames.len(),
                unconsumed.typed.len()
            )
        }
        Event::StateSaved(_) => "state saved".to_string(),
        Event::Scanned(_, set) => format!("scanned {:?}", set.to_runs().0),
        Event::Hashed(_, digests) => format!("hashed {} pages", digests.len()),
        Event::ChunksWritten(_) => "ChunksWritten".to_string(),
        Event::SubpagesHashed(_, hashes) => format!("SubpagesHashed({hashes:?})"),
        Event::PagesRead(_, chunk) => format!("read {} bytes of pages", chunk.len()),
        event => format!("{event:?}"),
    }
}

fn brief_body(body: &Body) -> String {
    match body {
        Body::Copy { seq, .. } => format!("Copy {seq}"),
        Body::Compared { first, .. } => format!("Compared {first}"),
        Body::Dirty { sync, runs, .. } | Body::DirtyUnderKeys { sync, runs, .. } => {
            format!("Dirty {sync} {:?}", runs.0)
        }
        Body::Hashes {
            sync, runs, total, ..
        } => format!("Hashes {sync} {total} {:?}", runs.0),
        Body::Pages { sync, seq, .. } => format!("Pages {sync} {seq}"),
        Body::End {
            sync,
            chunks,
            refeed,
            ..
        } => {
            format!(
                "End {sync}, {chunks} chunks, {} frames and {} typed bytes to feed again",
                refeed.frames.len(),
                refeed.typed.len()
            )
        }
        Body::Fetched { sync, last, .. } => format!("Fetched {sync} {last}"),
        body => format!("{body:?}"),
    }
}
