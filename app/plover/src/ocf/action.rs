//! The actions that touch the replica: by its service where systemd runs this host, else by its process.

use super::judge;
use super::{Code, Instance, Outcome};
use crate::at::CONFIGURATIONS;
use plover_lab::control::{ControlError, DaemonStatus};
use plover_lab::leaving::{self, Leave};
use plover_lab::operate;
use plover_lab::process::Process;
use plover_lab::status::GroupStatus;
use rustix::process::Signal;
use serde_json::json;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How often a wait looks.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How long a replica may be silent before it counts as hung. Each question waits up to 3 s for its answer.
const HUNG_AFTER: Duration = Duration::from_secs(9);

/// How long a replica may take to hand over and end. It gives up after 10 s by itself; systemd waits as long as this.
const ENDS_WITHIN: Duration = Duration::from_secs(30);

/// How long a process may take to end that was killed.
const DIES_WITHIN: Duration = Duration::from_secs(5);

/// Time of an action that is left to Pacemaker itself.
const MARGIN: Duration = Duration::from_secs(5);

/// This folder is there where systemd is the init process: see sd_booted(3).
const SYSTEMD: &str = "/run/systemd/system";

impl Instance {
    pub(super) fn monitor(&self) -> Outcome {
        let begun = Instant::now();
        if self.is_probe {
            self.tell_memory_at_probe();
        }
        match self.ask() {
            Ok(own) => {
                self.set_attributes(&self.attributes(&own));
                if let Some(ended) = self.look_after_the_other(&own, begun) {
                    return ended;
                }
                self.look_after_members(&own, begun);
                judge::health(&own)
            }
            Err(error) if is_absent(&error) => {
                self.tell_of_none(None);
                Outcome::NOT_RUNNING
            }
            Err(error) => {
                self.tell_of_none(Some(judge::HUNG));
                let why = format!(
                    "the replica does not answer for {} s: {error}",
                    HUNG_AFTER.as_secs()
                );
                Outcome::of(Code::Failed, why)
            }
        }
    }

    /// The attributes of a node with this replica. The source of a warm copy knows whether all of it is there.
    pub(super) fn attributes(&self, own: &DaemonStatus) -> [(&'static str, Option<String>); 2] {
        let group = &self.config.group;
        let is_cold = judge::is_to_be_warm(own, group)
            && !GroupStatus::ask(&self.control()).is_ok_and(|group| group.is_warm(own.id));
        judge::attributes(own, group, is_cold)
    }

    /// The replica's status. A busy host may answer late, so a replica that is silent is asked again.
    fn ask(&self) -> Result<DaemonStatus, ControlError> {
        let deadline = Instant::now() + HUNG_AFTER.min(self.timeout / 2);
        loop {
            match self.control().status() {
                Err(error) if !is_absent(&error) && Instant::now() < deadline => {
                    std::thread::sleep(LOOK_EVERY);
                }
                told => return told,
            }
        }
    }

    /// Parameters are read at each action. Only one that names another replica than the one that runs cannot be taken over so.
    pub(super) fn reload(&self) -> Outcome {
        match self.ask() {
            Ok(_) => Outcome::SUCCESS,
            Err(error) => Outcome::of(Code::Failed, error.to_string()),
        }
    }

    pub(super) fn start(&self) -> Outcome {
        let started = match self.ask() {
            Ok(_) => Outcome::SUCCESS,
            Err(_) if is_unit() => self.start_unit(),
            Err(_) => self.start_process(),
        };
        if started.code != Code::Success {
            return started;
        }
        // `stop` has drained it, and the order outlives the process.
        if let Err(error) = operate::undrain(&self.control()) {
            return Outcome::of(
                Code::Failed,
                format!(
                    "it runs, but may stay drained, or be so again after its next start: {error:#}"
                ),
            );
        }
        self.monitor_after_start()
    }

    /// Sets the attributes alone: the first monitor judges the replica.
    fn monitor_after_start(&self) -> Outcome {
        if let Ok(own) = self.control().status() {
            self.set_attributes(&self.attributes(&own));
        }
        Outcome::SUCCESS
    }

    fn start_unit(&self) -> Outcome {
        let unit = match self.unit() {
            Ok(unit) => unit,
            Err(outcome) => return outcome,
        };
        if let Err(why) = systemctl(&["start", &unit]) {
            let code = systemctl(&["show", "--property=ExecMainStatus", "--value", &unit]);
            let why = format!("{why}; `journalctl -u {unit}` says more");
            return Outcome::of(
                code_of(code.ok().and_then(|code| code.trim().parse().ok())),
                why,
            );
        }
        Outcome::SUCCESS
    }

    /// The replica's unit, which reads the configuration by its own name.
    fn unit(&self) -> Result<String, Outcome> {
        let name = self.file.file_stem().and_then(|name| name.to_str());
        let name = name.filter(|_| self.file.parent() == Some(Path::new(CONFIGURATIONS)));
        name.map(|name| format!("plover@{name}.service")).ok_or_else(|| {
            let why = format!(
                "config={}: the unit plover@NAME reads {CONFIGURATIONS}/NAME.toml, so the file must be there",
                self.file.display()
            );
            Outcome::of(Code::NotConfigured, why)
        })
    }

    fn start_process(&self) -> Outcome {
        let mut replica = match self.spawn() {
            Ok(replica) => replica,
            Err(why) => return Outcome::of(Code::NotInstalled, why),
        };
        let deadline = Instant::now() + self.timeout.saturating_sub(MARGIN);
        loop {
            if self.control().status().is_ok() {
                return Outcome::SUCCESS;
            }
            if let Ok(Some(ended)) = replica.try_wait() {
                let last = last_line(&self.log()).unwrap_or_else(|| ended.to_string());
                return Outcome::of(code_of(ended.code()), last);
            }
            if Instant::now() > deadline {
                // A second one could not start beside it.
                let _ = replica.kill();
                let _ = replica.wait();
                let why = format!(
                    "the replica does not answer {} s after its start, and is ended: {} says what it does; give the \
                     start of the resource more time if it imports an image",
                    self.timeout.as_secs(),
                    self.log().display()
                );
                return Outcome::of(Code::Failed, why);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn spawn(&self) -> Result<std::process::Child, String> {
        let log = self.log();
        let in_words = |error| format!("cannot write {}: {error}", log.display());
        let output = self.open_log().map_err(in_words)?;
        let errors = output.try_clone().map_err(in_words)?;
        let program = std::env::current_exe()
            .map_err(|error| format!("this program has no path: {error}"))?;
        let mut command = Command::new(&program);
        command.args(["replica", "--config"]).arg(&self.file);
        command.current_dir("/").stdin(Stdio::null());
        command.stdout(output).stderr(errors);
        // Pacemaker ends the group of an agent that takes too long.
        command.process_group(0);
        let spawned = command.spawn();
        spawned.map_err(|error| format!("cannot start {}: {error}", program.display()))
    }

    /// The replica's folder is made here if this is its first start.
    fn open_log(&self) -> std::io::Result<File> {
        let state_dir = &self.config.paths.state_dir;
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(state_dir)?;
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log())
    }

    /// Where the replica logs to if it is no service.
    fn log(&self) -> PathBuf {
        self.config.paths.state_dir.join("replica.log")
    }

    /// Drains, waits until the replica may leave, and ends it.
    pub(super) fn stop(&self) -> Outcome {
        let is_hung = match self.ask() {
            Ok(_) => {
                if let Err(why) = self.clear() {
                    let _ = operate::undrain(&self.control());
                    return Outcome::of(Code::Failed, format!("not stopped: {why}"));
                }
                false
            }
            Err(error) => !is_absent(&error),
        };
        match self.end(is_hung) {
            Ok(()) => {
                self.tell_of_none(None);
                Outcome::SUCCESS
            }
            Err(why) => Outcome::of(Code::Failed, why),
        }
    }

    /// Waits until the replica may end. What could be better is waited for as long as Pacemaker waits, and then done without.
    fn clear(&self) -> Result<(), String> {
        let control = self.control();
        let left = self
            .timeout
            .saturating_sub(ENDS_WITHIN + DIES_WITHIN + MARGIN);
        let deadline = Instant::now() + left;
        let mut is_ordered = false;
        loop {
            let asked =
                GroupStatus::ask(&control).and_then(|group| Ok((group, control.status()?.id)));
            let (group, id) = match asked {
                Ok(told) => told,
                Err(error) if is_absent(&error) => return Ok(()),
                Err(error) if Instant::now() > deadline => return Err(error.to_string()),
                Err(_) => {
                    std::thread::sleep(LOOK_EVERY);
                    continue;
                }
            };
            let is_late = Instant::now() > deadline;
            match leaving::leave(&group, id) {
                Leave::Now => return Ok(()),
                Leave::Later(_) if is_late => return Ok(()),
                // The leader waits for just that.
                Leave::Never(_) if self.is_awaited_by(id) => return Ok(()),
                Leave::Never(why) if is_late => return Err(why),
                Leave::Later(_) if !is_ordered => {
                    // One that answers late has the order, and may wait for its disk.
                    let ordered = control.request(&json!({"op": "drain"}));
                    is_ordered = ordered.map_or_else(|error| !is_absent(&error), |_| true);
                    std::thread::sleep(LOOK_EVERY);
                }
                _ => std::thread::sleep(LOOK_EVERY),
            }
        }
    }

    /// Whether the other one of two waits for the end of this replica.
    fn is_awaited_by(&self, id: u8) -> bool {
        let own = self.control().status().ok().filter(|own| own.id == id);
        own.is_some_and(|own| self.is_waited_for(&own).unwrap_or(false))
    }

    /// Ends the replica.
    pub(super) fn end(&self, is_hung: bool) -> Result<(), String> {
        if is_unit() {
            self.end_unit(is_hung)
        } else {
            self.end_process(is_hung)
        }
    }

    /// Whether the replica that answers runs in the unit of this resource.
    pub(super) fn is_in_own_unit(&self) -> bool {
        let Some(unit) = self.unit().ok().filter(|_| is_unit()) else {
            return false;
        };
        let Ok(replica) = self.control().process() else {
            return false;
        };
        let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", replica.pid));
        groups.is_ok_and(|groups| groups.contains(&format!("/{unit}")))
    }

    /// Ends the own unit where another replica answers in its place: it may be waiting to start.
    pub(super) fn stop_unit(&self) -> Outcome {
        let unit = match self.unit() {
            Ok(unit) if is_unit() => unit,
            _ => return Outcome::SUCCESS,
        };
        match systemctl(&["stop", &unit]) {
            Ok(_) => {
                self.tell_of_none(None);
                Outcome::SUCCESS
            }
            Err(why) => Outcome::of(Code::Failed, why),
        }
    }

    /// Ends the unit, which may also be waiting to start its replica again.
    fn end_unit(&self, is_hung: bool) -> Result<(), String> {
        let unit = self
            .unit()
            .map_err(|outcome| outcome.reason.unwrap_or_default())?;
        if is_hung {
            // Refused if it does not run.
            let _ = systemctl(&["kill", "--signal=KILL", &unit]);
        }
        systemctl(&["stop", &unit])?;
        // One that another unit or a shell has started is none of this unit.
        self.end_process(is_hung)
    }

    fn end_process(&self, is_hung: bool) -> Result<(), String> {
        let replica = match self.control().process() {
            Ok(replica) => replica,
            Err(error) if is_absent(&error) => return Ok(()),
            Err(error) => return Err(format!("its process cannot be found: {error}")),
        };
        if !is_hung {
            replica.signal(Signal::TERM);
            if has_ended(replica, ENDS_WITHIN) {
                return Ok(());
            }
        }
        replica.signal(Signal::KILL);
        if has_ended(replica, DIES_WITHIN) {
            return Ok(());
        }
        Err(format!(
            "process {} does not end though it was killed: it may wait for a disk",
            replica.pid
        ))
    }
}

fn is_unit() -> bool {
    Path::new(SYSTEMD).is_dir()
}

/// Whether nothing listens on the replica's socket.
pub(super) fn is_absent(error: &ControlError) -> bool {
    let ControlError::Absent { source, .. } = error else {
        return false;
    };
    matches!(
        source.kind(),
        ErrorKind::NotFound | ErrorKind::ConnectionRefused
    )
}

/// The outcome of a start whose process has ended with this code. `plover replica` ends with 2 if the host lacks something.
fn code_of(ended: Option<i32>) -> Code {
    match ended {
        Some(2) => Code::NotInstalled,
        _ => Code::Failed,
    }
}

fn systemctl(arguments: &[&str]) -> Result<String, String> {
    let ended = Command::new("systemctl")
        .args(arguments)
        .stdin(Stdio::null())
        .output();
    let ended = ended.map_err(|error| format!("cannot run systemctl: {error}"))?;
    if ended.status.success() {
        return Ok(String::from_utf8_lossy(&ended.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&ended.stderr);
    Err(format!(
        "systemctl {}: {}",
        arguments.join(" "),
        said.trim()
    ))
}

fn has_ended(process: Process, within: Duration) -> bool {
    let deadline = Instant::now() + within;
    while process.is_alive() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(LOOK_EVERY / 4);
    }
    true
}

/// The last line of a log.
fn last_line(log: &Path) -> Option<String> {
    const END_BYTES: u64 = 4096;
    let mut file = File::open(log).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(END_BYTES)))
        .ok()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    Some(text.lines().next_back()?.to_owned())
}
