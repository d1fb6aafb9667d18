//! Refused handshakes: the log reports each reason once, and one now and then where they change all the time; the status reports
//! them as long as they go on.

use plover_types::ReplicaId;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::{Duration, Instant};

/// A refusal counts for so long: five times the pace at which a refused peer is dialled again.
const LATELY: Duration = Duration::from_secs(10);

/// Refusals of one peer are told apart in the log by at least so long: somebody who comes in its name with ever new keys has ever
/// new reasons.
const NAMED_APART: Duration = LATELY;

/// The last refusal of each peer.
#[derive(Debug, Default)]
pub struct Refused(BTreeMap<ReplicaId, Refusals>);

#[derive(Debug)]
struct Refusals {
    why: String,
    at: Instant,
    /// The reason that the log named last, and when.
    named: (String, Instant),
}

impl Refused {
    /// Notes that a handshake with `peer` was refused. `true` if the log is to say so.
    pub fn note(&mut self, peer: ReplicaId, why: &dyn Display, now: Instant) -> bool {
        let why = why.to_string();
        let goes_on = self.lately(peer, now).is_some();
        let before = self.0.remove(&peer).map(|it| it.named);
        let is_news = before.as_ref().is_none_or(|(named, at)| {
            let is_other = !goes_on || *named != why;
            is_other && now.saturating_duration_since(*at) >= NAMED_APART
        });
        let named = before.filter(|_| !is_news);
        let named = named.unwrap_or_else(|| (why.clone(), now));
        self.0.insert(
            peer,
            Refusals {
                why,
                at: now,
                named,
            },
        );
        is_news
    }

    /// Forgets what was refused: the link to `peer` has come up.
    pub fn forget(&mut self, peer: ReplicaId) {
        self.0.remove(&peer);
    }

    /// Why the last handshake with `peer` was refused, if that was lately.
    pub fn lately(&self, peer: ReplicaId, now: Instant) -> Option<&str> {
        let Refusals { why, at, .. } = self.0.get(&peer)?;
        (now.saturating_duration_since(*at) < LATELY).then_some(why)
    }
}

/// A host whose connections were turned away is named in the log once in so long.
const NAMED_EVERY: Duration = Duration::from_secs(60);
/// The most hosts that are remembered. While so many are, further ones are only counted.
const HOSTS_MAX: usize = 64;

/// The hosts from which connections came that were turned away, and when the log named them.
#[derive(Debug, Default)]
pub struct Strangers(BTreeMap<String, Instant>);

impl Strangers {
    /// Whether the log is to name `host` now: once a minute.
    pub fn note(&mut self, host: &str, now: Instant) -> bool {
        let is_recent = |at: &Instant| now.saturating_duration_since(*at) < NAMED_EVERY;
        if self.0.get(host).is_some_and(is_recent) {
            return false;
        }
        self.0.retain(|_, at| is_recent(at));
        if self.0.len() == HOSTS_MAX {
            return false;
        }
        self.0.insert(host.into(), now);
        true
    }
}

/// Of waiting connections, oldest first: the oldest one from the host that has the most. So one host's strangers do not
/// push out the peers of others.
pub fn most_crowded(hosts: &[&str]) -> usize {
    let of = |host| hosts.iter().filter(|other| **other == host).count();
    let all = hosts.iter().enumerate().rev();
    all.max_by_key(|(_, host)| of(**host))
        .map_or(0, |(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_fill_neither_the_log_nor_the_memory() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut strangers = Strangers::default();
        assert!(strangers.note("192.0.2.1", at(0)));
        assert!(!strangers.note("192.0.2.1", at(59)));
        assert!(strangers.note("192.0.2.1", at(60)));
        let named = (0..1000).filter(|n| strangers.note(&format!("host {n}"), at(60)));
        assert_eq!(named.count(), HOSTS_MAX - 1);
        assert!(
            strangers.note("192.0.2.1", at(120)),
            "the old ones are forgotten"
        );
    }

    #[test]
    fn a_refusal_is_news_once_and_known_while_it_goes_on() {
        let (peer, start) = (ReplicaId(1), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut refused = Refused::default();
        assert!(refused.note(peer, &"the version", at(0)));
        assert!(!refused.note(peer, &"the version", at(8)));
        assert!(refused.note(peer, &"the group", at(17)));
        assert_eq!(refused.lately(peer, at(26)), Some("the group"));
        assert_eq!(refused.lately(peer, at(27)), None);
        assert!(refused.note(peer, &"the group", at(40)), "again");
        refused.forget(peer);
        assert_eq!(refused.lately(peer, at(40)), None);
    }

    #[test]
    fn ever_new_reasons_do_not_fill_the_log() {
        let (peer, start) = (ReplicaId(1), Instant::now());
        let mut refused = Refused::default();
        let mut tell = |tenth: u64| {
            let now = start + Duration::from_millis(100 * tenth);
            refused.note(peer, &format!("key {tenth}"), now)
        };
        let told = (0..600).filter(|tenth| tell(*tenth)).count();
        assert_eq!(told, 6, "in a minute");
        // One that came while the log was silent, and stays, is told.
        let stays = |tenth: &u64| {
            let now = start + Duration::from_millis(100 * tenth);
            refused.note(peer, &"the version", now)
        };
        assert_eq!((600..900).filter(stays).count(), 1);
    }
}
