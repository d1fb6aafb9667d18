//! Every page that differs between a warm copy and its source is known to the source.
//!
//! A warm copy is only worth its memory if a join need not look at all of it again. So its source
//! keeps a ledger. A page that the ledger forgets stays wrong on the secondary for ever, because no
//! syncvm looks at it.

use super::debt_never_forgotten::Side;
use super::{Check, Violation};
use plover_types::PageNo;

/// The source of a copy and its target, at any moment.
pub fn check(source: Side<'_>, target: Side<'_>) -> Check {
    let (ours, theirs) = (source.guest.memory(), target.guest.memory());
    let known = |page: PageNo| {
        source.replica.warm_copy_owes(page).unwrap_or(true)
            || source.guest.dirty().contains(page)
            || target.accounts_for(page)
    };
    let forgotten: Vec<_> = (0..ours.len())
        .filter(|page| ours[*page] != theirs[*page])
        .filter(|page| !known(PageNo(*page as u32)))
        .collect();
    if forgotten.is_empty() {
        return Ok(());
    }
    Err(Violation {
        invariant: "warm_copy_accounted",
        section: "docs/decisions/0015",
        message: format!(
            "pages {forgotten:?} of {}'s copy differ from {}'s, who does not know",
            target.who, source.who
        ),
    })
}
