//! The start of a core, from the state that its process found on storage.

use crate::canary::canary;
use crate::death::Heard;
use crate::following::{Acked, Follower};
use crate::log::Log;
use crate::milestone::Milestones;
use crate::pair::Other;
use crate::pool::Pool;
use crate::recovery::Recovery;
use crate::rounds::Raised;
use crate::version::Told;
use crate::{Apus, Config, Configuration, Durability, Members, Role, Start};
use plover_types::{Index, Micros, ReplicaSet, SplitMix64, View, Viewstamp};

/// The smallest useful `message_bytes_max`.
const MESSAGE_BYTES_MIN: usize = 256;

impl Apus {
    /// A core that starts at `now` with the state in `start`.
    ///
    /// # Panics
    ///
    /// If the configuration contradicts itself.
    pub fn new(config: Config, start: Start, now: Micros) -> Self {
        check(&config);
        let random = SplitMix64::new(config.seed);
        let recovery = Recovery::new(&config, &start, now);
        let milestones = match &start {
            Start::Restarted {
                durable,
                forgotten: false,
                ..
            } => Milestones {
                newest: durable.milestone,
                stored: durable.milestone,
            },
            _ => Milestones::default(),
        };
        let stored = match &start {
            Start::Restarted { durable, .. } => durable.version,
            Start::Fresh | Start::PromiseLost { .. } => 0,
        };
        let (log, promised, generation) = remembered(&config, start);
        let told_versions = Told {
            version: stored.max(log.configuration_at_base().version),
            ..Told::default()
        };
        let mut core = Self {
            random,
            role: Role::Following(Follower::new(log.commit())),
            recovery,
            log,
            promised,
            durable: promised,
            milestones,
            generation,
            round_max: promised.round(),
            raised: Raised::new(now),
            holds_state: false,
            expects_state: false,
            abstains: false,
            heard: Heard::new(now, config.timeout),
            other: Other::default(),
            election_at: now,
            stood_down: None,
            told_members: None,
            awake_at: now,
            down: ReplicaSet::EMPTY,
            told_versions,
            told: None,
            rejected: 0,
            pool: Pool::default(),
            acked: Acked::default(),
            config,
        };
        if !core.keeps_milestones() {
            core.milestones = Milestones::default();
        }
        core.arm_election(now);
        core
    }
}

fn check(config: &Config) {
    let members = config.members;
    assert!(
        Members::of(members).are_sane(),
        "a group has 1 to 9 members"
    );
    assert!(
        members.contains(config.first_leader),
        "the first leader is not a member"
    );
    assert!(
        !config.pair || (members.len() == 2 && !config.any_voter_stands),
        "a pair has two members and a guest"
    );
    assert!(config.pair || !config.fencing, "only a pair needs fencing");
    assert!(
        config.heartbeat > Micros::ZERO,
        "no time between heartbeats"
    );
    assert!(
        config.heartbeat < config.timeout_min && config.timeout_min <= config.timeout,
        "the shortest timeout lies between the heartbeat and the timeout"
    );
    assert!(
        config.message_bytes_max >= MESSAGE_BYTES_MIN,
        "messages have room for {MESSAGE_BYTES_MIN} bytes"
    );
}

/// The log, the highest promise and the generation that a process starts with.
fn remembered(config: &Config, start: Start) -> (Log, View, View) {
    let first = Configuration {
        in_sync: ReplicaSet::of([config.first_leader]),
        members: Members::of(config.members),
        version: 0,
    };
    let empty = Log::new(Viewstamp::default(), first);
    match start {
        Start::Restarted {
            durable,
            log,
            base,
            configuration_at_base,
            forgotten: false,
        } if config.durability == Durability::Disk => {
            // If storage was never told where its log begins, the log begins at index 0.
            let begun = base != Viewstamp::default();
            let configuration = if begun { configuration_at_base } else { first };
            let log = Log::restored(base, configuration, log);
            let generation = if canary!(config, TrustOldGeneration) {
                durable.generation
            } else {
                generation_of(base, durable.generation)
            };
            // An entry of a view is as good as the promise of it.
            let promised = durable.promised.max(log.last().view);
            (log, promised, generation)
        }
        Start::Restarted { durable, .. } => (empty, durable.promised, View::NONE),
        Start::PromiseLost { least } => (empty, least, View::NONE),
        Start::Fresh => (empty, View::NONE, View::NONE),
    }
}

/// The generation of a log on storage, where storage knew of the generation `known`. They are two
/// writes, and a crash may come between them. Every viewstamp of a generation is at least its view:
///
/// ```text
///   the log begins in a view below `known`   the log is of an older generation, and that of the new
///                                            one was not written. It is of no generation that
///                                            counts: the next leader replaces it (`generation`)
///   a log that begins at index 0             of the generation that its base names
///   a log whose beginning is reclaimed       of the generation that is known
/// ```
fn generation_of(base: Viewstamp, known: View) -> View {
    if base.view < known {
        View::NONE
    } else if base.index == Index(0) {
        base.view
    } else {
        known
    }
}
