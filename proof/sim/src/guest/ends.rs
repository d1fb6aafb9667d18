//! Guests that end by themselves: they reboot, power off or crash.
//!
//! A reset forgets everything but the disks. A guest with disks goes on from the history that its blocks name,
//! so what it had not flushed is lost. A guest without disks has nothing to go on from; its history goes on, to
//! keep the checks of what clients have seen. All connections are gone: a frame of an old one is answered by
//! an RST.

use super::{Devices, FakeGuest, RESET_PAGES};
use crate::history::{Histories, Step};
use crate::rng::{Rng, mix};
use plover_types::Frame;
use serde::{Deserialize, Serialize};

/// How a guest ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestEnd {
    /// It reboots.
    Reboot,
    /// It powers off.
    PowerOff,
    /// Its kernel crashes and says so.
    Crash,
}

impl GuestEnd {
    /// One at random.
    pub fn draw(rng: &mut Rng) -> Self {
        rng.pick(&[Self::Reboot, Self::Reboot, Self::PowerOff, Self::Crash])
    }
}

/// What becomes of a guest that has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AtEnd {
    /// It boots again.
    #[default]
    Restart,
    /// It is off until an operator starts it.
    Destroy,
}

/// Whether the machine has power. It is a part of the state (docs/decisions/0038).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Power {
    /// It runs when it is let.
    #[default]
    On,
    /// The guest has ended, and the machine is not reset yet.
    Ended(AtEnd),
    /// It is off.
    Off,
}

/// The machine's power, and what an operator has ordered of it. It takes one byte of a state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "u8", from = "u8")]
pub struct Life {
    /// Whether the machine has power.
    pub power: Power,
    /// It stands still.
    pub stands: bool,
    /// It boots again after its next power-off.
    pub reboots: bool,
}

impl Life {
    const POWERS: [Power; 4] = [
        Power::On,
        Power::Ended(AtEnd::Restart),
        Power::Ended(AtEnd::Destroy),
        Power::Off,
    ];
}

impl From<Life> for u8 {
    fn from(life: Life) -> Self {
        let place = Life::POWERS.iter().position(|power| *power == life.power);
        place.unwrap_or_default() as Self
            | (Self::from(life.stands) << 2)
            | (Self::from(life.reboots) << 3)
    }
}

impl From<u8> for Life {
    fn from(byte: u8) -> Self {
        Self {
            power: Self::POWERS[usize::from(byte & 3)],
            stands: byte & 4 != 0,
            reboots: byte & 8 != 0,
        }
    }
}

/// How often a guest ends, and what becomes of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ends {
    /// `guest.on_reboot`, `on_poweroff` and `on_crash`.
    pub after: [AtEnd; 3],
    /// The probability at each timer tick. The two guests of a pair end apart from each other.
    pub at_tick: f64,
    /// One of so many inputs ends it, on both sides alike; none if zero.
    pub at_input: u64,
    /// How often a step that no client hears of is not flushed to the disks.
    pub unflushed: f64,
    /// How long it boots.
    pub boot: (u64, u64),
}

impl Ends {
    /// The habits of a seed's guests.
    pub fn draw(rng: &mut Rng) -> Self {
        let after = [(); 3].map(|()| rng.pick(&[AtEnd::Restart, AtEnd::Destroy]));
        Self {
            after,
            at_tick: rng.pick(&[0.0, 0.002, 0.01]),
            at_input: rng.pick(&[0, 100, 400]),
            unflushed: rng.pick(&[0.0, 0.5]),
            boot: rng.pick(&[(1_000, 20_000), (20_000, 300_000)]),
        }
    }

    /// What becomes of a guest that has ended so.
    pub fn after(&self, how: GuestEnd) -> AtEnd {
        self.after[how as usize]
    }
}

impl FakeGuest {
    /// How it has ended in its last step, if it has.
    pub fn take_end(&mut self) -> Option<GuestEnd> {
        self.ended.take()
    }

    /// It ends with its next step.
    pub fn end_soon(&mut self, how: GuestEnd) {
        self.ends_next = Some(how);
    }

    /// It ends by itself no more.
    pub fn live_on(&mut self) {
        self.habits.ends = Ends {
            at_tick: 0.0,
            at_input: 0,
            ..self.habits.ends
        };
        self.ends_next = None;
    }

    /// What becomes of it if it ends so.
    pub fn after(&self, how: GuestEnd) -> AtEnd {
        self.habits.ends.after(how)
    }

    /// Whether its machine has power.
    pub fn power(&self) -> Power {
        self.devices.life.power
    }

    /// Its machine is switched on or off.
    pub fn set_power(&mut self, power: Power) {
        self.devices.life.power = power;
    }

    /// Whether it stands still for an operator.
    pub fn stands(&self) -> bool {
        self.devices.life.stands
    }

    /// An operator lets it stand still, or go on.
    pub fn set_stands(&mut self, stands: bool) {
        self.devices.life.stands = stands;
    }

    /// An operator lets it boot again after its next power-off, or takes that back.
    pub fn set_reboots(&mut self, reboots: bool) {
        self.devices.life.reboots = reboots;
    }

    /// Whether an operator has ordered that it boots again; the order is carried out.
    pub fn take_reboots(&mut self) -> bool {
        std::mem::take(&mut self.devices.life.reboots)
    }

    /// Whether a timer tick ends it.
    pub(super) fn ends_at_a_tick(&mut self) -> bool {
        let chance = self.habits.ends.at_tick;
        if chance > 0.0 && self.rng.chance(chance) {
            self.ended = Some(GuestEnd::draw(&mut self.rng));
        }
        self.ended.is_some()
    }

    /// Whether this input ends it.
    pub(super) fn ends_at(&mut self, input: u64) -> bool {
        let every = self.habits.ends.at_input;
        if every > 0 && mix(input, 3) % every == 0 {
            self.ended = Some(GuestEnd::draw(&mut Rng::new(mix(input, 4))));
        }
        self.ended.is_some()
    }

    /// Whether a step that no client hears of reaches the disks.
    pub(super) fn is_flushed(&mut self) -> bool {
        let unflushed = self.habits.ends.unflushed;
        unflushed == 0.0 || !self.rng.chance(unflushed)
    }

    /// Its machine is reset, and it boots from its disks.
    pub fn restart(&mut self, histories: &mut Histories) {
        let blocks = self.disk_blocks();
        let from = blocks.first().map_or(self.devices.history, |first| first.1);
        let whole = blocks.iter().all(|block| block.1 == from) && histories.find(from).is_some();
        self.torn |= !whole || self.memory[0] != self.devices.history;
        if self.torn {
            return;
        }
        let races = self.rng.chance(self.habits.noise);
        let noise = if races { self.rng.word() } else { 0 };
        let history = histories.step(from, Step::Reset, noise);
        let boot = self.rng.micros(self.habits.ends.boot);
        let mut streams = std::mem::take(&mut self.devices.streams);
        for stream in streams.values_mut() {
            stream.is_open = false;
        }
        self.devices = Devices {
            history,
            ticks: self.devices.ticks,
            tick_left: boot + self.rng.micros(self.habits.tick),
            // Booting is work on no frame.
            work: Some((Frame(Vec::new()), boot)),
            registers: self.rng.word(),
            streams,
            flushed: self.devices.flushed,
            told: None,
            life: self.devices.life,
            queues: Vec::new(),
        };
        self.devices_clean = true;
        self.write(0, history);
        for page in RESET_PAGES {
            let value = self.rng.word();
            self.write(page, value);
        }
        for page in 3..self.habits.ram_pages() {
            // Free pages, the kernel's code, and the rest.
            let value = match page % 4 {
                0 => 0,
                1 => mix(5, page.into()),
                2 => mix(history, page.into()),
                _ => self.rng.word(),
            };
            self.write(page, value);
        }
    }
}
