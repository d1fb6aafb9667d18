//! `./x bench failover --warm`: from the loss of the leader until the guest is protected again, with a
//! warm witness and with a cold one, in alternation.
//!
//! The guest has 1 GiB of memory and a disk of 2 GiB, both full: the disk holds noise, and the memory
//! caches what was read of it. Then 5% of both changes: a part of the disk is written over, which
//! changes as much of the memory that caches it. Right after that the leader is killed.

use crate::children::spoken_progress;
use crate::lab::{name, plover};
use crate::machine::Machine;
use crate::stats::Sample;
use anyhow::{Context, Result, ensure};
use plover_lab::options::Options;
use plover_lab::progress::Progress;
use plover_lab::trace::TraceEvent;
use plover_lab::{Fault, Lab};
use plover_lab_proof::{ask_guest, role, wait_for};
use std::io::Read;
use std::path::Path;

/// The guest's memory and its disk.
const MEM_MIB: u32 = 1024;
const DISK_MIB: u64 = 2048;

/// The part of the disk that is written over. With the memory that caches it, this is 5% of both.
const CHANGED_MIB: u64 = 77;

/// Longer than the default: two guests that read and write a gigabyte leave the replicas of one machine
/// little time for their loops, and failure detection is not measured here.
const TIMEOUT_MS: u64 = 600;

/// The figures of one kill.
#[derive(Debug)]
struct Kill {
    /// From the kill until protected, ms.
    reprotect_ms: f64,
    /// How far the witness's warm copy was behind when the leader was killed. `None` if it kept none.
    behind_mib: Option<f64>,
    /// MiB that the new leader sent in copies until then.
    copied_mib: f64,
}

pub(super) fn run(rounds: u32) -> Result<()> {
    let scratch = tempfile::tempdir_in("/var/tmp").context("making a place for the disk")?;
    let image = scratch.path().join("disk.raw");
    fill_with_noise(&image)?;
    let mut figures = Figures::default();
    let done = measure_all(rounds, &image, scratch.path(), &mut figures);
    // The figures are printed even if the run fails.
    if !figures.times[0].is_empty() {
        figures.print();
    }
    done
}

fn measure_all(rounds: u32, image: &Path, scratch: &Path, figures: &mut Figures) -> Result<()> {
    for round in 0..rounds {
        for (kind, warm) in ["full", "off"].into_iter().enumerate() {
            eprintln!("round {}/{rounds}: warm_witness = \"{warm}\"", round + 1);
            let kill = one(warm, image, scratch)?;
            figures.times[kind].push(kill.reprotect_ms);
            figures.copied[kind].push(kill.copied_mib);
            if let Some(mib) = kill.behind_mib {
                figures.behind.push(mib);
            }
        }
    }
    Ok(())
}

/// The figures of all kills. Where there are two samples, the first is of a warm witness.
#[derive(Default)]
struct Figures {
    times: [Sample; 2],
    copied: [Sample; 2],
    behind: Sample,
}

impl Figures {
    fn print(&self) {
        let [warm, cold] = &self.times;
        println!("{}", Machine::this("as chosen by the lab"));
        println!(
            "{} leaders killed with a warm witness, {} with a cold one; {MEM_MIB} MiB of memory and \
             {DISK_MIB} MiB of disk, {CHANGED_MIB} MiB of the disk and as much memory changed right before\n",
            warm.len(),
            cold.len()
        );
        let [copied_warm, copied_cold] = &self.copied;
        for (what, sample, decimals, unit) in [
            ("protected again, warm", warm, 0, " ms"),
            ("protected again, cold", cold, 0, " ms"),
            ("cold over warm", &cold.ratio(warm), 1, ""),
            ("copied, warm", copied_warm, 0, " MiB"),
            ("copied, cold", copied_cold, 0, " MiB"),
            ("the warm copy lacked", &self.behind, 0, " MiB"),
        ] {
            if !sample.is_empty() {
                println!("{what:<22} {}{unit}", sample.words(decimals));
            }
        }
    }
}

/// An image that nothing can compress and that has no two equal blocks.
fn fill_with_noise(path: &Path) -> Result<()> {
    let mut file = std::fs::File::create(path)?;
    let mut noise = std::fs::File::open("/dev/urandom")?.take(DISK_MIB << 20);
    std::io::copy(&mut noise, &mut file).context("making the disk")?;
    Ok(())
}

fn one(warm: &str, image: &Path, scratch: &Path) -> Result<Kill> {
    let overlay = scratch.join("overlay.toml");
    let keys = format!("[group]\nwarm_witness = \"{warm}\"\ntimeout_ms = {TIMEOUT_MS}\n");
    std::fs::write(&overlay, keys)?;
    let options = Options {
        name: name(),
        mem_mib: Some(MEM_MIB),
        disks: vec![image.to_owned().into()],
        overlay: Some(overlay),
        program: Some(plover()),
        ..Options::default()
    };
    let progress = spoken_progress();
    let lab = Lab::up(&options, &progress)?;
    let kill = kill_after_changes(&lab, warm != "off", &progress);
    lab.down()?;
    kill
}

fn kill_after_changes(lab: &Lab, warm: bool, progress: &Progress) -> Result<Kill> {
    progress.say("the guest reads its whole disk");
    in_guest(lab, "dd if=/dev/vda of=/dev/null bs=1M")?;
    wait_for(progress, "the witness is warm", || {
        Ok(!warm || behind(lab).is_some_and(|bytes| bytes < 16 << 20))
    })?;
    wait_for(progress, "protected", || Ok(lab.status().protected))?;
    progress.say("the guest writes over a part of it");
    let from = DISK_MIB / 2;
    in_guest(
        lab,
        &format!(
            "dd if=/dev/vda of=/dev/vda bs=1M count={CHANGED_MIB} skip={from} conv=notrunc,fsync"
        ),
    )?;
    wait_for(progress, "protected", || Ok(lab.status().protected))?;
    let behind = behind(lab).filter(|_| warm);
    let mut traces = lab.traces();
    traces.take();
    let leader = lab.find(&role("leader"))?;
    let heir = lab.find(&role("secondary"))?;
    let before = copied(lab, heir)?;
    let killed_at = lab.fault(Fault::Kill, leader)?;
    let mut found: Option<TraceEvent> = None;
    wait_for(progress, "protected again", || {
        let mut events = traces.take().into_iter();
        found = events.find(|event| event.what == "protected" && event.mono_us > killed_at);
        Ok(found.is_some())
    })?;
    let protected = found.context("it was found")?;
    let bytes = copied(lab, protected.replica)?.saturating_sub(before);
    Ok(Kill {
        reprotect_ms: (protected.mono_us - killed_at) as f64 / 1000.0,
        behind_mib: behind.map(mib),
        copied_mib: mib(bytes),
    })
}

/// Bytes that a replica has sent in copies.
fn copied(lab: &Lab, id: u8) -> Result<u64> {
    let status = lab.control(id).status()?;
    let traffic = status.more.get("traffic");
    let bytes = traffic.and_then(|traffic| traffic.get("copy_bytes_out")?.as_u64());
    bytes.context("the replica does not say what it has copied: it is of another release")
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// How many bytes the warm copy lacks, as its source reports it.
fn behind(lab: &Lab) -> Option<u64> {
    let status = lab.status();
    let copy = status.with_role("secondary")?.more.get("copy")?;
    copy.get("bytes_behind")?.as_u64()
}

/// Runs a command in the guest, on its console, to its end.
fn in_guest(lab: &Lab, command: &str) -> Result<()> {
    // The console echoes the typed command. The quotes make the echo differ from the output.
    let said = ask_guest(
        lab,
        &format!("{command} 2>/dev/null; echo do''ne $? fin''ished"),
        " finished",
    )?;
    ensure!(
        said.contains("done 0 finished"),
        "`{command}` failed: {said}"
    );
    Ok(())
}
