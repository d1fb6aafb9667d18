//! Orders, and QEMU's answers to them.

use super::power::{AfterReset, Power, monotonic};
use super::{Phase, QemuVm};
use crate::{AtEnd, GuestEnd, VmCommand, VmEvent};
use plover_agent::Order;
use plover_types::Micros;
use serde_json::{Value, json};
use std::collections::VecDeque;

/// Why a QMP command was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Nothing waits for the answer; an error is reported as one of the named command.
    Quiet(&'static str),
    ListVcpus,
    /// To learn the versioned name of the machine's type.
    MachineType,
    /// To learn which features the guest finds in its processor.
    Features,
    Pause,
    /// To learn what was written.
    Collect,
    Resume,
    Save,
    Load,
    Reset,
    /// The machine of a guest that has ended by itself.
    ResetEnded(AfterReset),
    /// A guest that was off, has ended or stood still runs again; the replica takes it to run already.
    Boot,
    /// The guest is to stand still for an operator; the replica takes it to run on.
    Stand,
    /// The guest is stopped for a hard reset; the replica takes it to run on.
    StopForReset,
    /// A step of giving this disk another size.
    Resize(usize, &'static str),
    /// The power button is pressed.
    Button,
    /// To give the display to a viewer.
    Viewer,
    /// To learn whether the main loop runs.
    Probe,
    /// To learn why the guest stopped without an order.
    WhyStopped,
}

impl Purpose {
    /// Whether it stops the vCPUs.
    fn stops(self) -> bool {
        matches!(self, Self::Pause | Self::Stand | Self::StopForReset)
    }
}

/// Orders not yet carried out, and what those that were carried out have left.
pub(super) struct Orders {
    queue: VecDeque<VmCommand>,
    /// Sent, not answered: at most two (see [`Self::may_send`]).
    open: VecDeque<Purpose>,
    /// The two conditions for the end of a reset: it is answered, and the devices are reset.
    reset_answered: bool,
    reset_happened: bool,
    /// Whether the machine has power.
    pub(super) power: Power,
    /// It boots again after its next power-off, because an operator has ordered a reboot.
    pub(super) reboots: bool,
    /// Since when it stands still for an operator, by `CLOCK_MONOTONIC`.
    pub(super) stands_since: Option<Micros>,
    /// The last order was to pause, or none was given yet.
    pub(super) is_paused: bool,
    /// All that was written so far is in the log that the agent hands over.
    pub(super) is_collected: bool,
    /// When it was last ordered to pause, by the same clock.
    pub(super) paused_at: Micros,
    /// `STOP` events that orders will still cause on QMP.
    pub(super) stops_due: u32,
}

impl Orders {
    /// Of a guest that stands at power-on.
    pub(super) fn new() -> Self {
        Self {
            queue: VecDeque::new(),
            open: VecDeque::new(),
            reset_answered: false,
            reset_happened: false,
            power: Power::On,
            reboots: false,
            stands_since: None,
            is_paused: true,
            is_collected: false,
            paused_at: Micros::ZERO,
            stops_due: 0,
        }
    }

    /// Whether no order is open.
    pub(super) fn is_free(&self) -> bool {
        self.open.is_empty()
    }

    /// Whether none is open or waits.
    pub(super) fn is_done(&self) -> bool {
        self.is_free() && self.queue.is_empty()
    }

    /// Whether such an order is unanswered.
    pub(super) fn is_open(&self, purpose: Purpose) -> bool {
        self.open.contains(&purpose)
    }

    pub(super) fn push(&mut self, command: VmCommand) {
        self.queue.push_back(command);
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
        self.open.clear();
    }

    /// An order was sent.
    pub(super) fn opened(&mut self, purpose: Purpose) {
        // Only to save a state writes nothing into the guest.
        self.is_collected &= purpose == Purpose::Save;
        self.open.push_back(purpose);
    }

    /// An order was answered.
    pub(super) fn closed(&mut self, purpose: Purpose) {
        self.open.retain(|open| *open != purpose);
    }

    /// Whether `next` may be sent while `open` is unanswered. Orders on one socket do not overtake each
    /// other, but a reset goes over QMP.
    fn may_send(&self, next: &VmCommand) -> bool {
        match self.open.iter().collect::<Vec<_>>()[..] {
            [] => true,
            [Purpose::Collect] => *next == VmCommand::Pause,
            [Purpose::Pause] => *next == VmCommand::SaveState,
            _ => false,
        }
    }
}

impl QemuVm {
    /// Sends the orders whose turn it is.
    pub(super) fn next_order(&mut self) {
        while self.phase == Phase::Ready {
            let may = |next: &VmCommand| self.orders.may_send(next);
            if !self.orders.queue.front().is_some_and(may) {
                break;
            }
            if let Some(next) = self.orders.queue.pop_front() {
                self.give_order(next);
            }
        }
    }

    fn give_order(&mut self, command: VmCommand) {
        match command {
            VmCommand::Pause => {
                self.orders.is_paused = true;
                self.orders.paused_at = monotonic();
                self.halt(Purpose::Pause);
            }
            VmCommand::Resume => {
                if !self.reset_ended(AfterReset::Resume) {
                    self.resume();
                }
            }
            VmCommand::Collect => self.order(Purpose::Collect, Order::Written),
            VmCommand::Start => self.start_guest(),
            VmCommand::Reset if !self.config.machine.needs_reset() => {
                self.events.push_back(VmEvent::ResetDone);
            }
            VmCommand::Reset => self.reset_machine(Purpose::Reset),
            VmCommand::SaveState => self.order(Purpose::Save, Order::Save),
            VmCommand::LoadState(state) => self.begin_load(state),
            VmCommand::Probe => {}
            VmCommand::PowerButton => self.press_button(false),
            VmCommand::Reboot => self.press_button(true),
            VmCommand::HardReset => self.hard_reset(),
            VmCommand::Stand => self.stand(),
            VmCommand::GoOn => self.go_on(),
        }
    }

    /// Lets a paused guest run. One that is off or stands still stays as it is.
    pub(super) fn resume(&mut self) {
        self.orders.is_paused = false;
        if self.orders.power == Power::Off || self.stands() {
            self.events.push_back(VmEvent::Resumed);
            return;
        }
        // Before the guest runs, so that it need not wait until we hear that it runs. QEMU takes one frame
        // at most in between, and delivers that one, too.
        self.release_inputs();
        self.order(Purpose::Resume, Order::Cont);
    }

    /// Puts the machine into its power-on state.
    pub(super) fn reset_machine(&mut self, purpose: Purpose) {
        self.orders.reset_answered = false;
        self.orders.reset_happened = false;
        // With `on_reboot = "destroy"` QEMU would end the guest at this reset, too. The guest stands meanwhile, so it
        // does not reboot by itself now.
        let ends = self.config.ends.on_reboot == AtEnd::Destroy;
        if ends {
            self.set_reboot_action("reset");
        }
        self.open(purpose, "system_reset", Value::Null);
        if ends {
            self.set_reboot_action("shutdown");
        }
    }

    fn set_reboot_action(&mut self, action: &str) {
        let arguments = json!({ "reboot": action });
        self.send(Purpose::Quiet("set-action"), "set-action", arguments);
    }

    pub(super) fn open(&mut self, purpose: Purpose, execute: &str, arguments: Value) {
        self.orders.opened(purpose);
        self.send(purpose, execute, arguments);
    }

    /// Gives an order past the monitor.
    pub(super) fn order(&mut self, purpose: Purpose, order: Order) {
        self.orders.opened(purpose);
        let given = self.order_link.give(purpose, order);
        self.order_given(given);
    }

    /// Ends QEMU if an order could not be given.
    pub(super) fn order_given(&mut self, given: std::io::Result<()>) {
        if let Err(error) = given {
            if !self.process_ending() {
                self.give_up(&format!("giving QEMU an order: {error}"));
            }
        }
    }

    /// An order failed: later ones are dropped. QEMU says only on its error output what is wrong with a
    /// state.
    pub(super) fn failed(&mut self, command: &str, error: &str) {
        self.orders.queue.clear();
        self.process.read_stderr();
        self.events.push_back(VmEvent::Failed {
            command: command.into(),
            error: format!("{error}{}", self.process.last_words()),
        });
    }

    /// QEMU answered a command.
    pub(super) fn answered(&mut self, purpose: Purpose, result: Result<Value, String>) {
        let resets = matches!(purpose, Purpose::Reset | Purpose::ResetEnded(_));
        if self.orders.open.front() == Some(&purpose) && !resets {
            self.orders.open.pop_front();
        }
        match (purpose, result) {
            (
                Purpose::Quiet("qmp_capabilities")
                | Purpose::ListVcpus
                | Purpose::MachineType
                | Purpose::Features,
                Err(error),
            ) => self.give_up(&format!("QEMU did not start: {error}")),
            (Purpose::Quiet(_) | Purpose::Viewer | Purpose::Button, Ok(_)) => {}
            (Purpose::Button, Err(error)) => self.failed("power button", &error),
            (Purpose::Viewer, Err(error)) => {
                tracing::warn!(
                    event = "viewer_refused",
                    "QEMU does not show the display to a viewer, and has closed its connection: {error}"
                );
            }
            (Purpose::Quiet(command), Err(error)) => {
                self.failed(command, &error);
            }
            (Purpose::ListVcpus, Ok(list)) => self.vcpus_listed(&list),
            (Purpose::MachineType, Ok(name)) => {
                self.made.machine_type = super::words::machine_type(&name);
            }
            (Purpose::Features, Ok(words)) => self.features_said(&words),
            (Purpose::Collect, Ok(_)) => {
                self.orders.is_collected = true;
                self.events.push_back(VmEvent::Collected);
            }
            (Purpose::Collect, Err(error)) => self.failed("collect", &error),
            (Purpose::Pause, Ok(_)) => {
                self.orders.is_collected = true;
                // One whose state is being saved already is reset when it is to go on.
                if !self.orders.is_free() || !self.reset_ended(AfterReset::Paused) {
                    self.events.push_back(VmEvent::Paused);
                }
            }
            (Purpose::StopForReset, Ok(_)) => self.end_for_reset(),
            (Purpose::Pause | Purpose::Stand | Purpose::StopForReset, Err(error)) => {
                self.failed("pause", &error);
            }
            (Purpose::Resume, Ok(_)) => self.events.push_back(VmEvent::Resumed),
            (Purpose::Resume | Purpose::Boot, Err(error)) => self.failed("resume", &error),
            (Purpose::Boot | Purpose::Stand, Ok(_)) => {}
            (Purpose::Resize(disk, step), result) => {
                return self.resize_step_ended(disk, step, result.err());
            }
            (Purpose::Save, Ok(_)) => match self.state_file.read() {
                Ok(mut state) => {
                    self.append_sizes(&mut state);
                    self.life().append_to(&mut state);
                    self.events.push_back(VmEvent::StateSaved(state));
                }
                Err(error) => self.failed("save", &error.to_string()),
            },
            (Purpose::Save, Err(error)) => self.failed("save", &error),
            (Purpose::Load, result) => {
                self.load_ended();
                match result {
                    Ok(_) => {
                        self.take_life();
                        self.events.push_back(VmEvent::StateLoaded);
                    }
                    Err(error) => self.failed("load", &error),
                }
            }
            (Purpose::Reset | Purpose::ResetEnded(_), Ok(_)) => {
                self.orders.reset_answered = true;
                self.reset_if_done();
            }
            (Purpose::Reset | Purpose::ResetEnded(_), Err(error)) => {
                self.orders.open.pop_front();
                self.failed("reset", &error);
            }
            // QEMU's monitor hands a command to the main loop; even an error comes from there.
            (Purpose::Probe, _) => self.events.push_back(VmEvent::Probed),
            (Purpose::WhyStopped, Ok(status)) => self.stopped_by_itself(&status),
            (Purpose::WhyStopped, Err(error)) => self.give_up(&error),
        }
        self.reset_if_ended();
        self.next_order();
    }

    fn reset_if_done(&mut self) {
        let orders = &mut self.orders;
        if !orders.reset_answered || !orders.reset_happened {
            return;
        }
        match orders.open.front() {
            Some(Purpose::Reset) => {
                orders.open.pop_front();
                self.events.push_back(VmEvent::ResetDone);
            }
            Some(Purpose::ResetEnded(after)) => {
                let after = *after;
                orders.open.pop_front();
                self.ended_is_reset(after);
            }
            _ => {}
        }
    }

    /// QEMU reported an event.
    pub(super) fn happened(&mut self, name: &str, data: &Value) {
        let by_guest = data.get("guest").and_then(Value::as_bool).unwrap_or(false);
        match name {
            "RESET" if !by_guest => {
                self.orders.reset_happened = true;
                self.reset_if_done();
                self.next_order();
            }
            "RESET" => {
                self.orders.reboots = false;
                self.events.push_back(VmEvent::GuestReset);
            }
            "SHUTDOWN" if by_guest => {
                let reason = data.get("reason").and_then(Value::as_str);
                self.guest_ended(match reason {
                    Some("guest-reset") => GuestEnd::Reboot,
                    _ => GuestEnd::PowerOff,
                });
            }
            "GUEST_PANICKED" => self.guest_ended(GuestEnd::Crash),
            "RESUME" => {
                // `STOP` events after this one belong to pauses that were ordered after it.
                self.orders.stops_due = self.orders.is_paused.into();
            }
            "STOP" if self.orders.stops_due > 0 => self.orders.stops_due -= 1,
            // Without an order: the guest ended, or KVM failed. The status says which.
            "STOP"
                if !self.orders.open.iter().any(|open| open.stops())
                    && self.orders.power == Power::On =>
            {
                self.send(Purpose::WhyStopped, "query-status", Value::Null);
            }
            _ => {}
        }
    }

    /// The guest stopped without an order.
    fn stopped_by_itself(&mut self, status: &Value) {
        match status.get("status").and_then(Value::as_str) {
            Some("running" | "paused" | "prelaunch" | "restore-vm" | "save-vm") => {}
            Some("shutdown") => self.guest_ended(GuestEnd::PowerOff),
            Some("guest-panicked") => self.guest_ended(GuestEnd::Crash),
            other => {
                let status = other.unwrap_or("unknown").to_owned();
                self.give_up(&format!("QEMU stopped the guest by itself: {status}"));
            }
        }
    }
}
