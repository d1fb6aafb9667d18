//! The trace: one JSON object a line, with the shared monotonic clock.

use crate::background::Background;
use plover_replica::Note;
use plover_types::{Micros, ReplicaId};
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A trace file is renamed to `.1` at this size, so that tmpfs never fills.
const BYTES_MAX: u64 = 8 << 20;

/// Writes the events of this replica, each at once, so that a killed process leaves nearly all of them.
#[derive(Debug)]
pub(crate) struct Trace {
    me: ReplicaId,
    file: Background,
    syncs: bool,
}

impl Trace {
    pub fn open(dir: &Path, me: ReplicaId, syncs: bool) -> io::Result<Self> {
        let file = Rotating::open(dir.join("trace.jsonl"))?;
        Ok(Self {
            me,
            file: Background::start("trace", file),
            syncs,
        })
    }

    /// Writes every sync from now on, or not any more.
    pub fn set_syncs(&mut self, syncs: bool) {
        self.syncs = syncs;
    }

    /// Whether a note belongs into the file. A sync makes several notes a millisecond, which are written
    /// only if configured.
    pub fn wants(&self, note: &Note) -> bool {
        match note {
            // The status counts these. A line for each would flood the trace.
            Note::InputDropped { .. } | Note::OutputDropped { .. } => false,
            Note::SyncPhase { .. }
            | Note::Synced(_)
            | Note::OutputsDiffer { .. }
            | Note::OutputsUnmatched { .. }
            | Note::Applied { .. }
            | Note::Kept { .. } => self.syncs,
            _ => true,
        }
    }

    pub fn note(&mut self, now: Micros, note: &Note) {
        if let Ok(value) = serde_json::to_value(note) {
            self.write(now, value);
        }
    }

    pub fn write(&mut self, now: Micros, mut value: Value) {
        let me = self.me.0;
        if let Some(object) = value.as_object_mut() {
            object.insert("mono_us".into(), json!(now.0));
            object.insert("replica".into(), json!(me));
        }
        let _ = self.file.write_all(format!("{value}\n").as_bytes());
    }
}

/// The file. It is renamed, and begun anew, when it is large.
#[derive(Debug)]
struct Rotating {
    path: PathBuf,
    file: Option<File>,
    bytes: u64,
}

impl Rotating {
    fn open(path: PathBuf) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(&path)?;
        let bytes = file.metadata()?.len();
        Ok(Self {
            path,
            file: Some(file),
            bytes,
        })
    }

    fn rotate(&mut self) -> io::Result<()> {
        std::fs::rename(&self.path, self.path.with_extension("jsonl.1"))?;
        self.file = Some(File::create(&self.path)?);
        self.bytes = 0;
        Ok(())
    }

    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.bytes + lines.len() as u64 > BYTES_MAX {
            self.rotate()?;
        }
        self.bytes += lines.len() as u64;
        self.file.as_mut().map_or(Ok(()), |it| it.write_all(lines))
    }
}

impl Write for Rotating {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        if let Err(error) = self.append(lines) {
            tracing::warn!(event = "trace_ended", path = %self.path.display(), %error, "the trace cannot be written; it ends here");
            self.file = None;
        }
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
