//! A guest whose outputs are released has consumed the committed inputs in the log's order,
//! none twice and none left out.

use super::logs_agree::CommittedLog;
use super::{Check, Violation};
use crate::guest::Request;
use crate::history::{Histories, History, Step};
use plover_types::{ReplicaId, wire};
use std::collections::HashMap;

/// How far the history that clients have seen was checked.
#[derive(Debug, Default)]
pub struct InputsInOrder {
    /// The place after the last input of each history that was checked. Only looked up.
    checked: HashMap<History, u64>,
    /// The frame with each number.
    frames: HashMap<u64, Vec<u8>>,
}

fn violation(message: String) -> Violation {
    Violation { invariant: "inputs_in_order", section: "PLOVER §3.1, §4.1", message }
}

impl InputsInOrder {
    /// A client sends a frame.
    pub fn sent(&mut self, frame: &[u8]) {
        if let Ok(request) = wire::decode::<Request>(frame) {
            self.frames.insert(request.number, frame.to_vec());
        }
    }

    /// An output that `at` explains is released.
    pub fn released(
        &mut self,
        who: ReplicaId,
        at: History,
        all: &Histories,
        log: &CommittedLog,
    ) -> Check {
        let mut due = 0;
        let mut path = Vec::new();
        for (place, step) in all.back(at) {
            if let Some(after) = self.checked.get(&place) {
                due = *after;
                break;
            }
            path.push((place, step));
        }
        for (place, step) in path.into_iter().rev() {
            if let Step::Input(number) = step {
                let frame = self.frames.get(&number);
                let Some(found) = frame.and_then(|frame| log.place_of(frame)) else {
                    return Err(violation(format!(
                        "{who} releases what follows from input {number}, which is not committed"
                    )));
                };
                if found != due {
                    let what = if found < due { "again" } else { "too early" };
                    return Err(violation(format!(
                        "{who}'s guest has consumed the {found}th input {what}: the {due}th was due"
                    )));
                }
                due += 1;
            }
            self.checked.insert(place, due);
        }
        Ok(())
    }
}
