//! The connections of a backup. Each is served by a thread of its own, which may wait for a disk.

use super::{ANSWER_WITHIN, LINE_BYTES_MAX, Request, StopHandle};
use plover_disk::{MemoryCopy, Snapshot, SnapshotLimits, SnapshotRoom};
use serde::Deserialize;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// The time for which a backup waits for the sync as of which it is. An idle guest's come twice a second.
const SNAPSHOT_WITHIN: Duration = Duration::from_secs(10);

/// A snapshot, and what the operator is told of it.
#[derive(Debug)]
pub(crate) struct Taken {
    pub snapshot: Arc<Snapshot>,
    pub about: Value,
}

/// A running backup.
#[derive(Debug)]
pub(crate) struct Running {
    pub snapshot: Arc<Snapshot>,
    /// The guest's memory, if that is in it.
    pub memory: Option<Arc<MemoryCopy>>,
}

/// Has the loop carry out a request, unless it has ended or stands still.
fn ask<T>(
    handle: &StopHandle,
    request: impl FnOnce(Sender<Result<T, String>>) -> Request,
) -> Result<T, String> {
    let (reply, answer) = channel();
    handle.send(request(reply));
    let answer = answer.recv_timeout(ANSWER_WITHIN);
    answer.unwrap_or_else(|_| Err("this replica does not answer, or is ending".into()))
}

/// The running backup with this number.
pub(super) fn running(handle: &StopHandle, number: u64) -> Result<Running, String> {
    ask(handle, |reply| Request::RunningBackup { number, reply })
}

/// Waits for the next sync and the snapshot that is taken there. Its room is made before, on this thread, which may wait for a
/// disk.
pub(super) fn snapshot(
    handle: &StopHandle,
    limits: SnapshotLimits,
    with_memory: bool,
) -> Result<Taken, String> {
    let folder = ask(handle, |reply| Request::BackupFolder { reply })?;
    let room = SnapshotRoom::make(&folder, limits)?;
    let (reply, answer) = channel();
    handle.send(Request::Snapshot {
        room,
        with_memory,
        reply,
    });
    let within = SNAPSHOT_WITHIN.as_secs();
    match answer.recv_timeout(SNAPSHOT_WITHIN) {
        Ok(taken) => taken,
        Err(RecvTimeoutError::Disconnected) => {
            Err("another backup was asked for meanwhile, or this replica is ending".into())
        }
        Err(RecvTimeoutError::Timeout) if with_memory => Err(format!(
            "no sync within {within} s has left little enough of the guest's memory to be copied: the guest writes it \
             faster than that, or is paused and not synced; let it be read faster with --mib-per-s, or back up without \
             --memory"
        )),
        Err(RecvTimeoutError::Timeout) => Err(format!(
            "no sync has ended within {within} s, and a backup is of the disks as of one: look at `plover status`; a guest \
             that is paused is not synced",
        )),
    }
}

/// Calls `answer` for the client's first request and for each further line, until the client leaves.
fn converse(
    mut reader: BufReader<UnixStream>,
    mut writer: UnixStream,
    first: Value,
    mut answer: impl FnMut(&str) -> Value,
) {
    let mut told = first;
    while writeln!(writer, "{told}").is_ok() {
        let mut line = String::new();
        let read = (&mut reader).take(LINE_BYTES_MAX).read_line(&mut line);
        if !read.is_ok_and(|bytes| bytes > 0) {
            break;
        }
        told = answer(&line);
    }
}

/// The client's question whether its backup is still good.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Question {
    /// The backup is safe on storage: the next one may hold the changes to it.
    finished: bool,
}

/// Tells the client about its backup, and at each further line whether it is still good. Ends it when the client leaves.
pub(super) fn serve(reader: BufReader<UnixStream>, writer: UnixStream, taken: &Taken) {
    let snapshot = &taken.snapshot;
    converse(reader, writer, taken.about.clone(), |line| {
        let asked = serde_json::from_str(line);
        if asked.is_ok_and(|question: Question| question.finished) {
            snapshot.finish();
        }
        match snapshot.kept_bytes() {
            Ok(kept_bytes) => json!({"ok": true, "kept_bytes": kept_bytes}),
            Err(why) => json!({"error": why}),
        }
    });
    snapshot.end("the command that made the backup has ended");
    tracing::info!(
        event = "backup_ended",
        "the backup of the guest's disks has ended"
    );
}

/// Copies the guest's memory, and tells the client how far that is, at each line. Ends the copy when the client leaves.
pub(super) fn copy_memory(
    handle: &StopHandle,
    reader: BufReader<UnixStream>,
    mut writer: UnixStream,
    bytes_per_s: u64,
) {
    let copy = ask(handle, |reply| Request::CopyMemory { bytes_per_s, reply });
    let copy = match copy {
        Ok(copy) => copy,
        Err(why) => {
            let _ = writeln!(writer, "{}", json!({"error": why}));
            return;
        }
    };
    let state = |copy: &MemoryCopy| match copy.owed().and_then(|owed| Ok((owed, copy.is_close()?)))
    {
        Ok((owed, close)) => json!({"ok": true, "owed_pages": owed, "is_close": close}),
        Err(why) => json!({"error": why}),
    };
    converse(reader, writer, state(&copy), |_| state(&copy));
    copy.end("the command that made the backup has ended");
}
