//! A peer and the link to it, for every fabric alike. The crate's page draws the link's states.
//!
//! The lower id dials, so that a pair never makes two links. A greeting of a new session ends the
//! old link at once: the peer has given it up, whatever this side still believes. (Another process of the peer does so only
//! if the one before is gone, `processes.rs`.) Each session
//! starts with empty rings and a salt of its own. The steps of a
//! handshake are the [`Handshake`]'s, the work on a link that is up is the [`Transport`]'s.

use crate::Lane;
use crate::context::{Context, Loss, No};
use crate::door::Visitor;
use crate::driver::{GreetingOf, Handshake, Transport};
use crate::hello::Refusal;
use crate::processes::{Process, Verdict};
use plover_types::ReplicaId;
use std::time::{Duration, Instant};
use tracing::debug;

/// How long a handshake may take.
pub const HELLO_WITHIN: Duration = Duration::from_millis(500);
/// The pace of dialling after a refusal, and how long a peer is kept away whose link was cut: only a person can mend that, so
/// the log need not fill.
const REFUSED_EVERY: Duration = Duration::from_secs(2);

/// A peer and the link to it.
#[derive(Debug)]
pub struct Peer<T: Transport> {
    pub id: ReplicaId,
    /// Where it listens.
    pub place: T::Place,
    pub link: Link<T>,
    /// When the last dialling began.
    dialled_at: Option<Instant>,
    /// When the last handshake began.
    trying_since: Instant,
    /// When to dial next, while down.
    dial_at: Instant,
    /// It has sent what no correct peer sends: until then no link to it is made.
    away_until: Option<Instant>,
}

/// How far the link to a peer is.
#[derive(Debug)]
pub enum Link<T: Handshake> {
    Down,
    Trying(Box<T::Trying>),
    Up(Box<T::Up>),
}

/// The outcome of a step of a handshake.
#[derive(Debug)]
pub enum Step<T: Handshake> {
    /// It goes on.
    Trying(T::Trying),
    /// The link is up.
    Up(T::Up),
    /// One side refuses the other.
    Refused(No),
}

impl<T: Transport> Peer<T> {
    pub fn new(id: ReplicaId, place: T::Place, now: Instant) -> Self {
        Self {
            id,
            place,
            link: Link::Down,
            dialled_at: None,
            trying_since: now,
            dial_at: now,
            away_until: None,
        }
    }

    /// Whether this side dials.
    fn dials(&self, context: &Context) -> bool {
        context.me < self.id
    }

    pub fn up(&self) -> Option<&T::Up> {
        match &self.link {
            Link::Up(up) => Some(up),
            _ => None,
        }
    }

    pub fn up_mut(&mut self) -> Option<&mut T::Up> {
        match &mut self.link {
            Link::Up(up) => Some(up),
            _ => None,
        }
    }

    /// Does something with a link that is up, and ends it if that fails.
    pub fn with_up(
        &mut self,
        context: &mut Context,
        now: Instant,
        what: impl FnOnce(&mut Context, &mut T::Up) -> Result<(), Loss>,
    ) {
        if let Link::Up(up) = &mut self.link {
            if let Err(loss) = what(context, up) {
                self.lose(context, now, &loss);
            }
        }
    }

    /// Goes on with a handshake.
    pub fn advance(&mut self, transport: &mut T, context: &mut Context, now: Instant) {
        match std::mem::replace(&mut self.link, Link::Down) {
            Link::Trying(trying) => {
                let step = transport.advance(context, self.id, *trying, now);
                self.take(context, now, step);
            }
            other => self.link = other,
        }
    }

    /// Whether a process of the peer that greets may have a link: not beside another one that lives. The error is a refusal,
    /// or none if that is not known yet.
    pub fn admit(
        &mut self,
        transport: &mut T,
        context: &mut Context,
        now: Instant,
        process: Process,
    ) -> Result<(), Option<No>> {
        let processes = context.processes_of(self.id);
        if let Some(why) = processes.objection(process) {
            return Err(Some(No::of_peer(why)));
        }
        if !processes.is_second(process) || self.up().is_none() {
            return Ok(());
        }
        // The end of the first one's link may have come, and was not read yet.
        self.with_up(context, now, |context, up| {
            let mut lanes = Lane::ALL.into_iter();
            lanes.try_for_each(|lane| transport.serve(context, up, lane, now))?;
            transport.tick(context, up, now)
        });
        let (since, begins) = context.processes_of(self.id).contest(process, now);
        let mut lives = false;
        self.with_up(context, now, |context, up| {
            if begins {
                transport.challenge(context, up)?;
            }
            lives = transport.lives(up, since, now)?;
            Ok(())
        });
        if self.up().is_none() {
            return Ok(());
        }
        match context.processes_of(self.id).decide(lives, now) {
            Verdict::Welcome => Ok(()),
            Verdict::Wait => Err(None),
            Verdict::Refused => Err(Some(No::of_peer(Refusal::Twin))),
        }
    }

    /// The peer greeted, and nothing speaks against it. Ends the link there is, unless the greeting
    /// belongs to it.
    pub fn welcome(
        &mut self,
        transport: &mut T,
        context: &mut Context,
        now: Instant,
        visitor: Visitor<T::Listener>,
        mine: GreetingOf<T>,
    ) {
        let trying = match std::mem::replace(&mut self.link, Link::Down) {
            Link::Trying(trying) if T::is_continued(&trying, &visitor.greeting) => Some(*trying),
            Link::Down => None,
            other => {
                self.link = other;
                self.lose(context, now, &Loss::Superseded);
                None
            }
        };
        if trying.is_none() {
            self.trying_since = now;
        }
        let step = transport.welcome(context, trying, visitor, mine, now);
        self.take(context, now, step);
    }

    fn take(&mut self, context: &mut Context, now: Instant, step: Result<Step<T>, Loss>) {
        match step {
            Ok(Step::Trying(trying)) => self.link = Link::Trying(Box::new(trying)),
            Ok(Step::Up(up)) => {
                context.up(self.id);
                self.link = Link::Up(Box::new(up));
            }
            Ok(Step::Refused(why)) => {
                self.heed(context, &why);
                context.refused(self.id, &self.place, &why, now);
                self.link = Link::Down;
                self.dial_at = now + REFUSED_EVERY;
            }
            Err(loss) => self.lose(context, now, &loss),
        }
    }

    /// Takes in and delivers what has come on one lane.
    pub fn serve(&mut self, transport: &mut T, context: &mut Context, now: Instant, lane: Lane) {
        self.with_up(context, now, |context, up| {
            transport.serve(context, up, lane, now)
        });
    }

    /// Does what is due by the clock: dials, gives up, looks for silence and for the link's end.
    pub fn tick(&mut self, transport: &mut T, context: &mut Context, now: Instant) {
        match &self.link {
            Link::Down if self.dials(context) && now >= self.dial_at => {
                self.dialled_at = Some(now);
                self.trying_since = now;
                self.dial_at = now + T::DIAL_EVERY;
                let step = transport.dial(context, self.id, &self.place);
                match step {
                    // No route, nobody there, no descriptor left: it is dialled again.
                    Err(loss) => {
                        debug!(peer = %self.id, place = %self.place, %loss, "cannot dial");
                    }
                    step => self.take(context, now, step),
                }
            }
            Link::Down => {}
            Link::Trying(trying) => {
                let (patience, what) = T::patience(trying);
                if now >= self.trying_since + patience {
                    self.lose(context, now, &Loss::Late(what));
                }
            }
            Link::Up(_) => {
                self.with_up(context, now, |context, up| transport.tick(context, up, now));
            }
        }
    }

    /// When `tick` has to be called next; none while only the peer can change anything.
    pub fn due_at(&self, context: &Context) -> Option<Instant> {
        match &self.link {
            Link::Down => self.dials(context).then_some(self.dial_at),
            Link::Trying(trying) => Some(self.trying_since + T::patience(trying).0),
            Link::Up(up) => T::due_at(up),
        }
    }

    /// The peer has sent `why` over a link that is up.
    pub fn cut(&mut self, context: &mut Context, now: Instant, why: &str) {
        if self.up().is_some() {
            self.lose(context, now, &Loss::Cut(why.to_owned()));
            self.dial_at = now + REFUSED_EVERY;
            self.away_until = Some(self.dial_at);
        }
    }

    /// Whether its link was cut a moment ago.
    pub fn is_kept_away(&self, now: Instant) -> bool {
        self.away_until.is_some_and(|until| now < until)
    }

    /// Ends the link, or the attempt to make one.
    pub fn lose(&mut self, context: &mut Context, now: Instant, loss: &Loss) {
        let was_up = self.up().is_some();
        self.link = Link::Down;
        // At once, but never faster than the pace.
        let paced = self.dialled_at.map_or(now, |at| at + T::DIAL_EVERY);
        self.dial_at = now.max(paced);
        if let Loss::Refused(why) = loss {
            self.heed(context, why);
        }
        context.lost(self.id, &self.place, was_up, loss);
    }

    fn heed(&self, context: &mut Context, why: &No) {
        if self.dials(context) {
            context.answered_no(self.id, why);
        }
    }
}
