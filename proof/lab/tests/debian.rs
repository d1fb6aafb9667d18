//! A whole Debian on a replicated disk: PostgreSQL under TPC-B while leaders are killed. Building
//! the image and booting it takes an emulated processor minutes, so this runs on demand:
//!
//! ```text
//! ./x guests debian postgres
//! ./x test -p plover-lab-proof --test debian -- --ignored --nocapture
//! ```

use anyhow::Result;
use plover_lab::guests::Guest;
use plover_lab::image::Image;
use plover_lab::options::Options;
use plover_lab::progress::Progress;
use plover_lab::state::LabDir;
use plover_lab::{Fault, Lab};
use plover_lab_proof::pgbench::{Audit, Clients};
use plover_lab_proof::{filesystem, kill_leader, role, with_lab};
use std::path::PathBuf;
use std::time::Duration;

/// As many as the check that this project set itself has.
const CLIENTS: u32 = 8;

/// Long enough for the kills below on an idle machine.
const SECONDS: u64 = 120;

/// Between two kills.
const LOADED: Duration = Duration::from_secs(10);

/// `PLOVER_KILLS`, or as many as the check that this project set itself has.
fn kills() -> u32 {
    let given = std::env::var("PLOVER_KILLS").ok();
    given.and_then(|given| given.parse().ok()).unwrap_or(5)
}

fn under_load(lab: &mut Lab, programs: PathBuf, progress: &Progress) -> Result<Audit> {
    let clients = Clients::in_lab(lab, programs);
    clients.fill(1)?;
    let dir = tempfile::tempdir()?;
    let load = clients.start(dir.path(), CLIENTS, SECONDS)?;
    for _ in 0..kills() {
        std::thread::sleep(LOADED);
        let killed = kill_leader(lab, progress)?;
        lab.restart(killed, progress)?;
        // Without it there is no majority after the next kill.
        while lab
            .status()
            .replica(killed)
            .is_none_or(|replica| replica.role != "witness")
        {
            progress.sleep(Duration::from_millis(100))?;
        }
    }
    let audit = clients.settle(load)?;

    // What the leader's disk holds, as a crash of all would leave it.
    let leader = lab.find(&role("leader"))?;
    for id in lab.ids().collect::<Vec<_>>() {
        // One that is down already is as good.
        let _ = lab.fault(Fault::Kill, id);
    }
    let disks = LabDir::of(lab.name()).disks();
    let disk = disks.join(format!("replica-{leader}-disk-0.raw"));
    filesystem::check(&disk, filesystem::PARTITION_BYTES, dir.path())?;
    Ok(audit)
}

#[test]
#[ignore = "builds and boots a whole Debian, which takes minutes"]
fn commits_on_disk_survive_their_leaders() {
    let options = |guest| Options {
        guest,
        ..Options::default()
    };
    let image = Image::find(&options(Guest::Postgres)).expect("run ./x guests postgres");
    let programs = image.kernel.with_file_name("client");
    let audit = with_lab("t-debian", options(Guest::Debian), |lab, progress| {
        under_load(lab, programs, progress)
    })
    .unwrap_or_else(|error| panic!("{error:#}"));
    assert!(audit.is_clean(), "{audit}");
}
