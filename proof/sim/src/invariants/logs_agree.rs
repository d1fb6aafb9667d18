//! Entries that two replicas deliver at one index are equal.
//!
//! Every replica's log is read from outside each time it commits something. All later readings of
//! an index have to equal the first.

use super::{Check, Violation};
use crate::request::Request;
use crate::rng::mix;
use apus::{Entry, EntryKind};
use plover_replica::OperatorInput;
use plover_types::{Frame, Index, ReplicaId, ReplicaSet, SyncNo, View, wire};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};

/// The form of an entry's payload, which is private to `plover-replica`.
#[derive(Debug, Serialize, Deserialize)]
enum Payload {
    Inputs(Vec<Frame>),
    Operator(OperatorInput),
    Syncvm(SyncNo),
    Paced(u64, Vec<Frame>),
    SyncvmThenRest(SyncNo),
}

/// The first delivery of an entry.
#[derive(Clone, Copy, Debug)]
pub struct Committed {
    digest: u64,
    /// The replica that delivered it first.
    pub by: ReplicaId,
    /// That replica's view then. The entry was committed in this view or an older one.
    pub view: View,
}

/// The entries committed in this generation of the guest.
#[derive(Debug, Default)]
pub struct CommittedLog {
    /// Each entry's first delivery, from index 1.
    entries: Vec<Committed>,
    /// The newest committed in-sync set.
    in_sync: ReplicaSet,
    /// The newest committed members, unless they are still the first ones.
    members: Option<ReplicaSet>,
    /// The place of each committed frame among the inputs, by the frame's bytes. Never iterated.
    inputs: HashMap<Vec<u8>, u64>,
    /// The place of each committed frame among those of its connection.
    in_connection: HashMap<Vec<u8>, u64>,
    /// How many frames of each client are committed.
    connections: BTreeMap<u8, u64>,
    /// The place of each committed line of the console among those lines.
    typed: HashMap<Vec<u8>, u64>,
}

/// A digest of an entry with its payload.
fn digest(entry: &Entry) -> u64 {
    let kind = match entry.kind {
        EntryKind::Noop => 1,
        EntryKind::App => 2,
        EntryKind::InSync(set) => 3 + u64::from(set.0),
        EntryKind::Version(version) => (1 << 21) + u64::from(version),
        EntryKind::Members(members) => {
            (1 << 20) | (u64::from(members.voters.0) << 32) | (u64::from(members.learners.0) << 48)
        }
    };
    let mut sum = mix(mix(entry.viewstamp.view.0, entry.viewstamp.index.0), kind);
    for chunk in entry.payload.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        sum = mix(sum, u64::from_le_bytes(word));
    }
    sum
}

impl CommittedLog {
    /// The last index that any replica has delivered.
    pub fn last(&self) -> Index {
        Index(self.entries.len() as u64)
    }

    /// The newest committed in-sync set.
    pub fn in_sync(&self) -> ReplicaSet {
        self.in_sync
    }

    /// Whether a replica is a member by the newest committed entry.
    pub fn is_member(&self, who: ReplicaId) -> bool {
        self.members.is_none_or(|members| members.contains(who))
    }

    /// The log of the next generation, with the members that this one has.
    pub fn next_generation(&self) -> Self {
        Self {
            members: self.members,
            ..Self::default()
        }
    }

    /// The place of a frame among all committed inputs.
    pub fn place_of(&self, frame: &[u8]) -> Option<u64> {
        self.inputs.get(frame).copied()
    }

    /// The place of a frame among the committed inputs of its connection.
    pub fn place_in_connection(&self, frame: &[u8]) -> Option<u64> {
        self.in_connection.get(frame).copied()
    }

    /// The place of a line among all that were typed and committed.
    pub fn place_of_line(&self, line: &[u8]) -> Option<u64> {
        self.typed.get(line).copied()
    }

    /// A replica in `view` has committed this entry.
    pub fn committed(&mut self, who: ReplicaId, view: View, entry: &Entry) -> Check {
        let index = entry.viewstamp.index;
        let digest = digest(entry);
        match index.0.cmp(&(self.last().0 + 1)) {
            Ordering::Less => match self.entries[index.0 as usize - 1] {
                first if first.digest == digest => Ok(()),
                first => Err(violation(format!(
                    "{who} delivers {} at index {index}, {} has delivered another",
                    entry.viewstamp, first.by
                ))),
            },
            Ordering::Equal => {
                self.entries.push(Committed {
                    digest,
                    by: who,
                    view,
                });
                self.learn(entry);
                Ok(())
            }
            Ordering::Greater => Err(violation(format!(
                "{who} delivers index {index}, nobody has delivered {}",
                self.last().next()
            ))),
        }
    }

    fn learn(&mut self, entry: &Entry) {
        match entry.kind {
            EntryKind::InSync(set) => self.in_sync = set,
            EntryKind::Members(members) => self.members = Some(members.all()),
            EntryKind::Noop | EntryKind::Version(_) => {}
            EntryKind::App => match wire::decode(&entry.payload) {
                Ok(Payload::Inputs(frames) | Payload::Paced(_, frames)) => {
                    for frame in frames {
                        // A segment without words changes nothing in the guest.
                        let Some(request) = Request::of(&frame) else {
                            continue;
                        };
                        let count = self.connections.entry(request.client).or_default();
                        self.in_connection.insert(frame.0.clone(), *count);
                        *count += 1;
                        let place = self.inputs.len() as u64;
                        self.inputs.insert(frame.0, place);
                    }
                }
                Ok(Payload::Operator(OperatorInput::Console(line))) => {
                    let place = self.typed.len() as u64;
                    self.typed.insert(line, place);
                }
                Ok(Payload::Operator(_) | Payload::Syncvm(_) | Payload::SyncvmThenRest(_)) => {}
                Err(error) => panic!("the replica's payloads have changed their form: {error}"),
            },
        }
    }

    /// The first delivery of the entry at `index`.
    pub fn first(&self, index: Index) -> Option<Committed> {
        self.entries.get(index.0 as usize - 1).copied()
    }

    /// Whether this entry was committed at its index, or none was yet.
    pub fn agrees(&self, entry: &Entry) -> bool {
        self.first(entry.viewstamp.index)
            .is_none_or(|first| first.digest == digest(entry))
    }
}

fn violation(message: String) -> Violation {
    Violation {
        invariant: "logs_agree",
        section: "PLOVER §4.1; APUS §4.1",
        message,
    }
}
