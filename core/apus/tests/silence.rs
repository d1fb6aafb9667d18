//! How long a leader may be silent is learned from its messages. Each test checks one fear.

use crate::group::{Group, HEARTBEAT, LONG, config};
use apus::{Config, Durability, Phase};
use plover_types::Micros;

const TIMEOUT: Micros = Micros(10 * HEARTBEAT.0);
const TIMEOUT_MIN: Micros = Micros(3 * HEARTBEAT.0);
/// Long enough to know a link.
const KNOWN: Micros = Micros(110 * HEARTBEAT.0);
/// Longer than silences are remembered.
const FORGOTTEN: Micros = Micros::from_ms(70_000);

fn learning(me: u8) -> Config {
    Config {
        timeout: TIMEOUT,
        timeout_min: TIMEOUT_MIN,
        ..config(me, 3, Durability::Memory)
    }
}

/// A protected group whose links are known to be steady.
fn steady() -> Group {
    let mut group = Group::of((0..3).map(learning).collect());
    group.cores[1].set_holds_state(true);
    group.in_sync(&[0, 1]);
    let known = |group: &Group| group.status(0).suspected_after == TIMEOUT_MIN;
    assert!(!known(&group), "a new leader's link is not known yet");
    group.run(KNOWN);
    assert!(known(&group));
    group
}

/// The leader hears nothing and says nothing for `span`. Whether it still leads afterwards.
fn leader_sleeps(group: &mut Group, span: Micros) -> bool {
    group.stopped.insert(0);
    group.run(span);
    group.stopped.remove(&0);
    group.run(HEARTBEAT);
    group.leader() == Some(0)
}

#[test]
fn a_steady_leader_is_suspected_soon() {
    let mut group = steady();
    group.crash(0);
    let soon = TIMEOUT_MIN + HEARTBEAT;
    assert!(soon < TIMEOUT && group.run_until(soon, |group| group.leader() == Some(1)));
}

/// All hosts stand still, as virtual machines on one disk do, and each looks at the time before it reads.
#[test]
fn processes_that_stood_still_suspect_nobody() {
    let mut group = steady();
    group.tick(Micros(5 * TIMEOUT.0));
    group.run(LONG);
    assert_eq!(group.leader(), Some(0));
    assert!(!group.liveness(0).contains(&(1, false)));
}

/// A follower that is late at every turn still notices that its leader has died.
#[test]
fn a_process_that_is_always_late_suspects_in_the_end() {
    let mut group = steady();
    group.crash(0);
    for _ in 0..20 {
        group.tick(Micros(3 * HEARTBEAT.0));
        group.settle();
        group.write_all();
    }
    assert_eq!(group.leader(), Some(1));
}

#[test]
fn a_silence_that_ended_well_is_allowed_again() {
    let mut group = steady();
    assert!(leader_sleeps(&mut group, Micros(3 * HEARTBEAT.0 / 2)));
    group.run(HEARTBEAT);
    let after = group.status(0).suspected_after;
    assert!(after > TIMEOUT_MIN && after < TIMEOUT, "{after}");
    assert!(leader_sleeps(&mut group, TIMEOUT_MIN), "longer than before");
    group.run(FORGOTTEN);
    assert_eq!(group.status(0).suspected_after, TIMEOUT_MIN);
}

/// The one backup hears a heartbeat late again and again. The leader asks both for what that one needs.
#[test]
fn the_leader_asks_for_what_the_least_steady_link_needs() {
    let mut group = steady();
    group.cut(0, 2);
    group.run(Micros(2 * HEARTBEAT.0));
    group.cut.clear();
    group.run(Micros(2 * HEARTBEAT.0));
    for core in 0..3 {
        assert!(group.status(core).suspected_after > TIMEOUT_MIN, "{core}");
    }
    assert_eq!(group.leader(), Some(0));
}

#[test]
fn after_a_wrong_suspicion_the_next_leader_is_given_more_time() {
    let mut group = steady();
    assert!(!leader_sleeps(&mut group, Micros(2 * TIMEOUT.0)));
    group.run(KNOWN);
    assert_eq!(group.phase(0), Phase::Following);
    assert_eq!(group.status(1).suspected_after, TIMEOUT);
    group.run(Micros::from_ms(610_000));
    assert_eq!(group.status(1).suspected_after, TIMEOUT_MIN);
}

/// A replica was started with a shorter timeout than its leader: the leader does not count on more.
#[test]
fn a_voter_with_a_shorter_timeout_gives_a_shorter_lease() {
    let shorter = Micros(TIMEOUT.0 / 2);
    let configs = (0..3).map(|me| Config {
        timeout: if me == 0 { TIMEOUT } else { shorter },
        timeout_min: shorter,
        ..config(me, 3, Durability::Memory)
    });
    let mut group = Group::of(configs.collect());
    group.tick(HEARTBEAT);
    let sent = group.now;
    group.settle();
    assert_eq!(
        group.cores[0].lease_until(),
        sent + shorter - Micros(shorter.0 / 8)
    );
}
