//! Operators' inputs to the guest: orders about its power, and what they type. Each is answered once it is known what
//! has become of it (`plover_replica`, `leader/operators.rs`).

use super::{Body, BoxError};
use crate::control::Request;
use plover_replica::{Event, NotTaken, OperatorInput, Role, Ticket};
use plover_types::ReplicaId;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::mpsc::{Sender, channel};

/// Who waits for the answer to a request.
#[derive(Debug)]
pub(crate) enum Asker {
    /// A client of this host's control socket.
    Here(Sender<Value>),
    /// A client at this replica, with the number of its question.
    There(ReplicaId, u64),
    /// All who look at the console. They are told only of what is not taken.
    Console,
    /// The channel to the agent in the guest. It is told only that a request was not taken.
    Agent,
}

/// The inputs whose fate is open.
#[derive(Debug, Default)]
pub(super) struct Inputs {
    last: u64,
    open: BTreeMap<Ticket, Asker>,
}

impl Inputs {
    /// The number of those that are open, of askers that are like this.
    pub(super) fn open(&self, is_so: impl Fn(&Asker) -> bool) -> usize {
        self.open.values().filter(|asker| is_so(asker)).count()
    }
}

impl Body {
    /// Gives the guest an operator's input, by the log. Only a leader takes it.
    pub(super) fn give_input(
        &mut self,
        input: OperatorInput,
        asker: Asker,
    ) -> Result<(), BoxError> {
        if self.role != Role::Leader {
            let why = self.not_leading("does not lead");
            self.reply(asker, &json!({"error": why}));
            return Ok(());
        }
        let guest = PowerState {
            is_off: self.is_guest_off(),
            is_paused: self.is_guest_paused(),
            serves: self.replica.status().serving,
        };
        if let Some(why) = guest.why_not(&input) {
            self.reply(asker, &json!({"error": why}));
            return Ok(());
        }
        let given = &mut self.given;
        given.last += 1;
        let ticket = Ticket(given.last);
        given.open.insert(ticket, asker);
        self.apply(Event::Operator { ticket, input })
    }

    /// It is known what has become of an input.
    pub(super) fn input_answered(&mut self, ticket: Ticket, result: Result<(), NotTaken>) {
        let Some(asker) = self.given.open.remove(&ticket) else {
            return;
        };
        let answer = match result {
            Ok(()) => json!({"ok": true}),
            Err(why) => json!({"error": why.to_string()}),
        };
        self.reply(asker, &answer);
    }

    /// Answers a request with what `make` returns. It is called on a thread of its own, since it may wait for a disk.
    pub(super) fn answer_later(
        &mut self,
        asker: Asker,
        make: impl FnOnce() -> Value + Send + 'static,
    ) {
        let (requests, counts) = (self.control.handle(), self.answering.clone());
        let (give, given) = channel();
        let made = std::thread::Builder::new()
            .name("answer".into())
            .spawn(move || {
                let answer = make();
                if let Ok(asker) = given.recv() {
                    requests.send(Request::Answer { asker, answer });
                }
                drop(counts);
            });
        match made {
            Ok(_) => {
                // Fails only if the thread has panicked.
                let _ = give.send(asker);
            }
            Err(error) => {
                let why = format!("no thread can be made: {error}; raise TasksMax= of the service");
                self.reply(asker, &json!({"error": why}));
            }
        }
    }

    /// Answers a request.
    pub(super) fn reply(&mut self, asker: Asker, answer: &Value) {
        match asker {
            Asker::Here(reply) => {
                // A client that has gone wants no answer.
                let _ = reply.send(answer.clone());
            }
            Asker::There(to, id) => self.tell_answer(to, id, answer),
            Asker::Console => {
                if let Some(why) = answer["error"].as_str() {
                    self.show(format!("\r\n[{why}]\r\n").as_bytes());
                }
            }
            Asker::Agent => {
                if let Some(why) = answer["error"].as_str() {
                    self.agent_not_asked(why);
                }
            }
        }
    }
}

/// The state of the leader's guest that decides which orders it can be given.
#[derive(Clone, Copy, Debug)]
struct PowerState {
    is_off: bool,
    is_paused: bool,
    serves: bool,
}

impl PowerState {
    /// Why an order cannot be carried out, and what to do.
    fn why_not(self, input: &OperatorInput) -> Option<&'static str> {
        use OperatorInput::{Agent, Console, Pause, PowerButton, Reboot, Reset, Start, Unpause};
        match input {
            // The state of a guest that does not run yet is not known. Keys that are pressed wait for it.
            Console(_) if !self.serves => None,
            _ if !self.serves => Some(
                "the replica that leads does not serve yet: try again in a moment, and see `plover status`",
            ),
            Console(_) if self.is_off => {
                Some("the guest is off, and reads nothing: `plover start` switches it on")
            }
            Pause if self.is_paused => {
                Some("the guest is paused already: `plover unpause` lets it go on")
            }
            Unpause if !self.is_paused => {
                Some("no operator has paused the guest: there is nothing to unpause")
            }
            PowerButton | Reboot | Start | Agent(_) if self.is_paused => {
                Some("the guest is paused by an operator: run `plover unpause` first")
            }
            Start if !self.is_off => Some("the guest is not off: there is nothing to start"),
            PowerButton if self.is_off => Some("the guest is off: there is nothing to shut down"),
            Reboot | Reset | Pause | Agent(_) if self.is_off => {
                Some("the guest is off: `plover start` switches it on")
            }
            Console(_) | PowerButton | Start | Reboot | Reset | Pause | Unpause | Agent(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use OperatorInput::{Agent, Console, Pause, PowerButton, Reboot, Reset, Start, Unpause};

    #[test]
    fn an_order_that_cannot_be_carried_out_is_refused_with_advice() {
        let runs = PowerState {
            is_off: false,
            is_paused: false,
            serves: true,
        };
        let off = PowerState {
            is_off: true,
            ..runs
        };
        let paused = PowerState {
            is_paused: true,
            ..runs
        };
        for (state, taken, refused) in [
            (
                runs,
                vec![PowerButton, Reboot, Reset, Pause],
                vec![Start, Unpause],
            ),
            (
                off,
                vec![Start],
                vec![PowerButton, Reboot, Reset, Pause, Unpause],
            ),
            (
                paused,
                vec![Reset, Unpause],
                vec![PowerButton, Reboot, Start, Pause],
            ),
        ] {
            for input in taken {
                assert_eq!(state.why_not(&input), None, "{state:?} {input:?}");
            }
            for input in refused {
                assert!(state.why_not(&input).is_some(), "{state:?} {input:?}");
            }
        }
        let advice = paused.why_not(&Reboot);
        assert!(advice.is_some_and(|why| why.contains("`plover unpause`")));
        let starting = PowerState {
            serves: false,
            ..runs
        };
        assert!(starting.why_not(&Reset).is_some());
        let request = || Agent(vec![b'x']);
        assert_eq!(runs.why_not(&request()), None);
        for state in [off, paused, starting] {
            assert!(state.why_not(&request()).is_some(), "{state:?}");
        }
        let typed = || Console(vec![b'x']);
        assert_eq!(starting.why_not(&typed()), None, "it waits");
        assert_eq!(runs.why_not(&typed()), None);
        assert!(off.why_not(&typed()).is_some());
    }
}
