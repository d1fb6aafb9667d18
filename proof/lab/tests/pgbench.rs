//! PostgreSQL under TPC-B while its leader is killed: every transaction whose commit was
//! acknowledged is there afterwards, once and whole, and no client lost its connection.

use anyhow::Result;
use plover_lab::Lab;
use plover_lab::guests::Guest;
use plover_lab::image::Image;
use plover_lab::options::Options;
use plover_lab::progress::Progress;
use plover_lab_proof::pgbench::Clients;
use plover_lab_proof::{kill_leader, prove_on};
use std::path::PathBuf;
use std::time::Duration;

/// The number of clients that the project has set for this check.
const CLIENTS: u32 = 8;

/// Long enough for a failover and a new secondary in the middle of it.
const SECONDS: u64 = 20;

fn under_load(lab: &Lab, programs: PathBuf, progress: &Progress) -> Result<()> {
    let clients = Clients::in_lab(lab, programs);
    clients.fill(1)?;
    let dir = tempfile::tempdir()?;
    let load = clients.start(dir.path(), CLIENTS, SECONDS)?;
    std::thread::sleep(Duration::from_secs(SECONDS / 5));
    kill_leader(lab, progress)?;
    clients.settle(load)?;
    Ok(())
}

#[test]
fn commits_survive_their_leader() {
    let options = Options {
        guest: Guest::Postgres,
        ..Options::default()
    };
    let image = Image::find(&options).expect("./x test builds the image");
    let programs = image.kernel.with_file_name("client");
    prove_on("t-pgbench", options, |lab, progress| {
        under_load(lab, programs, progress)
    });
}
