//! The limits: what the same bytes cost without any protocol.
//!
//! A *ping-pong* is one backup, a *quorum floor* a bare leader that waits for as many
//! acknowledgements as a majority needs: no framing, no checksum, no order, no view. Whatever
//! consensus costs above that is consensus' own.

mod disk;
mod synced;

use super::load::Spans;
use super::measured::{CpuMeter, Measured, Recorder};
use super::plan::{FabricKind, Load, Medium, Setup};
use super::subject::Subject;
use anyhow::{Context, Result, bail};
use plover_fabric::Spin;
use plover_fabric::floor::{self, FloorKind};
use std::path::Path;
use std::time::Instant;

/// One thing that is done again and again.
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
    let replicas = setup.replicas;
    let kind = match (setup.medium, fabric) {
        (Medium::Disk, FabricKind::Tcp) => {
            let folder = folder.to_owned();
            return Ok(Box::new(Floor(move |load: Load| {
                synced::Leader::start(replicas - 1, load.bytes, &folder)
            })));
        }
        (Medium::Memory, FabricKind::Tcp) => FloorKind::Tcp,
        (Medium::Memory, FabricKind::Shm) => FloorKind::Shm,
        #[cfg(feature = "ofi")]
        (Medium::Memory, FabricKind::Ofi) => {
            use super::ours::fabrics::OFI_PROVIDER;
            use plover_fabric::ofi;
            return Ok(Box::new(Floor(move |load: Load| {
                let floor =
                    ofi::floor::Floor::start(OFI_PROVIDER, load.bytes, replicas, Spin::Never);
                floor.context("cannot start the floor")
            })));
        }
        (medium, fabric) => bail!("no floor of {fabric} on {medium} is built in"),
    };
    Ok(Box::new(Floor(move |load: Load| {
        let floor = floor::Floor::start(kind, load.bytes, replicas, Spin::Never);
        floor.context("cannot start the floor")
    })))
}

impl Round for floor::Floor {
    fn round(&mut self) -> Result<()> {
        floor::Floor::round(self).context("the floor broke down")
    }
}

#[cfg(feature = "ofi")]
impl Round for plover_fabric::ofi::floor::Floor {
    fn round(&mut self) -> Result<()> {
        plover_fabric::ofi::floor::Floor::round(self).context("the floor broke down")
    }
}

/// `pwrite` and `fdatasync` of one file in `folder`.
pub(super) fn fdatasync(folder: &Path) -> Result<Box<dyn Subject>> {
    let folder = folder.to_owned();
    Ok(Box::new(Floor(move |load: Load| {
        disk::File::create(&folder.join("alone"), load.bytes)
    })))
}
