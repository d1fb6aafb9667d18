//! The control socket: `run.sock` in the run directory, mode 0600. A request is one word on a line (`status`,
//! `begin`), and the answer one JSON object on a line.

use plover_node::accepted;
use rustix::event::{EventfdFlags, eventfd};
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// How long an answer may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// A request, and where its answer goes.
pub(crate) type Request = (String, Sender<Value>);

/// The loop's end.
#[derive(Debug)]
pub(crate) struct Control {
    path: PathBuf,
    requests: Receiver<Request>,
    wake: Arc<OwnedFd>,
}

impl Control {
    pub fn listen(run_dir: &Path) -> io::Result<Self> {
        let path = run_dir.join("run.sock");
        if UnixStream::connect(&path).is_ok() {
            return Err(io::Error::other(format!(
                "another replica answers on {}: give each its own paths.run_dir",
                path.display()
            )));
        }
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        let wake = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
        let (sender, requests) = channel();
        let for_threads = wake.clone();
        std::thread::Builder::new()
            .name("control".into())
            .spawn(move || {
                for stream in accepted(listener.incoming()) {
                    let (sender, wake) = (sender.clone(), for_threads.clone());
                    let served = std::thread::Builder::new().name("control-client".into());
                    let served = served.spawn(move || serve(&stream, &sender, &wake));
                    if let Err(error) = served {
                        tracing::warn!(%error, "a control connection was refused: no thread can be made for it");
                    }
                }
            })?;
        Ok(Self {
            path,
            requests,
            wake,
        })
    }

    pub fn take(&self) -> Vec<Request> {
        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
        self.requests.try_iter().collect()
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn serve(mut stream: &UnixStream, requests: &Sender<Request>, wake: &OwnedFd) {
    let mut line = String::new();
    let _ = stream.set_read_timeout(Some(ANSWER_WITHIN));
    if BufReader::new(stream.take(64))
        .read_line(&mut line)
        .is_err()
    {
        return;
    }
    let (sender, answer) = channel();
    let _ = requests.send((line.trim().to_owned(), sender));
    let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
    let answer = answer.recv_timeout(ANSWER_WITHIN);
    let answer = answer.unwrap_or_else(|_| json!({"error": "the replica does not answer"}));
    let _ = writeln!(stream, "{answer}");
}

/// Asks the replica whose run directory this is.
pub fn ask(run_dir: &Path, request: &str) -> io::Result<Value> {
    let path = run_dir.join("run.sock");
    let mut stream = UnixStream::connect(&path).map_err(|error| {
        let why = format!(
            "no replica of a program answers on {} ({error}): start it with `plover run`, or name its paths.run_dir \
             by --run-dir",
            path.display()
        );
        io::Error::new(error.kind(), why)
    })?;
    stream.set_read_timeout(Some(2 * ANSWER_WITHIN))?;
    writeln!(stream, "{request}")?;
    let mut line = String::new();
    BufReader::new(stream)
        .read_line(&mut line)
        .map_err(|error| {
            let why = format!(
                "no answer came from {} ({error}): look at its log",
                path.display()
            );
            io::Error::new(error.kind(), why)
        })?;
    serde_json::from_str(&line).map_err(|_| {
        io::Error::other(format!(
            "no answer came from {}: it has ended",
            path.display()
        ))
    })
}
