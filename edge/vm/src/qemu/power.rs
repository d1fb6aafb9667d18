//! A guest that ends by itself: it powers off, crashes, or reboots where that is not allowed.
//!
//! QEMU stops such a guest and goes on. The machine is reset then. It boots again ([`AtEnd::Restart`]), or
//! stands at power-on ([`AtEnd::Destroy`]) until [`VmCommand::Start`](crate::VmCommand::Start).
//!
//! ```text
//!        the guest ends                reset, then Restart
//!   On ────────────────▶ Ended ────────────────────────────▶ On
//!    ▲                     └───────────────────────────────▶ Off
//!    └───────────────────────────── Start ────────────────────┘
//! ```
//!
//! This is a part of the guest's state, so it travels with the state of its devices: a guest that is off
//! stays off where that state is loaded. The two copies of a guest end when each of them ends; the next
//! syncvm makes them equal, as after a reboot (docs/decisions/0038).

use super::QemuVm;
use super::orders::Purpose;
use crate::{AtEnd, GuestEnd, VmEvent};
use plover_agent::Order;
use serde_json::Value;

/// Whether the machine has power.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Power {
    #[default]
    On,
    /// The guest has ended, and its machine is not reset yet.
    Ended(AtEnd),
    Off,
}

/// What follows once the machine of a guest that has ended is reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterReset {
    /// The guest boots, if it may.
    Boot,
    /// The open pause is confirmed.
    Paused,
    /// The resume that was ordered is carried out.
    Resume,
}

impl Power {
    const ALL: [Self; 4] = [
        Self::On,
        Self::Off,
        Self::Ended(AtEnd::Restart),
        Self::Ended(AtEnd::Destroy),
    ];

    /// The last byte of a state.
    pub(super) fn to_byte(self) -> u8 {
        let place = Self::ALL.iter().position(|power| *power == self);
        place.unwrap_or_default() as u8
    }

    pub(super) fn of_byte(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte)).copied()
    }
}

impl QemuVm {
    /// Whether the guest is off: it has ended, and waits for [`VmCommand::Start`](crate::VmCommand::Start).
    pub fn is_off(&self) -> bool {
        matches!(self.orders.power, Power::Off | Power::Ended(AtEnd::Destroy))
    }

    /// QEMU says that the guest has ended by itself.
    pub(super) fn guest_ended(&mut self, how: GuestEnd) {
        if self.orders.power != Power::On {
            return;
        }
        let then = self.config.ends.after(how);
        self.orders.power = Power::Ended(then);
        self.events.push_back(VmEvent::GuestEnded { how, then });
        self.reset_if_ended();
    }

    /// Resets the machine of a guest that has ended, unless orders are open: one that is being paused is dealt
    /// with at the end of the pause, a paused one when it is to go on.
    pub(super) fn reset_if_ended(&mut self) {
        if !self.orders.is_paused && self.orders.is_free() {
            self.reset_ended(AfterReset::Boot);
        }
    }

    /// Begins to reset the machine if its guest has ended. Returns whether it has.
    pub(super) fn reset_ended(&mut self, after: AfterReset) -> bool {
        let ended = matches!(self.orders.power, Power::Ended(_));
        if ended {
            self.reset_machine(Purpose::ResetEnded(after));
        }
        ended
    }

    /// The machine of a guest that has ended stands at power-on.
    pub(super) fn ended_is_reset(&mut self, after: AfterReset) {
        self.orders.power = match self.orders.power {
            Power::Ended(AtEnd::Restart) => Power::On,
            _ => Power::Off,
        };
        match after {
            AfterReset::Paused => self.events.push_back(VmEvent::Paused),
            AfterReset::Resume => self.resume(),
            AfterReset::Boot => self.boot(),
        }
    }

    /// An operator starts a guest that is off.
    pub(super) fn start_guest(&mut self) {
        if self.orders.power == Power::Off {
            self.orders.power = Power::On;
            if !self.orders.is_paused {
                self.nic.release();
                self.console.release();
                self.boot();
            }
        }
    }

    /// Lets a guest run that its replica takes to run already.
    fn boot(&mut self) {
        if self.orders.power == Power::On {
            self.order(Purpose::Boot, Order::Cont, "cont", Value::Null);
        } else {
            self.nic.hold();
            self.console.hold();
            // What it has not read is lost with its power.
            let _ = self.take_unconsumed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_says_whether_its_machine_has_power() {
        for power in Power::ALL {
            assert_eq!(Power::of_byte(power.to_byte()), Some(power));
        }
        assert_eq!(Power::of_byte(4), None);
    }
}
