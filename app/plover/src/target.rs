//! A replica of this host that is asked again and again, by `plover metrics` and `plover dash`.

use anyhow::Result;
use plover_lab::control::{Control, ControlError};
use plover_node::ReplicaConfig;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

/// A replica of this host.
#[derive(Debug)]
pub struct Target {
    pub guest: String,
    pub replica: String,
    control: Control,
    /// Why it last did not answer.
    silent: Mutex<Option<String>>,
}

impl Target {
    /// The replica of a configuration, which is waited for this long.
    pub fn of(config: &ReplicaConfig, within: Duration) -> Self {
        Self {
            guest: config.group.name.clone(),
            replica: config.group.me.to_string(),
            control: Control::in_run_dir(&config.paths.run_dir).within(within),
            silent: Mutex::default(),
        }
    }

    /// Asks it. Logs that it answers no more, or answers again, and nothing while that stays the same.
    pub fn ask<T>(
        &self,
        question: impl FnOnce(&Control) -> Result<T, ControlError>,
    ) -> Result<T, ControlError> {
        let answer = question(&self.control);
        self.tell(answer.as_ref().err().map(ToString::to_string));
        answer
    }

    pub fn control(&self) -> &Control {
        &self.control
    }

    fn tell(&self, silent: Option<String>) {
        let mut last = self
            .silent
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if silent.is_some() != last.is_some() {
            let (guest, replica) = (&self.guest, &self.replica);
            match &silent {
                Some(why) => eprintln!("plover: guest {guest}, replica {replica}: {why}"),
                None => eprintln!("plover: guest {guest}, replica {replica} answers again"),
            }
        }
        *last = silent;
    }
}

/// Reads the configurations of this host's replicas.
pub fn configurations(paths: &[PathBuf]) -> Result<Vec<ReplicaConfig>> {
    let configs = paths.iter().map(|path| Ok(ReplicaConfig::load(path)?));
    configs.collect()
}
