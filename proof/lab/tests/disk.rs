//! A guest with a disk, under load on both. Every replica has a copy of its own, and each syncvm leaves
//! the leader's and the secondary's copies equal, whichever replica dies.

use anyhow::{Result, ensure};
use plover_lab::guests::Guest;
use plover_lab::options::Options;
use plover_lab::progress::Progress;
use plover_lab::{Fault, Lab};
use plover_lab_proof::crash::{Moment, crash_at};
use plover_lab_proof::experiment::Experiment;
use plover_lab_proof::storm::audit::{Audit, audit};
use plover_lab_proof::storm::record::State;
use plover_lab_proof::storm::writers::{Link, Storm};
use plover_lab_proof::{Turn, checksums, kill_leader, program, prove, role};
use plover_syncvm::Phase;
use std::io::Write;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Writes of a storm to wait for, and connections that write.
const ENOUGH: u64 = 300;
const WRITERS: u64 = 4;

/// Slots to compare before a fault and after it.
const SLOTS: usize = 40;

/// As for `racey`: memory and disk are hashed whole at every sync.
const OVERLAY: &str = "
[debug]
checksum_each_sync = true
[group]
timeout_ms = 3000
";

/// Writes at many places of the disk, each time with a flush, and reads.
const LOAD: &str = "i=0; while :; do i=$((i+1)); \
    dd if=/dev/urandom of=/dev/vda bs=4k count=$((i%16+1)) seek=$((i*37%3900)) conv=notrunc,fsync; \
    dd if=/dev/vda of=/dev/null bs=64k count=8 skip=$((i%200)); done >/dev/null 2>&1 &\n";

fn equal_slots(lab: &mut Experiment, count: usize) -> Result<()> {
    let before = checksums(lab.events()).len();
    lab.wait("slots are over", |lab| {
        Ok(checksums(lab.events()).len() >= before + count)
    })?;
    for (sync, sides) in checksums(lab.events()) {
        let (first, second) = (sides.values().min(), sides.values().max());
        ensure!(
            first == second,
            "syncvm {sync} left a difference: {sides:?}"
        );
    }
    Ok(())
}

/// Waits until the witness has a warm copy.
fn witness_is_warm(lab: &mut Experiment, since_us: u64) -> Result<()> {
    lab.wait("the witness is warm", |lab| {
        Ok(lab.find_event("warm", since_us).is_some())
    })
}

/// Whether the last witness that was made secondary went on from a warm copy of its new leader.
fn joined_warm(lab: &Experiment, since_us: u64) -> Option<bool> {
    lab.find_event("join_opened", since_us)?.more["warm"].as_bool()
}

fn disks_under_load(lab: &mut Experiment) -> Result<()> {
    let leader = lab.lab().find(&role("leader"))?;
    let mut console = lab.lab().control(leader).console()?;
    console.write_all(LOAD.as_bytes())?;
    equal_slots(lab, SLOTS)?;
    witness_is_warm(lab, 0)?;
    let (leader, at) = lab.strike(Fault::Kill, &role("leader"))?;
    lab.wait_for_failover(leader, at)?;
    // The witness has memory and disk, except for the last writes.
    lab.wait_until_protected_again(at)?;
    ensure!(joined_warm(lab, at) == Some(true), "it was copied anew");
    equal_slots(lab, SLOTS)?;
    // The first leader's copy of the disk is old now. It becomes warm from there.
    lab.restart(leader)?;
    witness_is_warm(lab, at)?;
    let (secondary, at) = lab.crash_at(&role("secondary"), &Moment::Phase(Phase::Apply))?;
    lab.wait_for_answers(at)?;
    // The witness has a copy of the dead secondary's state, not of the leader's: they are compared.
    lab.wait_until_protected_again(at)?;
    ensure!(joined_warm(lab, at) == Some(false), "nothing was compared");
    equal_slots(lab, SLOTS)?;
    lab.restart(secondary)?;
    lab.wait_until_protected()
}

/// Clients write through the guest to its disk. First the secondary dies while it applies a sync. Then
/// the leader dies, so that its copy is old. Then all die in the middle of the load. The guest boots
/// from a newer copy, which has every acknowledged write.
fn lose_all(lab: &mut Lab, progress: &Progress) -> Result<Audit> {
    let dir = tempfile::tempdir()?;
    let record = dir.path().join("record");
    let (client, service) = (lab.topology().client(), lab.service());
    let links = client.run(|| Link::open_many(service, WRITERS))?;
    let storm = Storm::start(links, &record, 1)?;
    storm.wait_for(ENOUGH);
    let secondary = lab.find(&role("secondary"))?;
    crash_at(lab, secondary, &Moment::Phase(Phase::Apply), progress)?;
    lab.restart(secondary, progress)?;
    storm.wait_for(storm.durable() + ENOUGH);
    let first = lab.find(&role("leader"))?;
    kill_leader(lab, progress)?;
    storm.wait_for(storm.durable() + ENOUGH);
    ensure!(!storm.has_failed(), "a writer failed with the leader");
    let all: Vec<u8> = lab.ids().collect();
    for id in all.iter().filter(|id| **id != first) {
        lab.fault(Fault::Kill, *id)?;
    }
    storm.abandon();
    for id in all {
        lab.restart(id, progress)?;
    }
    // All are back and have reported what they remember, so no operator is needed.
    ensure!(
        lab.boot_after_a_loss(progress)?,
        "the newest disks are known"
    );
    ensure!(
        lab.find(&role("leader"))? != first,
        "it booted from the old disk"
    );
    let deadline = Instant::now() + Duration::from_secs(90);
    while !lab.guest_answers(Duration::from_secs(1)) {
        ensure!(Instant::now() < deadline, "the guest does not answer");
    }
    let mut link = client.run(|| Link::open(service))?;
    audit(&State::load(&record)?, &mut link)
}

#[test]
fn the_newest_disk_is_booted_after_all_hosts_were_lost() {
    all_hosts_are_lost("t-lost", "vsmr");
}

/// A write is acknowledged when both guests have sent the answer, each after a flush to its own disk.
/// There may be no syncvm in between.
#[test]
fn the_newest_disk_is_booted_where_outputs_are_released_on_match() {
    all_hosts_are_lost("t-lost-hybrid", "hybrid");
}

fn all_hosts_are_lost(name: &str, policy: &str) {
    let _turn = Turn::wait();
    let image = std::env::temp_dir().join(format!("plover-{name}-{}.raw", std::process::id()));
    std::fs::write(&image, vec![7; 16 << 20]).expect("a file is written");
    let options = Options {
        name: name.parse().expect("a name"),
        policy: policy.parse().expect("a policy"),
        guest: Guest::Storm,
        program: Some(program().to_owned()),
        disks: vec![image.clone().into()],
        ..Options::default()
    };
    plover_lab::down::down(&options.name).expect("nothing is left of an older one");
    let progress = Progress::spoken_by(|line| eprintln!("{line}"), AtomicBool::new(false).into());
    let mut lab = Lab::up(&options, &progress).expect("the lab is up");
    let result = lose_all(&mut lab, &progress);
    lab.down().expect("it is taken down");
    std::fs::remove_file(image).expect("the file is removed");
    let audit = result.unwrap_or_else(|error| panic!("{error:#}"));
    eprintln!("{audit}");
    assert!(audit.is_clean(), "{audit}");
}

#[test]
fn disks_survive_their_hosts() {
    let scratch = std::env::temp_dir().join(format!("plover-disk-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).expect("a directory is made");
    let (overlay, image) = (scratch.join("overlay.toml"), scratch.join("disk.raw"));
    std::fs::write(&overlay, OVERLAY).expect("a file is written");
    // Not empty, so that the copies that start empty have to get something.
    std::fs::write(&image, vec![7; 16 << 20]).expect("a file is written");
    let options = Options {
        // Less to hash.
        mem_mib: Some(128),
        disks: vec![image.into()],
        overlay: Some(overlay),
        ..Options::default()
    };
    prove("t-disk", options, disks_under_load);
    std::fs::remove_dir_all(scratch).expect("the directory is removed");
}
