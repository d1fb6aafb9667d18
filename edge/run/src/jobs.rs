//! Work that takes long, in threads of its own: unpacking, archiving and fetching checkpoints. And the threads that
//! serve checkpoints to the other replicas.

mod serve;

pub(crate) use serve::serve;

use crate::config::ProgramConfig;
use crate::files::{Files, Limit, complete, complete_within, copy, sum_of};
use crate::program::{Program, wait_until_dead};
use plover_fabric::{Keys, Stream};
use plover_program::{Held, Own, State};
use plover_types::{ReplicaId, Viewstamp};
use rustix::event::{EventfdFlags, eventfd};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// A transfer of which nothing comes for so long has failed.
const SILENT_FOR: Duration = Duration::from_secs(20);

/// The pause between two runs of the command that asks whether a program is ready.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// The result of a job.
#[derive(Debug)]
pub(crate) enum Done {
    /// The program of this start is ready, or was not in time.
    Ready(u64, Result<(), String>),
    /// The program's directory is ready for a start.
    Prepared(Result<State, NotPrepared>),
    /// The program's directory is archived.
    Archived(Result<Own, String>),
    /// Another replica's checkpoint is here.
    Fetched(Result<Own, String>),
}

/// Why the program's directory is not ready for a start.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotPrepared {
    /// The checkpoint is damaged, gone or of another release.
    Lost(String),
    /// Anything else. The checkpoint may be as good as ever.
    Failed(String),
}

impl From<String> for NotPrepared {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

/// Starts jobs, and has their results.
#[derive(Debug)]
pub(crate) struct Jobs {
    files: Files,
    restore_cmd: Option<String>,
    ready_cmd: Option<String>,
    snapshot_cmd: Option<String>,
    within: Duration,
    me: ReplicaId,
    keys: Option<Arc<Keys>>,
    done: Receiver<Done>,
    sender: Sender<Done>,
    wake: Arc<OwnedFd>,
}

impl Jobs {
    pub fn new(
        files: Files,
        config: &ProgramConfig,
        me: ReplicaId,
        keys: Option<Arc<Keys>>,
    ) -> io::Result<Self> {
        let (sender, done) = channel();
        Ok(Self {
            files,
            restore_cmd: config.restore_cmd.clone(),
            ready_cmd: config.ready_cmd.clone(),
            snapshot_cmd: config.snapshot_cmd.clone(),
            within: Duration::from_secs(config.snapshot_s),
            me,
            keys,
            done,
            sender,
            wake: Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?),
        })
    }

    /// The jobs that are done.
    pub fn take(&self) -> Vec<Done> {
        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
        self.done.try_iter().collect()
    }

    /// Runs a job. If there can be no thread for it, its result is `failed`.
    fn begin(
        &self,
        failed: impl FnOnce(String) -> Done,
        job: impl FnOnce() -> Done + Send + 'static,
    ) {
        let (sender, wake) = (self.sender.clone(), self.wake.clone());
        let runs = std::thread::Builder::new().name("job".into());
        let runs = runs.spawn(move || finish(&sender, &wake, job()));
        if let Err(error) = runs {
            let why = format!(
                "no thread can be made for it: {error}; raise the limit of processes (ulimit -u, pids.max of the cgroup)"
            );
            finish(&self.sender, &self.wake, failed(why));
        }
    }

    /// Empties the program's directory, and unpacks a checkpoint into it.
    pub fn prepare(&self, from: Option<Viewstamp>) {
        let (files, command, within) = (self.files.clone(), self.restore_cmd.clone(), self.within);
        let failed = |why| Done::Prepared(Err(NotPrepared::Failed(why)));
        self.begin(failed, move || {
            Done::Prepared(prepare(&files, from, command, Instant::now() + within))
        });
    }

    /// Waits until the program of this start is ready. False if nothing tells: then it is.
    pub fn await_ready(&self, start: u64, until: Instant) -> bool {
        let (files, Some(command)) = (self.files.clone(), self.ready_cmd.clone()) else {
            return false;
        };
        let failed = move |why| Done::Ready(start, Err(why));
        self.begin(failed, move || {
            loop {
                let result = complete(shell(&command, &files), until, "start_s");
                if result.is_ok() || Instant::now() + ASK_AGAIN_AFTER >= until {
                    return Done::Ready(start, result);
                }
                std::thread::sleep(ASK_AGAIN_AFTER);
            }
        });
        true
    }

    /// Archives the program's directory and its state as the checkpoint at `at`: after the configured command, or after
    /// the end of the program, if it is given. Returns what calls it off.
    pub fn archive(&self, at: Viewstamp, state: State, ends: Option<Program>) -> Arc<AtomicBool> {
        let call_off = Arc::new(AtomicBool::new(false));
        let is_called_off = Arc::clone(&call_off);
        let (files, command) = (self.files.clone(), self.snapshot_cmd.clone());
        let (me, within) = (self.me, self.within);
        let failed = |why| Done::Archived(Err(why));
        self.begin(failed, move || {
            if let Some(Err(why)) = ends.map(Program::end) {
                return Done::Archived(Err(why));
            }
            let limit = Limit {
                deadline: Instant::now() + within,
                is_called_off,
            };
            Done::Archived(archive(&files, (at, me), &state, command, &limit))
        });
        call_off
    }

    /// Gets another replica's checkpoint.
    pub fn fetch(&self, held: Held) {
        let (files, keys) = (self.files.clone(), self.keys.clone());
        let failed = |why| Done::Fetched(Err(why));
        self.begin(failed, move || {
            let fetched = fetch(&files, &held, keys.as_ref());
            Done::Fetched(fetched.map_err(|error| {
                format!(
                    "cannot get the checkpoint of replica {} at {}: {error}",
                    held.replica.0, held.address
                )
            }))
        });
    }
}

/// A job is done: wakes the loop.
fn finish(sender: &Sender<Done>, wake: &OwnedFd, done: Done) {
    let _ = sender.send(done);
    let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
}

impl AsFd for Jobs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

fn shell(text: &str, files: &Files) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", text]).current_dir(&files.data);
    command
}

fn prepare(
    files: &Files,
    from: Option<Viewstamp>,
    command: Option<String>,
    deadline: Instant,
) -> Result<State, NotPrepared> {
    // It may have the port and the files still.
    wait_until_dead(deadline)?;
    let directory = files.data.display();
    files
        .empty()
        .map_err(|e| format!("cannot empty {directory}: {e}"))?;
    let Some(at) = from else {
        return Ok(State::default());
    };
    let Some(own) = files.find(at) else {
        return Err(NotPrepared::Lost(format!("the checkpoint at {at} is gone")));
    };
    let path = files.path(&own);
    let sum = sum_of(&path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    if sum != own.sum {
        files.remove(&own);
        let why = format!("{} is damaged and was removed", path.display());
        return Err(NotPrepared::Lost(why));
    }
    let state = files.unpack(&path, deadline)?.ok_or_else(|| {
        NotPrepared::Lost(format!(
            "{} is of another release of plover",
            path.display()
        ))
    })?;
    if let Some(text) = command {
        complete(shell(&text, files), deadline, "snapshot_s")?;
    }
    Ok(state)
}

fn archive(
    files: &Files,
    (at, me): (Viewstamp, ReplicaId),
    state: &State,
    command: Option<String>,
    limit: &Limit,
) -> Result<Own, String> {
    if let Some(text) = command {
        complete_within(shell(&text, files), limit, "snapshot_s")?;
    }
    let new = files.unfinished("taken");
    files.archive(&new.path, state, limit)?;
    let path = new.path.display().to_string();
    let finished = files.finish(new, at, me);
    finished.map_err(|e| format!("cannot keep the checkpoint {path}: {e}"))
}

fn fetch(files: &Files, held: &Held, keys: Option<&Arc<Keys>>) -> io::Result<Own> {
    let address: SocketAddr = held.address.parse().map_err(io::Error::other)?;
    let socket = TcpStream::connect_timeout(&address, SILENT_FOR)?;
    socket.set_read_timeout(Some(SILENT_FOR))?;
    socket.set_write_timeout(Some(SILENT_FOR))?;
    let mut stream = Stream::to(held.replica, socket, keys)?;
    writeln!(stream, "{} {}", held.at.view.0, held.at.index.0)?;
    let mut length = [0; 8];
    stream
        .read_exact(&mut length)
        .map_err(|_| io::Error::other("it has no such checkpoint any more"))?;
    if u64::from_le_bytes(length) != held.bytes {
        return Err(io::Error::other("it has another length than the log says"));
    }
    let new = files.unfinished("fetched");
    copy(&mut stream, &mut File::create(&new.path)?, held.bytes)?;
    if sum_of(&new.path)? != held.sum {
        return Err(io::Error::other("it does not match its checksum"));
    }
    let own = files.finish(new, held.at, held.taken_by)?;
    if own.sum != held.sum {
        return Err(io::Error::other("it has changed while it was kept"));
    }
    Ok(own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plover_fabric::keys::PrivateKey;
    use plover_types::{Index, View};

    #[test]
    fn a_checkpoint_goes_from_one_replica_to_another() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let files = Files::open(one.path()).unwrap();
        std::fs::create_dir(files.data.join("sub")).unwrap();
        std::fs::write(files.data.join("sub/file"), "content").unwrap();
        let at = Viewstamp {
            view: View(17),
            index: Index(42),
        };
        let soon = Instant::now() + Duration::from_secs(60);
        let touch = Some("echo more > file".to_string());
        let state = State {
            time: 43,
            ..State::default()
        };
        let limit = Limit {
            deadline: soon,
            is_called_off: Arc::default(),
        };
        let own = archive(&files, (at, ReplicaId(1)), &state, touch, &limit).unwrap();
        let keys = [0; 3].map(|_| PrivateKey::generate().unwrap());
        let public = keys.each_ref().map(PrivateKey::public);
        let [theirs, mine, strange] = keys.map(|own| {
            let trusted = (0..2).map(ReplicaId).zip(public).collect();
            Some(Arc::new(Keys::new(own, trusted)))
        });
        let address = serve([127, 0, 0, 1].into(), files, mine).unwrap();
        let mut held = Held {
            replica: ReplicaId(1),
            at,
            taken_by: ReplicaId(1),
            bytes: own.bytes,
            sum: own.sum,
            address: address.to_string(),
        };
        let (keys, theirs) = (theirs, Files::open(other.path()).unwrap());
        for stranger in [&strange, &None] {
            assert!(
                fetch(&theirs, &held, stranger.as_ref()).is_err(),
                "it is no peer"
            );
        }
        std::fs::write(theirs.data.join("old"), "x").unwrap();
        assert_eq!(fetch(&theirs, &held, keys.as_ref()).unwrap(), own);
        let command = Some("mv file moved".into());
        assert_eq!(prepare(&theirs, Some(at), command, soon), Ok(state));
        let names = std::fs::read_dir(&theirs.data).unwrap().count();
        assert_eq!(names, 2, "the program's files alone");
        let read = |name| std::fs::read_to_string(theirs.data.join(name)).unwrap_or_default();
        assert_eq!(
            (read("sub/file"), read("moved"), read("old")),
            ("content".into(), "more\n".into(), String::new())
        );
        held.at.index = Index(43);
        assert!(
            fetch(&theirs, &held, keys.as_ref())
                .unwrap_err()
                .to_string()
                .contains("no such checkpoint")
        );
        std::fs::write(theirs.path(&own), "other bytes").unwrap();
        let damaged = prepare(&theirs, Some(at), None, soon).unwrap_err();
        assert!(
            matches!(&damaged, NotPrepared::Lost(why) if why.contains("damaged")),
            "{damaged:?}"
        );
    }
}
