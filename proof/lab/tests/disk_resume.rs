//! A copy to a new replica that is cut off goes on where it was: what has been copied is compared by
//! hash, and not sent anew.

use anyhow::{Context, Result, ensure};
use plover_lab::options::Options;
use plover_lab::state::LabDir;
use plover_lab::trace::now_us;
use plover_lab::{Fault, Target};
use plover_lab_proof::experiment::Experiment;
use plover_lab_proof::{prove, role};
use std::io::Read;

/// Most of what is copied is of the disk: a replica that dies keeps nothing else.
const DISK_BYTES: u64 = 160 << 20;

/// Slow enough to be caught in the middle.
const OVERLAY: &str = "
[group]
warm_mib_per_s = 24
timeout_ms = 1000
";

/// Bytes of the guest that replica `id` has sent so far.
fn sent(lab: &Experiment, id: u8) -> Result<u64> {
    let status = lab.lab().status();
    let replica = status.replica(id).context("there is such a replica")?;
    let sent = replica
        .more
        .get("traffic")
        .and_then(|traffic| traffic["copy_bytes_out"].as_u64());
    sent.with_context(|| format!("replica {id} does not say what it has sent"))
}

/// Waits until replica `id` has sent `bytes` more than `before`, and a copy is under way.
fn wait_for_bytes(lab: &mut Experiment, id: u8, bytes: u64) -> Result<()> {
    lab.wait("a part is copied", |lab| Ok(sent(lab, id)? >= bytes))
}

fn wait_until_warm(lab: &mut Experiment, since_us: u64) -> Result<()> {
    lab.wait("the witness is warm", |lab| {
        Ok(lab.find_event("warm", since_us).is_some())
    })
}

/// Says what a copy cost before it was cut off and after it, and that the rest was less than the
/// part of a whole one, in tenths, that had to be sent for want of it.
fn judge(what: &str, whole: u64, before: u64, after: u64, tenths: u64) -> Result<()> {
    let mib = |bytes: u64| bytes >> 20;
    eprintln!(
        "{what}: a whole copy is {} MiB; {} MiB sent before, {} MiB after",
        mib(whole),
        mib(before),
        mib(after)
    );
    ensure!(
        after > 0 && after < whole * tenths / 10,
        "{what}: it was copied anew"
    );
    Ok(())
}

/// The link to a witness that is being warmed is cut and heals: memory and disk go on.
fn cut_the_link(lab: &mut Experiment, whole: u64) -> Result<()> {
    let (source, target) = (
        lab.lab().find(&role("secondary"))?,
        lab.lab().find(&role("witness"))?,
    );
    wait_for_bytes(lab, source, whole / 2)?;
    let cut = Fault::Cut { from: Some(target) };
    let (_, at) = lab.strike(cut, &Target::Replica(source))?;
    let closed = |lab: &Experiment| {
        let status = lab.lab().status();
        let copy = status.replica(source)?.more.get("copy")?.clone();
        copy["open"].as_bool()
    };
    lab.wait("the copy is cut off", |lab| Ok(closed(lab) == Some(false)))?;
    let before = sent(lab, source)?;
    ensure!(
        lab.find_event("warm", at).is_none() && before < whole * 9 / 10,
        "it was too late"
    );
    lab.strike(Fault::Heal, &Target::Replica(source))?;
    wait_until_warm(lab, at)?;
    judge("cut link", whole, before, sent(lab, source)? - before, 7)
}

/// A witness with an empty disk is killed while it is being warmed: it comes back without memory, and
/// with what its disk has got.
fn kill_the_receiver(lab: &mut Experiment, whole: u64) -> Result<()> {
    let source = lab.lab().find(&role("secondary"))?;
    let (target, _) = lab.strike(Fault::Kill, &role("witness"))?;
    let image = LabDir::of(lab.lab().name()).disk(target, 0);
    std::fs::remove_file(&image)?;
    std::fs::File::create(&image)?.set_len(DISK_BYTES)?;
    let at = now_us();
    lab.restart(target)?;
    let first = sent(lab, source)?;
    wait_for_bytes(lab, source, first + whole * 3 / 4)?;
    ensure!(lab.find_event("warm", at).is_none(), "it was too late");
    let (_, at) = lab.strike(Fault::Kill, &Target::Replica(target))?;
    let before = sent(lab, source)?;
    lab.restart(target)?;
    wait_until_warm(lab, at)?;
    let after = sent(lab, source)? - before;
    judge("killed receiver", whole, before - first, after, 8)
}

fn cut_off_twice(lab: &mut Experiment) -> Result<()> {
    // The first secondary got all there is, from the leader.
    let leader = lab.lab().find(&role("leader"))?;
    let whole = sent(lab, leader)?;
    ensure!(whole > DISK_BYTES, "{whole} bytes are no whole copy");
    cut_the_link(lab, whole)?;
    kill_the_receiver(lab, whole)
}

#[test]
fn a_copy_that_is_cut_off_goes_on() {
    let scratch = tempfile::tempdir().expect("a directory is made");
    let (image, overlay) = (
        scratch.path().join("disk.raw"),
        scratch.path().join("overlay.toml"),
    );
    let mut file = std::fs::File::create(&image).expect("a file is made");
    let noise = std::fs::File::open("/dev/urandom").expect("it can be read");
    std::io::copy(&mut noise.take(DISK_BYTES), &mut file).expect("noise is written");
    std::fs::write(&overlay, OVERLAY).expect("a file is written");
    let options = Options {
        mem_mib: Some(128),
        disks: vec![image.into()],
        overlay: Some(overlay),
        ..Options::default()
    };
    prove("t-resume", options, cut_off_twice);
}
