//! Once all faults have ended, the group serves again: a leader is elected, all others follow it,
//! and a new proposal is committed and delivered everywhere. If more was lost than any protocol
//! can bear, the group has to refuse, and the world says what was lost.

use super::{Check, demand};
use plover_types::Micros;

const NAME: &str = "progress_after_healing";
const SECTION: &str = "APUS §4.3; PLOVER §4.5";

/// How long healing may take: dozens of election timeouts, the longest wait of a candidate that
/// stood down, and time to send a long log again. The slowest of 20,000 seeds took a third of it.
pub const HEALING_MAX: Micros = Micros::from_ms(6000);

/// The group does not serve after [`HEALING_MAX`]; `excuse` is what was lost, if that is reason
/// enough.
pub fn does_not_serve(excuse: Option<&'static str>, state: impl FnOnce() -> String) -> Check {
    demand(excuse.is_some(), NAME, SECTION, || {
        format!("the group does not serve again: {}", state())
    })
}
