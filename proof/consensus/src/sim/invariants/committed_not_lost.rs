//! A replica that begins to lead a view holds all that was committed before it (leader
//! completeness, Raft §5.4).
//!
//! Checked entry by entry when it begins to lead, before anything is proposed: a leader without a
//! committed entry would put something else in its place.

use super::{Check, demand};
use apus::{Apus, Entry};
use plover_types::Index;

/// `core` on `host` begins to lead a view before which `chosen` was committed.
pub fn leads(host: usize, core: &Apus, chosen: &[Entry]) -> Check {
    let status = core.status();
    let last = status.last;
    demand(
        last.view == status.view && last.index.0 > chosen.len() as u64,
        "committed_not_lost",
        "APUS §4.3; Paxos made practical §3",
        || {
            format!(
                "r{host} begins view {} at {last}, though {} entries are committed",
                status.view,
                chosen.len()
            )
        },
    )?;
    for entry in chosen.iter().skip(status.base.0 as usize) {
        let Index(index) = entry.viewstamp.index;
        let held = core.entry(entry.viewstamp.index);
        demand(
            held == Some(entry),
            "committed_not_lost",
            "APUS §4.3; Paxos made practical §3",
            || {
                let held = held.map(|held| held.viewstamp);
                format!(
                    "r{host} begins view {} with {held:?} at {index}, where {} is committed",
                    status.view, entry.viewstamp
                )
            },
        )?;
    }
    Ok(())
}
