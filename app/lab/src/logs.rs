//! The daemons' logs, side by side.

use crate::lab::Lab;
use anyhow::Result;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::time::Duration;

/// How often the loop looks for new lines.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Prints the logs of the replicas `ids`. If there are several, each line starts with its replica. With
/// `follow` this goes on for ever.
pub fn print(lab: &Lab, ids: &[u8], follow: bool, output: &mut impl Write) -> Result<()> {
    let mut logs: Vec<Log> = ids
        .iter()
        .map(|id| Log::new(*id, lab.files(*id).log()))
        .collect();
    loop {
        for log in &mut logs {
            log.print(ids.len() > 1, !follow, output)?;
        }
        output.flush()?;
        if !follow {
            return Ok(());
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

struct Log {
    id: u8,
    path: PathBuf,
    offset: u64,
    rest: Vec<u8>,
}

impl Log {
    fn new(id: u8, path: PathBuf) -> Self {
        Self {
            id,
            path,
            offset: 0,
            rest: Vec::new(),
        }
    }

    /// Prints the new whole lines; with `all` also a last line without its end.
    fn print(&mut self, named: bool, all: bool, output: &mut impl Write) -> Result<()> {
        let Ok(mut file) = std::fs::File::open(&self.path) else {
            return Ok(());
        };
        file.seek(SeekFrom::Start(self.offset))?;
        self.offset += file.read_to_end(&mut self.rest)? as u64;
        let whole = match self.rest.iter().rposition(|byte| *byte == b'\n') {
            _ if all => self.rest.len(),
            Some(end) => end + 1,
            None => return Ok(()),
        };
        for line in self
            .rest
            .drain(..whole)
            .as_slice()
            .split_inclusive(|byte| *byte == b'\n')
        {
            if named {
                write!(output, "r{} | ", self.id)?;
            }
            output.write_all(line)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_lines_are_printed_once() {
        let path = std::env::temp_dir().join(format!("plover-logs-{}", std::process::id()));
        std::fs::write(&path, "one\ntwo").unwrap();
        let mut log = Log::new(1, path.clone());
        let mut out = Vec::new();
        log.print(true, false, &mut out).unwrap();
        assert_eq!(out, b"r1 | one\n");
        std::fs::write(&path, "one\ntwo\nthree").unwrap();
        log.print(true, false, &mut out).unwrap();
        log.print(false, true, &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "r1 | one\nr1 | two\nthree");
        std::fs::remove_file(path).unwrap();
    }
}
