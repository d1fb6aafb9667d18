//! The checkpoints that the group holds, and when the next one is due.
//!
//! ```text
//!   leader: Cut(by) ─► `by` holds its input there and takes one ─► Holds ─► the others fetch it ─► Holds …
//!                                                  a majority holds it: the leader trims the log up to it
//! ```

use crate::api::Own;
use crate::{Config, Held};
use plover_types::{Index, Micros, ReplicaId, ReplicaSet, Viewstamp};
use std::collections::BTreeMap;

/// How often a proposal that the log does not show is repeated.
pub(crate) const REPEAT: Micros = Micros::from_ms(500);

/// After this time a replica that could not give its checkpoint is asked again.
const FETCH_AGAIN: Micros = Micros::from_ms(5000);

/// After so many failures in a row, checkpoints are asked for once a minute.
const PAUSE_DOUBLES_MAX: u32 = 7;

/// After so many failures in a row clients are cut off for a checkpoint.
const KEEPS_MAX: u32 = 2;

/// The pause after so many attempts in vain.
pub(crate) fn pause_after(failures: u32) -> Micros {
    Micros(REPEAT.0 << failures.min(PAUSE_DOUBLES_MAX))
}

/// A checkpoint that was asked for.
#[derive(Clone, Copy, Debug)]
struct Asked {
    /// With this entry.
    at: Viewstamp,
    /// Of this replica.
    by: ReplicaId,
    /// It is waited for until then,
    until: Micros,
    /// and until then while the log is full.
    until_if_full: Micros,
}

#[derive(Clone, Debug)]
pub(crate) struct Checkpoints {
    me: ReplicaId,
    quorum: usize,
    /// The newest one of each replica.
    held: BTreeMap<ReplicaId, Held>,
    /// The one on this replica's disk.
    pub own: Option<Own>,
    /// When `own` is announced again, until the log shows it.
    announce_at: Micros,
    /// The one that is on its way here.
    pub fetching: Option<Held>,
    /// The program that took it was found to have diverged meanwhile.
    pub spoiled: bool,
    /// Replicas that could not give the newest one.
    failed: ReplicaSet,
    /// When they are asked again.
    forgive_at: Micros,
    /// One was asked for.
    asked: Option<Asked>,
    /// Replicas that were asked and did nothing: others are asked first.
    pub late: ReplicaSet,
    /// How many in a row did not come. Each one cut off the clients, so the next ones come ever more rarely.
    pub failures: u32,
    /// How many were asked for.
    pub attempts: usize,
    /// One is due at once: a replica needs it, or the last one did not come.
    pub needed: bool,
    /// A replica has none to start from.
    lacking: bool,
    /// The replica that was asked last, and has taken none. It may say so twice.
    refused: Option<ReplicaId>,
    /// Of each replica whose program had diverged: the last entry executed before, as told last. The replica repeats it until
    /// the log shows it, and each time would be a need of its own.
    diverged: BTreeMap<ReplicaId, Index>,
}

impl Checkpoints {
    pub fn new(config: &Config, own: Option<Own>) -> Self {
        Self {
            me: config.me,
            quorum: config.members.len() / 2 + 1,
            held: BTreeMap::new(),
            announce_at: if own.is_some() {
                Micros::ZERO
            } else {
                Micros::NEVER
            },
            own,
            fetching: None,
            spoiled: false,
            failed: ReplicaSet::EMPTY,
            forgive_at: Micros::NEVER,
            asked: None,
            late: ReplicaSet::EMPTY,
            failures: 0,
            attempts: 0,
            needed: false,
            lacking: false,
            refused: None,
            diverged: BTreeMap::new(),
        }
    }

    /// This replica has another checkpoint.
    pub fn owns(&mut self, own: Own) {
        self.own = Some(own);
        self.announce_at = Micros::ZERO;
    }

    pub fn disown(&mut self) {
        self.own = None;
        self.announce_at = Micros::NEVER;
    }

    /// What is to be announced now.
    pub fn announce(&mut self, now: Micros, address: &str) -> Option<Held> {
        if now < self.announce_at {
            return None;
        }
        let own = self.own.clone()?;
        self.announce_at = now + REPEAT;
        Some(Held {
            replica: self.me,
            at: own.at,
            taken_by: own.taken_by,
            bytes: own.bytes,
            sum: own.sum,
            address: address.into(),
        })
    }

    pub fn deadline(&self) -> Micros {
        let asked = self.asked.map_or(Micros::NEVER, |it| it.until);
        self.announce_at.min(asked).min(self.forgive_at)
    }

    /// The log names a checkpoint.
    pub fn named(&mut self, held: Held) {
        if held.replica == self.me && self.own.as_ref().is_some_and(|own| own.at == held.at) {
            self.announce_at = Micros::NEVER;
        }
        if self.asked.is_some_and(|it| it.at <= held.at) {
            self.asked = None;
            self.failures = 0;
        }
        let newest = self.held.values().map(|it| it.at).max();
        self.late.remove(held.taken_by);
        if newest.is_none_or(|newest| newest < held.at) {
            (self.needed, self.lacking) = (false, false);
            self.forgive();
        }
        self.held.insert(held.replica, held);
    }

    /// The program of `replica` had diverged when it had executed the entry `executed`: the checkpoints that it has taken up to
    /// there are forgotten, and what it was asked for does not come. Returns this replica's own, if it is one of them.
    pub fn tainted(&mut self, replica: ReplicaId, executed: Index) -> Option<Viewstamp> {
        let is_wrong = |taken_by, at: Viewstamp| taken_by == replica && at.index <= executed;
        self.held.retain(|_, it| !is_wrong(it.taken_by, it.at));
        let fetching = self.fetching.as_ref();
        self.spoiled |= fetching.is_some_and(|it| is_wrong(it.taken_by, it.at));
        if self.diverged.insert(replica, executed) != Some(executed) {
            self.needs(replica);
        }
        let own = self.own.as_ref().map(|it| (it.taken_by, it.at));
        let wrong = own.filter(|(taken_by, at)| is_wrong(*taken_by, *at))?;
        self.disown();
        Some(wrong.1)
    }

    /// The newest checkpoint of another replica that begins no earlier than the log.
    pub fn best(&self, base: Index) -> Option<&Held> {
        let others = self.held.values();
        let usable = others.filter(|it| it.replica != self.me && it.at.index >= base);
        let usable = usable.filter(|it| !self.failed.contains(it.replica));
        usable.max_by_key(|it| it.at)
    }

    /// A newer one than this replica's own, if none is on its way.
    pub fn lacks(&self, base: Index) -> Option<Held> {
        let own = self.own.as_ref().map(|own| own.at);
        let newer = self.best(base).filter(|it| Some(it.at) > own);
        newer.filter(|_| self.fetching.is_none()).cloned()
    }

    /// The one that is on its way did not come.
    pub fn fetch_failed(&mut self, now: Micros) {
        if let Some(held) = self.fetching.take() {
            self.failed.insert(held.replica);
            self.forgive_at = now + FETCH_AGAIN;
        }
    }

    /// All replicas may be asked again.
    pub fn forgive(&mut self) {
        self.failed = ReplicaSet::EMPTY;
        self.forgive_at = Micros::NEVER;
    }

    /// The newest one is at this entry.
    pub fn newest(&self) -> Option<Viewstamp> {
        self.held.values().map(|it| it.at).max()
    }

    /// Up to where the log may be trimmed: a majority can start from there.
    pub fn trim_to(&self, early: bool) -> Option<Index> {
        let mut at: Vec<_> = self.held.values().map(|it| it.at.index).collect();
        at.sort_unstable();
        let quorum = if early { 1 } else { self.quorum };
        at.len().checked_sub(quorum).map(|place| at[place])
    }

    /// The log asks `by` for a checkpoint at `at`.
    pub fn asked(&mut self, now: Micros, at: Viewstamp, by: ReplicaId, config: &Config) {
        self.asked = Some(Asked {
            at,
            by,
            until: now + config.checkpoint_within,
            until_if_full: now + config.checkpoint_within_if_full,
        });
        self.refused = None;
        self.needed = false;
    }

    /// Waits no longer for a replica that is late or not there. Followers look, too: any of them may lead next.
    pub fn look(&mut self, now: Micros, linked: ReplicaSet, is_full: bool) {
        if now >= self.forgive_at {
            self.forgive();
        }
        if let Some(Asked {
            by,
            until,
            until_if_full,
            ..
        }) = self.asked
        {
            let is_late = now >= until || (is_full && by != self.me && now >= until_if_full);
            if is_late {
                self.late.insert(by);
            }
            if is_late || (by != self.me && !linked.contains(by)) {
                self.given_up();
            }
        }
    }

    /// Whether one is waited for.
    pub fn waits(&self) -> bool {
        self.asked.is_some()
    }

    /// `replica` has no checkpoint, and takes none.
    pub fn needs(&mut self, replica: ReplicaId) {
        if self.asked.is_some_and(|it| it.by == replica) {
            self.given_up();
            self.refused = Some(replica);
        } else if self.refused != Some(replica) {
            self.lacking = true;
        }
        self.needed = true;
    }

    /// The one that was asked for will not come.
    pub fn given_up(&mut self) {
        if self.asked.take().is_some() {
            self.failures += 1;
            self.needed = true;
        }
    }

    /// Whether the next one leaves clients connected. If the last ones did not come, some request is not answered, such
    /// as one that waits for another client's; then only as long as it has time.
    pub fn may_keep(&self, has_time: bool) -> bool {
        self.failures < KEEPS_MAX || (has_time && !self.lacking)
    }

    /// How long the next one waits at least behind the last.
    pub fn pause(&self) -> Micros {
        pause_after(self.failures)
    }
}
