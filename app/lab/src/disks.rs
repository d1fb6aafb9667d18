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
use rustix::fs::SeekFrom;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

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

/// Makes the files of [`places`].
pub fn prepare(images: &[DiskImage], dir: &LabDir, id: u8, progress: &Progress) -> Result<()> {
    let place = dir.disks();
    for (i, disk) in images.iter().enumerate() {
        let (image, content) = (&disk.path, id == 0 || disk.read_only);
        std::fs::create_dir_all(&place)
            .with_context(|| format!("cannot create {}", place.display()))?;
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
    source.import(to, |percent| {
        if percent % 20 == 0 {
            progress.say(format!("{image}: {percent}%"));
        }
    })?;
    Ok(())
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
