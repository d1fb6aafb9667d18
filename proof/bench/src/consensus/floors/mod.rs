//! The limits: the cost of the same bytes without any protocol.
//!
//! A *ping-pong* is one backup. A *quorum floor* is a bare leader that waits for as many
//! acknowledgements as a majority needs: no framing, no checksum, no order, no view. The rest of the
//! cost of consensus is the protocol's own.

mod disk;
mod echo;
mod shm;
mod tcp;

use super::load::Spans;
use super::measured::{CpuMeter, Measured, Recorder};
use super::plan::{FabricKind, Load, Medium, Setup};
use super::subject::Subject;
use anyhow::{Result, bail};
use std::path::Path;
use std::time::Instant;

/// An operation that is repeated.
trait Round {
    fn round(&mut self) -> Result<()>;
}

/// A floor is set up anew for every size.
struct Floor<F>(F);

impl<F, R> Subject for Floor<F>
where
    F: FnMut(Load) -> Result<R>,
    R: Round,
{
    fn measure(&mut self, load: Load, spans: Spans) -> Result<Measured> {
        let mut floor = (self.0)(load)?;
        let mut recorder = Recorder::new(spans.warm_up, spans.span);
        let cpu = CpuMeter::start(Vec::new())?;
        loop {
            let start = Instant::now();
            if recorder.is_over(start) {
                break;
            }
            floor.round()?;
            recorder.record(start, Instant::now());
        }
        let cpu_us = cpu.per_entry(recorder.entries_in_all)?;
        Ok(Measured {
            cpu_us: Some(cpu_us),
            ..recorder.finish()
        })
    }
}

/// The floor of a fabric, files in `folder` if it is on disk.
pub(super) fn start(setup: Setup, fabric: FabricKind, folder: &Path) -> Result<Box<dyn Subject>> {
    let backups = setup.replicas - 1;
    match (setup.medium, fabric) {
        (medium, FabricKind::Tcp) => {
            let folder = (medium == Medium::Disk).then(|| folder.to_owned());
            Ok(Box::new(Floor(move |load: Load| {
                tcp::Leader::start(backups, load.bytes, folder.as_deref())
            })))
        }
        (Medium::Memory, FabricKind::Shm) => Ok(Box::new(Floor(move |load: Load| {
            shm::Leader::start(backups, load.bytes)
        }))),
        (medium, fabric) => bail!("there is no floor of {fabric} on {medium}"),
    }
}

/// A bare server on TCP connections.
pub(super) fn echo() -> Box<dyn Subject> {
    Box::new(echo::Echo)
}

/// `pwrite` and `fdatasync` of one file in `folder`.
pub(super) fn fdatasync(folder: &Path) -> Result<Box<dyn Subject>> {
    let folder = folder.to_owned();
    Ok(Box::new(Floor(move |load: Load| {
        disk::File::create(&folder.join("alone"), load.bytes)
    })))
}
