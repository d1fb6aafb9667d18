//! `plover disk import`.

use crate::cli::DiskImport;
use crate::output;
use anyhow::{Context, Result, bail, ensure};
use plover_disk::import::{Format, Source, make_folder};
use plover_lab::progress::Progress;
use std::fs::File;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::ExitCode;

/// A line is printed for each of so many percents.
const TOLD_EVERY: u8 = 10;

/// Makes a disk of an image.
///
/// # Errors
/// It is not made, and nothing of it is left; or somebody pressed Ctrl-C.
pub fn import(options: &DiskImport) -> Result<ExitCode> {
    let DiskImport { image, disk, .. } = options;
    if let Ok(found) = disk.symlink_metadata() {
        ensure!(
            !found.file_type().is_block_device(),
            "{} is a block device: give it the image's content by 'qemu-img convert -n -f FORMAT -O raw', of an image that \
             you trust",
            disk.display()
        );
        bail!(
            "{} is there already, and nothing is overwritten: move it away, or name another place",
            disk.display()
        );
    }
    let progress = Progress::interruptible(false)?;
    let source = Source::look_as(format_of(options)?, image, &options.backing_folders)?;
    let size = options.size.map(|size| size.mib << 20);
    let bytes = size.unwrap_or(source.bytes());
    ensure!(
        source.bytes() <= bytes,
        "the image {} has {} MiB, and --size says {}: the guest would lose its end",
        image.display(),
        source.bytes().div_ceil(1 << 20),
        bytes >> 20
    );
    make_folder(disk)?;
    let mut told = None;
    let tell_percent = |percent: u8| {
        let tens = percent / TOLD_EVERY;
        if told.replace(tens) != Some(tens) {
            progress.say(format_args!("{}: {percent}%", disk.display()));
        }
    };
    let imported = source
        .at_least(bytes)
        .import(disk, tell_percent, || progress.check().is_ok());
    if imported.is_err() {
        // Ctrl-C reaches `qemu-img` as well.
        progress.check()?;
    }
    imported?;
    output::line(format_args!(
        "{} has the content of {}, and {} MiB",
        disk.display(),
        image.display(),
        bytes.div_ceil(1 << 20)
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// The format of the image. A raw one may be a guest's disk, which may begin as the guest wants, so it is not taken for
/// another format, and an image of another format without its name not for a raw one.
fn format_of(options: &DiskImport) -> Result<Format> {
    if let Some(format) = options.format {
        return Ok(format);
    }
    let image: &Path = &options.image;
    if let Some(format) = Format::of_name(image) {
        return Ok(format);
    }
    let file = File::open(image).with_context(|| format!("cannot open {}", image.display()))?;
    let found =
        Format::of_content(&file).with_context(|| format!("cannot read {}", image.display()))?;
    if let Some(found) = found {
        bail!(
            "{} begins like a {1} image, and its name does not say so: give --format {1}, or --format raw if it is a disk \
             that a guest has written",
            image.display(),
            found.name()
        );
    }
    Ok(Format::Raw)
}
