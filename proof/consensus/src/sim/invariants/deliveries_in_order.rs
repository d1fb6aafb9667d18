//! Each process delivers every index once, in order, without gaps, except where it installs a
//! snapshot.

use super::{Check, demand};
use plover_types::{Index, Viewstamp};

/// `host`, which has delivered up to `cursor`, delivers the entry of `viewstamp`.
pub fn delivered(host: usize, cursor: Index, viewstamp: Viewstamp) -> Check {
    demand(
        viewstamp.index == cursor.next(),
        "deliveries_in_order",
        "APUS §4.1",
        || format!("r{host} delivers {viewstamp} after {cursor}"),
    )
}

/// `host`, which has delivered up to `cursor` in this generation, installs a snapshot that ends at
/// `base`, never before `cursor`.
pub fn installed(host: usize, cursor: Index, base: Viewstamp) -> Check {
    let new_generation = base.index == Index(0);
    demand(
        new_generation || base.index > cursor,
        "deliveries_in_order",
        "APUS §4.1",
        || format!("r{host} goes from {cursor} back to a snapshot at {base}"),
    )
}
