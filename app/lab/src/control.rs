//! Talking to a running daemon over its control socket.
//!
//! A request is one JSON object on a line, and so is the answer. A daemon answers within a turn of its
//! loop, so one that does not answer within a second or so is stopped, overloaded or gone.

use crate::process::Process;
use plover_node::newest::DiskCopy;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::retry_on_intr;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, socket_with,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a daemon may take to answer. Its loop turns in milliseconds; the rest is for a
/// machine that is short of processors.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// Why a daemon did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Nothing listens on the socket: the daemon does not run, or runs elsewhere.
    #[error("no replica answers on {path}: {source}{}", what_to_do(source))]
    Absent {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// Something listens but says nothing: the daemon is stopped, or has just been killed.
    #[error(
        "the replica on {path} does not answer: its process stands still or is stopped, or its host is overloaded; an order \
         that it was given may still be carried out"
    )]
    Silent {
        /// The socket.
        path: PathBuf,
    },
    /// The connection broke, or what came back is not an answer.
    #[error("talking to the replica on {path}: {why}")]
    Garbled {
        /// The socket.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The daemon refused, and said why.
    #[error("the replica refused: {0}")]
    Refused(String),
}

impl ControlError {
    /// Whether there is no socket: the daemon has ended in order, or never ran. One that has crashed leaves its own.
    pub fn has_no_socket(&self) -> bool {
        matches!(self, Self::Absent { source, .. } if source.kind() == ErrorKind::NotFound)
    }
}

/// The advice behind an error that reached no daemon.
fn what_to_do(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::PermissionDenied => "; run this as root, or as the user of the replica",
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            "; start the replica, or name its paths.run_dir with --run-dir"
        }
        _ => "",
    }
}

/// One daemon's control socket.
#[derive(Clone, Debug)]
pub struct Control {
    path: PathBuf,
    within: Duration,
}

impl Control {
    /// The daemon that listens on the socket at `path`.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            within: ANSWER_WITHIN,
        }
    }

    /// The same daemon, waited for this long: from the connection to the end of the answer.
    pub fn within(self, within: Duration) -> Self {
        Self { within, ..self }
    }

    /// The daemon whose run directory is `run_dir`.
    pub fn in_run_dir(run_dir: &Path) -> Self {
        Self::at(run_dir.join("control.sock"))
    }

    /// Asks, and returns the answer.
    pub fn request(&self, request: &Value) -> Result<Value, ControlError> {
        Ok(self.ask(request)?.1)
    }

    /// Where the replica stands.
    pub fn status(&self) -> Result<DaemonStatus, ControlError> {
        let answer = self.request(&json!({"op": "status"}))?;
        serde_json::from_value(answer).map_err(|error| self.garbled(error))
    }

    /// Where all replicas of its group stand, as they answer it: its own id, and the answers.
    pub fn group(&self) -> Result<(u64, Vec<Value>), ControlError> {
        let answer = self.request(&json!({"op": "group"}))?;
        let replicas = answer["replicas"].as_array().cloned();
        match (answer["asked"].as_u64(), replicas) {
            (Some(asked), Some(replicas)) => Ok((asked, replicas)),
            _ => Err(self.garbled("it does not name its group")),
        }
    }

    /// The guest's console, as a stream of raw bytes both ways.
    pub fn console(&self) -> Result<UnixStream, ControlError> {
        Ok(self.open(&json!({"op": "console"}))?.0)
    }

    /// Looks at the guest's display, which speaks the protocol of VNC on the returned connection.
    pub fn display(&self) -> Result<UnixStream, ControlError> {
        Ok(self.open(&json!({"op": "display"}))?.0)
    }

    /// Types on the guest's console. Returns when the guest has it for sure, also if its host is lost.
    pub fn type_text(&self, text: &str) -> Result<(), ControlError> {
        self.ask(&json!({"op": "type", "text": text})).map(|_| ())
    }

    /// Asks, and returns the connection with the answer: more follows on it.
    pub fn open(&self, request: &Value) -> Result<(UnixStream, Value), ControlError> {
        let (stream, answer) = self.ask(request)?;
        stream
            .set_read_timeout(None)
            .map_err(|error| self.garbled(error))?;
        Ok((stream, answer))
    }

    /// The daemon's process, as the kernel knows it: one that hangs need not answer for this.
    ///
    /// # Errors
    /// Nothing listens, or it has ended meanwhile.
    pub fn process(&self) -> Result<Process, ControlError> {
        let listener = || {
            let stream = open(&self.path, self.within)?;
            let pid = socket_peercred(&stream)?.pid;
            let pid = u32::try_from(pid.as_raw_nonzero().get());
            Ok(pid.ok().and_then(Process::now))
        };
        let absent = |source| ControlError::Absent {
            path: self.path.clone(),
            source,
        };
        let first = listener().map_err(|error| self.unheard(error, absent))?;
        // Asked twice, so that the number is not that of a later process.
        let again = listener().map_err(|error| self.unheard(error, absent))?;
        match first.filter(|first| Some(*first) == again) {
            Some(process) => Ok(process),
            None => Err(self.garbled("its process ends just now: ask again")),
        }
    }

    fn ask(&self, request: &Value) -> Result<(UnixStream, Value), ControlError> {
        let deadline = Instant::now() + self.within;
        let mut stream = open(&self.path, self.within).map_err(|source| {
            self.unheard(source, |source| ControlError::Absent {
                path: self.path.clone(),
                source,
            })
        })?;
        let answer = self.answer(&mut stream, request, deadline)?;
        Ok((stream, answer))
    }

    /// Asks once more on a connection that an answer has left open.
    pub fn ask_again(
        &self,
        stream: &mut UnixStream,
        request: &Value,
    ) -> Result<Value, ControlError> {
        self.answer(stream, request, Instant::now() + self.within)
    }

    fn answer(
        &self,
        stream: &mut UnixStream,
        request: &Value,
        deadline: Instant,
    ) -> Result<Value, ControlError> {
        let broken = |error| self.unheard(error, |error| self.garbled(error));
        writeln!(stream, "{request}").map_err(broken)?;
        let line = read_line(stream, deadline).map_err(broken)?;
        let answer: Value = serde_json::from_str(&line).map_err(|error| self.garbled(error))?;
        match answer.get("error").and_then(Value::as_str) {
            Some(error) => Err(ControlError::Refused(error.to_owned())),
            None => Ok(answer),
        }
    }

    /// A daemon that has not spoken in time, or `otherwise`.
    fn unheard(
        &self,
        error: io::Error,
        otherwise: impl FnOnce(io::Error) -> ControlError,
    ) -> ControlError {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::UnexpectedEof => {
                ControlError::Silent {
                    path: self.path.clone(),
                }
            }
            _ => otherwise(error),
        }
    }

    fn garbled(&self, why: impl std::fmt::Display) -> ControlError {
        ControlError::Garbled {
            path: self.path.clone(),
            why: why.to_string(),
        }
    }
}

/// Connects, and lets no write block for longer than `within`. A daemon that stands still accepts nothing.
/// When so many connections wait for it that the kernel takes no more, connecting blocks as well.
///
/// The socket is opened before it is connected to, and a link in its place refused: one in the folder of a service that has
/// been taken over would lead an order of root's to another guest.
fn open(path: &Path, within: Duration) -> io::Result<UnixStream> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) == FileType::Symlink {
        return Err(io::Error::other("it is a link, and no socket"));
    }
    let opened = format!("/proc/self/fd/{}", file.as_raw_fd());
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    set_socket_timeout(&socket, Timeout::Send, Some(within))?;
    connect(&socket, &SocketAddrUnix::new(opened)?)?;
    Ok(socket.into())
}

/// Reads a line, and nothing behind it: those bytes belong to the caller, who gets the stream.
fn read_line(stream: &mut UnixStream, deadline: Instant) -> io::Result<String> {
    let (mut line, mut part) = (Vec::new(), [0u8; 4096]);
    // A daemon that dies while it answers leaves half a line.
    while line.last() != Some(&b'\n') {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        // A signal must not part an order from its answer: who has a handler for it looks at its flag afterwards.
        let peeked = retry_on_intr(|| recv(&*stream, &mut part[..], RecvFlags::PEEK));
        let (there, _) = peeked?;
        if there == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let end = part[..there].iter().position(|byte| *byte == b'\n');
        let part = &mut part[..end.map_or(there, |end| end + 1)];
        stream.read_exact(part)?;
        line.extend_from_slice(part);
    }
    String::from_utf8(line).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

/// A daemon's status, as far as the lab uses it. Fields that a daemon does not send have their defaults,
/// so that daemons of other releases can be asked too.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DaemonStatus {
    /// The replica's id.
    pub id: u8,
    /// Its role: `leader`, `secondary`, `witness`, `joining`, `recovering` or `deposed`.
    pub role: String,
    /// The view it is in, such as `2@r1`.
    pub view: String,
    /// The replicas that hold the guest's state, as far as it knows.
    pub isr: Vec<u8>,
    /// Whether the guest would survive the loss of any one replica.
    pub protected: bool,
    /// Whether it faces clients.
    pub serving: bool,
    /// Its process.
    pub plover_pid: u32,
    /// Its hypervisor's process, while it has one.
    pub qemu_pid: Option<u32>,
    /// The cost of its syncs.
    pub sync: SyncStatus,
    /// All other fields, as they were sent.
    #[serde(flatten)]
    pub more: serde_json::Map<String, Value>,
}

/// Medians over the last syncs that a replica led.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SyncStatus {
    /// Syncs since its start.
    pub count: u64,
    /// How long the guest stood, µs.
    pub pause_us_p50: u64,
    /// How long it ran before, µs.
    pub slot_us_p50: u64,
    /// Pages dirty on either side.
    pub dirty: u64,
    /// Of those, equal on both.
    pub same: u64,
    /// Of those, different and sent.
    pub divergent: u64,
    /// Pages dirty on the leader.
    pub dirty_leader: u64,
    /// Pages dirty on the secondary.
    pub dirty_secondary: u64,
    /// Bytes sent.
    pub bytes: u64,
    /// All other fields, as they were sent.
    #[serde(flatten)]
    pub more: serde_json::Map<String, Value>,
}

impl DaemonStatus {
    /// Whether it says that it has the guest, in a state that counts.
    pub fn holds_state(&self) -> bool {
        says(&self.more, "holds_state")
    }

    /// Whether it says that two replicas of its group may lead at once.
    pub fn can_split(&self) -> bool {
        says(&self.more, "can_split")
    }

    /// Whether it says that its guest has ended and waits to be started.
    pub fn guest_is_off(&self) -> bool {
        says(&self.more, "guest_off")
    }

    /// Its copy of the guest's disks, if the guest has some.
    pub fn disk_copy(&self) -> Option<DiskCopy> {
        disk_copy(self.id, &self.more)
    }

    /// The number of its view (later views have higher ones) and its leader; `None` before the first
    /// view.
    pub fn view_parts(&self) -> Option<(u64, u8)> {
        let (number, leader) = self.view.split_once("@r")?;
        Some((number.parse().ok()?, leader.parse().ok()?))
    }
}

/// A sentence for each replica with which a daemon has no link because one refuses the other: which, and why.
pub(crate) fn refused(said: &serde_json::Map<String, Value>) -> Vec<String> {
    let peers = said.get("refused").and_then(Value::as_object);
    let sentence = |(peer, why): (&String, &Value)| {
        Some(format!("no link to replica {peer}: {}", why.as_str()?))
    };
    peers.into_iter().flatten().filter_map(sentence).collect()
}

/// A daemon's copy of the guest's disks, from its status.
pub(crate) fn disk_copy(id: u8, said: &serde_json::Map<String, Value>) -> Option<DiskCopy> {
    let copy = json!({
        "id": id,
        "last_in_sync": said.get("last_in_sync")?,
        "disks_whole": said.get("disks_whole")?,
    });
    serde_json::from_value(copy).ok()
}

/// Whether `key` is true among what a daemon said.
pub(crate) fn says(said: &serde_json::Map<String, Value>, key: &str) -> bool {
    said.get(key).and_then(Value::as_bool) == Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::thread::JoinHandle;

    #[test]
    fn the_process_behind_a_socket_is_known_though_it_answers_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let control = Control::at(&path);
        assert_eq!(control.process().ok(), Process::me());
        drop(listener);
        assert!(matches!(
            control.process(),
            Err(ControlError::Absent { .. })
        ));
    }

    /// A daemon that answers one connection with `answer`.
    fn daemon(answer: &'static [u8]) -> (Control, JoinHandle<String>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let control = Control::at(&path);
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let deadline = Instant::now() + ANSWER_WITHIN;
            let line = read_line(&mut stream, deadline).unwrap();
            stream.write_all(answer).unwrap();
            drop(dir);
            line
        });
        (control, thread)
    }

    #[test]
    fn a_status_is_read_with_more_or_fewer_fields_than_expected() {
        let (control, thread) = daemon(
            b"{\"id\":1,\"role\":\"leader\",\"view\":\"12@r1\",\"isr\":[0,1],\"new\":7,\"refused\":{\"2\":\"why\"}}\n",
        );
        let status = control.status().unwrap();
        assert_eq!(thread.join().unwrap(), "{\"op\":\"status\"}\n");
        assert_eq!(
            (status.id, status.view_parts(), status.qemu_pid),
            (1, Some((12, 1)), None)
        );
        assert_eq!(status.isr, [0, 1]);
        assert_eq!(status.more["new"], 7);
        assert_eq!(refused(&status.more), ["no link to replica 2: why"]);
        assert_eq!(
            DaemonStatus {
                view: "none".into(),
                ..status
            }
            .view_parts(),
            None
        );
    }

    #[test]
    fn refusals_and_silence_are_told_apart() {
        let (control, thread) = daemon(b"{\"error\":\"not the leader\"}\n");
        let error = control.request(&json!({"op": "bootstrap"})).unwrap_err();
        assert!(matches!(&error, ControlError::Refused(why) if why == "not the leader"));
        thread.join().unwrap();
        for cut_short in [&b""[..], b"{\"id\":"] {
            let (control, thread) = daemon(cut_short);
            assert!(matches!(
                control.status().unwrap_err(),
                ControlError::Silent { .. }
            ));
            thread.join().unwrap();
        }
        let nobody = Control::at("/nowhere/control.sock");
        assert!(matches!(
            nobody.status().unwrap_err(),
            ControlError::Absent { .. }
        ));
        let (control, thread) = daemon(b"hello\n");
        assert!(matches!(
            control.status().unwrap_err(),
            ControlError::Garbled { .. }
        ));
        thread.join().unwrap();
    }

    /// One that stands still, in each of its ways: nobody accepts, the queue of connections is full, or the
    /// answer comes a byte at a time.
    #[test]
    fn a_daemon_that_hangs_is_given_up_in_time() {
        const WITHIN: Duration = Duration::from_millis(200);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        let listener = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let gives_up = || {
            let began = Instant::now();
            let error = Control::at(&path).within(WITHIN).status().unwrap_err();
            assert!(matches!(error, ControlError::Silent { .. }), "{error}");
            assert!(began.elapsed() < WITHIN * 10);
        };
        gives_up();
        gives_up();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                while stream.write_all(b" ").is_ok() {
                    std::thread::sleep(WITHIN / 10);
                }
            }
        });
        gives_up();
    }

    #[test]
    fn a_console_keeps_the_bytes_that_follow_the_answer() {
        let (control, thread) = daemon(b"{\"ok\":true}\nlogin: ");
        let mut text = String::new();
        control
            .console()
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        assert_eq!(text, "login: ");
        thread.join().unwrap();
    }

    #[test]
    fn a_link_to_another_socket_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (socket, link) = (dir.path().join("control.sock"), dir.path().join("link"));
        let _listener = UnixListener::bind(&socket).unwrap();
        std::os::unix::fs::symlink(&socket, &link).unwrap();
        let within = Duration::from_secs(1);
        assert!(open(&socket, within).is_ok());
        let error = open(&link, within).unwrap_err().to_string();
        assert!(error.contains("a link"), "{error}");
    }
}
