//! The daemons of a lab: starting them, waiting for them, and the last lines of their logs.

use crate::lab::Lab;
use crate::process::{self, Life, Process};
use crate::progress::Progress;
use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A daemon that has not opened its control socket within this time has failed.
const DAEMON_OPENS_WITHIN: Duration = Duration::from_secs(60);

/// The lines of a log that an error quotes: enough for a failure and its circumstances.
pub(crate) const LAST_LINES: usize = 12;

impl Lab {
    /// Starts the daemon of a replica that is down, and waits until it can be asked.
    pub fn restart(&mut self, id: u8, progress: &Progress) -> Result<Process> {
        let lock = self.dir.lock(DAEMON_OPENS_WITHIN)?;
        // Another command may have restarted it since this one read the record.
        self.state = self.dir.load()?;
        if self
            .state
            .replica(id)?
            .daemon
            .is_some_and(Process::is_alive)
        {
            bail!("replica {id} is running; `plover lab fault kill --replica {id}` ends it");
        }
        // Processes that a dead daemon left on its host.
        for process in process::in_namespace(&self.host(id).path()) {
            process.signal(Signal::KILL);
        }
        self.wait_until_empty(id)?;
        let daemon = self.start_daemon(id)?;
        self.dir.save(&self.state)?;
        drop(lock);
        self.wait_for_daemon(id, progress)?;
        Ok(daemon)
    }

    /// Starts a daemon in its namespace, to outlive this process.
    pub(crate) fn start_daemon(&mut self, id: u8) -> Result<Process> {
        let files = self.files(id);
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(files.log())
            .with_context(|| format!("cannot write {}", files.log().display()))?;
        let mut command = Command::new(&self.state.program);
        command
            .args(["replica", "--config"])
            .arg(files.config())
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // The Ctrl-C that is meant for the starting command does not reach it.
            .process_group(0);
        let mut command = self.host(id).exec_in(command)?;
        inherit_nothing(&mut command);
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start {}", self.state.program.display()))?;
        let daemon = Process::now(child.id());
        // An ended child keeps its number until its parent has waited for it. This thread does so if the
        // daemon ends before this process, and costs nothing otherwise.
        std::thread::spawn(move || child.wait());
        let daemon = daemon.with_context(|| self.last_words(id, "ended at once"))?;
        if let Some(replica) = self
            .state
            .replicas
            .iter_mut()
            .find(|replica| replica.id == id)
        {
            replica.daemon = Some(daemon);
        }
        Ok(daemon)
    }

    /// Waits until a daemon can be asked.
    pub(crate) fn wait_for_daemon(&self, id: u8, progress: &Progress) -> Result<()> {
        let deadline = Instant::now() + DAEMON_OPENS_WITHIN;
        while self.control(id).status().is_err() {
            self.check_daemon(id)?;
            if Instant::now() > deadline {
                bail!(self.last_words(id, "does not answer on its control socket"));
            }
            progress.sleep(Duration::from_millis(50))?;
        }
        Ok(())
    }

    /// Fails if a daemon that was started has ended.
    pub fn check_daemon(&self, id: u8) -> Result<()> {
        match self.state.replica(id)?.daemon.map(Process::life) {
            Some(Life::Gone) => bail!(self.last_words(id, "has ended")),
            _ => Ok(()),
        }
    }

    /// An error about a daemon, with the end of its log.
    pub(crate) fn last_words(&self, id: u8, what: &str) -> String {
        self.last_log(id, what, LAST_LINES)
    }

    /// The same with the last `count` lines of its log.
    pub fn last_log(&self, id: u8, what: &str, count: usize) -> String {
        let last = indented(&last_lines(&self.files(id).log(), count));
        format!("replica {id} {what}; the end of its log:\n{last}")
    }

    /// The last `count` lines that the guest printed at this replica.
    pub(crate) fn last_print(&self, id: u8, count: usize) -> Vec<String> {
        last_lines(&self.files(id).console_log(), count)
    }
}

/// The last `count` lines of a file that show something.
fn last_lines(path: &Path, count: usize) -> Vec<String> {
    let text = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines = text.rsplit(['\n', '\r']).map(shown);
    let mut last: Vec<String> = lines.filter(|line| !line.is_empty()).take(count).collect();
    last.reverse();
    last
}

/// A line as it looks: without the sequences that colour it or move the cursor (`ESC [ … letter`), and
/// without control characters.
fn shown(line: &str) -> String {
    let mut parts = line.split("\x1b[");
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| c.is_ascii_alphabetic());
        shown += end.map_or("", |end| &part[end + 1..]);
    }
    shown.retain(|c| !c.is_control());
    shown.trim().to_owned()
}

/// Lines under a sentence about them.
pub(crate) fn indented(lines: &[String]) -> String {
    match lines {
        [] => "    (nothing)".into(),
        lines => format!("    {}", lines.join("\n    ")),
    }
}

/// Leaves `command` only its standard streams. Otherwise the daemon would hold, for as long as it lives,
/// whatever else the caller of this program has open, such as a script's lock.
fn inherit_nothing(command: &mut Command) {
    // SAFETY: between fork and exec the closure makes one system call, and allocates nothing.
    unsafe {
        command.pre_exec(|| {
            match libc::close_range(3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC as i32) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::FdFlags;
    use std::os::fd::AsRawFd;

    #[test]
    fn the_last_lines_are_those_that_show_something() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let last = |text: &str, count| {
            std::fs::write(file.path(), text).unwrap();
            last_lines(file.path(), count)
        };
        let boot = "SeaBIOS\r\n\x1b[2J\x1b[01;01H\x1b[1;32mGRUB\x1b[0m loads\x07\r\n \r\n\x1b[m";
        assert_eq!(last(boot, 1), ["GRUB loads"]);
        assert_eq!(last(boot, 9), ["SeaBIOS", "GRUB loads"]);
        assert_eq!(last("10%\r20%", 1), ["20%"]);
        assert!(last("\r\n\x1b[", 1).is_empty());
        assert_eq!(indented(&[]), "    (nothing)");
    }

    #[test]
    fn a_daemon_inherits_nothing_that_the_caller_left_open() {
        let left_open = std::fs::File::open("/dev/null").unwrap();
        rustix::io::fcntl_setfd(&left_open, FdFlags::empty()).unwrap();
        let is_open = |inherits: bool| {
            let mut command = Command::new("test");
            command
                .arg("-e")
                .arg(format!("/proc/self/fd/{}", left_open.as_raw_fd()));
            if !inherits {
                inherit_nothing(&mut command);
            }
            command.status().unwrap().success()
        };
        assert!(is_open(true));
        assert!(!is_open(false));
    }
}
