//! Files that other processes write line by line: traces and logs.

use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

/// A file that is read while it grows. It need not exist yet.
#[derive(Clone, Debug)]
pub(crate) struct Growing {
    path: PathBuf,
    offset: u64,
    /// A line whose end has not been written yet.
    rest: Vec<u8>,
}

impl Growing {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self {
            path,
            offset: 0,
            rest: Vec::new(),
        }
    }

    /// The new whole lines; with `all` also a last line without its end. A file that cannot be read now is
    /// read at the next call.
    pub(crate) fn take(&mut self, all: bool) -> Vec<u8> {
        let read = |from: u64, to: &mut Vec<u8>| -> std::io::Result<(u64, usize)> {
            let mut file = std::fs::File::open(&self.path)?;
            // The replica has begun a new file if this one is shorter.
            let from = if file.metadata()?.len() < from {
                0
            } else {
                from
            };
            file.seek(SeekFrom::Start(from))?;
            Ok((from, file.read_to_end(to)?))
        };
        let mut bytes = Vec::new();
        let Ok((from, read)) = read(self.offset, &mut bytes) else {
            return Vec::new();
        };
        if from < self.offset {
            self.rest.clear();
        }
        self.offset = from + read as u64;
        self.rest.append(&mut bytes);
        let end = self.rest.iter().rposition(|byte| *byte == b'\n');
        let whole = match end {
            _ if all => self.rest.len(),
            end => end.map_or(0, |end| end + 1),
        };
        self.rest.drain(..whole).collect()
    }
}
