//! A replica of this host that is asked again and again, by `plover metrics` and `plover dash`.

use crate::at::RUN;
use anyhow::{Context, Result};
use plover_lab::control::{Control, ControlError};
use plover_node::{ReplicaConfig, has_left};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A replica of this host.
#[derive(Debug)]
pub struct Target {
    pub guest: String,
    pub replica: String,
    run_dir: PathBuf,
    state_dir: PathBuf,
    control: Control,
    /// Why it last did not answer.
    silent: Mutex<Option<String>>,
    /// None if it cannot be read.
    config: Option<ReplicaConfig>,
}

impl Target {
    /// The replica of a configuration, which is waited for this long.
    pub fn of(config: &ReplicaConfig, within: Duration) -> Self {
        Self {
            guest: config.group.name.clone(),
            replica: config.group.me.to_string(),
            run_dir: config.paths.run_dir.clone(),
            state_dir: config.paths.state_dir.clone(),
            control: Control::in_run_dir(&config.paths.run_dir).within(within),
            silent: Mutex::default(),
            config: Some(config.clone()),
        }
    }

    /// The replica of a configuration that cannot be read, which may be the reason why it is down: what its file's name says
    /// of it, as `plover init` names files and folders.
    fn of_unread(file: &Path, within: Duration) -> Option<Self> {
        let guest = file.file_stem()?.to_str()?;
        let run_dir = Path::new(RUN).join(guest);
        Some(Self {
            guest: guest.into(),
            replica: String::new(),
            control: Control::in_run_dir(&run_dir).within(within),
            state_dir: run_dir.clone(),
            run_dir,
            silent: Mutex::default(),
            config: None,
        })
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

    /// Whether it is to answer here: it has left something, since the host booted or that outlives it, and is not a replica
    /// that has left its group. One whose folder this user may not enter is another service's to ask.
    fn is_expected(&self) -> bool {
        match self.run_dir.join("control.sock").symlink_metadata() {
            Ok(_) => true,
            Err(error) if error.kind() == ErrorKind::PermissionDenied => false,
            // Its state is looked at only while it does not run: a disk that hangs keeps no figures back.
            Err(_) => {
                let has_run = self.run_dir.exists() || self.state_dir.exists();
                has_run && !self.config.as_ref().is_some_and(has_left)
            }
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        let of = |it: &Self| (it.guest.clone(), it.replica.clone(), it.run_dir.clone());
        of(self) == of(other)
    }

    pub fn control(&self) -> &Control {
        &self.control
    }

    fn tell(&self, silent: Option<String>) {
        let mut last = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        if silent.is_some() != last.is_some() {
            let (guest, replica) = (&self.guest, &self.replica);
            match &silent {
                Some(why) => tell!("plover: guest {guest}, replica {replica}: {why}"),
                None => tell!("plover: guest {guest}, replica {replica} answers again"),
            }
        }
        *last = silent;
    }
}

/// The replicas that are asked.
#[derive(Debug)]
pub enum Targets {
    /// Those whose configurations were named.
    Named(Vec<Arc<Target>>),
    /// Those whose configurations are in this folder at the time, and that have ever run on this host. (A spare host has
    /// configurations of replicas that do not.)
    In(PathBuf, Mutex<BTreeMap<PathBuf, Found>>),
}

/// A file of the folder.
#[derive(Debug, Default)]
pub struct Found {
    /// As of the last time that it could be read, if it could ever.
    replica: Option<Arc<Target>>,
    /// Why it cannot be read now, as was told.
    error: Option<String>,
}

impl Targets {
    /// Those of these configurations, or of all in `folder` if none is named; each is waited for this long.
    pub fn of(configs: &[PathBuf], folder: &Path, within: Duration) -> Result<Self> {
        if configs.is_empty() {
            std::fs::read_dir(folder)
                .with_context(|| format!("cannot read the folder {}", folder.display()))?;
            return Ok(Self::In(folder.into(), Mutex::default()));
        }
        let configs = configurations(configs)?;
        let targets = configs
            .iter()
            .map(|config| Arc::new(Target::of(config, within)));
        Ok(Self::Named(targets.collect()))
    }

    /// Those of now.
    pub fn now(&self, within: Duration) -> Vec<Arc<Target>> {
        match self {
            Self::Named(targets) => targets.clone(),
            Self::In(folder, known) => {
                let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
                let mut now = BTreeMap::new();
                for file in files_of(folder) {
                    let before = known.remove(&file).unwrap_or_default();
                    let found = look(&file, before, within);
                    now.insert(file, found);
                }
                *known = now;
                let targets = known.values().filter_map(|found| found.replica.as_ref());
                targets
                    .filter(|target| target.is_expected())
                    .cloned()
                    .collect()
            }
        }
    }
}

/// The configurations in `folder`, by name.
fn files_of(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|it| it == "toml"))
        .collect();
    files.sort();
    files
}

/// A file of the folder as it is now; `before` is what it was at the last look. A replica goes on whose file has become wrong.
fn look(file: &Path, before: Found, within: Duration) -> Found {
    match ReplicaConfig::load(file) {
        Ok(config) => {
            let target = Target::of(&config, within);
            let same = before.replica.filter(|before| before.is_same(&target));
            Found {
                replica: Some(same.unwrap_or_else(|| Arc::new(target))),
                error: None,
            }
        }
        Err(error) => {
            let error = error.to_string();
            if before.error.as_ref() != Some(&error) {
                tell!("plover: {error}");
            }
            let unread = || Target::of_unread(file, within).map(Arc::new);
            Found {
                error: Some(error),
                replica: before.replica.or_else(unread),
            }
        }
    }
}

/// Reads the configurations of this host's replicas.
pub fn configurations(paths: &[PathBuf]) -> Result<Vec<ReplicaConfig>> {
    let configs = paths.iter().map(|path| Ok(ReplicaConfig::load(path)?));
    configs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_looked_at_anew_each_time() {
        let folder = tempfile::tempdir().unwrap();
        let within = Duration::from_millis(1);
        let targets = Targets::of(&[], folder.path(), within).unwrap();
        let names = || {
            let now = targets.now(within).into_iter();
            now.map(|target| target.guest.clone()).collect::<Vec<_>>()
        };
        assert!(names().is_empty());
        let example = include_str!("../package/shop-db.toml");
        let run_dir = |name: &str| folder.path().join(name).display().to_string();
        let example = example.replace("/run/plover/shop-db", &run_dir("shop-db"));
        let example = example.replace("/var/lib/plover", &run_dir("state"));
        std::fs::create_dir(run_dir("shop-db")).unwrap();
        std::fs::create_dir_all(run_dir("state/mail")).unwrap();
        for (file, text) in [
            ("shop.toml", example.clone()),
            ("mail.toml", example.replace("shop-db", "mail")),
            ("spare.toml", example.replace("shop-db", "spare")),
            ("program.toml", "[program]\n".into()),
            ("shop.key", "no configuration".into()),
        ] {
            std::fs::write(folder.path().join(file), text).unwrap();
        }
        assert_eq!(names(), ["mail", "shop-db"]);
        let (first, second) = (targets.now(within), targets.now(within));
        assert!(Arc::ptr_eq(&first[0], &second[0]), "it knows what it told");
        std::fs::write(folder.path().join("shop.toml"), "a slip").unwrap();
        assert_eq!(names(), ["mail", "shop-db"], "its replica runs on");
        // The exporter has been started again since, and the replica does not start.
        let anew = look(&folder.path().join("shop.toml"), Found::default(), within);
        let replica = anew.replica.unwrap();
        assert_eq!(
            (replica.guest.as_str(), replica.run_dir.as_path()),
            ("shop", Path::new("/run/plover/shop"))
        );
        std::fs::remove_file(folder.path().join("mail.toml")).unwrap();
        assert_eq!(names(), ["shop-db"]);
    }
}
