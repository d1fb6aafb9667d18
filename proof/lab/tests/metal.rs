//! A guest under KVM: memories equal after each syncvm, and a leader that dies.
//!
//! The guest (`guests/metal`) has no kernel. It runs natively where KVM emulates a guest's ring 0 too, so that this tests
//! the whole path under KVM: how the processor's writes are seen, and its state saved and loaded.

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
use plover_lab_proof::{overlay, prove};
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Slots to compare.
const SLOTS: usize = 200;

/// The guest's own words (guests/README.md): pages a second, pages, and what is written: its clock, so that the two
/// guests' pages always differ.
const WRITE: &[u8] = b"WRITER 10000 200 clock\r\n";

/// Tells the guest to write.
fn write_memory(lab: &Experiment) -> Result<()> {
    let (client, service) = (lab.lab().topology().client(), lab.lab().service());
    client.run(|| {
        let mut stream = TcpStream::connect(service)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        stream.write_all(WRITE)?;
        let mut answer = [0; 5];
        stream
            .read_exact(&mut answer)
            .context("the guest's answer")?;
        ensure!(&answer == b"+OK\r\n", "the guest refuses to write");
        Ok(())
    })
}

fn is_synced(lab: &mut Experiment) -> Result<()> {
    write_memory(lab)?;
    equal_slots_of_divergent_guests(lab, SLOTS)
}

fn outlives_its_leader(lab: &mut Experiment) -> Result<()> {
    is_synced(lab)?;
    the_leader_dies(lab)?;
    // The third replica has the guest now, from a copy.
    equal_slots(lab, 1)
}

fn prove_under_kvm(name: &str, script: fn(&mut Experiment) -> Result<()>) {
    let kvm = File::options().read(true).write(true).open("/dev/kvm");
    if let Err(error) = kvm {
        eprintln!("skipped: /dev/kvm: {error}");
        return;
    }
    let overlay = overlay(COMPARED);
    let options = Options {
        guest: Guest::Metal,
        accel: Some("kvm".into()),
        policy: "vsmr".parse().expect("there is such a policy"),
        // Less to hash.
        mem_mib: Some(64),
        overlay: Some(overlay.to_path_buf()),
        ..Options::default()
    };
    prove(name, options, script);
}

#[test]
fn memories_of_guests_under_kvm_are_equal_after_each_sync() {
    prove_under_kvm("t-metal", is_synced);
}

#[test]
fn a_guest_under_kvm_outlives_its_leader() {
    prove_under_kvm("t-metal", outlives_its_leader);
}
