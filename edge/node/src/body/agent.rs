//! The channel to the agent in the guest (`guest_agent.rs`), as far as it meets the rest of the loop.
//!
//! Requests are inputs by the log, so both guests get them. The answers of the leader's guest count, and they are held as
//! console output is: an operator who reads that file systems are frozen finds them frozen after a failover as well.

use super::inputs::Asker;
use super::printed::Printed;
use super::{Body, BoxError};
use crate::clock;
use crate::guest_agent::{GuestAgent, GuestOrder, Step};
use plover_replica::{ConsoleHold, Event, OperatorInput, Role};
use plover_types::Micros;
use serde_json::json;

/// This replica's end of the channel.
#[derive(Debug)]
pub(super) struct AgentLine {
    requests: GuestAgent<Asker>,
    /// Output of the agent that nobody has read.
    said: Printed,
    /// Whether this replica leads and serves, as of the last turn.
    leads: bool,
}

impl AgentLine {
    /// A line of the process with this number.
    pub(super) fn new(number: u64) -> Self {
        Self {
            requests: GuestAgent::new(number),
            said: Printed::default(),
            leads: false,
        }
    }

    /// When [`Body::mind_agent`] is due.
    pub(super) fn due(&self) -> Micros {
        match self.leads {
            true => self.requests.due(),
            false => Micros::NEVER,
        }
    }

    /// The state that has said it is gone.
    pub(super) fn forget_said(&mut self) {
        self.said.forget();
    }
}

impl Body {
    /// An operator's request to the agent in the guest.
    pub(super) fn ask_agent(&mut self, order: GuestOrder, asker: Asker) -> Result<(), BoxError> {
        let why = if !self.config.guest.agent {
            "this guest has no channel to an agent: set guest.agent = true on all hosts, shut the guest down, stop the services of \
             all hosts, and then start them"
                .into()
        } else if self.role != Role::Leader {
            self.not_leading("does not lead")
        } else {
            match self.agent.requests.ask(clock::now(), order, asker) {
                Ok(()) => return self.step_agent(),
                Err((asker, why)) => {
                    self.reply(asker, &json!({"error": why}));
                    return Ok(());
                }
            }
        };
        self.reply(asker, &json!({"error": why}));
        Ok(())
    }

    /// Once a turn: follows this replica's role, and does what is due.
    pub(super) fn mind_agent(&mut self) -> Result<(), BoxError> {
        if !self.config.guest.agent {
            return Ok(());
        }
        let leads = self.role == Role::Leader && self.facing;
        if leads != self.agent.leads {
            self.agent.leads = leads;
            if leads {
                self.agent.requests.took_over(clock::now());
            } else if let Some(asker) = self.agent.requests.leave() {
                let why = self.not_leading("leads no more");
                let why = format!(
                    "{why}: the guest's agent may have carried this out or not; the next leader thaws the guest's file systems"
                );
                self.reply(asker, &json!({"error": why}));
            }
        }
        match leads {
            true => self.step_agent(),
            false => Ok(()),
        }
    }

    fn step_agent(&mut self) -> Result<(), BoxError> {
        if self.agent.requests.is_overdue(clock::now()) {
            // A leader alone has no pauses. An agent that comes up later must not carry out a request that was given up.
            self.drop_unread_of_agent();
        }
        while let Some(step) = self.agent.requests.step(clock::now()) {
            match step {
                Step::Send(bytes) => self.give_input(OperatorInput::Agent(bytes), Asker::Agent)?,
                other => self.told_by_agent(Some(other)),
            }
        }
        Ok(())
    }

    fn told_by_agent(&mut self, step: Option<Step<Asker>>) {
        match step {
            Some(Step::Answer(asker, Ok(value))) => {
                self.reply(asker, &json!({"ok": true, "return": value}));
            }
            Some(Step::Answer(asker, Err(why))) => self.reply(asker, &json!({"error": why})),
            Some(Step::Warn(why)) => tracing::warn!(
                event = "guest_not_thawed",
                "the guest's file systems may be frozen, and are not thawed yet: {why}; this is tried again, and \
                 `plover guest fsthaw` tries it at once"
            ),
            Some(Step::Send(_)) | None => {}
        }
    }

    /// A request was not taken into the log.
    pub(super) fn agent_not_asked(&mut self, why: &str) {
        let step = self.agent.requests.fail(clock::now(), why.into());
        self.told_by_agent(step);
    }

    /// Reads what the agent of this replica's guest has said.
    pub(super) fn read_agent(&mut self) -> Result<(), BoxError> {
        let mut said = Vec::new();
        if let Some(vm) = &mut self.vm {
            vm.agent_read(&mut said);
        }
        // It says nothing of use unasked, and on a secondary nobody asks.
        if said.is_empty() || !self.agent.requests.is_waiting() {
            return Ok(());
        }
        self.agent.said.hold(&said);
        self.apply(Event::Printed)
    }

    /// This is what the agent has said, and it is safe.
    pub(super) fn agent_heard(&mut self, said: &[u8]) {
        let step = match said.is_empty() {
            true => None,
            false => self.agent.requests.heard(clock::now(), said),
        };
        self.told_by_agent(step);
    }

    /// All that the agent has said is safe.
    pub(super) fn agent_heard_all(&mut self) {
        let said = self.agent.said.take_all();
        self.agent_heard(&said);
    }

    /// The guest stands, or its answer is waited for no longer: what it has not read of a request is dropped.
    pub(super) fn drop_unread_of_agent(&mut self) {
        if let Some(vm) = &mut self.vm {
            let unread = vm.agent_take_unread();
            self.agent.requests.unread(&unread);
        }
    }

    /// As console output is held.
    pub(super) fn hold_agent(&mut self, hold: ConsoleHold) {
        match hold {
            ConsoleHold::Cut(sync) => self.agent.said.cut(sync),
            ConsoleHold::Reopen => self.agent.said.reopen(),
            ConsoleHold::Show(sync) => {
                let said = self.agent.said.synced(sync);
                self.agent_heard(&said);
            }
            ConsoleHold::Forget => self.agent.said.forget(),
        }
    }
}
