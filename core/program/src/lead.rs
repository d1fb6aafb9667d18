//! What only the leader does: it cuts off the clients of the leader before it, asks for checkpoints, and trims
//! the log behind them.

use crate::api::Action;
use crate::canary::canary;
use crate::checkpoints::REPEAT;
use crate::phase::{Proposed, Quiet};
use crate::replica::{Replica, propose};
use crate::{Entrance, Entry, Phase, Sessions};
use plover_types::{Micros, ReplicaId, View};

/// Pauses between checkpoints are no longer than this while the log is full.
const PAUSE_IF_FULL: Micros = Micros::from_ms(8000);

impl Replica {
    /// This replica leads `view`.
    pub(crate) fn lead(&mut self, view: View) {
        let keeps = canary!(self.config, KeepConnections);
        self.phase.enter(Phase::Leading {
            view,
            asked: false,
            proposed: None,
            opened: keeps.then_some(self.log.last),
            quiet: Quiet::Reads,
        });
    }

    /// Does what is due.
    pub(crate) fn advance_lead(&mut self, now: Micros, out: &mut Vec<Action>) {
        if self.is_full() {
            // Nobody is served until a checkpoint is taken.
            self.repeat_at = self.repeat_at.min(now + PAUSE_IF_FULL);
        }
        let followers = self.followers();
        let Phase::Leading {
            asked,
            proposed,
            opened,
            quiet,
            ..
        } = &mut self.phase
        else {
            return;
        };
        if opened.is_none() {
            // It is repeated only if it was lost, because a second one cuts off new clients.
            let is_lost = self.feed.next > self.log.last.index && now >= self.repeat_at;
            if !*asked || is_lost {
                *asked = true;
                self.repeat_at = now + REPEAT;
                // The leader before may have left a full log, although a majority holds a newer checkpoint.
                self.trim(out);
                out.push(propose(&Entry::Cut(None)));
            }
            return;
        }
        if !self.config.checkpoints || self.checkpoints.waits() {
            return;
        }
        if *proposed == Some(Proposed::Now) {
            *proposed = Some(Proposed::UpTo(self.log.last.index));
        }
        if matches!(proposed, Some(Proposed::UpTo(last)) if self.feed.next <= *last) {
            return;
        }
        *proposed = None;
        let bytes = self.feed.bytes;
        let keeps = self.config.sessions != Sessions::Reconnect
            && *quiet == Quiet::Reads
            && self
                .checkpoints
                .may_keep(self.log.bytes < self.config.checkpoint_bytes_max)
            && !followers.is_empty();
        let is_cheap = keeps || self.feed.open.is_empty();
        let is_wanted = (is_cheap && bytes >= self.config.checkpoint_bytes)
            || bytes >= self.config.checkpoint_bytes_max;
        // The program of whoever takes it falls behind, so the others come into step before, as long as there is room.
        let (max, room) = (self.config.checkpoint_bytes_max, self.config.room);
        let has_time = self.log.bytes < max / 2 + room / 2;
        let may_wait = has_time && self.pace.one_may_catch_up(now, followers);
        let is_due = self.checkpoints.needed || *quiet != Quiet::Reads || (is_wanted && !may_wait);
        if is_due && now >= self.repeat_at {
            if keeps {
                self.repeat_at = now + self.checkpoints.pause();
                *proposed = Some(Proposed::Now);
                let by = self.next_taker(false);
                out.push(propose(&Entry::Checkpoint(by)));
                return;
            }
            // Input that the program reads behind the cut would be of connections that are over.
            let is_fed = self.config.entrance == Entrance::Fed || canary!(self.config, CutUnquiet);
            if !is_fed && !matches!(quiet, Quiet::Done(_)) {
                if *quiet == Quiet::Reads {
                    *quiet = Quiet::Asked;
                    out.push(Action::Quiesce);
                }
                return;
            }
            let pause = if is_fed {
                self.checkpoints.pause()
            } else {
                REPEAT
            };
            self.repeat_at = now + pause;
            *proposed = Some(Proposed::Now);
            let by = self.next_taker(self.checkpoints.needed);
            out.push(propose(&Entry::Cut(Some(by))));
        }
    }

    /// The replica that takes the next checkpoint: the followers take turns. A leader without followers takes it
    /// itself. In its turn it does with `or_me`, while a replica lacks one: perhaps no follower has a program that runs.
    fn next_taker(&mut self, or_me: bool) -> ReplicaId {
        let me = self.config.me;
        let mut linked: Vec<_> = self.followers().iter().collect();
        let late = self.checkpoints.late;
        if linked.iter().any(|id| !late.contains(*id)) {
            linked.retain(|id| !late.contains(*id));
        }
        // One that is behind comes to that entry late. If the others fail, it is its turn, too.
        if self.checkpoints.failures == 0 && linked.iter().any(|id| self.pace.is_in_step(*id)) {
            linked.retain(|id| self.pace.is_in_step(*id));
        }
        self.checkpoints.attempts += 1;
        let place = self.checkpoints.attempts % (linked.len() + usize::from(or_me)).max(1);
        linked.get(place).copied().unwrap_or(me)
    }

    /// Trims the log behind what a majority holds.
    pub(crate) fn trim(&mut self, out: &mut Vec<Action>) {
        if !matches!(self.phase, Phase::Leading { .. }) {
            return;
        }
        let early = canary!(self.config, TrimEarly);
        let to = self.checkpoints.trim_to(early);
        if let Some(to) = to.filter(|to| *to > self.log.base) {
            out.push(Action::Trim(to));
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{Canary, Config, Entrance, Event, Held, LogState, Progress, State};
    use plover_types::{Index, ReplicaSet, Viewstamp};

    pub(crate) fn config() -> Config {
        Config {
            me: ReplicaId(0),
            members: ReplicaSet::of([ReplicaId(0), ReplicaId(1), ReplicaId(2)]),
            address: String::new(),
            check: None,
            checkpoints: true,
            checkpoint_bytes: 1000,
            checkpoint_bytes_max: 2000,
            room: 3000,
            stall: Micros::from_ms(5000),
            checkpoint_within: Micros::from_ms(60_000),
            checkpoint_within_if_full: Micros::from_ms(60_000),
            entrance: Entrance::Fed,
            sessions: Sessions::Reconnect,
            restarts: false,
            canary: Canary::None,
        }
    }

    /// The followers have lost their programs and have no checkpoint to start from: the leader's is the only one.
    #[test]
    fn a_leader_takes_a_checkpoint_that_no_follower_can() {
        let (me, others) = (ReplicaId(0), [ReplicaId(1), ReplicaId(2)]);
        let config = config();
        let mut replica = Replica::new(config, None);
        replica.log.linked = ReplicaSet::of(others);
        replica.checkpoints.needs(others[0]);
        let takers: Vec<ReplicaId> = (0..3).map(|_| replica.next_taker(true)).collect();
        assert!(takers.contains(&me), "{takers:?}");
        assert!(others.iter().all(|it| takers.contains(it)), "{takers:?}");
    }

    /// A follower is asked for a checkpoint, and leads before it comes to that entry. It takes none then, and says so: a later
    /// leader would wait for it, too.
    #[test]
    fn a_new_leader_refuses_the_checkpoint_that_it_was_asked_for() {
        let (me, others) = (ReplicaId(0), [ReplicaId(1), ReplicaId(2)]);
        let (now, mut out) = (Micros(1), Vec::new());
        let at = |view, index| Viewstamp {
            view,
            index: Index(index),
        };
        let (old, new) = (View::new(1, ReplicaId(1)), View::new(2, me));
        let mut replica = Replica::new(config(), None);
        let log = |leads, last: Viewstamp| LogState {
            leads,
            commit: last.index,
            last,
            linked: ReplicaSet::of(others),
            ..LogState::default()
        };
        replica.apply(now, Event::Log(log(None, at(old, 0))), &mut out);
        replica.apply(now, Event::Started(State::default()), &mut out);
        let asks = Entry::Cut(Some(me)).encode();
        replica.apply(now, Event::Log(log(Some(new), at(old, 1))), &mut out);
        replica.apply(now, Event::Entry(at(old, 1), Some(&asks)), &mut out);
        assert!(replica.checkpoints.waits());
        let refuses = Entry::Needs(me).encode();
        for turn in 0..2 {
            out.clear();
            let later = now + Micros(turn * REPEAT.0);
            replica.apply(later, Event::Log(log(Some(new), at(old, 1))), &mut out);
            assert!(out.contains(&Action::Propose(refuses.clone())), "{out:?}");
        }
        replica.apply(now, Event::Log(log(Some(new), at(new, 2))), &mut out);
        replica.apply(now, Event::Entry(at(new, 2), Some(&refuses)), &mut out);
        assert!(!replica.checkpoints.waits() && !replica.refuses);
    }

    /// It would serve nobody until its checkpoint is taken.
    #[test]
    fn a_replica_that_takes_a_checkpoint_does_not_begin_to_lead() {
        let (me, now, mut out) = (ReplicaId(0), Micros(1), Vec::new());
        let (old, new) = (View::new(1, ReplicaId(1)), View::new(2, me));
        let at = Viewstamp {
            view: old,
            index: Index(1),
        };
        let mut replica = Replica::new(config(), None);
        let log = |leads, commit| LogState {
            leads,
            commit: Index(commit),
            last: at,
            ..LogState::default()
        };
        replica.apply(now, Event::Log(log(None, 0)), &mut out);
        replica.apply(now, Event::Started(State::default()), &mut out);
        replica.apply(now, Event::Log(log(None, 1)), &mut out);
        let asks = Entry::Cut(Some(me)).encode();
        replica.apply(now, Event::Entry(at, Some(&asks)), &mut out);
        replica.apply(now, Event::Log(log(Some(new), 1)), &mut out);
        assert_eq!(replica.phase(), &Phase::Following);
        assert!(!replica.may_lead());
        let failed = Event::CheckpointTaken(Err("a fault".into()));
        replica.apply(now, failed, &mut out);
        replica.apply(now, Event::Log(log(Some(new), 1)), &mut out);
        assert!(matches!(replica.phase(), Phase::Leading { .. }));
    }

    /// A log that is full takes no cut, and clients are served only behind one.
    #[test]
    fn a_new_leader_trims_before_it_proposes() {
        let config = config();
        let (now, mut out) = (Micros(1), Vec::new());
        let view = View::new(1, ReplicaId(1));
        let at = |index| Viewstamp {
            view,
            index: Index(index),
        };
        let mut replica = Replica::new(config, None);
        let log = |leads| LogState {
            leads,
            commit: Index(5),
            last: at(5),
            ..LogState::default()
        };
        replica.apply(now, Event::Log(log(None)), &mut out);
        replica.apply(now, Event::Started(State::default()), &mut out);
        replica.apply(now, Event::Log(log(None)), &mut out);
        for index in 1..=5 {
            let held = Held {
                replica: ReplicaId(index as u8 % 3),
                at: at(3),
                taken_by: ReplicaId(1),
                bytes: 1,
                sum: [0; 32],
                address: String::new(),
            };
            let entry = (index > 3).then(|| Entry::Holds(held).encode());
            assert_eq!(replica.wants(), Some(Index(index)));
            replica.apply(now, Event::Entry(at(index), entry.as_deref()), &mut out);
        }
        out.clear();
        let leads = Some(View::new(2, ReplicaId(0)));
        replica.apply(now, Event::Log(log(leads)), &mut out);
        let cut = Action::Propose(Entry::Cut(None).encode());
        let place = |action: &Action| out.iter().position(|it| it == action);
        let trim = place(&Action::Trim(Index(3))).expect("it trims");
        assert!(place(&cut).is_some_and(|cut| cut > trim), "{out:?}");
    }

    /// A checkpoint makes a follower's program fall behind, so all are in step before it, unless the log becomes full.
    #[test]
    fn a_checkpoint_waits_until_all_programs_are_in_step() {
        let view = View::new(1, ReplicaId(0));
        let log = |last, bytes| LogState {
            leads: Some(view),
            commit: Index(last),
            last: Viewstamp {
                view,
                index: Index(last),
            },
            bytes,
            linked: ReplicaSet::of([ReplicaId(1), ReplicaId(2)]),
            ..LogState::default()
        };
        let cases = [
            (Progress::Behind, 2400, false),
            (Progress::Away, 2400, false),
            (Progress::InStep, 2400, true),
            (Progress::Behind, 2500, true),
        ];
        for (progress, bytes, is_asked) in cases {
            let (now, mut out) = (Micros(1), Vec::new());
            let mut replica = Replica::new(config(), None);
            replica.apply(now, Event::Log(log(0, 0)), &mut out);
            replica.apply(now, Event::Started(State::default()), &mut out);
            let entries = [Entry::Cut(None), Entry::Progress(ReplicaId(1), progress)];
            for (last, entry) in (1..).zip(entries) {
                let at = log(last, 0).last;
                replica.apply(now, Event::Log(log(last, 0)), &mut out);
                replica.apply(now, Event::Entry(at, Some(&entry.encode())), &mut out);
            }
            replica.feed.bytes = bytes;
            out.clear();
            let later = Micros::from_ms(1000);
            replica.apply(later, Event::Log(log(2, bytes)), &mut out);
            let asks = [1, 2].map(|by| propose(&Entry::Cut(Some(ReplicaId(by)))));
            let found = out.iter().any(|it| asks.contains(it));
            assert_eq!(found, is_asked, "{progress:?}, {bytes} bytes");
        }
    }
}
