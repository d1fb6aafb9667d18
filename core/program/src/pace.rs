//! Leaders wait for programs of followers that fall behind, so that clients of the next leader do not.
//!
//! A new leader serves nobody until its program has executed all that is committed. A follower's program may be the slower
//! one: it is given one input at a time, on a host with other work. So each replica says in the log when its program falls
//! behind, and when it is in step again. Meanwhile the leader reads no clients, and releases no input that its program has
//! read itself:
//!
//! * for a third of the time while any follower's program is behind and reads: it would never catch up with a leader whose
//!   program does all that it can;
//! * for two thirds while fewer programs than a majority are in step, its own included: one shall be left after the failure of any
//!   minority. After some seconds a third has to do, since a program that was started from an old checkpoint may need minutes.
//!
//! It never waits for longer than a part of a round, so clients notice a slow service and no gap.

use crate::checkpoints::{REPEAT, pause_after};
use crate::entry::Progress;
use crate::progress::{ADVANCES_WITHIN, OwnProgress};
use plover_types::{Index, Micros, ReplicaId, ReplicaSet, Viewstamp};
use std::collections::BTreeMap;

/// The pause before a replica says again that its program is in step or away is doubled so often.
const DOUBLES_MAX: u32 = 5;

/// A program that is away for longer is not about to start.
const STARTS_WITHIN: Micros = Micros::from_ms(30_000);

/// While a follower's program is behind, a leader waits in each round for so long,
const WAITS_A_ROUND: Micros = Micros::from_ms(20);
/// or for so long until a majority is in step,
const WAITS_FOR_A_MAJORITY: Micros = Micros::from_ms(40);
const ROUND: Micros = Micros::from_ms(60);
/// but not for longer than this.
const FOR_A_MAJORITY_MAX: Micros = Micros::from_ms(3000);

#[derive(Clone, Debug)]
pub(crate) struct Pace {
    me: ReplicaId,
    /// Followers whose programs make a majority with the leader's.
    needed: usize,
    /// This replica's own program.
    pub own: OwnProgress,
    /// When the log is told of it again, and how often it was told.
    say_at: Micros,
    times_said: u32,
    /// The progress of each program by the log, since its leader's first entry, and the time of the last word; of a program that
    /// is away, of the first. Programs without a word are in step.
    said: BTreeMap<ReplicaId, (Progress, Micros)>,
    /// This leader has too few followers whose programs are in step for a majority.
    pub are_too_few: bool,
    /// How long it has given a majority its time since one was in step, and since when it does now.
    waited: Micros,
    waits_since: Micros,
    /// Since when one is behind.
    behind_since: Micros,
    /// This leader waits.
    pub waits: bool,
    /// When it begins or ends to wait for the others.
    turns_at: Micros,
    /// Up to where input is committed whose output waits, too.
    held: Option<Viewstamp>,
}

impl Pace {
    pub fn new(me: ReplicaId, members: ReplicaSet) -> Self {
        Self {
            me,
            needed: members.len() / 2,
            own: OwnProgress::new(),
            say_at: Micros::ZERO,
            times_said: 0,
            said: BTreeMap::new(),
            are_too_few: false,
            waited: Micros::ZERO,
            waits_since: Micros::NEVER,
            behind_since: Micros::NEVER,
            waits: false,
            turns_at: Micros::NEVER,
            held: None,
        }
    }

    /// This replica's program was stopped.
    pub fn stops(&mut self, now: Micros) {
        self.own.is = Progress::Away;
        self.say_at_once(now);
        self.follows();
    }

    /// This replica's program is being started. Nobody reads the log meanwhile: a new leader may have to be told.
    pub fn restores(&mut self) {
        self.said.remove(&self.me);
    }

    /// Looks how this replica's program keeps up ([`OwnProgress::look`]).
    pub fn look(&mut self, now: Micros, commit: Index, next: Index, held: bool) {
        if self.own.look(now, commit, next, held) {
            self.say_at_once(now);
        }
    }

    fn say_at_once(&mut self, now: Micros) {
        (self.say_at, self.times_said) = (now, 0);
    }

    /// This replica's progress, if the log is to be told of it now.
    pub fn says(&mut self, now: Micros) -> Option<Progress> {
        let is_due = now >= self.say_at && !self.is_said();
        is_due.then(|| {
            // A replica whose program is away may not read for long what it has said.
            let pause = match self.own.is {
                Progress::Behind => REPEAT,
                Progress::InStep | Progress::Away => pause_after(self.times_said.min(DOUBLES_MAX)),
            };
            self.say_at = now + pause;
            self.times_said = self.times_said.saturating_add(1);
            self.own.is
        })
    }

    /// A program that is behind is spoken of as long as it advances.
    fn is_said(&self) -> bool {
        let said = self.said.get(&self.me).map(|it| it.0);
        self.needed == 0 || (said == Some(self.own.is) && said != Some(Progress::Behind))
    }

    /// The log says so of `replica`.
    pub fn said(&mut self, now: Micros, replica: ReplicaId, progress: Progress) {
        let at = match self.said.get(&replica) {
            Some((Progress::Away, since)) if progress == Progress::Away => *since,
            _ => now,
        };
        self.said.insert(replica, (progress, at));
    }

    /// A leader begins. All say where they are, since the log may have been trimmed behind what they have said.
    pub fn begins(&mut self, now: Micros) {
        self.said.clear();
        self.say_at_once(now);
    }

    /// A leader looks whether it waits for the programs of these followers. Returns up to where output leaves now.
    pub fn lead(&mut self, now: Micros, followers: ReplicaSet) -> Option<Viewstamp> {
        let is_in_step = |id: &ReplicaId| self.is_in_step(*id);
        let in_step = followers.iter().filter(is_in_step).count();
        let is_behind = |id: &ReplicaId| self.is_behind(now, *id);
        let behind = followers.iter().filter(is_behind).count();
        let since = |is_so: bool, since: Micros| if is_so { since.min(now) } else { Micros::NEVER };
        self.are_too_few = in_step < self.needed;
        self.behind_since = since(behind > 0, self.behind_since);

        let waited = self.waited + now.since(self.waits_since);
        let can_be_enough = in_step + behind >= self.needed;
        let for_a_majority = self.are_too_few && can_be_enough && waited < FOR_A_MAJORITY_MAX;
        self.waits_since = since(for_a_majority, self.waits_since);
        if !self.are_too_few {
            self.waited = Micros::ZERO;
        } else if !for_a_majority {
            self.waited = waited;
        }
        let waits_for = if for_a_majority {
            WAITS_FOR_A_MAJORITY
        } else {
            WAITS_A_ROUND
        };
        let place = now.since(self.behind_since).0 % ROUND.0;
        self.waits = behind > 0 && place < waits_for.0;
        let turns_in = if self.waits { waits_for.0 } else { ROUND.0 } - place;
        self.turns_at = if behind > 0 {
            now + Micros(turns_in)
        } else {
            Micros::NEVER
        };

        if self.waits { None } else { self.held.take() }
    }

    /// Whether the log says nothing else than that the program of `replica` is in step.
    pub fn is_in_step(&self, replica: ReplicaId) -> bool {
        matches!(self.said.get(&replica), None | Some((Progress::InStep, _)))
    }

    /// Whether the program of `replica` is behind and reads. A replica that hangs says nothing more.
    fn is_behind(&self, now: Micros, replica: ReplicaId) -> bool {
        matches!(self.said.get(&replica), Some((Progress::Behind, at)) if now.since(*at) < ADVANCES_WITHIN)
    }

    /// Whether a program of these followers may soon be in step, and is not.
    pub fn one_may_catch_up(&self, now: Micros, followers: ReplicaSet) -> bool {
        let starts = |id| matches!(self.said.get(&id), Some((Progress::Away, since)) if now.since(*since) < STARTS_WITHIN);
        let mut all = followers.iter();
        all.any(|id| self.is_behind(now, id) || starts(id))
    }

    /// Input up to `at` is committed. Returns up to where its output leaves now.
    pub fn committed(&mut self, at: Viewstamp) -> Option<Viewstamp> {
        if self.waits {
            self.held = Some(at);
            return None;
        }
        Some(at)
    }

    /// Up to where output leaves now although this leader waits.
    pub fn take_held(&mut self) -> Option<Viewstamp> {
        self.held.take()
    }

    /// This replica leads no more. Returns up to where output leaves now.
    pub fn follows(&mut self) -> Option<Viewstamp> {
        (self.are_too_few, self.waited) = (false, Micros::ZERO);
        (self.waits_since, self.behind_since) = (Micros::NEVER, Micros::NEVER);
        (self.turns_at, self.waits) = (Micros::NEVER, false);
        self.held.take()
    }

    /// When this replica has to look again. The log takes nothing of it if it is full.
    pub fn deadline(&self, is_full: bool) -> Micros {
        let say = if is_full || self.is_said() {
            Micros::NEVER
        } else {
            self.say_at
        };
        say.min(self.own.deadline()).min(self.turns_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plover_types::View;

    const ALL: [ReplicaId; 3] = [ReplicaId(0), ReplicaId(1), ReplicaId(2)];
    const FOLLOWERS: [ReplicaId; 2] = [ALL[1], ALL[2]];

    fn pace() -> Pace {
        Pace::new(ALL[0], ReplicaSet::of(ALL))
    }

    fn ms(ms: u64) -> Micros {
        Micros::from_ms(ms)
    }

    fn at(index: u64) -> Viewstamp {
        Viewstamp {
            view: View(16),
            index: Index(index),
        }
    }

    fn leads(pace: &mut Pace, now: u64) -> Option<Viewstamp> {
        pace.lead(ms(now), ReplicaSet::of(FOLLOWERS))
    }

    #[test]
    fn the_log_is_told_until_it_shows_it() {
        let mut pace = pace();
        pace.own.starts(ms(1000), Index(10));
        pace.look(ms(1000), Index(10), Index(5), true);
        assert_eq!(pace.says(ms(1000)), Some(Progress::Away));
        assert_eq!(pace.says(ms(1499)), None);
        assert_eq!(pace.says(ms(1500)), Some(Progress::Away));
        pace.said(ms(1600), ALL[0], Progress::Away);
        assert_eq!(pace.says(ms(9000)), None);
        pace.begins(ms(9000));
        assert_eq!(pace.says(ms(9000)), Some(Progress::Away));
    }

    #[test]
    fn a_program_that_is_behind_is_spoken_of_as_long_as_it_advances() {
        let mut pace = pace();
        pace.own.starts(ms(1000), Index(10));
        for (now, next) in [(1000, 5), (1500, 6), (2000, 7)] {
            pace.look(ms(now), Index(10), Index(next), false);
            assert_eq!(pace.says(ms(now)), Some(Progress::Behind));
            pace.said(ms(now), ALL[0], Progress::Behind);
        }
        assert_eq!(pace.deadline(false), ms(2500));
        assert_eq!(
            pace.deadline(true),
            ms(3000),
            "a full log takes no entry about it"
        );
    }

    /// The milliseconds of a second from `from` on in which the leader waits. Programs that are `behind` say so.
    fn waits_within(pace: &mut Pace, from: u64, behind: &[ReplicaId]) -> Vec<u64> {
        (from..from + 1000)
            .filter(|now| {
                for id in behind {
                    pace.said(ms(*now), *id, Progress::Behind);
                }
                leads(pace, *now);
                pace.waits
            })
            .collect()
    }

    #[test]
    fn two_thirds_of_the_time_are_for_a_majority_but_not_for_ever() {
        let mut pace = pace();
        let waits = waits_within(&mut pace, 0, &FOLLOWERS);
        assert_eq!(waits.len(), 680);
        assert_eq!(waits[..41], [(0..40).collect(), vec![60]].concat());
        // One away is as good as one in step: nobody can wait for it.
        pace.said(ms(1000), FOLLOWERS[1], Progress::Away);
        assert_eq!(waits_within(&mut pace, 1000, &FOLLOWERS[..1]).len(), 660);
        assert!(pace.are_too_few);
        waits_within(&mut pace, 2000, &FOLLOWERS);
        assert_eq!(waits_within(&mut pace, 3000, &FOLLOWERS).len(), 340);
        // Clients have waited long enough, until a majority was in step.
        pace.said(ms(4000), FOLLOWERS[0], Progress::InStep);
        assert_eq!(waits_within(&mut pace, 4000, &FOLLOWERS[1..]).len(), 340);
        assert!(!pace.are_too_few);
        assert_eq!(waits_within(&mut pace, 5000, &FOLLOWERS).len(), 660);
    }

    #[test]
    fn a_third_of_the_time_is_for_one_that_catches_up() {
        let mut pace = pace();
        let waits = waits_within(&mut pace, 0, &FOLLOWERS[..1]);
        assert_eq!(waits.len(), 340);
        assert_eq!(waits[..21], [(0..20).collect(), vec![60]].concat());
        leads(&mut pace, 2000);
        assert!(!pace.waits, "it has said nothing for a second");
        assert_eq!(pace.deadline(true), Micros::NEVER);
    }

    #[test]
    fn what_is_committed_waits_with_the_leader() {
        let mut pace = pace();
        pace.said(ms(0), FOLLOWERS[0], Progress::Behind);
        assert_eq!(leads(&mut pace, 0), None);
        assert_eq!(pace.committed(at(7)), None);
        assert_eq!(pace.committed(at(8)), None);
        assert_eq!(leads(&mut pace, 19), None);
        assert_eq!(pace.deadline(true), ms(20));
        assert_eq!(leads(&mut pace, 20), Some(at(8)));
        assert_eq!(pace.committed(at(9)), Some(at(9)));
        assert_eq!(pace.deadline(true), ms(60));
    }

    #[test]
    fn programs_that_are_away_are_not_waited_for() {
        let mut pace = pace();
        pace.said(ms(0), FOLLOWERS[0], Progress::Away);
        leads(&mut pace, 0);
        assert!(!pace.waits);
        pace.said(ms(0), FOLLOWERS[1], Progress::Away);
        leads(&mut pace, 0);
        assert!(!pace.waits, "nobody can catch up");
    }

    #[test]
    fn a_deposed_leader_holds_nothing_back() {
        let mut pace = pace();
        for follower in FOLLOWERS {
            pace.said(ms(0), follower, Progress::Behind);
        }
        leads(&mut pace, 0);
        assert_eq!(pace.committed(at(7)), None);
        assert_eq!(pace.follows(), Some(at(7)));
        assert_eq!(pace.committed(at(8)), Some(at(8)));
    }
}
