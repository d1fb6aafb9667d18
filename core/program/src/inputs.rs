//! What each entry of the log does to a replica.

use crate::api::{Action, Entrance, Note, Taint};
use crate::canary::canary;
use crate::checkpoints::REPEAT;
use crate::direct::Fate;
use crate::phase::Quiet;
use crate::replica::{Replica, propose};
use crate::session::Open;
use crate::{ConnectionId, Entry, Held, Phase, Session};
use plover_types::{Index, Micros, ReplicaId, Viewstamp};

/// How long a checkpoint that keeps connections waits until all requests are answered. The replica falls behind meanwhile.
const ANSWERED_WITHIN: Micros = Micros::from_ms(500);

impl Replica {
    /// Takes the entry that the replica wanted.
    pub(crate) fn on_entry(
        &mut self,
        now: Micros,
        at: Viewstamp,
        bytes: Option<&[u8]>,
        out: &mut Vec<Action>,
    ) {
        assert_eq!(Some(at.index), self.wants(), "another entry was wanted");
        let entry = bytes.and_then(Entry::decode);
        if let Phase::Looking { next } | Phase::Fetching { next, .. } = &mut self.phase {
            *next = at.index.next();
            if let Some(entry) = entry {
                self.agree(now, &entry, out);
            }
            return;
        }
        self.feed.bytes += bytes.map_or(0, |it| it.len() as u64);
        if self.feed.ahead.is_some() {
            match self.compare(at) {
                Fate::Committed => {
                    if self.skip(at, entry.as_ref(), out) {
                        return;
                    }
                }
                Fate::Lost if self.config.entrance == Entrance::HoldsInput => {
                    self.feed.ahead = None;
                    out.push(Action::Forget);
                }
                Fate::Lost => return self.taint(now, Taint::Ahead, out),
            }
        }
        match (entry, bytes) {
            (Some(entry), Some(bytes)) if !self.may_give(now, &entry) => {
                drop(entry);
                self.feed.held = Some((at, bytes.to_vec()));
            }
            (entry, _) => {
                self.feed.next = at.index.next();
                if let Some(entry) = entry {
                    self.give(now, at, &entry, out);
                }
            }
        }
    }

    /// The program has read or sent something, or has had its time: the entry that waited for it may go on.
    pub(crate) fn go_on(&mut self, now: Micros, out: &mut Vec<Action>) {
        if let Some((at, bytes)) = self.feed.held.take() {
            match Entry::decode(&bytes) {
                Some(entry) if !self.may_give(now, &entry) => self.feed.held = Some((at, bytes)),
                Some(entry) => {
                    self.feed.next = at.index.next();
                    self.give(now, at, &entry, out);
                }
                None => unreachable!("only entries that were decoded are held"),
            }
        }
        if let Some(at) = self.feed.checkpoint.filter(|_| self.feed.is_read()) {
            // The program has noticed that all its connections are closed, or has nothing to do on them.
            if !self.taking {
                self.take_checkpoint(now, at, out);
            }
        }
    }

    fn take_checkpoint(&mut self, now: Micros, at: Viewstamp, out: &mut Vec<Action>) {
        let is_answered = self.feed.is_answered() || canary!(self.config, TakeUnanswered);
        let until = self.feed.answers_until;
        // A program that sends without being asked may never be quiet.
        let is_over = now >= until && (!is_answered || now >= until + ANSWERED_WITHIN);
        if is_answered && now >= self.feed.settles_at() {
            self.taking = true;
            out.push(Action::TakeCheckpoint(at, self.feed.state()));
        } else if is_over && !self.feed.open.is_empty() {
            self.feed.checkpoint = None;
            self.refuse(now);
            out.push(Action::Note(Note::Unanswered));
        }
    }

    /// When it is looked again whether the checkpoint that holds up the program can be taken.
    pub(crate) fn checkpoint_due(&self) -> Micros {
        let feed = &self.feed;
        match feed.checkpoint {
            Some(_) if self.taking || !feed.is_read() => Micros::NEVER,
            Some(_) if feed.is_answered() => feed.settles_at(),
            Some(_) => feed.answers_until,
            None => Micros::NEVER,
        }
    }

    /// Opens connections to a program that was restored, and tells it their logins.
    pub(crate) fn open_again(
        &mut self,
        now: Micros,
        sessions: Vec<Session>,
        out: &mut Vec<Action>,
    ) {
        for session in sessions {
            let (connection, login) = (session.connection, session.login.clone());
            out.push(Action::Connect(connection, session.client));
            self.feed.gives(now, connection, login.len());
            if !login.is_empty() {
                out.push(Action::Feed(connection, login));
            }
            let open = Open::again(session, self.config.sessions);
            self.feed.open.insert(connection, open);
        }
    }

    /// Whether the program may be given this entry now: it has read the entries of other connections, and answered what an end
    /// would let it give up.
    fn may_give(&mut self, now: Micros, entry: &Entry<'_>) -> bool {
        let is_read = match entry {
            _ if canary!(self.config, FeedTogether) => true,
            Entry::Bytes(connection, ..)
            | Entry::End(connection, _)
            | Entry::Close(connection, _) => {
                !self.feed.open.contains_key(connection) || self.feed.admits(*connection)
            }
            Entry::Accept(_) | Entry::Cut(_) | Entry::Clock(_) | Entry::Checkpoint(_) => {
                self.feed.is_read()
            }
            _ => true,
        };
        let hears = canary!(self.config, EndUnanswered);
        is_read && (hears || self.feed.has_answered(now, entry))
    }

    /// Gives the program its next entry, or takes note of what the replicas agree on.
    fn give(&mut self, now: Micros, at: Viewstamp, entry: &Entry<'_>, out: &mut Vec<Action>) {
        match entry {
            Entry::Accept(client) => {
                let connection = ConnectionId(at);
                self.feed.opens(connection, *client);
                self.feed.gives(now, connection, 0);
                out.push(Action::Connect(connection, *client));
            }
            Entry::Bytes(connection, after, bytes) => {
                if let Some(open) = self.feed.open.get_mut(connection) {
                    open.gives(*after, bytes, self.config.sessions);
                    self.feed.gives(now, *connection, bytes.len());
                    out.push(Action::Feed(*connection, bytes.to_vec()));
                }
            }
            Entry::End(connection, _) => {
                if let Some(open) = self.feed.open.get_mut(connection) {
                    open.ended = true;
                    self.feed.gives(now, *connection, 0);
                    out.push(Action::EndInput(*connection));
                }
            }
            Entry::Close(connection, _) => self.close(now, *connection, out),
            Entry::Clock(time) => {
                self.feed.time = *time;
                out.push(Action::Clock(*time));
            }
            Entry::Cut(by) => self.cut(now, at, *by, out),
            Entry::Checkpoint(by) => {
                let follows = self.phase == Phase::Following;
                self.asked(now, at, *by, follows, out);
            }
            _ => self.agree(now, entry, out),
        }
    }

    fn close(&mut self, now: Micros, connection: ConnectionId, out: &mut Vec<Action>) {
        if self.feed.open.remove(&connection).is_some() {
            self.feed.gives(now, connection, 0);
            self.check.closed(connection);
            out.push(Action::Close(connection));
        }
    }

    /// All connections end here, and perhaps a checkpoint is taken.
    fn cut(&mut self, now: Micros, at: Viewstamp, by: Option<ReplicaId>, out: &mut Vec<Action>) {
        // A leader's program gets the input that it has read itself before its connections end.
        out.extend(self.pace.take_held().map(Action::Release));
        let all: Vec<ConnectionId> = self.feed.open.keys().copied().collect();
        for connection in all {
            self.close(now, connection, out);
        }
        if self.feed.is_read() {
            // A leader's program that left its clients unread has none any more.
            self.stalled = false;
        }
        let mut may_take = true;
        if let Phase::Leading {
            view,
            opened,
            quiet,
            ..
        } = &mut self.phase
        {
            // A cut that was proposed twice may come again while the next one is being prepared.
            if matches!(quiet, Quiet::Done(last) if at.index > *last) {
                *quiet = Quiet::Reads;
                self.repeat_at = now + self.checkpoints.pause();
            }
            // A leader takes none, since its clients would wait, unless it has chosen itself.
            may_take = at.view == *view;
            if at.view == *view && opened.is_none() {
                *opened = Some(at);
                out.push(Action::Note(Note::Serves(*view)));
            }
        }
        match by {
            Some(by) => self.asked(now, at, by, may_take, out),
            None => self.pace.begins(now),
        }
    }

    /// A checkpoint is asked of `by`: of this replica, perhaps, if it may take one now.
    fn asked(
        &mut self,
        now: Micros,
        at: Viewstamp,
        by: ReplicaId,
        may_take: bool,
        out: &mut Vec<Action>,
    ) {
        self.feed.bytes = 0;
        self.checkpoints.asked(now, at, by, &self.config);
        let is_old = self.checkpoints.newest().is_some_and(|newest| newest >= at);
        if by != self.config.me || is_old {
            return;
        }
        if self.failed_at.is_some_and(|failed| failed >= at) {
            // The log may say so already, behind this entry.
            self.refuse(now + REPEAT);
            return;
        }
        if may_take && self.config.checkpoints {
            self.feed.checkpoint = Some(at);
            self.feed.answers_until = now + ANSWERED_WITHIN;
            self.go_on(now, out);
        } else {
            self.refuse(now);
        }
    }

    /// Takes note of an entry that the program does not get.
    fn agree(&mut self, now: Micros, entry: &Entry<'_>, out: &mut Vec<Action>) {
        match entry {
            Entry::Claims(replica, claims) => {
                let verdicts = claims
                    .iter()
                    .filter_map(|claim| self.check.claimed(*replica, claim));
                let verdicts = verdicts.collect();
                self.judge(now, verdicts, out);
            }
            Entry::Excerpt(excerpt) => {
                if let Some(both) = self.check.excerpted(excerpt.clone()) {
                    out.push(Action::Note(Note::Excerpts(both)));
                }
            }
            Entry::Holds(held) => self.holds(held.clone(), out),
            Entry::Progress(replica, progress) => self.pace.said(now, *replica, *progress),
            Entry::Cut(None) => self.pace.begins(now),
            Entry::Needs(replica) => {
                self.refuses &= *replica != self.config.me;
                self.checkpoints.needs(*replica);
            }
            Entry::Tainted(replica, executed) => {
                self.noted.remove(*replica);
                if *replica == self.config.me {
                    self.confesses = self.confesses.filter(|it| it > executed);
                }
                let wrong = self.checkpoints.tainted(*replica, *executed);
                out.extend(wrong.map(Action::Discard));
            }
            _ => {}
        }
    }

    /// A replica holds a checkpoint.
    fn holds(&mut self, held: Held, out: &mut Vec<Action>) {
        self.checkpoints.named(held);
        self.trim(out);
    }

    /// Fetches the newest checkpoint, if this replica lacks it.
    pub(crate) fn keep_up(&mut self, out: &mut Vec<Action>) {
        if self.config.checkpoints && self.phase.executes() && self.feed.checkpoint.is_none() {
            if let Some(held) = self.checkpoints.lacks(self.log.base) {
                self.fetch(held, out);
            }
        }
    }

    /// Asks for a checkpoint of another replica.
    pub(crate) fn fetch(&mut self, held: Held, out: &mut Vec<Action>) {
        (self.checkpoints.fetching, self.checkpoints.spoiled) = (Some(held.clone()), false);
        out.push(Action::Fetch(held));
    }

    /// Tells the group that this replica takes no checkpoint, although it was asked.
    pub(crate) fn refuse(&mut self, now: Micros) {
        (self.refuses, self.say_at) = (true, now);
    }

    /// Asks the leader for a checkpoint.
    pub(crate) fn need(&mut self, out: &mut Vec<Action>) {
        out.push(propose(&Entry::Needs(self.config.me)));
    }

    /// The entry behind `from`, which a restored program gets first.
    pub(crate) fn first_after(from: Option<Viewstamp>) -> Index {
        from.map_or(Index(1), |it| it.index.next())
    }
}
