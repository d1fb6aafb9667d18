//! A copy to a new replica that is cut off goes on where it was: the part that has been copied is
//! compared by hash, and not sent anew.

use anyhow::{Context, Result, ensure};
use plover_lab::options::Options;
use plover_lab::state::LabDir;
use plover_lab::trace::now_us;
use plover_lab::{Fault, Target};
use plover_lab_proof::experiment::Experiment;
use plover_lab_proof::script::the_witness_is_warm;
use plover_lab_proof::{overlay, prove, role};
use std::io::Read;

/// Most of the copy is of the disk, because a replica that dies keeps nothing else.
const DISK_BYTES: u64 = 112 << 20;

/// Slow enough to be caught in the middle.
const OVERLAY: &str = "
[group]
warm_mib_per_s = 48
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

/// A copy from the secondary to the witness.
struct Copy {
    source: u8,
    target: u8,
    /// When it began, and what the source had sent by then.
    began_us: u64,
    before: u64,
}

impl Copy {
    /// Takes the witness's memory and disk away, so that a whole copy begins.
    fn begin(lab: &mut Experiment) -> Result<Self> {
        let source = lab.lab().find(&role("secondary"))?;
        let (target, _) = lab.strike(Fault::Kill, &role("witness"))?;
        let image = LabDir::of(lab.lab().name()).disk(target, 0);
        std::fs::remove_file(&image)?;
        std::fs::File::create(&image)?.set_len(DISK_BYTES)?;
        let (began_us, before) = (now_us(), sent(lab, source)?);
        lab.restart(target)?;
        Ok(Self {
            source,
            target,
            began_us,
            before,
        })
    }

    /// The bytes of this copy that have been sent so far.
    fn sent(&self, lab: &Experiment) -> Result<u64> {
        Ok(sent(lab, self.source)? - self.before)
    }

    /// Waits until `bytes` of it have been sent. It must not be complete by then.
    fn wait_for(&self, lab: &mut Experiment, bytes: u64) -> Result<()> {
        lab.wait("a part is copied", |lab| Ok(self.sent(lab)? >= bytes))?;
        let is_over = lab.find_event("warm", self.began_us).is_some();
        ensure!(!is_over, "it was too late");
        Ok(())
    }

    /// Waits for the end of the copy, which was cut off when `before` bytes of it had been sent. The
    /// bytes sent after that must be less than `tenths` tenths of a `whole` copy.
    fn judge(
        &self,
        lab: &mut Experiment,
        what: &str,
        (whole, before): (u64, u64),
        tenths: u64,
    ) -> Result<()> {
        the_witness_is_warm(lab, self.began_us)?;
        let after = self.sent(lab)? - before;
        eprintln!(
            "{what}: a whole copy is {} MiB; {} MiB sent before, {} MiB after",
            whole >> 20,
            before >> 20,
            after >> 20
        );
        ensure!(
            after > 0 && after < whole * tenths / 10,
            "{what}: it was copied anew"
        );
        Ok(())
    }
}

/// The link to a witness that is being warmed is cut and heals: memory and disk go on.
fn cut_the_link(lab: &mut Experiment, whole: u64) -> Result<()> {
    let copy = Copy::begin(lab)?;
    copy.wait_for(lab, whole / 2)?;
    let cut = Fault::Cut {
        from: Some(copy.target),
    };
    let source = Target::Replica(copy.source);
    lab.strike(cut, &source)?;
    lab.wait("the copy is cut off", |lab| {
        let status = lab.lab().status();
        let copy = status
            .replica(copy.source)
            .and_then(|it| it.more.get("copy"));
        Ok(copy.is_some_and(|copy| copy["open"] == false))
    })?;
    let before = copy.sent(lab)?;
    lab.strike(Fault::Heal, &source)?;
    copy.judge(lab, "cut link", (whole, before), 7)
}

/// A witness is killed while it is being warmed. It comes back without memory, and with the part of its
/// disk that it had got.
fn kill_the_receiver(lab: &mut Experiment, whole: u64) -> Result<()> {
    let copy = Copy::begin(lab)?;
    copy.wait_for(lab, whole * 3 / 4)?;
    lab.strike(Fault::Kill, &Target::Replica(copy.target))?;
    let before = copy.sent(lab)?;
    lab.restart(copy.target)?;
    copy.judge(lab, "killed receiver", (whole, before), 8)
}

fn cut_off_twice(lab: &mut Experiment) -> Result<()> {
    // While the guest boots it writes all of its memory, some of it several times, so a copy from that
    // time is no measure.
    the_witness_is_warm(lab, 0)?;
    let copy = Copy::begin(lab)?;
    the_witness_is_warm(lab, copy.began_us)?;
    let whole = copy.sent(lab)?;
    ensure!(whole > DISK_BYTES, "{whole} bytes are no whole copy");
    cut_the_link(lab, whole)?;
    kill_the_receiver(lab, whole)
}

#[test]
fn a_copy_that_is_cut_off_goes_on() {
    let scratch = tempfile::tempdir().expect("a directory is made");
    let (image, overlay) = (scratch.path().join("disk.raw"), overlay(OVERLAY));
    let mut file = std::fs::File::create(&image).expect("a file is made");
    let noise = std::fs::File::open("/dev/urandom").expect("it can be read");
    std::io::copy(&mut noise.take(DISK_BYTES), &mut file).expect("noise is written");
    let options = Options {
        mem_mib: Some(128),
        disks: vec![image.into()],
        overlay: Some(overlay.to_path_buf()),
        ..Options::default()
    };
    prove("t-resume", options, cut_off_twice);
}
