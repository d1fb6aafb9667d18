//! `vsmr` with what is not the default, under the faults of `faults.rs`: the same must hold.
//!
//! Every run of the tests takes all settings at once; each alone, by hand:
//!
//! ```text
//! ./x test -p plover-lab-proof --test settings -- --ignored
//! ```

use anyhow::Result;
use plover_lab::experiment::Experiment;
use plover_lab::options::Options;
use plover_lab_proof::prove;
use plover_lab_proof::script::three_survive;
use std::io::Write;

/// However few pages a slot writes, they are hashed early. A guest has to look idle for longer
/// than it ever needs to be, so that the slots of a few clients are long enough for that.
const EARLY: &str = "early_work = true\nearly_pages = 1\nidle_threshold_us = 20000\n";
/// See docs/decisions/0020.
const ADAPTIVE: &str = "slot = 'adaptive'\n";
/// See docs/decisions/0023: on by default where only divergent pages are sent.
const PLAIN: &str = "compress = false\n";

/// Its slots are the ones that these settings are about.
fn vsmr() -> Options {
    Options {
        policy: "vsmr".parse().expect("there is such a policy"),
        ..Options::default()
    }
}

/// Proves what a script says of a lab whose section `[policy]` has these keys.
fn with(name: &str, keys: &str, script: impl FnOnce(&mut Experiment) -> Result<()>) {
    let mut overlay = tempfile::NamedTempFile::new().expect("a file is made");
    write!(overlay, "[policy]\n{keys}").expect("a file is written");
    let options = Options {
        overlay: Some(overlay.path().to_owned()),
        ..vsmr()
    };
    prove(name, options, script);
}

/// Waits until the leader has compared hashes that it made before a pause.
fn hashes_are_made_early(lab: &mut Experiment) -> Result<()> {
    lab.wait("early hashes are of use", |lab| {
        let status = lab.lab().status();
        let leader = status.leader();
        let totals = leader.and_then(|leader| leader.sync.more.get("totals"));
        Ok(totals.is_some_and(|totals| totals["early_kept"].as_u64() > Some(0)))
    })
}

/// The bytes that the leader has sent, and what they would have been without compressing.
fn sent_and_plain(lab: &mut Experiment) -> Option<(u64, u64)> {
    let status = lab.lab().status();
    let traffic = status.leader()?.more.get("traffic")?;
    let bytes = |key: &str| traffic[key].as_u64();
    let sent = bytes("log_bytes_out")? + bytes("bulk_bytes_out")?;
    Some((sent, bytes("plain_bytes_out")?))
}

fn records_are_compressed(lab: &mut Experiment) -> Result<()> {
    lab.wait("records are compressed", |lab| {
        Ok(sent_and_plain(lab).is_some_and(|(sent, plain)| sent < plain))
    })
}

/// Never true again of a leader that has compressed something.
fn records_are_plain(lab: &mut Experiment) -> Result<()> {
    lab.wait("records are sent as they are", |lab| {
        Ok(sent_and_plain(lab).is_some_and(|(sent, plain)| 0 < plain && plain <= sent))
    })
}

#[test]
fn a_guest_with_all_settings_on_goes_on() {
    let keys = [EARLY, ADAPTIVE].concat();
    with("t-settings", &keys, |lab| {
        hashes_are_made_early(lab)?;
        records_are_compressed(lab)?;
        three_survive(lab, vsmr().policy)?;
        hashes_are_made_early(lab)?;
        records_are_compressed(lab)
    });
}

#[test]
#[ignore = "half a minute: the run of all settings at once is in every run"]
fn early_work_survives_every_fault() {
    with("t-early", EARLY, |lab| {
        hashes_are_made_early(lab)?;
        three_survive(lab, vsmr().policy)?;
        hashes_are_made_early(lab)
    });
}

#[test]
#[ignore = "half a minute: the run of all settings at once is in every run"]
fn adaptive_slots_survive_every_fault() {
    with("t-adaptive", ADAPTIVE, |lab| {
        three_survive(lab, vsmr().policy)
    });
}

#[test]
#[ignore = "half a minute: the run of all settings at once is in every run"]
fn plain_records_survive_every_fault() {
    with("t-plain", PLAIN, |lab| {
        records_are_plain(lab)?;
        three_survive(lab, vsmr().policy)?;
        records_are_plain(lab)
    });
}
