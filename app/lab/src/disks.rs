//! The disks of a lab's guest: each replica gets a file of its own, as hosts would have.
//!
//! The first replica's file is a copy of the user's image, which stays as it is. The others' files have
//! the image's size and are empty: the guest's leader fills them, as it would on new hosts. A disk that
//! the guest cannot write is copied to all of them. Holes in the image stay holes. The files do not lie
//! with the rest of the lab, which is in memory. Images of other formats are imported
//! ([`plover_disk::import`]).

use crate::options::DiskImage;
use crate::progress::Progress;
use crate::state::LabDir;
use anyhow::{Context, Result, bail};
use plover_disk::import::Source;
use plover_disk::{DiskSpec, Disks};
use rustix::fs::SeekFrom;
use std::fs::File;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;
use std::time::Duration;

/// Bytes that are copied at once.
const PART_BYTES: usize = 1 << 20;

/// From this size on a copy takes long, so its progress is shown.
const LONG_BYTES: u64 = 1 << 30;

/// The files of replica `id` that stand for `images`, whether they are made yet or not.
pub fn places(images: &[DiskImage], dir: &LabDir, id: u8) -> Vec<DiskImage> {
    let places = images.iter().enumerate().map(|(i, disk)| DiskImage {
        path: dir.disk(id, i),
        ..disk.clone()
    });
    places.collect()
}

/// Checks the user's images before anything is copied. A replica would refuse the copy instead, and
/// name a file that is removed again. Raw images are opened as a replica opens them, which needs a journal;
/// it is made in `scratch`.
pub fn check(images: &[DiskImage], scratch: &Path) -> Result<()> {
    for image in images.iter().map(|disk| &disk.path) {
        let shown = image.display();
        let metadata = std::fs::metadata(image)
            .with_context(|| format!("cannot read the disk image {shown}"))?;
        let kind = metadata.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            let kind = if kind.is_dir() {
                "a directory"
            } else {
                "no regular file"
            };
            bail!("{shown} is {kind}: --disk takes an image or a block device");
        }
        if kind.is_file() && metadata.len() == 0 {
            bail!("the disk image {shown} is empty");
        }
        if Source::look(image)?.is_none() {
            let spec = DiskSpec {
                path: image.clone(),
                read_only: true,
                bytes: None,
                bytes_max: None,
                delay: Duration::ZERO,
            };
            let journal = scratch.join("check.journal");
            let opened = Disks::open(&[spec], &journal);
            let _ = std::fs::remove_file(journal);
            opened?;
        }
    }
    Ok(())
}

/// Makes the files of [`places`].
pub fn prepare(images: &[DiskImage], dir: &LabDir, id: u8, progress: &Progress) -> Result<()> {
    for (i, disk) in images.iter().enumerate() {
        let (image, content) = (&disk.path, id == 0 || disk.read_only);
        dir.create_disks()?;
        let to = dir.disk(id, i);
        let made = match Source::look(image)? {
            Some(source) => import(&source, image, &to, content, progress),
            None => copy(image, &to, content, progress),
        };
        made.with_context(|| {
            format!(
                "cannot copy the disk {} to {}",
                image.display(),
                to.display()
            )
        })?;
    }
    Ok(())
}

/// Makes `to` as large as the disk in `source`, and with its content if asked to.
fn import(
    source: &Source,
    image: &Path,
    to: &Path,
    content: bool,
    progress: &Progress,
) -> Result<()> {
    if !content {
        File::create(to)?.set_len(source.bytes())?;
        return Ok(());
    }
    let image = image.display();
    progress.say(format!("importing {image}"));
    let tell = |percent| {
        if percent % 20 == 0 {
            progress.say(format!("{image}: {percent}%"));
        }
    };
    let imported = source.import(to, tell, || progress.check().is_ok());
    // Ctrl-C reaches `qemu-img` as well.
    progress.check()?;
    Ok(imported?)
}

/// Makes `to` as large as `from`, and with its content if asked to.
fn copy(from: &Path, to: &Path, content: bool, progress: &Progress) -> Result<()> {
    let source = File::open(from)?;
    let bytes = rustix::fs::seek(&source, SeekFrom::End(0))?;
    if bytes == 0 {
        bail!("it is empty");
    }
    let target = File::create(to)?;
    target.set_len(bytes)?;
    let mut at = if content { 0 } else { bytes };
    let mut buffer = vec![0; PART_BYTES];
    let mut tenths = 0;
    while at < bytes {
        at = match rustix::fs::seek(&source, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(rustix::io::Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(&source, SeekFrom::Hole(at))?;
        while at < end {
            let part = PART_BYTES.min((end - at) as usize);
            source.read_exact_at(&mut buffer[..part], at)?;
            target.write_all_at(&buffer[..part], at)?;
            at += part as u64;
            progress.check()?;
        }
        let now = at * 10 / bytes;
        if now > tenths && bytes >= LONG_BYTES {
            progress.say(format!("copying {}: {}%", from.display(), now * 10));
            tenths = now;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn an_image_that_cannot_be_used_is_named_before_it_is_copied() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::create_dir(path("folder")).unwrap();
        for (name, content) in [
            ("good", vec![0; 8192]),
            ("empty", vec![]),
            ("uneven", vec![0; 5000]),
            ("foreign", [b"QFI\xfb".to_vec(), vec![0; 8188]].concat()),
            ("false.vdi", vec![0; 8192]),
        ] {
            std::fs::write(path(name), content).unwrap();
        }
        let check = |name: &str| check(&[path(name).into()], dir.path());
        check("good").unwrap();
        for (name, why) in [
            ("none", "No such file"),
            ("folder", "directory"),
            ("empty", "is empty"),
            ("uneven", "truncate -s %4096"),
            ("foreign", ".qcow2"),
            ("false.vdi", "named like a vdi"),
        ] {
            let error = format!("{:#}", check(name).unwrap_err());
            let shown = path(name).display().to_string();
            assert!(error.contains(why) && error.contains(&shown), "{error}");
        }
        assert!(!path("check.journal").exists());
    }

    #[test]
    fn holes_stay_holes() {
        let dir = tempfile::tempdir().unwrap();
        let [none, from, to] = ["none", "from", "to"].map(|name| dir.path().join(name));
        let stop = Arc::new(AtomicBool::new(false));
        let progress = Progress::spoken_by(|_| (), Arc::clone(&stop));
        let file = File::create(&from).unwrap();
        file.set_len(64 << 20).unwrap();
        file.write_all_at(b"here", 40 << 20).unwrap();
        copy(&from, &to, true, &progress).unwrap();
        assert_eq!(std::fs::read(&to).unwrap(), std::fs::read(&from).unwrap());
        assert!(std::fs::metadata(&to).unwrap().blocks() * 512 < 1 << 20);
        copy(&from, &to, false, &progress).unwrap();
        let empty = std::fs::metadata(&to).unwrap();
        assert_eq!((empty.len(), empty.blocks()), (64 << 20, 0));
        assert!(copy(&none, &to, true, &progress).is_err());
        stop.store(true, Ordering::Relaxed);
        let stopped = copy(&from, &to, true, &progress).unwrap_err();
        assert!(stopped.is::<crate::progress::Interrupted>(), "{stopped}");
    }
}
