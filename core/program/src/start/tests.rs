use super::*;
use crate::lead::tests::config;
use crate::{Entry, Event, LogState};
use plover_types::{ReplicaId, View};

fn at(index: u64) -> Viewstamp {
    Viewstamp {
        view: View::new(1, ReplicaId(1)),
        index: Index(index),
    }
}

fn own(index: u64, taken_by: u8) -> Own {
    Own {
        at: at(index),
        taken_by: ReplicaId(taken_by),
        bytes: 1,
        sum: [0; 32],
    }
}

fn held_by(replica: u8, own: &Own) -> Held {
    Held {
        replica: ReplicaId(replica),
        at: own.at,
        taken_by: own.taken_by,
        bytes: own.bytes,
        sum: own.sum,
        address: String::new(),
    }
}

/// A replica whose log has the entries 6 to 12, with a checkpoint at 10.
struct Starting {
    replica: Replica,
    now: Micros,
    out: Vec<Action>,
}

impl Starting {
    fn new() -> Self {
        Self {
            replica: Replica::new(config(), Some(own(10, 0))),
            now: Micros(1),
            out: Vec::new(),
        }
    }

    /// Reads the log after so long. Returns what the replica starts from, or fetches.
    fn goes_on(&mut self, pause: Micros) -> Option<Viewstamp> {
        self.now = self.now + pause;
        self.out.clear();
        let log = LogState {
            base: Index(5),
            commit: Index(12),
            last: at(12),
            at_own: self.replica.own().map(|own| own.at),
            ..LogState::default()
        };
        self.replica.apply(self.now, Event::Log(log), &mut self.out);
        while let Some(next) = self.replica.wants() {
            let event = Event::Entry(at(next.0), None);
            self.replica.apply(self.now, event, &mut self.out);
        }
        self.replica.apply(self.now, Event::Log(log), &mut self.out);
        self.out.iter().find_map(|action| match action {
            Action::Start(from) => *from,
            Action::Fetch(held) => Some(held.at),
            _ => None,
        })
    }

    fn fails(&mut self) {
        let event = Event::StartFailed("the port is in use".into());
        self.replica.apply(self.now, event, &mut self.out);
        let is_kept = |action: &Action| !matches!(action, Action::Discard(_));
        assert!(self.out.iter().all(is_kept), "{:?}", self.out);
    }
}

/// It may be the last one, and the cause may be anything.
#[test]
fn a_checkpoint_outlives_every_failed_start() {
    let mut starting = Starting::new();
    for _ in 0..20 {
        assert_eq!(starting.goes_on(AGAIN_AFTER_MAX), Some(at(10)));
        starting.fails();
    }
    // Another replica has a newer one, which is tried. If it cannot be had, the own one is tried again.
    let newer = own(11, 1);
    starting.replica.checkpoints.named(held_by(1, &newer));
    let mut tried = Vec::new();
    for _ in 0..12 {
        let mut from = starting.goes_on(AGAIN_AFTER_MAX);
        tried.extend(from);
        if from == Some(newer.at) {
            let event = Event::Fetched(Err("it is gone".into()));
            starting
                .replica
                .apply(starting.now, event, &mut starting.out);
            from = starting.goes_on(Micros(1));
            tried.extend(from);
        }
        assert_eq!(from, Some(at(10)), "{tried:?}");
        starting.fails();
    }
    assert!(tried.contains(&newer.at), "{tried:?}");
    assert_eq!(starting.replica.own(), Some(&own(10, 0)));
}

/// The program does not survive the attempt, is restored, and comes to the same entry.
#[test]
fn a_checkpoint_that_ends_the_program_is_not_tried_again() {
    let mut replica = Replica::new(config(), None);
    let cut = Entry::Cut(Some(ReplicaId(0))).encode();
    let log = LogState {
        commit: Index(1),
        last: at(1),
        ..LogState::default()
    };
    let runs_from = |replica: &mut Replica, now| {
        let mut out = Vec::new();
        replica.apply(now, Event::Log(log), &mut out);
        replica.apply(now, Event::Started(State::default()), &mut out);
        replica.apply(now, Event::Entry(at(1), Some(&cut)), &mut out);
        let takes = |action: &&Action| matches!(action, Action::TakeCheckpoint(..));
        out.iter().filter(takes).count()
    };
    assert_eq!(runs_from(&mut replica, Micros::from_ms(50)), 1);
    let failed = Event::CheckpointTaken(Err("it takes too long to end".into()));
    for event in [failed, Event::Died("it was killed".into())] {
        replica.apply(Micros::from_ms(51), event, &mut Vec::new());
    }
    assert_eq!(runs_from(&mut replica, AGAIN_AFTER_MAX), 0);
    assert_eq!(replica.feed.next, Index(2), "it goes on");
    assert!(
        replica.refuses,
        "and says that it has none, if the log does not"
    );
}

/// The newest one is the same on all replicas.
#[test]
fn a_lost_checkpoint_is_fetched_from_another_replica() {
    let mut starting = Starting::new();
    let same = own(10, 0);
    starting.replica.checkpoints.named(held_by(1, &same));
    assert_eq!(starting.goes_on(AGAIN_AFTER_MAX), Some(same.at));
    let event = Event::CheckpointLost;
    starting
        .replica
        .apply(starting.now, event, &mut starting.out);
    starting.fails();
    assert_eq!(starting.goes_on(AGAIN_AFTER_MAX), Some(same.at));
    let fetches = |action: &Action| matches!(action, Action::Fetch(_));
    assert!(starting.out.iter().any(fetches), "{:?}", starting.out);
}
