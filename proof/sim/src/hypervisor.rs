//! The process around a guest, as the replica sees QEMU: orders that take their time.
//!
//! ```text
//!  orders ─▶ [Pause SaveState Resume …] one after the other, each after a random delay
//!  frames ─▶ [NIC queue] ─▶ guest, while it runs ─▶ [outputs] ─▶ the replica, a little later
//! ```
//!
//! Its guest may end by itself: then it stands until its machine is reset, and boots again or is off (`power`).
//! An operator may pause, reset and reboot it.
//!
//! It may die at any moment, or refuse an order. Some machine types load device state only onto
//! devices that were reset before (docs/decisions/0003). So a replica that gets the steps of a
//! syncvm in the wrong order loses its guest here, as it would with QEMU.

use self::power::AfterReset;
use crate::guest::{FakeGuest, GuestHabits, Power, TYPED_BYTES};
use crate::history::Histories;
use crate::rng::Rng;
use plover_replica::Event;
use plover_types::{Frame, MachineWords, Micros, Unconsumed};
use std::collections::VecDeque;

mod power;

/// Lines of the console that a guest reads at a step.
const LINES_PER_STEP: usize = 3;

/// An order that takes time.
#[derive(Clone, Debug)]
pub enum Order {
    /// Switch the machine on.
    Start,
    /// Stop the vCPUs.
    Pause,
    /// Let them run.
    Resume,
    /// Reset the devices.
    Reset,
    /// Serialise device state.
    Save,
    /// Load it.
    Load(Vec<u8>),
    /// Say that it is there.
    Probe,
    /// Reset the machine of a guest that has ended.
    ResetEnded(AfterReset),
}

/// An event of a hypervisor that comes due.
#[derive(Clone, Copy, Debug)]
pub enum Due {
    /// The order at the head is carried out.
    Order,
    /// The guest's next step, unless it was paused since.
    Step(u64),
    /// The guest's outputs reach the replica.
    Outputs,
    /// The replica learns that the guest has ended.
    Ended,
}

/// The properties of a seed's hypervisors.
#[derive(Clone, Copy, Debug)]
pub struct HypervisorHabits {
    /// The guest in it.
    pub guest: GuestHabits,
    /// How long switching on takes.
    pub start: (u64, u64),
    /// How long any other order takes.
    pub order: (u64, u64),
    /// Whether device state can only be loaded onto clean devices.
    pub needs_reset: bool,
    /// A known bug: it stops for good when its guest reboots.
    pub reboot_ends: bool,
}

/// A hypervisor with its guest.
#[derive(Debug)]
pub struct Hypervisor {
    habits: HypervisorHabits,
    rng: Rng,
    /// The guest.
    pub guest: FakeGuest,
    /// Frames fed and not consumed.
    nic: VecDeque<Frame>,
    /// Lines typed and not read.
    console: VecDeque<u8>,
    outputs: Vec<Frame>,
    /// Whether outputs are due, and wait until the replica is told something else.
    unheard: bool,
    orders: VecDeque<Order>,
    running_since: Option<Micros>,
    token: u64,
    cpu: Micros,
    dead: bool,
    /// Stopped together with its replica: events that come due wait here.
    frozen: Option<Vec<Due>>,
    due: Vec<(Micros, Due)>,
    /// The last order was to pause, or none was given yet.
    is_paused: bool,
    /// What has become of the guest's power, until the world counts it.
    happened: Vec<&'static str>,
}

impl Hypervisor {
    /// Switches one on; the first order, [`Order::Start`], is under way.
    pub fn start(habits: HypervisorHabits, mut rng: Rng, histories: &mut Histories) -> Self {
        let guest = FakeGuest::boot(habits.guest, rng.fork(0), histories);
        let mut hypervisor = Self {
            habits,
            rng,
            guest,
            nic: VecDeque::new(),
            console: VecDeque::new(),
            outputs: Vec::new(),
            unheard: false,
            orders: VecDeque::new(),
            running_since: None,
            token: 0,
            cpu: Micros::ZERO,
            dead: false,
            frozen: None,
            due: Vec::new(),
            is_paused: true,
            happened: Vec::new(),
        };
        hypervisor.order(Order::Start);
        hypervisor
    }

    /// The events planned since the last call, with their delays from now.
    pub fn take_due(&mut self) -> std::vec::Drain<'_, (Micros, Due)> {
        self.due.drain(..)
    }

    /// Whether the process is gone.
    pub fn is_dead(&self) -> bool {
        self.dead
    }

    /// The process is gone; its guest's memory is still mapped by the replica.
    pub fn die(&mut self, now: Micros) {
        self.stop(now);
        self.dead = true;
    }

    /// Takes an order.
    pub fn order(&mut self, order: Order) {
        if self.dead {
            return;
        }
        self.orders.push_back(order);
        if self.orders.len() == 1 {
            self.begin_order();
        }
    }

    fn begin_order(&mut self) {
        if let Some(order) = self.orders.front() {
            let span = match order {
                Order::Start => self.habits.start,
                _ => self.habits.order,
            };
            let span = self.rng.micros(span);
            self.due.push((span, Due::Order));
        }
    }

    /// Puts frames into the NIC's queue.
    pub fn feed(&mut self, now: Micros, frames: Vec<Frame>) {
        self.nic.extend(frames);
        self.bound_queue();
        self.let_time_pass(now);
        self.plan_step();
    }

    /// Lines are typed on the console.
    pub fn type_on(&mut self, now: Micros, bytes: &[u8]) {
        self.console.extend(bytes);
        self.let_time_pass(now);
        self.plan_step();
    }

    /// CPU time used, if everything fed was consumed. A guest that stands still consumes no more.
    pub fn sample(&mut self, now: Micros) -> Option<Micros> {
        self.let_time_pass(now);
        let consumed = self.nic.is_empty() && self.console.is_empty();
        (consumed || self.guest.stands()).then_some(self.cpu)
    }

    /// Whether the vCPUs run.
    pub fn is_running(&self) -> bool {
        self.running_since.is_some()
    }

    /// The replica and its hypervisor are stopped together (a host that stands still).
    pub fn freeze(&mut self, now: Micros) {
        self.let_time_pass(now);
        self.frozen.get_or_insert_with(Vec::new);
    }

    /// Whether it stands still.
    pub fn is_frozen(&self) -> bool {
        self.frozen.is_some()
    }

    /// The replica and its hypervisor go on.
    pub fn thaw(&mut self, now: Micros) {
        if let Some(missed) = self.frozen.take() {
            self.due
                .extend(missed.into_iter().map(|due| (Micros::ZERO, due)));
            if self.running_since.is_some() {
                self.running_since = Some(now);
                self.plan_step();
            }
        }
    }

    /// The outputs that the replica did not want to hear of at once, if there are any.
    pub fn take_unheard(&mut self) -> Option<Event> {
        std::mem::take(&mut self.unheard)
            .then(|| self.sent())
            .flatten()
    }

    /// The replica wants to hear of outputs at once from now on.
    pub fn hear_outputs(&mut self) {
        if std::mem::take(&mut self.unheard) {
            self.due.push((Micros::ZERO, Due::Outputs));
        }
    }

    fn sent(&mut self) -> Option<Event> {
        let frames = std::mem::take(&mut self.outputs);
        (!frames.is_empty()).then_some(Event::Outputs(frames))
    }

    /// An event comes due. Returns the event for the replica, if there is one. `hears` says whether the
    /// replica wants to hear of outputs at once.
    pub fn on_due(
        &mut self,
        now: Micros,
        due: Due,
        hears: bool,
        histories: &mut Histories,
    ) -> Option<Event> {
        if self.dead {
            return None;
        }
        if let Some(missed) = &mut self.frozen {
            missed.push(due);
            return None;
        }
        match due {
            Due::Order => self.carry_out(now, histories),
            Due::Step(token) => {
                if token == self.token && self.running_since.is_some() {
                    self.step(now, histories);
                }
                None
            }
            Due::Outputs if hears => self.sent(),
            Due::Outputs => {
                self.unheard = true;
                None
            }
            Due::Ended if self.habits.reboot_ends && self.guest.power() == Power::On => {
                Some(self.refuse("to go on after a reboot"))
            }
            Due::Ended => Some(Event::SyncDue),
        }
    }

    fn carry_out(&mut self, now: Micros, histories: &mut Histories) -> Option<Event> {
        let event = match self.orders.pop_front()? {
            Order::Start => Some(Event::GuestStarted(MachineWords::default())),
            Order::Probe => Some(Event::Probed),
            Order::Pause => {
                self.stop(now);
                self.is_paused = true;
                // One whose state is saved before its machine is reset is reset when it is to go on.
                if self.has_ended() && self.rng.chance(0.5) {
                    self.orders
                        .push_front(Order::ResetEnded(AfterReset::Paused));
                    None
                } else {
                    Some(self.paused())
                }
            }
            Order::Resume if self.has_ended() => {
                self.orders
                    .push_front(Order::ResetEnded(AfterReset::Resume));
                None
            }
            Order::Resume => Some(self.resumed(now)),
            Order::ResetEnded(after) => self.ended_is_reset(now, after, histories),
            Order::Reset => {
                self.guest.reset();
                Some(Event::GuestResetDone)
            }
            Order::Save => Some(Event::StateSaved(self.guest.save_devices())),
            Order::Load(bytes) => Some(self.load(&bytes)),
        };
        self.begin_order();
        self.reset_if_ended();
        event
    }

    fn load(&mut self, bytes: &[u8]) -> Event {
        if self.habits.needs_reset && !self.guest.devices_clean {
            return self.refuse("state loaded onto devices that have run");
        }
        let (before, stood) = (self.guest.power(), self.guest.stands());
        if self.running_since.is_some() || !self.guest.load_devices(bytes) {
            return self.refuse("no state, or a guest that runs");
        }
        self.guest.devices_clean = false;
        self.count_load(before, stood);
        Event::StateLoaded
    }

    fn paused(&mut self) -> Event {
        Event::GuestPaused {
            outputs: std::mem::take(&mut self.outputs),
            unconsumed: Unconsumed {
                frames: self.nic.drain(..).collect(),
                typed: self.console.drain(..).collect(),
            },
        }
    }

    /// Lets a paused guest run. One that is off or stands still stays as it is.
    fn resumed(&mut self, now: Micros) -> Event {
        self.is_paused = false;
        if self.guest.power() == Power::On && !self.guest.stands() {
            self.run(now);
        }
        Event::GuestResumed
    }

    fn run(&mut self, now: Micros) {
        self.running_since = Some(now);
        self.guest.devices_clean = false;
        self.plan_step();
    }

    fn refuse(&mut self, why: &str) -> Event {
        self.dead = true;
        Event::GuestDied(format!("refused: {why}"))
    }

    fn stop(&mut self, now: Micros) {
        self.let_time_pass(now);
        self.running_since = None;
        self.token += 1;
    }

    fn let_time_pass(&mut self, now: Micros) {
        if self.frozen.is_some() {
            return;
        }
        if let Some(since) = &mut self.running_since {
            self.cpu = self.cpu + self.guest.run_for(now.since(*since));
            *since = now;
        }
    }

    fn plan_step(&mut self) {
        if self.running_since.is_none() || self.frozen.is_some() || self.dead {
            return;
        }
        if self.guest.is_free() {
            if let Some(frame) = self.nic.pop_front() {
                self.guest.take(frame);
            }
        }
        self.token += 1;
        self.due
            .push((self.guest.next_step_in(), Due::Step(self.token)));
    }

    fn step(&mut self, now: Micros, histories: &mut Histories) {
        self.let_time_pass(now);
        // Some lines at a step, as an interrupt handler empties the UART's queue.
        for _ in 0..LINES_PER_STEP.min(self.console.len() / TYPED_BYTES) {
            let line: Vec<u8> = self.console.drain(..TYPED_BYTES).collect();
            self.guest.hear(&line, histories);
        }
        let sent = self.guest.step(histories);
        if !sent.is_empty() {
            self.outputs.extend(sent);
            let span = self.rng.micros((5, 300));
            self.due.push((span, Due::Outputs));
        }
        if let Some(how) = self.guest.take_end() {
            self.guest_ended(now, how, histories);
        }
        self.plan_step();
    }
}
