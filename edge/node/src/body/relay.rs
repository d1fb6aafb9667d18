//! Requests that are sent on to another replica, and those that come from one.

use super::inputs::Asker;
use super::{Body, BoxError};
use crate::clock;
use crate::control::{ConsoleOutput, Op};
use crate::relay::Relayed;
use plover_replica::{OperatorInput, Role};
use plover_types::{Lane, Micros, Payload, ReplicaId, ReplicaSet};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::mpsc::Sender;

/// A question that has waited this long is forgotten: whoever asked has given up long before.
const FORGOTTEN_AFTER: Micros = Micros::from_ms(30_000);

/// The most bytes of a console in one record.
const PRINTED_BYTES_MAX: usize = 16 << 10;

/// Consoles that operators on one other replica may look at: more are refused.
const CONSOLES_MAX: usize = 16;

/// Inputs of operators on one other replica whose fate may be open: more are refused.
const INPUTS_MAX: usize = 64;

/// The number of a question whose answer nobody waits for.
const UNANSWERED: u64 = 0;

/// A question to another replica.
#[derive(Debug)]
struct Question {
    to: ReplicaId,
    since: Micros,
    reply: Sender<Value>,
    /// Where to show the console, if it asks for one.
    output: Option<ConsoleOutput>,
}

/// Requests under way between this replica's operators and other replicas, and the other way round.
#[derive(Debug, Default)]
pub(super) struct Relay {
    last: u64,
    asked: BTreeMap<u64, Question>,
    /// Consoles of other replicas that operators of this host look at.
    theirs: BTreeMap<u64, (ReplicaId, ConsoleOutput)>,
    /// Consoles of this replica that operators of other hosts look at.
    ours: Vec<(ReplicaId, u64)>,
    /// Replicas that have said that they were told to end, and have not come back.
    stopped: ReplicaSet,
}

impl Relay {
    /// Whether this replica has said that it was told to end, and has not come back.
    pub(super) fn has_stopped(&self, peer: ReplicaId) -> bool {
        self.stopped.contains(peer)
    }

    /// Whether operators of other hosts look at this replica's console.
    pub(super) fn is_looked_at(&self) -> bool {
        !self.ours.is_empty()
    }

    /// A new link to it is up.
    pub(super) fn is_back(&mut self, peer: ReplicaId) {
        self.stopped.remove(peer);
    }
}

impl Body {
    /// Sends a request on to the leader, which answers it.
    pub(super) fn ask_leader(
        &mut self,
        op: &Op,
        output: Option<ConsoleOutput>,
        reply: Sender<Value>,
    ) {
        let status = self.replica.status();
        match status.leader.filter(|leader| *leader != status.id) {
            Some(leader) => self.ask(leader, op, output, reply),
            None => {
                let _ = reply.send(json!({"error": self.knows_no_leader()}));
            }
        }
    }

    pub(super) fn knows_no_leader(&self) -> String {
        format!(
            "replica {} does not lead and knows of no leader at present: try again in a moment, and see \
             `plover status`",
            self.config.group.me
        )
    }

    /// Sends a request to another replica.
    pub(super) fn ask(
        &mut self,
        to: ReplicaId,
        op: &Op,
        output: Option<ConsoleOutput>,
        reply: Sender<Value>,
    ) {
        let now = clock::now();
        let relay = &mut self.relay;
        relay
            .asked
            .retain(|_, asked| now.since(asked.since) < FORGOTTEN_AFTER);
        relay.last += 1;
        let id = relay.last;
        let question = match (op, &output) {
            (Op::Console, Some(_)) => Relayed::Attach { id },
            _ => match serde_json::to_string(op) {
                Ok(request) => Relayed::Ask { id, request },
                Err(error) => {
                    let _ = reply.send(json!({"error": error.to_string()}));
                    return;
                }
            },
        };
        if !self.tell(to, &question) {
            let why = match self.relay.has_stopped(to) {
                true => format!(
                    "replica {} has stopped, as it was told to: start its service when the work on its host is done",
                    to.0
                ),
                false => format!(
                    "replica {} is not linked with this one at present: look at its host and the network between",
                    to.0
                ),
            };
            let _ = reply.send(json!({"error": why}));
            return;
        }
        let asked = Question {
            to,
            since: now,
            reply,
            output,
        };
        self.relay.asked.insert(id, asked);
    }

    /// This replica was told to end, and tells the others. It waits for no answer.
    pub(super) fn tell_of_end(&mut self) {
        let request = json!(Op::Stops).to_string();
        let me = self.replica.status().id;
        for peer in self.replica.members().iter().filter(|id| *id != me) {
            let request = request.clone();
            self.tell(
                peer,
                &Relayed::Ask {
                    id: UNANSWERED,
                    request,
                },
            );
        }
    }

    /// An operator of this host has typed on a console.
    pub(super) fn typed(&mut self, bytes: Vec<u8>) -> Result<(), BoxError> {
        if self.role == Role::Leader {
            return self.give_input(OperatorInput::Console(bytes), Asker::Console);
        }
        // One whose console was closed has read why.
        let Some(leader) = self.relay.theirs.values().next().map(|(leader, _)| *leader) else {
            return Ok(());
        };
        if !self.tell(leader, &Relayed::Typed { bytes }) {
            let why = format!(
                "\r\n[replica {} leads and takes nothing from this one at present: what you typed last is lost; look at \
                 `plover status`]\r\n",
                leader.0
            );
            for (_, output) in self.relay.theirs.values() {
                output.show(why.as_bytes());
            }
        }
        Ok(())
    }

    /// Another replica says something for an operator.
    pub(super) fn on_relayed(&mut self, from: ReplicaId, said: Relayed) -> Result<(), BoxError> {
        match said {
            Relayed::Ask { id, request } => {
                let asker = Asker::There(from, id);
                let is_theirs = |asker: &Asker| matches!(asker, Asker::There(of, _) if *of == from);
                if self.given.open(is_theirs) >= INPUTS_MAX {
                    self.reply(asker, &json!({"error": too_many("requests")}));
                    return Ok(());
                }
                match serde_json::from_str::<Op>(&request) {
                    Ok(Op::Stops) => self.relay.stopped.insert(from),
                    Ok(op) if op.may_be_sent_on() => self.request(op, asker)?,
                    Ok(_) => {
                        let why = "this is a request for the replica's own host";
                        self.reply(asker, &json!({"error": why}));
                    }
                    Err(error) => {
                        let why = format!("not a request: {error}");
                        self.reply(asker, &json!({"error": why}));
                    }
                }
            }
            Relayed::Attach { id } => {
                let ours = &mut self.relay.ours;
                let answer = if self.role != Role::Leader {
                    json!({"error": self.not_leading("does not lead")})
                } else if ours.iter().filter(|(of, _)| *of == from).count() >= CONSOLES_MAX {
                    json!({"error": too_many("consoles")})
                } else {
                    ours.push((from, id));
                    json!({"ok": true})
                };
                self.tell_answer(from, id, &answer);
            }
            Relayed::Typed { .. }
                if self.given.open(|asker| matches!(asker, Asker::Console)) >= INPUTS_MAX =>
            {
                self.show(
                    b"\r\n[more is typed than the group takes: what was typed last is lost]\r\n",
                );
            }
            Relayed::Typed { bytes } if self.role == Role::Leader => {
                self.give_input(OperatorInput::Console(bytes), Asker::Console)?;
            }
            // Its console was closed when this replica lost the lead.
            Relayed::Typed { .. } => {}
            Relayed::Answer { id, answer } => self.on_answer(from, id, &answer),
            Relayed::Printed { id, bytes } => {
                let console = self.relay.theirs.get(&id);
                if console.is_none_or(|(_, output)| !output.show(&bytes)) {
                    self.relay.theirs.remove(&id);
                    self.tell(from, &Relayed::Closed { id });
                }
            }
            Relayed::Closed { id } => {
                self.relay
                    .theirs
                    .retain(|its, (of, _)| (*of, *its) != (from, id));
                self.relay.ours.retain(|console| *console != (from, id));
            }
        }
        Ok(())
    }

    fn on_answer(&mut self, from: ReplicaId, id: u64, answer: &str) {
        let is_asked = self
            .relay
            .asked
            .get(&id)
            .is_some_and(|asked| asked.to == from);
        let Some(asked) = is_asked.then(|| self.relay.asked.remove(&id)).flatten() else {
            return;
        };
        let answer = serde_json::from_str(answer).unwrap_or_else(|error| {
            json!({"error": format!("the answer of replica {} is not understood: {error}", from.0)})
        });
        if let (Some(output), None) = (asked.output, answer.get("error")) {
            self.relay.theirs.insert(id, (from, output));
        }
        let _ = asked.reply.send(answer);
        self.consoles_left();
    }

    /// Lets go of the consoles that operators of this host have closed.
    pub(super) fn consoles_left(&mut self) {
        self.console.retain(|console| !console.has_left());
        let left = self.relay.theirs.iter();
        let left = left.filter(|(_, (_, output))| output.has_left());
        let left: Vec<(u64, ReplicaId)> = left.map(|(id, (of, _))| (*id, *of)).collect();
        for (id, of) in left {
            self.relay.theirs.remove(&id);
            self.tell(of, &Relayed::Closed { id });
        }
    }

    /// Once a turn: closes the consoles of a replica that leads no more. One that hangs says nothing of it itself.
    pub(super) fn mind_consoles(&mut self) {
        if self.relay.theirs.is_empty() {
            return;
        }
        let Some(leader) = self.replica.status().leader else {
            return;
        };
        let why = format!(
            "\r\n[replica {} leads now: what you typed last may not have reached the guest]\r\n",
            leader.0
        );
        self.relay.theirs.retain(|_, (of, output)| {
            let leads = *of == leader;
            leads || {
                output.show(why.as_bytes());
                false
            }
        });
    }

    /// The guest's console output goes to the operators of other hosts as well.
    pub(super) fn show_elsewhere(&mut self, bytes: &[u8]) {
        for (to, id) in self.relay.ours.clone() {
            for part in bytes.chunks(PRINTED_BYTES_MAX) {
                let bytes = part.to_vec();
                self.tell(to, &Relayed::Printed { id, bytes });
            }
        }
    }

    /// This replica leads no more: the consoles that others look at are closed.
    pub(super) fn close_consoles_elsewhere(&mut self) {
        for (to, id) in std::mem::take(&mut self.relay.ours) {
            self.tell(to, &Relayed::Closed { id });
        }
    }

    /// A link is down: its questions have no answers, and its consoles nothing to show.
    pub(super) fn relay_lost(&mut self, peer: ReplicaId) {
        let relay = &mut self.relay;
        relay.theirs.retain(|_, (of, _)| *of != peer);
        relay.ours.retain(|(to, _)| *to != peer);
        let lost = |(_, asked): &(&u64, &mut Question)| asked.to == peer;
        let ids: Vec<u64> = relay
            .asked
            .iter_mut()
            .filter(lost)
            .map(|(id, _)| *id)
            .collect();
        for asked in ids.into_iter().filter_map(|id| relay.asked.remove(&id)) {
            let why = format!(
                "the link to replica {} broke before it answered: the request may have been carried out; see \
                 `plover status`",
                peer.0
            );
            let _ = asked.reply.send(json!({"error": why}));
        }
    }

    /// Answers another replica's question.
    pub(super) fn tell_answer(&mut self, to: ReplicaId, id: u64, answer: &Value) {
        let answer = answer.to_string();
        self.tell(to, &Relayed::Answer { id, answer });
    }

    fn tell(&mut self, to: ReplicaId, said: &Relayed) -> bool {
        self.write(to, Lane::Bulk, Payload::Relayed, &said.to_record())
    }
}

fn too_many(what: &str) -> String {
    format!(
        "too many {what} of this host are open at the replica that leads: end some, or run this on the leader's host"
    )
}
