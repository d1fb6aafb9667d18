//! `plover ocf ACTION`: the resource agent `ocf:plover:guest`, by which Pacemaker runs the replicas of this host.
//!
//! Pacemaker decides on which hosts replicas run, and starts dead ones again. The group's consensus decides which replica
//! leads (docs/decisions/0057). So the agent has no role to promote: a guest is a plain clone with an instance on each of its
//! hosts.
//!
//! | action | what it does |
//! |---|---|
//! | `start` | starts the replica, waits until it answers, and takes back an earlier `plover drain` |
//! | `stop` | drains, then ends the replica; refuses while the group would be worse off than with one member less |
//! | `monitor` | asks the replica, and writes its role and the guest's protection into attributes of the node. On the leader's node it has a lost member replaced (`members.rs`, `repair.rs`). The first one on a node writes what memory that has for replicas |
//! | `notify` | after a stop: tells one of two replicas that the other one is off, if it waits for that (`off.rs`) |
//! | `reload-agent` | nothing: changed parameters count from the next action on |
//! | `validate-all` | reads the configuration file |
//! | `meta-data` | describes all this |
//!
//! The parameters come in the environment, as Pacemaker gives them (Open Cluster Framework, Resource Agent API 1.1).

mod action;
mod cluster;
mod judge;
mod members;
mod off;
mod repair;
#[cfg(test)]
mod tests;

pub use cluster::may_fence;

use crate::at::RUN;
use judge::Attributes;
use plover_lab::control::Control;
use plover_node::ReplicaConfig;
use serde_json::Value;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

/// The agent's own description.
const META_DATA: &str = include_str!("meta-data.xml");

/// How long an action may take if Pacemaker does not say.
const TIMEOUT: Duration = Duration::from_secs(60);

/// How many seconds Pacemaker's attribute daemon may take to answer. It is on this host.
const ATTRIBUTE_WITHIN_S: &str = "3";

/// How long a replica may take to say whose it is.
const ASKED_WITHIN: Duration = Duration::from_secs(1);

/// How an action ended: the exit codes of the Resource Agent API that this agent uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Code {
    Success = 0,
    /// It failed; Pacemaker tries to recover.
    Failed = 1,
    Unimplemented = 3,
    /// This host lacks something; another one may have it.
    NotInstalled = 5,
    /// The resource's parameters are wrong, on any host.
    NotConfigured = 6,
    NotRunning = 7,
    /// It runs, and something on this host is wrong that a restart would not mend.
    Degraded = 190,
}

/// How an action ended, and why if that is not good.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    code: Code,
    reason: Option<String>,
}

impl Outcome {
    const SUCCESS: Self = Self {
        code: Code::Success,
        reason: None,
    };

    /// The usual answer on a host that runs no replica.
    const NOT_RUNNING: Self = Self {
        code: Code::NotRunning,
        reason: None,
    };

    fn of(code: Code, reason: impl Into<String>) -> Self {
        Self {
            code,
            reason: Some(reason.into()),
        }
    }
}

/// One instance of the resource: the replica of a guest on this host.
#[derive(Debug)]
struct Instance {
    file: PathBuf,
    config: ReplicaConfig,
    /// How long the action may take.
    timeout: Duration,
    /// This node's name, if Pacemaker says it.
    node: Option<String>,
    /// Pacemaker does not know yet whether the replica runs here.
    is_probe: bool,
}

impl Instance {
    /// Reads the parameters of an action and the configuration file that they name.
    ///
    /// # Errors
    /// The outcome of the action.
    fn read(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, Outcome> {
        let Some(file) = variable("OCF_RESKEY_config").map(PathBuf::from) else {
            let why =
                "the parameter config is missing: give the resource config=/etc/plover/NAME.toml";
            return Err(Outcome::of(Code::NotConfigured, why));
        };
        let config = ReplicaConfig::load(&file)
            .map_err(|error| Outcome::of(Code::NotInstalled, error.to_string()))?;
        let timeout = variable("OCF_RESKEY_CRM_meta_timeout");
        let timeout = timeout.and_then(|ms| ms.to_str()?.parse().ok());
        Ok(Self {
            file,
            config,
            timeout: timeout.map_or(TIMEOUT, Duration::from_millis),
            node: variable("OCF_RESKEY_CRM_meta_on_node").and_then(|it| it.into_string().ok()),
            is_probe: variable("OCF_RESKEY_CRM_meta_interval").is_none_or(|it| it == "0"),
        })
    }

    fn control(&self) -> Control {
        Control::in_run_dir(&self.config.paths.run_dir)
    }

    /// The reason, in words, if another replica's socket is in this one's folder. A replica in this resource's own unit is this
    /// one, even if its file has been given another name or id since.
    fn answered_by_another(&self) -> Option<String> {
        let own = self.control().within(ASKED_WITHIN).status().ok()?;
        let group = own.more.get("group").and_then(Value::as_str)?;
        let is_own = group == self.config.group.name && own.id == self.config.group.me;
        (!is_own && !self.is_in_own_unit()).then(|| {
            format!(
                "in paths.run_dir of {}, {}, replica {} of {group} answers: give each replica a run_dir of its own",
                self.file.display(),
                self.config.paths.run_dir.display(),
                own.id
            )
        })
    }

    /// Writes attributes of this node, in Pacemaker's memory: `None` empties one. The agent works without them, so nothing
    /// is said if Pacemaker does not take one.
    fn set_attributes(&self, attributes: &Attributes) {
        for (name, value) in attributes {
            let name = format!("plover-{}{name}", self.config.group.name);
            let mut updater = Command::new("timeout");
            updater.args([ATTRIBUTE_WITHIN_S, "attrd_updater", "--name", &name]);
            match value {
                Some(value) => updater.args(["--update", value]),
                None => updater.arg("--delete"),
            };
            let silent = updater.stdin(Stdio::null()).stdout(Stdio::null());
            let _ = silent.stderr(Stdio::null()).status();
        }
    }
}

/// Carries out one action, says on the error output why it failed, and returns its exit code.
pub fn run(action: &str) -> anyhow::Result<ExitCode> {
    let outcome = carry_out(action, Path::new(RUN), |name| std::env::var_os(name));
    if let Some(reason) = &outcome.reason {
        // Pacemaker shows what follows these words.
        tell!("ocf-exit-reason:{}", reason.replace('\n', " "));
    }
    Ok(ExitCode::from(outcome.code as u8))
}

/// `run_dirs` is where `plover init` puts the run directories.
fn carry_out(
    action: &str,
    run_dirs: &Path,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Outcome {
    if action == "meta-data" {
        return match crate::output::print(META_DATA) {
            Ok(()) => Outcome::SUCCESS,
            Err(error) => Outcome::of(Code::Failed, error.to_string()),
        };
    }
    let instance = match Instance::read(&variable) {
        Ok(instance) => instance,
        Err(outcome) => {
            let file = variable("OCF_RESKEY_config").map(PathBuf::from);
            return without_configuration(action, file.as_deref(), run_dirs, outcome);
        }
    };
    if let Some(why) = instance.answered_by_another() {
        return match action {
            "stop" => instance.stop_unit(),
            // The file of this host is wrong; those of other hosts need not be.
            _ => Outcome::of(Code::NotInstalled, why),
        };
    }
    match action {
        "start" => instance.start(),
        "stop" => instance.stop(),
        "monitor" => instance.monitor(),
        "reload-agent" => instance.reload(),
        "notify" => {
            let says = |name: &str, word: &str| {
                variable(&format!("OCF_RESKEY_CRM_meta_notify_{name}")).is_some_and(|it| it == word)
            };
            match says("type", "post") && says("operation", "stop") {
                true => instance.others_have_stopped(),
                false => Outcome::SUCCESS,
            }
        }
        "validate-all" => Outcome::SUCCESS,
        _ => Outcome::of(
            Code::Unimplemented,
            format!("there is no action {action}: see `plover ocf meta-data`"),
        ),
    }
}

/// The action where the configuration cannot be read. A host that has none runs no replica. One that has a wrong one, as while
/// somebody edits it, may run the replica: it is asked where `plover init` would have put its socket, and left alone.
fn without_configuration(
    action: &str,
    file: Option<&Path>,
    run_dirs: &Path,
    outcome: Outcome,
) -> Outcome {
    let name = file.and_then(Path::file_stem);
    let runs = name.is_some_and(|name| {
        let asked = Control::in_run_dir(&run_dirs.join(name)).status();
        // One that hangs runs, too.
        asked.map_or_else(|error| !action::is_absent(&error), |_| true)
    });
    let code = match (action, outcome.code) {
        ("monitor", _) if runs => Code::Degraded,
        ("stop", _) if runs => Code::Failed,
        ("stop", Code::NotInstalled) => return Outcome::SUCCESS,
        _ => return outcome,
    };
    let why = outcome.reason.unwrap_or_default();
    Outcome::of(code, format!("the replica runs on, but {why}"))
}
