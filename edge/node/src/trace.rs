//! The trace: one JSON object a line, with the shared monotonic clock.

use plover_replica::Note;
use plover_types::{Micros, ReplicaId};
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// A trace file is renamed to `.1` at this size, so that tmpfs never fills.
const BYTES_MAX: u64 = 8 << 20;

/// Writes the events of this replica. Every line is flushed, so a killed process leaves all of them.
#[derive(Debug)]
pub(crate) struct Trace {
    me: ReplicaId,
    path: PathBuf,
    file: Option<BufWriter<File>>,
    bytes: u64,
    syncs: bool,
}

impl Trace {
    pub fn open(dir: &Path, me: ReplicaId, syncs: bool) -> std::io::Result<Self> {
        let path = dir.join("trace.jsonl");
        let file = OpenOptions::new().create(true).append(true).open(&path)?;
        let bytes = file.metadata()?.len();
        Ok(Self {
            me,
            path,
            file: Some(BufWriter::new(file)),
            bytes,
            syncs,
        })
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
        let line = format!("{value}\n");
        if self.bytes + line.len() as u64 > BYTES_MAX {
            self.rotate();
        }
        let Some(file) = &mut self.file else { return };
        if file
            .write_all(line.as_bytes())
            .and_then(|()| file.flush())
            .is_err()
        {
            tracing::warn!(event = "trace_ended", path = %self.path.display(), "the trace cannot be written; it ends here");
            self.file = None;
        }
        self.bytes += line.len() as u64;
    }

    fn rotate(&mut self) {
        self.file = None;
        let _ = std::fs::rename(&self.path, self.path.with_extension("jsonl.1"));
        self.file = File::create(&self.path).ok().map(BufWriter::new);
        self.bytes = 0;
    }
}
