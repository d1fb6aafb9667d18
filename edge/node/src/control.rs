//! The control socket, for people and tools.
//!
//! `control.sock` in the run directory, mode 0600. Each request and each answer is one JSON object on one
//! line. After the answer to `{"op":"console"}` the connection is a raw byte stream; after that to `{"op":"display"}` it
//! speaks the protocol of VNC (RFC 6143), with QEMU at the other end; after that to `{"op":"backup_disk"}` or
//! `{"op":"backup_memory"}` it is served over NBD. A backup lasts as long as the connection that asked for
//! `{"op":"backup"}`, and a copy of the memory as long as that which asked for `{"op":"copy_memory"}`.

mod backup;
mod display;
mod op;

pub(crate) use backup::{Running, Taken};
pub(crate) use op::Op;
use op::Wait;

use crate::body::Asker;
use crate::config::ConfigFile;
use crate::viewer::Seat;
use plover_disk::{MemoryCopy, SnapshotLimits, SnapshotRoom};
use plover_types::ReplicaId;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{
    Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError, channel, sync_channel,
};
use std::time::{Duration, Instant};

/// Longest request line, bytes.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// The longest path of a socket, in bytes (unix(7)).
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// How long an answer is waited for that another replica gives. Clients of the socket wait a little longer.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// The same for an answer of the agent in the guest: a little longer than the leader waits for it.
const AGENT_WITHIN: Duration =
    Duration::from_micros(crate::guest_agent::ANSWER_WITHIN.0 + ANSWER_WITHIN.as_micros() as u64);

/// Requests that one turn of the loop takes. The others hear nothing of this replica meanwhile.
const REQUESTS_PER_TURN: usize = 64;

/// How long the statuses of the others are waited for.
const STATUS_WITHIN: Duration = Duration::from_secs(1);

/// Console chunks that may wait for a slow reader; more are dropped, as a serial line does.
const CONSOLE_CHUNKS_MAX: usize = 256;

/// How long a thread that accepts connections waits after an error. Most errors last, as a lack of descriptors does, and the
/// next call would fail at once, too.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// Where an operator's console takes the guest's output.
#[derive(Clone, Debug)]
pub(crate) struct ConsoleOutput {
    chunks: SyncSender<Vec<u8>>,
    left: Arc<AtomicBool>,
}

impl ConsoleOutput {
    /// One that nobody has left yet, and the end from which the operator reads.
    pub fn new() -> (Self, Receiver<Vec<u8>>) {
        let (chunks, read) = sync_channel(CONSOLE_CHUNKS_MAX);
        let left = Arc::default();
        (Self { chunks, left }, read)
    }

    /// Shows this, if the operator keeps up. `false` if there is nobody any more.
    pub fn show(&self, bytes: &[u8]) -> bool {
        let sent = self.chunks.try_send(bytes.to_vec());
        !matches!(sent, Err(TrySendError::Disconnected(_)))
    }

    /// Whether the operator has closed it.
    pub fn has_left(&self) -> bool {
        self.left.load(Ordering::Relaxed)
    }
}

/// A request on its way to the loop.
#[derive(Debug)]
pub(crate) enum Request {
    Op {
        op: Op,
        reply: Sender<Value>,
    },
    /// Attach: guest console output goes to `output`, unless `reply` is an error.
    Attach {
        output: ConsoleOutput,
        reply: Sender<Value>,
    },
    /// An operator has closed a console ([`ConsoleOutput::has_left`]).
    ConsoleLeft,
    /// Take what can be taken of a configuration file that was read and is whole; nothing if `dry_run`.
    Reload {
        file: Box<ConfigFile>,
        dry_run: bool,
        reply: Sender<Value>,
    },
    /// Where the room of a snapshot is made, unless there can be no backup at present.
    BackupFolder {
        reply: Sender<Result<PathBuf, String>>,
    },
    /// Take a snapshot of the disks at the next sync.
    Snapshot {
        room: SnapshotRoom,
        /// Once the copy of the memory that runs is close.
        with_memory: bool,
        reply: Sender<Result<Taken, String>>,
    },
    /// Begin to copy the guest's memory for a backup.
    CopyMemory {
        bytes_per_s: u64,
        reply: Sender<Result<Arc<MemoryCopy>, String>>,
    },
    /// The running backup with this number.
    RunningBackup {
        number: u64,
        reply: Sender<Result<Running, String>>,
    },
    /// A step of the restore for this guest is done on its thread.
    Restored {
        guest: u64,
        step: Result<Restored, String>,
    },
    /// An answer that another thread has made.
    Answer {
        asker: Asker,
        answer: Value,
    },
    /// Another replica is asked.
    Ask {
        of: ReplicaId,
        op: Op,
        reply: Sender<Value>,
    },
    /// A viewer of the guest's display is to get its place, and the number by which it leaves.
    View {
        reply: Sender<Result<(u64, Seat), String>>,
    },
    /// It has left.
    ViewerLeft {
        number: u64,
    },
    /// Bytes between a viewer and the guest, a request of this number of another replica's, are passed on or not.
    Passed {
        to: ReplicaId,
        id: u64,
        passed: bool,
    },
    /// Bytes that an operator typed.
    Typed(Vec<u8>),
    /// The process was asked to end.
    Stop {
        at_once: bool,
    },
}

/// A step of a guest that goes on from the memory of a backup.
#[derive(Debug)]
pub(crate) enum Restored {
    /// Its memory is there; this is the state of its devices.
    Memory(Vec<u8>),
    /// The backup's memory is not on this host any more.
    Forgotten,
}

/// Asks a running node to end or to read its configuration again, from a signal handler's thread.
#[derive(Clone, Debug)]
pub struct StopHandle {
    requests: Sender<Request>,
    wake: Arc<OwnedFd>,
}

impl StopHandle {
    /// Ends the node's loop after its present turn.
    pub fn stop(&self) {
        self.send(Request::Stop { at_once: true });
    }

    /// Ends the node's loop when other replicas have taken this one's roles over, or soon if none can. A second call
    /// ends it at once.
    pub fn hand_over_and_stop(&self) {
        self.send(Request::Stop { at_once: false });
    }

    /// Has the node read its configuration file again, as `plover reload` does. Its log says what has changed.
    pub fn reload(&self, config: &Path) {
        let (handle, config) = (self.clone(), config.to_owned());
        // The file's disk may hang, and the next signal is to be heard all the same.
        let refused = |error: &str| tracing::error!(event = "reload_refused", "SIGHUP: {error}");
        let reads = std::thread::Builder::new().name("reload".into());
        let reads = reads.spawn(move || {
            let answer = reload(&handle, &config, false);
            if let Some(error) = answer["error"].as_str() {
                refused(error);
            }
        });
        if let Err(error) = reads {
            refused(&format!(
                "the configuration was not read, because no thread can be made: {error}; raise the limit of processes \
                 (ulimit -u, pids.max of the cgroup), and send the signal again"
            ));
        }
    }

    /// A viewer of the guest's display has gone.
    pub(crate) fn viewer_left(&self, number: u64) {
        self.send(Request::ViewerLeft { number });
    }

    pub(crate) fn send(&self, request: Request) {
        let _ = self.requests.send(request);
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }
}

/// The loop's end of the control socket.
#[derive(Debug)]
pub(crate) struct Control {
    path: PathBuf,
    requests: Receiver<Request>,
    handle: StopHandle,
}

impl Control {
    /// Listens in `run_dir`; connections are served by threads of their own. `config` is the file that this replica reads
    /// its configuration from.
    pub fn listen(run_dir: &Path, config: &Path) -> io::Result<Self> {
        let path = run_dir.join("control.sock");
        match UnixStream::connect(&path) {
            Ok(_) => {
                return Err(io::Error::other(format!(
                    "another replica answers on {}; give each its own paths.run_dir",
                    path.display()
                )));
            }
            Err(_) => {
                let _ = std::fs::remove_file(&path);
            }
        }
        let listener = UnixListener::bind(&path).map_err(|error| {
            let advice = match path.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
                true => "name a shorter paths.run_dir",
                false => "let this user write in paths.run_dir",
            };
            let why = format!("cannot listen on {}: {error}; {advice}", path.display());
            io::Error::new(error.kind(), why)
        })?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        let (sender, requests) = channel();
        let wake = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
        let handle = StopHandle {
            requests: sender,
            wake,
        };
        let for_threads = handle.clone();
        let config: Arc<Path> = config.into();
        std::thread::Builder::new()
            .name("control".into())
            .spawn(move || {
                for stream in accepted(listener.incoming()) {
                    let handle = for_threads.clone();
                    let config = Arc::clone(&config);
                    let served = std::thread::Builder::new()
                        .name("control-client".into())
                        .spawn(move || serve(stream, &handle, &config));
                    if let Err(error) = served {
                        tracing::warn!(
                            event = "control_refused",
                            "a control connection was refused: {error}"
                        );
                    }
                }
            })?;
        Ok(Self {
            path,
            requests,
            handle,
        })
    }

    pub fn handle(&self) -> StopHandle {
        self.handle.clone()
    }

    /// Takes waiting requests, some at a time: a console may be fed from a file.
    pub fn take(&self) -> Vec<Request> {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&*self.handle.wake, &mut count);
        let taken: Vec<_> = self.requests.try_iter().take(REQUESTS_PER_TURN).collect();
        if taken.len() == REQUESTS_PER_TURN {
            let _ = rustix::io::write(&*self.handle.wake, &1u64.to_ne_bytes());
        }
        taken
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.wake.as_fd()
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The connections that a listener accepts, without its errors.
pub fn accepted<S>(incoming: impl Iterator<Item = io::Result<S>>) -> impl Iterator<Item = S> {
    incoming.filter_map(|stream| {
        if stream.is_err() {
            std::thread::sleep(ACCEPT_AGAIN_AFTER);
        }
        stream.ok()
    })
}

fn serve(stream: UnixStream, handle: &StopHandle, config: &Path) {
    let Ok(mut writer) = stream.try_clone() else {
        return;
    };
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        match (&mut reader).take(LINE_BYTES_MAX).read_line(&mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let reply = match serde_json::from_str::<Op>(&line) {
            Ok(Op::Console) => {
                let (output, chunks) = ConsoleOutput::new();
                let left = Arc::clone(&output.left);
                let wait = Op::Console.wait();
                let answer = ask(handle, &wait, |reply| Request::Attach { output, reply });
                if answer.get("error").is_none() {
                    // Somebody who has gone already may have typed something before.
                    let _ = writer.write_all(format!("{answer}\n").as_bytes());
                    console(reader, writer, chunks, handle);
                    left.store(true, Ordering::Relaxed);
                    handle.send(Request::ConsoleLeft);
                    return;
                }
                answer
            }
            Ok(Op::Backup {
                keep_mib,
                mib_per_s,
                with_memory,
            }) => {
                let limits = SnapshotLimits {
                    kept_bytes: keep_mib << 20,
                    bytes_per_s: mib_per_s << 20,
                };
                match backup::snapshot(handle, limits, with_memory) {
                    Ok(taken) => return backup::serve(reader, writer, &taken),
                    Err(why) => json!({"error": why}),
                }
            }
            Ok(Op::CopyMemory { mib_per_s }) => {
                return backup::copy_memory(handle, reader, writer, mib_per_s << 20);
            }
            Ok(ref op @ (Op::BackupDisk { backup, .. } | Op::BackupMemory { backup })) => {
                match backup::running(handle, backup) {
                    Ok(running) => {
                        let _ = writeln!(writer, "{}", json!({"ok": true}));
                        // The client has waited for the answer, so nothing of it is in the reader's buffer.
                        let stream = reader.into_inner();
                        let served = match (op, running.memory) {
                            (
                                Op::BackupDisk {
                                    disk, only_changes, ..
                                },
                                _,
                            ) => running.snapshot.serve(*disk, *only_changes, stream),
                            (_, Some(memory)) => memory.serve(stream),
                            (_, None) => Err(io::ErrorKind::NotFound.into()),
                        };
                        if let Err(error) = served {
                            tracing::debug!(?op, %error, "the connection of a backup ended");
                        }
                        return;
                    }
                    Err(why) => json!({"error": why}),
                }
            }
            Ok(Op::Display) => match display::take_seat(handle) {
                Ok((number, seat)) => {
                    if writeln!(writer, "{}", json!({"ok": true})).is_ok() {
                        display::look(number, &reader.into_inner(), seat, handle);
                    }
                    return handle.viewer_left(number);
                }
                Err(why) => json!({"error": why}),
            },
            Ok(Op::Group) => group(handle),
            Ok(Op::Reload { dry_run }) => reload(handle, config, dry_run),
            Ok(op) => request(handle, op),
            Err(error) => json!({"error": format!("not a request: {error}")}),
        };
        if writeln!(writer, "{reply}").is_err() {
            return;
        }
    }
}

/// Has the loop carry out a request, or send it on.
fn request(handle: &StopHandle, op: Op) -> Value {
    let wait = op.wait();
    ask(handle, &wait, |reply| Request::Op { op, reply })
}

/// Sends a request to the loop and waits for its answer.
fn ask(handle: &StopHandle, wait: &Wait, request: impl FnOnce(Sender<Value>) -> Request) -> Value {
    let (reply, answer) = channel();
    handle.send(request(reply));
    match answer.recv_timeout(wait.within) {
        Ok(answer) => answer,
        Err(RecvTimeoutError::Disconnected) => json!({"error": "this replica is ending"}),
        Err(RecvTimeoutError::Timeout) => json!({"error": wait.late}),
    }
}

/// Reads the configuration, on this thread, since its disk may hang. A file that is wrong never reaches the loop.
fn reload(handle: &StopHandle, config: &Path, dry_run: bool) -> Value {
    match ConfigFile::load(config) {
        Ok(file) => ask(handle, &Op::Reload { dry_run }.wait(), |reply| {
            Request::Reload {
                file: Box::new(file),
                dry_run,
                reply,
            }
        }),
        Err(error) => {
            let path = config.display();
            json!({"error": format!("{path} is not taken, and nothing has changed: {error}")})
        }
    }
}

/// Where all replicas stand. One that does not answer in time is named as such: `{"id": 2, "silent": "why"}`.
fn group(handle: &StopHandle) -> Value {
    let own = request(handle, Op::Status);
    if own.get("error").is_some() {
        return own;
    }
    let me = own["id"].as_u64();
    let members = own["members"].as_array().cloned().unwrap_or_default();
    let ids = members.iter().filter_map(Value::as_u64);
    let asked: Vec<_> = ids
        .map(|id| {
            let (reply, answer) = channel();
            if Some(id) != me {
                let of = ReplicaId(id as u8);
                let op = Op::Status;
                handle.send(Request::Ask { of, op, reply });
            }
            (id, answer)
        })
        .collect();
    let deadline = Instant::now() + STATUS_WITHIN;
    let replicas: Vec<Value> = asked
        .into_iter()
        .map(|(id, answer)| {
            if Some(id) == me {
                return own.clone();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let silent = |why: &str| json!({"id": id, "silent": why});
            match answer.recv_timeout(left) {
                Ok(answer) => match answer["error"].as_str() {
                    Some(why) => silent(why),
                    None => answer,
                },
                Err(_) => silent("it has not answered within a second"),
            }
        })
        .collect();
    json!({"asked": me, "replicas": replicas})
}

fn console(
    mut reader: BufReader<UnixStream>,
    mut writer: UnixStream,
    chunks: Receiver<Vec<u8>>,
    handle: &StopHandle,
) {
    let printer = std::thread::spawn(move || {
        for chunk in chunks {
            if writer.write_all(&chunk).is_err() {
                break;
            }
        }
        let _ = writer.shutdown(std::net::Shutdown::Both);
    });
    let mut bytes = [0u8; 1024];
    while let Ok(n) = reader.read(&mut bytes) {
        if n == 0 {
            // An operator may have ended the input alone, and read on. This ends when the whole connection is closed, here or there.
            let mut closed = [PollFd::new(reader.get_ref(), PollFlags::empty())];
            let _ = poll(&mut closed, None);
            break;
        }
        handle.send(Request::Typed(bytes[..n].to_vec()));
    }
    // It ends when the loop lets go of the console.
    drop(printer);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_parsed_strictly() {
        assert_eq!(
            serde_json::from_str::<Op>(r#"{"op":"status"}"#).unwrap(),
            Op::Status
        );
        assert_eq!(
            serde_json::from_str::<Op>(r#"{"op":"crash_in_phase","phase":"transfer"}"#).unwrap(),
            Op::CrashInPhase {
                phase: plover_syncvm::Phase::Transfer
            }
        );
        for bad in [
            "",
            "{}",
            r#"{"op":"explode"}"#,
            r#"{"op":"crash_in_phase"}"#,
        ] {
            assert!(serde_json::from_str::<Op>(bad).is_err(), "{bad}");
        }
    }

    /// The next call would fail at once, and so on.
    #[test]
    fn a_thread_that_cannot_accept_waits() {
        let failed = || -> io::Result<u8> { Err(io::ErrorKind::OutOfMemory.into()) };
        let begun = Instant::now();
        let incoming = [failed(), Ok(1), failed(), Ok(2)];
        let streams: Vec<u8> = accepted(incoming.into_iter()).collect();
        assert_eq!(streams, [1, 2]);
        assert!(begun.elapsed() >= 2 * ACCEPT_AGAIN_AFTER);
    }

    /// An operator gets the loop's answer first, and then the console's output.
    #[test]
    fn a_console_gets_the_answer_and_then_the_output() {
        let dir = tempfile::tempdir().unwrap();
        let control = Control::listen(dir.path(), Path::new("/none")).unwrap();
        let mut operator = UnixStream::connect(&control.path).unwrap();
        let mut lines = BufReader::new(operator.try_clone().unwrap()).lines();
        let attach = || loop {
            match control.take().pop() {
                Some(Request::Attach { output, reply }) => return (output, reply),
                Some(request) => panic!("{request:?}"),
                None => std::thread::sleep(std::time::Duration::from_millis(1)),
            }
        };
        operator.write_all(b"{\"op\":\"console\"}\n").unwrap();
        let (output, reply) = attach();
        reply.send(json!({"error": "no"})).unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), r#"{"error":"no"}"#);
        drop(output);

        operator.write_all(b"{\"op\":\"console\"}\n").unwrap();
        let (output, reply) = attach();
        assert!(output.show(b"login:\n"));
        reply.send(json!({"ok": true})).unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), r#"{"ok":true}"#);
        assert_eq!(lines.next().unwrap().unwrap(), "login:");
        // The end of the input is not the end of the output.
        operator.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(output.show(b"motd\n") && !output.has_left());
        assert_eq!(lines.next().unwrap().unwrap(), "motd");
        // The guest may print nothing more, and yet the loop hears of it.
        drop((operator, lines));
        let left = loop {
            match control.take().pop() {
                Some(request) => break request,
                None => std::thread::sleep(std::time::Duration::from_millis(1)),
            }
        };
        assert!(matches!(left, Request::ConsoleLeft), "{left:?}");
        assert!(output.has_left());
    }

    #[test]
    fn a_console_that_the_loop_lets_go_of_is_closed() {
        let (output, chunks) = ConsoleOutput::new();
        let (here, there) = UnixStream::pair().unwrap();
        let control = tempfile::tempdir().unwrap();
        let control = Control::listen(control.path(), Path::new("/none")).unwrap();
        let writer = here.try_clone().unwrap();
        drop(output);
        console(BufReader::new(here), writer, chunks, &control.handle());
        assert!(BufReader::new(there).lines().next().is_none());
    }

    #[test]
    fn a_second_replica_in_one_run_dir_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let control = Control::listen(dir.path(), Path::new("/none")).unwrap();
        let error = Control::listen(dir.path(), Path::new("/none"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("run_dir"), "{error}");
        let mode = std::fs::metadata(&control.path)
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
