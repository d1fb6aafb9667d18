//! Orders, and QEMU's answers to them.

use super::{Phase, QemuVm};
use crate::{VmCommand, VmEvent};
use plover_agent::Order;
use rustix::fd::AsRawFd;
use serde_json::{Value, json};
use std::collections::VecDeque;

/// Why a QMP command was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Nothing waits for the answer; an error is reported as one of the named command.
    Quiet(&'static str),
    ListVcpus,
    Pause,
    Resume,
    Save,
    Load,
    Reset,
    /// To learn whether the main loop runs.
    Probe,
    /// To learn why the guest stopped without an order.
    WhyStopped,
}

/// Orders not yet carried out.
#[derive(Default)]
pub(super) struct Orders {
    queue: VecDeque<VmCommand>,
    /// Sent, not answered: at most a pause and one behind it.
    open: VecDeque<Purpose>,
    /// The two conditions for the end of a reset: it is answered, and the devices are reset.
    reset_answered: bool,
    reset_happened: bool,
    /// The guest powered off, reset or crashed, and that was reported.
    guest_ended: bool,
    /// `STOP` events that direct orders will still cause on QMP.
    stops_due: u32,
    paused_since_resume: bool,
}

impl Orders {
    pub(super) fn push(&mut self, command: VmCommand) {
        self.queue.push_back(command);
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
        self.open.clear();
    }

    /// An order was sent.
    pub(super) fn opened(&mut self, purpose: Purpose) {
        self.open.push_back(purpose);
    }

    /// An order was answered.
    pub(super) fn closed(&mut self, purpose: Purpose) {
        self.open.retain(|open| *open != purpose);
    }

    /// Whether `next` may be sent while `open` is unanswered. Orders on one socket do not overtake each
    /// other. A reset goes over QMP, and `direct` orders do not.
    fn may_send(&self, next: &VmCommand, direct: bool) -> bool {
        match self.open.iter().collect::<Vec<_>>()[..] {
            [] => true,
            [Purpose::Pause] => match next {
                VmCommand::SaveState => true,
                VmCommand::Reset => !direct,
                _ => false,
            },
            _ => false,
        }
    }
}

impl QemuVm {
    /// Sends the orders whose turn it is.
    pub(super) fn next_order(&mut self) {
        while self.phase == Phase::Ready {
            let (armed, direct) = (self.armed || self.direct, self.direct);
            let may = |next: &VmCommand| {
                self.orders.may_send(next, direct)
                    && (armed || !matches!(next, VmCommand::LoadState(_)))
            };
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
                self.nic.hold();
                self.console.hold();
                if self.direct {
                    self.orders.stops_due += 1;
                    self.orders.paused_since_resume = true;
                }
                self.order(Purpose::Pause, Order::Stop, "stop", Value::Null);
            }
            VmCommand::Resume => {
                // Before the guest runs, so that it need not wait until we hear that it runs. QEMU
                // takes one frame at most in between, and delivers that one, too.
                self.nic.release();
                self.console.release();
                self.orders.paused_since_resume = false;
                self.order(Purpose::Resume, Order::Cont, "cont", Value::Null);
            }
            VmCommand::Reset if !self.config.machine.needs_reset() => {
                self.events.push_back(VmEvent::ResetDone);
            }
            VmCommand::Reset => {
                self.orders.reset_answered = false;
                self.orders.reset_happened = false;
                self.open(Purpose::Reset, "system_reset", Value::Null);
            }
            VmCommand::SaveState => {
                // live: false, because a live save of a paused guest gives its disks away: QEMU aborts
                // at the next save.
                let arguments = json!({ "filename": self.state_file_name(), "live": false });
                let command = "xen-save-devices-state";
                self.order(Purpose::Save, Order::Save, command, arguments);
            }
            VmCommand::LoadState(state) => self.begin_load(state),
            VmCommand::Probe => {}
            VmCommand::PowerButton => {
                self.send(
                    Purpose::Quiet("power button"),
                    "system_powerdown",
                    Value::Null,
                );
            }
        }
    }

    /// The path of the state file inside QEMU, which inherited it under the number it has here.
    pub(super) fn state_file_name(&self) -> String {
        format!("/proc/self/fd/{}", self.state_file.fd().as_raw_fd())
    }

    fn open(&mut self, purpose: Purpose, execute: &str, arguments: Value) {
        self.orders.opened(purpose);
        self.send(purpose, execute, arguments);
    }

    /// Gives an order directly if possible, else as a QMP command.
    fn order(&mut self, purpose: Purpose, order: Order, execute: &str, arguments: Value) {
        if self.direct {
            self.orders.opened(purpose);
            let given = self.order_link.give(purpose, order);
            self.order_given(given);
        } else {
            self.open(purpose, execute, arguments);
        }
    }

    /// Ends QEMU if a direct order could not be given.
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
        if self.orders.open.front() == Some(&purpose) && purpose != Purpose::Reset {
            self.orders.open.pop_front();
        }
        match (purpose, result) {
            (Purpose::Quiet("qmp_capabilities") | Purpose::ListVcpus, Err(error)) => {
                self.give_up(&format!("QEMU did not start: {error}"));
            }
            (Purpose::Quiet(_), Ok(_)) => {}
            (Purpose::Quiet(command), Err(error)) => {
                self.failed(command, &error);
            }
            (Purpose::ListVcpus, Ok(list)) => self.vcpus_listed(&list),
            (Purpose::Pause, Ok(_)) => self.events.push_back(VmEvent::Paused),
            (Purpose::Pause, Err(error)) => self.failed("pause", &error),
            (Purpose::Resume, Ok(_)) => self.events.push_back(VmEvent::Resumed),
            (Purpose::Resume, Err(error)) => self.failed("resume", &error),
            (Purpose::Save, Ok(_)) => match self.state_file.read() {
                Ok(state) => self.events.push_back(VmEvent::StateSaved(state)),
                Err(error) => self.failed("save", &error.to_string()),
            },
            (Purpose::Save, Err(error)) => self.failed("save", &error),
            (Purpose::Load, result) => {
                self.load_ended();
                match result {
                    Ok(_) => self.events.push_back(VmEvent::StateLoaded),
                    Err(error) => self.failed("load", &error),
                }
            }
            (Purpose::Reset, Ok(_)) => {
                self.orders.reset_answered = true;
                self.reset_if_done();
            }
            (Purpose::Reset, Err(error)) => {
                self.orders.open.pop_front();
                self.failed("reset", &error);
            }
            // QEMU's monitor hands a command to the main loop; even an error comes from there.
            (Purpose::Probe, _) => self.events.push_back(VmEvent::Probed),
            (Purpose::WhyStopped, Ok(status)) => self.stopped_by_itself(&status),
            (Purpose::WhyStopped, Err(error)) => self.give_up(&error),
        }
        self.next_order();
    }

    fn reset_if_done(&mut self) {
        let orders = &mut self.orders;
        if orders.open.front() == Some(&Purpose::Reset)
            && orders.reset_answered
            && orders.reset_happened
        {
            orders.open.pop_front();
            self.events.push_back(VmEvent::ResetDone);
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
            "RESET" => self.events.push_back(VmEvent::GuestReset),
            "SHUTDOWN" if by_guest => self.guest_ended(),
            "GUEST_PANICKED" => self.guest_ended(),
            "RESUME" => {
                self.orders.guest_ended = false;
                // `STOP` events after this one belong to pauses that were ordered after it.
                self.orders.stops_due = self.orders.paused_since_resume.into();
            }
            "STOP" if self.orders.stops_due > 0 => self.orders.stops_due -= 1,
            // Without an order: the guest ended, or KVM failed. The status says which.
            "STOP" if !self.orders.open.contains(&Purpose::Pause) && !self.orders.guest_ended => {
                self.send(Purpose::WhyStopped, "query-status", Value::Null);
            }
            _ => {}
        }
    }

    fn guest_ended(&mut self) {
        if !self.orders.guest_ended {
            self.orders.guest_ended = true;
            self.events.push_back(VmEvent::GuestShutdown);
        }
    }

    /// The guest stopped without an order.
    fn stopped_by_itself(&mut self, status: &Value) {
        match status.get("status").and_then(Value::as_str) {
            Some("running" | "paused" | "prelaunch" | "restore-vm" | "save-vm") => {}
            Some("shutdown" | "guest-panicked") => self.guest_ended(),
            other => {
                let status = other.unwrap_or("unknown").to_owned();
                self.give_up(&format!("QEMU stopped the guest by itself: {status}"));
            }
        }
    }
}
