//! What every replica computes alike from the log: the state machine, the sessions, and the
//! comparison of outputs. All of it travels in one snapshot.

use crate::envelope::{self, Envelope, SessionRequest};
use crate::members::Group;
use crate::outputs::{OutputCheck, OutputHasher, Piece, Verdict};
use crate::{Error, StateMachine};
use plover_types::{View, Viewstamp, wire};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Sessions that are remembered, those used last. A request that is repeated after this many
/// other sessions have been used is applied twice; at a thousand new sessions a second that
/// takes four seconds, longer than clients repeat.
const SESSIONS_MAX: usize = 4096;

/// The stream of answers to proposers without a session.
const NO_SESSION: u64 = 0;

/// The replicated state.
#[derive(Debug)]
pub(crate) struct Replicated<M> {
    pub machine: M,
    /// The last entry that it reflects.
    pub applied: Viewstamp,
    pub group: Group,
    sessions: BTreeMap<u64, Session>,
    hasher: OutputHasher,
    check: OutputCheck,
    check_outputs: bool,
    /// Pieces of our own outputs that are to be reported.
    pub pieces: Vec<Piece>,
    answer: Vec<u8>,
}

/// The last request of a session, with its answer.
#[derive(Debug, Serialize, Deserialize)]
struct Session {
    number: u64,
    at: Viewstamp,
    #[serde(with = "serde_bytes")]
    answer: Vec<u8>,
    /// The entry that last used it.
    used: u64,
}

/// What became of an entry: where it took effect (earlier than the entry itself when it is a
/// repetition), and the machine's answer.
pub(crate) type Applied<'a> = Result<(Viewstamp, &'a [u8]), Error>;

#[derive(Serialize, Deserialize)]
struct Snapshot<'a> {
    applied: Viewstamp,
    group: Group,
    sessions: BTreeMap<u64, Session>,
    hasher: OutputHasher,
    check: OutputCheck,
    #[serde(borrow, with = "serde_bytes")]
    machine: &'a [u8],
}

#[derive(Serialize)]
struct SnapshotToWrite<'a> {
    applied: Viewstamp,
    group: &'a Group,
    sessions: &'a BTreeMap<u64, Session>,
    hasher: &'a OutputHasher,
    check: &'a OutputCheck,
    #[serde(with = "serde_bytes")]
    machine: &'a [u8],
}

impl<M: StateMachine> Replicated<M> {
    /// The state before the first entry, in a group as it was set up.
    pub fn new(machine: M, group: Group, check_outputs: bool) -> Self {
        Self {
            machine,
            applied: Viewstamp::default(),
            group,
            sessions: BTreeMap::new(),
            hasher: OutputHasher::default(),
            check: OutputCheck::default(),
            check_outputs,
            pieces: Vec::new(),
            answer: Vec::new(),
        }
    }

    /// Notes that an entry without meaning for the application is behind us.
    pub fn pass(&mut self, at: Viewstamp) {
        self.applied = at;
    }

    /// Applies the entry at `at`.
    pub fn apply(&mut self, at: Viewstamp, entry: &[u8]) -> Applied<'_> {
        self.applied = at;
        self.answer.clear();
        match envelope::take(entry) {
            Some(Envelope::Plain(bytes)) => {
                self.machine.apply(at, bytes, &mut self.answer);
                self.record_answer(NO_SESSION);
                Ok((at, &self.answer))
            }
            Some(Envelope::Session(request, bytes)) => self.apply_once(at, request, bytes),
            Some(Envelope::Outputs(replica, pieces)) => {
                for piece in pieces {
                    self.check.report(replica, piece);
                }
                Ok((at, &[]))
            }
            None => {
                tracing::warn!(%at, "an entry that this release does not know was skipped");
                Ok((at, &[]))
            }
        }
    }

    fn apply_once(&mut self, at: Viewstamp, request: SessionRequest, bytes: &[u8]) -> Applied<'_> {
        let SessionRequest { session, number } = request;
        if let Some(known) = self.sessions.get_mut(&session) {
            known.used = at.index.0;
            if number < known.number {
                return Err(Error::Stale);
            }
            if number == known.number {
                let known = &self.sessions[&session];
                return Ok((known.at, &known.answer));
            }
        } else if self.sessions.len() >= SESSIONS_MAX {
            let oldest = self.sessions.iter().min_by_key(|(_, it)| it.used);
            if let Some(name) = oldest.map(|(name, _)| *name) {
                self.sessions.remove(&name);
                self.pieces.extend(self.hasher.finish(name));
            }
        }
        self.machine.apply(at, bytes, &mut self.answer);
        self.record_answer(session);
        let known = self.sessions.entry(session).or_insert_with(|| Session {
            number,
            at,
            answer: Vec::new(),
            used: at.index.0,
        });
        known.number = number;
        known.at = at;
        known.answer.clear();
        known.answer.extend_from_slice(&self.answer);
        Ok((at, &self.answer))
    }

    fn record_answer(&mut self, stream: u64) {
        if self.check_outputs {
            self.hasher.record(stream, &self.answer, &mut self.pieces);
        }
    }

    /// Hashes what the program has sent besides the answers.
    pub fn record_output(&mut self, stream: u64, bytes: &[u8]) {
        self.hasher.record(stream, bytes, &mut self.pieces);
    }

    pub fn verdicts(&self) -> Vec<Verdict> {
        self.check.verdicts().collect()
    }

    /// Everything, as bytes.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut machine = Vec::new();
        self.machine.snapshot(&mut machine);
        wire::encode(&SnapshotToWrite {
            applied: self.applied,
            group: &self.group,
            sessions: &self.sessions,
            hasher: &self.hasher,
            check: &self.check,
            machine: &machine,
        })
    }

    /// Becomes what a [`snapshot`](Self::snapshot) says, its own or another replica's, except for
    /// the group, which it returns. `None`, and nothing changes, if that is of a log before the one
    /// that began in the view `generation`.
    pub fn restore(&mut self, bytes: &[u8], generation: View) -> Result<Option<Group>, String> {
        // Borrowed decoding: `wire::decode` serves only what owns its bytes.
        let body = match bytes.split_first() {
            Some((&wire::WIRE_VERSION, body)) => body,
            Some((version, _)) => {
                let ours = wire::WIRE_VERSION;
                return Err(format!(
                    "it is of wire version {version}, this release has {ours}"
                ));
            }
            None => return Err("it is empty".into()),
        };
        let snapshot: Snapshot<'_> =
            postcard::from_bytes(body).map_err(|error| format!("it is malformed: {error}"))?;
        if snapshot.applied.view < generation {
            return Ok(None);
        }
        self.machine.restore(Some(snapshot.machine))?;
        self.applied = snapshot.applied;
        self.sessions = snapshot.sessions;
        self.hasher = snapshot.hasher;
        self.check = snapshot.check;
        self.pieces.clear();
        Ok(Some(snapshot.group))
    }

    /// Becomes what it was before the first entry.
    pub fn reset(&mut self, base: Viewstamp) -> Result<(), String> {
        self.machine.restore(None)?;
        self.applied = base;
        self.sessions.clear();
        self.hasher = OutputHasher::default();
        self.check = OutputCheck::default();
        self.pieces.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mail::Mail;
    use plover_types::forms::{assert_every_kind, assert_form};
    use plover_types::{Index, ReplicaId};

    /// Counts, and says how far.
    #[derive(Default)]
    struct Counter(u64);

    impl StateMachine for Counter {
        fn apply(&mut self, _at: Viewstamp, entry: &[u8], answer: &mut Vec<u8>) {
            self.0 += entry.len() as u64;
            answer.extend_from_slice(&self.0.to_le_bytes());
        }
        fn snapshot(&self, out: &mut Vec<u8>) {
            out.extend_from_slice(&self.0.to_le_bytes());
        }
        fn restore(&mut self, snapshot: Option<&[u8]>) -> Result<(), String> {
            let bytes = snapshot.map_or(Ok([0; 8]), |it| {
                it.try_into().map_err(|_| "not eight bytes".to_string())
            });
            self.0 = u64::from_le_bytes(bytes?);
            Ok(())
        }
    }

    fn at(index: u64) -> Viewstamp {
        Viewstamp {
            view: View(16),
            index: Index(index),
        }
    }

    fn request(session: u64, number: u64) -> Vec<u8> {
        let mut entry = Vec::new();
        let request = SessionRequest { session, number };
        envelope::put(Some(request), b"+", &mut entry);
        entry
    }

    #[test]
    fn a_repeated_request_is_applied_once_and_answered_twice() {
        let mut state = Replicated::new(Counter::default(), Group::default(), true);
        let first = state
            .apply(at(1), &request(5, 1))
            .map(|(at, it)| (at, it.to_vec()));
        let mut other = Replicated::new(Counter(99), Group::default(), true);
        other.restore(&state.snapshot(), View::NONE).unwrap();
        for state in [&mut state, &mut other] {
            let again = state
                .apply(at(2), &request(5, 1))
                .map(|(at, it)| (at, it.to_vec()));
            assert_eq!(first, again, "also after a snapshot");
            assert_eq!(state.machine.0, 1);
            assert_eq!(state.apply(at(3), &request(5, 0)), Err(Error::Stale));
            state.apply(at(4), &request(5, 7)).unwrap();
            state.apply(at(5), &request(6, 1)).unwrap();
            assert_eq!((state.machine.0, state.applied), (3, at(5)));
        }
        assert_eq!(state.snapshot(), other.snapshot());
        state.reset(at(0)).unwrap();
        assert_eq!(state.machine.0, 0);
        state.apply(at(1), &request(5, 1)).unwrap();
        assert_eq!(state.machine.0, 1);
    }

    /// What servers say to each other, and what they write into snapshots and entries.
    #[test]
    fn the_form_of_what_servers_say_is_that_of_its_version() {
        let piece = Piece {
            stream: 1001,
            number: 1002,
            end: 1003,
            hash: 1004,
        };
        let mail = [
            Mail::Hello {
                clients: Some("an address".into()),
            },
            Mail::Outputs(vec![piece]),
            Mail::Want { least: Index(1005) },
            Mail::Part {
                applied: Index(1006),
                total: 1007,
                offset: 1008,
                bytes: vec![9],
            },
        ];
        assert_every_kind(&mail);
        let mut bytes: Vec<Vec<u8>> = mail
            .iter()
            .map(|mail| wire::encode_part(mail, Vec::new()))
            .collect();
        let group = Group {
            addresses: [(ReplicaId(2), "an address".to_string())].into(),
            ..Group::default()
        };
        bytes.push(wire::encode_part(&group.addresses, Vec::new()));
        let (mut plain, mut outputs) = (Vec::new(), Vec::new());
        envelope::put(None, b"+", &mut plain);
        envelope::put_outputs(ReplicaId(1), &[piece], &mut outputs);
        let mut state = Replicated::new(Counter::default(), group, true);
        state.apply(at(1), &request(1009, 1010)).unwrap();
        state.apply(at(2), &outputs).unwrap();
        // The version's own byte is no part of a form.
        outputs.remove(2);
        bytes.extend([
            plain,
            request(1011, 1012),
            outputs,
            state.snapshot().split_off(1),
        ]);
        assert_form("log servers", &bytes);
    }

    #[test]
    fn sessions_are_forgotten_in_the_order_of_their_use() {
        let mut state = Replicated::new(Counter::default(), Group::default(), false);
        for session in 0..SESSIONS_MAX as u64 {
            state.apply(at(session + 1), &request(session, 1)).unwrap();
        }
        let next = SESSIONS_MAX as u64 + 1;
        state.apply(at(next), &request(0, 1)).unwrap();
        state.apply(at(next + 1), &request(next, 1)).unwrap();
        assert_eq!(
            state.machine.0, next,
            "session 0 was asked again, not applied"
        );
        assert!(state.sessions.contains_key(&0) && !state.sessions.contains_key(&1));
        assert_eq!(state.sessions.len(), SESSIONS_MAX);
    }

    #[test]
    fn a_snapshot_of_the_log_before_changes_nothing() {
        let mut old = Replicated::new(Counter::default(), Group::default(), false);
        old.apply(at(9), &request(1, 1)).unwrap();
        let mut state = Replicated::new(Counter(99), Group::default(), false);
        let later = View(at(9).view.0 + 1);
        assert_eq!(state.restore(&old.snapshot(), later), Ok(None));
        assert_eq!((state.machine.0, state.applied), (99, Viewstamp::default()));
        let same = at(9).view;
        assert!(state.restore(&old.snapshot(), same).unwrap().is_some());
        assert_eq!((state.machine.0, state.applied), (1, at(9)));
    }

    #[test]
    fn a_damaged_snapshot_is_refused() {
        let mut state = Replicated::new(Counter::default(), Group::default(), false);
        state.apply(at(1), &request(1, 1)).unwrap();
        let good = state.snapshot();
        for cut in 0..good.len() {
            assert!(state.restore(&good[..cut], View::NONE).is_err());
        }
        assert!(state.restore(&good, View::NONE).is_ok());
    }
}
