//! The daemons' logs, side by side.

use crate::growing::Growing;
use crate::lab::Lab;
use anyhow::Result;
use std::io::Write;
use std::time::Duration;

/// How often the loop looks for new lines.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Prints the logs of the replicas `ids`. If there are several, each line starts with its replica. With
/// `follow` this goes on for ever.
pub fn print(lab: &Lab, ids: &[u8], follow: bool, output: &mut impl Write) -> Result<()> {
    let mut logs: Vec<Log> = ids
        .iter()
        .map(|id| Log {
            id: *id,
            file: Growing::new(lab.files(*id).log()),
        })
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
    file: Growing,
}

impl Log {
    /// Prints the new whole lines; with `all` also a last line without its end.
    fn print(&mut self, named: bool, all: bool, output: &mut impl Write) -> Result<()> {
        for line in self.file.take(all).split_inclusive(|byte| *byte == b'\n') {
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
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, "one\ntwo").unwrap();
        let file = Growing::new(path.clone());
        let mut log = Log { id: 1, file };
        let mut out = Vec::new();
        log.print(true, false, &mut out).unwrap();
        assert_eq!(out, b"r1 | one\n");
        std::fs::write(&path, "one\ntwo\nthree").unwrap();
        log.print(true, false, &mut out).unwrap();
        log.print(false, true, &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "r1 | one\nr1 | two\nthree");
    }
}
