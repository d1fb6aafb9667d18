//! `vsmr` without compression, under the faults of `faults.rs`.

use anyhow::Result;
use plover_lab::options::Options;
use plover_lab_proof::experiment::Experiment;
use plover_lab_proof::prove;
use plover_lab_proof::script::three_survive;
use std::io::Write;

/// The bytes that the leader has sent, and what they would have been without compression.
fn sent_and_plain(lab: &mut Experiment) -> Option<(u64, u64)> {
    let status = lab.lab().status();
    let traffic = status.leader()?.more.get("traffic")?;
    let bytes = |key: &str| traffic[key].as_u64();
    let sent = bytes("log_bytes_out")? + bytes("bulk_bytes_out")?;
    Some((sent, bytes("plain_bytes_out")?))
}

/// Stays false for a leader that has compressed anything.
fn records_are_plain(lab: &mut Experiment) -> Result<()> {
    lab.wait("records are sent as they are", |lab| {
        Ok(sent_and_plain(lab).is_some_and(|(sent, plain)| 0 < plain && plain <= sent))
    })
}

/// Compression is on by default where only divergent pages are sent (docs/decisions/0023).
#[test]
fn plain_records_survive_every_fault() {
    let mut overlay = tempfile::NamedTempFile::new().expect("a file is made");
    write!(overlay, "[policy]\ncompress = false\n").expect("a file is written");
    let options = Options {
        policy: "vsmr".parse().expect("there is such a policy"),
        overlay: Some(overlay.path().to_owned()),
        ..Options::default()
    };
    let policy = options.policy;
    prove("t-plain", options, |lab| {
        records_are_plain(lab)?;
        three_survive(lab, policy)?;
        records_are_plain(lab)
    });
}
