//! A guest under KVM: memories equal after each syncvm, and a leader that dies. And `plover check --guest`, by which a
//! user tries the same guest.
//!
//! The guest (`guests/metal`) has no kernel. It runs natively where KVM emulates a guest's ring 0 too, so that this tests
//! the whole path under KVM: how the processor's writes are seen, and its state saved and loaded.
//!
//! On demand, where 16 GiB of memory are free: a guest of 8 GiB that fills 4 GiB as fast as memory takes it.
//!
//! ```text
//! ./x test -p plover-lab-proof metal:: -- --ignored --nocapture
//! ```

// The guest's own decoder and table, with their tests.
#[path = "../../../guests/metal/src/resp.rs"]
#[allow(dead_code)]
mod resp;
#[path = "../../../guests/metal/src/store.rs"]
#[allow(dead_code)]
mod store;

use anyhow::{Context, Result, ensure};
use plover_lab::guests::Guest;
use plover_lab::options::Options;
use plover_lab_proof::experiment::Experiment;
use plover_lab_proof::script::{
    COMPARED, equal_slots, equal_slots_of_divergent_guests, the_leader_dies,
};
use plover_lab_proof::{Turn, overlay, program, prove};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Slots to compare.
const SLOTS: usize = 200;

/// The guest's own words (guests/README.md): pages a second, pages, and what is written: its clock, so that the two
/// guests' pages always differ.
const WRITE: &str = "WRITER 10000 200 clock";

/// Sends the guest one of its own words, and returns the line that it answers.
fn say(lab: &Experiment, word: &str) -> Result<String> {
    let (client, service) = (lab.lab().topology().client(), lab.lab().service());
    client.run(|| {
        let mut stream = TcpStream::connect(service)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        stream.write_all(format!("{word}\r\n").as_bytes())?;
        let mut line = String::new();
        BufReader::new(stream)
            .read_line(&mut line)
            .context("the guest's answer")?;
        Ok(line.trim_end().to_owned())
    })
}

/// Tells the guest to write.
fn write_memory(lab: &Experiment, word: &str) -> Result<()> {
    let answer = say(lab, word)?;
    ensure!(answer == "+OK", "the guest refuses to write: {answer}");
    Ok(())
}

fn outlives_its_leader(lab: &mut Experiment) -> Result<()> {
    write_memory(lab, WRITE)?;
    equal_slots_of_divergent_guests(lab, SLOTS)?;
    the_leader_dies(lab)?;
    // The third replica has the guest now, from a copy.
    equal_slots(lab, 1)
}

/// The pages of 4 GiB.
const FILLED_PAGES: u64 = 1 << 20;

/// How often the replicas have taken their leader for dead.
fn suspicions(lab: &Experiment) -> u64 {
    let replicas = lab.lab().status().group.replicas.into_iter();
    let counts = replicas.filter_map(|replica| replica.more.get("suspicions")?.as_u64());
    counts.sum()
}

/// The guest fills much of its memory while the client writes. It stays protected, or is so again by itself.
fn fills_its_memory(lab: &mut Experiment) -> Result<()> {
    let before = suspicions(lab);
    write_memory(lab, &format!("WRITER 4000000 {FILLED_PAGES} fill"))?;
    let begun = Instant::now();
    let (mut unprotected_since, mut longest) = (None, Duration::ZERO);
    let mut filled = None;
    lab.wait("protected with 4 GiB more", |lab| {
        if filled.is_none()
            && say(lab, "WRITER")?.trim_start_matches(':').parse::<u64>()? >= FILLED_PAGES
        {
            write_memory(lab, "WRITER 0 0 fill")?;
            filled = Some(begun.elapsed());
        }
        let is_protected = lab.lab().status().protected;
        if is_protected {
            unprotected_since = None;
        } else {
            let since: &mut Instant = unprotected_since.get_or_insert_with(Instant::now);
            longest = longest.max(since.elapsed());
        }
        Ok(is_protected && filled.is_some())
    })?;
    eprintln!("filled in {filled:?}; never unprotected for longer than {longest:?}");
    let suspected = suspicions(lab) - before;
    ensure!(
        suspected == 0,
        "{suspected} times a leader was taken for dead"
    );
    Ok(())
}

fn no_kvm() -> Option<String> {
    let kvm = File::options().read(true).write(true).open("/dev/kvm");
    kvm.err().map(|error| format!("/dev/kvm: {error}"))
}

fn prove_under_kvm(name: &str, options: Options, script: fn(&mut Experiment) -> Result<()>) {
    if let Some(why) = no_kvm() {
        eprintln!("skipped: {why}");
        return;
    }
    let options = Options {
        guest: Guest::Metal,
        accel: Some("kvm".into()),
        ..options
    };
    prove(name, options, script);
}

/// `plover check --guest` with a configuration that names this accelerator.
fn is_fit(accel: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let example = root.join("app/plover/package/shop-db.toml");
    let example = std::fs::read_to_string(example).expect("there is an example");
    let with_accel = example.replace("[guest]", &format!("[guest]\naccel = \"{accel}\""));
    let dir = tempfile::tempdir().expect("a directory is made");
    let config = dir.path().join("shop-db.toml");
    std::fs::write(&config, with_accel).expect("a file is written");
    let checked = Command::new(program())
        .args(["check", "--syncs", "20", "--config"])
        .arg(&config)
        .arg("--guest")
        .arg(root.join(".cache/guests/metal/kernel"))
        .output()
        .expect("the program starts");
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    eprintln!("{said}{}", String::from_utf8_lossy(&checked.stderr));
    assert!(checked.status.success(), "under {accel}: {said}");
    for row in ["equal memory  ok", "takeover      ok"] {
        assert!(said.contains(row), "{row}: {said}");
    }
}

#[test]
fn a_host_is_tried_with_two_guests() {
    let _turn = Turn::wait();
    is_fit("tcg");
    if let Some(why) = no_kvm() {
        eprintln!("skipped: {why}");
        return;
    }
    is_fit("kvm");
}

fn outlives_its_leader_on(name: &str, machine: &str, keys: &str) {
    let overlay = overlay(&format!("{COMPARED}{keys}"));
    let options = Options {
        policy: "vsmr".parse().expect("there is such a policy"),
        machine: Some(machine.into()),
        // Less to hash.
        mem_mib: Some(64),
        overlay: Some(overlay.to_path_buf()),
        ..Options::default()
    };
    prove_under_kvm(name, options, outlives_its_leader);
}

/// Memories are equal after each sync, before and after.
#[test]
fn a_guest_under_kvm_outlives_its_leader() {
    outlives_its_leader_on("t-metal", "microvm", "");
}

/// The same with PCI, and with firmware that moves the borders of RAM. It would read KVM's clock: KVM writes the page of that one
/// itself as a state is loaded, so that it differs on the two sides until the next sync.
#[test]
fn a_guest_of_pci_under_kvm_outlives_its_leader() {
    let no_clock = "[guest]\ncpu_features = [\"-kvmclock\"]\n";
    outlives_its_leader_on("t-metal-pci", "q35", no_clock);
}

#[test]
#[ignore = "needs 16 GiB of memory"]
fn a_guest_that_fills_4_gib_at_once_stays_protected() {
    let options = Options {
        mem_mib: Some(8192),
        ..Options::default()
    };
    prove_under_kvm("t-fills", options, fills_its_memory);
}
