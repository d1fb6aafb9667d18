//! How long a leader may be silent before it is suspected, learned from how its messages come.
//!
//! ```text
//!   leader                                        backup
//!      -- Append{span} -->                        notes the longest silence between two messages;
//!                                                 refuses its vote for `span` from now
//!      <-- Ack{stamp, span, wanted} --            `wanted`: twice the longest silence of late
//!   span = the longest that a living voter wants
//!   lease = what the voters refuse for, less an eighth
//! ```
//!
//! A fixed timeout has to fit the busiest host of all, and everybody waits for it whenever a host
//! dies. So each backup watches its own link, and the leader takes the longest of what the voters ask
//! for. It lies between two bounds of the configuration ([`Config::timeout_min`] and
//! [`Config::timeout`]).
//!
//! # Why the lease holds
//!
//! The leader's lease rests on the span for which a voter refuses ([`Apus::lease_until`]). A voter
//! refuses for the span that stood in the message, from when that came, and what it has promised
//! earlier it keeps: a shorter span does not end a longer one. The leader counts from when it *sent* a
//! message with the span that stood in *that* message, which the answer returns. So it does not
//! matter in what order spans, messages and answers arrive.
//!
//! # A process that stood still itself
//!
//! A process that wakes late, from a busy host or a write that blocked, has not yet read what others sent
//! meanwhile, and its peers had nothing to answer. So a silence whose end is found a heartbeat late or more
//! lasts for two heartbeats more before it counts: the next turn reads what waits, and peers
//! answer a heartbeat. This happens once in a silence: a host that is always late would otherwise never
//! suspect anybody.
//!
//! # What is not learned
//!
//! A new leader's link is not known yet, so it begins with the longest span. The same span holds when
//! the leader before has answered the new one within the last ten minutes, and had not resigned: then it
//! had only been slow. In a pair, whose members take over without a
//! majority, the span never changes. For a backup that is silent the leader always waits for
//! [`Config::timeout`]: to drop one wrongly costs a copy of the guest.

use crate::canary::canary;
use crate::{Apus, Config, Role};
use plover_types::{Incarnation, Micros};

/// How long a leader remembers that the one before was taken for dead and was not.
const HASTE_REMEMBERED: Micros = Micros::from_ms(600_000);
/// How long a silence is remembered, at least; at most twice as long.
const MEMORY: Micros = Micros::from_ms(30_000);

/// The silences of one leader's process, as one backup has seen them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Silence {
    /// When that process was first heard.
    began: Micros,
    /// When `longest` began to be counted.
    since: Micros,
    /// The longest silence since then.
    longest: Micros,
    /// The longest in the [`MEMORY`] before that.
    before: Micros,
}

impl Silence {
    pub(crate) fn new(now: Micros) -> Self {
        Self {
            began: now,
            since: now,
            longest: Micros::ZERO,
            before: Micros::ZERO,
        }
    }

    /// A message came after a silence of `gap`.
    pub(crate) fn ended(&mut self, now: Micros, gap: Micros) {
        if now.since(self.since) >= MEMORY {
            self.before = self.longest;
            self.longest = Micros::ZERO;
            self.since = now;
        }
        self.longest = self.longest.max(gap);
    }

    /// The span that this backup asks for.
    fn wanted(&self, now: Micros, config: &Config) -> Micros {
        if now.since(self.began) < config.known_after {
            return config.timeout;
        }
        let longest = self.longest.max(self.before);
        Micros(longest.0.saturating_mul(2)).clamp(config.timeout_min, config.timeout)
    }
}

/// For how long a lease holds that rests on voters who refuse for `span`: an eighth less, for clocks
/// that drift.
pub(crate) fn lease(span: Micros) -> Micros {
    span - Micros(span.0 / 8)
}

impl Config {
    /// How much longer a silence lasts before it counts, if this process stood still when it ended.
    pub(crate) fn grace(&self) -> Micros {
        Micros(2 * self.heartbeat.0)
    }
}

impl Apus {
    /// The silence after which a leader is suspected at present.
    pub(crate) fn suspected_after(&self) -> Micros {
        match &self.role {
            Role::Leading(leadership) => leadership.span,
            _ => self.heard.span,
        }
    }

    /// The span that this replica asks its leader for.
    pub(crate) fn wanted_span(&self, now: Micros) -> Micros {
        if self.config.pair {
            return self.config.timeout;
        }
        self.heard.silence.wanted(now, &self.config)
    }

    /// The leader decides, at each heartbeat, for how long the voters shall refuse.
    pub(crate) fn choose_span(&mut self, now: Micros) {
        let voters = self.members().voters;
        let longest = self.config.timeout;
        let Role::Leading(leadership) = &mut self.role else {
            return;
        };
        let alive = leadership.voters(voters).filter(|peer| peer.is_alive());
        let wanted = alive.map(|peer| peer.wanted).max();
        leadership.span = match wanted {
            Some(wanted) if now >= leadership.hasty_until => wanted.min(longest),
            _ => longest,
        };
    }

    /// A peer's process has answered this leader. If it is the leader that was heard last, that one is
    /// not dead.
    pub(crate) fn note_haste(&mut self, now: Micros, process: Incarnation) {
        if self.heard.from != Some(process) {
            return;
        }
        if let Role::Leading(leadership) = &mut self.role {
            if leadership.predecessor.is_none() {
                leadership.hasty_until = now + HASTE_REMEMBERED;
            }
            self.heard.from = None;
        }
    }

    /// The span that the leader counts for a message that `answered`, given the one that stood in it.
    pub(crate) fn counted_span(&self, answered: Micros) -> Micros {
        if canary!(self.config, CountTheTimeout) {
            return self.config.timeout;
        }
        answered.min(self.config.timeout)
    }
}
