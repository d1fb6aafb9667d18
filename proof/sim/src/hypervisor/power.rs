//! The power of the machine, as `edge/vm` has it (`qemu/power.rs` draws the states).

use super::{Due, Hypervisor, Order};
use crate::guest::{AtEnd, GuestEnd, Power};
use crate::history::Histories;
use plover_replica::Event;
use plover_types::Micros;

/// What follows once the machine of a guest that has ended is reset.
#[derive(Clone, Copy, Debug)]
pub enum AfterReset {
    /// The guest boots, if it may.
    Boot,
    /// The open pause is confirmed.
    Paused,
    /// The resume that was ordered is carried out.
    Resume,
}

/// Frames that a guest that is off keeps until it is started; older ones are lost.
const KEPT_WHILE_OFF: usize = 16;

impl Hypervisor {
    /// Whether the guest is off: it has ended, and waits to be started.
    pub fn is_off(&self) -> bool {
        matches!(
            self.guest.power(),
            Power::Off | Power::Ended(AtEnd::Destroy)
        )
    }

    /// Whether the guest stands still for an operator.
    pub fn stands(&self) -> bool {
        self.guest.stands()
    }

    /// What has become of the guest's power since the last call.
    pub fn take_happened(&mut self) -> Vec<&'static str> {
        std::mem::take(&mut self.happened)
    }

    pub(super) fn has_ended(&self) -> bool {
        matches!(self.guest.power(), Power::Ended(_))
    }

    /// The guest has ended in the step that it has just made.
    pub(super) fn guest_ended(&mut self, now: Micros, how: GuestEnd, histories: &mut Histories) {
        let then = match self.guest.take_reboots() {
            true if how == GuestEnd::PowerOff => {
                self.happened
                    .push("guest: boots again, as the operator has ordered");
                AtEnd::Restart
            }
            _ => self.guest.after(how),
        };
        self.happened.push(match (how, then) {
            (GuestEnd::Reboot, AtEnd::Restart) => "guest: reboots",
            (GuestEnd::Reboot, AtEnd::Destroy) => "guest: wants to reboot, and is off",
            (GuestEnd::PowerOff, AtEnd::Restart) => "guest: powers off, and boots again",
            (GuestEnd::PowerOff, AtEnd::Destroy) => "guest: powers off",
            (GuestEnd::Crash, AtEnd::Restart) => "guest: crashes, and boots again",
            (GuestEnd::Crash, AtEnd::Destroy) => "guest: crashes, and is off",
        });
        if (how, then) == (GuestEnd::Reboot, AtEnd::Restart) {
            if self.habits.reboot_ends {
                self.stop(now);
                return self.due.push((Micros::ZERO, Due::Ended));
            }
            // The machine resets itself and goes on.
            self.guest.restart(histories);
            self.guest.devices_clean = false;
            if self.rng.chance(0.5) {
                self.forget_inputs();
            }
            return;
        }
        self.stop(now);
        self.guest.set_power(Power::Ended(then));
        self.due.push((Micros::ZERO, Due::Ended));
        self.reset_if_ended();
    }

    /// Resets the machine of a guest that has ended, unless orders are open: one that is being paused is dealt
    /// with at the end of the pause, a paused one when it is to go on.
    pub(super) fn reset_if_ended(&mut self) {
        if self.has_ended() && !self.is_paused && self.orders.is_empty() && !self.dead {
            self.order(Order::ResetEnded(AfterReset::Boot));
        }
    }

    /// The machine of a guest that has ended stands at power-on.
    pub(super) fn ended_is_reset(
        &mut self,
        now: Micros,
        after: AfterReset,
        histories: &mut Histories,
    ) -> Option<Event> {
        self.guest.restart(histories);
        let power = match self.guest.power() {
            Power::Ended(AtEnd::Restart) => Power::On,
            _ => Power::Off,
        };
        self.guest.set_power(power);
        match after {
            AfterReset::Paused => Some(self.paused()),
            AfterReset::Resume => Some(self.resumed(now)),
            AfterReset::Boot => {
                self.boot(now);
                None
            }
        }
    }

    /// Lets a guest run that its replica takes to run already.
    fn boot(&mut self, now: Micros) {
        if self.guest.power() == Power::On && !self.guest.stands() {
            self.run(now);
        } else if self.guest.power() != Power::On {
            self.forget_inputs();
        }
    }

    /// An operator starts a guest that is off.
    pub fn start_guest(&mut self, now: Micros) {
        if self.guest.power() != Power::Off || self.dead {
            return;
        }
        self.happened.push("guest: started by the operator");
        self.guest.set_power(Power::On);
        if !self.is_paused {
            self.boot(now);
        }
    }

    /// An operator presses the power button. A guest that `reboots` boots again when it has powered off.
    pub fn press_button(&mut self, reboots: bool) {
        if self.guest.power() == Power::On {
            self.guest.set_reboots(reboots);
            self.guest.end_soon(GuestEnd::PowerOff);
        }
    }

    /// An operator resets the machine.
    pub fn hard_reset(&mut self, now: Micros) {
        if self.guest.power() != Power::On || self.dead {
            return;
        }
        self.happened.push("guest: reset by the operator");
        self.guest.set_reboots(false);
        self.stop(now);
        self.guest.set_power(Power::Ended(AtEnd::Restart));
        self.due.push((Micros::ZERO, Due::Ended));
        self.reset_if_ended();
    }

    /// An operator lets the guest stand still.
    pub fn stand_still(&mut self, now: Micros) {
        if self.guest.stands() || self.dead {
            return;
        }
        self.happened.push("guest: paused by the operator");
        self.guest.set_stands(true);
        self.stop(now);
        self.due.push((Micros::ZERO, Due::Ended));
    }

    /// An operator lets a guest go on that stands still.
    pub fn go_on(&mut self, now: Micros) {
        if !self.guest.stands() || self.dead {
            return;
        }
        self.happened.push("guest: let go on by the operator");
        self.guest.set_stands(false);
        self.due.push((Micros::ZERO, Due::Ended));
        if !self.is_paused {
            self.boot(now);
        }
    }

    pub(super) fn forget_inputs(&mut self) {
        self.nic.clear();
        self.console.clear();
    }

    pub(super) fn bound_queue(&mut self) {
        if self.is_off() {
            let surplus = self.nic.len().saturating_sub(KEPT_WHILE_OFF);
            self.nic.drain(..surplus);
        }
    }

    /// A state was loaded; before, the machine had this power, and did or did not stand still.
    pub(super) fn count_load(&mut self, before: Power, stood: bool) {
        if self.guest.stands() != stood {
            self.happened.push(match stood {
                true => "guest: a state that runs was loaded into one that stands",
                false => "guest: a state that stands was loaded into one that runs",
            });
        }
        let now = self.guest.power();
        if now != before {
            self.happened.push(match now {
                Power::On => "guest: a state that is on was loaded into one that is off",
                Power::Off => "guest: a state that is off was loaded into one that is on",
                Power::Ended(_) => "guest: a state that has just ended was loaded",
            });
        }
    }
}
