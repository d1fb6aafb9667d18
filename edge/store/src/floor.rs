//! What the disk itself takes: the floor under any store, for comparison beside it.

use crate::directory::Directory;
use crate::error::StoreError;
use std::path::Path;
use std::time::Instant;

/// Bytes of the file that is written in turn.
const FILE_BYTES: u64 = 16 << 20;

/// Times `rounds` of writing `bytes` at the next place of a file full of zeros in `dir` and
/// syncing them, in nanoseconds each. The file is removed again.
///
/// # Errors
/// What the file system says.
///
/// # Panics
/// If `bytes` is more than 16 MiB.
pub fn fdatasync(dir: &Path, bytes: usize, rounds: usize) -> Result<Vec<u64>, StoreError> {
    assert!(bytes as u64 <= FILE_BYTES, "more than the file holds");
    let directory = Directory::open(dir)?;
    let name = format!("floor.{}", std::process::id());
    let file = directory.create(&name)?;
    let measured = (|| {
        file.fill(0, FILE_BYTES)?;
        file.sync()?;
        let payload = vec![0x5a; bytes];
        let mut times = Vec::with_capacity(rounds);
        let mut at = 0;
        for _ in 0..rounds {
            if at + bytes as u64 > FILE_BYTES {
                at = 0;
            }
            let started = Instant::now();
            file.write(&payload, at)?;
            file.sync()?;
            times.push(u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX));
            at += bytes as u64;
        }
        Ok(times)
    })();
    directory.remove(&name)?;
    measured
}
