//! Whether the file system in a disk image is whole.

use anyhow::{Context, Result, bail, ensure};
use std::path::Path;
use std::process::Command;

/// Where the root partition of `guests/build-disk`'s images begins.
pub const PARTITION_BYTES: u64 = 1 << 20;

/// Checks the ext4 file system that begins at `offset` of a raw image whose guest does not run. It works
/// on a copy in `scratch`, so the image stays as it is. A guest that was cut off leaves a journal, which
/// is replayed as part of the file system, and wrong counts of free blocks, which a mount makes anew.
/// All that needs more than this is damage.
///
/// # Errors
/// The findings of `e2fsck`.
pub fn check(image: &Path, offset: u64, scratch: &Path) -> Result<()> {
    // A copy of the partition alone: with an offset, e2fsck replays the journal and then looks for the
    // file system at the beginning of the file.
    let copy = scratch.join("filesystem");
    let copied = Command::new("dd")
        .arg(format!("if={}", image.display()))
        .arg(format!("of={}", copy.display()))
        .arg(format!("skip={offset}"))
        .args(["bs=1M", "iflag=skip_bytes", "conv=sparse", "status=none"])
        .status()
        .context("cannot run dd")?;
    ensure!(copied.success(), "cannot copy {}", image.display());
    let checked = fsck(&copy).with_context(|| format!("the file system in {}", image.display()));
    let removed = std::fs::remove_file(&copy);
    checked.and(removed.context("cannot remove the copy"))
}

fn fsck(device: &Path) -> Result<()> {
    // Some users do not have it in their PATH.
    let program = Path::new("/sbin/e2fsck");
    let output = Command::new(program)
        .args(["-f", "-p"])
        .arg(device)
        .output()
        .context("cannot run e2fsck: install the package e2fsprogs")?;
    // 1: faults that any crash leaves were found and repaired.
    if !matches!(output.status.code(), Some(0 | 1)) {
        bail!(
            "e2fsck {}: {}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_damaged_file_system_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        std::fs::write(&image, []).unwrap();
        let made = Command::new("/sbin/mke2fs")
            .args(["-q", "-F", "-t", "ext4", "-E"])
            .arg(format!("offset={PARTITION_BYTES}"))
            .arg(&image)
            .arg("8M")
            .status();
        assert!(made.is_ok_and(|status| status.success()), "mke2fs failed");
        check(&image, PARTITION_BYTES, dir.path()).unwrap();

        // The block bitmap of the first group lies behind superblock and descriptors.
        let file = OpenOptions::new().write(true).open(&image).unwrap();
        for block in 2..16 {
            file.write_all_at(&[0x55; 1024], PARTITION_BYTES + block * 1024)
                .unwrap();
        }
        let error = check(&image, PARTITION_BYTES, dir.path()).unwrap_err();
        assert!(format!("{error:#}").contains("e2fsck"), "{error:#}");
        assert!(!dir.path().join("filesystem").exists());
    }
}
