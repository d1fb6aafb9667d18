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
//!
//! Three orders of an operator are parts of the state in the same way (docs/decisions/0044):
//!
//! * A guest that *stands still* runs no instruction until the operator lets it go on. Pauses, loads and resumes
//!   of its state change nothing of that. Frames and typed text wait, as far as the queues have room.
//! * A *hard reset* treats a running guest as one that has ended and is to boot again.
//! * A *reboot* presses the power button. The guest boots again when it has powered off, whatever
//!   `guest.on_poweroff` says. A later press of the button alone takes that back.

use super::QemuVm;
use super::orders::{Orders, Purpose};
use crate::{AtEnd, GuestEnd, VmEvent};
use plover_agent::Order;
use plover_types::Micros;
use rustix::time::{ClockId, clock_gettime};
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

    fn to_byte(self) -> u8 {
        let place = Self::ALL.iter().position(|power| *power == self);
        place.unwrap_or_default() as u8
    }

    fn of_byte(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte)).copied()
    }
}

/// The end of a state: the machine's power, and what an operator has ordered of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Life {
    pub(super) power: Power,
    /// It boots again after its next power-off.
    pub(super) reboots: bool,
    /// It stands still for an operator, and stood for so long when it was last paused.
    pub(super) stood: Option<Micros>,
}

impl Life {
    /// The bits of the last byte beside [`Power`]'s.
    const STANDS: u8 = 4;
    const REBOOTS: u8 = 8;

    /// Appends it to a state: the time for which the guest stood, if it stands, and one byte.
    pub(super) fn append_to(self, state: &mut Vec<u8>) {
        let mut byte = self.power.to_byte();
        if self.reboots {
            byte |= Self::REBOOTS;
        }
        if let Some(stood) = self.stood {
            byte |= Self::STANDS;
            state.extend(stood.0.to_le_bytes());
        }
        state.push(byte);
    }

    /// Takes it from the end of a state; `None` if the state has no such end.
    pub(super) fn take_from(state: &mut Vec<u8>) -> Option<Self> {
        let byte = state.pop()?;
        let mut stood = None;
        if byte & Self::STANDS != 0 {
            let at = state.len().checked_sub(size_of::<u64>())?;
            let bytes = state.split_off(at).try_into().ok()?;
            stood = Some(Micros(u64::from_le_bytes(bytes)));
        }
        Some(Self {
            power: Power::of_byte(byte & !(Self::STANDS | Self::REBOOTS))?,
            reboots: byte & Self::REBOOTS != 0,
            stood,
        })
    }
}

/// The clock of QEMU and of [`plover_types::DeviceState::stopped_at`].
pub(super) fn monotonic() -> Micros {
    let time = clock_gettime(ClockId::Monotonic);
    Micros(time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000)
}

impl QemuVm {
    /// Whether the guest is off: it has ended, and waits for [`VmCommand::Start`](crate::VmCommand::Start).
    pub fn is_off(&self) -> bool {
        matches!(self.orders.power, Power::Off | Power::Ended(AtEnd::Destroy))
    }

    /// Whether the guest stands still because an operator has ordered so ([`VmCommand::Stand`](crate::VmCommand::Stand)).
    pub fn stands(&self) -> bool {
        self.orders.stands_since.is_some()
    }

    /// Whether the guest stands for its replica, and will soon run: what a person types at its display is lost meanwhile.
    pub fn holds_inputs(&self) -> bool {
        let pauses = self.orders.is_paused || self.orders.is_open(Purpose::Resume);
        pauses && self.orders.power == Power::On && !self.stands()
    }

    /// Whether an operator has ordered a reboot, and the guest has not powered off yet.
    pub fn reboots(&self) -> bool {
        self.orders.reboots
    }

    /// The machine's power and its operator's orders, as a part of the state that is saved.
    pub(super) fn life(&self) -> Life {
        let Orders {
            power,
            reboots,
            stands_since,
            paused_at,
            ..
        } = self.orders;
        Life {
            power,
            reboots,
            stood: stands_since.map(|since| paused_at.since(since)),
        }
    }

    /// QEMU says that the guest has ended by itself.
    pub(super) fn guest_ended(&mut self, how: GuestEnd) {
        if self.orders.power != Power::On {
            return;
        }
        let then = match std::mem::take(&mut self.orders.reboots) {
            true if how == GuestEnd::PowerOff => AtEnd::Restart,
            _ => self.config.ends.after(how),
        };
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
        match self.orders.power {
            Power::Off => {
                self.orders.power = Power::On;
                if !self.orders.is_paused {
                    self.boot();
                }
            }
            // Its machine is reset first.
            Power::Ended(AtEnd::Destroy) => self.orders.power = Power::Ended(AtEnd::Restart),
            Power::Ended(AtEnd::Restart) | Power::On => {}
        }
    }

    /// Presses the power button. A guest that `reboots` boots again when it has powered off. Later orders wait for the answer: the
    /// next state that is saved has the button pressed.
    pub(super) fn press_button(&mut self, reboots: bool) {
        self.orders.reboots = reboots && self.orders.power == Power::On;
        self.open(Purpose::Button, "system_powerdown", Value::Null);
    }

    /// Stops the vCPUs.
    pub(super) fn halt(&mut self, purpose: Purpose) {
        self.hold_inputs();
        self.orders.stops_due += 1;
        self.order(purpose, Order::Stop);
    }

    /// An operator resets the machine. It is reset and boots as one does whose guest has ended by itself.
    pub(super) fn hard_reset(&mut self) {
        if self.orders.power != Power::On {
            return;
        }
        if self.orders.is_paused || self.stands() {
            self.end_for_reset();
            self.reset_if_ended();
        } else {
            self.halt(Purpose::StopForReset);
        }
    }

    /// The guest of a machine that is to be reset has stopped.
    pub(super) fn end_for_reset(&mut self) {
        if self.orders.power == Power::On {
            self.orders.reboots = false;
            self.orders.power = Power::Ended(AtEnd::Restart);
        }
    }

    /// An operator lets the guest stand still.
    pub(super) fn stand(&mut self) {
        if self.stands() {
            return;
        }
        self.orders.stands_since = Some(monotonic());
        if !self.orders.is_paused && self.orders.power == Power::On {
            self.halt(Purpose::Stand);
        }
    }

    /// An operator lets a guest go on that stands still.
    pub(super) fn go_on(&mut self) {
        if self.orders.stands_since.take().is_some() && !self.orders.is_paused {
            self.boot();
        }
    }

    /// Lets a guest run that its replica takes to run already.
    fn boot(&mut self) {
        if self.orders.power == Power::On && !self.stands() {
            self.release_inputs();
            self.order(Purpose::Boot, Order::Cont);
        } else {
            self.hold_inputs();
            if self.orders.power != Power::On {
                // Input that it has not read is lost with its power.
                let _ = self.take_unconsumed();
                let _ = self.agent_take_unread();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_says_whether_its_machine_has_power_and_what_was_ordered() {
        for power in Power::ALL {
            for (reboots, stood) in [
                (false, None),
                (true, None),
                (false, Some(Micros(0))),
                (true, Some(Micros(u64::MAX - 1))),
            ] {
                let life = Life {
                    power,
                    reboots,
                    stood,
                };
                let mut state = vec![7; 3];
                life.append_to(&mut state);
                assert_eq!(Life::take_from(&mut state), Some(life));
                assert_eq!(state, [7; 3], "the devices' state is left");
            }
        }
        for no_state in [vec![], vec![16], vec![1, 2, 3, Life::STANDS]] {
            assert_eq!(Life::take_from(&mut no_state.clone()), None, "{no_state:?}");
        }
    }
}
