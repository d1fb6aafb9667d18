//! How a program starts: from nothing, from this replica's checkpoint, or from another one's.

use crate::api::{Action, Note, Own, Taint};
use crate::canary::canary;
use crate::check::Check;
use crate::checkpoints::REPEAT;
use crate::feed::Feed;
use crate::replica::Replica;
use crate::{ConnectionId, Held, Phase, State};
use plover_types::{Index, Micros, Viewstamp};

/// How long a program that has failed waits before it starts again: the first time, and at most.
const AGAIN_AFTER: Micros = Micros::from_ms(100);
const AGAIN_AFTER_MAX: Micros = Micros::from_ms(30_000);
/// A program that has run for this long is sound again.
const SOUND_AFTER: Micros = Micros::from_ms(60_000);

/// A checkpoint from which a program has not started so often is doubted: something newer is tried. It is kept all the
/// same, since most starts fail for reasons that are none of its own (a port in use, a wrong argument, a full disk), and then
/// it may be the last one there is.
const TRIES_MAX: u32 = 3;

/// What the log says about this replica's checkpoint.
enum Standing {
    /// The log goes on behind it.
    Sound,
    /// It is of another log, or the log begins later.
    Void,
    /// The log does not reach it yet.
    Unknown,
}

impl Replica {
    /// The program is not as the log says: it is stopped, and restored after a while.
    pub(crate) fn taint(&mut self, now: Micros, why: Taint, out: &mut Vec<Action>) {
        if !self.phase.executes() && !matches!(self.phase, Phase::Restoring { .. }) {
            return;
        }
        if matches!(self.phase, Phase::Leading { .. }) {
            out.push(Action::DropClients);
        }
        if now.since(self.runs_since) >= SOUND_AFTER {
            self.failures = 0;
        }
        if let (Phase::Restoring { from }, true) = (&self.phase, self.failures >= TRIES_MAX) {
            // The alternative to a doubted checkpoint has failed as well: the own one is tried again.
            self.doubted = from.filter(|_| self.doubted.is_none());
        }
        let is_late = why == Taint::Behind;
        let shift = self.failures.min(16);
        let pause = Micros(AGAIN_AFTER.0 << shift).min(AGAIN_AFTER_MAX);
        let until = if is_late { now } else { now + pause };
        self.failures += u32::from(!is_late);
        out.push(Action::Stop);
        out.push(Action::Note(Note::Restores(why.clone())));
        self.checkpoints.given_up();
        if std::mem::take(&mut self.refuses) {
            // Said once more; the program meets that cut again.
            self.need(out);
        }
        if let Some(at) = self.feed.checkpoint.filter(|_| self.taking) {
            self.failed_at = self.failed_at.max(Some(at));
        }
        (self.stalled, self.taking) = (false, false);
        self.runs_since = Micros::NEVER;
        self.pace.stops(now);
        self.feed = Feed::new(Index(1));
        self.phase.enter(Phase::Tainted { why, until });
    }

    /// Goes on towards a program that runs.
    pub(crate) fn advance_start(&mut self, now: Micros, out: &mut Vec<Action>) {
        match self.phase {
            Phase::Tainted { until, .. } if now >= until => {
                let next = self.log.base.next();
                self.phase.enter(Phase::Looking { next });
            }
            Phase::Tainted { .. } => return,
            _ => {}
        }
        let Phase::Looking { next } = self.phase else {
            return;
        };
        if let Some(own) = self.own() {
            let at = own.at;
            let standing = match self.has_found_wrong(own.taken_by, at) {
                true => Standing::Void,
                false => self.standing(at),
            };
            match standing {
                Standing::Sound if self.tries_another(at) => {}
                Standing::Sound => return self.start(Some(at), out),
                Standing::Unknown => {
                    self.repeat_at = now + REPEAT;
                    return;
                }
                Standing::Void => {
                    out.push(Action::Discard(at));
                    self.checkpoints.disown();
                }
            }
        }
        if self.log.base == Index(0) {
            return self.start(None, out);
        }
        if self.wants().is_some() {
            // There may be a newer checkpoint in what the log has still.
            return;
        }
        if self.checkpoints.fetching.is_some() {
            // Begun before the program was stopped.
            self.repeat_at = self.repeat_at.max(now + REPEAT);
            return;
        }
        if let Some(held) = self.another().cloned() {
            let at = held.at;
            self.fetch(held, out);
            self.phase.enter(Phase::Fetching { next, at });
        } else if now >= self.repeat_at {
            // Each one makes all clients connect again.
            self.repeat_at = now + crate::checkpoints::pause_after(self.needs);
            self.needs += 1;
            self.checkpoints.forgive();
            self.need(out);
            if !std::mem::replace(&mut self.lacks, true) {
                out.push(Action::Note(Note::NoCheckpoint));
            }
        }
    }

    /// Another replica's checkpoint to start from: newer than this replica's own.
    fn another(&self) -> Option<&Held> {
        let own = self.own().map(|own| own.at);
        let best = self.checkpoints.best(self.log.base);
        best.filter(|it| Some(it.at) > own && !self.has_found_wrong(it.taken_by, it.at))
    }

    /// Whether something else is tried than this replica's own checkpoint, which is at `at`.
    fn tries_another(&self, at: Viewstamp) -> bool {
        self.doubted == Some(at) && (self.log.base == Index(0) || self.another().is_some())
    }

    /// Whether the log does not say yet what this replica's checkpoint is worth.
    pub(crate) fn waits_for_the_log(&self) -> bool {
        let unknown = |own: &Own| matches!(self.standing(own.at), Standing::Unknown);
        self.own().is_some_and(unknown)
    }

    /// What the log says about a checkpoint at `at`. Views never fall along a log, so a log that has a later
    /// view before that index is another one.
    fn standing(&self, at: Viewstamp) -> Standing {
        let log = &self.log;
        if log.base > at.index {
            return Standing::Void;
        }
        match log.at_own {
            Some(there) if there == at => Standing::Sound,
            Some(_) => Standing::Void,
            None if log.last.index < at.index && log.last.view > at.view => Standing::Void,
            None => Standing::Unknown,
        }
    }

    fn start(&mut self, from: Option<Viewstamp>, out: &mut Vec<Action>) {
        (self.lacks, self.needs) = (false, 0);
        self.phase.enter(Phase::Restoring { from });
        self.pace.restores();
        out.push(Action::Start(from));
    }

    pub(crate) fn on_started(&mut self, now: Micros, state: State, out: &mut Vec<Action>) {
        let Phase::Restoring { from } = self.phase else {
            return;
        };
        let mut next = Self::first_after(from);
        if from.is_some() && canary!(self.config, SkipEntry) {
            next = next.next();
        }
        self.feed = Feed::new(next);
        self.feed.time = state.time;
        self.check = Check::new(self.config.me, self.config.members, self.config.check);
        (self.runs_since, self.doubted) = (now, None);
        self.pace.own.starts(now, self.log.commit);
        self.phase.enter(Phase::Following);
        out.push(Action::Note(Note::Runs(Index(next.0 - 1))));
        self.open_again(now, state.sessions, out);
    }

    /// A checkpoint was taken, or not.
    pub(crate) fn on_taken(
        &mut self,
        now: Micros,
        result: Result<Own, String>,
        out: &mut Vec<Action>,
    ) {
        self.taking = false;
        let Some(at) = self.feed.checkpoint.take() else {
            // The program was stopped meanwhile. A checkpoint that is whole is as good as any.
            return;
        };
        match result {
            Ok(own) => {
                assert_eq!(own.at, at, "another checkpoint was asked for");
                self.checkpoints.owns(own);
                if self.config.restarts {
                    let sessions = self.feed.take_sessions();
                    self.open_again(now, sessions, out);
                }
            }
            Err(why) => {
                // The leader asks another replica.
                self.failed_at = self.failed_at.max(Some(at));
                self.refuse(now);
                out.push(Action::Note(Note::CheckpointFailed(why)));
            }
        }
        self.go_on(now, out);
    }

    /// A checkpoint of another replica is here, or not.
    pub(crate) fn on_fetched(
        &mut self,
        now: Micros,
        result: Result<Own, String>,
        out: &mut Vec<Action>,
    ) {
        match result {
            Ok(own) if self.checkpoints.spoiled => {
                self.checkpoints.fetching = None;
                out.push(Action::Discard(own.at));
            }
            Ok(own) => {
                self.checkpoints.fetching = None;
                if self.own().is_none_or(|it| it.at < own.at) {
                    self.checkpoints.owns(own);
                }
            }
            Err(why) => {
                // The own one is tried again before another replica is asked.
                self.doubted = None;
                self.checkpoints.fetch_failed(now);
                // Perhaps nobody can give it any more.
                self.checkpoints.needed |= self.is_full();
                out.push(Action::Note(Note::CheckpointFailed(why)));
            }
        }
        if let Phase::Fetching { next, .. } = self.phase {
            self.phase.enter(Phase::Looking { next });
        }
    }

    /// The connections that are open at the program.
    pub fn connections(&self) -> impl Iterator<Item = ConnectionId> {
        self.feed.open.keys().copied()
    }
}

#[cfg(test)]
mod tests;
