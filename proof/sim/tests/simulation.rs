//! The simulator under test: seeds that must hold, runs that must repeat, bugs that must be
//! caught.
//!
//! The counts are meant for this workspace's profiles, where even `dev` optimises a little: the
//! whole file took 111 s in `dev` on two cores that did other work as well.

use plover_policy::{HYBRID, PRESETS, Preset};
use plover_sim::expect::{catches, holds, reaches, repeats};
use plover_sim::{Canary, Coverage, Options, Simulation, TraceMode};

/// Seeds that must hold and heal. Returns what they reached.
fn all_heal(start: u64, seeds: u64, options: Options) -> Coverage {
    let coverage = holds(&options, start..start + seeds);
    assert_eq!(coverage.of("healed"), seeds, "every group recovers");
    coverage
}

/// Every invariant holds in every seed; and the seeds reach what they are meant to reach.
#[test]
fn two_thousand_seeds_hold() {
    reaches(&all_heal(0, 2000, Options::default()), &REACHED);
}

/// Moments that the seeds have to reach, because they would prove little otherwise.
const REACHED: [&str; 100] = [
    "upgrade: a replica is upgraded",
    "upgrade: a replica is taken back",
    "upgrade: a replica learns of a version",
    "upgrade: a leader dies before all have the new release",
    "upgrade: the former release is refused by its disk",
    "upgrade: a link is refused",
    "members: a dead one has left",
    "members: a live one has left",
    "members: a change is given up",
    "members: a fault at an entry",
    "members: an order is refused",
    "members: one learns that it has left",
    "death: a report of an older process",
    "death: a report of the leader",
    "death: a report to the leader",
    "failover: a deposed leader came back as witness",
    "failover: a deposed leader won again",
    "failover: a new leader serves",
    "fault: process killed",
    "fault: process stopped",
    "fault: host suspended, its clock stands still",
    "fault: hypervisor killed",
    "fault: cut one way",
    "guest: lost",
    "join: failed",
    "join: from a warm copy",
    "join: from an old copy or none",
    "join: more rounds",
    "join: the guest is protected",
    "generation: begun by the operator's word",
    "generation: its word is on a disk, its log is not",
    "recovery: a replica recovered its log",
    "release: late, the lease had run out",
    "release: on acknowledgement",
    "release: solo",
    "sync: done (idle)",
    "sync: done (interval)",
    "sync: done (output)",
    "sync: failed on the leader in Transfer",
    "sync: kept by a secondary that waits",
    "sync: done (log full)",
    "sync: done (retry)",
    "sync: failed on the leader in Exchange",
    "sync: failed on the leader in Apply",
    "sync: reset with a fetch",
    "sync: applied after its leader was lost",
    "process: killed in a sync, in Apply",
    "disks: looked at after a crash",
    "work: answered late",
    "work: a copy's read put off",
    "work: a scan put off",
    "match: frames released on match",
    "clean: frames released before their sync",
    "clean: a takeover resets a connection",
    "match: outputs differ",
    "pace: an input waits for the secondary's guest",
    "pace: the guest is as far as the leader's was",
    "pace: an input has waited in vain",
    "release: on match or sync",
    "warm: a witness has everything",
    "warm: copies looked at",
    "warm: refused",
    "sync: done (differ)",
    "sync: done (unmatched)",
    "fault: TAP down",
    "alone: the clients are answered again",
    "alone: a secondary that hangs is dropped",
    "guest: reboots",
    "guest: wants to reboot, and is off",
    "guest: powers off",
    "guest: powers off, and boots again",
    "guest: crashes, and is off",
    "guest: crashes, and boots again",
    "guest: started by the operator",
    "guest: paused by the operator",
    "guest: let go on by the operator",
    "guest: reset by the operator",
    "guest: boots again, as the operator has ordered",
    "guest: a state that stands was loaded into one that runs",
    "guest: a state that runs was loaded into one that stands",
    "guest: stands while its leader serves",
    "guest: stands while its next leader takes over",
    "guest: ends in a sync, the leader's",
    "guest: ends in a sync, the secondary's",
    "guest: ends in a join",
    "guest: ends in a failover",
    "guest: off while its next leader takes over",
    "guest: a state that is off was loaded into one that is on",
    "guest: a state that is on was loaded into one that is off",
    "guest: a state that has just ended was loaded",
    "guest: a connection of before its reset is refused",
    "rest: a guest wakes, and executes what was logged since",
    "sync: done (rest)",
    "planned: a switchover",
    "planned: a switchover is refused",
    "planned: a drain",
    "planned: several hosts are drained",
    "planned: a leader hands over",
    "planned: a drained leader hands over",
    "planned: the lead moves, and the guest stays protected",
];

#[test]
fn a_seed_repeats_itself() {
    repeats(Options::default());
}

/// The options that put a known bug back.
fn with(canary: Canary) -> Options {
    Options {
        canary,
        ..Options::default()
    }
}

/// The same under one policy.
fn under(policy: &str, canary: Canary) -> Options {
    Options {
        policy: Preset::find(policy),
        ..with(canary)
    }
}

/// A replica that restarts votes with the log it has forgotten.
#[test]
fn a_vote_after_amnesia_is_caught() {
    catches(
        &with(Canary::VoteAfterAmnesia),
        600,
        &["committed_not_lost", "external_consistency"],
    );
}

/// A replica that forgets its log also forgets that the group went on without a secondary, and elects it.
#[test]
fn a_milestone_that_is_not_stored_is_caught() {
    let found_by = ["committed_not_lost", "external_consistency"];
    catches(&with(Canary::MilestoneNotStored), 400, &found_by);
}

/// A crash between the two writes of a new generation, its number and its log, leaves the old
/// generation's log on disk. The bug takes it for the new one's.
#[test]
fn a_log_of_an_older_generation_is_caught() {
    let found_by = ["nobody_is_refused", "logs_agree", "committed_not_lost"];
    catches(&with(Canary::TrustOldGeneration), 200, &found_by);
}

/// Outputs leave before the secondary has acknowledged their state.
#[test]
fn a_release_before_the_acknowledgement_is_caught() {
    catches(
        &with(Canary::ReleaseBeforeAck),
        20,
        &["external_consistency"],
    );
}

/// Outputs that are compared leave although only one side has sent them.
#[test]
fn a_release_without_a_match_is_caught() {
    catches(
        &under("hybrid", Canary::ReleaseWithoutMatch),
        20,
        &["external_consistency"],
    );
}

/// The secondary's guest does not wait for the disks, so what both have sent does.
#[test]
fn a_match_before_the_commit_is_caught() {
    catches(
        &under("hybrid", Canary::MatchBeforeCommit),
        20,
        &["inputs_in_order"],
    );
}

/// A datagram that says what the guest said at a cut leaves before another replica holds that cut.
#[test]
fn a_clean_reply_before_its_cut_is_acknowledged_is_caught() {
    catches(
        &with(Canary::CleanBeforeAck),
        200,
        &["external_consistency"],
    );
}

/// The next leader's guest says other words at places that clients have read.
#[test]
fn an_early_connection_that_is_kept_is_caught() {
    let kept = under("remus-25", Canary::KeepEarlyStreams);
    catches(&kept, 500, &["streams_go_on"]);
}

/// A match does not ask whether the secondary has acknowledged as much to the client.
#[test]
fn an_acknowledgement_that_the_secondary_has_not_given_is_caught() {
    catches(
        &under("hybrid", Canary::IgnoreAcks),
        20,
        &["external_consistency"],
    );
}

/// A new leader does not know by which sequence numbers clients know its guest's connections.
#[test]
fn forgotten_numbers_are_caught() {
    catches(
        &under("hybrid", Canary::ForgetNumbers),
        200,
        &["streams_go_on"],
    );
}

/// A sync that failed forgets the pages whose dirty bits it had cleared.
#[test]
fn lost_dirty_bits_are_caught() {
    let found_by = ["debt_never_forgotten", "memory_equal_after_sync"];
    catches(&with(Canary::DirtyBitsLost), 200, &found_by);
}

/// A leader whose own hypervisor hangs drops the healthy secondary: the guest is where nobody can run it.
#[test]
fn a_leader_that_blames_its_secondary_is_caught() {
    let found_by = ["one_fault_is_survived"];
    catches(&with(Canary::BlameSecondary), 400, &found_by);
}

/// A secondary whose hypervisor hangs says nothing, and all clients wait until the leader's patience ends.
#[test]
fn a_secondary_that_hangs_in_silence_is_caught() {
    let found_by = ["one_fault_is_survived"];
    catches(&with(Canary::HangInSilence), 600, &found_by);
}

/// A replica that joins is named in sync before it has reset the queues that the guest has: the leader may die
/// while this replica fetches what the reset has overwritten.
#[test]
fn a_join_without_a_reset_of_its_queues_is_caught() {
    catches(&with(Canary::JoinAtOnce), 200, &["one_fault_is_survived"]);
}

/// A leader that reaches no clients goes on leading.
#[test]
fn a_leader_without_a_tap_is_caught() {
    let found_by = ["one_fault_is_survived"];
    catches(&with(Canary::IgnoreUplink), 600, &found_by);
}

/// A leader whose predecessor stays in step answers clients although that one may have to lead again.
#[test]
fn a_leader_that_serves_before_its_predecessor_is_in_step_is_caught() {
    catches(&with(Canary::ServeAlone), 2000, &["external_consistency"]);
}

/// The outputs of the slot with which a joiner replaces the secondary go out before the log names the joiner.
#[test]
fn a_replacement_that_counts_at_once_is_caught() {
    let found_by = ["external_consistency"];
    catches(&with(Canary::ReplaceAtOnce), 3000, &found_by);
}

/// A member that lives leaves although the one that takes its place has no whole copy of the guest.
#[test]
fn a_swap_before_the_copy_is_whole_is_caught() {
    let found_by = ["replaced_when_copied"];
    catches(&with(Canary::SwapBeforeCopy), 400, &found_by);
}

/// A leader raises the group's version although a member does not speak it.
#[test]
fn a_version_that_not_all_members_speak_is_caught() {
    let found_by = ["forms_are_known", "nobody_is_refused"];
    catches(&with(Canary::DeafToVersions), 40, &found_by);
}

/// A guest that reboots stops on both sides, and no replica holds it any more.
#[test]
fn a_reboot_that_ends_the_guest_is_caught() {
    let found_by = ["one_fault_is_survived"];
    catches(&with(Canary::RebootEndsGuest), 400, &found_by);
}

/// A secondary learns of a commit with the next heartbeat.
#[test]
fn a_commit_that_waits_for_the_heartbeat_is_caught() {
    catches(&with(Canary::CommitAtHeartbeat), 400, &["commits_are_told"]);
}

/// Of a divergent page, a block that differs is not sent.
#[test]
fn missed_subpages_are_caught() {
    catches(
        &with(Canary::SubpageMissed),
        200,
        &["memory_equal_after_sync"],
    );
}

/// The pages that a syncvm changes on the secondary are not sent on to the witness.
#[test]
fn a_warm_copy_that_misses_syncs_is_caught() {
    let found_by = ["warm_copy_accounted", "memory_equal_after_sync"];
    catches(&with(Canary::WarmForgetsSyncs), 200, &found_by);
}

/// Every policy that this version runs, with as many seeds again as half of what the first test gives each.
#[test]
fn every_policy_holds() {
    for preset in PRESETS
        .iter()
        .filter(|preset| preset.policy.check().is_ok())
    {
        let options = Options {
            policy: Some(preset),
            ..Options::default()
        };
        // The hybrid policy has the most ways to release.
        let seeds = if *preset == HYBRID { 250 } else { 75 };
        all_heal(5000, seeds, options);
    }
}

/// The same bugs, where the secondary waits and takes checkpoints.
#[test]
fn bugs_of_checkpoints_are_caught() {
    for policy in ["remus-25", "adaptive-remus"] {
        let found_by = ["external_consistency"];
        catches(&under(policy, Canary::ReleaseBeforeAck), 20, &found_by);
        let found_by = ["debt_never_forgotten", "memory_equal_after_sync"];
        catches(&under(policy, Canary::DirtyBitsLost), 200, &found_by);
    }
}

/// A leader dies while the secondary's guest rests, and what was logged since its state is lost: with a cut whose
/// syncvm never ends, or altogether. Or clients have seen outputs of a slot that only its syncvm explains.
#[test]
fn bugs_of_a_resting_secondary_are_caught() {
    for policy in ["hybrid-semi", "colo++"] {
        for bug in [Canary::ForgetAtCut, Canary::WakeWithoutInputs] {
            catches(&under(policy, bug), 100, &["inputs_in_order"]);
        }
        let found_by = ["external_consistency"];
        catches(&under(policy, Canary::ReleaseBeforeAck), 100, &found_by);
    }
}

/// The secondary acknowledges disk blocks that would not survive the loss of its host.
#[test]
fn an_acknowledgement_before_the_disks_is_caught() {
    catches(&with(Canary::AckBeforeDisks), 400, &["disks_survive"]);
}

/// Larger groups, fewer seeds.
#[test]
fn five_replicas_hold() {
    let options = Options {
        replicas: 5,
        ..Options::default()
    };
    all_heal(0, 100, options);
}

/// Two replicas.
const PAIR: Options = Options {
    replicas: 2,
    cuts: false,
    fencing: false,
    policy: None,
    faults_for: None,
    canary: Canary::None,
    trace: TraceMode::Off,
};

/// Two replicas without a witness, whose links hold: every invariant holds, and the ways in which
/// one takes over were reached.
#[test]
fn two_replicas_hold() {
    let coverage = all_heal(0, 300, PAIR);
    let moments = [
        "pair: one took over alone",
        "plot: left behind",
        "plot: sleeper",
        "failover: a new leader serves",
        "fault: process stopped",
        "join: the guest is protected",
    ];
    reaches(&coverage, &moments);
    assert_eq!(coverage.of("pair: two send as the guest"), 0);
}

/// The same with links that fail: both may lead, and one does in the end.
#[test]
fn two_replicas_that_were_parted_are_one_again() {
    let coverage = all_heal(0, 300, Options { cuts: true, ..PAIR });
    let moments = [
        "pair: took over after links failed",
        "pair: two send as the guest",
    ];
    reaches(&coverage, &moments);
}

/// With fencing every invariant holds although links fail.
#[test]
fn two_replicas_with_fencing_hold() {
    let coverage = all_heal(0, 300, FENCED);
    let moments = [
        "fault: host suspended, its clock stands still",
        "fault: replica cut off",
        "fencing: old news",
        "fencing: one of two that have lost each other is ended",
        "fencing: the leader hears that its backup is off",
        "pair: one took over alone",
    ];
    reaches(&coverage, &moments);
    assert_eq!(coverage.of("pair: two send as the guest"), 0);
}

const FENCED: Options = Options {
    fencing: true,
    ..PAIR
};

#[test]
fn fencing_that_is_not_waited_for_is_caught() {
    let found_by = [
        "one_sender_a_slot",
        "external_consistency",
        "committed_not_lost",
        "logs_agree",
    ];
    for canary in [Canary::NeverFence, Canary::OldFencing] {
        catches(&Options { canary, ..FENCED }, 1000, &found_by);
    }
}

/// A secondary that was stopped serves with an old state.
#[test]
fn a_secondary_that_never_doubts_is_caught() {
    let found_by = ["external_consistency", "logs_agree", "committed_not_lost"];
    catches(&in_pairs(Canary::NeverDoubt), 400, &found_by);
}

/// A leader that was stopped takes its own silence for the secondary's.
#[test]
fn a_leader_that_goes_on_by_its_clock_is_caught() {
    let found_by = [
        "external_consistency",
        "one_sender_a_slot",
        "logs_agree",
        "committed_not_lost",
    ];
    catches(&in_pairs(Canary::ClockAlone), 4000, &found_by);
}

/// The options that put a known bug of pairs back.
fn in_pairs(canary: Canary) -> Options {
    Options { canary, ..PAIR }
}

/// Leaders die in each area of COLO's figure 4.
#[test]
fn leaders_die_in_every_area_of_figure_4() {
    for replicas in [2, 3] {
        let options = Options {
            replicas,
            policy: Preset::find("colo"),
            ..Options::default()
        };
        let areas = [
            "area A: only the leader's guest has sent it",
            "area B: both have sent it, none of it is out",
            "area C: it is going out",
            "area D: before the end mark",
            "area D: after the end mark",
        ];
        reaches(&all_heal(9000, 150, options), &areas);
    }
}

/// Inputs wait for the secondary's guest where they are paced, and only there.
#[test]
fn inputs_wait_where_they_are_paced() {
    let options = under("hybrid", Canary::None);
    let (mut paced, mut unpaced) = (Coverage::default(), Coverage::default());
    options.run_many(0..60, None, |outcome| {
        let is_without = outcome.coverage.of("pace: a world without it") > 0;
        let side = if is_without { &mut unpaced } else { &mut paced };
        side.merge(&outcome.coverage);
        true
    });
    let waits = "pace: an input waits for the secondary's guest";
    assert!(paced.of(waits) > 0, "none waits");
    assert!(unpaced.of("match: frames released on match") > 0);
    assert_eq!(unpaced.of(waits), 0, "some wait without pacing");
}
