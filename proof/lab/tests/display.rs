//! The guest's display from any host, and over a failover (docs/decisions/0069).

#[path = "../../../edge/vm/tests/common/viewer.rs"]
mod viewer;

use anyhow::{Context, Result, ensure};
use plover_lab::options::Options;
use plover_lab::progress::Progress;
use plover_lab::{Fault, Lab, guests::Guest};
use plover_lab_proof::served::Served;
use plover_lab_proof::{ask_guest, overlay, prove_on, role, wait_for};
use std::io::ErrorKind;
use std::net::TcpStream;
use std::time::Duration;
use viewer::Viewer;

const OVERLAY: &str = "
[guest]
display = true
";

/// Draws on the guest's screen, without a cursor, which QEMU would let blink.
const DRAW: &str = "printf '\\033[2J\\033[H\\033[?25lplo''ver' > /dev/tty0; echo dra''wn";

/// A key that prints nothing: Shift.
const KEY: u32 = 0xffe1;

/// How long a picture is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

fn look(shown: &Served) -> Result<Viewer<TcpStream>> {
    let server = shown.connect()?;
    server.set_read_timeout(Some(PATIENCE))?;
    Ok(Viewer::new(server)?)
}

/// How often the guest's keyboard has asked for its processor.
fn keys(lab: &Lab) -> Result<u64> {
    let told = ask_guest(
        lab,
        "grep i8042 /proc/interrupts | head -n 1; echo to''ld",
        "told",
    )?;
    let line = told.lines().find(|line| line.contains("IO-APIC"));
    let count = line.and_then(|line| line.split_whitespace().nth(1));
    let count = count.with_context(|| format!("no keyboard in {told:?}"))?;
    Ok(count.parse()?)
}

/// Waits until this viewer sees the picture.
fn sees(viewer: &mut Viewer<TcpStream>, picture: &[u8], progress: &Progress) -> Result<()> {
    wait_for(progress, "the picture is there", || {
        Ok(viewer.picture()? == picture)
    })
}

/// A new viewer sees the picture, and its key reaches the guest.
fn works(
    lab: &Lab,
    shown: &Served,
    picture: &[u8],
    progress: &Progress,
) -> Result<Viewer<TcpStream>> {
    let mut viewer = look(shown)?;
    sees(&mut viewer, picture, progress)?;
    let before = keys(lab)?;
    viewer.press(KEY)?;
    wait_for(progress, "the key is pressed", || Ok(keys(lab)? > before))?;
    Ok(viewer)
}

fn looks_from_everywhere(lab: &mut Lab, progress: &Progress) -> Result<()> {
    let leader = lab.find(&role("leader"))?;
    let shown: Vec<_> = lab
        .ids()
        .map(|id| Ok((id, Served::display(lab, id)?)))
        .collect::<Result<_>>()?;
    let mut there = look(&shown[0].1)?;
    let before = there.picture()?;
    ask_guest(lab, DRAW, "drawn")?;
    // Nothing is drawn afterwards, so that what stands still is the whole of it.
    let mut picture = before.clone();
    wait_for(progress, "the guest has drawn", || {
        let last = std::mem::replace(&mut picture, there.picture()?);
        Ok(picture != before && picture == last)
    })?;
    let mut viewers = Vec::new();
    for (id, shown) in &shown {
        viewers.push((*id, works(lab, shown, &picture, progress)?));
        progress.say(format!("replica {id}: shows the display, and takes a key"));
    }
    // A host that stands still closes no connection.
    let mut traces = lab.traces();
    lab.wait_until_settled(&mut traces, progress, PATIENCE)?;
    lab.fault(Fault::Stop, leader)?;
    progress.say(format!("replica {leader}: stands still"));
    lab.wait_until_settled(&mut traces, progress, PATIENCE)?;
    for (id, viewer) in viewers.iter_mut().filter(|(id, _)| *id != leader) {
        let seen = viewer.picture().map_err(|error| error.kind());
        ensure!(
            seen.as_ref()
                .is_err_and(|kind| *kind != ErrorKind::WouldBlock),
            "replica {id} shows a guest that stands still: {seen:?}"
        );
    }
    for (id, shown) in shown.iter().filter(|(id, _)| *id != leader) {
        works(lab, shown, &picture, progress)?;
        progress.say(format!("replica {id}: shows it again"));
    }
    Ok(())
}

#[test]
fn a_display_is_seen_from_every_host_and_outlives_its_leader() {
    let overlay = overlay(OVERLAY);
    let options = Options {
        guest: Guest::Redis,
        machine: Some("q35".into()),
        overlay: Some(overlay.to_path_buf()),
        ..Options::default()
    };
    prove_on("t-display", options, looks_from_everywhere);
}
