//! One file, written and synced a piece at a time.

use super::Round;
use anyhow::{Context, Result};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Written beforehand, so that a sync has no metadata to bring along.
const FILE_BYTES: usize = 32 << 20;

/// A file of known length whose blocks exist.
pub(super) struct File {
    file: std::fs::File,
    payload: Vec<u8>,
    offset: usize,
}

impl File {
    pub fn create(path: &Path, bytes: usize) -> Result<Self> {
        let what = || format!("cannot write {}", path.display());
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)
            .with_context(what)?;
        let zeros = vec![0; 1 << 20];
        for offset in (0..FILE_BYTES).step_by(zeros.len()) {
            file.write_all_at(&zeros, offset as u64)
                .with_context(what)?;
        }
        file.sync_all().with_context(what)?;
        Ok(Self {
            file,
            payload: vec![7; bytes],
            offset: 0,
        })
    }

    /// Writes these bytes at the next place and syncs them.
    pub fn append(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        if self.offset + bytes.len() > FILE_BYTES {
            self.offset = 0;
        }
        self.file.write_all_at(bytes, self.offset as u64)?;
        self.offset += bytes.len();
        self.file.sync_data()
    }
}

impl Round for File {
    fn round(&mut self) -> Result<()> {
        let payload = std::mem::take(&mut self.payload);
        let written = self.append(&payload);
        self.payload = payload;
        written.context("cannot write and sync")
    }
}
