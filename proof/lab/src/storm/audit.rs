//! Reading back what a storm wrote, and judging it.

use super::record::{Expected, State};
use super::sector::{Found, SECTOR_BYTES, identify};
use super::writers::Link;
use super::{BLOCK_BYTES, BLOCKS_MAX};
use anyhow::{Context, Result};
use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// How many findings are printed one by one.
const TOLD_MAX: usize = 10;

/// The source of blocks to audit.
pub trait Disk {
    /// `count` blocks from `block` on; at most [`BLOCKS_MAX`].
    fn read(&mut self, block: u64, count: u64) -> Result<Vec<u8>>;
}

impl Disk for Link {
    fn read(&mut self, block: u64, count: u64) -> Result<Vec<u8>> {
        Self::read(self, block, count)
    }
}

/// A raw image or block device of a guest that does not run.
#[derive(Debug)]
pub struct ImageFile(File);

impl ImageFile {
    /// Opens it.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path)
            .with_context(|| format!("cannot open the disk image {}", path.display()))?;
        Ok(Self(file))
    }
}

impl Disk for ImageFile {
    fn read(&mut self, block: u64, count: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; count as usize * BLOCK_BYTES];
        self.0
            .read_exact_at(&mut bytes, block * BLOCK_BYTES as u64)
            .with_context(|| format!("cannot read {count} blocks from {block} on"))?;
        Ok(bytes)
    }
}

/// The fault of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// It holds an older write, or none.
    Lost,
    /// It is partly of one write and partly of another, or damaged.
    Torn,
}

/// A block with wrong content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The block.
    pub block: u64,
    /// The kind of fault.
    pub wrong: Wrong,
    /// The writes that it may hold.
    pub expected: Expected,
    /// The content of its sectors.
    pub found: Vec<Found>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            block,
            wrong,
            expected,
            found,
        } = self;
        let wrong = match wrong {
            Wrong::Lost => "lost",
            Wrong::Torn => "torn",
        };
        let durable = expected.durable.unwrap_or_default();
        write!(f, "block {block} {wrong}: write {durable} was acknowledged")?;
        if let Some(last) = expected.pending.last() {
            write!(f, ", up to {last} were sent")?;
        }
        let found: Vec<_> = found.iter().map(Found::to_string).collect();
        write!(f, "; its sectors are of {}", found.join(" "))
    }
}

/// The result of reading everything back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// Acknowledged writes.
    pub durable: u64,
    /// Blocks with an acknowledged write. All of them were read.
    pub blocks: u64,
    /// Blocks that are partly of acknowledged writes and partly of later ones that were not. This is no
    /// fault: before a flush, a disk promises no more than whole sectors.
    pub in_flight: u64,
    /// Blocks with wrong content.
    pub findings: Vec<Finding>,
}

impl Audit {
    /// Whether nothing is lost or torn. A storm without an acknowledged write proves nothing.
    pub fn is_clean(&self) -> bool {
        self.durable > 0 && self.findings.is_empty()
    }

    fn count(&self, wrong: Wrong) -> usize {
        let wrongs = self.findings.iter().filter(|f| f.wrong == wrong);
        wrongs.count()
    }
}

impl fmt::Display for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} writes acknowledged, {} blocks read back: {} lost, {} torn",
            self.durable,
            self.blocks,
            self.count(Wrong::Lost),
            self.count(Wrong::Torn),
        )?;
        for finding in self.findings.iter().take(TOLD_MAX) {
            write!(f, "\n  {finding}")?;
        }
        match self.findings.len().saturating_sub(TOLD_MAX) {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}

/// Reads back every block with an acknowledged write.
///
/// # Errors
/// When a block cannot be read.
pub fn audit(state: &State, disk: &mut dyn Disk) -> Result<Audit> {
    let mut audit = Audit {
        durable: state.durable,
        ..Audit::default()
    };
    let promised: Vec<_> = state
        .expected
        .iter()
        .filter(|(_, expected)| expected.durable.is_some())
        .collect();
    let mut rest = &promised[..];
    while let Some(&(&first, _)) = rest.first() {
        // As many neighbours as fit into one read.
        let count = rest
            .iter()
            .zip(first..first + BLOCKS_MAX)
            .take_while(|((block, _), due)| *block == due)
            .count();
        let bytes = disk.read(first, count as u64)?;
        let (now, later) = rest.split_at(count);
        for ((block, expected), bytes) in now.iter().zip(bytes.chunks_exact(BLOCK_BYTES)) {
            audit.blocks += 1;
            match judge(**block, expected, bytes) {
                Ok(whole) => audit.in_flight += u64::from(!whole),
                Err(finding) => audit.findings.push(finding),
            }
        }
        rest = later;
    }
    Ok(audit)
}

/// Checks the content of a block. Returns `true` if it is of one write, `false` if it is partly of a
/// write that was not acknowledged yet.
///
/// # Errors
/// The fault.
pub fn judge(block: u64, expected: &Expected, bytes: &[u8]) -> Result<bool, Finding> {
    let sectors = (BLOCK_BYTES / SECTOR_BYTES) as u64;
    let found: Vec<Found> = bytes
        .chunks_exact(SECTOR_BYTES)
        .zip(block * sectors..)
        .map(|(bytes, place)| identify(bytes, place))
        .collect();
    let whole = found.windows(2).all(|pair| pair[0] == pair[1]);
    let may_be = |found: &Found| match found {
        Found::Write(number) => {
            expected.durable == Some(*number) || expected.pending.contains(number)
        }
        Found::Foreign => false,
    };
    if found.iter().all(may_be) {
        return Ok(whole);
    }
    let wrong = if whole { Wrong::Lost } else { Wrong::Torn };
    Err(Finding {
        block,
        wrong,
        expected: expected.clone(),
        found,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storm::record::Issue;
    use crate::storm::sector::content;

    /// A disk of ten blocks, of which 2 to 5 are of write 1 and then 4 of write 2.
    struct Memory(Vec<u8>);

    impl Memory {
        fn write(&mut self, number: u64, sectors: std::ops::Range<u64>) {
            for place in sectors {
                let at = place as usize * SECTOR_BYTES;
                self.0[at..at + SECTOR_BYTES].copy_from_slice(&content(number, place));
            }
        }
    }

    impl Disk for Memory {
        fn read(&mut self, block: u64, count: u64) -> Result<Vec<u8>> {
            let at = |block: u64| block as usize * BLOCK_BYTES;
            Ok(self.0[at(block)..at(block + count)].to_vec())
        }
    }

    fn storm() -> (State, Memory) {
        let mut state = State::new(10, 1);
        let mut disk = Memory(vec![0; 10 * BLOCK_BYTES]);
        for (number, block, count) in [(1, 2, 4), (2, 4, 1)] {
            let issue = Issue {
                number,
                block,
                count,
            };
            state.issue(0, issue).unwrap();
            disk.write(number, block * 8..(block + count) * 8);
        }
        state.durable(0, 2);
        (state, disk)
    }

    #[test]
    fn what_was_acknowledged_is_there() {
        let (state, mut disk) = storm();
        let audit = audit(&state, &mut disk).unwrap();
        assert!(audit.is_clean(), "{audit}");
        assert_eq!((audit.durable, audit.blocks, audit.in_flight), (2, 4, 0));
        assert!(
            !Audit::default().is_clean(),
            "an empty storm proves nothing"
        );
    }

    #[test]
    fn an_older_write_is_a_lost_one() {
        let (state, mut disk) = storm();
        disk.write(1, 32..40);
        let findings = audit(&state, &mut disk).unwrap().findings;
        assert_eq!(findings.len(), 1);
        assert_eq!((findings[0].block, findings[0].wrong), (4, Wrong::Lost));
        let text = findings[0].to_string();
        assert!(text.contains("write 2 was acknowledged"), "{text}");
    }

    #[test]
    fn half_a_write_and_damage_are_tears() {
        for damage in [
            |disk: &mut Memory| disk.write(1, 32..36),
            |disk: &mut Memory| disk.0[4 * BLOCK_BYTES + 999] ^= 1,
        ] {
            let (state, mut disk) = storm();
            damage(&mut disk);
            let findings = audit(&state, &mut disk).unwrap().findings;
            assert_eq!(findings.len(), 1);
            assert_eq!((findings[0].block, findings[0].wrong), (4, Wrong::Torn));
        }
    }

    #[test]
    fn what_was_sent_but_not_acknowledged_may_be_there() {
        let (mut state, mut disk) = storm();
        let issue = Issue {
            number: 3,
            block: 4,
            count: 4,
        };
        state.issue(0, issue).unwrap();
        disk.write(3, 32..36);
        let audit = audit(&state, &mut disk).unwrap();
        assert!(audit.is_clean(), "{audit}");
        assert_eq!((audit.blocks, audit.in_flight), (4, 1));
    }
}
