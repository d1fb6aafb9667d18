//! About how many pages a process has written since a scan.
//!
//! A scan protects the guest's pages from writing, and the first write to each of them is a page fault.
//! The kernel counts those of a process in `/proc/PID/stat`. It counts the first touch of any other page,
//! too, so the number is an upper bound; to read it costs far less than to scan.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// The page faults of one process that needed no disk.
#[derive(Debug)]
pub(crate) struct Faults(File);

impl Faults {
    pub(crate) fn open(pid: u32) -> std::io::Result<Self> {
        File::open(format!("/proc/{pid}/stat")).map(Self)
    }

    /// How many there were so far; 0 once the process has ended.
    pub(crate) fn count(&self) -> u64 {
        let mut bytes = [0; 256];
        let got = self.0.read_at(&mut bytes, 0).unwrap_or(0);
        minor_faults(&bytes[..got]).unwrap_or(0)
    }
}

/// The eighth field after the name, which is in parentheses and may contain any byte.
fn minor_faults(stat: &[u8]) -> Option<u64> {
    let end = stat.iter().rposition(|b| *b == b')')?;
    let fields = std::str::from_utf8(&stat[end + 1..]).ok()?;
    fields.split_ascii_whitespace().nth(7)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_stands_after_the_name() {
        let stat = b"12 (a) 9 (b) R 1 12 12 0 -1 4194304 4711 0 0 0 1 2";
        assert_eq!(minor_faults(stat), Some(4711));
        assert_eq!(minor_faults(b"12 (a"), None);
    }

    #[test]
    fn pages_that_are_touched_are_counted() {
        let faults = Faults::open(std::process::id()).unwrap();
        let before = faults.count();
        let mut pages = vec![0u8; 1000 * 4096];
        pages.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
        std::hint::black_box(&pages);
        // Two may lie on one huge page.
        assert!(faults.count() > before);
    }
}
