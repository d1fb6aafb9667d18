//! The end of a replica that is well: it hands over first.
//!
//! ```text
//!   SIGTERM ─▶ drains itself, without writing that down ─▶ no role is left, or none can be given up,
//!                                                          or it takes too long ─▶ ends
//!   a second SIGTERM, or Ctrl-C ────────────────────────────────────────────────▶ ends at once
//! ```
//!
//! It tells the others first, so that their logs and statuses do not take it for a crash.

use super::{Body, BoxError};
use crate::clock;
use plover_replica::{Event, Role};
use plover_types::Micros;
use std::fmt;

/// How long the end waits for others to take this replica's roles over. A switchover takes some 10 ms, a copy to a
/// warm witness a second or so, and a copy to a cold one longer than anybody waits for at a shutdown.
const WITHIN: Micros = Micros::from_ms(10_000);

/// The end of a replica that was told to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// Others have its roles now.
    HandedOver,
    /// It had none that others had to take over.
    WithoutRole,
    /// Nobody could take its role over, or not in time.
    WithRole,
    /// It was told so twice, or by Ctrl-C.
    AtOnce,
    /// Its group does not need it any more.
    Left,
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HandedOver => "others have taken its roles over",
            Self::WithoutRole => "it had no role that others had to take over",
            Self::WithRole => "no other replica has taken its role over",
            Self::AtOnce => "at once, without handing over",
            Self::Left => "it has left its group",
        })
    }
}

impl Body {
    /// The process was asked to end.
    pub(super) fn on_stop(&mut self, at_once: bool) -> Result<(), BoxError> {
        self.tell_of_end();
        if at_once || self.leaving.is_some() {
            self.stopping = Some(Ending::AtOnce);
            return Ok(());
        }
        if !self.can_give_up_roles() {
            self.stopping = Some(match self.role {
                Role::Leader | Role::Secondary => Ending::WithRole,
                _ => Ending::WithoutRole,
            });
            return Ok(());
        }
        tracing::info!(
            event = "leaving", role = ?self.role,
            "this replica hands over before it ends; a second signal ends it at once"
        );
        self.leaving = Some(clock::now() + WITHIN);
        self.service.stopping(&self.in_a_line());
        self.apply(Event::Drain(true))
    }

    /// Whether others may take over what this replica does.
    fn can_give_up_roles(&self) -> bool {
        match self.role {
            Role::Leader => self.replica.why_not_switch_over(None).is_none(),
            Role::Secondary => {
                self.replica.members().len() > 2 && self.replica.status().leader.is_some()
            }
            _ => false,
        }
    }

    /// Ends when the roles are given up, or cannot be.
    pub(super) fn end_if_free(&mut self) {
        let Some(until) = self.leaving else { return };
        let is_free = matches!(self.role, Role::Witness | Role::Joining | Role::Recovering);
        let in_vain = match self.role {
            // While it hands over, it is deposed for a moment.
            Role::Deposed => false,
            _ => !self.can_give_up_roles(),
        };
        if is_free || in_vain || clock::now() >= until {
            self.stopping = Some(match is_free {
                true => Ending::HandedOver,
                false => Ending::WithRole,
            });
        }
    }

    /// The last line of its log.
    pub(super) fn log_end(&self, ending: Ending) {
        let role = self.role;
        match ending {
            Ending::WithRole => {
                tracing::warn!(
                    event = "left_with_role",
                    ?role,
                    "this replica ends, as it was told to: {ending}"
                );
            }
            _ => tracing::info!(
                event = "stopped",
                ?role,
                "this replica ends, as it was told to: {ending}"
            ),
        }
    }
}
