//! The state that every replica computes alike from the log: the state machine, the sessions, and the
//! comparison of outputs. All of it travels in one snapshot.

use crate::envelope::{Envelope, SessionRequest};
use crate::members::Group;
use crate::outputs::{OutputCheck, OutputHash, Piece, Verdict, make_room};
use crate::wire::PAYLOAD_BYTES_MAX;
use crate::{Error, StateMachine};
use plover_types::{View, Viewstamp, wire};
use serde::{Deserialize, Serialize};
use serde_bytes::Bytes;
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Sessions that are remembered: those used last. A request that is repeated after this many
/// other sessions have been used is in the log, and applied, twice. With a thousand new sessions a
/// second that takes four seconds, so a client that repeats for longer has no promise then. All replicas
/// of a group have to forget the same sessions, hence the number stays from release to release.
const SESSIONS_MAX: usize = 4096;

/// No log gets so long. A state that claims more would let the count of entries overflow.
const INDEX_MAX: u64 = 1 << 56;

/// The stream of answers to proposers without a session.
const NO_SESSION: u64 = 0;

/// The replicated state.
#[derive(Debug)]
pub(crate) struct Replicated<M> {
    pub machine: M,
    /// The last entry that it reflects.
    pub applied: Viewstamp,
    pub group: Group,
    history: History,
    check_outputs: bool,
    /// Pieces of our own outputs that are to be reported.
    pub pieces: Vec<Piece>,
    answer: Vec<u8>,
}

/// The part of the replicated state that is not the machine's.
#[derive(Debug, Default, Serialize, Deserialize)]
struct History {
    sessions: BTreeMap<u64, Session>,
    /// The hash of the answers to proposers without a session.
    answered: OutputHash,
    check: OutputCheck,
}

/// The last request of a session, with its answer.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Session {
    number: u64,
    /// Where the request took effect. Zero in a session that has only begun.
    at: Viewstamp,
    #[serde(with = "serde_bytes")]
    answer: Vec<u8>,
    answered: OutputHash,
    /// The entry that last used it.
    used: u64,
}

/// The result of an entry: where it took effect (earlier than the entry itself if it is a
/// repetition), and the machine's answer.
pub(crate) type Applied<'a> = Result<(Viewstamp, &'a [u8]), Error>;

/// Why a snapshot is not taken over.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RestoreError {
    /// It is none. Nothing has changed.
    #[error("it does not decode: {0}")]
    Malformed(String),
    /// The state machine refuses its part.
    #[error("{0}")]
    Machine(String),
}

impl<M: StateMachine> Replicated<M> {
    /// The state before the first entry, in a group as it was set up.
    pub fn new(machine: M, group: Group, check_outputs: bool) -> Self {
        Self {
            machine,
            applied: Viewstamp::default(),
            group,
            history: History::default(),
            check_outputs,
            pieces: Vec::new(),
            answer: Vec::new(),
        }
    }

    /// Applies the entry at `at`.
    pub fn apply(&mut self, at: Viewstamp, payload: &[u8]) -> Applied<'_> {
        self.applied = at;
        self.answer.clear();
        match Envelope::take(payload) {
            Some(Envelope::Plain(bytes)) => {
                answer(&mut self.machine, at, bytes, &mut self.answer);
                if self.check_outputs {
                    let (answered, pieces) = (&mut self.history.answered, &mut self.pieces);
                    answered.record(NO_SESSION, &self.answer, pieces);
                }
            }
            Some(Envelope::Session(request, bytes)) => return self.apply_once(at, request, bytes),
            Some(Envelope::Outputs(replica, pieces)) => {
                for piece in pieces {
                    self.history.check.report(replica, piece);
                }
            }
            None => tracing::warn!(%at, "an entry that this release does not know was skipped"),
        }
        Ok((at, &self.answer))
    }

    fn apply_once(&mut self, at: Viewstamp, request: SessionRequest, bytes: &[u8]) -> Applied<'_> {
        let name = request.session;
        let sessions = &mut self.history.sessions;
        if !sessions.contains_key(&name) {
            let forgotten = make_room(sessions, SESSIONS_MAX, |it| it.used);
            let rest = forgotten.and_then(|(name, session)| session.answered.finish(name));
            self.pieces.extend(rest);
        }
        let session = sessions.entry(name).or_default();
        session.used = at.index.0;
        let is_new = session.at == Viewstamp::default();
        if is_new || request.number > session.number {
            answer(&mut self.machine, at, bytes, &mut session.answer);
            (session.number, session.at) = (request.number, at);
            if self.check_outputs {
                let pieces = &mut self.pieces;
                session.answered.record(name, &session.answer, pieces);
            }
        } else if request.number < session.number {
            return Err(Error::Stale);
        }
        Ok((session.at, &session.answer))
    }

    /// The answer to a request of a session that is applied, or its refusal; `None` for a request that is new here.
    pub fn answered(&self, request: SessionRequest) -> Option<Applied<'_>> {
        let session = self.history.sessions.get(&request.session)?;
        match request.number.cmp(&session.number) {
            Ordering::Less => Some(Err(Error::Stale)),
            Ordering::Equal => Some(Ok((session.at, session.answer.as_slice()))),
            Ordering::Greater => None,
        }
    }

    pub fn verdicts(&self) -> Vec<Verdict> {
        self.history.check.verdicts().collect()
    }

    /// Everything, as bytes.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut machine = Vec::new();
        self.machine.snapshot(&mut machine);
        let machine = Bytes::new(&machine);
        wire::encode(&(self.applied, &self.group, &self.history, machine))
    }

    /// Takes over a [`snapshot`](Self::snapshot), this replica's or another one's, except for its group,
    /// which it returns. `None`, and nothing changes, if the snapshot is of a log before the one that
    /// began in the view `generation`.
    pub fn restore(
        &mut self,
        bytes: &[u8],
        generation: View,
    ) -> Result<Option<Group>, RestoreError> {
        let malformed = |why: String| Err(RestoreError::Malformed(why));
        let (applied, group, history, machine) = match wire::decode_front(bytes) {
            Ok((snapshot, [])) => snapshot,
            Ok((_, rest)) => return malformed(format!("{} bytes after its end", rest.len())),
            Err(error) => return malformed(error.to_string()),
        };
        let (applied, machine): (Viewstamp, &Bytes) = (applied, machine);
        if applied.view < generation {
            return Ok(None);
        }
        if applied.index.0 > INDEX_MAX {
            return malformed(format!("it reflects entry {}", applied.index));
        }
        let restored = self.machine.restore(Some(machine));
        restored.map_err(RestoreError::Machine)?;
        self.applied = applied;
        self.history = history;
        self.pieces.clear();
        Ok(Some(group))
    }

    /// Returns to the state before the first entry of a log that begins after `base`.
    pub fn reset(&mut self, base: Viewstamp) -> Result<(), String> {
        self.machine.restore(None)?;
        self.applied = base;
        self.history = History::default();
        self.pieces.clear();
        Ok(())
    }
}

/// Applies `entry` to `machine`, whose answer takes the place of what `answer` held. An answer that fits no frame is left
/// out, on all replicas alike.
fn answer<M: StateMachine>(machine: &mut M, at: Viewstamp, entry: &[u8], answer: &mut Vec<u8>) {
    answer.clear();
    machine.apply(at, entry, answer);
    if answer.len() > PAYLOAD_BYTES_MAX {
        tracing::error!(
            %at, bytes = answer.len(),
            "the state machine's answer exceeds {PAYLOAD_BYTES_MAX} bytes, so its proposer gets an empty one: let the \
             state machine give shorter answers"
        );
        *answer = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mail::Mail;
    use plover_types::forms::{assert_every_kind, assert_form};
    use plover_types::{Index, ReplicaId};

    /// Counts bytes, and answers with the count.
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
        let request = SessionRequest { session, number };
        Envelope::Session(request, b"+").put(Vec::new())
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
            let answered = |number| {
                let request = SessionRequest { session: 5, number };
                state
                    .answered(request)
                    .map(|it| it.map(|(at, it)| (at, it.to_vec())))
            };
            assert_eq!(answered(0), Some(Err(Error::Stale)));
            assert_eq!(answered(1).as_ref(), Some(&first), "without an entry");
            assert_eq!(answered(2), None);
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

    /// The messages between servers, and the content of snapshots and entries.
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
            Mail::Propose(vec![11]),
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
        let plain = Envelope::Plain(b"+").put(Vec::new());
        let outputs = Envelope::Outputs(ReplicaId(1), vec![piece]).put(Vec::new());
        let mut state = Replicated::new(Counter::default(), group, true);
        state.apply(at(1), &request(1009, 1010)).unwrap();
        state.apply(at(2), &outputs).unwrap();
        let session = request(1011, 1012);
        // The version's own byte is no part of a form.
        let snapshot = state.snapshot().split_off(1);
        bytes.extend([plain, session, outputs, snapshot]);
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
        assert!(
            state.history.sessions.contains_key(&0) && !state.history.sessions.contains_key(&1)
        );
        assert_eq!(state.history.sessions.len(), SESSIONS_MAX);
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
        state.applied = at(u64::MAX);
        let too_far = state.snapshot();
        assert!(state.restore(&too_far, View::NONE).is_err());
    }

    /// Answers with more than a frame holds.
    struct Talker;

    impl StateMachine for Talker {
        fn apply(&mut self, _at: Viewstamp, entry: &[u8], answer: &mut Vec<u8>) {
            answer.resize(PAYLOAD_BYTES_MAX + entry.len(), 1);
        }
        fn snapshot(&self, _out: &mut Vec<u8>) {}
        fn restore(&mut self, _snapshot: Option<&[u8]>) -> Result<(), String> {
            Ok(())
        }
    }

    #[test]
    fn an_answer_that_fits_no_frame_is_left_out() {
        for (entry, bytes) in [(&b""[..], PAYLOAD_BYTES_MAX), (&b"x"[..], 0)] {
            let mut state = Replicated::new(Talker, Group::default(), false);
            let once = SessionRequest {
                session: 1,
                number: 1,
            };
            for envelope in [Envelope::Plain(entry), Envelope::Session(once, entry)] {
                let payload = envelope.put(Vec::new());
                let (_, answer) = state.apply(at(1), &payload).unwrap();
                assert_eq!(answer.len(), bytes);
            }
        }
    }
}
