//! Once all faults have ended, the group serves again: a leader is elected, everybody follows it,
//! a new proposal is committed and delivered everywhere. Unless more was lost than any protocol
//! can bear; then it must refuse rather than guess, and the world says what was lost.

use super::{Check, demand};
use plover_types::Micros;

const NAME: &str = "progress_after_healing";
const SECTION: &str = "APUS §4.3; PLOVER §4.5";

/// How long healing may take: dozens of election timeouts, the longest wait of a candidate that
/// stood down, and time to send a long log again. The slowest of 20,000 seeds took a third of it.
pub const HEALING_MAX: Micros = Micros::from_ms(6000);

/// The group has had [`HEALING_MAX`] and does not serve; `excuse` is what was lost, if that is
/// reason enough.
pub fn does_not_serve(excuse: Option<&'static str>, state: impl FnOnce() -> String) -> Check {
    demand(excuse.is_some(), NAME, SECTION, || {
        format!("the group does not serve again: {}", state())
    })
}
