//! Requests to the agent in the guest (QEMU's guest agent), one at a time, and the promise that no guest stays frozen.
//!
//! ```text
//!   request ──▶ 0xFF {"execute":"guest-sync-delimited","arguments":{"id":N}} {"execute":…}   an input, by the log
//!   agent   ──▶ … 0xFF {"return":N} {"return":…}                             held like console output until it is safe
//! ```
//!
//! The byte 0xFF is in no JSON text. To the agent it means that all before it is void, and the agent sends one before its
//! answer to the first command. The number is another one for each attempt, so the answer to an earlier request is never
//! taken for the answer to this one.
//!
//! | what happens | consequence |
//! |---|---|
//! | the guest is paused for a sync before it has read all of a request | the rest is dropped on both sides, and the leader sends the request again |
//! | no agent runs, or it hangs | the request fails after [`ANSWER_WITHIN`] |
//! | file systems are frozen | they are thawed when the time runs out that the request has named, whoever is gone by then |
//! | a freeze is not answered in time | it may be carried out later: a thaw follows it at once |
//! | a thaw is not answered, or fails | it is tried again, ever more rarely, until the agent answers |
//! | another replica leads | its first request is a thaw |

use plover_types::Micros;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// How long an answer is waited for. A freeze writes everything that the guest's page cache has.
pub(crate) const ANSWER_WITHIN: Micros = Micros::from_ms(20_000);

/// A request that was not read is sent again this long after it was sent: a few slots.
const AGAIN_AFTER: Micros = Micros::from_ms(200);

/// A thaw that has failed is tried again after this time, and after twice as long each further time.
const THAW_AGAIN: Micros = Micros::from_ms(10_000);
const THAW_AGAIN_MAX: Micros = Micros::from_ms(600_000);

/// The longest time for which file systems may be frozen.
const FROZEN_S_MAX: u64 = 600;

/// The longest answer. More than a request for a small file or a program's output needs.
const ANSWER_BYTES_MAX: usize = 256 << 10;

/// The byte that separates what is void from what counts.
const DELIMITER: u8 = 0xff;

/// A request of an operator to the agent in the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum GuestOrder {
    /// Answer.
    Ping,
    /// Freeze all file systems, for so many seconds at most. The answer is how many.
    Freeze { for_s: u64 },
    /// Thaw them. The answer is how many were frozen.
    Thaw,
    /// Begin a program. The answer has its `pid`.
    Exec { path: String, args: Vec<String> },
    /// The state of a program that was begun.
    ExecStatus { pid: i64 },
}

impl GuestOrder {
    /// The command, as the agent knows it.
    fn command(&self) -> Value {
        match self {
            Self::Ping => json!({"execute": "guest-ping"}),
            Self::Freeze { .. } => json!({"execute": "guest-fsfreeze-freeze"}),
            Self::Thaw => json!({"execute": "guest-fsfreeze-thaw"}),
            Self::Exec { path, args } => json!({
                "execute": "guest-exec",
                "arguments": {"path": path, "arg": args, "capture-output": true},
            }),
            Self::ExecStatus { pid } => {
                json!({"execute": "guest-exec-status", "arguments": {"pid": pid}})
            }
        }
    }
}

/// The next action of the replica.
#[derive(Debug, PartialEq)]
pub(crate) enum Step<A> {
    /// Give the guest these bytes.
    Send(Vec<u8>),
    /// Answer a request: with what the agent has returned, or with the reason why there is no answer.
    Answer(A, Result<Value, String>),
    /// Tell the log that file systems may be frozen still, and why.
    Warn(String),
}

/// The request that is not answered yet.
#[derive(Debug)]
struct Open<A> {
    order: GuestOrder,
    /// `None` for a thaw that nobody has asked for.
    asker: Option<A>,
    deadline: Micros,
    /// The number of the last attempt.
    id: u64,
    sent_at: Micros,
    /// The guest has not read all of the last attempt, and gets no more of it.
    unread: bool,
    heard: Vec<u8>,
}

/// File systems that are to be thawed.
#[derive(Clone, Copy, Debug)]
struct Thaw {
    at: Micros,
    /// How long after a failure it is tried again.
    again: Micros,
    /// Whether the file systems were frozen by a request of this leader's. If not, nobody may have frozen them.
    is_known: bool,
}

/// The channel to the agent. `A` stands for the one who waits for an answer.
#[derive(Debug)]
pub(crate) struct GuestAgent<A> {
    last_id: u64,
    open: Option<Open<A>>,
    thaw: Option<Thaw>,
}

impl<A> GuestAgent<A> {
    /// A channel whose numbers begin after `number`, which other processes do not use.
    pub fn new(number: u64) -> Self {
        Self {
            // The agent knows integers of 63 bits.
            last_id: number >> 2,
            open: None,
            thaw: None,
        }
    }

    /// An operator's request. It is sent by the next [`Self::step`], or refused.
    pub fn ask(&mut self, now: Micros, order: GuestOrder, asker: A) -> Result<(), (A, String)> {
        let why = self.why_not(now, &order);
        match why {
            Some(why) => Err((asker, why)),
            None => {
                self.begin(now, order, Some(asker));
                Ok(())
            }
        }
    }

    fn why_not(&self, now: Micros, order: &GuestOrder) -> Option<String> {
        if self.open.is_some() {
            return Some(
                "the guest's agent has not answered another request yet: try again in a moment"
                    .into(),
            );
        }
        let GuestOrder::Freeze { for_s } = order else {
            return None;
        };
        if !(1..=FROZEN_S_MAX).contains(for_s) {
            return Some(format!(
                "the guest's file systems can be frozen for 1 to {FROZEN_S_MAX} s, and not for {for_s} s"
            ));
        }
        let frozen = self.thaw.filter(|thaw| thaw.is_known)?;
        Some(format!(
            "the guest's file systems are frozen already, for {} s more at most: `plover guest fsthaw` thaws them",
            frozen.at.since(now).0.div_ceil(1_000_000)
        ))
    }

    fn begin(&mut self, now: Micros, order: GuestOrder, asker: Option<A>) {
        self.open = Some(Open {
            order,
            asker,
            deadline: now + ANSWER_WITHIN,
            id: 0,
            sent_at: Micros::ZERO,
            // As if an attempt had been in vain: the next step sends it.
            unread: true,
            heard: Vec::new(),
        });
    }

    /// Whether an answer is waited for.
    pub fn is_waiting(&self) -> bool {
        self.open.is_some()
    }

    /// Whether an answer is waited for no longer.
    pub fn is_overdue(&self, now: Micros) -> bool {
        self.open.as_ref().is_some_and(|open| now >= open.deadline)
    }

    /// This replica leads from now on: the leader before it may have had file systems frozen.
    pub fn took_over(&mut self, now: Micros) {
        self.thaw = Some(Thaw {
            at: now,
            again: THAW_AGAIN,
            is_known: false,
        });
    }

    /// This replica leads no more. Returns the one whose request has no answer.
    pub fn leave(&mut self) -> Option<A> {
        self.thaw = None;
        self.open.take()?.asker
    }

    /// The guest stands, and has not read these bytes: it gets no more of them.
    pub fn unread(&mut self, bytes: &[u8]) {
        // With the last brace the agent has the whole request.
        let is_part = bytes.iter().any(|byte| !byte.is_ascii_whitespace());
        if let Some(open) = self.open.as_mut().filter(|_| is_part) {
            open.unread = true;
        }
    }

    /// When [`Self::step`] is due.
    pub fn due(&self) -> Micros {
        match &self.open {
            Some(open) if open.unread => open.deadline.min(open.sent_at + AGAIN_AFTER),
            Some(open) => open.deadline,
            None => self.thaw.map_or(Micros::NEVER, |thaw| thaw.at),
        }
    }

    /// The next thing to do, if it is time.
    pub fn step(&mut self, now: Micros) -> Option<Step<A>> {
        if now < self.due() {
            return None;
        }
        let Some(open) = &mut self.open else {
            self.begin(now, GuestOrder::Thaw, None);
            return self.step(now);
        };
        if now >= open.deadline {
            let why = match open.unread {
                true => {
                    "the guest has not read the request: see that it is not hung, and that its agent runs (package \
                     qemu-guest-agent)"
                }
                false => {
                    "the guest's agent has read the request and not answered it: it hangs, or its guest does"
                }
            };
            return self.fail(
                now,
                format!("{why}; waited {} s", ANSWER_WITHIN.0 / 1_000_000),
            );
        }
        self.last_id += 1;
        open.id = self.last_id;
        open.unread = false;
        open.sent_at = now;
        open.heard.clear();
        Some(Step::Send(request(open.id, &open.order)))
    }

    /// The request cannot be sent, or has no answer.
    pub fn fail(&mut self, now: Micros, why: String) -> Option<Step<A>> {
        let open = self.open.take()?;
        match open.order {
            // It may be carried out later, and this thaw after it.
            GuestOrder::Freeze { .. } if open.id > 0 => {
                self.thaw = Some(Thaw {
                    at: now,
                    again: THAW_AGAIN,
                    is_known: true,
                });
            }
            GuestOrder::Thaw => self.thaw_again(now),
            _ => {}
        }
        self.finish(open.asker, Err(why))
    }

    fn thaw_again(&mut self, now: Micros) {
        if let Some(thaw) = &mut self.thaw {
            thaw.at = now + thaw.again;
            thaw.again = Micros(thaw.again.0 * 2).min(THAW_AGAIN_MAX);
        }
    }

    fn finish(&self, asker: Option<A>, answer: Result<Value, String>) -> Option<Step<A>> {
        match (asker, answer) {
            (Some(asker), answer) => Some(Step::Answer(asker, answer)),
            (None, Err(why)) if self.thaw.is_some_and(|thaw| thaw.is_known) => {
                Some(Step::Warn(why))
            }
            (None, _) => None,
        }
    }

    /// The agent has said this, and the state behind it is safe.
    pub fn heard(&mut self, now: Micros, bytes: &[u8]) -> Option<Step<A>> {
        let open = self.open.as_mut()?;
        open.heard.extend_from_slice(bytes);
        if open.heard.len() > ANSWER_BYTES_MAX {
            let why = format!("the agent's answer is longer than {ANSWER_BYTES_MAX} bytes");
            return self.fail(now, why);
        }
        let answer = answer(open.id, &open.heard)?;
        let open = self.open.take()?;
        match (&open.order, &answer) {
            (GuestOrder::Freeze { for_s }, Ok(_)) => {
                self.thaw = Some(Thaw {
                    at: now + Micros(for_s * 1_000_000),
                    again: THAW_AGAIN,
                    is_known: true,
                });
            }
            (GuestOrder::Thaw, Ok(_)) => self.thaw = None,
            (GuestOrder::Thaw, Err(_)) if self.thaw.is_some_and(|thaw| thaw.is_known) => {
                self.thaw_again(now);
            }
            // An agent that cannot thaw cannot freeze.
            (GuestOrder::Thaw, Err(_)) => self.thaw = None,
            _ => {}
        }
        self.finish(open.asker, answer)
    }
}

/// The bytes of a request.
fn request(id: u64, order: &GuestOrder) -> Vec<u8> {
    let sync = json!({"execute": "guest-sync-delimited", "arguments": {"id": id}});
    let mut bytes = vec![DELIMITER];
    bytes.extend(format!("{sync}\n{}\n", order.command()).bytes());
    bytes
}

/// The answer to the request with this number, if it is among the bytes.
pub(crate) fn answer(id: u64, heard: &[u8]) -> Option<Result<Value, String>> {
    let from = heard.iter().rposition(|byte| *byte == DELIMITER)? + 1;
    let mut lines = heard[from..].split_inclusive(|byte| *byte == b'\n');
    let mut line = || lines.next().filter(|line| line.ends_with(b"\n"));
    let sync: Value = serde_json::from_slice(line()?).ok()?;
    if sync["return"].as_u64() != Some(id) {
        return None;
    }
    let line = line()?;
    let Ok(mut answer) = serde_json::from_slice::<Value>(line) else {
        let line = String::from_utf8_lossy(line);
        return Some(Err(format!(
            "the guest's agent answers what is no JSON: {line:.200}"
        )));
    };
    Some(match answer.get_mut("return") {
        Some(value) => Ok(value.take()),
        None => {
            let said = answer["error"]["desc"]
                .as_str()
                .unwrap_or("without a reason");
            Err(format!("the guest's agent refuses: {said}"))
        }
    })
}

#[cfg(test)]
mod tests;
